_base_ = './co_dino_5scale_r50_bccd.py'

# Fine-tuning on one GPU, for sets of some hundred pictures: begins with the
# public weights of COCO instead of ImageNet's, and takes a third of the
# epochs. Copy it, and change the classes and the data. Classes that COCO has
# by the same name keep their rows of the classifiers; the log says which.
load_from = (
    'https://download.openmmlab.com/mmdetection/v3.0/codetr/'
    'co_dino_5scale_r50_1x_coco-7481f903.pth'
)
model = dict(backbone=dict(init_cfg=None))

# Edges and textures are the same everywhere. With pictures like COCO's, the
# whole 'backbone' may be frozen, which saves memory and time.
freeze = ['backbone.layer1', 'backbone.layer2']

train_cfg = dict(max_epochs=12)
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        start_factor=0.01,
        by_epoch=False,
        begin=0,
        end=200,
    ),
    dict(
        type='MultiStepLR',
        _scope_='mmdet',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[9],
        gamma=0.1,
    ),
]
