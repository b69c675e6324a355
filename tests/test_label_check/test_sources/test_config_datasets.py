"""Data sets of a config, built without what their loaders would drop."""

from mmdet.datasets import CocoDataset, XMLDataset
from mmengine.config import Config

import mmext  # noqa: F401
from mmext.label_check.sources.config_datasets import (
    build_leaves,
    classes_of,
    loaders,
    reads_coco,
    reads_voc,
)

CFG = Config({'default_scope': 'mmdet'})


class OtherCoco(CocoDataset):
    """Reads the file in a way of its own."""

    def parse_data_info(self, raw_data_info):
        return raw_data_info


def coco(**more) -> dict:
    return {
        'type': 'CocoDataset',
        'ann_file': 'no/such.json',
        'metainfo': {'classes': ('a', 'b')},
        'pipeline': [{'type': 'LoadAnnotations'}],
        **more,
    }


def test_files_are_not_loaded():
    """A loader fails at files that are not there."""
    (leaf,) = build_leaves(coco(), CFG)
    assert reads_coco(leaf)
    assert not reads_voc(leaf)
    assert classes_of(leaf) == ('a', 'b')


def test_wrappers():
    dataset = {
        'type': 'RepeatDataset',
        'times': 2,
        'dataset': {
            'type': 'ConcatDataset',
            'datasets': [coco(), coco(data_root='x')],
        },
    }
    before = str(dataset)
    leaves = build_leaves(dataset, CFG)
    assert [each.ann_file for each in leaves] == [
        'no/such.json',
        'x/no/such.json',
    ]
    assert str(dataset) == before


def test_which_files_are_read():
    assert reads_voc(XMLDataset(lazy_init=True))
    assert not reads_coco(XMLDataset(lazy_init=True))
    assert not reads_coco(OtherCoco(lazy_init=True))


def test_loaders():
    step = {'type': 'mmdet.LoadAnnotations', 'with_mask': True}
    dataset = {'dataset': coco(pipeline=[{'type': 'X'}, step])}
    plain = {'train_dataloader': {'dataset': dataset}}
    assert list(loaders(plain, 'train')) == [step]
    assert list(loaders(plain, 'val')) == []
