"""Models as functions of pictures alone, before any exporter sees them."""

import json

import pytest
import torch
from helpers.tiny_co_dino import build_tiny
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmext.apis import ExportError, export_model
from mmext.apis.export import export
from mmext.apis.export.exported_models import make_exportable

PICTURES = torch.randint(
    0, 256, (2, 3, 72, 88), generator=torch.Generator().manual_seed(0)
).float()


@pytest.fixture(scope='module')
def detector() -> nn.Module:
    return build_tiny().eval()


def test_detector_is_the_model(detector: nn.Module) -> None:
    model = make_exportable(detector).eval()
    with torch.no_grad():
        result = dict(zip(model.outputs, model(PICTURES)))
        expected = model.predict(PICTURES)
    assert result.keys() == expected.keys()
    apart = model.differences(result, expected)
    assert apart.keys() == {'boxes', 'scores'}
    assert max(apart.values()) < 1e-3
    # NMS is the model's again.
    assert detector.query_head.test_cfg['nms']
    assert model.left_out == ["nms {'type': 'soft_nms', 'iou_threshold': 0.8}"]


def test_co_deformable_detr_is_the_model() -> None:
    """Whose proposals are ranked by one class, and which has no NMS."""
    model = make_exportable(build_tiny(base='co_deformable_detr_r50').eval())
    with torch.no_grad():
        result = dict(zip(model.outputs, model(PICTURES)))
        apart = model.differences(result, model.predict(PICTURES))
        assert not model.is_tied(PICTURES)
    assert max(apart.values()) < 1e-3
    assert model.left_out == []


@pytest.fixture
def swin() -> nn.Module:
    return build_tiny(base='5scale_swin_t').eval()


@pytest.mark.slow
@pytest.mark.parametrize('size', [(64, 64), (64, 96), (160, 96)])
@pytest.mark.parametrize('window', [2, 3, 4])
def test_windows_of_any_number_and_size(
    swin: nn.Module, window: int, size: tuple[int, int]
) -> None:
    """Swin's own code writes those of a trace into the graph."""
    model = make_exportable(swin)
    assert model.size_divisor == 32
    backbone = swin.backbone
    windows = [item for item in backbone.modules() if hasattr(item, 'w_msa')]
    for item in windows:
        item.window_size = window
        item.shift_size = bool(item.shift_size) * (window // 2)
        item.w_msa.window_size = (window, window)
        table = torch.randn((2 * window - 1) ** 2, item.w_msa.num_heads)
        item.w_msa.relative_position_bias_table = nn.Parameter(table)
        index = item.w_msa.double_step_seq(2 * window - 1, window, 1, window)
        item.w_msa.relative_position_index = (index + index.T).flip(1)
    pictures = torch.randn(3, 3, *size)
    with torch.no_grad():
        expected = backbone(pictures)
        with model.traceable():
            graph = torch.jit.trace(
                backbone, torch.randn(1, 3, 96, 128), check_trace=False
            )
        results = graph(pictures)
        after = backbone(pictures)
    for ours, theirs, again in zip(results, expected, after):
        torch.testing.assert_close(ours, theirs)
        assert torch.equal(again, theirs)


def detections(count: int = 4) -> dict[str, torch.Tensor]:
    """Of one picture, scores 0.9, 0.8, ..."""
    return {
        'boxes': torch.arange(4.0 * count).view(1, count, 4) * 10,
        'scores': 0.9 - torch.arange(count)[None] / 10,
        'labels': torch.arange(count)[None] % 2,
    }


def test_differences_of_detections(detector: nn.Module) -> None:
    model = make_exportable(detector)
    assert model.differences(detections(), detections()) == {
        'boxes': 0,
        'scores': 0,
    }
    moved = detections()
    moved['boxes'][0, 1, 2] += 3
    assert model.differences(moved, detections())['boxes'] == 3
    renamed = detections()
    renamed['labels'][0, 2] = 5
    assert model.differences(renamed, detections())['boxes'] == float('inf')
    surer = detections()
    surer['scores'][0, 0] += 0.05
    assert model.differences(surer, detections())['scores'] == pytest.approx(
        0.05
    )


def test_order_of_equal_detections_does_not_matter(
    detector: nn.Module,
) -> None:
    model = make_exportable(detector)
    one = detections()
    one['scores'][0, 1] = one['scores'][0, 0]
    order = [1, 0, 2, 3]
    other = {name: value[:, order] for name, value in one.items()}
    assert model.differences(one, other) == {'boxes': 0, 'scores': 0}


def test_another_last_one_is_as_good_only_where_some_were_cut(
    detector: nn.Module,
) -> None:
    model = make_exportable(detector)
    other = detections()
    other['boxes'][0, -1] += 50
    assert model.differences(other, detections())['boxes'] == 50
    model.max_per_img = 4
    assert model.differences(other, detections())['boxes'] == 0
    # Where all are as good as the last one, none is sure.
    for value in (one := detections(), other):
        value['scores'].fill_(0.5)
    assert model.differences(other, one) == {'boxes': 0, 'scores': 0}


def test_equal_proposals_are_a_tie(detector: nn.Module) -> None:
    model = make_exportable(detector)
    with torch.no_grad():
        assert not model.is_tied(PICTURES)
        weight = detector.query_head.cls_branches[-1].weight
        before = weight.clone()
        weight.zero_()
        tied = model.is_tied(PICTURES)
        weight.copy_(before)
    assert tied


@pytest.mark.slow
@pytest.mark.parametrize('head', ['FCNHead', 'PSPHead'])
def test_operators_that_onnx_lacks(
    head: str, tmp_path, capfd, monkeypatch
) -> None:
    """Poolings to sizes of which the map need not be a multiple."""
    pytest.importorskip('onnxruntime')
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(segmentor_cfg(head))
    model.dataset_meta = {'classes': ('a', 'b', 'c', 'd')}
    steps = [{'type': 'mmseg.Resize', 'scale': (64, 64)}]
    data = {'test_dataloader': {'dataset': {'pipeline': steps}}}
    model.cfg = Config(data)
    file = tmp_path / 'model.onnx'
    monkeypatch.setattr(export, '_CHECKED_SIZES', [(64, 80)])
    if head == 'FCNHead':
        report = export_model(model, file)
        assert json.loads(report.metadata['resize'])[0]['scale'] == [64, 64]
        assert [shape for shape, _ in report.checks] == [
            (1, 3, 64, 80),
            (3, 3, 64, 80),
        ]
        return
    with pytest.raises(ExportError, match=r'got ".*adaptive_avg_pool2d'):
        export_model(model, file)
    assert not list(tmp_path.iterdir())
    assert '%' not in capfd.readouterr().out


def segmentor_cfg(head: str) -> dict:
    """A thin segmentor with a head of this package."""
    return {
        'type': 'mmseg.EncoderDecoder',
        'data_preprocessor': {'type': 'mmseg.SegDataPreProcessor'},
        'backbone': {
            'type': 'mmseg.ResNetV1c',
            'depth': 18,
            'base_channels': 8,
            'stem_channels': 8,
        },
        'decode_head': {
            'type': f'mmext.{head}',
            'in_channels': 64,
            'in_index': 3,
            'channels': 8,
            'num_classes': 4,
            'align_corners': False,
            'loss_decode': {'type': 'mmext.CheckedCrossEntropyLoss'},
        },
        'test_cfg': ConfigDict(mode='whole'),
    }


def test_what_cannot_be_exported() -> None:
    with pytest.raises(ValueError, match=r'must be a CO-DINO .* got Linear'):
        make_exportable(nn.Linear(1, 1))
    model = build_tiny(eval_module='one-stage')
    with pytest.raises(ValueError, match="eval_module must be 'detr'"):
        make_exportable(model)
    model = build_tiny(base='5scale_r50_instance')
    with pytest.raises(
        ValueError, match='masks of objects cannot be'
    ) as error:
        make_exportable(model)
    assert '--cfg-options model.eval_masks=False' in str(error.value)
    model.eval_masks = False
    assert 'masks' not in make_exportable(model).outputs
