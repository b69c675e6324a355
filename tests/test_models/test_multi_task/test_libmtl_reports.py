"""Two failures that users of LibMTL report (its issues 85 and 89), here."""

import pytest
import torch
from mmengine.optim import OptimWrapper
from mmengine.structures import BaseDataElement

from mmext.checks.ddp import StaleGraphError, name_stale_graphs
from mmext.registry import MODELS
from mmext.utils import register_all_modules


def table_model():
    """MMoE with equal weights on an embedding, as in issue 89."""
    register_all_modules(False)
    torch.manual_seed(0)
    head = dict(type='mmext.RegressionTaskHead', in_channels=6, loss='mse')
    return MODELS.build(
        dict(
            type='mmext.MultiTaskModel',
            backbone=dict(
                type='mmext.CategoricalEmbedding',
                num_categories=[8],
                embed_dims=4,
                channels=(),
            ),
            architecture=dict(
                type='mmext.MMoE',
                num_experts=2,
                expert=dict(type='mmext.MLPExpert', channels=(6,)),
            ),
            heads=dict(a=dict(head, target='gt_a'), b=head),
            balancer=dict(type='mmext.EqualWeights'),
        )
    )


def train(model, inputs, steps=4):
    """Losses of some steps of training."""
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    samples = [
        BaseDataElement(gt_a=torch.tensor(1.0), gt_value=torch.tensor(2.0))
        for _ in inputs
    ]
    batch = dict(inputs=inputs, data_samples=samples)
    losses = []
    for _ in range(steps):
        with name_stale_graphs(model, batch):
            logs = model.train_step(batch, wrapper)
        losses.append(logs['loss'].item())
    return losses


def test_an_embedding_in_the_model_is_trained():
    """Issue 89: an embedding in front of MMoE with equal weights."""
    ids = torch.arange(8)[:, None]
    model = table_model()
    table = model.backbone.embeddings[0].weight
    before = table.detach().clone()
    losses = train(model, ids)
    assert losses == sorted(losses, reverse=True)
    assert (table - before).abs().amax(1).all()
    frozen = table_model()
    frozen.backbone.requires_grad_(False)
    unlike = train(frozen, ids)
    assert unlike[0] == losses[0]
    assert all(a < b for a, b in zip(losses[1:], unlike[1:]))
    # What the users do: embed once, before the loop over batches.
    outside = table_model()
    features = outside.backbone(ids)[0]
    outside.backbone.forward = lambda inputs: (inputs,)
    with pytest.raises(StaleGraphError) as caught:
        train(outside, features)
    text = str(caught.value)
    assert "batch['inputs'], from the data loader, holds it" in text
    assert 'backbone.embeddings.0.weight' in text
