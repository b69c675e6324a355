# The generated shapes with the mask of each. Make them with
#   python tools/make_shapes_dataset.py --out data/shapes
# The one thing to set is data_root.
_base_ = './shapes_detection.py'

train_pipeline = _base_.train_pipeline
train_pipeline[1].update(with_mask=True)  # LoadAnnotations
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# Masks are compared with those of the annotation file.
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
