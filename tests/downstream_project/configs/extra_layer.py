"""A head with a layer too many, trained in two processes."""

_base_ = 'mmext::co_dino/co_dino_r18_shapes.py'

classes = ('circle', 'square')

model = dict(
    num_classes=len(classes),
    query_head=dict(type='shapeshop.ExtraLayerHead', text_dims=512),
)
loader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(metainfo=dict(classes=classes)),
)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
