"""Splits of configs, as their training would read them."""

import json

import pytest
from mmengine.config import Config

import mmext
from mmext.checks.config import read_config
from mmext.checks.labels.check import check_sources
from mmext.checks.labels.sources.config import splits_of_config
from mmext.checks.labels.store import FactStore
from mmext.datasets import ShapesSpec, write_shapes_dataset


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    spec = ShapesSpec(image_size=(48, 40))
    write_shapes_dataset(folder, spec, num_train=4, num_val=2)
    return folder


def load(name: str, root) -> Config:
    path = mmext.config_path(name)
    return read_config(path, cfg_options={'data_root': str(root)})


def test_semantic(shapes):
    cfg = load('pidnet/pidnet_small_shapes.py', shapes)
    train, val = splits_of_config(cfg)
    assert (train.expected.split, val.expected.split) == ('train', 'val')
    assert train.expected.task == 'semantic'
    assert train.expected.num_classes == len(train.expected.classes) == 7
    assert train.expected.ignore_index == 255
    assert train.expected.loader_backend == 'pillow'
    samples = list(train.samples())
    assert [each.index for each in samples] == [0, 1, 2, 3]
    for each in samples:
        assert each.image.endswith('.jpg') or each.image.endswith('.png')
        assert str(shapes) in each.mask
    assert len(list(val.samples())) == 2
    # Once more: a source can be read again.
    assert list(train.samples()) == samples


def test_detection(shapes):
    cfg = load('co_dino/co_dino_r18_shapes.py', shapes)
    train, _ = splits_of_config(cfg)
    assert train.expected.task in ('detection', 'instance')
    assert train.expected.loader_backend == 'cv2'
    first = next(train.samples())
    assert (first.width, first.height) == (48, 40)
    # Of a good file no box needs to be listed.
    assert (first.boxes, first.num_boxes > 0) == ((), True)
    assert first.annotation == train.coco().path
    assert len(train.coco().file.images.id) == 4


def test_a_file_that_no_loader_takes(shapes, tmp_path):
    """MMDetection ends with an AssertionError at a doubled id."""
    cfg = load('co_dino/co_dino_r18_shapes.py', shapes)
    content = json.loads((shapes / 'annotations/train.json').read_bytes())
    content['annotations'][1]['id'] = content['annotations'][0]['id']
    path = tmp_path / 'train.json'
    path.write_text(json.dumps(content))
    cfg.train_dataloader.dataset.ann_file = str(path)
    (train,) = splits_of_config(cfg, ['train'])
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_sources([train], store)
    assert 'COCO002' in [each.rule for each in report.groups]


def test_voc(shared_path):
    root = f'{shared_path("data/bccd")}/'
    train, val = splits_of_config(load('co_dino/co_dino_r18_bccd.py', root))
    assert train.expected.classes == ('RBC', 'WBC', 'Platelets')
    assert len(list(val.samples())) == 87
    first = next(train.samples())
    assert first.annotation_kind == 'voc'
    assert first.annotation.endswith('.xml')


def test_a_split_without_samples(shapes, tmp_path):
    """An img_suffix that fits no file."""
    cfg = load('pidnet/pidnet_small_shapes.py', shapes)
    cfg.train_dataloader.dataset.img_suffix = '.nope'
    (train,) = splits_of_config(cfg, ['train'])
    assert list(train.samples()) == []
    # Each label map is without its image.
    assert [each.kind for each in train.orphans()] == ['mask'] * 4


def test_camvid(shared_path):
    cfg = load('pidnet/pidnet_s_camvid.py', f'{shared_path("data/camvid")}/')
    train, val = splits_of_config(cfg)
    assert len(list(train.samples())) == 367
    assert len(list(val.samples())) == 101
    assert train.expected.ignore_index == 11
    assert {each.value for each in train.expected.ignore_places} == {11}


def test_reduce_zero_label_and_label_map(shapes):
    """What the loader will do to the values of the files."""
    cfg = load('pidnet/pidnet_small_shapes.py', shapes)
    dataset = cfg.train_dataloader.dataset
    dataset.reduce_zero_label = True
    dataset.metainfo = {'classes': ('ground', 'star')}
    train, val = splits_of_config(cfg)
    assert train.expected.reduce_zero_label
    assert not val.expected.reduce_zero_label
    mapped = dict(train.expected.label_map)
    assert mapped[0] == 0
    assert sorted(mapped.values())[:2] == [0, 1]
    assert set(mapped.values()) == {0, 1, 255}


def test_wrappers_give_what_is_inside(shapes):
    cfg = load('pidnet/pidnet_small_shapes.py', shapes)
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = {
        'type': 'RepeatDataset',
        'times': 3,
        'dataset': {'type': 'ConcatDataset', 'datasets': [inner, inner]},
    }
    found = splits_of_config(cfg, ['train'])
    assert [each.expected.split for each in found] == ['train[0]', 'train[1]']
    assert [len(list(each.samples())) for each in found] == [4, 4]


def test_config_is_left_as_it_was(shapes):
    cfg = load('pidnet/pidnet_small_shapes.py', shapes)
    before = cfg.to_dict()
    splits_of_config(cfg)
    assert cfg.to_dict() == before


def test_rejects_a_config_without_data():
    with pytest.raises(ValueError, match='must have a data set for one of'):
        splits_of_config(Config({'model': {}}))
