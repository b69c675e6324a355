"""Heads and ignored labels of a config's model."""

import pytest
from mmengine.config import Config

import mmext
from mmext.checks.config import (
    ignored_value,
    read_heads,
    read_ignore_locations,
)


def load(name: str) -> dict:
    return Config.fromfile(mmext.config_path(name)).to_dict()


def test_heads_of_masks_weigh_masks_of_no_class():
    head = {'num_classes': 3, 'loss_cls': {'type': 'X', 'class_weight': [1]}}
    for kind in ('Mask2FormerHead', 'mmseg.MaskFormerHead'):
        assert read_heads({'decode_head': {**head, 'type': kind}})[0].of_masks
    assert not read_heads({'head': {**head, 'type': 'FCNHead'}})[0].of_masks


CRITERION = {'type': 'OhemCrossEntropy'}


def test_defaults_count():
    steps = [
        {'type': 'RandomRotate', 'prob': 0.5, 'degree': 10},
        {'type': 'RandomRotate', 'prob': 0, 'degree': 10},
        {'type': 'RandomCutOut', 'prob': 0.5, 'n_holes': 1},
        {'type': 'RandomCrop', 'crop_size': (4, 4)},
        {'type': 'RandomCrop', 'crop_size': (4, 4), 'cat_max_ratio': 0.75},
        {'type': 'Pad', 'size': (9, 9), 'pad_val': 3},
        {'type': 'Pad', 'size': (9, 9), 'padding_mode': 'reflect'},
        {'type': 'mine.Pad', 'pad_val': 3},
    ]
    head = {'num_classes': 3, 'loss_decode': CRITERION}
    config = {
        'default_scope': 'mmseg',
        'model': {
            'data_preprocessor': {'type': 'SegDataPreProcessor'},
            'decode_head': {**head, 'type': 'FCNHead'},
        },
        'train_dataloader': {'dataset': {'pipeline': steps}},
        'val_evaluator': {'type': 'IoUMetric'},
    }
    results = {
        ignored.location.removeprefix(
            'train_dataloader.dataset.'
        ): ignored.role
        for ignored in read_ignore_locations(config)
    }
    assert results == {
        'model.data_preprocessor.seg_pad_val': 'pad',
        'model.decode_head.loss_decode.ignore_label': 'loss',
        'pipeline[0].seg_pad_val': 'fill',
        'pipeline[4].ignore_index': 'look',
        'pipeline[5].pad_val': 'pad',
        'val_evaluator.ignore_index': 'metric',
    }


CROP = {'type': 'RandomCrop', 'crop_size': (512, 512)}
SCALE = {'scale': (2048, 512), 'keep_ratio': True}


@pytest.mark.parametrize(
    ('steps', 'pads'),
    [
        ([{'type': 'LoadAnnotations'}], 'stored'),
        ([CROP, {'type': 'RandomFlip'}], 'stored'),
        ([{'type': 'Resize', **SCALE}, CROP], 'perhaps'),
        ([{'type': 'Resize', 'scale': (640, 480)}], 'always'),
        ([{'type': 'Resize', 'scale': (512, 512)}], None),
        (
            [{'type': 'RandomResize', 'ratio_range': (0.5, 2), **SCALE}, CROP],
            'always',
        ),
        (
            [{'type': 'RandomResize', 'ratio_range': (1, 2), **SCALE}, CROP],
            'perhaps',
        ),
        ([{'type': 'Pad', 'size': (512, 512)}], None),
        ([{'type': 'ResizeToMultiple'}], 'perhaps'),
    ],
)
def test_whether_images_are_padded(steps, pads):
    config = {
        'default_scope': 'mmseg',
        'model': {
            'data_preprocessor': {
                'type': 'SegDataPreProcessor',
                'size': (512, 512),
            }
        },
        'train_dataloader': {'dataset': {'pipeline': steps}},
    }
    ignored = [
        item.pads
        for item in read_ignore_locations(config)
        if item.location == 'model.data_preprocessor.seg_pad_val'
    ]
    assert ignored == ([pads] if pads else [])


def test_the_value_that_the_losses_ignore():
    def ignored(loss: dict, **head) -> int | None:
        head = {'num_classes': 3, 'loss_decode': loss, **head}
        config = {'model': {'decode_head': head}}
        locations = read_ignore_locations(config)
        return ignored_value(read_heads(config['model']), locations, 255)

    own = {**CRITERION, 'ignore_label': 7}
    assert ignored(CRITERION) == 255
    assert ignored(CRITERION, ignore_index=3) == 3
    assert ignored(own) == 7
    assert ignored(own, ignore_index=3) == 3
    assert ignored([own, CRITERION]) == 255


def test_what_a_config_says_is_found_without_its_components(monkeypatch):
    cfg = load('pidnet/pidnet_s_camvid.py')
    every = read_ignore_locations(cfg)
    monkeypatch.setattr('mmext.checks.config.label_spec.find_component', None)
    said = read_ignore_locations(cfg, defaults=False)
    assert {(item.location, item.value) for item in said} == {
        (item.location, item.value) for item in every if item.said
    }
    assert said
