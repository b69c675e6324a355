"""Configs that inherit another and change it, loaded back by MMEngine."""

import string
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

import mmext
from mmext.checks.config import DELETE
from mmext.checks.config.child import apply_options, write_child_config

NAMES = st.text(string.ascii_lowercase[:4], min_size=1, max_size=2)
KEYS = NAMES.filter(lambda name: name not in ('dict', 'float'))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=6).filter(lambda text: text != DELETE),
    st.sampled_from(['{{x}}', "it's {{{", '"', '\n', '{{ _base_.a }}']),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS | st.just('a.b') | st.just('if'), inner),
    ),
    max_leaves=8,
)
TREES = st.dictionaries(
    KEYS, PLAIN | st.dictionaries(KEYS, VALUES, max_size=3), max_size=4
)


def write_parent(folder: Path, tree: dict) -> Path:
    file = folder / 'parent.py'
    lines = [f'{name} = {_literal(value)}' for name, value in tree.items()]
    file.write_text('\n'.join(lines), encoding='utf-8')
    return file


def _literal(value) -> str:
    # Not through the writer that is tested: braces by escapes.
    text = repr(value).replace('{{', '\\x7b\\x7b')
    return text.replace('inf', "float('inf')") if 'inf' in text else text


def loaded(file: Path) -> dict:
    return Config.fromfile(file).to_dict()


@st.composite
def trees_and_options(draw):
    """A config, and changes of keys that it has or has not."""
    tree = draw(TREES)
    options = {}
    for _ in range(draw(st.integers(0, 3))):
        steps = [draw(KEYS)]
        node = tree.get(steps[0])
        if isinstance(node, dict) and draw(st.booleans()):
            steps.append(draw(st.sampled_from([*node, 'new'])))
            if '.' in steps[1]:
                continue
        options['.'.join(steps)] = draw(VALUES | st.just(DELETE))
    return tree, options


def no_way(tree: dict, options: dict) -> bool:
    """A key below one that is a plain value after another option."""
    try:
        apply_options(tree, options)
    except KeyError:
        return True
    return False


# Each example writes and loads files.
@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(trees_and_options())
def test_child_is_parent_with_the_options(case):
    tree, options = case
    with TemporaryDirectory() as name:
        folder = Path(name)
        parent = write_parent(folder, tree)
        before = loaded(parent)
        if no_way(before, options):
            return
        child = write_child_config(
            str(parent),
            options,
            folder / 'below' / 'child.py',
            reasons=dict.fromkeys(options, 'because\nit must'),
        )
        assert loaded(child) == apply_options(before, options)


@settings(max_examples=40, deadline=None)
@given(trees_and_options())
def test_options_are_merged_as_mmengine_merges(case):
    tree, options = case
    options = {k: v for k, v in options.items() if v != DELETE}
    one = dict(list(options.items())[:1])
    expected = Config(tree)
    try:
        expected.merge_from_dict(one)
    except (TypeError, KeyError):
        # A dict in the place of a value: only a _delete_ does it there.
        return
    assert apply_options(tree, one) == expected.to_dict()


@pytest.fixture
def parent(tmp_path):
    file = tmp_path / 'a' / 'parent.py'
    file.parent.mkdir()
    file.write_text(
        'lr = 0.1\n'
        "model = dict(type='A', neck=dict(type='B', c=1), heads=[dict(d=1)])\n"
        'pair = (1, 2)\n'
    )
    return file


def test_says_why_where_it_changes(parent, tmp_path):
    child = write_child_config(
        str(parent),
        {'model.neck.c': 2, 'lr': DELETE, 'model.heads[0].d': 3},
        tmp_path / 'b' / 'c' / 'child.py',
        reasons={
            'model.neck.c': 'ARG001: c must be 2',
            'lr': 'KEY001: nothing reads it',
        },
    )
    lines = child.read_text().splitlines()
    assert "_base_ = '../../a/parent.py'" in lines
    at = lines.index('# ARG001: c must be 2')
    assert lines[at + 1].startswith('model = dict(neck=dict(c=2),')
    assert lines[lines.index('# KEY001: nothing reads it') + 1] == (
        "_base_.pop('lr')"
    )
    assert loaded(child) == {
        'model': {
            'type': 'A',
            'neck': {'type': 'B', 'c': 2},
            'heads': [{'d': 3}],
        },
        'pair': (1, 2),
    }


def test_inherits_a_packaged_config(tmp_path):
    name = 'mmext::pidnet/pidnet_s_camvid.py'
    child = write_child_config(
        name,
        {'model.decode_head.num_classes': 12},
        tmp_path / 'child.py',
        reasons={},
    )
    assert f"_base_ = '{name}'" in child.read_text()
    path = mmext.config_path('pidnet/pidnet_s_camvid.py')
    expected = Config.fromfile(path).model.decode_head.to_dict()
    expected['num_classes'] = 12
    assert loaded(child)['model']['decode_head'] == expected


def test_does_not_change_its_arguments(parent, tmp_path):
    options = {'model': {'neck': {'_delete_': True, 'type': 'C'}}}
    write_child_config(str(parent), options, tmp_path / 'child.py', reasons={})
    assert options == {'model': {'neck': {'_delete_': True, 'type': 'C'}}}
    child = loaded(tmp_path / 'child.py')
    assert child['model']['neck'] == {'type': 'C'}
    assert child['model']['type'] == 'A'


LAZY = 'from mmengine.model import BaseModel\nmodel = dict(type=BaseModel)\n'


@pytest.mark.parametrize(
    ('given', 'error', 'match'),
    [
        ({'out': 'child.json'}, ValueError, r'must be a \.py file'),
        ({'out': 'lazy.py'}, FileExistsError, 'out must be a new file'),
        ({'parent': 'lazy.py'}, ValueError, 'by hand'),
        ({'options': {'': 1}}, ValueError, 'keys of a config'),
        ({'options': {'_base_': 'x.py'}}, ValueError, 'keys of a config'),
        ({'options': {'model._delete_': 1}}, ValueError, 'keys of a config'),
        ({'options': {'a-b': 1}}, ValueError, 'keys of a config'),
        ({'options': {'text': 1}}, ValueError, 'keys of a config'),
        ({'options': {'model.heads[3].d': 1}}, KeyError, 'item 3 of 1'),
        ({'options': {'model.heads[0]': DELETE}}, ValueError, 'from a list'),
        ({'options': {'lr.x': 1}}, KeyError, 'leads into 0.1'),
        ({'options': {'lr': object()}}, TypeError, 'lr must be of dicts'),
    ],
)
def test_refuses_arguments(parent, tmp_path, monkeypatch, given, error, match):
    monkeypatch.chdir(tmp_path)
    Path('lazy.py').write_text(LAZY)
    arguments = {'parent': str(parent), 'out': 'child.py', 'reasons': {}}
    with pytest.raises(error, match=match):
        write_child_config(**{**arguments, 'options': {'lr': 1}, **given})
    assert Path('lazy.py').read_text() == LAZY
    assert not Path('child.py').exists()
