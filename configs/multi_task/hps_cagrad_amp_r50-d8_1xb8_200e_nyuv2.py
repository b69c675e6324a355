_base_ = './hps_ew_r50-d8_1xb8_200e_nyuv2.py'

optim_wrapper = dict(
    type='mmext.AmpGradientSurgeryOptimWrapper',
    dtype='bfloat16',
    aggregator=dict(type='CAGrad', c=0.5),
)
