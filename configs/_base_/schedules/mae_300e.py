# 300 epochs, the first 40 of which warm up; then the rate falls along a
# cosine. Nothing is evaluated: the loss says how far the training is.
train_cfg = dict(type='EpochBasedTrainLoop', _scope_='mmdet', max_epochs=300)

param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        start_factor=1e-4,
        by_epoch=True,
        begin=0,
        end=40,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        _scope_='mmdet',
        T_max=260,
        by_epoch=True,
        begin=40,
        end=300,
        convert_to_iter_based=True,
    ),
]

# bfloat16 needs no scaling of the loss, and does not overflow as float16
# does. On a CPU mmext.CpuAmpOptimWrapper takes the place of this one.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    _scope_='mmdet',
    constructor='mmext.MergedOptimWrapperConstructor',
    dtype='bfloat16',
    loss_scale=1.0,
    optimizer=dict(
        type='AdamW', lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05
    ),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            'cls_token': dict(decay_mult=0.0),
            'mask_token': dict(decay_mult=0.0),
        },
    ),
)

# The rate above is for 256 pictures per step. It is always scaled to the
# batch size times the number of processes, which the log says. Accumulated
# batches are not counted: multiply lr by accumulative_counts. MAE's rates are
# linear in the batch, other than those of Adam's kind are here by default.
auto_scale_lr = dict(enable=True, base_batch_size=256, rule='linear')
