_base_ = [
    '../_base_/models/pidnet_s_camvid.py',
    '../_base_/datasets/camvid_semantic.py',
    '../_base_/schedules/pidnet_6k.py',
    '../_base_/default_runtime_semantic.py',
]

# For one GPU. A shorter run, for instance on a CPU, is
#   --cfg-options train_cfg.max_iters=500 train_cfg.val_interval=100 \
#       param_scheduler.1.end=500 train_dataloader.batch_size=4
# and min_kept of the model should fall with the batch (2 % of its pixels).
# Weights of another training are given as load_from=FILE.
default_hooks = dict(checkpoint=dict(interval=600))
