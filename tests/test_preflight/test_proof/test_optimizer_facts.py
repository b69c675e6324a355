from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from preflight_models import build, sgd

from mmext.preflight.proof.optimizer_facts import (
    custom_key_use,
    optimizer_facts,
)


def of_config(keys, model=None, **more):
    """Facts of an optimizer that MMEngine builds with custom keys."""
    section = {
        'optimizer': {'type': 'SGD', 'lr': 0.1},
        'paramwise_cfg': {'custom_keys': keys},
        **more,
    }
    model = model or build('extra')
    wrapper = build_optim_wrapper(model, section)
    return optimizer_facts(model, wrapper, {'optim_wrapper': section})


def test_nothing_to_say():
    model = build()
    assert optimizer_facts(model, sgd(model)) == optimizer_facts(
        model, OptimWrapperDict(all=sgd(model))
    )
    facts = optimizer_facts(model, sgd(model))
    assert (facts.missing, facts.frozen, facts.rate_zero) == ((), (), ())


def test_missing_and_frozen():
    model = build('extra')
    wrapper = sgd(model)
    model.stem.requires_grad_(False)
    model.late = build().head
    facts = optimizer_facts(model, wrapper)
    assert facts.missing == ('late.weight', 'late.bias')
    assert facts.frozen == ('stem.weight', 'stem.bias')


def test_rate_zero_and_the_nearest_name():
    facts = of_config(
        {
            'stem': {'lr_mult': 0.0},
            'extr.weight': {'lr_mult': 0.1},
            'zzz': {'lr_mult': 2.0},
            'blo': {'lr_mult': 2.0},
            'block': {'lr_mult': 1.0},
        }
    )
    assert facts.rate_zero == ('stem.weight', 'stem.bias')
    assert facts.unmatched == {'extr.weight': 'extra.weight', 'zzz': ''}
    assert facts.shadowed == ('blo',)


def test_a_key_for_what_is_frozen_is_no_mistake():
    facts = of_config({'stem': {'lr_mult': 0.1}}, build('frozen stem'))
    assert facts.unmatched == {}


def test_other_constructors_read_other_keys():
    section = {
        'constructor': 'SomeoneElses',
        'paramwise_cfg': {'custom_keys': {'zzz': {}}},
    }
    model = build()
    facts = optimizer_facts(model, sgd(model), {'optim_wrapper': section})
    assert facts.unmatched == {}


def test_parameters_of_the_model_itself_begin_with_a_dot():
    assert custom_key_use(['.scale'], ['scale']) == ({}, ())
