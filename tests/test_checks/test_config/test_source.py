"""Values as source of a config, and comments above keys."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from torch import nn

from mmext.checks.config.source import (
    ConfigWriter,
    config_lines,
    is_argument_name,
    source_of,
)


@given(st.text() | st.integers() | st.floats(allow_nan=False))
def test_gives_plain_values_back(value):
    text = source_of(value)
    assert eval(text) == value
    assert '{{' not in text


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ({}, 'dict()'),
        ({'a': 1}, 'dict(a=1)'),
        ({'a.b': 1, 'c': 2}, "{'a.b': 1, 'c': 2}"),
        ({0: 1}, '{0: 1}'),
        ((1,), '(1,)'),
        ((), '()'),
        ([None, True], '[None, True]'),
        (float('-inf'), "float('-inf')"),
    ],
)
def test_forms(value, text):
    assert source_of(value) == text
    assert eval(text) == value


def test_refuses_other_types():
    with pytest.raises(TypeError, match=r'model\.a must be of dicts'):
        source_of({'a': object()}, ('model',))


@pytest.mark.parametrize('name', ['if', 'a-b', '1a', '', None, 'None'])
def test_no_names_of_arguments(name):
    assert not is_argument_name(name)


def test_comments_are_above_their_keys():
    writer = ConfigWriter({('a',): 'of all', ('a', 'c', 0): 'of\none'})
    lines = list(writer.assignment('a', {'b': 1, 'c': [2, 3]}))
    assert lines == [
        '# of all',
        'a = dict(',
        '    b=1,',
        '    c=[',
        '        # of one',
        '        2,',
        '        3,',
        '    ],',
        ')',
    ]
    assert list(writer.assignment('a', 1)) == ['a = 1'], 'said once'


def test_long_comments_are_wrapped():
    (first, second) = ConfigWriter({('a',): 'word ' * 20}).comment(('a',))
    assert len(first) <= 79
    assert second.startswith('# ')


def test_long_values_have_lines_of_their_own():
    value = {'name': 'x' * 40, 'other': ['y' * 40]}
    lines = list(ConfigWriter({}).assignment('a', value))
    assert len(lines) > 3
    assert (
        ast.literal_eval(
            '\n'.join(lines)
            .removeprefix('a = ')
            .replace('dict(', '{')
            .replace('name=', "'name':")
            .replace('other=', "'other':")
            .replace(')', '}')
        )
        == value
    )


def test_lines_are_a_config():
    settings = {
        'a': {'b': [{'c': (1, 2.5)}, None], 'not a name': {'d': 'e'}},
        'kind': {'type': nn.Linear},
        'hooks': [{'type': 'A', 'modules': ['neck']}],
    }
    read = Config.fromstring(config_lines(settings), '.py').to_dict()
    settings['kind']['type'] = 'torch.nn.modules.linear.Linear'
    assert read == settings
