"""The federated loss is that of Detectron2, of quality focal losses."""

from functools import partial

import pytest
import torch
from helpers.toy_ranks import results_of_ranks
from mmdet.models.losses import QualityFocalLoss
from mmdet.registry import MODELS
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from mmext.models import (
    FederatedQualityFocalLoss,
    convert_codetr_state_dict,
)
from mmext.models.co_dino.losses import (
    GroupTargets,
    LayerTargets,
    class_losses,
    loss_divisors,
)

COUNTS = [1, 4, 9, 16, 25, 100, 400, 900]
K = len(COUNTS)


def build(**options):
    return MODELS.build(
        {
            'type': 'mmext.FederatedQualityFocalLoss',
            'class_counts': COUNTS,
            'num_sampled': 4,
            'use_sigmoid': True,
            **options,
        }
    )


def drawn(labels, counts, num_sampled, power):
    """Detectron2's classes, which it has with the background left out."""
    present = sorted({int(label) for label in labels} - {len(counts)})
    weights = torch.tensor(counts, dtype=torch.float32) ** power
    weights[present] = 0
    more = num_sampled - len(present)
    if more <= 0:
        return present
    return present + weights.multinomial(more).tolist()


def by_hand(pred, labels, qualities, weights, classes):
    """Row by row, over the classes that count alone."""
    rows = []
    for row, label, quality in zip(pred, labels.tolist(), qualities):
        terms = []
        for k in classes:
            goal = quality if k == label else torch.zeros(())
            entropy = F.binary_cross_entropy_with_logits(row[k], goal)
            terms.append(entropy * (goal - row[k].sigmoid()).abs() ** 2)
        rows.append(torch.stack(terms).sum())
    return torch.stack(rows) * weights


@pytest.fixture
def queries():
    torch.manual_seed(0)
    pred = (3 * torch.randn(30, K)).requires_grad_()
    labels = torch.full((30,), K)
    labels[:4] = torch.tensor([2, 6, 2, 0])
    qualities = torch.where(labels < K, torch.rand(30), 0.0)
    return pred, labels, qualities, torch.rand(30)


def test_values_and_gradients(queries):
    pred, labels, qualities, weights = queries
    loss = build()
    torch.manual_seed(1)
    counted = loss.sample(labels).nonzero().flatten().tolist()
    assert len(counted) == 4
    assert {0, 2, 6} < set(counted)
    torch.manual_seed(1)
    own = loss(pred, (labels, qualities), weights, reduction_override='none')
    other = by_hand(pred, labels, qualities, weights, counted)
    assert torch.allclose(own, other, atol=1e-6)
    (grad,) = torch.autograd.grad(own.sum(), pred)
    (expected,) = torch.autograd.grad(other.sum(), pred)
    assert torch.allclose(grad, expected, atol=1e-6)
    rest = sorted(set(range(K)) - set(counted))
    assert not grad[:, rest].any()


def test_all_decoder_layers_share_a_draw(queries):
    pred, labels, qualities, weights = queries
    labels = labels.view(1, 2, 15).expand(3, 2, 15)
    layers = (labels, weights.view(1, 2, 15).expand(3, 2, 15))
    targets = LayerTargets(
        names=['{}'],
        sizes=[15],
        labels=labels,
        label_weights=layers[1],
        boxes=torch.zeros(3, 2, 15, 4),
        box_weights=(labels < K).float(),
        qualities=qualities.view(1, 2, 15).expand(3, 2, 15),
        divisors=(torch.full((3, 1), 4.0),) * 2,
    )
    scores = pred.detach().view(1, 2, 15, K).expand(3, 2, 15, K)
    loss = build(loss_weight=2.0)
    torch.manual_seed(1)
    got = class_losses(loss, scores, targets)
    torch.manual_seed(1)
    counted = loss.sample(labels).nonzero().flatten().tolist()
    rows = by_hand(pred, labels[0].flatten(), qualities, weights, counted)
    assert set(got) == {'d0.loss_cls', 'd1.loss_cls', 'loss_cls'}
    for value in got.values():
        assert torch.allclose(value, 2 * rows.sum() / 4, atol=1e-5)


def half_batch(rank):
    """Features, labels and qualities of 12 queries; 5 objects, and 1."""
    generator = torch.Generator().manual_seed(rank)
    labels = torch.full((12,), K)
    own = ([0, 2, 2, 6, 7], [1])[rank]
    labels[: len(own)] = torch.tensor(own)
    qualities = torch.rand(12, generator=generator)
    feats = torch.randn(12, 5, generator=generator)
    return feats, labels, torch.where(labels < K, qualities, 0.0)


def new_layer():
    torch.manual_seed(0)
    return nn.Linear(5, K)


def loss_on_rank(num_sampled, rank):
    """CO-DINO's loss of a rank, the classes that count, and gradients."""
    loss = build(num_sampled=num_sampled)
    layer = DistributedDataParallel(new_layer())
    feats, labels, qualities = half_batch(rank)
    shared = {
        'labels': labels.view(1, 1, -1),
        'label_weights': torch.ones(1, 1, 12),
        'boxes': torch.zeros(1, 1, 12, 4),
        'box_weights': (labels < K).float().view(1, 1, -1),
    }
    (divisors,) = loss_divisors(
        [[GroupTargets('{}', **shared)]], 0.0, average_classes=True
    )
    targets = LayerTargets(
        names=['{}'],
        sizes=[12],
        qualities=qualities.view(1, 1, -1),
        divisors=divisors,
        **shared,
    )
    scores = layer(feats).view(1, 1, 12, K)
    torch.manual_seed(10 + rank)
    value = class_losses(loss, scores, targets)['loss_cls']
    value.backward()
    torch.manual_seed(10 + rank)
    counted = loss.sample(labels).nonzero().flatten()
    grads = [item.grad.tolist() for item in layer.parameters()]
    return value.item(), counted.tolist(), grads


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize('num_sampled', [4, K])
def test_two_processes(num_sampled, tmp_path):
    """As one with both halves, where a row counts the classes of its rank."""
    results = results_of_ranks(partial(loss_on_rank, num_sampled), tmp_path)
    values, counted, grads = zip(*(item['value'] for item in results))
    sizes = [len(item) for item in counted]
    assert sizes == ([4, 4] if num_sampled == 4 else [K, K])
    layer, rows = new_layer(), []
    for rank in range(2):
        feats, labels, qualities = half_batch(rank)
        assert {*labels.tolist()} <= {*counted[rank], K}
        rows += by_hand(
            layer(feats), labels, qualities, torch.ones(12), counted[rank]
        )
    loss = torch.stack(rows).sum() / 6
    loss.backward()
    assert sum(values) / 2 == pytest.approx(loss.item(), rel=1e-5)
    for own in grads:
        for one, other in zip(own, layer.parameters()):
            assert torch.allclose(torch.tensor(one), other.grad, atol=1e-6)
    assert (counted[0] == counted[1]) == (num_sampled == K)


def test_draws_as_often_as_detectron2():
    labels = torch.tensor([3, K, K])
    loss, runs = build(), 4000
    torch.manual_seed(0)
    ours = sum(loss.sample(labels).float() for _ in range(runs)) / runs
    theirs = torch.zeros(K)
    for _ in range(runs):
        theirs[drawn(labels, COUNTS, 4, 0.5)] += 1 / runs
    assert ours[3] == 1
    assert ours.sum() == pytest.approx(4, abs=1e-4)
    assert torch.allclose(ours, theirs, atol=0.04)


def test_more_classes_present_than_drawn():
    labels = torch.tensor([0, 1, 2, 3, 5, K])
    counted = build().sample(labels)
    assert counted.nonzero().flatten().tolist() == [0, 1, 2, 3, 5]
    assert drawn(labels, COUNTS, 4, 0.5) == [0, 1, 2, 3, 5]


def test_all_classes_are_the_plain_loss(queries):
    pred, labels, qualities, weights = queries
    own, plain = build(num_sampled=50), QualityFocalLoss()
    got, expected = (
        loss(pred, (labels, qualities), weights) for loss in (own, plain)
    )
    assert torch.allclose(got, expected)


def test_rejects(queries):
    pred, labels, qualities, _ = queries
    with pytest.raises(ValueError, match='above 0 for each class'):
        FederatedQualityFocalLoss([3, 0])
    with pytest.raises(ValueError, match='num_sampled must be 1 or more'):
        build(num_sampled=0)
    with pytest.raises(ValueError, match='activated must be False'):
        build(activated=True)
    with pytest.raises(ValueError, match='each of the 7 classes, got 8'):
        build()(pred[:, :7], (labels, qualities))


def test_public_weights_leave_it_out():
    state = {'query_head.loss_cls.fed_loss_weight': torch.ones(K)}
    assert not convert_codetr_state_dict(state)
    assert not build().state_dict()
