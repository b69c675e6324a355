_base_ = './hps_ew_r50-d8_1xb8_200e_nyuv2.py'

model = dict(balancer=dict(type='mmext.UncertaintyWeights'))
