_base_ = ['./co_dino_5scale_r50_lsj.py', './lvis_v1_classes.py']

model = _base_.pop('lvis_v1_classes')
