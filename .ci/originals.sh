#!/usr/bin/env bash
# mmext on the original host packages with PyTorch 2.1 and NumPy 1.26: installed
# from a wheel, which must leave their files alone; a short training, test,
# prediction and export for sharing; and a part of the tests. The environment is work_dirs/originals and is kept.
#
#   bash .ci/originals.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

env=$PWD/work_dirs/originals
python=$env/bin/python
export OMP_NUM_THREADS=1 PYTHONNOUSERSITE=1
unset PYTHONPATH

# The constraints of the other environment have a newer NumPy.
if ! "$python" -c 'import torch, mmdet, mmseg' 2>/dev/null; then
    rm -rf "$env"
    .venv/bin/python -m venv "$env"
    "$python" -m pip install -q --disable-pip-version-check torch==2.1.2 \
        numpy==1.26.4 'opencv-python-headless<4.12' 'setuptools<82' wheel \
        mmengine==0.10.7 mmcv-lite==2.1.0 mmdet==3.3.0 mmsegmentation==1.2.2 \
        ftfy regex 'opencv-python<4.12' numba pytest pytest-timeout \
        pytest-xdist pytest-rerunfailures hypothesis
fi

sums() {  # a checksum of all files of the host packages
    (cd "$env"/lib/python*/site-packages && find mmengine mmcv mmdet mmseg \
        -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 cksum | cksum)
}

before=$(sums)
rm -rf work_dirs/wheel
.venv/bin/python -m pip wheel -q --no-deps --no-build-isolation \
    -w work_dirs/wheel .
"$python" -m pip install -q --disable-pip-version-check --force-reinstall \
    --no-deps work_dirs/wheel/*.whl
"$python" -m pip install -q --disable-pip-version-check work_dirs/wheel/*.whl
"$python" -m pip check
if [ "$before" != "$(sums)" ]; then
    echo 'FAILED: the wheel changed files of the host packages' >&2
    exit 1
fi

# Outside of the checkout, so that the wheel is what is used.
work=$PWD/work_dirs/originals_run
rm -rf "$work"
mkdir -p "$work"
(
    cd "$work"
    mmext() { "$env/bin/mmext" "$@"; }
    mmext make_shapes_dataset --out data --num-train 160 --num-val 20 \
        --image-size 64 --max-objects 4 --hue-by-class 1
    printf "_base_ = 'mmext::co_dino/co_dino_r18_shapes.py'\n" >config.py
    mmext preflight config.py --world 2 --cfg-options data_root=data
    mmext validate_labels config.py --cfg-options data_root=data
    for epochs in 1 2; do
        mmext train config.py --nproc 2 --device cpu --work-dir run --resume \
            --cfg-options data_root=data train_cfg.max_epochs=$epochs
    done
    mmext test config.py run/epoch_2.pth --device cpu \
        --cfg-options data_root=data
    mmext infer --checkpoint run/epoch_2.pth --from-val 2 --out pictures \
        --device cpu
    mmext share run/epoch_2.pth shared
) >"$work/log.txt" 2>&1 || {
    tail -n 40 "$work/log.txt" >&2
    echo "FAILED: the quick start, its output is in $work/log.txt" >&2
    exit 1
}

# The tests import the checkout. The other tests of these packages pass, too,
# and depend less on PyTorch and MMEngine.
"$python" -m pytest -q -n 2 tests/test_models/test_losses \
    tests/test_models/test_mae tests/test_models/test_multi_task \
    tests/test_models/test_co_dino/test_detector.py \
    tests/test_models/test_co_dino/test_decoder.py \
    tests/test_models/test_co_dino/test_query_head.py \
    tests/test_checks/test_ddp tests/test_ops/test_ms_deform_attn.py \
    tests/test_engine/test_distributed tests/test_engine/test_resume.py \
    tests/test_engine/test_checkpoints.py tests/test_engine/test_launch.py
