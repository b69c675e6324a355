"""Checkpoints of single parameter groups go on in merged ones, and back."""

import pytest
import torch
from helpers import toy_training as toy
from mmengine.config import Config
from mmengine.registry import RUNNERS

SLOW = pytest.mark.slow
MODEL = dict(type='ToyModel', noise=0.3, norm='BN')
SAVES = dict(
    checkpoint=dict(type='CheckpointHook', interval=8, by_epoch=False),
    logger=dict(type='LoggerHook', interval=100),
)
MERGED = 'mmext.MergedOptimWrapperConstructor'
ADAM = dict(type='AdamW', lr=0.05, weight_decay=0.01)
# The groups of linear.weight, linear.bias, norm.weight and norm.bias are
# merged to [[0, 2, 3], [1]], [[0, 1, 2, 3]] and [[0], [1], [2, 3]].
BIAS = dict(custom_keys={'linear.bias': dict(lr_mult=0.5)})
ALL = dict(norm_decay_mult=1.0)
NORMS = dict(
    norm_decay_mult=0.0, custom_keys={'linear.bias': dict(lr_mult=0.5)}
)
SCHEDULE = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=5, by_epoch=False),
    dict(type='CosineAnnealingLR', T_max=3, eta_min_ratio=0.1, by_epoch=True),
]


def options(merged, paramwise=BIAS, fused=False, **more):
    """Changes of the toy's config; fused is what it would be by default."""
    wrapper = dict(
        optimizer=ADAM if fused else dict(ADAM, fused=None),
        paramwise_cfg=paramwise,
        **more,
    )
    if merged:
        wrapper['constructor'] = MERGED
    return dict(
        model=MODEL,
        default_hooks=SAVES,
        optim_wrapper=wrapper,
        param_scheduler=SCHEDULE,
    )


def resume(folder, path, **changes):
    return toy.train(folder, resume=True, load_from=str(path), **changes)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Folders of whole trainings, each done once."""
    done = {}

    def run(**changes):
        key = repr(changes)
        if key not in done:
            done[key] = tmp_path_factory.mktemp('trained')
            toy.train(done[key], **options(**changes))
        return done[key]

    return run


@pytest.mark.parametrize(
    ('paramwise', 'sizes', 'merged'),
    [
        pytest.param(BIAS, [3, 1], True, id='merged'),
        pytest.param(BIAS, [3, 1], False, id='single', marks=SLOW),
        pytest.param(NORMS, [1, 1, 2], True, id='three', marks=SLOW),
        pytest.param(NORMS, [1, 1, 2], False, id='from three', marks=SLOW),
        pytest.param(ALL, [4], True, id='one', marks=SLOW),
        pytest.param(ALL, [4], False, id='from one'),
    ],
)
def test_goes_on_as_if_it_always_had_these_groups(
    tmp_path, trained, paramwise, sizes, merged
):
    """Bit by bit, optimizer, schedulers and learning rates included."""
    before = trained(merged=not merged, paramwise=paramwise)
    expected = trained(merged=merged, paramwise=paramwise)
    changes = options(merged=merged, paramwise=paramwise)
    trace = resume(tmp_path, before / 'iter_8.pth', **changes)
    whole = toy.read_trace(expected / 'trace.0')
    assert toy.steps(trace) == toy.steps(whole)[8:]
    for name in ('iter_16.pth', 'iter_18.pth'):
        assert toy.differences(tmp_path / name, expected / name) == []
    saved = torch.load(tmp_path / 'iter_16.pth', weights_only=False)
    groups = saved['optimizer']['param_groups']
    assert [len(group['params']) for group in groups] == (
        sizes if merged else [1, 1, 1, 1]
    )
    (log,) = tmp_path.rglob('*.log')
    assert 'optim_wrapper: groups' in log.read_text()


def test_of_mmengines_runner(tmp_path, trained):
    """It notes no names: groups of one are in the order of the model."""
    cfg = toy.config(runner_type='Runner', **options(merged=False))
    cfg.update(work_dir=str(tmp_path / 'theirs'), custom_hooks=[])
    RUNNERS.build(Config(cfg)).train()
    path = tmp_path / 'theirs' / 'iter_16.pth'
    assert 'training' not in torch.load(path, weights_only=False)['meta']
    resume(tmp_path / 'ours', path, **options(merged=True))
    one, other = (
        torch.load(folder / 'iter_18.pth', weights_only=False)
        for folder in (tmp_path / 'ours', tmp_path / 'theirs')
    )
    assert len(one['optimizer']['param_groups']) == 2
    order = [0, 2, 3, 1]
    for index, number in enumerate(order):
        assert (
            toy.differences(
                one['optimizer']['state'][index]['exp_avg'].shape,
                other['optimizer']['state'][number]['exp_avg'].shape,
            )
            == []
        )
    rates = [
        group['lr']
        for group in one['optimizer']['param_groups']
        for _ in group['params']
    ]
    theirs = other['optimizer']['param_groups']
    assert rates == [theirs[number]['lr'] for number in order]


def test_into_mmengines_runner_is_refused(tmp_path, trained):
    path = trained(merged=False) / 'iter_8.pth'
    with pytest.raises(ValueError, match=r'4 parameter groups, .* 2; use run'):
        resume(tmp_path, path, runner_type='Runner', **options(merged=True))


@pytest.mark.parametrize('merged', [True, pytest.param(False, marks=SLOW)])
def test_within_a_window(tmp_path, merged):
    """Gradients that wait find their parameters."""
    changes = options(merged=merged, accumulative_counts=5)
    other = options(merged=not merged, accumulative_counts=5)
    whole = toy.train(tmp_path / 'whole', **changes)
    toy.train(tmp_path / 'before', **other)
    path = tmp_path / 'before' / 'iter_8.pth'
    trace = resume(tmp_path / 'after', path, **changes)
    assert toy.steps(trace) == toy.steps(whole)[8:]
    one, two = (tmp_path / name / 'iter_18.pth' for name in ('whole', 'after'))
    assert toy.differences(one, two) == []


def test_fused_is_not_of_the_checkpoint(tmp_path, trained):
    """How a step is computed follows the present config, in any groups."""
    before = trained(merged=False)
    resume(
        tmp_path / 'a',
        before / 'iter_8.pth',
        **options(merged=True, fused=True),
    )
    saved = torch.load(tmp_path / 'a' / 'iter_18.pth', weights_only=False)
    assert all(item['fused'] for item in saved['optimizer']['param_groups'])
    expected = trained(merged=True) / 'iter_18.pth'
    expected = torch.load(expected, weights_only=False)
    for key, value in expected['state_dict'].items():
        torch.testing.assert_close(
            saved['state_dict'][key], value, rtol=0, atol=1e-6
        )
    resume(
        tmp_path / 'b', tmp_path / 'a' / 'iter_16.pth', **options(merged=False)
    )
    saved = torch.load(tmp_path / 'b' / 'iter_18.pth', weights_only=False)
    groups = saved['optimizer']['param_groups']
    assert [item['fused'] for item in groups] == [None] * 4


@SLOW
def test_fused_steps_go_on_bit_by_bit(tmp_path, trained):
    changes = options(merged=True, fused=True)
    expected = trained(merged=True, fused=True)
    resume(tmp_path, expected / 'iter_8.pth', **changes)
    name = 'iter_18.pth'
    assert toy.differences(tmp_path / name, expected / name) == []


@pytest.mark.parametrize(
    ('merged', 'before', 'now', 'message'),
    [
        # Other settings of a parameter are no other groups.
        (True, BIAS, NORMS, '4 in 2 groups .3, 1. in .* 4 in 3 groups'),
        (True, ALL, BIAS, '4 in 1 groups .4. in .* 4 in 2 groups .3, 1.'),
        (False, BIAS, ALL, '4 in 4 groups .1, 1, 1, 1. in .* 4 in 1 groups'),
    ],
)
def test_other_settings_are_refused(
    tmp_path, trained, merged, before, now, message
):
    path = trained(merged=merged, paramwise=before) / 'iter_8.pth'
    with pytest.raises(ValueError, match=f'parameters per group: {message}'):
        resume(tmp_path, path, **options(merged=True, paramwise=now))


def test_a_rate_that_was_changed_in_one_of_them_is_refused(tmp_path, trained):
    """What is to be one group must have been alike."""
    path = trained(merged=False) / 'iter_8.pth'
    checkpoint = torch.load(path, weights_only=False)
    checkpoint['optimizer']['param_groups'][2]['lr'] *= 2
    torch.save(checkpoint, tmp_path / 'a.pth')
    with pytest.raises(ValueError, match=r'4 in 4 groups .* 4 in 2 groups'):
        resume(tmp_path / 'a', tmp_path / 'a.pth', **options(merged=True))
