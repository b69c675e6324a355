"""mmext's registry nodes: reachable from each host, light to import."""

import subprocess
import sys

import pytest
from mmengine import registry as roots
from mmengine.registry import Registry

from mmext import registry

NODES = {
    name: node
    for name, node in vars(registry).items()
    if isinstance(node, Registry)
}


@pytest.mark.parametrize('name', NODES)
def test_nodes_are_children_of_the_roots_with_classes_of_ours(name):
    node = NODES[name]
    assert node.scope == 'mmext'
    assert node.parent is getattr(roots, name)
    node.import_from_location()
    ours = [
        value
        for value in node.module_dict.values()
        if value.__module__.startswith('mmext.')
    ]
    assert ours, f'{name} has no component of mmext; drop the node'
    for key, value in node.module_dict.items():
        assert key == value.__name__


@pytest.mark.slow
@pytest.mark.parametrize('host', ['mmdet', 'mmseg'])
def test_resolves_from_a_host_without_custom_imports(host: str):
    """Neither mmext.models nor mmext.registry was imported by the user."""
    code = (
        'import mmext\n'
        'from mmengine.registry import MODELS, init_default_scope\n'
        f'init_default_scope({host!r})\n'
        'print(MODELS.get("mmext.CoDINOHead").__module__)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith('mmext.models.')
