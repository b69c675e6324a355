#!/usr/bin/env bash
# Train in several processes, on GPUs or, without any, on the CPU.
#
#   bash tools/dist_train.sh CONFIG NPROC [arguments of train.py]
#
# NPROC is the number of processes on this machine, one per GPU. Variables:
#   NNODES, NODE_RANK, MASTER_ADDR   machines, number of this one, the first one
#   PORT      port of the first machine; by default a free one, and with
#             several machines 29500
#   PYTHON    interpreter
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_dist.sh"
launch train.py 2 "$@"
