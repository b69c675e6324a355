_base_ = [
    '../_base_/models/mae_vit_base.py',
    '../_base_/datasets/pictures.py',
    '../_base_/schedules/mae_300e.py',
    '../_base_/default_runtime_mae.py',
]

# The folders of ImageNet's classes are looked into; their names are not used.
train_dataloader = dict(
    batch_size=512,
    num_workers=8,
    dataset=dict(data_prefix=dict(img_path='train/')),
)
