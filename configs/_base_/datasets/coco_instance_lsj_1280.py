# COCO with large-scale jitter and copy-paste on the 1280 x 1280 canvas of the
# public Swin-L LSJ configs, one picture per GPU.
_base_ = './coco_instance_lsj.py'

image_size = (1280, 1280)  # also the size of BatchFixedSizePad

load_pipeline = _base_.load_pipeline
load_pipeline[2].update(scale=image_size)  # RandomResize
load_pipeline[3].update(crop_size=image_size)  # RandomCrop
load_pipeline[6].update(size=image_size)  # Pad
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=image_size)  # Resize
test_pipeline[2].update(size=image_size)  # Pad

train_dataloader = dict(
    batch_size=1,
    num_workers=2,
    dataset=dict(dataset=dict(pipeline=load_pipeline)),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
