"""SegmentationTaskHead, DepthTaskHead, SurfaceNormalTaskHead,
ClassificationTaskHead and RegressionTaskHead against plain PyTorch.
"""

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement, PixelData
from torch.nn import functional as F

import mmext.models  # noqa: F401
from mmext.models.losses import LabelRangeError

FCN = dict(
    type='mmseg.FCNHead',
    in_channels=4,
    channels=8,
    num_convs=1,
    concat_input=False,
    dropout_ratio=0,
    align_corners=False,
)
SIZE = (12, 20)


def build(kind, **options):
    if kind in ('Segmentation', 'Depth', 'SurfaceNormal'):
        options.setdefault('decode_head', FCN)
    return MODELS.build(dict(type=f'mmext.{kind}TaskHead', **options))


def sample(**fields):
    fields = {
        name: PixelData(data=value) if value.ndim > 2 else value
        for name, value in fields.items()
    }
    return BaseDataElement(metainfo=dict(img_shape=SIZE), **fields)


@pytest.fixture
def features(generator):
    x = torch.randn(2, 4, 3, 5, generator=generator, requires_grad=True)
    return (x,)


def check(head, features, samples, expected):
    """The loss of a head, and its gradient, against a plain one."""
    loss = head.loss(features, samples)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    (gradient,) = torch.autograd.grad(loss, features)
    plain = expected(head(features))
    (wanted,) = torch.autograd.grad(plain, features)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(gradient, wanted)


def resized(output):
    return F.interpolate(output, SIZE, mode='bilinear', align_corners=False)


def test_segmentation(features, generator):
    head = build('Segmentation', num_classes=5, loss_weight=0.5)
    label = torch.randint(0, 5, (2, 1, *SIZE), generator=generator)
    label[:, :, :3] = 255
    samples = [sample(gt_sem_seg=one) for one in label]

    def expected(output):
        return 0.5 * F.cross_entropy(
            resized(output), label[:, 0], ignore_index=255
        )

    check(head, features, samples, expected)
    samples[0].gt_sem_seg.data[0, 5, 5] = 9
    with pytest.raises(LabelRangeError, match='9'):
        head.loss(features, samples)


def test_depth(features, generator):
    head = build('Depth')
    depth = torch.rand(2, 1, *SIZE, generator=generator)
    depth[depth < 0.4] = 0
    samples = [sample(gt_depth=one) for one in depth]

    def expected(output):
        return (resized(output) - depth).abs()[depth > 0].mean()

    check(head, features, samples, expected)


def test_normals(features, generator):
    head = build('SurfaceNormal')
    normal = torch.randn(2, 3, *SIZE, generator=generator)
    # Of components whose sum is 0, and valid all the same.
    normal[0, :, 0, 0] = torch.tensor([1.0, -1.0, 0.0])
    normal = F.normalize(normal, dim=1)
    normal[:, :, 4:7] = 0
    samples = [sample(gt_normal=one) for one in normal]
    valid = (normal != 0).any(1)

    def expected(output):
        cosine = F.cosine_similarity(resized(output), normal, dim=1)
        return (1 - cosine[valid]).mean()

    check(head, features, samples, expected)


@pytest.mark.parametrize(
    ('kind', 'field', 'channels', 'options'),
    [
        ('Segmentation', 'gt_sem_seg', 1, dict(num_classes=3)),
        ('Depth', 'gt_depth', 1, {}),
        ('SurfaceNormal', 'gt_normal', 3, {}),
    ],
)
def test_nothing_valid_is_a_zero_with_a_gradient(
    features, kind, field, channels, options
):
    head = build(kind, **options)
    value = torch.zeros(channels, *SIZE)
    if kind == 'Segmentation':
        value = (value + 255).long()
    for samples in ([sample(**{field: value})] * 2, [sample()] * 2):
        assert head.count_valid(samples) == 0
        loss = head.loss(features, samples)
        assert loss == 0
        (gradient,) = torch.autograd.grad(loss, features)
        assert torch.equal(gradient, torch.zeros_like(gradient))
    # A sample without the field is one without a valid pixel.
    some = sample(**{field: torch.ones_like(value)})
    losses = [
        head.loss(features, [some, other])
        for other in (sample(), sample(**{field: value}))
    ]
    assert losses[0] == losses[1] > 0
    assert head.count_valid([some, sample()]) == SIZE[0] * SIZE[1]


def test_predictions_have_the_original_size(features):
    head = build('SurfaceNormal')
    one = sample()
    one.set_metainfo(dict(ori_shape=(24, 30), batch_input_shape=(16, 20)))
    head.predict(tuple(x[:1] for x in features), [one])
    output = F.interpolate(
        head(features)[:1], (16, 20), mode='bilinear', align_corners=False
    )[..., : SIZE[0], : SIZE[1]]
    output = F.interpolate(
        output, (24, 30), mode='bilinear', align_corners=False
    )
    wanted = F.normalize(output[0], dim=0)
    torch.testing.assert_close(one.pred_normal.data, wanted)


def test_classes_are_predicted(features):
    head = build('Segmentation', num_classes=3)
    samples = [sample(), sample()]
    head.predict(features, samples)
    wanted = resized(head(features)).argmax(1, keepdim=True)
    for one, classes in zip(samples, wanted):
        assert torch.equal(one.pred_sem_seg.data, classes)


@pytest.mark.parametrize('is_map', [False, True])
def test_classification(generator, is_map):
    head = build('Classification', in_channels=4, num_classes=3)
    x = torch.randn(4, 4, generator=generator, requires_grad=True)
    shown = (x[:, :, None, None].expand(4, 4, 2, 3) if is_map else x,)
    label = torch.tensor([0, 2, 255, 1])
    samples = [sample(gt_label=one) for one in label]
    loss = head.loss(shown, samples)
    plain = F.cross_entropy(head.linear(x), label, ignore_index=255)
    torch.testing.assert_close(loss, plain)
    head.predict(shown, samples)
    assert samples[1].pred_label == head.linear(x)[1].argmax()
    torch.testing.assert_close(
        samples[1].pred_label_scores, head.linear(x)[1].softmax(0)
    )


@pytest.mark.parametrize(
    ('loss', 'function'), [('l1', F.l1_loss), ('mse', F.mse_loss)]
)
def test_regression(generator, loss, function):
    head = build('Regression', in_channels=4, target='gt_hours', loss=loss)
    x = torch.randn(3, 4, generator=generator, requires_grad=True)
    samples = [sample(gt_hours=torch.tensor(v)) for v in (1.0, 2.0, 3.0)]
    target = torch.tensor([[1.0], [2.0], [3.0]])
    check(head, (x,), samples, lambda output: function(output, target))
    # A value that is not known does not count.
    samples[1] = sample(gt_hours=torch.tensor(float('nan')))
    check(
        head,
        (x,),
        samples,
        lambda output: function(output[::2], target[::2]),
    )
    head.predict((x,), samples)
    torch.testing.assert_close(samples[0].pred_hours, head.linear(x)[0, 0])


def test_errors(features):
    head = build('Depth')
    wrong = sample()
    wrong.set_field('far', 'gt_depth')
    with pytest.raises(TypeError, match='gt_depth of a sample must be a tens'):
        head.loss(features, [wrong, sample()])
    with pytest.raises(ValueError, match=r"begin with 'gt_', got 'depth'"):
        build('Depth', target='depth')
    with pytest.raises(ValueError, match='num_classes cannot be set'):
        build('Depth', decode_head=dict(FCN, num_classes=2))
    with pytest.raises(ValueError, match=r"one of \['l1', .*got 'l3'"):
        build('Regression', in_channels=1, loss='l3')
