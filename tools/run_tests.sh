#!/usr/bin/env bash
# Run the tests in the environment of the quick start.
#
#   bash tools/run_tests.sh                 the default set
#   bash tools/run_tests.sh -m slow         the slow ones
#   bash tools/run_tests.sh tests/test_x.py -k name ...
#
# They run in parallel, one process a core; -n 0 is without.
#
# All arguments go to pytest. The exit code is pytest's; "no test was run" (5)
# counts as a failure.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

use_env
step "Tests: pytest $*"
code=0
python -m pytest -n logical --maxprocesses 8 "$@" || code=$?
if [ "$code" -ne 0 ]; then
    case $code in
        1) what='at least one test failed' ;;
        2) what='pytest was interrupted or could not collect the tests' ;;
        5) what='pytest found no test to run' ;;
        *) what="pytest ended with $code" ;;
    esac
    step 'Tests'
    printf '\nFAILED: %s\n  remedy: read the lines above; one test again: %s\n' \
        "$what" 'bash tools/run_tests.sh PATH::NAME -x' >&2
    exit "$code"
fi
say 'done'
