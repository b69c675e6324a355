#!/usr/bin/env bash
# Train on a Slurm cluster.
#
#   bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]
#
# Variables: GPUS (all, 8), GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS
# (more arguments of srun), PYTHON (interpreter).
set -euo pipefail

if [ $# -lt 4 ]; then
    sed -n 's/^#   bash/usage: bash/p' "$0" >&2
    exit 2
fi
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-8}
[ "$per_node" -le "$gpus" ] || per_node=$gpus
read -r -a more <<<"${SRUN_ARGS:-}"

# --kill-on-bad-exit: a process that fails ends the others, which would wait.
exec srun --partition="$partition" --job-name="$job" \
    --gres=gpu:"$per_node" --ntasks="$gpus" --ntasks-per-node="$per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
    ${more[@]+"${more[@]}"} \
    "${PYTHON:-python}" -u "$(dirname "${BASH_SOURCE[0]}")/train.py" \
    "$config" --work-dir "$work_dir" --launcher slurm "$@"
