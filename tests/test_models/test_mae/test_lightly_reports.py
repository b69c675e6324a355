"""Lightly's MAE stops under DDP (its issue 1775), and the same model here.

Lightly runs in an environment of its own, whose Python the variable names;
without it the tests are skipped. ``tests/reference/lightly_runs.py`` says what
it needs. What the preflight says of such a model is in
``test_mae_preflight.py``.
"""

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.tiny_mae import MAEWithHead, mae_config
from helpers.toy_ranks import run_on_ranks
from mmengine.optim import OptimWrapper

from mmext.engine.distributed import DistributedDataParallel
from mmext.models import MAE

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]

PYTHON = os.environ.get('MMEXT_LIGHTLY_PYTHON')
RUNS = Path(__file__).parents[2] / 'reference' / 'lightly_runs.py'
STEPS = 3


@pytest.fixture(scope='module')
def lightly() -> dict:
    """What the runs of Lightly print."""
    if not PYTHON:
        pytest.skip('MMEXT_LIGHTLY_PYTHON names no Python that has Lightly')
    done = subprocess.run(
        [PYTHON, RUNS], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_published_loop_stops_without_the_flag(lightly):
    published = lightly['published']
    assert len(published['losses']) == 1
    assert 'parameters that were not used in producing' in published['error']
    assert 'find_unused_parameters=True' in published['error']
    # pos_embed, which users list, has no gradient because it is frozen.
    assert published['unused'] == [
        'backbone.mask_token',
        'backbone.vit.head.weight',
        'backbone.vit.head.bias',
    ]
    for name in published['unused']:
        assert name in published['error']


def test_without_what_it_does_not_use_it_needs_no_flag(lightly):
    assert lightly['flag']['error'] is lightly['cured']['error'] is None
    assert len(lightly['cured']['losses']) == STEPS
    # The flag bought nothing: the losses are the same.
    assert lightly['flag']['losses'] == lightly['cured']['losses']
    assert lightly['cured']['unused'] == []


def train(out, kind: type) -> None:
    """Steps of a process with the wrapper of this project, and no flag."""
    torch.manual_seed(0)
    cfg = mae_config()
    del cfg['type']
    wrapped = DistributedDataParallel(kind(**cfg))
    optim = OptimWrapper(torch.optim.AdamW(wrapped.parameters(), lr=1.5e-4))
    torch.manual_seed(1 + torch.distributed.get_rank())
    losses = []
    for _ in range(STEPS):
        logs = wrapped.train_step(
            dict(inputs=torch.randn(2, 3, 32, 32)), optim
        )
        losses.append(logs['loss'].item())
    if torch.distributed.get_rank() == 0:
        torch.save(losses, out)


@pytest.mark.parametrize('kind', [MAE, MAEWithHead])
def test_ours_trains_on_two_processes(tmp_path, kind):
    """And with the two things that Lightly's has it stops, like that."""
    out = tmp_path / 'losses'
    ranks = run_on_ranks(partial(train, out, kind), 2, tmp_path / 'log')
    codes = ranks.wait(end_others=True)
    if kind is MAE:
        assert codes == [0, 0], ranks.output()
        losses = torch.load(out)
        assert len(losses) == STEPS
        assert torch.tensor(losses).isfinite().all()
    else:
        assert any(codes)
        assert 'backbone.mask_token' in ranks.output() + ranks.output(1)
