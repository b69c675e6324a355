"""Public data sets that are right, by the hosts' configs and without one."""

import importlib

import pytest
from helpers.right_sets import RIGHT, check

from mmext.checks.findings import Severity
from mmext.checks.labels.rules import RULES

for _family in ('boxes', 'maps', 'voc'):
    importlib.import_module(f'helpers.right_{_family}')


# Their first config and their first bare way are tried by default; those of
# all sets are slow.
_QUICK = (
    'ade20k',
    'cityscapes',
    'htc_stuff',
    'panoptic',
    'semi_supervised',
    'voc_labelimg',
    'voc_roboflow',
)


def errors(report: dict) -> list[tuple[str, str]]:
    """Rule and message of each error."""
    return [
        (group['rule'], group['message'])
        for group in report['groups']
        if group['severity'] == Severity.ERROR
    ]


def spoilt(root, name: str, config: int = 0, **options) -> dict:
    """What the report says of a set once something is put over its config."""
    right = RIGHT[name](root)
    options = {
        'data_root': f'{root}/',
        **right.options,
        **{key.replace('__', '.'): options[key] for key in options},
    }
    _, report = check(root, right.configs[config], options)
    return report


def test_stuff_of_another_number_of_classes(tmp_path):
    """HTC's label maps are held against the head that reads them."""
    key = 'model__roi_head__semantic_head__num_classes'
    results = errors(spoilt(tmp_path, 'htc_stuff', **{key: 100}))
    assert [rule for rule, _ in results] == ['SEG001']
    assert 'label 181 is out of range' in results[0][1]
    assert '[0, 99] (num_classes=100, ignore_index=255)' in results[0][1]


@pytest.mark.slow
def test_boxes_of_panoptic_labels_are_of_things(tmp_path):
    key = 'model__roi_head__bbox_head__num_classes'
    ((rule, message),) = errors(spoilt(tmp_path, 'panoptic', **{key: 133}))
    assert rule == 'CFG003'
    assert 'must be 80, the number of thing classes of the data' in message


@pytest.mark.slow
def test_labelled_split_without_labels(tmp_path):
    """The pictures of soft-teacher's that its loader wants labels of."""
    key = 'train_dataloader__dataset__datasets__0__ann_file'
    file = 'annotations/instances_unlabeled2017.json'
    folder = 'train_dataloader__dataset__datasets__0__data_prefix__img'
    options = {key: file, folder: 'unlabeled2017/'}
    results = errors(spoilt(tmp_path, 'semi_supervised', **options))
    assert 'CLS005' in [rule for rule, _ in results]


def test_siblings_are_looked_at_where_they_are_asked_for(tmp_path):
    """Cityscapes by the ids that the classes do not have."""
    right = RIGHT['cityscapes'](tmp_path)
    settings = {**right.bare[0], 'mask_suffix': '_gtFine_labelIds.png'}
    code, report = check(tmp_path, **settings)
    assert code == 1
    assert {rule for rule, _ in errors(report)} == {'SEG001'}
    assert report['splits'][0]['num_samples'] == 3


@pytest.mark.slow
def test_zero_is_a_class_unless_it_is_reduced(tmp_path):
    """ADE20K without a config and without what its loader does."""
    right = RIGHT['ade20k'](tmp_path)
    settings = {**right.bare[0]}
    del settings['reduce_zero_label']
    code, report = check(tmp_path, **settings)
    assert code == 1
    assert {rule for rule, _ in errors(report)} == {'SEG001'}


def test_masks_beside_boxes_are_another_check(tmp_path, capsys):
    right = RIGHT['htc_stuff'](tmp_path)
    with pytest.raises(SystemExit):
        check(tmp_path, **{**right.bare[1], **right.bare[0]})
    assert 'is for panoptic annotations' in capsys.readouterr().err


# What a whole split is said to mean instead.
OTHER_MEANINGS = {rule.id for rule in RULES.values() if rule.explains}


def assert_read_rightly(report: dict) -> None:
    """Nothing is said to mean something else, be it a warning."""
    assert not OTHER_MEANINGS & {group['rule'] for group in report['groups']}


def assert_right(root, first: bool, name: str) -> None:
    right = RIGHT[name](root)
    end = 1 if first else None
    for config in right.configs[:end]:
        options = {'data_root': f'{root}/', **right.options}
        code, report = check(root, config, options, **right.settings)
        assert errors(report) == [], config
        assert_read_rightly(report)
        assert code == 0
        assert all(split['num_samples'] for split in report['splits'])
    for settings in right.bare[:end]:
        code, report = check(root, **settings)
        assert errors(report) == [], settings
        assert_read_rightly(report)
        assert code == 0
        assert all(split['num_samples'] for split in report['splits'])


@pytest.mark.parametrize('name', _QUICK)
def test_right_set_has_no_error(name, tmp_path):
    assert_right(tmp_path, True, name)


@pytest.mark.slow
@pytest.mark.parametrize('name', RIGHT)
def test_by_each_config_of_the_hosts(name, tmp_path):
    assert_right(tmp_path, False, name)


@pytest.mark.slow
def test_bccd(shared_path, tmp_path, checkout):
    """Two boxes of it are points, which is no false error."""
    root = shared_path('data/bccd')
    config = checkout / 'configs/co_dino/co_dino_r18_bccd.py'
    for way in (
        {'config': config, 'options': {'data_root': f'{root}/'}},
        {'voc': root},
    ):
        code, report = check(tmp_path, **way)
        assert [rule for rule, _ in errors(report)] == ['DET002']
        assert_read_rightly(report)
        assert code == 1
        (group,) = [item for item in report['groups'] if item['severity'] == 2]
        assert group['count'] == 2
        assert [item['value'] for item in group['examples']] == [
            '(181, 329, 181, 329)',
            '(504, 337, 504, 337)',
        ]


@pytest.mark.slow
@pytest.mark.parametrize('reduced', [False, True])
def test_camvid(reduced, shared_path, tmp_path):
    """Classes 0 to 10, and void that nothing is to reduce."""
    root = shared_path('data/camvid')
    more = {'reduce_zero_label': True} if reduced else {}
    code, report = check(
        tmp_path,
        masks=root / 'valannot',
        images=root / 'val',
        num_classes=11,
        ignore_index=11,
        select=['SEG', 'CFG', 'PAIR'],
        **more,
    )
    found = [group['rule'] for group in report['groups']]
    assert (code, found) == ((1, ['CFG014']) if reduced else (0, []))
