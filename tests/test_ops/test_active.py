"""The name of the backend, and the one line that tells it."""

import logging
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from mmext.ops import active, active_backend, log_backend
from mmext.ops.finder import ExtLoader


def module_from(loader: object) -> ModuleType:
    module = ModuleType('mmcv._ext')
    module.__spec__ = ModuleSpec('mmcv._ext', loader)
    return module


def test_a_loaded_module_tells_by_its_loader(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmcv._ext', module_from(ExtLoader()))
    assert active_backend() == 'mmext'
    monkeypatch.setitem(sys.modules, 'mmcv._ext', module_from(None))
    assert active_backend() == 'compiled'


def test_a_stand_in_without_spec_is_not_ours(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmcv._ext', ModuleType('mmcv._ext'))
    assert active_backend() == 'compiled'


def test_nothing_has_to_be_loaded(monkeypatch):
    expected = active_backend()
    monkeypatch.delitem(sys.modules, 'mmcv._ext', raising=False)
    assert active_backend() == expected


def test_rejects_a_missing_mmcv(monkeypatch):
    monkeypatch.delitem(sys.modules, 'mmcv._ext', raising=False)
    monkeypatch.setitem(sys.modules, 'mmcv', None)
    with pytest.raises(ModuleNotFoundError, match='mmcv'):
        active_backend()
    with pytest.raises(ModuleNotFoundError, match='mmcv'):
        log_backend()


@pytest.mark.parametrize(
    ('loader', 'text'), [(ExtLoader(), 'PyTorch backend'), (None, 'compiled')]
)
def test_log_backend_says_it_once(loader, text, monkeypatch, caplog):
    monkeypatch.setattr(active, '_logged', set())
    monkeypatch.setitem(sys.modules, 'mmcv._ext', module_from(loader))
    logger = logging.getLogger('test_active')
    with caplog.at_level(logging.INFO, logger='test_active'):
        log_backend(logger)
        log_backend(logger)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f'mmcv operators: {text}')
