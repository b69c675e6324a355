"""The tool: exit codes, and what it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mmdet
import pytest
from helpers.lint_findings import lint
from helpers.toy_ranks import load_tool
from mmengine.config import Config

import mmext
from mmext.checks.findings import Severity
from mmext.datasets import ShapesSpec, write_shapes_dataset


@pytest.fixture
def main():
    return load_tool('preflight').main


def test_cannot_run(main, capsys):
    with pytest.raises(SystemExit) as error:
        main(['no/such.py'])
    assert error.value.code == 2
    assert 'config must be an existing file' in capsys.readouterr().err


@pytest.mark.slow
def test_standard_output_has_the_report_only(main, capfd):
    """Also with processes of its own, which print on their own account."""
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    argv = [str(config), '--batches', 'normal', '--image-size', '64', '64']
    assert main([*argv, '--no-labels', '--json', '-']) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)['batches']
    assert '0 errors' in printed.err


def of_mmdet(name: str) -> str:
    """A config that mmdet ships."""
    return str(Path(mmdet.__file__).parent / '.mim/configs' / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    [
        # Offsets of a level are given to a convolution of a smaller one.
        'mmdet::dyhead/atss_r50_fpn_dyhead_1x_coco.py',
        # One update of random weights under frozen norms, and all is NaN.
        'mmdet::hrnet/faster-rcnn_hrnetv2p-w18-1x_coco.py',
        # The first forward hangs branches of the head into the decoder.
        pytest.param(
            'mmdet::ddq/ddq-detr-4scale_r50_8xb2-12e_coco.py',
            marks=pytest.mark.exhaustive,
        ),
        # 19 classes; the head inherits num_things_classes=80, of no use to it.
        pytest.param(
            'mmseg::mask2former/'
            'mask2former_r50_8xb2-90k_cityscapes-512x1024.py',
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_configs_of_hosts_without_errors(name, main, tmp_path):
    report = tmp_path / 'report.json'
    argv = [name, '--batches', 'normal', '--no-labels']
    assert main([*argv, '--json', str(report)]) == 0
    findings = json.loads(report.read_bytes())['findings']
    rules = [finding['rule'] for finding in findings if finding['severity']]
    # torchvision may not be here, which has the weights.
    assert [rule for rule in rules if rule != 'CKPT006'] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ('text', 'misplaced'),
    [
        ('find_unused_parameters_eval = True', []),
        ('use_static_graph = False', []),
        (
            "runner = dict(type='EpochBasedRunner', max_epochs=3, "
            'find_unused_parameters=True)',
            ['runner.find_unused_parameters'],
        ),
        (
            'optimizer_config = dict(grad_clip=None, static_graph=True)',
            ['optimizer_config.static_graph'],
        ),
        (
            'runner = dict(gradient_as_bucket_view=True)\n'
            'model_wrapper_cfg = dict(\n'
            "    type='mmext.DistributedDataParallel', **runner)",
            [],
        ),
    ],
)
def test_settings_of_the_wrapper_elsewhere(text, misplaced, main, tmp_path):
    """Keys of one's own, and in the sections of MMCV 1.x."""
    config, report = tmp_path / 'runner.py', tmp_path / 'report.json'
    base = mmext.config_path('pidnet/pidnet_small_shapes.py')
    config.write_text(f'_base_ = {str(base)!r}\n{text}\n')
    argv = [str(config), '--batches', 'normal', '--miniature', 'off']
    code = main([*argv, '--no-labels', '--json', str(report)])
    findings = json.loads(report.read_bytes())['findings']
    errors = [f for f in findings if f['severity'] == Severity.ERROR]
    assert [f['rule'] for f in errors] == ['KEY003'] * len(misplaced)
    assert [f['key'] for f in errors] == misplaced
    assert code == bool(misplaced)


@pytest.mark.slow
def test_a_metric_without_annotation_file_takes_part(main, tmp_path):
    """As new_config writes it for VOC; what is made up has its objects."""
    config, report = tmp_path / 'voc.py', tmp_path / 'report.json'
    config.write_text(
        "_base_ = 'mmext::co_dino/co_dino_r18_shapes.py'\n"
        '_base_.val_evaluator = dict(\n'
        "    type='mmext.CocoMetric', _scope_='mmdet', metric='bbox')\n"
        '_base_.val_dataloader.dataset.pipeline[3].meta_keys += '
        "('instances',)\n"
    )
    argv = [str(config), '--batches', 'normal', '--image-size', '64', '64']
    assert main([*argv, '--no-labels', '--json', str(report)]) == 0
    findings = json.loads(report.read_bytes())['findings']
    assert 'BUILD002' not in [finding['rule'] for finding in findings]


@pytest.mark.slow
def test_an_empty_batch_alone_judges_no_parameter(main, tmp_path, monkeypatch):
    """The other batches of CrowdDet need a package that is not there."""
    monkeypatch.setitem(sys.modules, 'torchvision', None)
    config = 'mmdet::crowddet/crowddet-rcnn_r50_fpn_8xb2-30e_crowdhuman.py'
    argv = [config, '--batches', 'normal,empty', '--image-size', '64', '64']
    argv += ['--no-labels', '--miniature', 'off', '--json']
    assert main([*argv, str(tmp_path / 'report.json')]) == 1
    told = json.loads((tmp_path / 'report.json').read_bytes())
    rules = [f['rule'] for f in told['findings']]
    assert 'STEP001' in rules
    assert not any(rule.startswith('DDP') for rule in rules)
    assert told['verdicts'] is None


MASK2FORMER = """
_base_ = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py'
classes = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                        'cross'))
model = dict(
    panoptic_head=dict(num_things_classes=6,
                       loss_cls=dict(class_weight=[1.0] * 6 + [0.1])),
    panoptic_fusion_head=dict(num_things_classes=6))
train_dataloader = dict(dataset=dict(
    metainfo=classes, data_root='DATA', ann_file='annotations/train.json',
    data_prefix=dict(_delete_=True, img='img_dir/train/')))
val_dataloader = dict(dataset=dict(
    metainfo=classes, data_root='DATA', ann_file='annotations/val.json',
    data_prefix=dict(_delete_=True, img='img_dir/val/')))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file='DATA/annotations/val.json')
test_evaluator = val_evaluator
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_time_and_memory_of_a_large_model(tmp_path, checkout):
    """Mask2Former, whose pipeline brings all images to 1024 pixels."""
    data, config = tmp_path / 'data', tmp_path / 'mine.py'
    spec = ShapesSpec(image_size=(96, 96), min_objects=2)
    write_shapes_dataset(data, spec, num_train=16, num_val=4)
    config.write_text(MASK2FORMER.replace('DATA', str(data)))
    report = tmp_path / 'report.json'
    argv = [checkout / 'tools/preflight.py', config, '--json', report]
    argv += ['--store', tmp_path / 'facts.sqlite']
    tool = subprocess.Popen(
        [sys.executable, *argv],
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    _, status, used = os.wait4(tool.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert used.ru_utime + used.ru_stime < 90
    assert used.ru_maxrss < 4 << 20
    notes = json.loads(report.read_bytes())['notes']
    assert any('a validation' in note for note in notes)


def test_names_that_no_annotation_of_a_tracking_set_has():
    """QDTrack of MMDetection: MOT's data set knows 13, its files have one."""
    name = 'qdtrack_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test'
    cfg = Config.fromfile(of_mmdet(f'qdtrack/{name}-mot17halfval.py'))
    for names, number in (('pedestrian', 0), ('car', 2)):
        cfg.train_dataloader.dataset.metainfo.classes = (names,)
        assert len(lint(cfg, 'HEAD003')) == number


@pytest.mark.parametrize('tool', ['preflight', 'validate_labels'])
@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        (
            'a.py',
            'x = dict(\n',
            "a.py:1 cannot be loaded: SyntaxError: '(' was",
        ),
        ('a.py', '\nx = y\n', 'a.py:2 cannot be loaded: NameError: name'),
        ('a.py', "_base_ = 'b.py'\n", 'b.py:3 cannot be loaded: ZeroDivision'),
        (
            'a.py',
            "_base_ = 'c.py'\n",
            'a.py:1 cannot be loaded: c.py does not',
        ),
        ('a.py', "_base_ = ['d.py', 'd.py']\n", 'Duplicate key'),
        (
            'a.py',
            "custom_imports = dict(imports=['no_such_module'])\n",
            "ModuleNotFoundError: No module named 'no_such_module'; modules "
            'of custom_imports must be installed',
        ),
        ('a.json', '{"a": ', 'a.json cannot be loaded: JSONDecodeError'),
        ('a.yml', 'a: [', 'a.yml cannot be loaded: ParserError'),
        pytest.param(
            *('a.yml', f'a: {"[" * 99_999}', 'more than 100 levels deep'),
            id='deep YAML',
        ),
        pytest.param(
            *('a.json', f'{{"a": {"[" * 99_999}', 'a.json cannot be loaded: '),
            id='deep JSON',
        ),
        ('a.py', 'model = \udcff', 'a.py cannot be loaded: UnicodeDecode'),
    ],
)
def test_one_line_says_what_is_wrong_in_a_config(
    tool, name, text, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    content = text.encode('utf-8', 'surrogateescape')
    (tmp_path / name).write_bytes(content)
    (tmp_path / 'b.py').write_text('\n\nx = 1 / 0\n')
    (tmp_path / 'd.py').write_text('x = 1\n')
    with pytest.raises(SystemExit) as error:
        load_tool(tool).main([name, '--store', 'facts.sqlite'])
    assert error.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ''
    (line,) = printed.err.splitlines()
    assert message in line


def test_devices_that_are_not_here(main, capsys):
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    with pytest.raises(SystemExit) as error:
        main([str(config), '--device', 'nope'])
    assert error.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "device must be one that PyTorch can use here, got 'nope'" in line
