#!/usr/bin/env bash
# Evaluate a checkpoint in several processes, on GPUs or on the CPU.
#
#   bash tools/dist_test.sh CONFIG CHECKPOINT NPROC [arguments of test.py]
#
# Variables: see dist_train.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_dist.sh"
launch test.py 3 "$@"
