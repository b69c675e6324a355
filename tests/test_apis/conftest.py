"""A detector of rectangles, which needs no training."""

import importlib
from types import ModuleType

import pytest
from torch import nn

from mmext.apis import load_detector


@pytest.fixture
def finder(monkeypatch, checkout) -> ModuleType:
    """Model, data and checkpoints of the detector."""
    monkeypatch.syspath_prepend(checkout / 'tests' / 'reference')
    return importlib.import_module('rectangle_finder')


@pytest.fixture
def model(finder, tmp_path) -> nn.Module:
    """The detector, loaded."""
    config = finder.write_config(tmp_path)
    path = finder.write_checkpoint(tmp_path)
    return load_detector(config, path, device='cpu')
