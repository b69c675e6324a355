# The generated shapes with the mask of each. Make them with
#   python tools/make_shapes_dataset.py --out data/shapes
# The one thing to set is data_root.
_base_ = './shapes_detection.py'

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.LoadAnnotations',
        _scope_='mmdet',
        with_bbox=True,
        with_mask=True,
    ),
    # Keeps the size; it is here for the scale_factor that heads read.
    dict(
        type='mmdet.Resize', _scope_='mmdet', scale_factor=1.0, keep_ratio=True
    ),
    # A shape upside down is the same shape.
    dict(
        type='mmdet.RandomFlip',
        _scope_='mmdet',
        prob=[0.3, 0.3],
        direction=['horizontal', 'vertical'],
    ),
    dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# Masks are compared with those of the annotation file.
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
