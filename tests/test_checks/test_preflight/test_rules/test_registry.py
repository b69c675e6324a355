"""The preflight's list of rules, and what looks for them in a config."""

from pathlib import Path

import mmdet
import mmseg
import pytest
from helpers.lint_findings import CLEAN, lint
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from mmext.checks.config.child import apply_options
from mmext.checks.findings import Severity

ROOT = Path(__file__).resolve().parents[4]
# Each base is in one of them.
OURS = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
HOSTS = [
    Path(host.__file__).parent / '.mim' / 'configs' for host in (mmdet, mmseg)
]
# Configs of the hosts that do not work -> rule and key that tell why.
BROKEN = {
    'bytetrack_yolox_x_8xb4-80e_crowdhuman-mot20train_test-mot20test': {
        ('TYPE001', 'test_evaluator.type'),
    },
    'bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot20train_test-mot20test': {
        ('TYPE001', 'test_evaluator.type'),
    },
    'faster-rcnn_r50_fpn_1x_voc0712-cocofmt': {
        ('ARG001', 'val_evaluator.type'),
        ('ARG001', 'test_evaluator.type'),
    },
    'fcos_swinb_fpn_8x4_sample1e-3_mstrain_v3det_2x': {
        ('ARG001', 'model.neck.force_grad_on_level'),
    },
    'cascade-rpn_r50-caffe_fpn_1x_coco': {
        ('ARG001', 'model.rpn_head.stages[0].sampling'),
        ('ARG001', 'model.rpn_head.stages[1].sampling'),
    },
    **{
        f'solov2-light_{name}_fpn_ms-3x_coco': {
            ('ARG001', 'train_cfg.by_epoch'),
        }
        for name in ('r18', 'r34', 'r50', 'r50-dcn')
    },
    'openimagesv6': {
        ('DATA003', f'{split}_dataloader') for split in ('val', 'test')
    },
    **{
        name: {
            ('DATA003', f'{split}_dataloader')
            for split in ('train', 'val', 'test')
        }
        for name in ('voc07', 'voc0712')
    },
}


def test_a_clean_config_has_no_findings():
    assert lint({}) == []


def test_the_worst_come_first():
    changes = {'trian_cfg': {}, 'model.backbone.dept': 3, 'unread': 1}
    findings = lint(changes)
    assert [finding.severity.name for finding in findings] == [
        'ERROR',
        'WARNING',
        'INFO',
    ]


@pytest.mark.slow
@pytest.mark.parametrize('path', OURS, ids=lambda path: path.stem)
def test_our_configs_are_clean(path):
    findings = lint(Config.fromfile(path))
    bad = [
        finding
        for finding in findings
        if finding.severity > Severity.INFO
        and finding.rule != 'CKPT006'
        # Weights that another config of ours trains are not there yet.
        and not (finding.rule == 'CKPT001' and 'work_dirs/' in finding.message)
    ]
    assert bad == []


def _loaded(paths):
    for path in paths:
        try:
            yield path, Config.fromfile(path)
        except (ImportError, FileNotFoundError):
            continue  # of a package that is not here, or broken as shipped


def _errors(cfg):
    """Errors, but for weights that are not on this machine."""
    return {
        (finding.rule, finding.key)
        for finding in lint(cfg)
        if finding.severity == Severity.ERROR and finding.rule != 'CKPT001'
    }


def _check_hosts(step):
    paths = [
        path
        for folder in HOSTS
        for path in sorted(folder.rglob('*.py'))
        if '_base_' not in path.parts
    ]
    chosen = [path for path in paths if path.stem in BROKEN]
    count = 0
    for path, cfg in _loaded([*paths[::step], *chosen]):
        count += 1
        expected = BROKEN.get(path.stem, set())
        assert _errors(cfg) == expected, path
    return count


@pytest.mark.slow
def test_configs_of_the_hosts_have_no_false_errors():
    """Each 40th, and all that do not work."""
    assert _check_hosts(40) >= 30


@pytest.mark.slow
@pytest.mark.exhaustive
def test_all_configs_of_the_hosts_have_no_false_errors():
    assert _check_hosts(1) >= 1400


def _locations(node, steps=()):
    """Keys of all values of the clean config."""
    items = ()
    if isinstance(node, dict):
        items = node.items()
    elif isinstance(node, list):
        items = enumerate(node)
    for key, value in items:
        yield '.'.join(map(str, (*steps, key)))
        yield from _locations(value, (*steps, key))


JUNK = [
    None,
    0,
    -1,
    1.5,
    True,
    '',
    'text',
    [],
    [1],
    ['a', {}],
    {},
    {'type': 3},
]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(_locations(CLEAN))), st.sampled_from(JUNK))
def test_takes_any_value_anywhere(key, value):
    for finding in lint(Config(apply_options(CLEAN, {key: value}))):
        assert finding.message
        assert finding.remedy
