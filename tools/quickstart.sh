#!/usr/bin/env bash
# From a fresh checkout to a trained, evaluated and drawn small CO-DINO.
#
#   bash tools/quickstart.sh
#
# Runs on the CPU, in two processes, which train for about four minutes on two
# idle cores; installing takes a few more. It can be run again at any time: the
# environment (.venv) is kept, the results (work_dirs/quickstart) are replaced.
# Variables: PYTHON (interpreter for .venv), EPOCHS and IMAGES of the training.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

CONFIG=configs/co_dino/co_dino_r18_shapes.py
WORK=work_dirs/quickstart
DATA=data/quickstart
FULL_EPOCHS=5 FULL_IMAGES=1600
EPOCHS=${EPOCHS:-$FULL_EPOCHS} IMAGES=${IMAGES:-$FULL_IMAGES}
EXPECTED=0.75  # mAP@50, after the full number of epochs and images

show_training() {  # the lines of a training that a person wants to see
    local line
    trap '' INT  # the training gets it, too, and has something to say then
    while IFS= read -r line; do
        if [[ $line =~ Epoch\(train\)\ *\[([0-9]+)\]\[\ *([0-9/]+)\]\ *loss\ ([0-9.]+).*\ ([0-9:]+)\ left ]]; then
            say "    epoch ${BASH_REMATCH[1]}/$EPOCHS, step ${BASH_REMATCH[2]}: loss ${BASH_REMATCH[3]}, ${BASH_REMATCH[4]} left"
        elif [[ $line =~ Epoch\(val\)\ *\[([0-9]+)\].*bbox_mAP_50:\ ([0-9.]+) ]]; then
            say "    epoch ${BASH_REMATCH[1]}/$EPOCHS, validation: mAP@50 ${BASH_REMATCH[2]}"
        fi
    done
}

train() {
    bash tools/dist_train.sh "$CONFIG" 2 --device cpu --work-dir "$WORK" \
        --cfg-options data_root="$DATA" train_dataloader.batch_size=8 \
        train_cfg.max_epochs="$EPOCHS" train_cfg.val_interval=2 \
        param_scheduler.1.end="$EPOCHS" param_scheduler.1.T_max="$EPOCHS" \
        randomness.seed=0 </dev/null 2>&1
}

read_metric() {  # read_metric NAME: from the newest test of the work dir
    python - "$WORK/test" "$1" <<'EOF'
import json, pathlib, sys

folder, name = sys.argv[1:]
newest = max(pathlib.Path(folder).glob('*/*.json'))
print(f'{json.loads(newest.read_text())[name]:.3f}')
EOF
}

[[ $EPOCHS =~ ^[1-9][0-9]*$ && $IMAGES =~ ^[1-9][0-9]*$ ]] || die \
    "EPOCHS and IMAGES must be whole numbers from 1, got '$EPOCHS' and '$IMAGES'" \
    'leave them out'
use_env
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

step "Data: $IMAGES + 200 generated pictures of shapes ($DATA)"
logged data 'see the log' \
    python tools/make_shapes_dataset.py --out "$DATA" --num-train "$IMAGES" \
    --num-val 200 --image-size 64 --max-objects 4 --hue-by-class 1 \
    --overwrite

step "Training: 2 processes on the CPU, $EPOCHS epochs ($WORK)"
rm -rf "$WORK"
mkdir -p "$WORK" "$LOGS"
say "    everything it says: $LOGS/train.log"
code=0
train | tee "$LOGS/train.log" | show_training || code=${PIPESTATUS[0]}
if [ "$code" -ne 0 ]; then
    tail -n 25 "$LOGS/train.log" | cut -c 1-300 >&2
    die "the training ended with exit code $code, its output is in $LOGS/train.log" \
        'read its last lines, then run this again (code 130: Ctrl-C; 137: killed, perhaps for memory)'
fi
CHECKPOINT=$(cat "$WORK/last_checkpoint")

step "Evaluation of $CHECKPOINT"
logged test "see the log; the command: python tools/test.py $CONFIG $CHECKPOINT" \
    python tools/test.py "$CONFIG" "$CHECKPOINT" --device cpu \
    --work-dir "$WORK/test" --cfg-options data_root="$DATA"
MAP50=$(read_metric coco/bbox_mAP_50)
MAP=$(read_metric coco/bbox_mAP)

step 'Pictures: predictions next to the ground truth, loss curves'
logged infer 'see the log' \
    python tools/infer.py --checkpoint "$CHECKPOINT" --from-val 12 --with-gt \
    --out "$WORK/predictions" --device cpu
logged curves 'see the log' \
    python tools/plot_log.py "$WORK" --out "$WORK/curves.png"

step 'Done'
cat <<EOF

  mAP@50 $MAP50, mAP $MAP on 200 pictures that were not trained on

  pictures    $WORK/predictions/contact_sheet.png
  curves      $WORK/curves.png
  weights     $CHECKPOINT
  config      $WORK/$(basename "$CONFIG")
  data        $DATA
  logs        $LOGS

  The environment:  . .venv/bin/activate
  Your own images:  python tools/infer.py --checkpoint $CHECKPOINT --out FOLDER IMAGE...
EOF
if [ "$EPOCHS" -ge $FULL_EPOCHS ] && [ "$IMAGES" -ge $FULL_IMAGES ] &&
    ! awk "BEGIN { exit !($MAP50 > $EXPECTED) }"; then
    die "mAP@50 is $MAP50, and $EXPECTED was expected" \
        "compare $WORK/curves.png and $LOGS/train.log with a machine where it works"
fi
