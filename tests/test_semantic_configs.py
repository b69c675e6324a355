"""Every config of a segmentor: everything in it builds, and it trains."""

from functools import cache
from pathlib import Path

import mmseg
import pytest
import torch
import torch.nn.functional as F
from helpers.device import assert_trained, take_step
from helpers.reduce_semantic_config import (
    IMAGE_SIZE,
    SIZE,
    make_batch,
    reduce_model,
    state_shapes,
)
from mmengine import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS, RUNNERS, DefaultScope
from torch.utils.data import DataLoader

from mmext.checks.config import check_misplaced_keys

FOLDER = Path(__file__).resolve().parents[1] / 'configs'
SHIPPED = {
    'deeplabv3/deeplabv3_r50_d8_4xb4_160k_ade20k': (
        'deeplabv3_r50-d8_4xb4-160k_ade20k-512x512'
    ),
    'deeplabv3plus/deeplabv3plus_r50_d8_4xb4_160k_ade20k': (
        'deeplabv3plus_r50-d8_4xb4-160k_ade20k-512x512'
    ),
    'pidnet/pidnet_l_2xb6_120k_cityscapes': (
        'pidnet-l_2xb6-120k_1024x1024-cityscapes'
    ),
    'pidnet/pidnet_m_2xb6_120k_cityscapes': (
        'pidnet-m_2xb6-120k_1024x1024-cityscapes'
    ),
    'pidnet/pidnet_s_2xb6_120k_cityscapes': (
        'pidnet-s_2xb6-120k_1024x1024-cityscapes'
    ),
    'pidnet/pidnet_s_camvid': None,
    'pidnet/pidnet_small_shapes': None,
    'pspnet/pspnet_r50_d8_4xb4_160k_ade20k': (
        'pspnet_r50-d8_4xb4-160k_ade20k-512x512'
    ),
    'segformer/segformer_mit_b0_8xb2_160k_ade20k': (
        'segformer_mit-b0_8xb2-160k_ade20k-512x512'
    ),
    'upernet/upernet_r50_4xb4_160k_ade20k': (
        'upernet_r50_4xb4-160k_ade20k-512x512'
    ),
}
# What these are unless a config says something else.
DEFAULTS = {
    'use_sigmoid': False,
    'loss_weight': 1.0,
    'denominator': 'numel',
    'size_divisor': None,
    'pretrained': None,
    'drop_last': False,
}
every = pytest.mark.parametrize('name', SHIPPED)
as_in_mmseg = pytest.mark.parametrize(
    ('name', 'theirs'), [item for item in SHIPPED.items() if item[1]]
)


@cache
def load(name: str) -> Config:
    """A config by its path; not to be edited."""
    return Config.fromfile(FOLDER / f'{name}.py')


def head_of(name: str) -> dict:
    return load(name).to_dict()['model']['decode_head']


def losses_of(head: dict) -> list[dict]:
    losses = head['loss_decode']
    return losses if isinstance(losses, list) else [losses]


def heads_of(name: str) -> list[dict]:
    model = load(name).to_dict()['model']
    return [model[key] for key in model if key.endswith('_head')]


def classes_of(name: str) -> tuple[str, ...]:
    dataset = load(name).val_dataloader.dataset
    given = dataset.get('metainfo')
    with DefaultScope.overwrite_default_scope('mmseg'):
        kind = DATASETS.get(dataset.type)
    return (given or kind.METAINFO)['classes']


def small_model(name: str) -> BaseModel:
    torch.manual_seed(0)
    cfg = reduce_model(load(name).to_dict()['model'])
    model = MODELS.build(ConfigDict(cfg))
    model.init_weights()
    return model


def small_batch(name: str) -> dict:
    head = head_of(name)
    return make_batch(head['num_classes'], head.get('ignore_index', 255))


def test_every_config_is_tested():
    names = {
        str(path.relative_to(FOLDER).with_suffix(''))
        for path in FOLDER.glob('[!_]*/*.py')
        if Config.fromfile(path).default_scope == 'mmseg'
    }
    # test_multi_task_configs.py and test_models/test_mae have those of theirs.
    names = {
        name for name in names if not name.startswith(('mae/', 'multi_task/'))
    }
    assert names == set(SHIPPED)


@every
def test_predicts_and_trains_a_step(name):
    """On a device that does not mix with the host, where there is one.

    No head falls back to losses at full resolution.
    """
    model = small_model(name).eval()
    for head in (model.decode_head, getattr(model, 'auxiliary_head', None)):
        if head is not None:
            assert type(head).__module__.startswith('mmext.')
            assert head._needs_full_resolution() == ''
    data = model.data_preprocessor(small_batch(name), False)
    with torch.no_grad():
        results = model(**data, mode='predict')
    for result in results:
        assert result.pred_sem_seg.data.shape == (1, *IMAGE_SIZE)
        assert result.pred_sem_seg.data.max() < len(classes_of(name))
    model.train()
    data = model.data_preprocessor(small_batch(name), True)
    padded = name != 'pidnet/pidnet_small_shapes'
    assert data['inputs'].shape[2:] == (SIZE if padded else IMAGE_SIZE)
    done = take_step(model, small_batch(name))
    assert_trained(done, most_reads=0, most_loss=100)
    names = {key.rpartition('.')[2] for key in done.losses}
    if name.startswith('pidnet'):
        parts = ('sem_p', 'sem_i', 'bd', 'sem_bd')
        expected = {f'loss_{part}' for part in parts}
    else:
        expected = {'loss_ce'}
    assert names == {*expected, 'acc_seg', 'loss'}
    # find_unused_parameters is off.
    assert not load(name).find_unused_parameters


@every
def test_classes_are_those_of_the_data(name):
    count = len(classes_of(name))
    for head in heads_of(name):
        assert head['num_classes'] == count
        for loss in losses_of(head):
            assert len(loss.get('class_weight') or range(count)) == count


@every
def test_one_value_is_ignored_everywhere(name):
    cfg = load(name)
    ignored = {head.get('ignore_index', 255) for head in heads_of(name)}
    ignored.add(cfg.model.data_preprocessor.seg_pad_val)
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        ignored.add(dataset.get('ignore_index', 255))
        for step in dataset.pipeline:
            if step.type in ('mmseg.RandomCrop', 'mmseg.GenerateEdge'):
                ignored.add(step.get('ignore_index', 255))
            assert 'pad_val' not in step
    for split in ('val', 'test'):
        ignored.add(cfg[f'{split}_evaluator'].get('ignore_index', 255))
    assert len(ignored) == 1
    for head in heads_of(name):
        for loss in losses_of(head):
            # From the head.
            assert not {'ignore_index', 'ignore_label'} & set(loss)


@every
def test_crops_are_padded_to_the_size_of_the_model(name):
    cfg = load(name)
    crops = [
        tuple(step.crop_size)
        for step in cfg.train_dataloader.dataset.pipeline
        if step.type == 'mmseg.RandomCrop'
    ]
    size = cfg.model.data_preprocessor.get('size')
    assert crops == ([tuple(size)] if size else [])


@every
def test_training_parts_build(name, tmp_path, clean_globals):
    """Visualizer, hooks, loops, evaluators, optimizer, schedulers."""
    cfg = load(name).to_dict()
    check_misplaced_keys(Config(cfg))
    cfg['model'] = reduce_model(cfg['model'])
    cfg.update(work_dir=str(tmp_path), experiment_name=tmp_path.name)
    loader = {'batch_size': 2, 'sampler': {'type': 'DefaultSampler'}}
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'] = loader
    runner = RUNNERS.build(Config(cfg))
    steps = DataLoader(range(8), batch_size=2)
    runner._train_dataloader = runner._val_dataloader = steps
    runner._test_dataloader = steps
    loop = runner.build_train_loop(cfg['train_cfg'])
    ends = [item['end'] for item in cfg['param_scheduler']]
    assert loop.max_iters == ends[-1]
    assert loop.max_iters % cfg['train_cfg']['val_interval'] == 0
    runner.build_val_loop(cfg['val_cfg'])
    runner.build_test_loop(cfg['test_cfg'])
    runner.optim_wrapper = runner.build_optim_wrapper(cfg['optim_wrapper'])
    schedulers = runner.build_param_scheduler(cfg['param_scheduler'])
    assert len(schedulers) == len(ends)
    assert {type(hook).__name__ for hook in runner.hooks} >= {
        'LabelRangeHook',
        'ClassCountCheckHook',
        'AtomicCheckpointHook',
        'GracefulStopHook',
        'SegVisualizationHook',
    }
    assert runner.auto_scale_lr['base_batch_size'] > 0


def bare(value):
    """A model's config as mmseg writes it."""
    if isinstance(value, dict):
        plain = {
            key: bare(item)
            for key, item in value.items()
            if key != '_scope_' and DEFAULTS.get(key, ...) != item
        }
        pretrained = plain.pop('pretrained', None)
        if pretrained:
            plain['backbone']['init_cfg'] = {
                'type': 'Pretrained',
                'checkpoint': pretrained,
            }
        return plain
    if isinstance(value, list | tuple):
        return [bare(item) for item in value]
    if isinstance(value, str):
        if value.startswith('https://'):
            # Which of its two servers has the file depends on the version.
            return value.rpartition('/')[2]
        for prefix in ('mmext.Checked', 'mmext.', 'mmseg.'):
            value = value.removeprefix(prefix)
    return value


def host_config(theirs: str) -> Config:
    # Not by mmengine.hub.get_config: where mmseg is installed as onedl's
    # distribution, that calls pip to install another one over it.
    folder = theirs.split('_')[0].split('-')[0]
    root = Path(mmseg.__file__).parent / '.mim' / 'configs'
    return Config.fromfile(root / folder / f'{theirs}.py')


@as_in_mmseg
def test_model_is_that_of_mmseg(name, theirs):
    """All that is said about the model, also where weights come from."""
    expected = bare(host_config(theirs).to_dict()['model'])
    actual = bare(load(name).to_dict()['model'])
    # Pictures of any size: mmseg's PIDNet fails where none is added.
    padded = actual['data_preprocessor'].pop('test_cfg', None)
    assert (padded is not None) == ('pidnet' in name)
    assert actual == expected


@as_in_mmseg
def test_training_is_that_of_mmseg(name, theirs):
    ours, host = load(name), host_config(theirs)
    assert ours.train_cfg.max_iters == host.train_cfg.max_iters
    assert ours.train_dataloader.batch_size == host.train_dataloader.batch_size
    for key in ('optim_wrapper', 'param_scheduler'):
        expected = bare(host.to_dict()[key])
        got = bare(ours.to_dict()[key])
        if isinstance(expected, dict):
            expected.pop('clip_grad', None)
            # Gives each parameter the same settings.
            assert got.pop('constructor') == 'MergedOptimWrapperConstructor'
        assert got == expected
    for split in ('train', 'val'):
        key = f'{split}_dataloader'
        pipelines = [
            [
                {k: v for k, v in step.items() if k != 'resize_type'}
                for step in bare(cfg.to_dict()[key]['dataset']['pipeline'])
            ]
            for cfg in (ours, host)
        ]
        for steps in pipelines:
            for step in steps:
                # ADE20KDataset says so, too, and need not be repeated.
                step.pop('reduce_zero_label', None)
        assert pipelines[0] == pipelines[1]


@as_in_mmseg
def test_published_weights_fit(name, theirs):
    """The same keys and shapes as the model of mmseg, at full size."""
    shapes = state_shapes(load(name).to_dict()['model'])
    host = dict(host_config(theirs).to_dict()['model'], _scope_='mmseg')
    assert shapes == state_shapes(host)


def test_first_loss_of_pidnet_is_that_of_the_published_weights():
    name = 'pidnet/pidnet_s_2xb6_120k_cityscapes'
    model, batch = small_model(name).train(), small_batch(name)
    data = model.data_preprocessor(batch, True)
    actual = model(**data, mode='loss')['decode.loss_sem_p']
    logits = model.decode_head(model.backbone(data['inputs']))[0]
    label = torch.cat(
        [sample.gt_sem_seg.data for sample in data['data_samples']]
    )
    resized = F.interpolate(
        logits, label.shape[1:], mode='bilinear', align_corners=True
    )
    weight = torch.tensor(head_of(name)['loss_decode'][0]['class_weight'])
    expected = F.cross_entropy(
        resized, label, weight, ignore_index=255, reduction='none'
    ).mean()
    torch.testing.assert_close(actual, 0.4 * expected)


def test_weights_of_camvid_are_those_of_its_masks(shared_path):
    """Median frequency, counted here in another way."""
    from PIL import Image

    folder = shared_path('data/camvid/trainannot')
    files = sorted(folder.glob('*.png'))
    assert len(files) == 367
    counts = torch.stack(
        [
            torch.bincount(
                torch.frombuffer(
                    bytearray(Image.open(file).tobytes()), dtype=torch.uint8
                ),
                minlength=12,
            )
            for file in files
        ]
    )
    assert counts.shape[1] == 12
    pixels = counts.sum(1, keepdim=True) * (counts > 0)
    frequency = (counts.sum(0) / pixels.sum(0))[:11]
    weight = frequency.sort().values[5] / frequency
    given = head_of('pidnet/pidnet_s_camvid')['loss_decode'][0]['class_weight']
    torch.testing.assert_close(
        torch.tensor(given), weight, rtol=0, atol=1e-4, check_dtype=False
    )
