"""Weights that cannot be loaded, found without loading them."""

import pytest
import torch
from helpers.lint_findings import lint
from mmengine.model import BaseModule
from torch import nn

from mmext.checks.config import DELETE

INIT = 'model.backbone.init_cfg'


def pretrained(checkpoint):
    return {INIT: {'type': 'Pretrained', 'checkpoint': checkpoint}}


@pytest.fixture
def weights(tmp_path):
    """A weights file as torch writes them."""
    file = tmp_path / 'a.pth'
    torch.save({'state_dict': {'w': torch.zeros(1000)}}, file)
    return file


def test_a_folder_that_was_shared(tmp_path):
    (tmp_path / 'config.json').write_text('{}')
    assert lint({'load_from': str(tmp_path)}, 'CKPT') == []
    (finding,) = lint(pretrained(str(tmp_path)), 'CKPT')
    assert 'is a folder' in finding.message


@pytest.mark.parametrize(
    ('content', 'fault'),
    [
        (b'', 'is empty'),
        (b'  <!DOCTYPE html><html>404', 'is a web page'),
        (b'<?xml version="1.0"?><Error>', 'is a web page'),
        (b'version https://git-lfs.github.com/spec/v1', 'pointer of Git LFS'),
        (b'{"message": "Not Found"}', 'is a text of 24 bytes'),
    ],
)
def test_files_that_are_none(tmp_path, content, fault):
    file = tmp_path / 'a.pth'
    file.write_bytes(content)
    (finding,) = lint(pretrained(str(file)), 'CKPT')
    assert finding.rule == 'CKPT002'
    assert fault in finding.message
    assert finding.key == f'{INIT}.checkpoint'


def test_flipped_bit(weights):
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    (finding,) = lint({'load_from': str(weights)}, 'CKPT')
    assert finding.rule == 'CKPT002'
    assert 'is damaged: record' in finding.message


def test_trusted_file(tmp_path):
    file = tmp_path / 'a.pth'
    torch.save({'a': print}, file)
    (finding,) = lint({'load_from': str(file)}, 'CKPT')
    assert finding.rule == 'CKPT008'
    assert 'builtin' in finding.message
    assert 'print' in finding.message
    options = {'load_from': str(file), 'trust_checkpoint': True}
    assert lint(options, 'CKPT') == []


@pytest.mark.parametrize(
    ('address', 'severity', 'text'),
    [
        ('htps://host.org/a.pth', 'ERROR', 'no loader knows'),
        ('torchvison://resnet50', 'ERROR', 'no loader knows'),
        ('mycloud://a.pth', 'WARNING', 'no loader knows'),
        ('https:///a.pth', 'ERROR', 'names no file'),
        ('https://host.org/', 'ERROR', 'names no file'),
        ('https://host.org/a b.pth', 'ERROR', 'has blanks'),
    ],
)
def test_bad_addresses(address, severity, text):
    (finding,) = lint(pretrained(address), 'CKPT')
    assert (finding.rule, finding.severity.name) == ('CKPT003', severity)
    assert text in finding.message


@pytest.mark.parametrize('value', [None, ''])
def test_nothing_named(value):
    (finding,) = lint(pretrained(value), 'CKPT')
    assert finding.rule == 'CKPT004'
    # None may be meant; an empty text is not.
    assert finding.options == ({INIT: DELETE} if value is None else {})


@pytest.fixture
def detector():
    """As far as weights are concerned."""
    model = nn.Module()
    model.backbone = BaseModule()
    model.backbone.conv = nn.Conv2d(1, 2, 3)
    return model


def weights_of(module, file, prefix=''):
    state = {f'{prefix}{k}': v for k, v in module.state_dict().items()}
    torch.save({'state_dict': state, 'meta': {}}, file)
    return str(file)


def test_weights_that_do_not_fit(detector, tmp_path):
    """The same names with other shapes."""
    other = nn.Module()
    other.backbone = nn.Module()
    other.backbone.conv = nn.Conv2d(1, 3, 3)
    file = weights_of(other, tmp_path / 'b.pth')
    (finding,) = lint({'load_from': file}, 'CKPT', model=detector)
    assert finding.rule == 'CKPT009'


def test_weights_of_a_backbone(detector, tmp_path):
    file = weights_of(detector.backbone, tmp_path / 'a.pth')
    (finding,) = lint({'load_from': file}, 'CKPT', model=detector)
    assert finding.options['load_from'] is None
    assert finding.options['model.backbone.init_cfg']['checkpoint'] == file
    assert lint(pretrained(file), 'CKPT', model=detector) == []


def test_a_prefix_that_lacks(detector, tmp_path):
    file = weights_of(detector, tmp_path / 'a.pth')
    (finding,) = lint(pretrained(file), 'CKPT', model=detector)
    assert finding.rule == 'CKPT009'
    assert finding.options == {'model.backbone.init_cfg.prefix': 'backbone.'}
    changes = pretrained(file)
    changes['model.backbone.init_cfg']['prefix'] = 'backbone.'
    assert lint(changes, 'CKPT', model=detector) == []


def test_a_backbone_that_converts_weights(detector, tmp_path):
    file = weights_of(detector, tmp_path / 'a.pth')

    def init_weights(self):
        pass

    own = type('Own', (BaseModule,), {'init_weights': init_weights})
    detector.backbone = own()
    assert lint(pretrained(file), 'CKPT', model=detector) == []
