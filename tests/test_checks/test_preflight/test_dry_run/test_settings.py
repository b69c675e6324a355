"""What the model wrapper of each runner gets."""

import pytest
from mmengine.config import Config

import mmext  # noqa: F401
from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight.dry_run.run import ConfigOptions


@pytest.mark.parametrize(
    ('dataset', 'reason'),
    [
        ({'filter_cfg': {'filter_empty_gt': True}}, 'filter_empty_gt'),
        ({'pipeline': [{'type': 'mmseg.PackSegInputs'}]}, 'labelled pixel'),
        ({'filter_cfg': {'filter_empty_gt': False}}, ''),
    ],
)
def test_when_empty_samples_are_rare(dataset, reason):
    options = ConfigOptions({'train_dataloader': {'dataset': dataset}})
    assert reason in options.rarely_empty
    assert bool(options.rarely_empty) == bool(reason)


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
    assert ConfigOptions(cfg).current == SyncSettings(*expected)
    assert ConfigOptions(Config(cfg)).current == SyncSettings(*expected)
