"""A head with a layer too many, trained in two processes."""

_base_ = './two_shapes.py'

model = dict(
    query_head=dict(type='shapeshop.ExtraLayerHead', text_dims=512),
)
