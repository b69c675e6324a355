"""Processes with different numbers of batches: refused, or as it should be."""

import pytest
from helpers import rank_faults  # noqa: F401
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks

pytestmark = pytest.mark.xdist_group('processes')


def run(folder, **changes):
    """A training on two ranks, of which the second may have less data."""
    cfg = toy.traced(folder / 'trace', toy.config(**changes))
    cfg['custom_imports']['imports'].append('helpers.rank_faults')
    cfg['env_cfg']['dist_cfg']['timeout'] = 5
    path = toy.write(folder / 'cfg.py', cfg)
    ranks = start_ranks([path, '--work-dir', folder / 'w'], 2, folder / 'out')
    ranks.wait()
    return ranks


def uneven():
    """A loader with two batches on rank 1, three on rank 0."""
    loader = toy.loader(size=12)
    loader['sampler'].update(type='UnevenSampler')
    return loader


def test_data_that_end_too_soon_are_an_error_on_all_ranks(tmp_path):
    ranks = run(tmp_path, train_dataloader=uneven())
    assert ranks.codes == [1, 1]
    for rank in (0, 1):
        output = ranks.output(rank)
        assert 'one has no more data while another is in a step' in output
        assert 'rank 0 in step 3, rank 1 at its end after 2 steps' in output
        steps = toy.steps(toy.read_trace(tmp_path / f'trace.{rank}'))
        assert len(steps) == 2


def test_uneven_validation_and_training_by_iterations_work(tmp_path):
    """Data begin anew there, and the results of each rank are collected."""
    loader = toy.loader(size=5, shuffle=False, batch_size=1)
    loader['sampler'].update(type='UnevenSampler', missing=1)
    ranks = run(
        tmp_path,
        train_dataloader=uneven(),
        train_cfg=dict(by_epoch=False, max_iters=7, val_interval=3),
        param_scheduler=None,
        val_dataloader=loader,
    )
    assert ranks.codes == [0, 0], ranks.output(0) + ranks.output(1)
    first, second = (
        toy.read_trace(tmp_path / f'trace.{rank}') for rank in (0, 1)
    )
    assert len(toy.steps(first)) == len(toy.steps(second)) == 7
    assert first[-1] == second[-1]
