from mmext.preflight.findings import Severity
from mmext.preflight.proof import OptimizerFacts, Proof
from mmext.preflight.proof._optimizer_findings import optimizer_findings


def test_nothing_to_say():
    assert list(optimizer_findings(Proof({}))) == []
    assert (
        list(optimizer_findings(Proof({}, optimizer=OptimizerFacts()))) == []
    )


def test_all():
    facts = OptimizerFacts(
        missing=('late.weight',),
        frozen=('stem.weight', 'stem.bias'),
        rate_zero=('head.weight',),
        unmatched={'extr.weight': 'extra.weight', 'zzz': ''},
        shadowed=('blo',),
    )
    found = list(optimizer_findings(Proof({}, optimizer=facts)))
    assert [(each.rule, each.severity) for each in found] == [
        ('OPT001', Severity.ERROR),
        ('OPT002', Severity.INFO),
        ('OPT003', Severity.WARNING),
        ('OPT004', Severity.WARNING),
        ('OPT004', Severity.WARNING),
        ('OPT005', Severity.INFO),
    ]
    assert found[0].names == ('late.weight',)
    assert "the nearest real name is 'extra.weight'" in found[3].message
    assert found[3].remedy == "write 'extra.weight'"
    assert 'nearest' not in found[4].message
    key = 'optim_wrapper.paramwise_cfg.custom_keys'
    assert [each.key for each in found[3:]] == [
        key,
        f'{key}.zzz',
        f'{key}.blo',
    ]
