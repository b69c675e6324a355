"""Names that are imported late are there, and components are registered."""

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


CODE = """
import mmext
from mmengine.registry import DefaultScope
from mmext import registry
from mmext.utils import register_all_modules

register_all_modules(False)
print(DefaultScope.get_current_instance())
nodes = [
    node
    for node in vars(registry).values()
    if isinstance(node, registry.Registry)
]
print(len(nodes) > 9 and all(map(len, nodes)))
register_all_modules()
print(DefaultScope.get_current_instance().scope_name)
"""


@pytest.mark.slow
def test_registers_everything_and_sets_the_scope_when_asked():
    # In a new interpreter: registries and the default scope are global.
    done = subprocess.run(
        [sys.executable, '-c', CODE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Hosts print lines of their own while they are imported.
    assert done.stdout.splitlines()[-3:] == ['None', 'True', 'mmext']
