# What the data set configs of LVIS v1 share; they pop it from _base_. Pictures
# are those of COCO 2017, whose folders train2017 and val2017 are below
# data_root. Images of rare categories are repeated.
lvis_v1_train = dict(
    type='ClassBalancedDataset',
    _scope_='mmdet',
    # Categories in fewer than one in a thousand images.
    oversample_thr=1e-3,
    dataset=dict(
        type='mmext.LVISV1Dataset',
        data_root='data/lvis_v1/',
        ann_file='annotations/lvis_v1_train.json',
        data_prefix=dict(img=''),
        filter_cfg=dict(filter_empty_gt=False, min_size=32),
    ),
)
lvis_v1_val = dict(
    type='mmext.LVISV1Dataset',
    data_root='data/lvis_v1/',
    ann_file='annotations/lvis_v1_val.json',
    data_prefix=dict(img=''),
)
lvis_v1_evaluator = dict(
    type='mmext.LVISMetric',
    ann_file='data/lvis_v1/annotations/lvis_v1_val.json',
)
