"""Dicts of a config, the classes they name, and the arguments of those."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from mmdet.models import ResNeXt
from mmengine.config import Config
from mmengine.model import BaseModule
from torch import nn

from mmext.checks.config.misplaced import (
    check_misplaced_keys,
    find_misplaced_keys,
)
from mmext.checks.config.sections import (
    SECTIONS,
    swallows,
    takes,
)


class Plain(nn.Module):
    def __init__(self, with_cp=False):
        super().__init__()
        self.with_cp = with_cp


class Forwarding(Plain):
    def __init__(self, depth=1, **options):
        super().__init__(**options)


class Skipping(Forwarding):
    depth = 3


class Keeping(Plain):
    def __init__(self, **kwargs):
        super().__init__()
        self.static_graph = kwargs.pop('static_graph', False)


class KeepingAndForwarding(Plain):
    def __init__(self, **kwargs):
        self.static_graph = kwargs.pop('static_graph', False)
        super().__init__(**kwargs)


class Old(Plain):
    def __init__(self, **kwargs):
        super(Old, self).__init__(**kwargs)  # noqa: UP008


class ToAnother(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.inner = Plain(**kwargs)


class InitByModule(BaseModule):
    def __init__(self, init_cfg=None, **kwargs):
        super().__init__(init_cfg, **kwargs)


# Class -> arguments that it needs, and whether it takes two settings.
CASES = [
    (Plain, {}, True, False),
    (Forwarding, {}, True, False),
    (Skipping, {}, True, False),
    (Keeping, {}, None, None),
    (KeepingAndForwarding, {}, None, None),
    (Old, {}, True, False),
    (ToAnother, {}, None, None),
    (InitByModule, {}, False, False),
    (nn.Linear, {'in_features': 1, 'out_features': 1}, False, False),
    (ResNeXt, {'depth': 50}, True, False),
    (torch.optim.SGD, {'params': [torch.zeros(1)]}, False, False),
]


@pytest.mark.parametrize(
    ('kind', 'needed', 'checkpoint', 'graph'),
    CASES,
    ids=[case[0].__name__ for case in CASES],
)
@pytest.mark.parametrize('key', ['with_cp', 'static_graph'])
def test_matches_what_building_does(kind, needed, checkpoint, graph, key):
    expected = checkpoint if key == 'with_cp' else graph
    assert takes(kind, key) is expected
    if expected is False:
        with pytest.raises(TypeError, match=key):
            kind(**needed, **{key: True})
    if expected is True:
        assert getattr(kind(**needed, **{key: True}), key) is True


def test_functions_and_what_has_no_signature():
    assert takes(lambda with_cp: None, 'with_cp') is True
    assert takes(lambda other: None, 'with_cp') is False
    assert takes(lambda **rest: None, 'with_cp') is None
    assert takes(dict.fromkeys, 'with_cp') is False
    assert takes(min, 'with_cp') is None


def test_forwarding_can_be_taken_for_granted():
    assert takes(KeepingAndForwarding, 'with_cp', forwards=True) is True
    assert takes(KeepingAndForwarding, 'static_graph', forwards=True) is False


def test_sections_are_those_of_the_runners():
    """All that MMEngine's runners take is either looked at or no dict."""
    import inspect

    from mmengine.runner import FlexibleRunner, Runner

    arguments = {
        name
        for kind in (Runner, FlexibleRunner)
        for name in inspect.signature(kind).parameters
    }
    no_dicts = {
        'cfg',
        'default_scope',
        'experiment_name',
        'launcher',
        'load_from',
        'log_level',
        'resume',
        'work_dir',
    }
    assert arguments - no_dicts <= set(SECTIONS)


# Not in one piece: this file is code of the project, too.
NOWHERE = '_'.join(('broadcast', 'buffe'))


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A module of a project that names a key, and a config with it."""
    (tmp_path / 'reads_its_own.py').write_text(
        "def is_static(cfg):\n    return cfg['static_graph']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    imports = {'imports': ['reads_its_own']}
    cfg = Config(dict(custom_imports=imports, static_graph=True))
    cfg[NOWHERE] = True
    importlib.import_module('reads_its_own')
    yield cfg
    del sys.modules['reads_its_own']


def test_what_own_code_names_is_a_warning(own_code):
    """Whether it reads it there is not known."""
    named = {
        item.location: item.named_in for item in find_misplaced_keys(own_code)
    }
    assert Path(named['static_graph']).name == 'reads_its_own.py'
    assert named[NOWHERE] == ''
    with pytest.raises(ValueError, match=NOWHERE) as info:
        check_misplaced_keys(own_code)
    assert 'static_graph' not in str(info.value)
    own_code.pop(NOWHERE)
    check_misplaced_keys(own_code)


@pytest.mark.parametrize('own', ['static_graph', [1], None])
def test_rejects_senseless_own_keys(own_code, own):
    own_code.own_keys = own
    with pytest.raises(TypeError, match='own_keys must be a list'):
        check_misplaced_keys(own_code)


class Swallowing:
    """Takes everything, and asks for one of it."""

    def __init__(self, depth=1, **options):
        self.depth = depth
        self.old = options.get('old', 'old' in options)


class HandingOn:
    def __init__(self, **options):
        self.options = dict(options)


@pytest.mark.parametrize(
    ('kind', 'key', 'dropped'),
    [
        (Swallowing, 'with_cp', True),
        (Swallowing, 'depth', False),
        (Swallowing, 'old', False),
        (HandingOn, 'with_cp', False),
        (Forwarding, 'with_cp', False),
        (Plain, 'other', False),
    ],
)
def test_swallows(kind, key, dropped):
    assert swallows(kind, key) is dropped
