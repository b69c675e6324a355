_base_ = [
    '../_base_/models/mae_vit_mini.py',
    '../_base_/datasets/shapes_pictures.py',
    '../_base_/schedules/mae_100e.py',
    '../_base_/default_runtime_mae.py',
]

# Ten times the rate of the large models, which suits so small a one.
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
