"""What a new user sees first: the terminal reports of both checkers.

Five configs and three data sets. The width of a terminal breaks no line.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.label_data import write_pairs
from helpers.label_plants import all_plants
from helpers.label_sets import clean
from helpers.toy_ranks import load_tool
from PIL import Image

import mmext
import mmext.checks.preflight.run as preflight_run
from mmext.checks.labels.rules import RULES as LABELS
from mmext.checks.preflight.rules.registry import RULES as CONFIG

SMALL = ('--batches', 'normal', '--image-size', '64', '64', '--no-labels')
WIDTHS = (80, 160)
HEADING = re.compile(r'(note|warning|error) ([A-Z]+\d{3})\b')
COUNTS = re.compile(r'(\d+) errors?, (\d+) warnings?, (\d+) notes?')
# What the hosts say of themselves while they are imported.
NOISE = ('Could not import', 'pkg_resources', 'DeprecationWarning', 'OneDL')

LONELY = (
    'from mmseg.models import EncoderDecoder\n'
    'from mmseg.registry import MODELS\n'
    'from torch import nn\n'
    '@MODELS.register_module(force=True)\n'
    'class LonelyLayer(EncoderDecoder):\n'
    '    def __init__(self, **kwargs):\n'
    '        super().__init__(**kwargs)\n'
    '        self.lonely = nn.Linear(2, 2)\n'
)
# By name: text of the config, what the first line must name, and what the
# report must show.
CONFIGS = {
    'clean': ('', ['can be trained'], ['0 errors, 0 warnings']),
    'classes': (
        'model = dict(decode_head=dict(num_classes=6))',
        ['Do not train with', 'HEAD001', 'config.py:2'],
        [
            '     2 | model = dict(decode_head=dict(num_classes=6))\n',
            '       |                               ^^^^^^^^^^^\n',
        ],
    ),
    'flag': (
        'find_unused_parameters = True',
        ['can be trained', 'look at 1 warning first'],
        ['warning DDP005 config.py:2: ', '       | ^^^^^^^^^^^^^^^^^^^^^^\n'],
    ),
    'lonely': (
        "custom_imports = dict(imports=['lonely_layer', 'mmext.models', "
        "'mmext.datasets', 'mmext.engine'])\n"
        "model = dict(type='mmseg.LonelyLayer')",
        ['Do not train with', 'DDP001', 'the model'],
        [
            '    either: ',
            'freeze it in __init__',
            '(no cost in a step)',
            '    or: set find_unused_parameters=True',
            'cost: in each step a walk',
            '    fix: find_unused_parameters = True (python tools/',
        ],
    ),
    'argument': (
        'train_cfg = dict(max_iter=200)',
        ['Do not train with', 'ARG001', 'config.py:2', '--fix can mend'],
        [
            '       |                  ^^^^^^^^\n',
            '    fix: remove train_cfg.max_iter (',
            '    fix: train_cfg.max_iters = 200 (',
        ],
    ),
}


def check_structure(text: str, code: int) -> None:
    """The verdict is first, errors are last, and all of it can be read."""
    lines = text.splitlines()
    assert '\x1b' not in text
    assert '\u2026' not in text  # nothing is cut
    assert not any(noise in text for noise in NOISE)
    assert all(line == line.rstrip() for line in lines)
    (counts,) = COUNTS.findall(lines[-1])
    errors, warnings, notes = map(int, counts)
    assert code == int(errors > 0)
    assert lines[0].startswith('Do not train with ') is (errors > 0)
    ranks = ['note', 'warning', 'error']
    results = [match[1] for line in lines if (match := HEADING.match(line))]
    assert results == sorted(results, key=ranks.index)
    assert [results.count(rank) for rank in ranks] == [notes, warnings, errors]
    # Each says what to do.
    remedies = sum(
        line.startswith(('    remedy: ', '    either: ')) for line in lines
    )
    assert remedies == errors + warnings + notes
    # Relative to where the user is.
    assert str(Path.cwd()) not in text


def first_sentence(text: str) -> str:
    return ' '.join(re.split(r'\n\n|\n  ', text)[0].split())


def run_at(
    main: Callable, argv: Sequence[str], capsys, monkeypatch
) -> tuple[int, str]:
    """Exit code and output, which is the same for both widths."""
    runs = set()
    monkeypatch.delenv('FORCE_COLOR', raising=False)
    for width in WIDTHS:
        monkeypatch.setenv('COLUMNS', str(width))
        code = main(argv)
        runs.add((code, capsys.readouterr().out))
    (run,) = runs
    return run


@pytest.fixture
def once(monkeypatch):
    """A second preflight of a config gives the report of the first one."""
    reports = {}
    check_config = preflight_run.check_config

    def known(config, **options):
        if config not in reports:
            reports[config] = check_config(config, **options)
        return reports[config]

    monkeypatch.setattr(preflight_run, 'check_config', known)


@pytest.mark.parametrize(
    'name',
    [
        name
        if name == 'classes'
        else pytest.param(name, marks=pytest.mark.slow)
        for name in CONFIGS
    ],
)
def test_of_a_config(name, once, tmp_path, capsys, monkeypatch):
    text, verdict, shown = CONFIGS[name]
    base = str(mmext.config_path('pidnet/pidnet_small_shapes.py'))
    (tmp_path / 'lonely_layer.py').write_text(LONELY)
    (tmp_path / 'config.py').write_text(f'_base_ = {base!r}\n{text}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    main = load_tool('preflight').main
    code, out = run_at(main, ['config.py', *SMALL], capsys, monkeypatch)
    check_structure(out, code)
    sentence = first_sentence(out)
    assert 'config.py' in sentence
    assert all(part in sentence for part in verdict), sentence
    for part in shown:
        assert part in out, part


@pytest.mark.slow
@pytest.mark.parametrize('tool', ['preflight', 'validate_labels'])
def test_a_script_prints_nothing_else(tool, tmp_path, checkout):
    """In a process of its own, which imports the hosts."""
    base = str(mmext.config_path('pidnet/pidnet_small_shapes.py'))
    argv = ['config.py', *SMALL]
    if tool == 'validate_labels':
        data = clean('semantic', tmp_path / 'data')
        argv = data.argv()
    else:
        (tmp_path / 'config.py').write_text(f'_base_ = {base!r}\n')
    done = subprocess.run(
        [sys.executable, str(checkout / 'tools' / f'{tool}.py'), *argv],
        cwd=tmp_path,
        env={**os.environ, 'COLUMNS': '80'},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.stderr == ''
    check_structure(done.stdout, done.returncode)
    assert done.returncode == 0


def one_colour_mask(folder: Path) -> list[str]:
    data = write_pairs(folder / 'data')
    path = data / 'masks' / '3.png'
    Image.open(path).convert('RGB').save(path)
    return [
        *('--masks', 'data/masks', '--images', 'data/images'),
        *('--num-classes', '3'),
    ]


def planted(rule: str, kind: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        (plant,) = [
            item
            for item in all_plants()
            if (item.rule, item.kind) == (rule, kind)
        ][:1]
        data = clean(kind, folder / 'data')
        plant.spoil(data)
        return data.argv()

    return make


SETS = {
    'masks': (
        one_colour_mask,
        ['Do not train with data/masks', 'data/masks/3.png'],
        ['error SEG010 data/masks/3.png: '],
    ),
    'boxes': (
        planted('DET002', 'coco'),
        ['Do not train with', 'box without area (DET002)', '--fix DIR'],
        ['    - ', 'annotations['],
    ),
    'config': (
        planted('CFG001', 'semantic'),
        ['Do not train with', 'CFG001', 'config.py:'],
        [' | ', '^^^'],
    ),
}


@pytest.mark.parametrize('name', SETS)
def test_of_a_data_set(name, tmp_path, capsys, monkeypatch):
    make, verdict, shown = SETS[name]
    monkeypatch.chdir(tmp_path)
    argv = [*make(tmp_path), '--store', 'facts.sqlite', '--workers', '1']
    main = load_tool('validate_labels').main
    code, out = run_at(main, argv, capsys, monkeypatch)
    check_structure(out, code)
    sentence = first_sentence(out)
    assert all(part in sentence for part in verdict), sentence
    for part in shown:
        assert part in out, part
    assert re.search(r'^  train: \d+ samples, ', out, re.MULTILINE)


@pytest.mark.parametrize(
    ('tool', 'rules'), [('preflight', CONFIG), ('validate_labels', LABELS)]
)
def test_rules_in_a_terminal(tool, rules, capsys, monkeypatch):
    """A remedy, which may hold a command, is on one line."""
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setenv('NO_COLOR', '1')
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    assert load_tool(tool).main(['--list-rules']) == 0
    out = capsys.readouterr().out
    for rule in rules.values():
        assert f'{rule.id}: {rule.title}\n' in out
        assert f'    remedy: {rule.remedy}\n' in out
