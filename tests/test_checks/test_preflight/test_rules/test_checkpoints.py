"""Weights that cannot be loaded, found without loading them."""

import copy

import pytest
import torch
from helpers.corpus_bases import names_of_authors
from helpers.lint_findings import lint
from mmdet.models import ResNet, SwinTransformer
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


KEY = 'model.backbone.convert_weights'


@pytest.mark.parametrize(
    ('form', 'converts', 'error', 'options'),
    [
        ('mmdet', True, 'KeyError', {KEY: False}),
        ('authors', False, 'list index out of range', {KEY: True}),
        # Only names with 'backbone.' are loaded.
        ('bare', False, 'list index out of range', {}),
        ('mmdet', False, '', {}),
        ('authors', True, '', {}),
    ],
)
@pytest.mark.parametrize('way', ['init_cfg', 'without type'])
def test_weights_that_swin_converts(
    form, converts, error, options, way, tmp_path
):
    swin = {
        **{'embed_dims': 4, 'depths': [1, 2], 'num_heads': [1, 2]},
        **{'window_size': 2, 'strides': (4, 2), 'out_indices': (0, 1)},
    }
    model = nn.Module()
    model.backbone = SwinTransformer(**swin)
    state = model.state_dict()
    if form == 'bare':
        state = model.backbone.state_dict()
    elif form == 'authors':
        state = names_of_authors(model.backbone)
    file = str(tmp_path / 'swin.pth')
    torch.save({'model': state}, file)
    weights = {
        'init_cfg': {'init_cfg': {'type': 'Pretrained', 'checkpoint': file}},
        'without type': {'init_cfg': {'checkpoint': file}},
    }[way]
    backbone = {'type': 'SwinTransformer', **swin, **weights}
    backbone['convert_weights'] = converts
    found = lint({'model.backbone': backbone}, 'CKPT009', model=model)
    assert [finding.options for finding in found] == [options] * bool(error)
    assert error in ''.join(finding.message for finding in found)


def test_pretrained_that_swin_drops(tmp_path):
    model = nn.Module()
    model.backbone = SwinTransformer()
    file = weights_of(model, tmp_path / 'swin.pth')
    changes = {'type': 'SwinTransformer', 'pretrained': file}
    (found,) = lint({'model.backbone': changes}, 'CKPT009', model=model)
    assert found.options['model.backbone.init_cfg']['checkpoint'] == file


@pytest.mark.parametrize('fits', [True, False])
def test_pretrained_of_a_plain_backbone(fits, tmp_path):
    model = resnet()
    weights = model.backbone if fits else nn.Linear(1, 1)
    file = weights_of(weights, tmp_path / 'a.pth')
    backbone = {'type': 'ResNet', 'depth': 50, 'base_channels': 2}
    backbone |= {'stem_channels': 2, 'norm_eval': False, 'pretrained': file}
    found = lint({'model.backbone': backbone}, 'CKPT009', model=model)
    assert [finding.key for finding in found] == [
        'model.backbone.pretrained'
    ] * (not fits)


def resnet(**options):
    options = {'depth': 50, 'base_channels': 2, 'stem_channels': 2, **options}
    model = nn.Module()
    model.backbone = ResNet(**options)
    return model


@pytest.mark.parametrize(
    ('theirs', 'severity', 'text'),
    [
        # Blocks 6 to 22 of the third stage are lost.
        ({'depth': 101}, 'WARNING', 'layer3 has 6 layers, and 23 in the'),
        # Two of four stages have fewer blocks, all have other convolutions.
        ({'depth': 34, 'stem_channels': 4}, 'ERROR', 'have another shape'),
        ({'depth': 18}, 'ERROR', 'layer3 has 6 layers, and 2 in the file'),
        ({'deep_stem': True}, '', ''),
        ({}, '', ''),
    ],
)
def test_local_weights_of_another_size(theirs, severity, text, tmp_path):
    """Names and shapes decide, not how the file is called."""
    ours, other = resnet(), resnet(**theirs)
    for prefix in ('', 'backbone.'):
        file = weights_of(other.backbone, tmp_path / 'r34.pth', prefix)
        changes = {'load_from': file} if prefix else pretrained(file)
        findings = lint(changes, 'CKPT011', model=ours)
        assert [f.severity.name for f in findings] == [severity][: len(text)]
        assert all(text in f.message for f in findings)


@pytest.mark.parametrize(
    ('checkpoint', 'expected'),
    [
        ('torchvision://resnet50', False),
        ('torchvision://resnet101', True),
        ('open-mmlab://detectron2/resnet101_caffe', True),
        ('open-mmlab://resnext101_32x4d', True),
        ('https://a.org/faster_rcnn_r101_fpn_1x-f51.pth', True),
        ('https://a.org/resnet50_of_resnet101.pth', False),
        ('https://a.org/r_1018.pth', False),
    ],
)
def test_size_in_the_name_of_weights(checkpoint, expected):
    assert bool(lint(pretrained(checkpoint), 'CKPT011')) == expected
    assert bool(lint({'load_from': checkpoint}, 'CKPT011')) == expected


FROZEN = 'model.backbone.frozen_stages'
NORM = 'model.backbone.norm_cfg'
NORM_EVAL = 'model.backbone.norm_eval'


@pytest.mark.parametrize(
    ('changes', 'severity'),
    [
        ({FROZEN: 1}, 'ERROR'),
        ({FROZEN: 0}, 'ERROR'),
        # It is on by default.
        ({NORM_EVAL: None}, 'WARNING'),
        ({NORM_EVAL: True, NORM: {'type': 'GN', 'num_groups': 8}}, ''),
        ({}, ''),
        ({FROZEN: 1, 'load_from': 'https://a.org/a.pth'}, ''),
        ({FROZEN: 1, 'resume': True}, ''),
        ({FROZEN: 1, **pretrained('https://a.org/a.pth')}, ''),
        ({FROZEN: 1, INIT: {'type': 'Kaiming', 'layer': 'Conv2d'}}, 'ERROR'),
        ({FROZEN: 1, INIT: {'type': 'OwnInit'}}, ''),
        ({FROZEN: 1, 'model.teacher_ckpt': 'a.pth'}, ''),
        ({FROZEN: 1, 'model.pretrained': 'https://a.org/a.pth'}, ''),
    ],
)
def test_random_weights_that_stay(changes, severity):
    findings = lint(changes, 'CKPT010')
    assert [f.severity.name for f in findings] == [severity][: len(severity)]


def test_what_frozen_stages_does_to_random_weights():
    """In the host: the first layers and all statistics stay as they are."""
    net = ResNet(18, base_channels=4, stem_channels=4, frozen_stages=1)
    # Which returns nothing there.
    net.train()
    before = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], 1.0
    )
    sum(x.mean() for x in net(torch.randn(2, 3, 32, 32))).backward()
    optimizer.step()
    same = {k for k, v in net.state_dict().items() if v.equal(before[k])}
    assert {'conv1.weight', 'layer1.1.conv2.weight'} <= same
    assert {k for k in before if 'running' in k} <= same
    assert 'layer4.1.conv2.weight' not in same
