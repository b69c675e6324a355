"""What workers skip and ignore comes into the log, on all ranks, once."""

import errno
import fcntl
import json
import re
import tempfile
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers.loader_workers import shut_down_loaders
from helpers.toy_ranks import (
    load_segmentation,
    results_of_ranks,
    start_ranks,
)
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.registry import MODELS, RUNNERS
from torch import nn

from mmext.datasets.transforms import LabelError, ValidateLabels
from mmext.datasets.transforms import label_problem as label_journal
from mmext.engine import LabelReportHook
from mmext.models import CheckedCrossEntropyLoss

COUNT = 8


@pytest.fixture(autouse=True)
def _own_journals(monkeypatch, tmp_path_factory):
    # pytest makes its folder at the first use, not in the one below.
    tmp_path_factory.getbasetemp()
    # Not in tmp_path: the name of a socket in it, by which workers hand over
    # tensors, would be longer than the system allows.
    with tempfile.TemporaryDirectory(prefix='mmext_') as folder:
        monkeypatch.setattr(tempfile, 'tempdir', folder)
        yield
        shut_down_loaders()
        label_journal._own.clear()


class Load(BaseTransform):
    """A map whose sample says how many pixels are wrong."""

    def transform(self, results):
        label_map = np.zeros((4, 4), np.uint8)
        label_map[0, : results['bad']] = 7
        return results | {'gt_seg_map': label_map}


class Pack(BaseTransform):
    def transform(self, results):
        return {'inputs': torch.from_numpy(results['gt_seg_map']).float()}


class Data(BaseDataset):
    """Samples 1 and 4 are bad."""

    METAINFO = {'classes': ('a', 'b')}

    def __init__(self, check, **others):
        super().__init__(pipeline=[Load(), check, Pack()], **others)

    def load_data_list(self):
        bad = {1: 1, 4: 3}
        return [
            {'seg_map_path': f'{i}.png', 'bad': bad.get(i, 0)}
            for i in range(COUNT)
        ]


@MODELS.register_module(name='LabelReportToy', force=True)
class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs, mode='tensor'):
        out = self.layer(torch.stack(list(inputs)))
        return {'loss': out.mean()} if mode == 'loss' else list(out)


def config(tmp_path, check, num_workers, train_cfg, **changes):
    loader = {
        'batch_size': 2,
        'num_workers': num_workers,
        'persistent_workers': num_workers > 0,
        'sampler': {'type': 'DefaultSampler', 'shuffle': False},
        'collate_fn': {'type': 'pseudo_collate'},
    }
    return Config(
        {
            'model': {'type': 'LabelReportToy'},
            'work_dir': str(tmp_path / 'work'),
            'train_dataloader': {'dataset': Data(check), **loader},
            'train_cfg': train_cfg,
            'optim_wrapper': {'optimizer': {'type': 'SGD', 'lr': 0.1}},
            'custom_hooks': [{'type': 'mmext.LabelReportHook', 'interval': 3}],
            'default_hooks': {'checkpoint': None},
            'default_scope': 'mmengine',
            'experiment_name': tmp_path.name,
            **changes,
        }
    )


def train(tmp_path, *args, runner='mmext.PortableRunner', **changes):
    """The reports in the log, and the lines of the file."""
    cfg = config(tmp_path, *args, **changes)
    RUNNERS.get(runner).from_cfg(cfg).train()
    work_dir = tmp_path / 'work'
    log = next(work_dir.glob('*/*.log')).read_text()
    files = [*work_dir.glob('*/label_report.jsonl')]
    lines = files[0].read_text().splitlines() if files else []
    return log, [json.loads(line) for line in lines]


def reports(log):
    return re.findall(r'ValidateLabels, (\w+) data: (.*)', log)


EPOCHS = {'by_epoch': True, 'max_epochs': 2, 'val_interval': 10}


@pytest.mark.parametrize('runner', ['mmext.PortableRunner', 'Runner'])
@pytest.mark.parametrize('num_workers', [0, 2])
def test_ignored_pixels_by_epoch(tmp_path, clean_globals, num_workers, runner):
    """The number of classes comes from the data set, by the hook."""
    check = ValidateLabels(action='ignore_pixels')
    log, lines = train(tmp_path, check, num_workers, EPOCHS, runner=runner)
    first = 'ignored 4 pixel(s) in 2 sample(s)'
    assert reports(log) == [
        ('train', f'{first}; since the start: {first}'),
        (
            'train',
            f'{first}; since the start: ignored 8 pixel(s) in 4 sample(s)',
        ),
    ]
    assert re.search(r'  ignored 1x 4.png: gt_seg_map: 3 of 16 pixels', log)
    assert [(line['file'], line['pixels']) for line in lines] in (
        [('1.png', 1), ('4.png', 3)] * 2,
        [('4.png', 3), ('1.png', 1)] * 2,
        [('1.png', 1), ('4.png', 3), ('4.png', 3), ('1.png', 1)],
        [('4.png', 3), ('1.png', 1), ('1.png', 1), ('4.png', 3)],
    )
    assert [line['epoch'] for line in lines] == [0, 0, 1, 1]
    assert {(line['split'], line['action']) for line in lines} == {
        ('train', 'ignored')
    }
    assert 'values: 7 (3)' in next(
        line['text'] for line in lines if line['pixels'] == 3
    )


def test_a_file_system_without_locks(tmp_path, clean_globals, monkeypatch):
    """Of the folder for temporary files; data are loaded by processes."""

    def lock(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', lock)
    monkeypatch.setattr(fcntl, 'lockf', lock)
    check = ValidateLabels(action='ignore_pixels')
    log, lines = train(tmp_path, check, 2, EPOCHS)
    assert 'ignored 8 pixel(s) in 4 sample(s)' in reports(log)[-1][1]
    assert [line['file'] for line in lines].count('4.png') == 2


@pytest.mark.parametrize('runner', ['mmext.PortableRunner', 'Runner'])
def test_skipped_samples_by_iteration(tmp_path, clean_globals, runner):
    """MMEngine's loop starts the workers before any hook is called."""
    check = ValidateLabels(action='skip_sample')
    log, lines = train(
        tmp_path,
        check,
        2,
        {'by_epoch': False, 'max_iters': 8},
        runner=runner,
        train_dataloader={
            'dataset': Data(check),
            'batch_size': 2,
            'num_workers': 2,
            'sampler': {'type': 'InfiniteSampler', 'shuffle': False},
            'collate_fn': {'type': 'pseudo_collate'},
        },
    )
    results = reports(log)
    assert len(results) >= 2
    total = int(re.search(r'start: skipped (\d+) ', results[-1][1]).group(1))
    # Eight steps of two; four of these samples are bad, and workers load
    # ahead, and a bad sample may be drawn in place of one.
    assert total >= 4
    assert sum(line['times'] for line in lines) == total
    assert {line['file'] for line in lines} == {'1.png', '4.png'}


def test_validation_is_reported_apart(tmp_path, clean_globals):
    check = ValidateLabels(num_classes=2, action='warn')
    other = ValidateLabels(action='warn')
    log, lines = train(
        tmp_path,
        check,
        0,
        {'by_epoch': True, 'max_epochs': 1},
        val_cfg={},
        val_dataloader={
            'dataset': Data(other, test_mode=True),
            'batch_size': 4,
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'collate_fn': {'type': 'pseudo_collate'},
        },
        val_evaluator=[],
    )
    assert [split for split, _ in reports(log)] == ['train', 'val']
    assert 'left 2 sample(s) as they are' in reports(log)[1][1]
    assert [line['split'] for line in lines] == ['train'] * 2 + ['val'] * 2


def test_says_so_without_a_check(tmp_path, clean_globals):
    log, _ = train(tmp_path, Load(), 0, EPOCHS)
    assert 'no pipeline of the training has mmext.ValidateLabels' in log


def test_skipping_in_test_mode_is_an_error(tmp_path, clean_globals):
    check = ValidateLabels(action='skip_sample')
    hook, data = LabelReportHook(), Data(check, test_mode=True)
    loader = SimpleNamespace(dataset=data)
    hook.before_test(SimpleNamespace(test_dataloader=loader))
    with pytest.raises(LabelError, match=r'\[0, 1\].*\n(.*\n)*.*test mode'):
        data[1]


def test_test_data_are_reported(tmp_path, monkeypatch):
    """Once, and the list in the log is short."""
    monkeypatch.setattr('mmext.engine.hooks.label_report._MAX_FILES', 1)
    check = ValidateLabels(action='warn')
    hook, data, said = LabelReportHook(), Data(check), []
    runner = SimpleNamespace(
        test_dataloader=SimpleNamespace(dataset=data),
        logger=SimpleNamespace(warning=said.append),
        log_dir=str(tmp_path / 'new'),
        epoch=0,
        iter=0,
    )
    hook.before_test(runner)
    for index in range(COUNT):
        data[index]
    hook.after_test_epoch(runner)
    hook.after_test_epoch(runner)
    (text,) = said
    assert text.startswith('ValidateLabels, test data: left 2 sample(s)')
    assert text.count('.png') == 1
    assert (tmp_path / 'new' / 'label_report.jsonl').is_file()


def test_rejects():
    with pytest.raises(ValueError, match='interval must be at least 1, got 0'):
        LabelReportHook(interval=0)


@pytest.mark.xdist_group('processes')
def test_ranks_are_summed_up(tmp_path):
    """Each has a journal of its own; rank 0 reports for both."""

    def work(rank):
        data = Data(ValidateLabels(action='ignore_pixels'))
        hook, said = LabelReportHook(), []
        loader = SimpleNamespace(dataset=data)
        runner = SimpleNamespace(
            train_dataloader=loader,
            val_loop=None,
            logger=SimpleNamespace(warning=said.append),
            log_dir=str(tmp_path / 'log'),
            epoch=0,
            iter=3,
        )
        hook.before_train(runner)
        data[1 if rank else 4]
        hook.after_train_epoch(runner)
        return said

    first, second = results_of_ranks(work, tmp_path)
    (said,) = first['value']
    assert second == {'value': []}
    assert 'ignored 4 pixel(s) in 2 sample(s); since the start' in said
    assert '1.png' in said
    assert '4.png' in said
    for name, file in (('', '4.png'), ('_rank1', '1.png')):
        path = tmp_path / 'log' / f'label_report{name}.jsonl'
        (line,) = path.read_text().splitlines()
        assert json.loads(line)['file'] == file


TRAINING = """
default_scope = 'mmseg'
runner_type = 'mmext.PortableRunner'
train_dataloader = dict(
    batch_size=2,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root={root!r},
        img_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='masks'),
        metainfo=dict(classes=('road', 'car', 'sky')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
    ),
)
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
model = dict(type='mmengine.PixelClassifier')
custom_hooks = [dict(type='mmext.LabelReportHook')]
"""


@MODELS.register_module(force=True)
class PixelClassifier(BaseModel):
    """Three classes by the colour of the pixel, with a checked loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)
        self.loss = CheckedCrossEntropyLoss()

    def forward(self, inputs, data_samples=None, mode='tensor'):
        label = torch.cat([sample.gt_sem_seg.data for sample in data_samples])
        scores = self.layer(torch.stack(inputs).float())
        return {'loss': self.loss(scores, label, ignore_index=255)}


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize('world', [1, 2])
def test_the_error_of_a_loss_names_the_file(tmp_path, monkeypatch, world):
    """Where no ValidateLabels has looked at the labels before."""
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)
    load_segmentation()
    for folder in ('images', 'masks'):
        (tmp_path / folder).mkdir()
        for index in range(4):
            file = tmp_path / folder / f'{index}.png'
            shape = (6, 8, 3) if folder == 'images' else (6, 8)
            image = np.zeros(shape, np.uint8)
            if folder == 'masks' and index == 3:
                image[2, 5] = 7
            assert cv2.imwrite(str(file), image)
    config = tmp_path / 'config.py'
    config.write_text(TRAINING.format(root=str(tmp_path)))
    argv = [config, '--device', 'cpu', '--work-dir', tmp_path / 'w']
    ranks = start_ranks(argv, world, tmp_path / 'out')
    assert ranks.wait() == [1] * world
    image, mask = (tmp_path / f'{name}/3.png' for name in ('images', 'masks'))
    # Of two processes the second has the odd images.
    output = ranks.output(world - 1)
    assert f'{image}, mask {mask}: 1 pixels, first 7' in output
    assert 'at (y=2, x=5)' in output
    step = 'iteration 1, rank 1' if world == 2 else 'iteration 2, rank 0'
    assert f'[{step}]' in output
    if world == 2:
        assert 'rank 1: LabelRangeError: ' in ranks.output(0)
        assert 'Traceback' not in ranks.output(0)
