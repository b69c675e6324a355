"""More of it in ``test_world``, in two processes."""

import pytest
import torch
from preflight_models import batches, build
from torch import distributed as dist

from mmext.preflight import SyncSettings
from mmext.preflight.proof.rank_run import RankOutcome, run_rank


@pytest.fixture(autouse=True)
def _group(tmp_path):
    """A group of one process."""
    dist.init_process_group(
        'gloo', f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def run(mistake, *flags, kind='normal'):
    given = batches((kind,), 3)[kind]
    return run_rank(build(mistake), given, SyncSettings(*flags))


def test_to_the_end():
    result = run('norm')
    assert (result.outcome, result.step) == (RankOutcome.OK, 3)
    assert len(result.usages) == len(result.differences) == 3
    assert max(result.differences) < 1e-6
    assert result.names == ()


@pytest.mark.parametrize(
    ('mistake', 'flags', 'outcome', 'step'),
    [
        ('extra', (), RankOutcome.UNFINISHED, 1),
        ('reentrant', (True,), RankOutcome.READY_TWICE, 0),
    ],
)
def test_errors_of_the_reducer(mistake, flags, outcome, step):
    result = run(mistake, *flags)
    assert (result.outcome, result.step) == (outcome, step)
    assert result.error.startswith('RuntimeError: Expected to')
    assert result.place == ''


def test_errors_of_the_model():
    result = run('crash', kind='empty')
    assert result.outcome is RankOutcome.CRASHED
    assert result.error == 'IndexError: no boxes'
    assert 'preflight_models.py:' in result.place


def test_weights_stay():
    model = build()
    before = model.stem.weight.clone()
    run_rank(model, batches()['normal'], SyncSettings())
    assert torch.equal(model.stem.weight, before)
