# Names without a prefix are looked up here.
default_scope = 'mmdet'

# Not needed to find components, but makes an error in one of them visible.
custom_imports = dict(
    imports=['mmext.models', 'mmext.datasets', 'mmext.engine'],
    allow_failed_imports=False,
)

# Several processes on CPUs, whole checkpoints, exact resume, clear errors.
runner_type = 'mmext.PortableRunner'

# 'auto' is the GPU where there is one; 'cpu', 'cuda', 'cuda:1'. The same as
# --device.
device = 'auto'

# In several processes: gradients are averaged by DDP, which checks in every
# step that each parameter has one, and says what to do about it if not. Here
# also belong static_graph, gradient_as_bucket_view and broadcast_buffers.
model_wrapper_cfg = dict(type='mmext.DistributedDataParallel', _scope_='mmdet')

# No model of ours has a parameter that a step leaves without a gradient, so
# nothing has to be searched for. The error of the wrapper says when to turn
# it on.
find_unused_parameters = False

default_hooks = dict(
    # Time per step and what is left.
    timer=dict(type='IterTimerHook', _scope_='mmdet'),
    # A line in the log file every 50 steps; the console has more of them.
    logger=dict(type='LoggerHook', _scope_='mmdet', interval=50),
    # Steps the learning rate.
    param_scheduler=dict(type='ParamSchedulerHook', _scope_='mmdet'),
    # A checkpoint per epoch, of which the last three stay, and the best by the
    # first figure of the evaluator, which is the mAP of the boxes.
    checkpoint=dict(
        type='mmext.AtomicCheckpointHook',
        _scope_='mmdet',
        interval=1,
        max_keep_ckpts=3,
        save_best='auto',
        rule='greater',
    ),
    # Another order of the images in each epoch.
    sampler_seed=dict(type='DistSamplerSeedHook', _scope_='mmdet'),
    # Draws predictions, when a tool asks for it.
    visualization=dict(type='mmdet.DetVisualizationHook', _scope_='mmdet'),
    # The data and the model must have the same number of classes.
    class_count=dict(type='mmext.ClassCountCheckHook', _scope_='mmdet'),
    # Ctrl-C and SIGTERM leave a checkpoint to go on from.
    graceful_stop=dict(type='mmext.GracefulStopHook', _scope_='mmdet'),
)

env_cfg = dict(
    # Images differ in size: searching the fastest convolution costs time.
    cudnn_benchmark=False,
    # Workers start by fork, and OpenCV starts no threads in them.
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # The backend goes by the device (NCCL, Gloo). A process waits this many
    # seconds for the others, in particular while rank 0 evaluates.
    dist_cfg=dict(timeout=600),
)

# Scalars and pictures go into files of the work dir.
vis_backends = [dict(type='LocalVisBackend', _scope_='mmdet')]
visualizer = dict(
    type='mmdet.DetLocalVisualizer',
    _scope_='mmdet',
    vis_backends=vis_backends,
    name='visualizer',
)

# Losses in the log are means of 50 steps.
log_processor = dict(
    type='LogProcessor', _scope_='mmdet', window_size=50, by_epoch=True
)
log_level = 'INFO'

# Weights to start from; with resume=True, the training to go on with.
load_from = None
resume = False
