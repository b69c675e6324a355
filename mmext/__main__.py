"""The tools as one command: ``mmext TOOL ...``, or ``python -m mmext TOOL``.

It runs the files of ``tools/``, which a wheel has, too, as scripts.
"""

import ast
import os
import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

from mmext import __version__
from mmext.utils.host_packages import MissingHostError


def _find_tools() -> dict[str, Path]:
    """The tools by name, of a wheel, an editable install or a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / '.mim' / 'tools', here.parent / 'tools'):
        paths = sorted(folder.resolve().glob('[!_]*.py'))
        if paths:
            return {path.stem: path for path in paths}
    raise FileNotFoundError(f'{here / ".mim" / "tools"} must hold the tools')


def _list_tools(program: str, tools: dict[str, Path]) -> None:
    print(f'usage: {program} TOOL [--help] ...\n\ntools:')
    width = max(map(len, tools))
    for name, path in tools.items():
        text = ast.get_docstring(ast.parse(path.read_bytes())) or ''
        print(f'  {name:{width}}  {text.partition(chr(10))[0]}')


def main() -> int:
    """Run a tool, which exits itself; else the exit code."""
    program = Path(sys.argv[0]).name
    if program == '__main__.py':
        program = 'python -m mmext'
    tools = _find_tools()
    given = sys.argv[1] if sys.argv[1:] else ''
    if given in ('', '-h', '--help'):
        _list_tools(program, tools)
        return 0 if given else 2
    if given == '--version':
        print(__version__)
        return 0
    name = given.replace('-', '_')
    if name not in tools:
        near = get_close_matches(name, tools, 1)
        print(
            f'{program}: error: TOOL must be one of {", ".join(tools)}, got '
            f'{given!r}{f"; did you mean {near[0]}?" if near else ""}',
            file=sys.stderr,
        )
        return 2
    # What the tool calls itself; processes that it starts are told, too.
    os.environ['MMEXT_COMMAND'] = program
    del sys.argv[1]
    try:
        runpy.run_path(str(tools[name]), run_name='__main__')
    except MissingHostError as error:
        print(f'{program}: error: {error}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
