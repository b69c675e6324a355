_base_ = './hps_ew_r18_scenes.py'

model = dict(balancer=dict(type='mmext.GeometricMean'))
