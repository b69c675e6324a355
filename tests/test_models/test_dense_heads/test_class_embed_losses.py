"""Losses that are computed again on the same targets."""

import pytest
import torch
from mmdet.models.losses import FocalLoss, QualityFocalLoss

from mmext.models.dense_heads._class_embed_losses import (
    QueryLogits,
    recorded_calls,
    replayed_losses,
)

K = 3


def make_logits(generator, num_dn=2, num_co=(4,)):
    """Two layers, two images, five matching queries."""

    def draw(*shape):
        value = torch.randn(*shape, K, generator=generator)
        return value.requires_grad_()

    return QueryLogits(
        draw(2, 2, 5),
        draw(2, 5),
        draw(2, 2, num_dn),
        [draw(2, 2, count) for count in num_co],
    )


def call_all(loss, logits, generator):
    """Call a loss on logits of zeros, as a head does; returns the targets."""
    parts = [*logits.matching, logits.proposals]
    parts += [part for part in logits.denoising if part.numel()]
    for layers in logits.co_heads:
        parts += [*layers]
    targets = []
    for i, part in enumerate(parts):
        count = part[..., 0].numel()
        labels = torch.randint(K + 1, (count,), generator=generator)
        scores = torch.rand(count, generator=generator) * (labels < K)
        weights = torch.rand(count, generator=generator)
        targets.append(((labels, scores), weights, i + 1.5))
        loss(torch.zeros(count, K), *targets[-1][:2], avg_factor=i + 1.5)
    return parts, targets


def test_same_targets_weights_and_factors(generator):
    loss = QualityFocalLoss(use_sigmoid=True, loss_weight=2.0)
    logits = make_logits(generator)
    with recorded_calls(loss) as calls:
        parts, targets = call_all(loss, logits, generator)
    losses = replayed_losses(loss, calls, logits, 0.25)
    assert list(losses) == [
        'd0.loss_class_embed',
        'loss_class_embed',
        'enc_loss_class_embed',
        'd0.dn_loss_class_embed',
        'dn_loss_class_embed',
        'd0.loss_class_embed_aux0',
        'loss_class_embed_aux0',
    ]
    for value, part, (target, weight, factor) in zip(
        losses.values(), parts, targets
    ):
        labels, scores = target
        probability = part.reshape(-1, K).sigmoid()
        wanted = torch.zeros_like(probability)
        found = labels < K
        wanted[found, labels[found]] = scores[found]
        entropy = -(
            wanted * probability.log() + (1 - wanted) * (1 - probability).log()
        )
        each = entropy * (wanted - probability).abs().square()
        expected = (each.sum(1) * weight).sum() / factor * 2.0 * 0.25
        torch.testing.assert_close(value, expected)


def test_nothing_is_recorded_afterwards(generator):
    loss = FocalLoss(use_sigmoid=True)
    labels = torch.tensor([0, K])
    with recorded_calls(loss) as calls:
        loss(torch.zeros(2, K), labels)
    loss(torch.zeros(2, K), labels)
    assert len(calls) == 1

    def fail():
        with recorded_calls(loss):
            raise KeyError('x')

    with pytest.raises(KeyError, match='x'):
        fail()
    assert not loss._forward_hooks


def test_limit_no_denoising_and_no_co_heads(generator):
    loss = QualityFocalLoss(use_sigmoid=True)
    logits = make_logits(generator, num_dn=0, num_co=())
    with recorded_calls(loss) as calls:
        call_all(loss, logits, generator)
    losses = replayed_losses(loss, calls, logits, 1.0)
    assert len(calls) == 3
    assert float(losses['dn_loss_class_embed'].detach()) == 0
    sum(losses.values()).backward()
    assert logits.denoising.grad is not None


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        (lambda calls: calls[:-1], 'for loss_class_embed_aux0, got no call'),
        (lambda calls: calls[::-1], 'for d0.loss_class_embed, got 8'),
        (lambda calls: calls + calls[:1], 'called 7 times, got 8'),
    ],
)
def test_rejects_calls_of_another_host(generator, change, match):
    loss = QualityFocalLoss(use_sigmoid=True)
    logits = make_logits(generator)
    with recorded_calls(loss) as calls:
        call_all(loss, logits, generator)
    with pytest.raises(RuntimeError, match=match):
        replayed_losses(loss, change(list(calls)), logits, 1.0)
