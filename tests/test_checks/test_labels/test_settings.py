"""Settings that do not go together are refused."""

import pytest

from mmext.checks.labels.settings import CheckSettings, check_settings


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'backend': 'dask', 'scheduler': 'tcp://127.0.0.1:1'},
        {'backend': 'serial'},
        {'class_weights': 'enet'},
    ],
)
def test_accepts(settings):
    assert check_settings(CheckSettings(**settings)) is None


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'workers': -1}, '--workers must be at least 0, got -1'),
        ({'class_weights': 'even'}, "--class-weights must be one of .*'even'"),
        ({'backend': 'ray'}, "--backend must be one of .*got 'ray'"),
        ({'backend': 'dask'}, '--backend dask needs --scheduler'),
        ({'scheduler': 'tcp://a:1'}, '--scheduler must come with --backend'),
    ],
)
def test_rejects(settings, message):
    with pytest.raises(ValueError, match=message):
        check_settings(CheckSettings(**settings))
