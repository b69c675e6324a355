_base_ = [
    '../_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/sgd_1x.py',
    '../_base_/default_runtime.py',
]

# A detector of mmdet with the memory saving of mmdet's backbones ...
model = dict(backbone=dict(with_cp=True))

# ... whose checkpoints are reentrant, which find_unused_parameters=True does
# not go with. The hook makes them non-reentrant. More is checkpointed with
# modules=['neck'] or classes=['mmdet.SwinBlock'].
#
# No parameter of this model is unused, so find_unused_parameters stays off. It
# may be turned on by a config that adds one.
default_hooks = dict(
    activation_checkpoint=dict(
        type='mmext.ActivationCheckpointHook',
        _scope_='mmdet',
        replace_reentrant=True,
    )
)
