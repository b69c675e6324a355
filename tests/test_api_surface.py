"""What users rely on is a checked-in list; a change to it is deliberate.

The list, ``api_surface.json``, holds the public names of each package, the
constructor arguments (config keys) of each registered component and the
command line of each tool. Write it anew with::

    python tests/test_api_surface.py

which also prints the line that CHANGELOG.md must hold: say there, under
Unreleased, what changed for users.
"""

import argparse
import hashlib
import importlib
import inspect
import json
import pkgutil
import runpy
import sys
from pathlib import Path
from unittest import mock

import mmext
from mmext import registry
from mmext.utils import register_all_modules

ROOT = Path(__file__).resolve().parents[1]
SURFACE = ROOT / 'tests' / 'api_surface.json'


class _Parser(Exception):
    """Carries a tool's parser out of the tool before it does anything."""


def public_names() -> dict[str, list[str]]:
    """``__all__`` of mmext and of each of its packages."""
    packages = ['mmext'] + [
        info.name
        for info in pkgutil.walk_packages(mmext.__path__, 'mmext.')
        if info.ispkg
    ]
    return {
        name: sorted(importlib.import_module(name).__all__)
        for name in sorted([*packages, 'mmext.registry'])
    }


def show(parameter: inspect.Parameter) -> str:
    """A parameter without its annotation, as it stands in a signature."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def arguments(kind: type) -> list[str]:
    """Constructor arguments; those of a host's constructor are its own."""
    owner = next(base for base in kind.__mro__ if '__init__' in vars(base))
    if owner is object:
        return []
    if not owner.__module__.startswith('mmext.'):
        return [f'those of {owner.__module__.split(".")[0]}.{owner.__name__}']
    parameters = inspect.signature(kind).parameters.values()
    return [show(parameter) for parameter in parameters]


def component_arguments() -> dict[str, list[str]]:
    """Constructor arguments of each registered component of mmext."""
    register_all_modules(False)
    return {
        f'{node}: mmext.{name}': arguments(kind)
        for node in sorted(registry.__all__)
        for name, kind in sorted(getattr(registry, node).module_dict.items())
        if kind.__module__.startswith('mmext.')
    }


def parser_of(tool: Path) -> argparse.ArgumentParser:
    """The parser of a tool, caught at the moment it would read arguments."""

    def caught(self: argparse.ArgumentParser, *_args, **_kwargs):
        raise _Parser(self)

    with (
        mock.patch.object(argparse.ArgumentParser, 'parse_args', caught),
        mock.patch.object(argparse.ArgumentParser, 'parse_known_args', caught),
        mock.patch.object(sys, 'argv', [str(tool)]),
    ):
        try:
            runpy.run_path(str(tool), run_name='__main__')
        except _Parser as carrier:
            return carrier.args[0]
    raise AssertionError(f'{tool} reads no command line')


def command_line(parser: argparse.ArgumentParser) -> list[str]:
    """The arguments of a tool: names, count, default and choices."""
    lines = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._SubParsersAction):
            lines += [
                f'{name}: {line}'
                for name, command in action.choices.items()
                for line in command_line(command)
            ]
            continue
        line = ' '.join(action.option_strings) or action.dest
        for key in ('nargs', 'default', 'choices', 'required'):
            value = getattr(action, key)
            if (
                action.option_strings
                and value is not None
                and value is not False
            ):
                line += f' {key}={value!r}'
        lines.append(line)
    return lines


def surface() -> dict:
    """All that users rely on, in plain lists and dicts."""
    tools = sorted((ROOT / 'tools').glob('[!_]*.py'))
    scripts = sorted((ROOT / 'tools').glob('[!_]*.sh'))
    return {
        'names': public_names(),
        'components': component_arguments(),
        'tools': {tool.name: command_line(parser_of(tool)) for tool in tools},
        'scripts': [script.name for script in scripts],
    }


def changelog_mark() -> str:
    """The line of the changelog that belongs to the checked-in list."""
    digest = hashlib.sha256(SURFACE.read_bytes()).hexdigest()[:8]
    return f'<!-- API surface: {digest} -->'


def test_surface_is_the_checked_in_one():
    assert surface() == json.loads(SURFACE.read_text()), (
        'if the change is meant: python tests/test_api_surface.py'
    )


def test_changelog_speaks_of_this_surface():
    text = (ROOT / 'CHANGELOG.md').read_text()
    assert changelog_mark() in text, (
        'say under Unreleased what changed for users, then put there: '
        + changelog_mark()
    )


def test_changelog_names_every_component_and_tool():
    text = (ROOT / 'CHANGELOG.md').read_text()
    known = json.loads(SURFACE.read_text())
    names = [key.split('.')[-1] for key in known['components']]
    names += [*known['tools'], *known['scripts']]
    assert [name for name in names if f'{name}`' not in text] == []


if __name__ == '__main__':
    SURFACE.write_text(json.dumps(surface(), indent=2) + '\n')
    print(f'wrote {SURFACE.name}; CHANGELOG.md must hold:')
    print(changelog_mark())
