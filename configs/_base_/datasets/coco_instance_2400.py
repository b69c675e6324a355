# COCO boxes and masks; the pictures are those of coco_detection_2400.py.
_base_ = './coco_detection_2400.py'

train_pipeline = _base_.train_pipeline
train_pipeline[1].update(with_mask=True)  # LoadAnnotations
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# Masks are compared with those of the annotation file.
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
