"""What README, CONTRIBUTING and docs/ show runs; what they name is there."""

import multiprocessing
import os
import re
import shlex
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from helpers.toy_ranks import load_tool
from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *ROOT.glob('docs/*.md')]
)
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r'```(\w*)\n(.*?)```', page.read_text(), re.DOTALL)
]
PYTHON = [code for language, code in BLOCKS if language == 'python']
CONFIGS = [code for code in PYTHON if code.startswith('_base_')]
# What runs a model file is run on one by tests/test_tools/test_export.py, and
# docs/python.md on shared models by tests/test_apis/test_predictor.py.
ON_SHARED = next(ROOT.glob('docs/**/python.md')).read_text()
# Steps of other frameworks: tests/test_checks/test_ddp/test_plain_modules.py.
PROGRAMS = [
    code
    for code in PYTHON
    if not (code.startswith('_base_') or 'onnxruntime' in code)
    and code not in ON_SHARED
    and 'explain_step(' not in code
]
SHELL = [code for language, code in BLOCKS if language == 'bash']
# A process that need not load PyTorch and the hosts again.
FORK = multiprocessing.get_context('fork')
# The folders and files of the root that a path in the text can start with.
PATH = re.compile(
    r'(?<![\w/.])((?:configs|docs|mmext|tests|tools|\.ci)/[\w./*-]*[\w/*]'
    r'|(?:setup\.cfg|constraints\.txt|CHANGELOG\.md|LICENSE))'
)


def test_every_block_says_its_language():
    assert {language for language, _ in BLOCKS} <= {'python', 'bash', 'text'}


@pytest.mark.parametrize('code', CONFIGS)
def test_config_loads(code: str, tmp_path: Path):
    path = tmp_path / 'config.py'
    path.write_text(code)
    assert Config.fromfile(path).model.type.startswith('mmext.')


def _run(code: str, folder: Path) -> None:
    with (folder / 'errors.txt').open('w', buffering=1) as sys.stderr:
        os.chdir(folder)
        exec(compile(code, 'the documentation', 'exec'), {})


@pytest.mark.slow
@pytest.mark.parametrize('code', PROGRAMS)
def test_program_runs(code: str, tmp_path: Path):
    """In a process of its own: it may register components."""
    process = FORK.Process(target=_run, args=(code, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == 0, (tmp_path / 'errors.txt').read_text()


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_paths_are_there(page: Path):
    text = page.read_text()
    paths = sorted(set(PATH.findall(text)))
    missing = [path for path in paths if not list(ROOT.glob(path))]
    links = re.findall(r'\]\((?!https?:)([^)#]+)', text)
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_extra_that_is_named_is_there():
    setup = ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    texts = [page.read_text() for page in PAGES]
    for folder in ('mmext', 'tools'):
        texts += [path.read_text() for path in (ROOT / folder).rglob('*.py')]
    named = set(re.findall(r'mmext\[(\w+)\]', '\n'.join(texts)))
    assert 'onnx' in named
    assert named <= set(setup['options.extras_require'])


def test_every_extra_is_explained():
    setup = ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    text = (ROOT / 'docs' / 'install.md').read_text()
    extras = set(setup['options.extras_require'])
    assert extras == {name for name in extras if f'`{name}`' in text}


def _tool_of(words: list[str]) -> tuple[str, list[str]] | None:
    """Name and arguments of a tool, if the command is one."""
    words = words[words[:1] in (['python'], ['bash']) :]
    if words[:1] == ['mmext'] and words[1:]:
        return words[1], words[2:]
    match = re.fullmatch(r'tools/(\w+)\.(?:py|sh)', words[0] if words else '')
    return (match[1], words[1:]) if match else None


@pytest.mark.parametrize('code', SHELL)
def test_commands_parse(code: str):
    """Files are there, and the parser of the tool takes the arguments."""
    for command in code.replace('\\\n', ' ').splitlines():
        command = re.split(r' [|>&] ', command.replace('$(seq', 'seq'))[0]
        words = shlex.split(command, comments=True)
        for word in words:
            if word.startswith(('tools/', 'configs/', 'tests/')):
                assert (ROOT / word).exists(), f'{word} in: {command}'
        name, argv = _tool_of(words) or ('', [])
        if name in ('dist_train', 'dist_test'):
            name = name.removeprefix('dist_')
            argv = [word for word in argv if not word.isdigit()]
        if (ROOT / f'tools/{name}.py').is_file():
            load_tool(name).make_parser().parse_args(argv)
        else:
            assert not name or (ROOT / f'tools/{name}.sh').is_file(), command


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_options_in_the_text_are_there(page: Path):
    """`tools/train.py CONFIG --amp` in a line or in a row of a table."""
    for line in re.sub(r'```.*?```', '', page.read_text(), flags=re.S).split(
        '\n\n' if page.name != 'tools.md' else '\n'
    ):
        spans = re.findall(r'`([^`]+)`', line)
        for span in spans:
            name, argv = _tool_of(span.split()) or ('', [])
            if not (ROOT / f'tools/{name}.py').is_file():
                continue
            if page.name == 'tools.md':  # the row is about this tool
                argv = ' '.join(spans).split()
            known = load_tool(name).make_parser()._option_string_actions
            options = {word for word in argv if word.startswith('--')}
            assert options <= set(known), span


def test_every_page_is_in_the_site():
    site = yaml.safe_load((ROOT / 'mkdocs.yml').read_text())
    named = re.findall(r"'([\w/]+\.md)'", str(site['nav']))
    assert len(named) == len(set(named))
    pages = {page.name for page in ROOT.glob('docs/*.md')}
    assert pages == {name for name in named if (ROOT / 'docs' / name).exists()}


def test_model_zoo_has_the_published_figures():
    zoo = (ROOT / 'docs' / 'model_zoo.md').read_text()
    rows = dict(re.findall(r'^\| `(\w+)` \|.*?\| (.*?) \|', zoo, re.MULTILINE))
    published = {
        model['Name']: model['Results'][0]['Metrics']
        for path in ROOT.glob('configs/*/metafile.yml')
        for model in yaml.safe_load(path.read_text())['Models']
        if 'Weights' in model
    }
    assert len(published) == 10
    for name, metrics in published.items():
        ((metric, value),) = metrics.items()
        assert rows[name] == f'{metric} {value}'
