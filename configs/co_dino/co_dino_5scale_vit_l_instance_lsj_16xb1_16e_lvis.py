_base_ = [
    './co_dino_5scale_vit_l_lsj_16xb1_16e_lvis.py',
    '../_base_/models/refine_masks.py',
]

model = _base_.pop('refine_masks')
# The canvas is one of masks, too.
model['data_preprocessor'].update(
    batch_augments=[
        dict(type='mmdet.BatchFixedSizePad', size=(1536, 1536), pad_mask=True)
    ]
)

val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
