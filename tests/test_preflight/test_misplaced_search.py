"""Every setting in every place, those that are read and all others."""

import copy

import pytest
from mmengine.config import Config
from torch import nn

from mmext.engine.model_wrapping import model_wrapper_config
from mmext.preflight._misplaced_search import MisplacedKeySearch
from mmext.preflight._right_places import RIGHT_PLACES, merge

KEYS = list(RIGHT_PLACES)
WRAPPER_KEYS = [key for key in KEYS if key != 'with_cp']
FLAG = 'find_unused_parameters'
DDP = 'MMDistributedDataParallel'
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


def find(cfg, runner=None, text=''):
    return MisplacedKeySearch(dict(cfg.items()), text, runner).run()


def at(name):
    return tuple(
        int(step) if step.isdigit() else step for step in name.split('.')
    )


PLACES = [
    'model.train_cfg',
    'model.train_cfg.0',
    'model.train_cfg.rcnn',
    'model.train_cfg.rcnn.0.sampler',
    'model.test_cfg',
    'model.test_cfg.rpn',
    'model.head.train_cfg',
    'model.detector.train_cfg',
    'model.detector.decode_head.0.test_cfg.x',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'optim_wrapper',
    'optim_wrapper.optimizer',
    'optim_wrapper.paramwise_cfg',
    'optim_wrapper.clip_grad',
    'optim_wrapper.generator.optimizer',
    'param_scheduler.0',
    'train_dataloader',
    'val_dataloader',
    'train_dataloader.sampler',
    'default_hooks',
    'custom_hooks.0',
    'env_cfg',
    'env_cfg.mp_cfg',
    'randomness',
    'auto_scale_lr',
    'compile',
    'runner',
    'optimizer',
    'optimizer_config',
    'model_wrapper',
]


@pytest.mark.parametrize('name', PLACES)
@pytest.mark.parametrize('key', KEYS)
@pytest.mark.parametrize('value', [True, False])
def test_reports_it_and_its_cure_is_right(name, key, value):
    cfg = config(runner_type='mmext.PortableRunner')
    misplaced = put(cfg, at(name), key, value)
    before = copy.deepcopy(misplaced)
    (found,) = find(misplaced)
    assert misplaced == before
    place = '.'.join(name.split('.')).replace('.0', '[0]')
    assert (found.key, found.place) == (key, f'{place}.{key}')
    assert found.value is value
    assert found.reason
    assert found.read_at == RIGHT_PLACES[key]
    merge(cfg, found.cure)
    assert find(cfg) == []
    if key == 'with_cp':
        backbone = cfg['model']['backbone']
        assert backbone.get('with_cp', False) is value
    else:
        wrapper = model_wrapper_config(
            cfg.get('model_wrapper_cfg'),
            nn.Linear(1, 1).weight.device,
            cfg.get(FLAG),
        )
        assert wrapper[key] is value


TYPED = [
    ('model', Detector),
    ('model.backbone', Bare),
    ('model.head', 'mmdet.ChannelMapper'),
    ('model.data_preprocessor', 'mmdet.DetDataPreprocessor'),
    ('train_cfg', 'EpochBasedTrainLoop'),
    ('val_cfg', 'ValLoop'),
    ('optim_wrapper', 'AmpOptimWrapper'),
    ('optim_wrapper.optimizer', 'AdamW'),
    ('train_dataloader.sampler', 'DefaultSampler'),
    ('param_scheduler.0', 'MultiStepLR'),
    ('default_hooks.timer', 'IterTimerHook'),
    ('custom_hooks.0', 'mmdet.NumClassCheckHook'),
    ('visualizer', 'DetLocalVisualizer'),
    ('val_evaluator', 'CocoMetric'),
    ('log_processor', 'LogProcessor'),
]


@pytest.mark.parametrize(('name', 'kind'), TYPED)
@pytest.mark.parametrize('key', KEYS)
def test_reports_what_a_class_does_not_take(name, kind, key):
    cfg = put(config(), at(name), 'type', kind)
    found = find(put(cfg, at(name), key, 4))
    assert [each.key for each in found] == [key]
    assert 'takes no such argument' in found[0].reason
    assert found[0].value == 4


@pytest.mark.parametrize('key', KEYS)
def test_reports_what_a_strategy_does_not_take(key):
    cfg = config(strategy={'type': 'DDPStrategy', key: True})
    (found,) = find(cfg)
    assert found.reason == 'DDPStrategy takes no such argument'
    if key != 'with_cp':
        del cfg['strategy'][key]
        merge(cfg, found.cure)
        assert cfg['strategy']['model_wrapper'][key] is True
        assert find(cfg) == []


def test_a_part_without_with_cp_gets_the_hook():
    for name in ('backbone', 'head'):
        cfg = config()
        cfg['model'][name] = {'type': Bare, 'with_cp': True}
        (found,) = find(cfg)
        assert found.remedy == (
            "default_hooks = dict(activation_checkpoint=dict(type='mmext."
            f"ActivationCheckpointHook', modules=['{name}']))"
        )
        cfg['model'][name]['with_cp'] = False
        assert find(cfg)[0].remedy == 'remove it'


@pytest.mark.parametrize(
    ('name', 'kind', 'key'),
    [
        ('model', Free, 'with_cp'),
        ('model.head', Free, FLAG),
        ('model.head', Checkpointing, 'with_cp'),
        ('model.backbone', 'NobodyHasIt', 'with_cp'),
        ('model.backbone', 'mmpretrain.NobodyHasIt', FLAG),
        ('model.backbone', 'mmdet.ResNeXt', 'with_cp'),
        ('model.train_cfg', 'NobodyHasIt', FLAG),
        ('train_cfg', 'NobodyHasIt', FLAG),
        ('custom_hooks.0', Checkpointing, 'with_cp'),
        ('model_wrapper_cfg', DDP, 'static_graph'),
        ('model_wrapper_cfg', Free, 'with_cp'),
        ('train_dataloader.dataset', Free, 'with_cp'),
    ],
)
def test_leaves_what_is_right_or_unknown(name, kind, key):
    cfg = put(config(), at(name), 'type', kind)
    assert find(put(cfg, at(name), key, True)) == []


@pytest.mark.parametrize(
    'name',
    [
        'model.head.encoder',
        'model.transformer.encoder',
        'optim_wrapper.paramwise_cfg.custom_keys',
        'a_variable',
        'a_variable.train_cfg',
    ],
)
def test_leaves_with_cp_in_dicts_that_somebody_takes(name):
    assert find(put(config(), at(name), 'with_cp', True)) == []


def test_leaves_dicts_inside_of_unknown_components():
    cfg = config()
    cfg['model']['train_cfg'] = {'a': {'type': 'NobodyHasIt', 'b': {}}}
    cfg['train_dataloader'] = {'dataset': {'type': Free, 'options': {}}}
    cfg['model']['train_cfg']['a']['b']['with_cp'] = True
    cfg['train_dataloader']['dataset']['options']['with_cp'] = True
    assert find(cfg) == []


def test_wrapper_settings_are_never_the_models():
    (found,) = find(put(config(), at('model.head.encoder'), FLAG, True))
    assert found.reason == 'it is for what is around the model'


@pytest.mark.parametrize('key', [*WRAPPER_KEYS, 'with_cp'])
def test_reports_it_at_the_top_level(key):
    found = find(config(**{key: True}))
    if key == FLAG:
        assert found == []
        return
    assert [each.place for each in found] == [key]
    assert 'nothing reads it at the top level' in found[0].reason
    assert find(config(**{key: None})) == []


@pytest.mark.parametrize(
    ('name', 'key'),
    [
        ('find_unused_parameter', FLAG),
        ('find_unused_params', FLAG),
        ('findUnusedParameters', FLAG),
        ('find_unused_paramaters', FLAG),
        ('unused_parameters', FLAG),
        ('staticGraph', 'static_graph'),
        ('static_graphs', 'static_graph'),
        ('broadcast_buffer', 'broadcast_buffers'),
        ('gradients_as_bucket_view', 'gradient_as_bucket_view'),
        ('detect_anomalous_parameters', 'detect_anomalous_params'),
        ('withCp', 'with_cp'),
        ('with_CP', 'with_cp'),
    ],
)
def test_reports_near_misses(name, key):
    (found,) = find(config(**{name: True}))
    assert (found.place, found.key) == (name, key)
    assert f'{key} is near' in found.reason
    cfg = config()
    merge(cfg, found.cure)
    assert find(cfg) == []
    if key == 'with_cp':
        return
    cfg = config(model_wrapper_cfg={'type': DDP, name: True})
    (found,) = find(cfg)
    assert found.place == f'model_wrapper_cfg.{name}'


@pytest.mark.parametrize(
    'name',
    [
        'with_cls',
        'with_bbox',
        'with_cpt',
        'with_c',
        'graph',
        'static',
        'parameters',
        'num_parameters',
        'find_unused',
        'broadcast',
        'detect_anomaly',
        'detect_anomalies',
        'buffers',
        'check_misplaced_keys',
        'activation_checkpointing',
    ],
)
def test_other_names_are_nobodys_business(name):
    assert find(config(**{name: True})) == []


@pytest.mark.parametrize(
    'text',
    [
        'model = dict(backbone=dict(with_cp=with_cp))',
        'model = dict(a=[with_cp])',
        "x = {'a': with_cp}",
        'x = dict(a=1 if not with_cp else 2)',
        "x = '{{_base_.with_cp}}'",
        'x = _base_.with_cp',
        'x = f(\n    with_cp)',
    ],
)
def test_variables_of_the_config_are_left(text):
    cfg = config(with_cp=True, model={'head': {'type': Free}})
    assert find(cfg, text=text) == []
    other = text.replace('with_cp', 'other')
    assert [each.key for each in find(cfg, text=other)] == ['with_cp']
    in_comment = f'# {text}'.replace('\n', '\n#')
    assert [each.key for each in find(cfg, text=in_comment)] == ['with_cp']


def test_setting_it_elsewhere_is_no_use_of_a_variable():
    text = 'with_cp = True\nmodel = dict(a=dict(depth=1, with_cp=False))\n'
    assert len(find(config(with_cp=True), text=text)) == 1
    text = 'model_wrapper = dict(static_graph=True)\n'
    cfg = config(model_wrapper={'static_graph': True})
    assert len(find(cfg, text=text)) == 1
    used = text + 'model_wrapper_cfg = dict(**x, y=model_wrapper)'
    assert find(cfg, text=used) == []


def test_what_all_places_say_needs_no_remedy():
    cfg = config(with_cp=True)
    cfg['model']['backbone']['with_cp'] = True
    assert find(cfg) == []
    cfg['model']['head'] = {'type': Checkpointing, 'with_cp': 1}
    (found,) = find(cfg)
    assert found.remedy == 'model = dict(head=dict(with_cp=True))'


@pytest.mark.parametrize('value', ['yes', 'True', 0.5, [True], {}])
def test_rejects_a_senseless_value(value):
    cfg = config()
    cfg['model']['backbone'] = {'type': 'mmdet.ResNet', 'with_cp': value}
    (found,) = find(cfg)
    assert found.reason == 'with_cp must be a bool or a number of layers'
    assert found.cure == {'model': {'backbone': {'with_cp': bool(value)}}}
    for good in (True, 3, None):
        cfg['model']['backbone']['with_cp'] = good
        assert find(cfg) == []
    cfg['model']['backbone'] = {'type': Checkpointing, 'with_cp': value}
    assert find(cfg) == []


def test_backbone_of_our_detector():
    """It reads ``with_cp`` itself, whatever the backbone takes."""
    cfg = config()
    cfg['model'] = {
        'type': 'mmext.CoDETR',
        'backbone': {'type': Bare, 'with_cp': 2},
        'train_cfg': {'with_cp': True},
    }
    (found,) = find(cfg)
    assert found.place == 'model.train_cfg.with_cp'
    assert found.remedy == 'model = dict(backbone=dict(with_cp=True))'


def test_reads_lazy_configs(tmp_path):
    path = tmp_path / 'lazy.py'
    path.write_text(
        'from mmengine.optim import OptimWrapper\n'
        'from torch.optim import AdamW\n'
        'optim_wrapper = dict(type=OptimWrapper,\n'
        '    optimizer=dict(type=AdamW, static_graph=True))\n'
    )
    cfg = Config.fromfile(path)
    assert [each.place for each in find(cfg)] == [
        'optim_wrapper.optimizer.static_graph'
    ]
