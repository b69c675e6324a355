#!/usr/bin/env bash
# The oldest and the newest Python: all files compile without a warning, and
# the label check, which needs no torch, finds what it should. PyTorch's wheels
# for these take gigabytes, so the tests themselves run with one Python only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for version in 3.10 3.13; do
    python=$(command -v "python$version" || true)
    if ! "$python" --version >/dev/null 2>&1; then
        python=$(compgen -G "$HOME/.pyenv/versions/$version.*/bin/python" |
            tail -n 1 || true)
    fi
    if [ -z "$python" ]; then
        echo "Python $version is not here: no smoke test of it" >&2
        continue
    fi
    env=work_dirs/smoke$version
    rm -rf "$env"
    "$python" -m venv "$env"
    "$env/bin/python" -W error -m compileall -q -f mmext tools tests configs
    PIP_CONSTRAINT=${CONSTRAINTS-constraints.txt} \
        "$env/bin/python" -m pip install -q \
        --disable-pip-version-check onedl-mmengine opencv-python-headless \
        msgspec rich joblib kornia-rs Jinja2 Pillow pycocotools
    data=$env/shapes
    PYTHONPATH=. "$env/bin/python" tools/make_shapes_dataset.py \
        --out "$data" --num-train 8 --num-val 2
    PYTHONPATH=. "$env/bin/python" tools/validate_labels.py \
        --coco "$data/annotations/train.json" --images "$data/img_dir/train"
    code=0
    PYTHONPATH=. "$env/bin/python" tools/validate_labels.py \
        --masks "$data/ann_dir/train" --images "$data/img_dir/train" \
        --num-classes 3 >"$env/report.txt" || code=$?
    if [ "$code" -ne 1 ] || ! grep -q SEG001 "$env/report.txt"; then
        cat "$env/report.txt"
        echo "Python $version: exit code $code, expected 1 and SEG001" >&2
        exit 1
    fi
    echo "Python $version: smoke test passed"
done
