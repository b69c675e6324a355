# As lvis_v1_instance_lsj.py, on the 1280 x 1280 canvas of the public Swin-L
# configs, one picture per GPU.
_base_ = ['./coco_instance_lsj_1280.py', './lvis_v1.py']

data_root = 'data/lvis_v1/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_dataloader = dict(
    dataset=dict(dataset=dict(_delete_=True, **_base_.pop('lvis_v1_train')))
)
train_dataloader['dataset']['dataset']['dataset'].update(
    pipeline=_base_.load_pipeline
)
val_dataloader = dict(dataset=_base_.pop('lvis_v1_val'))
test_dataloader = val_dataloader
val_evaluator = _base_.pop('lvis_v1_evaluator')
test_evaluator = val_evaluator
