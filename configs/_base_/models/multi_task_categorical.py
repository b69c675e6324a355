# Embeddings of categories, and experts for two classes and a number.
# The embeddings belong to the model and run for each batch: what is embedded
# once, before the training, cannot be trained.
model = dict(
    type='mmext.MultiTaskModel',
    _scope_='mmseg',
    data_preprocessor=dict(type='mmext.MultiTaskDataPreprocessor'),
    backbone=dict(
        type='mmext.CategoricalEmbedding',
        num_categories=(40, 12, 8, 6, 20, 5),
        embed_dims=8,
        channels=(64,),
    ),
    architecture=dict(
        type='mmext.MMoE',
        num_experts=4,
        expert=dict(type='mmext.MLPExpert', channels=(64,)),
    ),
    heads=dict(
        income=dict(
            type='mmext.ClassificationTaskHead',
            in_channels=64,
            num_classes=2,
            target='gt_income',
        ),
        married=dict(
            type='mmext.ClassificationTaskHead',
            in_channels=64,
            num_classes=2,
            target='gt_married',
        ),
        hours=dict(
            type='mmext.RegressionTaskHead',
            in_channels=64,
            target='gt_hours',
            loss='mse',
        ),
    ),
    balancer=dict(type='mmext.EqualWeights'),
)
