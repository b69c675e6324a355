"""Public data sets that are right, by the hosts' configs and without one."""

import importlib

import pytest
from helpers.right_sets import RIGHT, check

from mmext.findings import Severity

for _family in ('boxes', 'maps'):
    importlib.import_module(f'helpers.right_{_family}')

# Their first config and their first bare way are tried by default.
_QUICK = (
    'ade20k',
    'cityscapes',
    'coco_rle_and_crowd',
    'htc_stuff',
    'panoptic',
    'semi_supervised',
    'voc_cvat',
    'voc_labelimg',
    'voc_original',
    'voc_roboflow',
)


def _ways() -> list:
    """Each set by each of its configs, and without."""
    ways = []
    for name in RIGHT:
        slow = () if name in _QUICK else (pytest.mark.slow,)
        ways.append(pytest.param(name, marks=slow, id=name))
    return ways


def errors(report: dict) -> list[tuple[str, str]]:
    """Rule and message of each error."""
    return [
        (group['rule'], group['message'])
        for group in report['groups']
        if group['severity'] == Severity.ERROR
    ]


def assert_right(root, first: bool, name: str) -> None:
    right = RIGHT[name](root)
    end = 1 if first else None
    for config in right.configs[:end]:
        options = {'data_root': f'{root}/', **right.options}
        code, report = check(root, config, options, **right.settings)
        assert errors(report) == [], config
        assert code == 0
        assert all(split['num_samples'] for split in report['splits'])
    for settings in right.bare[:end]:
        code, report = check(root, **settings)
        assert errors(report) == [], settings
        assert code == 0
        assert all(split['num_samples'] for split in report['splits'])


@pytest.mark.parametrize('name', _ways())
def test_right_set_has_no_error(name, tmp_path):
    assert_right(tmp_path, True, name)


@pytest.mark.slow
@pytest.mark.parametrize('name', RIGHT)
def test_by_each_config_of_the_hosts(name, tmp_path):
    assert_right(tmp_path, False, name)
