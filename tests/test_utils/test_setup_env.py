"""register_all_modules: everything is registered, the scope as asked."""

import subprocess
import sys

import pytest

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
