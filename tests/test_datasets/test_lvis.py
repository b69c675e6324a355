"""LVIS files are read as MMDetection reads them, without ``lvis``."""

import pytest
from helpers.lvis_set import CLASSES, write_lvis
from mmdet.registry import DATASETS
from mmengine.dataset import ClassBalancedDataset
from mmengine.fileio import dump, load


def build(path, root, **options):
    return DATASETS.build(
        {
            'type': 'mmext.LVISV1Dataset',
            'ann_file': path,
            'data_prefix': {'img': str(root)},
            'metainfo': {'classes': CLASSES},
            **options,
        }
    )


def test_reads_what_is_there(tmp_path):
    dataset = build(write_lvis(tmp_path), tmp_path)
    info = dataset.get_data_info(0)
    name = tmp_path / 'val2017/000000000001.jpg'
    assert info['img_path'] == str(name)
    assert [item['bbox_label'] for item in info['instances']] == [0, 3]
    assert info['neg_labels'] == [2]
    assert info['not_exhaustive_labels'] == [3]
    assert dataset.metainfo['cat_ids'] == (3, 5, 7, 9)
    assert dataset.metainfo['frequency'] == ('r', 'c', 'c', 'f')


def test_classes_have_the_order_of_the_config(tmp_path):
    path = write_lvis(tmp_path)
    dataset = build(path, tmp_path, metainfo={'classes': ('many', 'rare')})
    info = dataset.get_data_info(0)
    assert [item['bbox_label'] for item in info['instances']] == [1, 0]
    assert dataset.metainfo['cat_ids'] == (9, 3)
    with pytest.raises(ValueError, match='got 1203 others of 1203: aerosol'):
        build(path, tmp_path, metainfo={})


def test_is_what_the_host_reads(tmp_path):
    """Its own loader, where the package is there."""
    pytest.importorskip('lvis')
    path = write_lvis(tmp_path)
    ours = build(path, tmp_path)
    theirs = build(path, f'{tmp_path}/', type='mmdet.LVISV1Dataset')
    keys = ('img_path', 'img_id', 'instances', 'height', 'width')
    for index in range(len(ours)):
        one, other = ours.get_data_info(index), theirs.get_data_info(index)
        assert all(one[key] == other[key] for key in keys)


def test_rare_classes_are_repeated(tmp_path):
    dataset = ClassBalancedDataset(build(write_lvis(tmp_path), tmp_path), 0.5)
    # In 1 of 6 pictures: sqrt(0.5 / (1 / 6)) times, rounded up.
    assert len(dataset) == 7
    own = [dataset.get_data_info(n)['img_id'] for n in range(len(dataset))]
    assert own.count(1) == 2


def test_file_names_are_taken_before_urls(tmp_path):
    path = write_lvis(tmp_path)
    content = load(path)
    content['images'][0]['file_name'] = 'other/1.jpg'
    dump(content, path)
    info = build(path, tmp_path).get_data_info(0)
    assert info['img_path'] == str(tmp_path / 'other/1.jpg')
