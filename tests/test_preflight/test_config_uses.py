"""Variables that config files read."""

import ast

import pytest

from mmext.preflight._config_uses import used_names


@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('a = b', {'b'}),
        ('a = [b for b in c]', {'b', 'c'}),
        ("a = 'models/b.py'", set()),
        ("a = '{{ _base_.b }}'", {'b'}),
        ('a = {{_base_.b.c}}', {'b'}),
        ("a = _base_['b']", {'b'}),
        ("a['b'] = 1", set()),
        ('a.update(b=c)', {'c'}),
        ('a = dict(**b)', {'b', 'dict'}),
    ],
)
def test_names_that_are_used(text, names):
    assert {name for name, _ in used_names(ast.parse(text))} == names


def test_lines_of_uses():
    tree = ast.parse('a = [\n  b,\n  b]\nc = b')
    assert sorted(used_names(tree)) == [('b', 2), ('b', 3), ('b', 4)]
