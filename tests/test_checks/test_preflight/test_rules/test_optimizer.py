"""Groups of parameters: what is near the fault of a plant."""

from helpers.preflight_models import build, sgd
from mmengine.optim import build_optim_wrapper

from mmext.checks.findings import Finding
from mmext.checks.preflight.rules.optimizer import optimizer_findings

EXTRA = 'mmext.MergedOptimWrapperConstructor'


def of_config(keys: dict, model=None, **more) -> list[Finding]:
    """Findings of an optimizer that MMEngine builds with custom keys."""
    section = {
        'optimizer': {'type': 'SGD', 'lr': 0.1},
        'paramwise_cfg': {'custom_keys': keys},
        **more,
    }
    model = model or build('extra')
    wrapper = build_optim_wrapper(model, section)
    return list(optimizer_findings(model, wrapper, {'optim_wrapper': section}))


def test_what_is_no_mistake():
    """A key for what is frozen, merged groups, keys of another reader."""
    keys = {'stem': {'lr_mult': 0.1}}
    findings = of_config(keys, build('frozen stem'))
    assert 'OPT004' not in {finding.rule for finding in findings}
    keys['zzz'] = {'lr_mult': 2.0}
    (finding,) = of_config(keys, constructor=EXTRA)
    assert (finding.rule, finding.names) == ('OPT004', ('zzz',))
    section = {
        'constructor': 'SomeoneElses',
        'paramwise_cfg': {'custom_keys': {'zzz': {}}},
    }
    model = build()
    cfg = {'optim_wrapper': section}
    assert list(optimizer_findings(model, sgd(model), cfg)) == []
