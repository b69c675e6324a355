# Shared by quickstart.sh and run_tests.sh: steps, errors, the environment.
# This file is sourced; it runs nothing by itself.
#
# The environment is .venv in the checkout. Its mark file says who made it and
# from what; the mark reads "finished" only after the last check passed, so an
# environment that was interrupted is made again. Two variables: PYTHON, the
# interpreter for it, and CONSTRAINTS, a file with the versions to install; if
# that is set and empty, they are the newest ones that setup.cfg allows.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
MARK=$VENV/mmext-env.txt
LOGS=$ROOT/work_dirs/logs
CONSTRAINTS=${CONSTRAINTS-constraints.txt}
CANDIDATES=(python3.11 python3.12 python3.13 python3.10 python3 python)
SECONDS=0
STEP='start'

say() {  # say TEXT: one line with the elapsed time
    printf '[%02d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

step() {  # step TEXT: say it, and name it if something fails
    STEP=$*
    say "==> $*"
}

die() {  # die WHAT REMEDY: the one way out after an error
    printf '\nFAILED in step: %s\n  what:   %s\n  remedy: %s\n' \
        "$STEP" "$1" "$2" >&2
    exit 1
}

logged() {  # logged NAME REMEDY COMMAND...: output into a log, its end if it fails
    local name=$1 log=$LOGS/$1.log remedy=$2
    shift 2
    mkdir -p "$LOGS"
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 25 "$log" >&2
        die "'$name' failed, its output is in $log" "$remedy"
    fi
}

find_python() {  # prints a usable interpreter, that of a venv replaced by its base
    local name executable names=("${CANDIDATES[@]}")
    [ -z "${PYTHON:-}" ] || names=("$PYTHON")
    for name in "${names[@]}"; do
        executable=$("$name" - 2>/dev/null <<'EOF'
import sys
import ctypes, ensurepip, ssl, venv, zlib  # a trimmed Python lacks one of them
if (3, 10) <= sys.version_info[:2] <= (3, 13):
    print(sys._base_executable)
EOF
        ) || continue
        if [ -n "$executable" ]; then
            printf '%s\n' "$executable"
            return
        fi
    done
}

env_key() {  # what the environment is made from
    cat "${CONSTRAINTS:-/dev/null}" setup.cfg setup.py pyproject.toml \
        mmext/version.py | cksum
    printf '%s %s\n' "${PYTHON:-any python}" "$ROOT"
}

env_is_ready() {
    [ -f "$MARK" ] && [ -x "$VENV/bin/python" ] &&
        [ -e mmext/.mim/configs ] && [ -e mmext/.mim/model-index.yml ] &&
        [ "$(cat "$MARK")" = "finished $(env_key)" ]
}

check_imports() {
    "$VENV/bin/python" -c 'import cv2, torch, mmext, mmdet, mmseg' </dev/null
}

make_env() {
    local python
    python=$(find_python)
    [ -n "$python" ] || die \
        "no Python 3.10 to 3.13 with venv, ensurepip, ssl and ctypes among: ${PYTHON:-${CANDIDATES[*]}}" \
        'install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python bash tools/...'
    if [ -e "$VENV" ] && [ ! -f "$MARK" ]; then
        die "$VENV exists and was not made by this script" \
            'move it out of the way and run this again'
    fi
    say "    $("$python" --version) at $python"
    rm -rf "$VENV"
    mkdir "$VENV"
    echo unfinished >"$MARK"
    logged venv 'see the log; on Debian and Ubuntu: apt-get install python3-venv' \
        "$python" -m venv "$VENV"
    say "    installing the packages (${CONSTRAINTS:-newest versions}), a minute or two"
    # Also in force for the builds of the packages that come as sources; newer
    # pips want the second name for that.
    PIP_CONSTRAINT=$CONSTRAINTS PIP_BUILD_CONSTRAINT=$CONSTRAINTS \
        logged install 'check the network and the free disk space (2 GB, with a CUDA build of torch 8 GB), then run this again' \
        "$VENV/bin/python" -m pip install --disable-pip-version-check \
        --no-input --progress-bar off -e '.[onedl,test]'
    if ! "$VENV/bin/python" -c 'import cv2' >/dev/null 2>&1; then
        say '    OpenCV finds no libGL here: laying its headless build over it'
        PIP_CONSTRAINT=$CONSTRAINTS logged headless \
            'install libGL (Debian, Ubuntu: apt-get install libgl1 libglib2.0-0)' \
            "$VENV/bin/python" -m pip install --no-input --force-reinstall \
            --no-deps opencv-python-headless
    fi
    logged imports 'see the log; a half-installed environment is made again by the next run' \
        check_imports
    printf 'finished %s' "$(env_key)" >"$MARK"
}

use_env() {  # leaves .venv made, checked and first on PATH; cwd is the checkout
    cd "$ROOT"
    [ -f constraints.txt ] && [ -f setup.cfg ] || die \
        "$ROOT is not a source checkout of mmext" \
        'run this from a checkout: an installed mmext has no environment to make'
    unset PYTHONPATH PYTHONHOME
    export PYTHONNOUSERSITE=1
    step 'Environment (.venv)'
    exec 9<setup.cfg
    if command -v flock >/dev/null && ! flock -n 9; then
        say '    another run is making it; waiting'
        flock 9
    fi
    if env_is_ready; then
        say '    already there and up to date'
    else
        make_env
    fi
    exec 9<&-
    export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH
    say "    $(python --version), torch $(python -c 'from importlib.metadata import version; print(version("torch"))')"
}
