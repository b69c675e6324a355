# PIDNet-S for the 11 classes of CamVid, from random weights. The value 11 is
# void: it is ignored by the head, which tells its losses, and the padding
# gets it, too.
#
# Class weights by median frequency, from the 367 training masks: the
# frequency of a class is its pixels over all pixels of the images that have
# it (360 x 480 each), and its weight is the median of the 11 frequencies over
# its own.
_base_ = './pidnet_s.py'

class_weight = [0.2793, 0.2017, 4.7865, 0.149, 1.0, 0.4217]
class_weight += [3.8467, 1.9736, 0.7889, 6.3747, 8.8587]

model = dict(
    data_preprocessor=dict(size=(320, 320), size_divisor=None, seg_pad_val=11),
    decode_head=dict(
        num_classes=11,
        ignore_index=11,
        loss_decode=[
            # As PyTorch and PIDNet's authors do it: over the weights of the
            # pixels that count.
            dict(
                type='mmext.CheckedCrossEntropyLoss',
                class_weight=class_weight,
                denominator='weight_sum',
                loss_weight=0.4,
            ),
            # 2 % of the 12 x 320 x 320 pixels of a batch.
            dict(
                type='mmext.CheckedOhemCrossEntropy',
                thres=0.9,
                min_kept=25000,
                class_weight=class_weight,
            ),
            dict(type='mmext.CheckedBoundaryLoss', loss_weight=20.0),
            dict(
                type='mmext.CheckedOhemCrossEntropy',
                thres=0.9,
                min_kept=25000,
                class_weight=class_weight,
            ),
        ],
    ),
)
