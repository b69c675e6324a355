# LVIS v1 with large-scale jitter and copy-paste on a 1024 x 1024 canvas.
# The model needs mask_policy='canvas'.
_base_ = './coco_instance_lsj.py'

data_root = 'data/lvis_v1/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_dataloader = dict(
    dataset=dict(
        dataset=dict(
            _delete_=True,
            type='ClassBalancedDataset',
            # Categories in fewer than one in a thousand images.
            oversample_thr=1e-3,
            dataset=dict(
                type='mmext.LVISV1Dataset',
                data_root=data_root,
                ann_file='annotations/lvis_v1_train.json',
                data_prefix=dict(img=''),
                filter_cfg=dict(filter_empty_gt=False, min_size=32),
                pipeline={{_base_.load_pipeline}},
            ),
        )
    )
)
val_dataloader = dict(
    dataset=dict(
        type='mmext.LVISV1Dataset',
        data_root=data_root,
        ann_file='annotations/lvis_v1_val.json',
        data_prefix=dict(img=''),
    )
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='mmext.LVISMetric',
    ann_file=data_root + 'annotations/lvis_v1_val.json',
)
test_evaluator = val_evaluator
