"""Where settings of the wrapper belong, as lines of a config."""

import copy

import pytest
from mmengine.runner import FlexibleRunner, Runner

from mmext.checks.config.source import config_lines
from mmext.checks.config.wrapping import (
    FLAG,
    RightPlaces,
    RunnerKind,
)
from mmext.engine import PortableRunner

DDP = {'type': 'MMDistributedDataParallel'}
FSDP = {'type': 'MMFullyShardedDataParallel'}


class Subclass(FlexibleRunner):
    pass


class OwnWrapping(Runner):
    def wrap_model(self, model_wrapper_cfg, model):
        return model


class OtherHooks(PortableRunner):
    pass


@pytest.mark.parametrize(
    ('top', 'runner', 'expected'),
    [
        ({}, None, RunnerKind.PORTABLE),
        ({'runner_type': 'mmext.PortableRunner'}, None, RunnerKind.PORTABLE),
        ({'runner_type': 'Runner'}, None, RunnerKind.PLAIN),
        ({'runner_type': Runner}, None, RunnerKind.PLAIN),
        ({'runner_type': 'FlexibleRunner'}, None, RunnerKind.FLEXIBLE),
        ({'runner_type': Subclass}, None, RunnerKind.FLEXIBLE),
        ({'strategy': {'type': 'DDPStrategy'}}, None, RunnerKind.FLEXIBLE),
        ({'strategy': {}, 'runner_type': Runner}, None, RunnerKind.PLAIN),
        ({'runner_type': 'NobodyHasIt'}, None, RunnerKind.UNKNOWN),
        ({'runner_type': OwnWrapping}, None, RunnerKind.UNKNOWN),
        ({'runner_type': 'Runner'}, OtherHooks, RunnerKind.PORTABLE),
        ({}, 'FlexibleRunner', RunnerKind.FLEXIBLE),
    ],
)
def test_runners(top, runner, expected):
    assert RightPlaces(top, 'mmdet', runner).kind is expected


@pytest.mark.parametrize(
    ('top', 'key', 'line'),
    [
        ({}, FLAG, 'find_unused_parameters = True'),
        (
            {},
            'static_graph',
            "model_wrapper_cfg = dict(type='mmext.DistributedDataParallel', "
            'static_graph=True)',
        ),
        (
            {'model_wrapper_cfg': DDP},
            'static_graph',
            'model_wrapper_cfg = dict(static_graph=True)',
        ),
        ({'model_wrapper_cfg': DDP}, FLAG, 'find_unused_parameters = True'),
        ({'model_wrapper_cfg': FSDP}, FLAG, ''),
        ({'model_wrapper_cfg': FSDP}, 'static_graph', ''),
        (
            {
                'model_wrapper_cfg': {
                    'type': 'MMSeparateDistributedDataParallel'
                }
            },
            FLAG,
            'find_unused_parameters = True',
        ),
        ({'runner_type': 'Runner'}, FLAG, 'find_unused_parameters = True'),
        (
            {'runner_type': 'Runner', FLAG: True},
            'static_graph',
            "model_wrapper_cfg = dict(type='MMDistributedDataParallel', "
            'broadcast_buffers=False, find_unused_parameters=True, '
            'static_graph=True)',
        ),
        (
            {'runner_type': 'Runner', FLAG: False, 'model_wrapper_cfg': DDP},
            FLAG,
            'find_unused_parameters = True\n'
            'model_wrapper_cfg = dict(find_unused_parameters=True)',
        ),
        (
            {'runner_type': 'FlexibleRunner'},
            FLAG,
            "strategy = dict(type='DDPStrategy', model_wrapper=dict(type="
            "'MMDistributedDataParallel', broadcast_buffers=False, "
            'find_unused_parameters=True))',
        ),
        (
            {'strategy': {'type': 'DDPStrategy', 'model_wrapper': DDP}},
            'static_graph',
            "strategy = dict(type='DDPStrategy', "
            'model_wrapper=dict(static_graph=True))',
        ),
        ({'strategy': {'type': 'FSDPStrategy'}}, FLAG, ''),
        ({'strategy': {'type': 'NobodyHasIt'}}, FLAG, ''),
    ],
)
def test_lines_for_the_wrapper(top, key, line):
    before = copy.deepcopy(top)
    fix = RightPlaces(top, 'mmdet', None).of_wrapper(key, True)
    assert config_lines(fix) == line
    assert top == before
