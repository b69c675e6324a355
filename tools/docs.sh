#!/usr/bin/env bash
# Build the site of the documentation, and fail at a broken link.
#
#   bash tools/docs.sh                      into work_dirs/site
#   bash tools/docs.sh serve                on http://127.0.0.1:8000, built anew
#                                           when a page changes
#
# It needs Python 3.11 or newer; its packages (the extra `docs`) go into an
# environment of their own, work_dirs/docs_env, as nothing of mmext is imported.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

cd "$ROOT"
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1
ENV=$ROOT/work_dirs/docs_env

step 'Environment (work_dirs/docs_env)'
python=$(find_python)
"${python:-false}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die \
    'no Python 3.11 to 3.13' 'name one: PYTHON=/path/to/python bash tools/docs.sh'
wanted=$("$python" - <<'EOF'
from configparser import ConfigParser

setup = ConfigParser()
setup.read('setup.cfg')
print(setup['options.extras_require']['docs'].strip())
EOF
)
key=$(printf '%s' "$wanted" | cat - constraints.txt | cksum)
if [ "$(cat "$ENV/made_from.txt" 2>/dev/null)" != "$key" ]; then
    rm -rf "$ENV"
    logged docs_venv 'see the log' "$python" -m venv "$ENV"
    printf '%s\n' "$wanted" >"$ENV/requirements.txt"
    logged docs_install 'check the network, then run this again' \
        "$ENV/bin/python" -m pip install --disable-pip-version-check \
        --no-input --progress-bar off -c constraints.txt \
        -r "$ENV/requirements.txt"
    echo "$key" >"$ENV/made_from.txt"
fi

# See CONTRIBUTING.md.
export NO_MKDOCS_2_WARNING=1
if [ "${1:-build}" = serve ]; then
    exec "$ENV/bin/mkdocs" serve
fi
step 'Pages (work_dirs/site)'
logged site 'mend what it names: each warning is an error' \
    "$ENV/bin/mkdocs" build --strict --clean
say 'done: work_dirs/site/index.html'
