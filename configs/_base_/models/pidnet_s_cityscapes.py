# PIDNet-S as mmseg trains it on Cityscapes: class weights, which are
# 1 / log(number of pixels) over their mean, in all losses that know classes,
# SyncBN, and a backbone that was trained on ImageNet (downloaded when a
# training starts, not before).
_base_ = './pidnet_s.py'

class_weight = [0.8373, 0.918, 0.866, 1.0345, 1.0166, 0.9969, 0.9754, 1.0489]
class_weight += [0.8786, 1.0023, 0.9539, 0.9843, 1.1116, 0.9037, 1.0865]
class_weight += [1.0955, 1.0865, 1.1529, 1.0507]

model = dict(
    data_preprocessor=dict(size=(1024, 1024), size_divisor=None),
    backbone=dict(
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/'
            'pretrain/pidnet/pidnet-s_imagenet1k_20230306-715e6273.pth',
        ),
    ),
    decode_head=dict(
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        loss_decode=[
            # 'numel' because the published weights were trained so (March
            # 2023, mmseg 1.0): a mean over all pixels, ignored ones included.
            # PIDNet's authors divide by the class weights of the pixels that
            # are not ignored: 'weight_sum', which is also what 'auto' means
            # here. The loss is then larger where pixels are ignored.
            dict(
                type='mmext.CheckedCrossEntropyLoss',
                class_weight=class_weight,
                denominator='numel',
                loss_weight=0.4,
            ),
            dict(
                type='mmext.CheckedOhemCrossEntropy',
                thres=0.9,
                min_kept=131072,
                class_weight=class_weight,
            ),
            dict(type='mmext.CheckedBoundaryLoss', loss_weight=20.0),
            dict(
                type='mmext.CheckedOhemCrossEntropy',
                thres=0.9,
                min_kept=131072,
                class_weight=class_weight,
            ),
        ],
    ),
)
