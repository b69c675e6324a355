"""Settings that cannot be are refused."""

import pytest

from mmext.preflight.settings import PreflightSettings, check_settings


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'a.py'
    path.touch()
    return str(path)


def test_accepts(config):
    assert check_settings(PreflightSettings(config=config, world=2)) is None


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'batches': ('odd',)}, r"kinds must be some of .*\['odd'\]"),
        ({'steps': 1}, '--steps must be at least 2.* got 1'),
        ({'batch_size': -1}, '--batch-size must be at least 1.* got -1'),
        ({'world': 1}, '--world must be 2 or more processes.* got 1'),
        ({'image_size': (0, 8)}, '--image-size must be two positive'),
    ],
)
def test_rejects(config, settings, message):
    with pytest.raises(ValueError, match=message):
        check_settings(PreflightSettings(config=config, **settings))


def test_rejects_a_config_that_is_not_there(tmp_path):
    settings = PreflightSettings(config=str(tmp_path / 'none.py'))
    with pytest.raises(FileNotFoundError, match='config must be an existing'):
        check_settings(settings)
