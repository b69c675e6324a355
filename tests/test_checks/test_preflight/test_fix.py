"""Changes of findings, put together."""

from pathlib import Path

import pytest
from helpers.preflight_plants import Plant, write_plant
from helpers.toy_ranks import load_tool
from mmengine.config import Config

from mmext.checks.findings import Finding, Severity
from mmext.checks.preflight.fix import (
    collect_changes,
    fix_config,
)
from mmext.checks.preflight.rules.registry import lint_config


def finding(rule: str, severity=Severity.ERROR, **options) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        message='m',
        remedy='r',
        options={key.replace('__', '.'): v for key, v in options.items()},
    )


def test_contradictions():
    changes = collect_changes(
        [
            finding('A001', a=1, b=1),
            finding('B001', a=2),
            finding('C001', b__c=1),
            finding('D001', a=1),
        ]
    )
    assert changes.options == {'a': 1, 'b': 1}
    assert [text.partition(':')[0] for text in changes.refused] == [
        'B001',
        'C001',
    ]


def test_a_bound_and_what_is_left(tmp_path):
    """Two rules that undo each other."""
    config = tmp_path / 'a.py'
    config.write_text('a = 0\n')

    def look(path):
        value = Config.fromfile(path).a
        return [finding('A001', a=value + 1)]

    fixed = fix_config(str(config), look(config), Path(''), look)
    assert fixed.rounds == 8
    assert fixed.left == ('a',)
    assert Config.fromfile(fixed.path).a == 8


def test_what_an_option_of_the_command_line_undoes(tmp_path):
    config = tmp_path / 'a.py'
    config.write_text('a = 0\n')
    results = [finding('A001', a=1)]
    fixed = fix_config(str(config), results, Path(''), lambda path: results)
    assert (fixed.rounds, fixed.left) == (1, ('a',))
    assert (
        fix_config(str(fixed.path), results, tmp_path / 'b.py', None) is None
    )
    assert not (tmp_path / 'b.py').exists()


def run_fix(text, base, folder):
    """Exit code of the tool with --fix, and what the new config sets."""
    config = write_plant(Plant('', 'error', text, base=base), folder)
    argv = [str(config), '--batches=normal', '--image-size', '64', '64']
    new = folder / 'new.py'
    code = load_tool('preflight').main(
        [*argv, '--no-labels', '--fix', f'{new}']
    )
    return code, Config.fromfile(new) if new.exists() else None


TWO_ROUNDS = """
metainfo = dict(CLASSES=('cat', 'dog'))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
test_dataloader = val_dataloader
"""


def test_the_second_fix_is_certain_after_the_first(tmp_path):
    config = write_plant(Plant('', 'error', TWO_ROUNDS), tmp_path)

    def look(path):
        return lint_config(Config.fromfile(path), file=path, environ={})

    # One fact is said once: the heads fit the classes that are meant.
    result = look(config)
    assert {item.rule for item in result} == {'HEAD006'}
    fixed = fix_config(str(config), result, Path(''), look)
    assert (fixed.rounds, fixed.left) == (2, ())
    assert look(fixed.path) == []
    assert Config.fromfile(fixed.path).model.bbox_head.num_classes == 2


CERTAIN = {
    'longer': (
        'train_cfg = dict(max_iters=320000)',
        lambda new: new.param_scheduler[0].end == 320000,
    ),
    'one class': (
        "metainfo = dict(classes=('cat'))\n"
        'train_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'val_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'test_dataloader = val_dataloader\n'
        'model = dict(bbox_head=dict(num_classes=1))\n',
        lambda new: new.val_dataloader.dataset.metainfo.classes == ('cat',),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CERTAIN)
def test_written_where_it_is_certain(name, tmp_path):
    text, is_right = CERTAIN[name]
    base = 'segmentor' if name == 'longer' else 'detector'
    code, new = run_fix(text, base, tmp_path)
    assert code == 0
    assert is_right(new)
