"""What the model wrapper of each runner gets."""

import pytest
from mmengine.config import Config

import mmext  # noqa: F401
from mmext.preflight.current_settings import current_settings
from mmext.preflight.sync_cures import SyncSettings

FLEXIBLE = {'runner_type': 'FlexibleRunner'}
STATIC = {'model_wrapper_cfg': {'static_graph': True}}


@pytest.mark.parametrize(
    ('cfg', 'expected'),
    [
        ({}, (False, False)),
        ({'find_unused_parameters': True}, (True, False)),
        (STATIC, (False, True)),
        # MMEngine's runner reads one place or the other.
        (
            {
                'find_unused_parameters': True,
                'runner_type': 'Runner',
                **STATIC,
            },
            (False, True),
        ),
        ({'find_unused_parameters': True, **STATIC}, (True, True)),
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
