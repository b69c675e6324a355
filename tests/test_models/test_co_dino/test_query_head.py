"""mmext.CoDINOHead: one decoder pass, groups apart, settings."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.tiny_co_dino import (
    NUM_CLASSES,
    build_tiny,
    make_batch,
)

from mmext.models.co_dino import query_head as module
from mmext.models.co_dino.losses import join_targets, loss_divisors
from mmext.models.co_dino.matching import read_ground_truth
from mmext.models.co_dino.positives import CoQueries
from mmext.models.co_dino.query_head import (
    image_detections,
    select_detections,
)


@pytest.fixture(scope='module')
def scene() -> dict:
    """A detector, its encoder output and its auxiliary heads' positives."""
    model = build_tiny().train()
    for name, parameter in model.query_head.named_parameters():
        if name.endswith('sampling_offsets.bias'):
            # On the centre of a pixel, rounding decides about the gradient.
            parameter.data += 0.05
        if name.startswith('reg_branches') and name.endswith('4.bias'):
            # And where a box is its target, about the sign of the L1 loss.
            parameter.data += 0.03
    data = model.data_preprocessor(make_batch(), True)
    with torch.no_grad():
        encoded = model.encode(data['inputs'], data['data_samples'])
        _, positives = model._co_head_losses(
            model.query_head.co_feats(encoded), data['data_samples']
        )
    return {
        'model': model,
        'head': model.query_head,
        'encoded': encoded,
        'samples': data['data_samples'],
        'positives': positives,
    }


def _loss(scene: dict, positives, seed: int = 3) -> dict:
    torch.manual_seed(seed)
    return scene['head'].loss(scene['encoded'], scene['samples'], positives)


def with_fillers(queries: CoQueries) -> CoQueries:
    """The last two of each image do not count."""
    last = torch.zeros_like(queries.labels, dtype=torch.bool)
    last[:, -2:] = True
    return replace(
        queries,
        fillers=last,
        label_weights=queries.label_weights.masked_fill(last, 0),
        box_weights=queries.box_weights.masked_fill(last, 0),
    )


def without_fillers(queries: CoQueries) -> CoQueries:
    """Only those that count."""
    parts = {
        name: None if value is None else value[:, :-2]
        for name, value in vars(queries).items()
    }
    return replace(queries, **{**parts, 'fillers': None})


def test_one_pass_equals_one_pass_per_group(scene, monkeypatch) -> None:
    """Losses and gradients, of fillers as if there were none."""
    head, encoded = scene['head'], scene['encoded']
    made = []
    original = module.make_co_queries

    def remember(*args):
        made.extend(original(*args))
        made[0] = with_fillers(made[0])
        return made

    monkeypatch.setattr(module, 'make_co_queries', remember)
    fused = _loss(scene, scene['positives'])
    monkeypatch.setattr(
        module, 'make_co_queries', lambda *args: original(*args)[:0]
    )
    alone = _loss(scene, scene['positives'])
    truth = read_ground_truth(scene['samples'], NUM_CLASSES)
    assert len(made) == 2
    made[0] = without_fillers(made[0])
    for i, queries in enumerate(made):
        hidden, references = head.transformer.decode(
            encoded,
            head.transformer.co_queries(queries.boxes, queries.feats, i),
            queries.boxes,
            head.reg_branches,
        )
        scores, boxes = head(hidden, references)
        groups = [queries.targets(f'{{}}_aux{i}')]
        (divisors,) = loss_divisors([groups], 0.0, average_classes=True)
        targets = join_targets(groups, boxes, divisors)
        alone |= head._losses(scores, boxes, targets, truth)
    assert alone.keys() == fused.keys()
    gradients = []
    for losses in (fused, alone):
        total = sum(losses.values())
        gradients.append(
            torch.autograd.grad(
                total, list(head.parameters()), materialize_grads=True
            )
        )
    for name, value in alone.items():
        torch.testing.assert_close(
            fused[name], value, rtol=1e-5, atol=1e-5, msg=name
        )
    for gradient, expected in zip(*gradients):
        tolerance = 1e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance)


def test_the_decoder_runs_once(scene, monkeypatch) -> None:
    decoder = scene['head'].transformer.decoder
    calls = []
    plain = type(decoder).forward

    def counted(self, *args, **kwargs):
        calls.append(args[0].shape[1])
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(decoder), 'forward', counted)
    losses = _loss(scene, scene['positives'])
    assert len(calls) == 1
    assert calls[0] > 20 + 9 + 9
    assert len(losses) == 3 * (1 + 2 + 2 + 2 * 2)


def test_forward_adds_the_offset_in_logit_space(scene) -> None:
    head = scene['head']
    hidden = torch.randn(2, 1, 3, 32)
    references = [torch.full((1, 3, 4), 0.3)] * 3
    with torch.no_grad():
        scores, boxes = head(hidden, references)
        offset = head.reg_branches[1](hidden[1])
        expected = (offset + math.log(0.3 / 0.7)).sigmoid()
        torch.testing.assert_close(boxes[1], expected)
        torch.testing.assert_close(scores[0], head.cls_branches[0](hidden[0]))
        # At the border of the image the logit ends at that of 1e-3.
        references = [torch.tensor([0.0, 1.0, 0.0, 1.0]).expand(1, 3, 4)] * 3
        _, boxes = head(hidden, references)
        limit = torch.tensor([-1.0, 1.0, -1.0, 1.0]) * math.log(1e3)
        torch.testing.assert_close(boxes[1], (offset + limit).sigmoid())


META = {'img_shape': (100, 200), 'scale_factor': (2.0, 0.5)}


def test_softmax_never_selects_background() -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0], [4.0, 0.0, 0.0]])
    scores, labels, _ = select_detections(logits, torch.rand(2, 4), 9, False)
    assert labels.tolist() == [0, 1]
    expected = logits.softmax(-1)
    torch.testing.assert_close(scores, expected[[1, 0], [0, 1]])


def _detect(boxes, test_cfg, rescale=False, logits=None):
    boxes = torch.tensor(boxes)
    if logits is None:
        logits = torch.linspace(2, 1, len(boxes))[:, None]
    return image_detections(
        *select_detections(logits, boxes, 10, True),
        META,
        {'max_per_img': 10, **test_cfg},
        rescale=rescale,
    )


def test_score_threshold_is_exclusive() -> None:
    logits = torch.tensor([[0.0], [1.0]])
    boxes = [[0.5, 0.5, 0.1, 0.1]] * 2
    detections = _detect(boxes, {'score_thr': 0.5}, logits=logits)
    assert len(detections) == 1
    assert float(detections.scores) > 0.5


@pytest.mark.parametrize('kind', ['nms', 'soft_nms'])
def test_nms_treats_duplicates(kind: str) -> None:
    boxes = [[0.5, 0.5, 0.4, 0.4]] * 2 + [[0.2, 0.2, 0.1, 0.1]]
    plain = _detect(boxes, {})
    detections = _detect(boxes, {'nms': {'type': kind, 'iou_threshold': 0.8}})
    assert len(plain) == 3
    if kind == 'nms':
        assert len(detections) == 2
    else:
        # A duplicate loses its score, so the third box comes before it.
        torch.testing.assert_close(detections.bboxes[1], plain.bboxes[2])
    assert (detections.scores.diff() <= 0).all()
