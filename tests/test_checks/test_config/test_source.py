"""Values as source of a config."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from torch import nn

from mmext.checks.config.source import (
    config_lines,
    lines_of,
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


@pytest.mark.parametrize(
    'value',
    [
        {'name': 'x' * 40, 'other': ['y' * 40, 'z' * 40], 'if': (1,)},
        {'name': 'x' * 40, 'others': [{'y': 'y' * 40, 'z': ('z' * 30,)}]},
        tuple(range(80)),
    ],
)
def test_long_values_fill_lines(value):
    lines = lines_of('a = ', value)
    assert 3 <= len(lines) <= 6
    assert max(map(len, lines)) <= 79
    assert Config.fromstring('\n'.join(lines), '.py').a == value


def test_lines_are_a_config():
    settings = {
        'a': {'b': [{'c': (1, 2.5)}, None], 'not a name': {'d': 'e'}},
        'kind': {'type': nn.Linear},
        'hooks': [{'type': 'A', 'modules': ['neck']}],
    }
    read = Config.fromstring(config_lines(settings), '.py').to_dict()
    settings['kind']['type'] = 'torch.nn.modules.linear.Linear'
    assert read == settings
