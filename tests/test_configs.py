"""Every shipped config loads, both ways, and everything in it builds."""

import copy
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import mmdet.registry
import mmengine.registry
import mmseg.registry
import numpy as np
import pytest
import torch
import yaml
from helpers.device import assert_trained, predict, take_step
from helpers.reduce_config import reduce_model, settings_of, state_spec
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine import Config
from mmengine.dataset import Compose
from mmengine.registry import RUNNERS, Registry, init_default_scope
from mmengine.structures import InstanceData
from torch.utils.data import DataLoader

import mmext
from mmext import registry
from mmext.utils import register_all_modules

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / 'configs'
EVERY = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob('*.py'))
BASES = [name for name in EVERY if name.startswith('_base_/')]
SHIPPED = [name for name in EVERY if name not in BASES]
# Not components: functions and classes that one looks up by name itself.
FUNCTIONS = {'CAGrad', 'RoIAlign', 'nms', 'soft_nms'}
SIZE = (64, 80)

every_shipped = pytest.mark.parametrize('name', SHIPPED)
CO_DETR = ('co_dino/', 'co_deformable_detr/')
CO_DINO = [name for name in SHIPPED if name.startswith(CO_DETR)]
every_co_dino = pytest.mark.parametrize('name', CO_DINO)
# Each type, switch and setting of all of them at least once. The rest take a
# step in test_config_preflight.py.
TRIED = [
    'co_deformable_detr/co_deformable_detr_r18_shapes.py',
    'co_deformable_detr/co_deformable_detr_swin_t_8xb2_1x_coco.py',
    'co_dino/co_dino_4scale_r50_8xb2_1x_coco.py',
    'co_dino/co_dino_5scale_r50_8xb2_1x_lvis.py',
    'co_dino/co_dino_5scale_r50_instance_8xb2_1x_coco.py',
    'co_dino/co_dino_5scale_r50_lsj_8xb2_1x_coco.py',
    'co_dino/co_dino_5scale_swin_l_lsj_16xb1_16e_o365tolvis.py',
    'co_dino/co_dino_5scale_vit_l_16xb1_1x_coco.py',
    'co_dino/co_dino_5scale_vit_l_instance_lsj_16xb1_16e_lvis.py',
    'co_dino/co_dino_class_embed_5scale_r50_8xb2_1x_coco.py',
    'co_dino/co_dino_dinov2_vit_s14_frozen_bccd.py',
    'co_dino/co_dino_dinov3_vit_s16_frozen_bccd.py',
    'co_dino/co_dino_mae_vit_mini_frozen_shapes.py',
    'co_dino/co_dino_r18_shapes_instance.py',
    'co_dino/co_dino_r18_shapes_instance_refine.py',
]


@cache
def load(name: str) -> Config:
    """A config by its path; not to be edited."""
    return Config.fromfile(FOLDER / name)


def typed_dicts(value, location: str = 'cfg') -> Iterator[tuple[str, dict]]:
    """All dicts with a ``type``, each with its location."""
    if isinstance(value, dict):
        if 'type' in value:
            yield location, value
        for key, item in value.items():
            yield from typed_dicts(item, f'{location}.{key}')
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from typed_dicts(item, f'{location}[{i}]')


def outermost(value, location: str = 'cfg') -> Iterator[tuple[str, dict]]:
    """Dicts with a ``type`` that are in no other such dict."""
    if isinstance(value, dict) and 'type' in value:
        yield location, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from outermost(item, f'{location}.{key}')
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from outermost(item, f'{location}[{i}]')


@cache
def names_in(module, scope: str) -> set[str]:
    """Names that the registries of a package hold themselves."""
    names: set[str] = set()
    for value in vars(module).values():
        # Hosts import the root registries, their parents, too.
        if isinstance(value, Registry) and value.scope == scope:
            value.import_from_location()
            names |= set(value.module_dict)
    return names


@pytest.mark.parametrize('name', BASES)
def test_base_loads_alone(name):
    assert load(name)


def test_loads_through_the_package(tmp_path):
    """The same config, scopes included, so that both ways mean the same."""
    for name in SHIPPED:
        assert Path(mmext.config_path(name)).samefile(FOLDER / name)
    path = tmp_path / 'config.py'
    firsts = {name.split('/')[0]: name for name in SHIPPED}
    for name in firsts.values():
        path.write_text(f"_base_ = 'mmext::{name}'\n")
        assert Config.fromfile(path).to_dict() == load(name).to_dict()


@every_shipped
def test_is_short(name):
    """A longer one repeats what a base should hold."""
    assert (FOLDER / name).read_text().count('\n') < 40


@every_shipped
def test_says_where_types_come_from(name):
    cfg = load(name).to_dict()
    assert cfg['default_scope'] in ('mmdet', 'mmseg')
    bare = [at for at, node in outermost(cfg) if '_scope_' not in node]
    assert not bare, f'need _scope_: {bare}'
    register_all_modules(False)
    hosts = {
        'mmdet': names_in(mmdet.registry, 'mmdet'),
        'mmseg': names_in(mmseg.registry, 'mmseg'),
        'mmext': names_in(registry, 'mmext'),
    }
    root = names_in(mmengine.registry, 'mmengine') | FUNCTIONS
    for location, node in typed_dicts(cfg):
        scope, _, kind = node['type'].rpartition('.')
        # The inferencers of mmseg look for the name without a prefix.
        assert (scope, kind) != ('mmseg', 'LoadAnnotations'), location
        if scope:
            assert kind in hosts[scope], f'{location}: {scope} has no {kind}'
            continue
        if kind == 'LoadAnnotations' and node.get('_scope_') == 'mmseg':
            continue
        owners = [host for host in hosts if kind in hosts[host]]
        if node.get('_scope_') in owners:
            # mmseg's inferencers look for this bare name.
            assert kind == 'LoadAnnotations', location
            continue
        assert not owners, f'{location}: {kind} needs a prefix, of {owners}'
        assert kind in root, f'{location}: nobody has {kind}'


def metafiles() -> dict[str, dict]:
    """The metafiles that the index lists."""
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    return {
        name: yaml.safe_load((ROOT / name).read_text())
        for name in index['Import']
    }


def test_index_is_whole():
    """Each config in one metafile of its folder, each path there."""
    listed: list[str] = []
    names: list[str] = []
    for file, content in metafiles().items():
        collections = {item['Name'] for item in content['Collections']}
        for item in content['Collections']:
            assert (ROOT / item['README']).is_file()
        for model in content['Models']:
            assert model['In Collection'] in collections
            assert Path(model['Config']).parent == Path(file).parent
            assert Path(model['Config']).stem == model['Name']
            assert model.get('Weights', 'x.pth').endswith('.pth')
            assert ('Weights' in model) == ('Results' in model)
            listed.append(model['Config'])
            names.append(model['Name'])
    assert sorted(listed) == [f'configs/{name}' for name in SHIPPED]
    assert len(set(names)) == len(names)


@every_shipped
def test_folder_readme_names_it(name):
    readme = (FOLDER / name).parent / 'README.md'
    assert f'(./{Path(name).name})' in readme.read_text()


def test_readme_and_metafile_give_the_same_weights():
    for file, content in metafiles().items():
        text = (ROOT / file).with_name('README.md').read_text()
        rows = {
            row.split(']')[0].removeprefix('| ['): row
            for row in text.splitlines()
            if row.startswith('| [')
        }
        for model in content['Models']:
            if 'Weights' not in model:
                continue
            row = rows[model['Name']]
            assert f'({model["Weights"]})' in row
            (metric,) = model['Results'][0]['Metrics'].values()
            assert f'| {metric} |' in row
            length = {'Epochs', 'Iterations'} & set(model['Metadata'])
            assert f'| {model["Metadata"][length.pop()]}' in row
            cfg = load(model['Config'].removeprefix('configs/'))
            if 'mask_policy' in cfg.model:
                assert f'| {cfg.model.mask_policy} |' in row


@every_shipped
def test_pipelines_build(name, clean_globals):
    cfg = load(name).to_dict()
    init_default_scope(cfg['default_scope'])
    for split in ('train', 'val', 'test'):
        # A pre-training evaluates nothing.
        if name.startswith('mae/') and f'{split}_dataloader' not in cfg:
            continue
        dataset = cfg[f'{split}_dataloader']['dataset']
        while dataset is not None:
            # Generated in memory, without any.
            steps = dataset.get('pipeline', [])
            assert len(Compose(steps).transforms) == len(steps)
            dataset = dataset.get('dataset')


def tiny_annotations(folder: Path, cfg: dict) -> str:
    """A COCO file with one box of every class, for the evaluator."""
    dataset = cfg['val_dataloader']['dataset']
    count = cfg['model']['num_classes']
    names = (dataset.get('metainfo') or {}).get('classes', range(count))
    content = {
        'images': [
            {
                'id': 1,
                'height': 64,
                'width': 64,
                'file_name': 'a',
                'neg_category_ids': [],
                'not_exhaustive_category_ids': [],
            }
        ],
        'categories': [
            {'id': i, 'name': str(name), 'frequency': 'f'}
            for i, name in enumerate(names)
        ],
        'annotations': [],
    }
    path = folder / 'annotations.json'
    path.write_text(json.dumps(content))
    return str(path)


def runnable(name: str, folder: Path) -> Config:
    """The config with a reduced model and nothing read or downloaded."""
    cfg = load(name).to_dict()
    cfg['model'] = reduce_model(cfg['model'])
    cfg.update(work_dir=str(folder), load_from=None, launcher='none')
    cfg['experiment_name'] = folder.name
    loader = {'batch_size': 2, 'sampler': {'type': 'DefaultSampler'}}
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'] = loader
    for split in ('val', 'test'):
        if 'ann_file' in cfg[f'{split}_evaluator']:
            cfg[f'{split}_evaluator']['ann_file'] = tiny_annotations(
                folder, load(name).to_dict()
            )
    return Config(cfg)


def models_of(names: Sequence[str]) -> pytest.MarkDecorator:
    """A test for each config; of a model of the real size it is slow."""
    return pytest.mark.parametrize(
        'name',
        [
            name
            if 'shapes' in name
            else pytest.param(name, marks=pytest.mark.slow)
            for name in names
        ],
    )


@models_of(CO_DINO)
def test_training_parts_build(name, tmp_path, clean_globals):
    """Model, visualizer, hooks, loops, evaluators, optimizer, schedulers."""
    cfg = runnable(name, tmp_path)
    runner = RUNNERS.build(cfg)
    steps = DataLoader(range(8), batch_size=2)
    runner._train_dataloader = runner._val_dataloader = steps
    runner._test_dataloader = steps
    assert (
        runner.build_train_loop(cfg.train_cfg).max_epochs
        == (cfg.param_scheduler[-1]['end'])
    )
    runner.build_val_loop(cfg.val_cfg)
    runner.build_test_loop(cfg.test_cfg)
    runner.optim_wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
    schedulers = runner.build_param_scheduler(cfg.param_scheduler)
    assert len(schedulers) == len(cfg.param_scheduler)
    base = cfg.optim_wrapper.optimizer.lr
    rates = {
        group['initial_lr'] for group in runner.optim_wrapper.param_groups
    }
    whole = load(name)
    pretrained = whole.load_from or whole.model.backbone.get('init_cfg')
    settings = cfg.optim_wrapper.get('paramwise_cfg') or {}
    # A frozen backbone has no rate.
    expected = {base, base * 0.1} if pretrained and settings else {base}
    decay = settings.get('layer_decay_rate')
    if decay:
        # Two blocks, what is before them, and the rest.
        expected = {base * decay**power for power in range(4)}
    assert rates == expected
    assert runner.auto_scale_lr['base_batch_size'] > 0
    assert not cfg.get('find_unused_parameters')


def make_batch(num_classes: int) -> dict:
    """Two images, with two objects and one."""
    boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0], [20.0, 10.0, 70.0, 50.0]])
    labels = torch.tensor([0, num_classes - 1])
    samples = []
    for count in (2, 1):
        sample = DetDataSample(
            metainfo={
                'img_shape': SIZE,
                'ori_shape': SIZE,
                'scale_factor': (1.0, 1.0),
            }
        )
        sample.gt_instances = InstanceData(
            bboxes=boxes[:count],
            labels=labels[:count],
            masks=BitmapMasks(np.ones((count, *SIZE), np.uint8), *SIZE),
        )
        samples.append(sample)
    inputs = [torch.randint(0, 255, (3, *SIZE), dtype=torch.uint8)] * 2
    return {'inputs': inputs, 'data_samples': samples}


def test_every_setting_is_tried():
    left = {
        name: settings_of(load(name).to_dict()['model']) for name in CO_DINO
    }
    tried = set().union(*map(left.get, TRIED))
    assert not {key: rest for key in left if (rest := left[key] - tried)}


@models_of(TRIED)
def test_trains_a_step_and_detects(name):
    """On a device that does not mix with the host, where there is one."""
    cfg = reduce_model(load(name).to_dict()['model'])
    # Masks of a thousand objects take long.
    cfg['test_cfg']['query_head']['max_per_img'] = 20
    model = MMDET_MODELS.build(cfg)
    model.init_weights()
    batch = make_batch(model.num_classes)
    detects(model, batch)
    done = take_step(model, batch)
    # Heads that nobody initialised start in the thousands.
    assert_trained(done, most_reads=4, most_loss=500)
    counts = model.checkpointed_layers()
    transformer = load(name).model.query_head.transformer
    assert (counts['encoder'][0] > 0) == bool(transformer.encoder.with_cp)
    backbone = load(name).model.backbone
    checkpoints = backbone.get('with_cp', False)
    assert (counts['backbone'][0] > 0) == checkpoints


def detects(model, batch) -> None:
    """The same on the CPU and on that device."""
    with torch.no_grad():
        expected = model.eval().test_step(copy.deepcopy(batch))
    results, recorder = predict(model, batch)
    assert sum(recorder.reads.values()) <= 1, recorder.reads
    assert len(results) == len(expected) == 2
    for result, right in zip(results, expected):
        objects = result.pred_instances
        for key in ('bboxes', 'scores', 'labels'):
            assert torch.equal(objects[key], right.pred_instances[key]), key
        assert 0 < len(objects) <= 20
        assert objects.labels.max() < model.num_classes
        assert ('masks' in objects) == model.with_mask
        if model.with_mask:
            assert objects.masks.shape == (len(objects), *SIZE)
            assert torch.equal(objects.masks, right.pred_instances.masks)


@every_co_dino
def test_classes_are_those_of_the_data(name):
    cfg = load(name)
    dataset = cfg.val_dataloader.dataset
    given = (dataset.get('metainfo') or {}).get('classes')
    init_default_scope(cfg.default_scope)
    if given is None:
        kind = mmdet.registry.DATASETS.get(dataset.type)
        given = kind.METAINFO['classes']
    assert cfg.model.num_classes == len(given)


@every_co_dino
def test_canvas_is_that_of_the_pipelines(name):
    """One canvas for LSJ, in training, in testing and in the model."""
    cfg = load(name)
    augments = cfg.model.data_preprocessor.get('batch_augments') or []
    assert (cfg.model.mask_policy == 'canvas') == bool(augments)
    canvas = {tuple(step['size']) for step in augments}
    pads = set()
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        while dataset is not None:
            pads |= {
                tuple(step['size'])
                for step in dataset.get('pipeline', [])
                if step['type'] == 'mmdet.Pad'
            }
            dataset = dataset.get('dataset')
    assert pads == canvas


@pytest.mark.slow
@every_co_dino
def test_full_size_builds(name):
    """All tensors of the real model; none of them allocated."""
    spec = state_spec(load(name).to_dict()['model'])
    count = load(name).model.num_classes
    # Not every head has both.
    tensors = ('dn_generator.label_embedding', 'cls_branches.0')
    names = {f'query_head.{name}.weight' for name in tensors} & set(spec)
    assert names
    assert all(spec[name][0].startswith(f'({count}, ') for name in names)
