"""The list of lint rules."""

import pytest

from mmext.label_check.rules import RULES
from mmext.preflight.findings import Severity
from mmext.preflight.lint.registry import (
    LINT_RULES,
    describe_lint_rules,
    lint_rule,
)


def options(**changes):
    given = dict(title='blue', severity=Severity.INFO, remedy='paint it')
    return {**given, **changes}


@pytest.mark.parametrize(
    'name', ['key001', 'K001', 'KEY01', 'CFG009', 'DDP001']
)
def test_refuses_other_ids(name):
    with pytest.raises(ValueError, match='rule_id must be 2 to 6'):
        lint_rule(name, **options())


def test_refuses_an_id_twice():
    first = next(iter(LINT_RULES))
    with pytest.raises(ValueError, match=f"new, got '{first}'"):
        lint_rule(first, **options())


def test_ids_are_in_order_and_of_no_other_check():
    assert list(LINT_RULES) == sorted(LINT_RULES)
    assert not set(LINT_RULES) & set(RULES)
    for name, rule in LINT_RULES.items():
        assert rule.id == name
        assert rule.title
        assert rule.remedy


def test_rows_describe_them():
    rows = describe_lint_rules()
    assert [row[0] for row in rows] == list(LINT_RULES)
    assert {row[1] for row in rows} == {'info', 'warning', 'error'}
    assert len({row[2] for row in rows}) == len(rows), 'titles differ'
