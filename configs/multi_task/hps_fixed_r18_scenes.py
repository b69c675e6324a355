_base_ = './hps_ew_r18_scenes.py'

# A sweep: --cfg-options model.balancer.weights.depth=4
model = dict(
    balancer=dict(
        type='mmext.FixedWeights',
        weights=dict(semantic=1.0, depth=1.0, normal=1.0),
    )
)
