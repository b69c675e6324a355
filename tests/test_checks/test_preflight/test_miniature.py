"""The runner of a config builds its parts, trains in small, leaves no trace.

Each through the tool. The data of some are generated.
"""

import json
import sys
from multiprocessing import get_start_method
from pathlib import Path

import cv2
import pytest
from helpers.corpus_bases import write_base, write_data
from helpers.toy_ranks import load_tool
from mmengine.visualization import Visualizer
from PIL import Image

import mmext

SMALL = ('--batches', 'normal', '--image-size', '64', '64')
CLEAN = mmext.config_path('pidnet/pidnet_small_shapes.py')

# All in one config: a part that fails does not hide the next.
TOGETHER = {
    'default_hooks.logger.interval': (
        "default_hooks = dict(logger=dict(type='LoggerHook', interval=0))",
        'interval must be greater than 0',
    ),
    'custom_hooks[0].ema_type': (
        "custom_hooks = [dict(type='EMAHook', ema_type='NoAverage'),",
        'NoAverage is not in the',
    ),
    'custom_hooks[1].type': (
        "    dict(type='EarlyStoppingHook'),",
        "missing 1 required positional argument: 'monitor'",
    ),
    'custom_hooks[2].switch_pipeline[0].type': (
        "    dict(type='mmdet.PipelineSwitchHook', switch_epoch=1,"
        " switch_pipeline=[dict(type='Resizze')])]",
        'Resizze is not in the',
    ),
    'param_scheduler[0].eta_min': (
        "param_scheduler = [dict(type='CosineAnnealingLR', T_max=2,"
        ' eta_min=0.1, eta_min_ratio=0.1)]',
        'Either `eta_min` or `eta_min_ratio',
    ),
    'visualizer.vis_backends[0].type': (
        "visualizer = dict(vis_backends=[dict(type='WandbVisBackend')])",
        'WandbVisBackend needs the package wandb',
    ),
    'train_dataloader.collate_fn.type': (
        "train_dataloader = dict(collate_fn=dict(type='pseudo_colate'),",
        'pseudo_colate is not in the function registry',
    ),
    'train_dataloader.sampler': (
        "    sampler=dict(_delete_=True, type='mmdet.MultiDataSampler',"
        ' dataset_ratio=[1, 1]))',
        "has no attribute 'datasets'",
    ),
    'val_evaluator.metric': (
        "val_evaluator = dict(_delete_=True, type='mmdet.CocoMetric',"
        " metric='bboxx')",
        'but got bboxx',
    ),
    'train_cfg': (
        'train_cfg = dict(_delete_=True, by_epoch=True, max_epochs=2.5)',
        'max_epochs',
    ),
    'tta_model.module_cfg': (
        "tta_model = dict(type='mmseg.SegTTAModel', module_cfg=1)",
        'SegTTAModel takes no argument module_cfg',
    ),
    'tta_pipeline[0].transforms[0][0].type': (
        "tta_pipeline = [dict(type='mmcv.TestTimeAug',"
        " transforms=[[dict(type='Resizze')]])]",
        'Resizze is not in the',
    ),
}


SHAPES = mmext.config_path('co_dino/co_dino_r18_shapes.py')
# Fail only when the runner uses them: base, text, key, and whether it takes
# data to see that.
RUNNING = {
    'clip_grad': (
        SHAPES,
        'optim_wrapper = dict(clip_grad=dict(max_nrom=0.1))',
        'optim_wrapper.clip_grad.max_nrom',
        False,
    ),
    'val_interval': (
        SHAPES,
        'train_cfg = dict(val_interval=0)',
        'train_cfg.val_interval',
        False,
    ),
    'mIou': (
        CLEAN,
        "val_evaluator = dict(iou_metrics=['mIou'])\n"
        'default_hooks = dict(checkpoint=dict(save_best=None))',
        'val_evaluator.iou_metrics',
        False,
    ),
    'segm': (
        SHAPES,
        "val_evaluator = dict(metric=['bbox', 'segm'])",
        'val_evaluator.metric',
        True,
    ),
}


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Run the tool on a config that inherits a clean one."""
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    monkeypatch.chdir(tmp_path)

    def run(text: str, *argv: str, base: str = CLEAN):
        path = tmp_path / 'mine.py'
        inherits = f'_base_ = {str(base)!r}\n' if base else ''
        path.write_text(f'{inherits}{text}\n')
        out = tmp_path / 'report.json'
        code = load_tool('preflight').main(
            [str(path), *SMALL, '--json', str(out), *argv]
        )
        return code, json.loads(out.read_bytes())

    return run


@pytest.fixture(scope='module')
def shapes(tmp_path_factory) -> Path:
    """A small generated data set."""
    root = tmp_path_factory.mktemp('data') / 'shapes'
    argv = ['--out', str(root), '--num-train', '8', '--num-val', '4']
    assert load_tool('make_shapes_dataset').main(argv) == 0
    return root


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNNING)
def test_parts_that_fail_when_they_run(name, check, shapes):
    base, text, key, needs_data = RUNNING[name]
    argv = ['--batches', 'normal']
    if needs_data:
        argv += ['--cfg-options', f'data_root={shapes}']
    code, report = check(text, *argv, base=base)
    assert code == 1
    (finding,) = built(report, 'BUILD002').values()
    assert finding['key'] == key
    assert finding['line'] == 2
    assert ('img_dir/val' in finding['message']) == needs_data


RESIZED = """
val_dataloader = dict(batch_size=1, dataset=dict(pipeline=[
    dict(type='LoadImageFromFile', _scope_='mmseg'), {steps},
    dict(type='mmseg.PackSegInputs')]))
test_dataloader = val_dataloader
"""
RESIZE = "dict(type='mmseg.Resize', scale=(SIZE, SIZE))"
LABELS = "dict(type='mmseg.LoadAnnotations')"
UNET = """
model = dict(
    backbone=dict(_delete_=True, type='mmseg.UNet', base_channels=2),
    decode_head=dict(_delete_=True, type='mmseg.FCNHead', in_channels=2,
                     in_index=4, channels=2, num_classes=7),
    data_preprocessor=dict(test_cfg=TEST))
"""
# Fail in a validation, whatever the weights are: text, that of the remedy,
# part of the message.
VALIDATIONS = {
    'size': (
        UNET.replace('TEST', 'None')
        + RESIZED.format(steps=f'{RESIZE}, {LABELS}').replace('SIZE', '90'),
        UNET.replace('TEST', 'dict(size_divisor=16)')
        + RESIZED.format(steps=f'{RESIZE}, {LABELS}').replace('SIZE', '90'),
        'should be divisible by the whole downsample rate 16',
    ),
    'order': (
        RESIZED.format(steps=f'{LABELS}, {RESIZE}').replace('SIZE', '96'),
        RESIZED.format(steps=f'{RESIZE}, {LABELS}').replace('SIZE', '96'),
        'val_evaluator cannot take part in the validation: IndexError',
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', VALIDATIONS)
def test_certain_error_of_a_validation(name, check, shapes):
    wrong, right, message = VALIDATIONS[name]
    argv = ['--cfg-options', f'data_root={shapes}']
    code, report = check(wrong, *argv)
    (finding,) = built(report, 'BUILD002').values()
    assert message in finding['message']
    assert (code, finding['severity']) == (1, 2)
    code, report = check(right, *argv)
    assert (code, built(report, 'BUILD002')) == (0, {})
    assert any('a validation' in note for note in report['notes'])


MOODY = """
from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric

@METRICS.register_module(force=True)
class MoodyMetric(IoUMetric):
    used = 0

    def {method}(self, *args):
        MoodyMetric.used += 1
        if self.used in {fails}:
            raise ValueError('bad mood')
        return super().{method}(*args)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('method', 'fails', 'says'),
    [
        ('process', '(1,)', 'with other random weights it is gone'),
        ('compute_metrics', '(1, 2)', 'the metric got 2 of 4 samples'),
    ],
)
def test_error_that_a_training_may_not_meet(
    method, fails, says, check, shapes, tmp_path, monkeypatch
):
    """Because of the weights, which another run shows, or of few samples."""
    monkeypatch.setattr('mmext.checks.preflight.loaders._VALIDATED', 2)
    monkeypatch.syspath_prepend(tmp_path)
    name = f'moody_{method}'
    text = MOODY.format(method=method, fails=fails)
    (tmp_path / f'{name}.py').write_text(text)
    code, report = check(
        f"""
custom_imports = dict(imports=['mmext.models', 'mmext.datasets',
                               'mmext.engine', {name!r}])
val_evaluator = dict(type='MoodyMetric')
val_dataloader = dict(batch_size=1)
test_dataloader = val_dataloader
test_evaluator = val_evaluator
""",
        *['--cfg-options', f'data_root={shapes}'],
    )
    (finding,) = built(report, 'BUILD002').values()
    assert (code, finding['severity']) == (0, 1)
    assert says in finding['message']


def built(report: dict, rule: str = 'BUILD001') -> dict[str, dict]:
    """Findings of parts that cannot be built, or of another rule, by key."""
    return {
        finding['key']: finding
        for finding in report['findings']
        if finding['rule'] == rule
    }


def test_all_of_it_runs(check, shapes, monkeypatch):
    """On data that are here; nothing stays but the report."""
    threads, method = cv2.getNumThreads(), get_start_method(allow_none=True)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    text = (
        'train_dataloader = dict(batch_size=4)\n'
        "val_evaluator = dict(outfile_prefix='results/coco')\n"
        "default_hooks = dict(checkpoint=dict(out_dir='elsewhere'))\n"
        "custom_hooks = [dict(type='EMAHook')]"
    )
    argv = ['--batches', 'normal', '--no-labels', '--batches', 'normal,real']
    code, report = check(
        text, *argv, '--cfg-options', f'data_root={shapes}', base=SHAPES
    )
    assert (code, report['not_done']) == (0, [])
    assert (
        'the runner of the config, in small: two iterations, a validation, a '
        'checkpoint saved and loaded, a test'
    ) in report['notes']
    assert {path.name for path in Path().iterdir()} == {
        'mine.py',
        'report.json',
    }
    assert cv2.getNumThreads() == threads
    assert get_start_method(allow_none=True) == method


def test_parts_only(check):
    """``off`` builds them, and runs nothing."""
    text = 'train_cfg = dict(val_interval=0)'
    code, report = check(text, '--miniature', 'off', base=SHAPES)
    assert code == 0
    assert not any('in small' in note for note in report['notes'])


def test_what_takes_too_long_is_said(check, shapes):
    argv = ['--cfg-options', f'data_root={shapes}', '--miniature', '1e-3']
    code, report = check('', *argv, base=SHAPES)
    assert code == 0
    assert any('--miniature' in text for text in report['not_done'])


@pytest.mark.slow
def test_fewer_samples_of_a_batch_that_takes_too_long(
    check, shapes, monkeypatch
):
    monkeypatch.setattr(
        'mmext.checks.preflight.smoke_budget._pixels',
        lambda batch: 10**9 if len(batch['inputs']) == 4 else 1,
    )
    text = 'train_dataloader = dict(batch_size=4)'
    argv = ['--cfg-options', f'data_root={shapes}']
    code, report = check(text, *argv, base=SHAPES)
    assert (code, report['not_done']) == (0, [])


@pytest.mark.slow
def test_a_batch_that_takes_too_much_memory_is_said(
    check, shapes, monkeypatch
):
    monkeypatch.setattr('mmext.checks.preflight.smoke_budget._MAX_SAVED', 9)
    argv = ['--cfg-options', f'data_root={shapes}']
    code, report = check('', *argv, base=SHAPES)
    assert (code, len(report['not_done'])) == (0, 2)
    for text, split in zip(report['not_done'], ('train', 'val')):
        assert f'nothing was run with data of {split}_dataloader' in text
        assert 'GiB, and a smoke run takes' in text


@pytest.mark.slow
def test_further_batches_get_a_part_of_the_time(check, shapes, monkeypatch):
    monkeypatch.setattr('mmext.checks.preflight.smoke_budget._SHARE', 0)
    text = 'val_dataloader = dict(batch_size=1)'
    argv = ['--cfg-options', f'data_root={shapes}']
    code, report = check(text, *argv, base=SHAPES)
    assert code == 0
    (said,) = report['not_done']
    assert 'only a part was run with data of val_dataloader' in said


@pytest.mark.slow
def test_pictures_of_several_sizes_in_a_validation_batch(check, shapes):
    """The batch of a validation is collated from the smallest and largest."""
    path = next((shapes / 'img_dir' / 'val').iterdir())
    original = path.read_bytes()
    with Image.open(path) as image:
        image.resize((96, 160)).save(path)
    mask = shapes / 'ann_dir' / 'val' / f'{path.stem}.png'
    with Image.open(mask) as image:
        image.resize((96, 160), Image.NEAREST).save(mask)
    text = (
        'val_dataloader = dict(batch_size=2, dataset=dict(pipeline=['
        "dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),"
        "dict(type='PackSegInputs')]))\ntest_dataloader = val_dataloader"
    )
    code, report = check(text, '--cfg-options', f'data_root={shapes}')
    path.write_bytes(original)
    assert code == 1
    (finding,) = built(report, 'BUILD002').values()
    assert path.name in finding['message']
    assert 'batch_size=1' in finding['remedy']


@pytest.mark.slow
def test_the_narrowest_picture_is_among_those_that_are_run(check, tmp_path):
    """The maps of one in ten have fewer places than DINO has queries."""
    data = write_data(tmp_path / 'corpus')
    file = data / 'annotations' / 'val.json'
    content = json.loads(file.read_bytes())
    first = content['images'][0]
    plain = [{**first, 'id': 100 + number} for number in range(9)]
    # Its area is not the smallest that a data set may have.
    narrow = {'id': 7, 'file_name': 'n.png', 'width': 640, 'height': 40}
    Image.new('RGB', (640, 40)).save(data / 'img_dir' / 'val' / 'n.png')
    small = {'id': 8, 'file_name': 's.png', 'width': 48, 'height': 48}
    Image.new('RGB', (48, 48)).save(data / 'img_dir' / 'val' / 's.png')
    note = {**content['annotations'][0], 'image_id': 100}
    content |= {'images': [*plain, small, narrow], 'annotations': [note]}
    file.write_text(json.dumps(content))
    code, report = check('', base=str(write_base('dino', data, tmp_path)))
    assert code == 1
    (finding,) = built(report, 'BUILD002').values()
    assert 'index k out of range' in finding['message']
    assert 'n.png' in finding['message']
    assert 'number of positions' in finding['remedy']


def test_parts_that_cannot_be_built(check, monkeypatch):
    """Each is found with its line; nothing is left of those that can be."""
    monkeypatch.setitem(sys.modules, 'wandb', None)
    shared = dict(Visualizer._instance_dict)
    text = '\n'.join(line for line, _ in TOGETHER.values())
    text += "\ntest_evaluator = dict(output_dir='no/such')"
    code, report = check(text, '--no-labels')
    assert code == 1
    result = built(report)
    assert result.keys() == TOGETHER.keys()
    for line, (key, (_, says)) in enumerate(TOGETHER.items(), 2):
        assert says in result[key]['message'], key
        # A list that is written over several lines is one place.
        assert result[key]['line'] <= line, key
    assert Visualizer._instance_dict == shared
    assert {path.name for path in Path().iterdir()} == {
        'mine.py',
        'report.json',
    }


PLAIN = """
import torch
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS, TRANSFORMS
from torch import nn

@MODELS.register_module(force=True)
class PlainNet(BaseModel):
    def __init__(self, {arguments}):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, imgs, labels, mode='tensor'):
        scores = self.layer(imgs.mean((-2, -1)))
        return {{'loss': nn.functional.cross_entropy(scores, labels)}}

@TRANSFORMS.register_module(force=True)
class PackPlain:
    def __call__(self, results):
        number = results['number']
        if number == 7:
            raise RuntimeError('seven')
        return dict(imgs=torch.full((3, 8, 8), 1.0 * number), labels=1)

@DATASETS.register_module(force=True)
class PlainSet(BaseDataset):
    def load_data_list(self):
        with open(self.ann_file) as file:
            return [dict(number=int(word)) for word in file.read().split()]
"""
PLAIN_CONFIG = """
custom_imports = dict(imports=['NAME'])
model = dict(type='PlainNet')
train_dataloader = dict(
    batch_size=2, num_workers=0,
    dataset=dict(type='PlainSet', ann_file='numbers.txt',
                 pipeline=[dict(type='PackPlain')]),
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'))
train_cfg = dict(by_epoch=True, max_epochs=2)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
"""


@pytest.fixture
def plain(check, tmp_path, monkeypatch):
    """Run the tool on a model and a data set of no host."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(name: str, numbers: str = '', *argv: str, arguments: str = 'a=0'):
        text = PLAIN.format(arguments=arguments)
        (tmp_path / f'{name}.py').write_text(text)
        if numbers:
            (tmp_path / 'numbers.txt').write_text(numbers)
        return check(PLAIN_CONFIG.replace('NAME', name), *argv, base='')

    return run


@pytest.mark.slow
def test_model_of_no_host_gets_its_own_samples(plain):
    code, report = plain('plain_one', '1 2 3 4')
    assert code == 0
    assert report['batches'][0]['steps'] == 2
    assert any('by their own pipeline' in note for note in report['notes'])


def test_model_of_no_host_gets_what_its_forward_takes(plain):
    code, report = plain('plain_two')
    assert code == 0
    assert report['batches'][0]['steps'] == 2
    assert any(
        'by the signature of forward(imgs, labels)' in note
        for note in report['notes']
    )


def test_transform_that_fails_on_a_real_sample(plain):
    code, report = plain('plain_three', '7 2 3 4')
    assert code == 1
    (finding,) = built(report).values()
    assert finding['key'] == 'train_dataloader.dataset.pipeline[0]'
    assert 'RuntimeError: seven' in finding['message']
    assert 'plain_three.py' in finding['message']
    assert any('no batches were made' in text for text in report['not_done'])


@pytest.mark.slow
def test_model_that_lacks_an_argument(plain):
    code, report = plain('plain_four', '1 2', arguments='width')
    assert code == 1
    (finding,) = built(report).values()
    assert finding['remedy'] == "set 'width'"
    assert finding['key'].startswith('model')
