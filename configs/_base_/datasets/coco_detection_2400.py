# COCO boxes as the public ViT-L config has them: as coco_detection_2048.py,
# but for long sides of up to 2400 in training.
_base_ = './coco_detection_2048.py'

train_scales = [(side, 2400) for side in range(480, 1537, 32)]

train_pipeline = _base_.train_pipeline
train_pipeline[3]['transforms'][0][0].update(scales=train_scales)
train_pipeline[3]['transforms'][1][2].update(scales=train_scales)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
