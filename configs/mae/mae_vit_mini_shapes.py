_base_ = [
    '../_base_/models/mae_vit_mini.py',
    '../_base_/datasets/shapes_pictures.py',
    '../_base_/schedules/mae_100e.py',
    '../_base_/default_runtime_mae.py',
]

# A quarter of an hour on one core of a CPU for the 2,000 pictures that
# make_shapes_dataset.py draws.
#
# Ten times the rate of the large models, which suits so small a one.
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
