# Shared by dist_train.sh and dist_test.sh. This file is sourced.

TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

launch() {  # launch TOOL POSITION_OF_NPROC ARGUMENTS...
    local tool=$1 at=$2 nproc
    shift 2
    nproc=${!at-}
    if [ $# -lt "$at" ] || ! [[ $nproc =~ ^[1-9][0-9]*$ ]]; then
        printf 'error: argument %d must be a number of processes, got "%s"\n' \
            "$at" "$nproc" >&2
        sed -n 's/^#   bash/usage: bash/p' "$0" >&2
        exit 2
    fi
    local before=("${@:1:at-1}") after=("${@:at+1}")
    local nnodes=${NNODES:-1} where
    if [ "$nnodes" = 1 ] && [ -z "${PORT:-}" ]; then
        # The processes of one machine meet on a port that the system chooses.
        where=(--standalone --local-addr 127.0.0.1)
    else
        where=(--node-rank "${NODE_RANK:-0}"
            --master-addr "${MASTER_ADDR:-127.0.0.1}"
            --master-port "${PORT:-29500}")
    fi
    # Time to finish a step and save when the run is to end.
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-60}
    # What torchrun and MMEngine would set, each with a warning.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    export MKL_NUM_THREADS=${MKL_NUM_THREADS:-1}
    # exec: signals go to the launcher, which passes them on.
    exec "${PYTHON:-python}" "$TOOLS/_torchrun.py" \
        --nnodes "$nnodes" --nproc-per-node "$nproc" "${where[@]}" \
        "$TOOLS/$tool" "${before[@]}" --launcher pytorch \
        ${after[@]+"${after[@]}"}
}
