_base_ = './hps_ew_r18_scenes.py'

optim_wrapper = dict(
    type='mmext.GradientSurgeryOptimWrapper', aggregator='PCGrad'
)
