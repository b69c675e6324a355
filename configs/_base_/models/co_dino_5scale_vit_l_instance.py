_base_ = ['./co_dino_5scale_vit_l.py', './refine_masks.py']

model = _base_.pop('refine_masks')
# 1.33 times the usual weight.
model['mask_head']['mask_head'].update(loss_weight=15.96)
