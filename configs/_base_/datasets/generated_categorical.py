# Six categorical columns with two classes and a number to predict, generated
# in memory: nothing has to be there.
train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmext.GeneratedCategoricalDataset',
        _scope_='mmseg',
        num_samples=8192,
        split='train',
    ),
)
val_dataloader = dict(
    batch_size=256,
    num_workers=0,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=False),
    dataset=dict(
        type='mmext.GeneratedCategoricalDataset',
        _scope_='mmseg',
        num_samples=2048,
        split='val',
    ),
)
test_dataloader = val_dataloader

val_evaluator = [
    dict(
        type='mmext.ClassificationTaskMetric',
        _scope_='mmseg',
        target='gt_income',
    ),
    dict(
        type='mmext.ClassificationTaskMetric',
        _scope_='mmseg',
        target='gt_married',
    ),
    dict(
        type='mmext.RegressionTaskMetric', _scope_='mmseg', target='gt_hours'
    ),
]
test_evaluator = val_evaluator
