"""Two families of host packages in one environment, and none."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from mmext.utils.host_packages import MissingHostError


@pytest.fixture
def run(checkout: Path, tmp_path: Path):
    """Run Python with distributions made here and no others."""

    def run(
        *command: str, **distributions: str
    ) -> subprocess.CompletedProcess:
        for name, version in distributions.items():
            folder = tmp_path / f'{name}-{version}.dist-info'
            folder.mkdir()
            (folder / 'METADATA').write_text(
                f'Name: {name.replace("_", "-")}\nVersion: {version}\n'
            )
        return subprocess.run(
            [sys.executable, '-S', *command],
            env={
                **os.environ,
                'PYTHONPATH': f'{tmp_path}{os.pathsep}{checkout}',
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_two_families_are_named_with_the_repair(run, tmp_path):
    (tmp_path / 'mmdet').mkdir()
    (tmp_path / 'mmdet' / 'version.py').write_text(
        "__version__ = version('onedl-mmdetection')"
    )
    done = run(
        *('-c', 'import mmext'),
        **{'mmdet': '3.3.0', 'onedl_mmdetection': '3.5.1', 'mmcv': '2.1.0'},
    )
    assert done.returncode == 0
    assert (
        'RuntimeWarning: These distributions have the same files, and one '
        'overwrote the other: onedl-mmdetection 3.5.1 and mmdet 3.3.0. To '
        'repair the environment: pip uninstall -y onedl-mmdetection mmdet && '
        'pip install --no-deps onedl-mmdetection==3.5.1\n'
    ) in done.stderr


def test_one_family_is_no_cause_for_a_warning(run):
    done = run(*('-c', 'import mmext'), onedl_mmcv='2.3.6', mmdet='3.3.0')
    assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.parametrize('tool', ['train', 'validate_labels'])
def test_no_host_package_is_one_line_with_the_command(run, tool):
    done = run('-m', 'mmext', tool, 'config.py')
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        'python -m mmext: error: mmengine is not installed, and mmext '
        'imports it; install it with its family: pip install "mmext[onedl]" '
        '(maintained) or pip install "mmext[openmmlab]" (original)'
    ]
    with pytest.raises(MissingHostError, match='mmdet is not installed'):
        raise pickle.loads(pickle.dumps(MissingHostError('mmdet')))
