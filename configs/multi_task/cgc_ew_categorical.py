_base_ = './mmoe_ew_categorical.py'

model = dict(
    architecture=dict(
        _delete_=True,
        type='mmext.CGC',
        num_shared_experts=2,
        num_task_experts=1,
        expert=dict(type='mmext.MLPExpert', channels=(64,)),
    )
)
