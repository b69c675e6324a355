# The default runtime for multi-task models. What is the same for detectors is
# explained there.
_base_ = './default_runtime.py'

default_scope = 'mmseg'

model_wrapper_cfg = dict(_scope_='mmseg')

default_hooks = dict(
    timer=dict(_scope_='mmseg'),
    # A line in the log every 20 steps: losses, raw and weighted, and weights.
    logger=dict(_scope_='mmseg', interval=20),
    param_scheduler=dict(_scope_='mmseg'),
    # No figure of one task says which model is best: with a baseline, set
    # save_best='delta_m' and rule='greater'.
    checkpoint=dict(_scope_='mmseg', interval=5, save_best=None, rule=None),
    sampler_seed=dict(_scope_='mmseg'),
    # tools/infer.py draws all tasks side by side.
    visualization=None,
    class_count=dict(_scope_='mmseg'),
    # Names image, value and place of labels that are no class.
    label_range=dict(type='mmext.LabelRangeHook', _scope_='mmseg'),
    graceful_stop=dict(_scope_='mmseg'),
)

# Keeps the state of the balancer, and tells it of epochs and steps.
custom_hooks = [dict(type='mmext.LossBalancerHook', _scope_='mmseg')]

# Images have one size.
env_cfg = dict(cudnn_benchmark=True)

vis_backends = [dict(type='LocalVisBackend', _scope_='mmseg')]
visualizer = dict(
    _delete_=True,
    type='Visualizer',
    _scope_='mmseg',
    vis_backends=vis_backends,
    name='visualizer',
)

log_processor = dict(_scope_='mmseg', window_size=20)
