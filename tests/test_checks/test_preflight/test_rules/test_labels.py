"""What the label checker says of a config, as findings."""

import numpy as np
import pytest
from helpers.lint_findings import lint
from mmengine.config import Config
from PIL import Image

import mmext
from mmext.checks.preflight.rules.labels import label_findings


@pytest.fixture
def pidnet():
    return Config.fromfile(mmext.config_path('pidnet/pidnet_s_camvid.py'))


def test_length_of_class_weights(pidnet):
    pidnet.model.decode_head.loss_decode[0].class_weight = [1.0] * 12
    assert lint(pidnet, 'CFG002')
    pidnet.model.decode_head.type = 'mmseg.SideAdapterCLIPHead'
    assert lint(pidnet, 'CFG002') == [], 'weighs masks of no class, too'


def test_names_twice_of_pictures():
    """ImageNet has a crane that is a bird, and one that is a machine."""
    twice = {
        f'{split}_dataloader.dataset.metainfo': {'classes': ('crane',) * 2}
        for split in ('train', 'val')
    }
    for split in ('train', 'val'):
        twice[f'{split}_dataloader.dataset.type'] = 'mmdet.CocoDataset'
    for scope, severity in (('mmdet', 'ERROR'), ('mmpretrain', 'INFO')):
        (finding,) = lint({**twice, 'default_scope': scope}, 'CFG007')
        assert finding.severity.name == severity


@pytest.fixture
def segmentation(tmp_path):
    """A config with three masks, of which one has a label out of range."""
    for number, label in enumerate((0, 1, 7)):
        for folder in ('img', 'ann'):
            (tmp_path / folder).mkdir(exist_ok=True)
        picture = np.zeros((8, 8, 3), np.uint8)
        Image.fromarray(picture).save(tmp_path / 'img' / f'{number}.jpg')
        mask = np.full((8, 8), label, np.uint8)
        Image.fromarray(mask).save(tmp_path / 'ann' / f'{number}.png')
    dataset = {
        'type': 'BaseSegDataset',
        'data_root': str(tmp_path),
        'data_prefix': {'img_path': 'img', 'seg_map_path': 'ann'},
        'metainfo': {'classes': ('a', 'b')},
        'pipeline': [{'type': 'LoadAnnotations'}],
    }
    head = {
        'type': 'FCNHead',
        'num_classes': 2,
        'loss_decode': {'type': 'CrossEntropyLoss'},
    }
    return Config(
        {
            'default_scope': 'mmseg',
            'model': {'type': 'EncoderDecoder', 'decode_head': head},
            'train_dataloader': {'batch_size': 1, 'dataset': dataset},
        }
    )


def test_labels_out_of_range(segmentation, tmp_path):
    findings = label_findings(
        segmentation, splits=['train', 'val'], store=tmp_path / 'facts.db'
    )
    (wrong,) = [
        finding for finding in findings if finding.severity.name == 'ERROR'
    ]
    assert wrong.rule.startswith('SEG')
    assert '7' in wrong.message
    assert wrong.key == 'train_dataloader.dataset'
    assert wrong.names[0].endswith('2.png')
    assert findings == sorted(findings, key=lambda finding: -finding.severity)


def test_data_that_are_not_there(segmentation, tmp_path):
    segmentation.train_dataloader.dataset.data_root = 'no/such/folder'
    with pytest.raises(FileNotFoundError, match='no/such/folder'):
        label_findings(
            segmentation, splits=['train', 'val'], store=tmp_path / 'facts.db'
        )
