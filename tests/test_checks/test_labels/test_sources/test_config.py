"""Splits of configs, as their training would read them."""

import pytest
from mmengine.config import Config

import mmext
from mmext.checks.config import read_config
from mmext.checks.labels.sources.config import splits_of_config
from mmext.datasets import ShapesSpec, write_shapes_dataset


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    spec = ShapesSpec(image_size=(48, 40))
    write_shapes_dataset(folder, spec, num_train=4, num_val=2)
    return folder


def test_semantic(shapes):
    path = mmext.config_path('pidnet/pidnet_small_shapes.py')
    cfg = read_config(path, cfg_options={'data_root': str(shapes)})
    train, val = splits_of_config(cfg)
    assert (train.expected.split, val.expected.split) == ('train', 'val')
    assert train.expected.task == 'semantic'
    assert train.expected.num_classes == len(train.expected.classes) == 7
    assert train.expected.ignore_index == 255
    assert train.expected.loader_backend == 'pillow'
    samples = list(train.samples())
    assert [sample.index for sample in samples] == [0, 1, 2, 3]
    for sample in samples:
        assert sample.image.endswith('.jpg') or sample.image.endswith('.png')
        assert str(shapes) in sample.mask
    assert len(list(val.samples())) == 2
    # Once more: a source can be read again.
    assert list(train.samples()) == samples


def test_rejects_a_config_without_data():
    with pytest.raises(ValueError, match='must have a data set for one of'):
        splits_of_config(Config({'model': {}}))
