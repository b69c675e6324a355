"""Two failures that users of LibMTL report, and the same situations here.

LibMTL runs in an environment of its own, whose Python the variable names;
without it the tests are skipped. ``tests/reference/libmtl_runs.py`` says what
it needs.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from helpers.multi_task_nets import (
    TorchvisionLike,
    architecture,
    backbone,
    backward,
)
from mmengine.optim import OptimWrapper
from mmengine.structures import BaseDataElement

from mmext.checks.ddp import StaleGraphError, name_stale_graphs
from mmext.registry import MODELS
from mmext.utils import register_all_modules

PYTHON = os.environ.get('MMEXT_LIBMTL_PYTHON')
RUNS = Path(__file__).parents[2] / 'reference' / 'libmtl_runs.py'
needs_libmtl = pytest.mark.skipif(
    not PYTHON, reason='MMEXT_LIBMTL_PYTHON names no Python that has LibMTL'
)


def libmtl(run: str) -> dict:
    """What a run of LibMTL prints."""
    done = subprocess.run(
        [PYTHON, RUNS, run], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_device_that_is_not_there_and_an_encoder_it_does_not_know():
    """Issue 85: MTAN says 'no attribute resnet_network', whatever failed."""
    # The device: the error of PyTorch, and nothing raised over it.
    net = backbone()
    both = torch.nn.ModuleDict(
        {'net': net, 'model': architecture('MTAN', net)}
    )
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        both.to('cuda:99')
    assert 'CUDA' in str(caught.value) or 'NVIDIA' in str(caught.value)
    assert caught.value.__context__ is None
    # The encoder: no attribute `feature_dim` is needed, stages are.
    backward(
        architecture('MTAN', TorchvisionLike()), torch.randn(2, 3, 32, 32)
    )
    with pytest.raises(TypeError, match=r'backbone .*Linear are not known'):
        architecture('MTAN', torch.nn.Linear(2, 2))


@needs_libmtl
@pytest.mark.slow
def test_libmtl_hides_the_error_of_the_device():
    hidden = "'ResnetDilated' object has no attribute 'resnet_network'"
    raised, real = libmtl('device')['errors']
    assert raised == f'AttributeError: {hidden}'
    assert 'CUDA' in real or 'NVIDIA' in real
    raised, real = libmtl('feature_dim')['errors']
    assert raised == f'AttributeError: {hidden}'
    assert "no attribute 'feature_dim'" in real


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


@needs_libmtl
@pytest.mark.slow
def test_libmtl_trains_no_embedding():
    found = libmtl('embedding')
    once = found['retain=False detach=False']
    assert once['steps'] == 1
    assert 'backward through the graph a second time' in once['errors'][0]
    # The usual answer: the table moves, and the losses are those of a table
    # that does not.
    retained = found['retain=True detach=False']
    frozen = found['retain=True detach=True']
    assert retained['losses'] == frozen['losses']
    assert retained['drift'] > 0.01
    assert frozen['drift'] == 0
