_base_ = [
    '../_base_/models/co_dino_5scale_r50.py',
    '../_base_/datasets/bccd_detection.py',
    '../_base_/schedules/co_dino_3x.py',
    '../_base_/default_runtime.py',
]

# For one GPU. Four pictures per step instead of 16, and half the rate, by the
# square-root rule that suits Adam.
model = dict(num_classes=3)
train_dataloader = dict(batch_size=4)
optim_wrapper = dict(optimizer=dict(lr=1e-4))
auto_scale_lr = dict(base_batch_size=4)
