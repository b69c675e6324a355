# COCO boxes and masks with the multi-scale augmentation of DETR; the pictures
# are those of coco_detection.py. The one thing to set is data_root.
_base_ = './coco_detection.py'

train_pipeline = _base_.train_pipeline
train_pipeline[1].update(with_mask=True)  # LoadAnnotations
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# Masks are compared with those of the annotation file.
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
