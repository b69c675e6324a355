import json

import cv2
import numpy as np
import pytest
import torch
from preflight_configs import detector

from mmext.preflight import trace_train_step
from mmext.preflight.batches import make_batches
from mmext.preflight.batches.real import real_batches
from mmext.preflight.building import build_for_preflight
from mmext.preflight.cannot_build import CannotBuildError


@pytest.fixture
def config(tmp_path):
    """A detector whose data are five pictures with a box each."""
    images, annotations = [], []
    for index in range(5):
        name = f'{index}.png'
        pixels = np.full((64, 96, 3), 40 * index, np.uint8)
        assert cv2.imwrite(str(tmp_path / name), pixels)
        images.append(
            {'id': index, 'file_name': name, 'height': 64, 'width': 96}
        )
        annotations.append(
            {
                'id': index,
                'image_id': index,
                'category_id': 1,
                'bbox': [8, 8, 40, 40],
                'area': 1600,
                'iscrowd': 0,
            }
        )
    content = {
        'images': images,
        'annotations': annotations,
        'categories': [{'id': 1, 'name': 'cell'}],
    }
    (tmp_path / 'labels.json').write_text(json.dumps(content))
    cfg = detector()
    cfg['train_dataloader']['dataset'].update(
        data_root=f'{tmp_path}/',
        ann_file='labels.json',
        data_prefix={'img': ''},
        metainfo={'classes': ('cell',)},
    )
    pipeline = cfg['train_dataloader']['dataset']['pipeline']
    pipeline[2] = {'type': 'Resize', 'scale': (96, 64)}
    return cfg


def test_first_batches_of_the_data(config):
    built = build_for_preflight(config)
    ((first, second),) = make_batches(built, ['real'], steps=2).values()
    assert [int(each[0, 0, 0]) for each in first['inputs']] == [0, 40]
    assert [int(each[0, 0, 0]) for each in second['inputs']] == [80, 120]
    assert not trace_train_step(built.model, first).unused


def test_last_batch_may_be_smaller(config):
    batches = real_batches(config, steps=9, batch_size=3)
    assert [len(batch['inputs']) for batch in batches] == [3, 2]


def test_each_part_of_the_data_gives_samples(config):
    loader = config['train_dataloader']
    inner = loader['dataset']
    loader['dataset'] = {'type': 'ConcatDataset', 'datasets': [inner, inner]}
    batches = real_batches(config, steps=3)
    blues = [
        [int(each[0, 0, 0]) for each in batch['inputs']] for batch in batches
    ]
    assert blues == [[0, 40, 0, 40], [80, 120, 80, 120], [160, 160]]


def test_leaves_random_numbers_alone(config):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    real_batches(config)
    assert torch.equal(torch.rand(1), expected)


def test_rejects_config_without_data():
    with pytest.raises(CannotBuildError, match='must have train_dataloader'):
        real_batches({'model': {}})


def test_rejects_data_that_are_not_there():
    with pytest.raises(
        CannotBuildError,
        match=r'dataset must give samples, got FileNotFoundError',
    ):
        real_batches(detector())
