# A quarter of the width of ResNet-18, and small heads: for the generated
# scenes, and for CPUs.
_base_ = './multi_task_r50_d8.py'

decode_head = dict(
    _delete_=True,
    type='mmseg.FCNHead',
    _scope_='mmseg',
    in_channels=128,
    channels=32,
    in_index=-1,
    num_convs=1,
    concat_input=False,
    dropout_ratio=0,
    norm_cfg=dict(type='BN', requires_grad=True),
)

model = dict(
    backbone=dict(
        depth=18,
        base_channels=16,
        stem_channels=16,
        init_cfg=None,
    ),
    heads=dict(
        semantic=dict(decode_head=decode_head, num_classes=6),
        depth=dict(decode_head=decode_head),
        normal=dict(decode_head=decode_head),
    ),
)
