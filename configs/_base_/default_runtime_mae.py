# The default runtime for pre-training, which has no classes, and nothing to
# evaluate. What is the same is explained there.
_base_ = './default_runtime.py'

default_hooks = dict(
    checkpoint=dict(interval=10, save_best=None, rule=None),
    class_count=None,
    visualization=None,
)

visualizer = dict(
    _delete_=True,
    type='Visualizer',
    _scope_='mmdet',
    vis_backends=[dict(type='LocalVisBackend', _scope_='mmdet')],
    name='visualizer',
)

# All pictures have one size.
env_cfg = dict(cudnn_benchmark=True)
