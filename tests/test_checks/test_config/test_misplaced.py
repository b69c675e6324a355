"""Settings where nothing reads them, against what the runners do with them."""

import copy
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import toy_training as toy
from mmengine._strategy import DDPStrategy
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mmext.apis.runs import build_runner, prepare_config
from mmext.checks.config.misplaced import (
    RIGHT_LOCATIONS,
    check_misplaced_keys,
    find_misplaced_keys,
    merge,
)
from mmext.engine import PortableRunner
from mmext.engine.distributed import model_wrapper_config

ROOT = Path(__file__).resolve().parents[3]
FLAG = 'find_unused_parameters'
DDP = 'MMDistributedDataParallel'


def recipe(**changes):
    """A small CO-DINO with the lines that go round in public threads."""
    cfg = Config.fromfile(ROOT / 'configs/co_dino/co_dino_r18_shapes.py')
    cfg.merge_from_dict(
        {
            'model': {'train_cfg': {FLAG: True, 'with_cp': False}},
            **changes,
        }
    )
    return cfg


def test_the_lines_of_the_message_work():
    """What is printed, put into a config that inherits it."""
    cfg = recipe(static_graph=True, optim_wrapper={'broadcast_buffers': True})
    with pytest.raises(ValueError, match='must be where something') as info:
        check_misplaced_keys(cfg)
    shown = str(info.value).splitlines()
    flag_line = shown.index(f'  model.train_cfg.{FLAG} = True')
    assert shown[flag_line + 1] == (
        '    nothing reads it in model.train_cfg; it is read at the top '
        'level of the config'
    )
    locations = [item.location for item in find_misplaced_keys(cfg)]
    assert shown[-1].endswith(f'own_keys = {locations!r}')
    for location in locations:
        *way, key = location.split('.')
        part = cfg
        for step in way:
            part = part[step]
        part.pop(key)
    text = str(info.value).split('set:\n')[1].split('\nWhere')[0]
    lines = '\n'.join(line.strip() for line in text.splitlines())
    cfg.merge_from_dict(Config.fromstring(lines, '.py').to_dict())
    check_misplaced_keys(cfg)
    assert cfg[FLAG] is True
    assert cfg.model_wrapper_cfg.static_graph is True
    assert cfg.model_wrapper_cfg.broadcast_buffers is True


@pytest.mark.parametrize('kind', [dict, ConfigDict, Config])
def test_switch(kind):
    cfg = {'model': {'train_cfg': {FLAG: True}}}
    check_misplaced_keys(kind({**cfg, 'check_misplaced_keys': False}))
    with pytest.raises(ValueError, match=f'model.train_cfg.{FLAG} = True'):
        check_misplaced_keys(kind({**cfg, 'check_misplaced_keys': True}))
    with pytest.raises(TypeError, match='check_misplaced_keys must be True'):
        check_misplaced_keys(kind({**cfg, 'check_misplaced_keys': None}))


class Recorder(DistributedDataParallel):
    """Stands for MMEngine's wrapper and tells what it was given."""

    def __init__(self, module, **kwargs):
        nn.Module.__init__(self)
        self.given = kwargs


@pytest.fixture
def wrap(monkeypatch):
    """What MMEngine's own code gives to the wrapper, for a config."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setitem(MODEL_WRAPPERS._module_dict, DDP, Recorder)
    monkeypatch.setattr(
        'mmengine.runner.runner.MMDistributedDataParallel', Recorder
    )

    def run(cfg):
        cfg, model = Config(cfg), nn.Linear(1, 1)
        if cfg.runner_type == 'Runner':
            runner = SimpleNamespace(cfg=cfg, distributed=True)
            wrapper_cfg = cfg.get('model_wrapper_cfg')
            return Runner.wrap_model(runner, wrapper_cfg, model).given
        strategy = SimpleNamespace(
            model_wrapper=(cfg.get('strategy') or {}).get('model_wrapper'),
            convert_model=lambda model: model,
        )
        return DDPStrategy._wrap_model(strategy, model).given

    return run


def combinations(runner):
    """Configs with the flag in both locations that a runner might read."""
    for top, own in product((None, False, True), (None, {}, False, True)):
        cfg = {'runner_type': runner}
        wrapper = {FLAG: own} if isinstance(own, bool) else own
        if wrapper is not None and runner == 'FlexibleRunner':
            cfg['strategy'] = {
                'type': 'DDPStrategy',
                'model_wrapper': {'type': DDP, **wrapper},
            }
        elif wrapper is not None:
            cfg['model_wrapper_cfg'] = wrapper
        if top is not None:
            cfg[FLAG] = top
        yield cfg


@pytest.mark.parametrize('runner', ['Runner', 'FlexibleRunner'])
def test_matches_what_mmengine_does_with_the_flag(runner, wrap):
    """Reported where the top level is not what the wrapper gets."""
    reported = 0
    for cfg in combinations(runner):
        effective = wrap(cfg).get(FLAG, False)
        misplaced = find_misplaced_keys(cfg)
        assert bool(misplaced) == (cfg.get(FLAG, effective) != effective), cfg
        if misplaced:
            reported += 1
            merge(cfg, misplaced[0].fix)
            assert wrap(cfg)[FLAG] is True
            assert find_misplaced_keys(cfg) == []
    assert reported == (4 if runner == 'FlexibleRunner' else 3)


def test_matches_what_our_runner_does_with_the_flag():
    for cfg in combinations('mmext.PortableRunner'):
        own, top = cfg.get('model_wrapper_cfg'), cfg.get(FLAG)
        device = torch.device('cpu')
        misplaced = find_misplaced_keys(cfg)
        if misplaced:
            with pytest.raises(ValueError, match='must be the same'):
                model_wrapper_config(own, device, top)
            merge(cfg, misplaced[0].fix)
            own, top = cfg['model_wrapper_cfg'], cfg[FLAG]
            assert find_misplaced_keys(cfg) == []
            assert model_wrapper_config(own, device, top)[FLAG] is True
        elif top is not None:
            assert model_wrapper_config(own, device, top)[FLAG] is top


@pytest.mark.parametrize('runner', ['Runner', 'FlexibleRunner'])
@pytest.mark.parametrize('key', list(RIGHT_LOCATIONS)[:-1])
def test_fixes_reach_the_wrapper(runner, key, wrap):
    cfg = {'runner_type': runner, 'model': {'train_cfg': {key: True}}}
    assert wrap(cfg).get(key, False) is False
    (misplaced,) = find_misplaced_keys(cfg)
    merge(cfg, misplaced.fix)
    given = wrap(cfg)
    assert given[key] is True
    assert given['broadcast_buffers'] is (key == 'broadcast_buffers')


def test_a_config_may_serve_several_runners(wrap):
    settings = {'type': DDP, 'broadcast_buffers': False, FLAG: True}
    cfg = {
        'strategy': {'type': 'DDPStrategy', 'model_wrapper': settings},
        'model_wrapper_cfg': {**settings, 'static_graph': True},
        FLAG: True,
    }
    for runner in ('Runner', 'mmext.PortableRunner'):
        cfg['runner_type'] = runner
        assert find_misplaced_keys(cfg) == []
    settings['static_graph'] = True
    assert find_misplaced_keys(cfg) == []
    del cfg['model_wrapper_cfg']['static_graph']
    (misplaced,) = find_misplaced_keys(cfg)
    assert misplaced.location == 'strategy.model_wrapper.static_graph'
    assert misplaced.reason == 'PortableRunner reads no strategy'
    assert misplaced.remedy == 'model_wrapper_cfg = dict(static_graph=True)'


def test_another_runner_may_be_named():
    cfg = {FLAG: True, 'runner_type': 'mmext.PortableRunner'}
    assert find_misplaced_keys(cfg) == []
    assert len(find_misplaced_keys(cfg, 'FlexibleRunner')) == 1
    cfg = {FLAG: True, 'model_wrapper_cfg': {'type': DDP}}
    assert len(find_misplaced_keys(cfg, Runner)) == 1
    assert find_misplaced_keys(cfg, PortableRunner) == []


def wrong_toy(**changes):
    return toy.config(
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.1}, FLAG: True},
        **changes,
    )


def test_a_run_stops_when_its_config_is_read(tmp_path):
    path = toy.write(tmp_path / 'a.py', wrong_toy())
    with pytest.raises(ValueError, match=f'optim_wrapper.{FLAG}'):
        prepare_config(path, splits=())
    off = {'check_misplaced_keys': False}
    assert prepare_config(path, splits=(), cfg_options=off).filename == path


def test_the_runner_stops_before_the_model_is_built(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        PortableRunner, 'build_model', lambda *args: built.append(args)
    )
    cfg = Config(wrong_toy(work_dir=str(tmp_path)))
    with pytest.raises(ValueError, match=f'optim_wrapper.{FLAG}'):
        build_runner(cfg)
    assert built == []


FSDP = 'MMFullyShardedDataParallel'


@pytest.mark.parametrize(
    ('top', 'key', 'remedy'),
    [
        ({'model_wrapper_cfg': {'type': FSDP}}, FLAG, 'remove it'),
        ({'strategy': {'type': 'FSDPStrategy'}}, FLAG, 'remove it'),
        (
            {'strategy': {'type': 'DDPStrategy', 'model_wrapper': {1: 2}}},
            'static_graph',
            "strategy = dict(type='DDPStrategy', "
            'model_wrapper=dict(static_graph=True))',
        ),
    ],
)
def test_lines_for_the_wrapper(top, key, remedy):
    cfg = {**top, 'model': {'train_cfg': {key: True}}}
    before = copy.deepcopy(cfg)
    (misplaced,) = find_misplaced_keys(cfg)
    assert misplaced.remedy == remedy
    assert cfg == before


KEYS = list(RIGHT_LOCATIONS)
SGD = {'type': 'SGD', 'lr': 0.1}


class Detector(nn.Module):
    """Hands its parts on, and its settings to its heads."""

    def __init__(self, backbone, head=None, train_cfg=None, test_cfg=None):
        super().__init__()


class Checkpointing(nn.Module):
    def __init__(self, with_cp=False):
        super().__init__()


class Bare(nn.Module):
    def __init__(self, depth=1):
        super().__init__()


class Free(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.settings = kwargs


def config(**changes):
    cfg = {
        'default_scope': 'mmdet',
        'model': {
            'type': Detector,
            'backbone': {'type': Checkpointing},
            'head': {'type': Bare},
        },
        'optim_wrapper': {'type': 'OptimWrapper', 'optimizer': dict(SGD)},
        'train_cfg': {'by_epoch': True, 'max_epochs': 1},
    }
    merge(cfg, changes)
    return cfg


def put(cfg, path, key, value):
    """Set a key in a copy; the dicts on the way are made."""
    cfg = copy.deepcopy(cfg)
    part = cfg
    for step, after in zip(path, (*path[1:], '')):
        empty = [{}] if isinstance(after, int) else {}
        if isinstance(step, int):
            part = part[step]
        else:
            part = part.setdefault(step, empty)
    part[key] = value
    return cfg


def find(cfg, text=''):
    if text:
        cfg = Config(cfg, cfg_text=text)
    return find_misplaced_keys(cfg)


def at(name):
    return tuple(
        int(step) if step.isdigit() else step for step in name.split('.')
    )


PLACES = [
    'model.train_cfg.rcnn.0.sampler',
    'model.detector.decode_head.0.test_cfg.x',
    'train_cfg',
    'optim_wrapper.optimizer',
    'optim_wrapper.paramwise_cfg',
    'param_scheduler.0',
    'train_dataloader.sampler',
    'custom_hooks.0',
    'env_cfg.mp_cfg',
]


@pytest.mark.parametrize('name', PLACES)
@pytest.mark.parametrize('key', KEYS)
def test_reports_it_and_its_fix_is_right(name, key):
    cfg = config(runner_type='mmext.PortableRunner')
    misplaced = put(cfg, at(name), key, True)
    (result,) = find(misplaced)
    assert result.location == f'{name.replace(".0", "[0]")}.{key}'
    assert (result.value, result.read_at) == (True, RIGHT_LOCATIONS[key])
    merge(cfg, result.fix)
    assert find(cfg) == []
    if key == 'with_cp':
        assert result.remedy == 'remove it'
    else:
        wrapper = cfg.get('model_wrapper_cfg'), torch.device('cpu')
        assert model_wrapper_config(*wrapper, cfg.get(FLAG))[key] is True


TYPED = [
    ('model', Detector),
    ('model.head', 'mmdet.ChannelMapper'),
    ('optim_wrapper', 'AmpOptimWrapper'),
    ('train_dataloader.sampler', 'DefaultSampler'),
    ('default_hooks.timer', 'IterTimerHook'),
]


@pytest.mark.parametrize(('name', 'kind'), TYPED)
@pytest.mark.parametrize('key', KEYS)
def test_reports_what_a_class_does_not_take(name, kind, key):
    cfg = put(config(), at(name), 'type', kind)
    (misplaced,) = find(put(cfg, at(name), key, 4))
    assert 'takes no such argument' in misplaced.reason


@pytest.mark.parametrize(
    ('name', 'kind', 'key'),
    [
        ('model', Free, 'with_cp'),
        ('model.head', Checkpointing, 'with_cp'),
        ('model.backbone', 'NobodyHasIt', 'with_cp'),
        ('model.backbone', 'mmdet.ResNeXt', 'with_cp'),
        ('model.train_cfg', 'NobodyHasIt', FLAG),
        ('custom_hooks.0', Checkpointing, 'with_cp'),
        ('model_wrapper_cfg', DDP, 'static_graph'),
        ('model_wrapper_cfg', Free, 'with_cp'),
        # Dicts without a type, which somebody takes.
        ('model.head.encoder', None, 'with_cp'),
        ('optim_wrapper.paramwise_cfg.custom_keys', None, 'with_cp'),
        ('a_variable.train_cfg', None, 'with_cp'),
    ],
)
def test_leaves_what_is_right_or_unknown(name, kind, key):
    cfg = config()
    if kind is not None:
        cfg = put(cfg, at(name), 'type', kind)
    assert find(put(cfg, at(name), key, True)) == []


@pytest.mark.parametrize('key', KEYS)
def test_reports_it_at_the_top_level(key):
    misplaced = find(config(**{key: True}))
    if key == FLAG:
        assert misplaced == []
        return
    assert [item.location for item in misplaced] == [key]
    assert 'nothing reads it at the top level' in misplaced[0].reason
    assert find(config(**{key: None})) == []


@pytest.mark.parametrize(
    ('name', 'key'),
    [
        ('find_unused_paramaters', FLAG),
        ('staticGraph', 'static_graph'),
        ('find_unused', FLAG),
        ('ddp_find_unused_parameters', FLAG),
        ('withCp', 'with_cp'),
    ],
)
def test_reports_near_misses(name, key):
    (misplaced,) = find(config(**{name: True}))
    assert misplaced.location == name
    assert f'{key} is near' in misplaced.reason
    if key != 'with_cp':
        cfg = config(model_wrapper_cfg={'type': DDP, name: True})
        assert [item.location for item in find(cfg)] == [
            f'model_wrapper_cfg.{name}'
        ]


@pytest.mark.parametrize(
    'name',
    [
        'with_cpt',
        'parameters',
        'broadcast',
        'detect_anomaly',
    ],
)
def test_other_names_are_nobodys_business(name):
    assert find(config(**{name: True})) == []


@pytest.mark.parametrize(
    'text',
    [
        'model = dict(backbone=dict(with_cp=with_cp))',
        "x = {'a': with_cp}",
        'x = dict(a=1 if not with_cp else 2)',
        "x = '{{_base_.with_cp}}'",
        'x = f(\n    with_cp)',
    ],
)
def test_variables_of_the_config_are_left(text):
    cfg = config(with_cp=True, model={'head': {'type': Free}})
    assert find(cfg, text=text) == []
    for other in (text.replace('with_cp', 'other'), f'# {text}'):
        other = other.replace('\n', '')
        assert [item.location for item in find(cfg, text=other)] == ['with_cp']


def test_what_all_places_say_needs_no_remedy():
    cfg = config(with_cp=True)
    cfg['model']['backbone']['with_cp'] = True
    assert find(cfg) == []
    cfg['model']['head'] = {'type': Checkpointing, 'with_cp': 1}
    assert [key.location for key in find(cfg)] == ['with_cp']


def test_backbone_of_our_detector():
    """It reads ``with_cp`` itself, whatever the backbone takes."""
    cfg = config()
    cfg['model'] = {
        'type': 'mmext.CoDETR',
        'backbone': {'type': Bare, 'with_cp': 2},
        'train_cfg': {'with_cp': True},
    }
    (misplaced,) = find(cfg)
    assert misplaced.location == 'model.train_cfg.with_cp'


def test_reads_lazy_configs(tmp_path):
    path = tmp_path / 'lazy.py'
    path.write_text(
        'from mmengine.optim import OptimWrapper\n'
        'from torch.optim import AdamW\n'
        'optim_wrapper = dict(type=OptimWrapper,\n'
        '    optimizer=dict(type=AdamW, static_graph=True))\n'
    )
    cfg = Config.fromfile(path)
    assert [misplaced.location for misplaced in find(cfg)] == [
        'optim_wrapper.optimizer.static_graph'
    ]
