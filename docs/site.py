"""What mkdocs.yml cannot say: files outside of docs/, and pages of the API.

A page may link a file of the checkout, as it is read there, too. The site gets
a page of it, if it is Markdown or Python, else the file itself.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from markdown.extensions.toc import slugify
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
# A link that is called by the name of its file.
NAMED = re.compile(r'\[[\w/]+\.md\](?=\(([^)#\s]+\.md)(?:#([^)]*))?\))')
LINK = re.compile(r'(\]\()((?:\.\.?/|configs/|docs/|tests/)[^)#\s]*)')

CODE = '---\nsearch:\n  exclude: true\n---\n\n# {}\n\n```python\n{}```\n'

ROLE = re.compile(r':(?:py:)?\w+:<code>(~?)([\w.]+)</code>')


def _place(path: str) -> str:
    """Where a file of the checkout is in the site."""
    path = path.removeprefix('docs/')
    return f'{path}.md' if path.endswith('.py') else path


def _source(uri: str) -> str:
    """Where a page of the site is in the checkout."""
    return f'docs/{uri}' if (ROOT / 'docs' / uri).is_file() else uri


def _targets(source: str, text: str) -> Iterator[str]:
    for link in LINK.findall(text):
        path = normpath(join(dirname(source), link[1]))
        if (ROOT / path).is_file():
            yield path


def on_files(files, config):
    """Add what the pages link, and a page for each package of the API."""
    packages = re.findall(r'api/(\w+)\.md', (ROOT / 'mkdocs.yml').read_text())
    for name in packages:
        package = name if name == 'mmext' else f'mmext.{name}'
        uri = f'api/{name}.md'
        text = f'# {package}\n\n::: {package}\n'
        source = ROOT.joinpath(*package.split('.'), '__init__.py').read_text()
        if '__all__ = [*' in source:  # names that are imported when asked for
            names = sorted(re.findall(r'\b(\w+) as \1\b', source))
            text += f'    options:\n      members: [{", ".join(names)}]\n'
        if name == 'checks':  # a function with the name of its module
            text += '\n::: mmext.checks.device.rehearse.rehearse\n'
            text += '    options:\n      show_root_heading: true\n'
        files.append(File.generated(config, uri, content=text))
    waiting = ['CHANGELOG.md', 'CONTRIBUTING.md']
    for file in files.documentation_pages():
        if file.src_uri.startswith('api/'):
            continue
        source = _source(file.src_uri)
        waiting += _targets(source, (ROOT / source).read_text())
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(_place(path)):
            continue
        content = (ROOT / path).read_bytes()
        if path.endswith('.py'):
            content = CODE.format(Path(path).name, content.decode()).encode()
        files.append(File.generated(config, _place(path), content=content))
        if path.endswith('.md'):
            waiting += _targets(path, content.decode())
    return files


def on_page_markdown(markdown, page, config, files):
    """Call linked pages by their titles; let links lead to copies of files."""
    uri = page.file.src_uri

    def call(match):
        path = ROOT / dirname(_source(uri)) / match[1]
        if not path.is_file():
            return match[0]
        titles = re.findall('^#+ (.*)', path.read_text(), re.MULTILINE)
        named = {slugify(title, '-'): title for title in titles}
        return f'[{named.get(match[2], titles[0])}]'

    def turn(match):
        path = normpath(join(dirname(_source(uri)), match[2]))
        if not (ROOT / path).is_file():
            return match[0]
        return match[1] + relpath(_place(path), dirname(uri) or '.')

    return LINK.sub(turn, NAMED.sub(call, markdown))


def on_page_content(html, page, config, files):
    """Let roles of docstrings, as :func:`~mmext.x`, be links."""
    return ROLE.sub(
        lambda match: (
            f'<autoref identifier="{match[2]}" optional><code>'
            f'{match[2].split(".")[-1] if match[1] else match[2]}'
            '</code></autoref>'
        ),
        html,
    )
