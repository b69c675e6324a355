"""Heads and ignored labels of a config's model."""

import pytest
from mmengine.config import Config

import mmext
from mmext.label_check.sources import read_heads, read_ignore_places


def load(name: str) -> dict:
    return Config.fromfile(mmext.config_path(name)).to_dict()


def test_heads_of_a_segmentor():
    heads = read_heads(load('pidnet/pidnet_s_camvid.py')['model'])
    (head,) = heads
    assert head.place == 'model.decode_head'
    assert (head.num_classes, head.ignore_index) == (11, 11)
    assert [len(weights) for _, weights in head.class_weights] == [11, 11, 11]
    assert head.losses[2] == (
        'model.decode_head.loss_decode[2]',
        'mmext.CheckedBoundaryLoss',
    )


def test_heads_with_the_default_ignore_index():
    name = 'pspnet/pspnet_r50_d8_4xb4_160k_ade20k.py'
    heads = read_heads(load(name)['model'])
    assert [head.place for head in heads] == [
        'model.decode_head',
        'model.auxiliary_head',
    ]
    assert {head.ignore_index for head in heads} == {255}


def test_heads_of_a_detector_ignore_nothing():
    model = {
        'bbox_head': {
            'num_classes': 3,
            'loss_cls': {'type': 'mmdet.FocalLoss'},
        }
    }
    (head,) = read_heads(model)
    assert head.ignore_index is None
    assert head.losses == (('model.bbox_head.loss_cls', 'mmdet.FocalLoss'),)


def test_class_weights_of_files_have_no_length():
    model = {
        'decode_head': {
            'num_classes': 3,
            'loss_decode': {'type': 'X', 'class_weight': 'weights.npy'},
        }
    }
    assert read_heads(model)[0].class_weights == ()


def test_ignore_places_are_those_that_are_read():
    places = dict(read_ignore_places(load('pidnet/pidnet_s_camvid.py')))
    assert set(places.values()) == {11}
    for where in (
        'model.data_preprocessor.seg_pad_val',
        'model.decode_head.ignore_index',
        'train_dataloader.dataset.ignore_index',
        'val_evaluator.ignore_index',
    ):
        assert where in places
    assert not any(place.startswith('train_pipeline') for place in places)


@pytest.mark.parametrize('value', [True, '255', None])
def test_other_values_are_no_labels(value):
    assert read_ignore_places({'model': {'ignore_index': value}}) == ()
