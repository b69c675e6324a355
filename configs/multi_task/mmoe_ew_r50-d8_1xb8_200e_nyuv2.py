_base_ = './hps_ew_r50-d8_1xb8_200e_nyuv2.py'

# Each expert has a branch at each level that the backbone returns; the heads
# use the last.
model = dict(
    backbone=dict(out_indices=(3,)),
    architecture=dict(
        type='mmext.MMoE',
        num_experts=2,
        expert=dict(type='mmext.ConvExpert'),
    ),
)
