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


def test_changes_of_all_findings():
    changes = collect_changes(
        [finding('A001', a=1), finding('B001', b__c=2), finding('C001')]
    )
    assert changes.options == {'a': 1, 'b.c': 2}
    assert changes.reasons == {'a': 'A001: m', 'b.c': 'B001: m'}
    assert changes.refused == ()


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
    assert (fixed.rounds, fixed.left, fixed.findings) == (2, (), ())
    assert Config.fromfile(fixed.path).model.bbox_head.num_classes == 2


@pytest.mark.slow
def test_until_nothing_changes(tmp_path):
    code, new = run_fix(TWO_ROUNDS, 'detector', tmp_path)
    assert code == 0
    assert new.model.bbox_head.num_classes == 2
    for split in ('train', 'val', 'test'):
        metainfo = new[f'{split}_dataloader'].dataset.metainfo
        assert metainfo == {'classes': ('cat', 'dog')}
    assert 'HEAD002' in (tmp_path / 'new.py').read_text()


# What --fix once wrote, or might write, and must not.
NOT_CERTAIN = {
    # Milestones in epochs are not iterations.
    'epochs': (
        'segmentor',
        "param_scheduler = [dict(type='MultiStepLR', milestones=[8, 11])]",
    ),
    # The model is right, and the data set has its own classes.
    'classes': ('detector', 'model = dict(bbox_head=dict(num_classes=6))'),
    # Both are said here: which one is right?
    'both': (
        'detector',
        "metainfo = dict(classes=('cat', 'dog'))\n"
        'train_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'val_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'test_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'model = dict(bbox_head=dict(num_classes=3))\n',
    ),
    # A class of one's own, not imported, beside one of nearly that name.
    'own metric': (
        'detector',
        "val_evaluator = dict(type='mmdet.CocoMetric2')",
    ),
    # `milestones` of a schedule that is not there any more.
    'left over': (
        'detector',
        "optim_wrapper = dict(optimizer=dict(type='AdamW'))",
    ),
    'text': (
        'detector',
        'train_dataloader = dict(dataset=dict(metainfo=dict(classes=('
        "'cat' 'dog'))))",
    ),
    'val_begin': ('detector', 'train_cfg = dict(val_begin=13)'),
    'end': (
        'detector',
        "param_scheduler = [dict(type='CosineAnnealingLR', T_max=300, "
        'begin=150, end=300)]',
    ),
    'pretrained': (
        'detector',
        'model = dict(backbone=dict(init_cfg=dict(_delete_=True, '
        "type='Pretrained', checkpoint='')))",
    ),
    'needless': ('detector', 'find_unused_parameters = True'),
    'unused key': ('detector', 'devices = 4\nmine = 3'),
    'interval': (
        'segmentor',
        'default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1))',
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', NOT_CERTAIN)
def test_nothing_is_written_without_certainty(name, tmp_path, capsys):
    base, text = NOT_CERTAIN[name]
    assert run_fix(text, base, tmp_path)[1] is None
    assert 'no config was written' in capsys.readouterr().out


CERTAIN = {
    'case': (
        "val_evaluator = dict(type='mmdet.COCOMetric')",
        lambda new: new.val_evaluator.type == 'mmdet.CocoMetric',
    ),
    'left over': (
        "optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-4, "
        'weight_decay=0.1))',
        lambda new: 'momentum' not in new.optim_wrapper.optimizer,
    ),
    'longer': (
        'train_cfg = dict(max_iters=320000)',
        lambda new: new.param_scheduler[0].end == 320000,
    ),
    'old names': (
        'train_dataloader = dict(samples_per_gpu=4, workers_per_gpu=1)',
        lambda new: new.train_dataloader.batch_size == 4,
    ),
    'one class': (
        "metainfo = dict(classes=('cat'))\n"
        'train_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'val_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        'test_dataloader = val_dataloader\n'
        'model = dict(bbox_head=dict(num_classes=1))\n',
        lambda new: new.val_dataloader.dataset.metainfo.classes == ('cat',),
    ),
    'evaluator': (
        "val_dataloader = dict(dataset=dict(ann_file='mine.json'))",
        lambda new: new.val_evaluator.ann_file == 'data/coco/mine.json',
    ),
    'checkpoints': (
        'default_hooks = dict(checkpoint=dict(max_keep_ckpt=1))',
        lambda new: new.default_hooks.checkpoint.max_keep_ckpts == 1,
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
