"""register_all_modules: everything is registered, the scope as asked."""

import subprocess
import sys

import pytest


def last_lines(code: str, count: int) -> list[str]:
    """Run code in a new interpreter: the default scope is global there.

    Hosts print lines of their own while they are imported.
    """
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-count:]


@pytest.mark.parametrize(
    ('argument', 'scope'), [('', 'mmext'), ('False', None)]
)
def test_registers_everything_and_sets_the_scope(argument: str, scope: str):
    code = (
        'import mmext\n'
        'from mmengine.registry import DefaultScope\n'
        'from mmext import registry\n'
        'from mmext.utils import register_all_modules\n'
        f'register_all_modules({argument})\n'
        'print(all(len(getattr(registry, n)) for n in registry.__all__))\n'
        'now = DefaultScope.get_current_instance()\n'
        'print(now and now.scope_name)\n'
    )
    assert last_lines(code, 2) == ['True', str(scope)]


def test_twice_is_once():
    code = (
        'from mmext.utils import register_all_modules\n'
        'register_all_modules(False)\n'
        'register_all_modules(False)\n'
        'print("fine")\n'
    )
    assert last_lines(code, 1) == ['fine']
