_base_ = './hps_ew_r18_scenes.py'

model = dict(
    architecture=dict(type='mmext.MTAN'),
    balancer=dict(type='mmext.DWA', temperature=2.0),
)
