"""What the model wrapper of each runner gets."""

import pytest
from mmengine.config import Config

import mmext  # noqa: F401
from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight.dry_run.options import (
    ConfigOptions,
    current_settings,
)

SEARCH = SyncSettings(find_unused_parameters=True)
STATIC = SyncSettings(static_graph=True)
NEITHER = SyncSettings()
FLAG = 'find_unused_parameters'


@pytest.mark.parametrize('settings', [NEITHER, SEARCH, STATIC])
def test_of_settings(settings):
    options = ConfigOptions.of_settings(settings)
    assert options.current() == settings
    assert options.settings(settings) == {}


def test_at_the_top_level():
    assert ConfigOptions().settings(SEARCH) == {FLAG: True}
    options = ConfigOptions({FLAG: True})
    assert options.settings(NEITHER) == {FLAG: False}
    assert options.key_of(FLAG) == FLAG


def test_in_the_wrapper():
    wrapper = {'type': 'MMDistributedDataParallel', FLAG: True}
    options = ConfigOptions({'model_wrapper_cfg': wrapper})
    key = f'model_wrapper_cfg.{FLAG}'
    assert options.settings(NEITHER) == {key: False}
    assert options.key_of(FLAG) == key
    both = ConfigOptions({'model_wrapper_cfg': wrapper, FLAG: True})
    assert both.settings(NEITHER) == {key: False, FLAG: False}


def test_the_hook():
    hook = {'type': 'mmext.ActivationCheckpointHook'}
    new = {**hook, 'replace_reentrant': True}
    key = 'default_hooks.activation_checkpoint'
    assert ConfigOptions().without_reentrant() == {key: new}
    options = ConfigOptions({'default_hooks': {'activation_checkpoint': hook}})
    assert options.without_reentrant() == {f'{key}.replace_reentrant': True}


def test_filter_of_empty_samples():
    assert not ConfigOptions().filters_empty
    dataset = {'dataset': {'filter_cfg': {'filter_empty_gt': True}}}
    assert ConfigOptions({'train_dataloader': dataset}).filters_empty
    assert 'filter_empty_gt' in (
        ConfigOptions({'train_dataloader': dataset}).rarely_empty
    )
    packed = {'dataset': {'pipeline': [{'type': 'mmseg.PackSegInputs'}]}}
    assert 'labelled pixel' in (
        ConfigOptions({'train_dataloader': packed}).rarely_empty
    )
    assert ConfigOptions().rarely_empty == ''
    dataset['dataset']['filter_cfg']['filter_empty_gt'] = False
    assert not ConfigOptions({'train_dataloader': dataset}).filters_empty


FLEXIBLE = {'runner_type': 'FlexibleRunner'}
CURRENT_SETTINGS_STATIC = {'model_wrapper_cfg': {'static_graph': True}}


@pytest.mark.parametrize(
    ('cfg', 'expected'),
    [
        ({}, (False, False)),
        ({'find_unused_parameters': True}, (True, False)),
        (CURRENT_SETTINGS_STATIC, (False, True)),
        # MMEngine's runner reads one place or the other.
        (
            {
                'find_unused_parameters': True,
                'runner_type': 'Runner',
                **CURRENT_SETTINGS_STATIC,
            },
            (False, True),
        ),
        (
            {'find_unused_parameters': True, **CURRENT_SETTINGS_STATIC},
            (True, True),
        ),
        ({'find_unused_parameters': True, **FLEXIBLE}, (False, False)),
        (
            {
                'strategy': {
                    'type': 'DDPStrategy',
                    'model_wrapper': {'find_unused_parameters': True},
                },
                **FLEXIBLE,
            },
            (True, False),
        ),
    ],
)
def test_current(cfg, expected):
    assert current_settings(cfg) == SyncSettings(*expected)
    assert current_settings(Config(cfg)) == SyncSettings(*expected)
