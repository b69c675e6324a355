# The default runtime for segmentors of mmseg, whose trainings count in
# iterations. What is the same for detectors is explained there.
_base_ = './default_runtime.py'

default_scope = 'mmseg'

model_wrapper_cfg = dict(_scope_='mmseg')

default_hooks = dict(
    timer=dict(_scope_='mmseg'),
    logger=dict(_scope_='mmseg', log_metric_by_epoch=False),
    param_scheduler=dict(_scope_='mmseg'),
    # One in 2,000 iterations, of which the last three stay, and the best.
    checkpoint=dict(
        _scope_='mmseg', by_epoch=False, interval=2000, save_best='mIoU'
    ),
    sampler_seed=dict(_scope_='mmseg'),
    visualization=dict(
        _delete_=True, type='mmseg.SegVisualizationHook', _scope_='mmseg'
    ),
    class_count=dict(_scope_='mmseg'),
    # Names image, value and place of labels that are no class.
    label_range=dict(type='mmext.LabelRangeHook', _scope_='mmseg'),
    # Lists the samples that mmext.ValidateLabels skips, or repairs.
    label_report=dict(type='mmext.LabelReportHook', _scope_='mmseg'),
    graceful_stop=dict(_scope_='mmseg'),
)

# Training crops all have one size.
env_cfg = dict(cudnn_benchmark=True)

vis_backends = [dict(type='LocalVisBackend', _scope_='mmseg')]
visualizer = dict(
    _delete_=True,
    type='mmseg.SegLocalVisualizer',
    _scope_='mmseg',
    vis_backends=vis_backends,
    name='visualizer',
)

log_processor = dict(_scope_='mmseg', by_epoch=False)
