import msgspec
import pytest
from preflight_models import prove_planted

from mmext.preflight import SyncSettings
from mmext.preflight.proof import verdict_table

HOOK = 'default_hooks.activation_checkpoint'
FLAG = 'find_unused_parameters'


def table(mistake, *flags, kinds=('normal',)):
    return verdict_table(prove_planted(mistake, kinds), SyncSettings(*flags))


def outcomes(found):
    return {
        (row.checkpointing, row.find_unused_parameters, row.static_graph): (
            row.outcome.partition(':')[0]
        )
        for row in found.rows
    }


def test_of_a_clean_model():
    found = table('')
    assert outcomes(found) == {
        ('none', False, False): 'ok',
        ('none', True, False): 'ok',
        ('none', False, True): 'ok',
    }
    assert [row.recommended for row in found.rows] == [True, False, False]
    assert [row.current for row in found.rows] == [True, False, False]
    assert (found.fix, found.options) == ('', {})
    assert found.nodes > 0
    assert f'{found.nodes} nodes' in found.cost


def test_of_a_silent_model():
    found = table('reentrant silent')
    as_is, other, none = (
        'as they are',
        'none of them reentrant',
        'none at all',
    )
    assert outcomes(found) == {
        (as_is, False, False): 'silent',
        (as_is, True, False): 'error at step 1',
        (as_is, False, True): 'ok',
        **{
            (checkpointing, search, static): 'ok'
            for checkpointing in (other, none)
            for search, static in (
                (False, False),
                (True, False),
                (False, True),
            )
        },
    }
    (chosen,) = [row for row in found.rows if row.recommended]
    assert (chosen.checkpointing, chosen.find_unused_parameters) == (
        other,
        False,
    )
    assert list(found.options) == [HOOK]
    assert HOOK in found.fix
    wrong = found.rows[0]
    assert not wrong.works
    assert set(wrong.names) == {'block.0.weight', 'block.0.bias'}
    assert wrong.batches == 'normal'


@pytest.mark.parametrize(
    ('mistake', 'flags', 'options'),
    [
        ('extra', (), {FLAG: True}),
        ('', (True,), {FLAG: False}),
        ('', (False, True), {'model_wrapper_cfg.static_graph': False}),
        ('extra by kind', (), {FLAG: True}),
        ('reentrant', (True,), {FLAG: False}),
    ],
)
def test_smallest_change(mistake, flags, options):
    found = table(mistake, *flags, kinds=('normal', 'empty'))
    assert found.options == options


def test_the_model_is_the_better_place():
    found = table('extra')
    assert found.rows[0].outcome.startswith('error at step 2: ')
    assert 'freeze 2 parameter(s) with requires_grad_(False)' in found.fix
    assert found.reason.startswith('some parameters get no gradient')
    assert table('extra', True).fix.startswith('better freeze 2')
    found = table('extra by kind', kinds=('normal', 'empty'))
    assert found.fix.startswith('use 2 parameter(s) in every step, times 0')


@pytest.mark.filterwarnings('ignore:None of the inputs have requires_grad')
def test_untrained_is_not_ok():
    found = table('frozen stem reentrant', True)
    assert all(
        row.works == (row.checkpointing != 'as they are') for row in found.rows
    )
    assert found.rows[3].outcome.startswith('silent: ')
    assert found.options == {FLAG: False} | {
        HOOK: {
            'type': 'mmext.ActivationCheckpointHook',
            'replace_reentrant': True,
        }
    }


def test_static_and_search_together_are_static():
    found = table('', True, True)
    (current,) = [row for row in found.rows if row.current]
    assert current.static_graph


def test_it_can_be_written():
    found = table('reentrant silent')
    read = msgspec.json.decode(msgspec.json.encode(found))
    assert len(read['rows']) == 9
