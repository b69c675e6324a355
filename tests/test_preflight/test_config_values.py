"""Statements of config files, and the way down into their values."""

import ast

import pytest

from mmext.preflight._config_values import (
    bindings,
    descend,
    parse_text,
    reference,
)


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode='eval').body


@pytest.mark.parametrize(
    ('text', 'steps'),
    [
        ('a', ('a',)),
        ("a.b['c'][0]", ('a', 'b', 'c', 0)),
        ('{{_base_.x.y}}', ('_base_', 'x', 'y')),
        ('a[-1]', ('a', -1)),
        ('a[b]', None),
        ('f(a)', None),
        ('{a, b}', None),
        ('{a}', None),
        ('3', None),
    ],
)
def test_references(text, steps):
    assert reference(expression(text)) == steps


def test_statements_that_set_something():
    text = (
        'a = b = 1\n'
        'c: int = 2\n'
        "d.e['f'] = 3\n"
        '_base_.g.h = 4\n'
        "_base_ = 'x.py'\n"
        'a.update(dict(i=5))\n'
        'print(a)\n'
        'if a:\n'
        '    j = 6\n'
        'else:\n'
        '    k = 7\n'
        'x, y = 1, 2\n'
    )
    found = [
        ('.'.join(each.steps), each.line, each.merges)
        for each in bindings(ast.parse(text))
    ]
    assert found == [
        ('a', 1, False),
        ('b', 1, False),
        ('c', 2, False),
        ('d.e.f', 3, False),
        ('g.h', 4, False),
        ('a', 6, True),
        ('j', 9, False),
        ('k', 11, False),
    ]


def reached(text, steps, imports=False):
    known = bindings(ast.parse(text))
    return descend(known[-1], steps, known, imports)


def test_goes_down():
    text = "a = dict(b=[1,\n  {'c': 2,\n   'd': 3}])"
    assert reached(text, ('b', 1, 'd')) == (3, (), None, True)
    assert reached(text, ('b', -1, 'c')).line == 2
    assert reached(text, ('b', 5)).rest == (5,)
    assert reached(text, ('b', 1, 'x')).rest == ('x',)


def test_follows_variables():
    text = 'x = dict(c=1)\nx = dict(\n  c=2)\na = dict(b=x)'
    assert reached(text, ('b', 'c')).line == 3
    # The name alone is set where it is used.
    assert reached(text, ('b',)).line == 4
    text = 'x = 1\nx = dict(c=x)\na = dict(**x, d=1)'
    assert reached(text, ('c',)).line == 2
    assert reached('a = dict(a, b=1)', ('c',)).rest == ('c',)


def test_refers_to_bases():
    found = reached('a = dict(b=_base_.x[0])', ('b', 'c'))
    assert (found.base, found.rest) == (('x', 0), ('c',))
    found = reached('a = dict(b=x)', ('b', 'c'), imports=True)
    assert found.base == ('x',)
    assert reached('a = dict(b=x)', ('b', 'c')).base is None


@pytest.mark.parametrize(
    ('text', 'replaces'),
    [
        ('a = dict(b=1)', False),
        ('a = dict(_delete_=True, b=1)', True),
        ("a = {'_delete_': False}", False),
        ('a = [1]', True),
        ('a = 3', True),
    ],
)
def test_what_replaces_a_base(text, replaces):
    assert reached(text, ('x',)).replaces is replaces


def test_variables_in_a_circle_end():
    text = 'a = dict(b=a)\na = dict(b=a)'
    assert reached(text, ('b',) * 300).rest


def test_text_that_is_no_python():
    assert parse_text('a = = b').body == []
    assert len(parse_text('a = {{$PORT:8000}}\nb = 1').body) == 2
