import pytest
from label_facts import EXPECTED, findings_of, sample_of

from mmext.label_check import Severity
from mmext.label_check.rules import registry
from mmext.label_check.rules.registry import (
    RULES,
    describe_rules,
    found,
    register,
    rule,
    select_rules,
)


@pytest.fixture
def restored():
    before = dict(RULES)
    yield
    registry._rules.clear()
    registry._rules.update(before)


def new_rule(rule_id: str = 'TST001', scope: str = 'sample'):
    @rule(
        rule_id,
        title='all is wrong',
        severity=Severity.WARNING,
        remedy='none',
        scope=scope,
    )
    def check(facts, expected):
        """Find something."""
        yield found('wrong', file='a.png', count=3)

    return check


def test_findings_inherit_from_their_rule(restored):
    (finding,) = new_rule()(sample_of(), EXPECTED)
    assert finding.rule == 'TST001'
    assert finding.severity == Severity.WARNING
    assert (finding.remedy, finding.split) == ('none', 'train')
    assert (finding.file, finding.count) == ('a.png', 3)


def test_findings_of_a_run_are_of_no_split(restored):
    (finding,) = new_rule(scope='run')([], [])
    assert finding.split == ''


def test_rules_are_ordered(restored):
    new_rule('AAA001')
    assert list(RULES) == sorted(RULES)
    assert next(iter(RULES)) == 'AAA001'


@pytest.mark.parametrize('rule_id', ['seg001', 'SEG1', 'S001', 'SEG0011'])
def test_rejects_another_form_of_id(rule_id, restored):
    with pytest.raises(ValueError, match='id must be 2 to 6 capital'):
        new_rule(rule_id)


def test_rejects_an_id_twice():
    with pytest.raises(ValueError, match="must be new, got 'SEG001'"):
        register(RULES['SEG001'])


def test_rejects_another_scope(restored):
    with pytest.raises(ValueError, match='scope of TST001 must be one of'):
        new_rule(scope='file')


def test_select_rules_by_id_and_beginning():
    assert [each.id for each in select_rules(['SEG001'])] == ['SEG001']
    chosen = {each.id for each in select_rules(['SEG'], ['SEG00'])}
    assert chosen == {each for each in RULES if each.startswith('SEG01')}
    assert [each.id for each in select_rules()] == list(RULES)


@pytest.mark.parametrize('argument', ['select', 'ignore'])
@pytest.mark.parametrize('word', ['XYZ', 'SEG0001', ''])
def test_rejects_unknown_rules(argument, word):
    with pytest.raises(ValueError, match=f'{argument} must hold ids'):
        select_rules(**{argument: [word]})


def test_describe_rules_has_a_row_for_each():
    rows = describe_rules()
    assert [row[0] for row in rows] == list(RULES)
    assert all(len(row) == 5 and all(row) for row in rows)


def test_good_samples_have_no_finding():
    samples = [sample_of(index) for index in range(3)]
    assert findings_of(samples) == []
