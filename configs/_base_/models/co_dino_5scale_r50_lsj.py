_base_ = './co_dino_5scale_r50.py'

# Large-scale jitter puts every image on a canvas of one size, and the
# published models were trained with that canvas taken for the image: no
# attention mask over the padding, boxes relative to the canvas.
model = dict(
    mask_policy='canvas',
    data_preprocessor=dict(
        # The pipelines pad already; this keeps the canvas fixed for a pipeline
        # that does not. No mask is padded, because CO-DINO reads none.
        batch_augments=[
            dict(
                type='mmdet.BatchFixedSizePad',
                size=(1024, 1024),
                pad_mask=False,
            )
        ]
    ),
)
