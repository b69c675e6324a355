"""Names that are imported late are there, and nothing else is."""

import importlib
import pickle
import subprocess
import sys

import pytest


@pytest.mark.parametrize('name', ['mmext.apis', 'mmext.checks.labels'])
def test_all_names_are_there(name):
    package = importlib.import_module(name)
    for public in package.__all__:
        value = getattr(package, public)
        assert value.__name__ == public
        assert value.__module__.startswith(name)
        assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'x'"):
        _ = package.x


def test_curves_are_drawn_without_torch():
    code = (
        'import sys; from mmext.apis import plot_log; '
        'print([m for m in ("torch", "mmdet") if m in sys.modules])'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    )
    assert done.stdout == '[]\n', done.stderr
