import pytest

from mmext.preflight import (
    Firing,
    ParameterUse,
    StepUsage,
    SyncSettings,
    UnusedReason,
    find_cures,
)

FIND = 'find_unused_parameters = True'
FIND_NOT = 'find_unused_parameters = False'


def usage(firings, unused=(), reentrant='', reason=UnusedReason.NEVER_USED):
    items = tuple(Firing(f[0], int(f[1:] or 0)) for f in firings.split())
    fired = [firing.name for firing in items]
    return StepUsage(
        names=tuple(dict.fromkeys([*fired, *unused])),
        firings=items,
        reachable=frozenset(set(fired) - set(reentrant)),
        unused={name: ParameterUse(reason) for name in unused},
        reentrant=dict.fromkeys(reentrant, 'block'),
    )


def configs(*args):
    return [cure.config for cure in find_cures(*args)]


def evaluate(lines):
    """Config lines must be Python that can be pasted."""
    values = {}
    exec(lines, {}, values)
    return values


def test_unused():
    cures = find_cures([usage('a b', 'c')], SyncSettings())
    assert [cure.config for cure in cures] == ['', FIND]
    assert 'for c: use it in the loss' in cures[0].text
    assert 'requires_grad_(False)' in cures[0].text


def test_many_unused_are_not_all_named_again():
    cures = find_cures([usage('a', 'bcd')], SyncSettings())
    assert 'for b and 2 more' in cures[0].text


def test_needless_search_with_a_reentrant_checkpoint():
    first, second = configs([usage('a b1', '', 'b')], SyncSettings(True))
    assert first == FIND_NOT
    assert evaluate(second)['find_unused_parameters'] is False
    hook = evaluate(second)['default_hooks']['activation_checkpoint']
    assert hook == {
        'type': 'mmext.ActivationCheckpointHook',
        'replace_reentrant': True,
    }


def test_unused_and_reentrant():
    given = [usage('a b1', 'c', 'b')]
    in_model, hook, static = find_cures(given, SyncSettings())
    # Once c is used, nothing else is wrong.
    assert in_model.config == ''
    assert evaluate(hook.config)['find_unused_parameters'] is True
    assert evaluate(static.config)['model_wrapper_cfg']['static_graph'] is True
    in_model, hook, _ = find_cures(given, SyncSettings(True))
    # With the search on, c alone would not be enough.
    assert in_model.config == FIND_NOT
    assert 'find_unused_parameters' not in evaluate(hook.config)


def test_reentrant_part_used_twice():
    hook, static = configs([usage('a b1 b2', '', 'b')], SyncSettings())
    assert set(evaluate(hook)) == {'default_hooks'}
    assert 'static_graph' in static


def test_a_part_that_does_not_learn_is_not_hidden_by_a_flag():
    given = usage('a', 'b', reason=UnusedReason.CHECKPOINT_INPUT)
    (hook,) = configs([given], SyncSettings())
    assert set(evaluate(hook)) == {'default_hooks'}


def test_branches_rule_a_static_graph_out():
    taken, not_taken = (
        usage('a b1'),
        usage('a', 'b', reason=UnusedReason.BRANCH_NOT_TAKEN),
    )
    lines = configs([taken, not_taken], SyncSettings(False, True))
    values = evaluate('\n'.join(lines))
    assert values['find_unused_parameters'] is True
    assert values['model_wrapper_cfg']['static_graph'] is False


def test_used_outside_of_forward():
    step = StepUsage(
        ('a', 'b'), (Firing('b', 0), Firing('a', 0)), frozenset('a')
    )
    cures = find_cures([step], SyncSettings(True))
    assert "forward(mode='loss')" in cures[0].text
    assert cures[1].config == FIND_NOT


@pytest.mark.parametrize(
    ('reason', 'words'),
    [
        (UnusedReason.NO_GRAD, 'compute it with gradients'),
        (UnusedReason.DETACHED, 'let gradients pass'),
        (UnusedReason.FROZEN, 'freeze it earlier'),
        (UnusedReason.NOT_IN_LOSS, 'use it in the loss'),
    ],
)
def test_the_cure_follows_the_reason(reason, words):
    cures = find_cures([usage('a', 'b', reason=reason)], SyncSettings())
    assert words in cures[0].text


def test_nothing_to_cure():
    assert find_cures([usage('a b')], SyncSettings()) == []
