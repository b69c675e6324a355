"""The check of a whole config: message, switch, runners, shipped configs."""

import pickle
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import mmdet
import mmseg
import pytest
import torch
import toy_training as toy
from mmengine._strategy import DDPStrategy
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy_ranks import load_tool

from mmext.apis._runs import build_runner, prepare_config
from mmext.engine import PortableRunner
from mmext.engine.model_wrapping import model_wrapper_config
from mmext.preflight._right_places import merge
from mmext.preflight.misplaced_keys import (
    RIGHT_PLACES,
    MisplacedKey,
    MisplacedKeyError,
    check_misplaced_keys,
    find_misplaced_keys,
)

ROOT = Path(__file__).resolve().parents[2]
FLAG = 'find_unused_parameters'
DDP = 'MMDistributedDataParallel'


def recipe(**changes):
    """A small CO-DINO with the lines that go round in public threads."""
    cfg = Config.fromfile(ROOT / 'configs/co_dino/co_dino_r18_shapes.py')
    cfg.model.query_head.transformer.encoder.with_cp = True
    cfg.merge_from_dict(
        {
            'model': {'train_cfg': {FLAG: True, 'with_cp': False}},
            **changes,
        }
    )
    return cfg


def test_message():
    with pytest.raises(MisplacedKeyError) as info:
        check_misplaced_keys(recipe())
    lines = str(info.value).splitlines()
    flag_line = lines.index(f'  model.train_cfg.{FLAG} = True')
    assert lines[flag_line + 1] == (
        '    nothing reads it in model.train_cfg; it is read at the top '
        'level of the config'
    )
    assert '  model.train_cfg.with_cp = False' in lines
    assert f'{FLAG} = True' in lines
    assert (
        'model = dict(query_head=dict(transformer=dict(encoder=dict('
        'with_cp=False))))'
    ) in lines
    assert 'set at the top level: check_misplaced_keys = False' in lines[-1]
    assert [each.key for each in info.value.keys] == [FLAG, 'with_cp']


def test_the_lines_of_the_message_work():
    """What is printed, put into a config that inherits it."""
    cfg = recipe(static_graph=True, optim_wrapper={'broadcast_buffers': True})
    with pytest.raises(MisplacedKeyError) as info:
        check_misplaced_keys(cfg)
    for each in info.value.keys:
        *way, key = each.place.split('.')
        part = cfg
        for step in way:
            part = part[step]
        part.pop(key)
    text = str(info.value).split('set:\n')[1].split('\nWhere')[0]
    lines = '\n'.join(line.strip() for line in text.splitlines())
    cfg.merge_from_dict(Config.fromstring(lines, '.py').to_dict())
    check_misplaced_keys(cfg)
    assert cfg[FLAG] is True
    assert cfg.model.query_head.transformer.encoder.with_cp is False
    assert cfg.model_wrapper_cfg.static_graph is True
    assert cfg.model_wrapper_cfg.broadcast_buffers is True


def test_checkpointing_names_the_hook():
    with pytest.raises(MisplacedKeyError, match='ActivationCheckpointHook'):
        check_misplaced_keys({'with_cp': True})
    with pytest.raises(MisplacedKeyError) as info:
        check_misplaced_keys({'with_cp': False})
    assert 'Hook' not in str(info.value)
    assert 'set:' not in str(info.value)


def test_error_goes_to_another_process():
    error = MisplacedKeyError(find_misplaced_keys({'with_cp': True}))
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error)
    assert copied.keys == error.keys
    assert isinstance(error, ValueError)


@pytest.mark.parametrize('kind', [dict, ConfigDict, Config])
def test_switch(kind):
    cfg = {'model': {'train_cfg': {FLAG: True}}}
    with pytest.raises(MisplacedKeyError):
        check_misplaced_keys(kind(cfg))
    with pytest.raises(MisplacedKeyError):
        check_misplaced_keys(kind({**cfg, 'check_misplaced_keys': True}))
    check_misplaced_keys(kind({**cfg, 'check_misplaced_keys': False}))
    # It is one of the check and not of the search.
    assert find_misplaced_keys({**cfg, 'check_misplaced_keys': False})


@pytest.mark.parametrize('value', ['no', 0, None])
def test_rejects_a_senseless_switch(value):
    with pytest.raises(TypeError, match='check_misplaced_keys must be True'):
        check_misplaced_keys({'check_misplaced_keys': value})


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
    """Configs with the flag in both places that a runner might read."""
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
        found = find_misplaced_keys(cfg)
        assert bool(found) == (cfg.get(FLAG, effective) != effective), cfg
        if found:
            reported += 1
            merge(cfg, found[0].cure)
            assert wrap(cfg)[FLAG] is True
            assert find_misplaced_keys(cfg) == []
    assert reported == (4 if runner == 'FlexibleRunner' else 3)


def test_matches_what_our_runner_does_with_the_flag():
    for cfg in combinations('mmext.PortableRunner'):
        own, top = cfg.get('model_wrapper_cfg'), cfg.get(FLAG)
        device = torch.device('cpu')
        found = find_misplaced_keys(cfg)
        if found:
            with pytest.raises(ValueError, match='must be the same'):
                model_wrapper_config(own, device, top)
            merge(cfg, found[0].cure)
            own, top = cfg['model_wrapper_cfg'], cfg[FLAG]
            assert find_misplaced_keys(cfg) == []
            assert model_wrapper_config(own, device, top)[FLAG] is True
        elif top is not None:
            assert model_wrapper_config(own, device, top)[FLAG] is top


@pytest.mark.parametrize('runner', ['Runner', 'FlexibleRunner'])
@pytest.mark.parametrize('key', list(RIGHT_PLACES)[:-1])
def test_cures_reach_the_wrapper(runner, key, wrap):
    cfg = {'runner_type': runner, 'model': {'train_cfg': {key: True}}}
    assert wrap(cfg).get(key, False) is False
    (found,) = find_misplaced_keys(cfg)
    merge(cfg, found.cure)
    given = wrap(cfg)
    assert given[key] is True
    assert given['broadcast_buffers'] is (key == 'broadcast_buffers')


def test_flexible_runner_leaves_it_to_the_strategy(wrap):
    cfg = {
        'runner_type': 'FlexibleRunner',
        'model_wrapper_cfg': {'static_graph': True},
        'sync_bn': 'torch',
        'activation_checkpointing': 'backbone',
        'efficient_conv_bn_eval': ['backbone'],
        FLAG: False,
    }
    assert 'static_graph' not in wrap(cfg)
    found = {each.place: each for each in find_misplaced_keys(cfg)}
    assert set(found) == set(cfg) - {'runner_type', FLAG}
    for each in found.values():
        assert each.reason == 'FlexibleRunner does not read it'
    hook = found['activation_checkpointing'].remedy
    assert 'mmext.ActivationCheckpointHook' in hook
    assert "modules=['backbone']" in hook
    assert found['efficient_conv_bn_eval'].remedy == 'remove it'
    merge(cfg, found['model_wrapper_cfg'].cure)
    merge(cfg, found['sync_bn'].cure)
    assert wrap(cfg)['static_graph'] is True
    assert cfg['strategy']['sync_bn'] == 'torch'


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
    (found,) = find_misplaced_keys(cfg)
    assert found.place == 'strategy.model_wrapper.static_graph'
    assert found.reason == 'PortableRunner reads no strategy'
    assert found.remedy == 'model_wrapper_cfg = dict(static_graph=True)'


def test_another_runner_may_be_named():
    cfg = {FLAG: True, 'runner_type': 'mmext.PortableRunner'}
    assert find_misplaced_keys(cfg) == []
    assert len(find_misplaced_keys(cfg, 'FlexibleRunner')) == 1
    cfg = {FLAG: True, 'model_wrapper_cfg': {'type': DDP}}
    assert len(find_misplaced_keys(cfg, Runner)) == 1
    assert find_misplaced_keys(cfg, PortableRunner) == []


OURS = sorted((ROOT / 'configs').rglob('*.py'))


@pytest.mark.parametrize('path', OURS, ids=lambda path: path.stem)
def test_our_configs_are_clean(path):
    cfg = Config.fromfile(path)
    assert find_misplaced_keys(cfg) == []
    assert not cfg.get(FLAG), 'no parameter of ours is unused'


@pytest.mark.parametrize('host', [mmdet, mmseg])
def test_configs_of_the_hosts_are_clean(host):
    """Each 20th, and all that have one of the settings."""
    folder = Path(host.__file__).parent / '.mim' / 'configs'
    paths = sorted(folder.rglob('*.py'))
    with_setting = [
        path
        for path in paths
        if any(key in path.read_text() for key in RIGHT_PLACES)
    ]
    loaded = 0
    for path in {*paths[::20], *with_setting}:
        try:
            cfg = Config.fromfile(path)
        except (ImportError, FileNotFoundError):
            continue  # of a package that is not here, or broken as shipped
        loaded += 1
        for runner in (None, 'Runner'):
            assert find_misplaced_keys(cfg, runner) == [], path
    assert loaded >= 40


def wrong_toy(**changes):
    return toy.config(
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.1}, FLAG: True},
        **changes,
    )


def test_a_run_stops_when_its_config_is_read(tmp_path):
    path = toy.write(tmp_path / 'a.py', wrong_toy())
    with pytest.raises(MisplacedKeyError, match=f'optim_wrapper.{FLAG}'):
        prepare_config(path, splits=())
    off = {'check_misplaced_keys': False}
    assert prepare_config(path, splits=(), cfg_options=off).filename == path


def test_the_tool_ends_with_2(tmp_path, capsys):
    path = toy.write(tmp_path / 'a.py', wrong_toy())
    with pytest.raises(SystemExit) as info:
        load_tool('train').main([path])
    assert info.value.code == 2
    error = capsys.readouterr().err
    assert f'\n{FLAG} = True\n' in error
    assert 'Traceback' not in error
    assert not list(tmp_path.glob('work_dirs/*'))


def test_the_runner_stops_before_the_model_is_built(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        PortableRunner, 'build_model', lambda *args: built.append(args)
    )
    cfg = Config(wrong_toy(work_dir=str(tmp_path)))
    with pytest.raises(MisplacedKeyError, match=f'optim_wrapper.{FLAG}'):
        build_runner(cfg)
    assert built == []


def test_finding_is_a_plain_record():
    found = MisplacedKey('with_cp', 'a.with_cp', 1, 'why', 'where')
    assert found.remedy == 'remove it'
    assert hash(found.place)
