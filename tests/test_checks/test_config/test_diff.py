"""Changes of a config as a diff of its file."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmext.checks.config import DELETE, config_diff

BASE = """model = dict(head=dict(n=1), neck=dict(a=1))
hooks = [dict(type='A', n=1)]
old = 1
"""
TEXT = """_base_ = 'base.py'
model = dict(
    head=dict(n=6, ü='ü'),  # six
    tail={'a': 1, 'b': dict()},
)
steps = [1, dict(end=5), dict(end=9)]
flag = True
"""


@pytest.fixture
def config(tmp_path) -> Path:
    (tmp_path / 'base.py').write_text(BASE, 'utf-8')
    path = tmp_path / 'a.py'
    path.write_text(TEXT, 'utf-8')
    return path


def changes(diff: str) -> list[str]:
    """Lines of a diff that change something."""
    lines = diff.splitlines()
    assert lines[0].startswith('--- ')
    assert lines[1].startswith('+++ ')
    return [line for line in lines[2:] if line[:1] in '+-']


@pytest.mark.parametrize(
    ('options', 'lines'),
    [
        (
            {'model.head.n': 7},
            [
                "-    head=dict(n=6, ü='ü'),  # six",
                "+    head=dict(n=7, ü='ü'),  # six",
            ],
        ),
        (
            {'model.tail.a': DELETE, 'model.tail.c': 7},
            [
                "-    tail={'a': 1, 'b': dict()},",
                "+    tail={'b': dict(), 'c': 7},",
            ],
        ),
        (
            {'model.tail': DELETE},
            ["-    tail={'a': 1, 'b': dict()},"],
        ),
        (
            {'model.tail.b.c.d': 2},
            [
                "-    tail={'a': 1, 'b': dict()},",
                "+    tail={'a': 1, 'b': dict(c=dict(d=2))},",
            ],
        ),
        ({'model.neck.a': 2}, ['+    neck=dict(a=2),']),
        (
            {'steps[2].end': 8},
            [
                '-steps = [1, dict(end=5), dict(end=9)]',
                '+steps = [1, dict(end=5), dict(end=8)]',
            ],
        ),
        ({'flag': DELETE}, ['-flag = True']),
        ({'flag': False}, ['-flag = True', '+flag = False']),
        ({'optim.lr': 0.1}, ['+optim = dict(lr=0.1)']),
        ({'old': DELETE}, ["+_base_.pop('old')"]),
    ],
)
def test_changes(config, options, lines):
    diff = config_diff(config, options)
    assert changes(diff) == lines
    # Nothing is written.
    assert config.read_text('utf-8') == TEXT


@pytest.mark.parametrize(
    'options',
    [
        {},
        # Lists are not merged.
        {'hooks[0].n': 2},
        # It would be inherited then.
        {'model.head.n': DELETE},
        {'model.neck.a': DELETE},
        {'model.none': DELETE},
        {'steps[7]': 1},
        {'flag.x': 1},
        {'model.head.n': object()},
    ],
)
def test_no_diff_where_none_is_certain(config, options):
    assert config_diff(config, options) == ''


def test_no_diff_where_the_file_computes(config):
    config.write_text(
        "_base_ = 'base.py'\nn = 6\nmodel = dict(head=dict(n=n))\n"
        'model.update(head=dict(n=3))\n'
    )
    # The text could be changed there, and it would have no effect.
    assert config_diff(config, {'model.head.n': 7}) == ''
    config.write_text("_base_ = ['base' + '.py']\nx = 1\n")
    assert config_diff(config, {'x': 2}) == ''
    config.write_text('x = = 1\n')
    assert config_diff(config, {'x': 2}) == ''
    assert config_diff(config.with_name('none.py'), {'x': 2}) == ''


def test_a_variable_is_left_to_others(config):
    config.write_text('n = 6\nmodel = dict(head=dict(n=n), tail=dict(n=n))\n')
    assert changes(config_diff(config, {'model.head.n': 7}))[1] == (
        '+model = dict(head=dict(n=7), tail=dict(n=n))'
    )
    # All that follow it would change, too.
    assert config_diff(config, {'n': 7}) == ''
    assert Config.fromfile(config).model.head.n == 6
