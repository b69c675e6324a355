"""Weights that cannot be loaded, found without loading them."""

import zipfile

import pytest
import torch
from lint_findings import lint

from mmext.preflight.findings import DELETE
from mmext.preflight.lint import checkpoints
from mmext.preflight.lint.checkpoints import file_fault

INIT = 'model.backbone.init_cfg'


def pretrained(checkpoint):
    return {INIT: {'type': 'Pretrained', 'checkpoint': checkpoint}}


@pytest.fixture
def weights(tmp_path):
    """A file of weights as torch writes them."""
    file = tmp_path / 'a.pth'
    torch.save({'state_dict': {'w': torch.zeros(1000)}}, file)
    return file


def test_a_file_of_weights(weights):
    assert file_fault(weights) == ''
    assert lint(pretrained(str(weights)), 'CKPT') == []
    assert lint({'load_from': str(weights)}, 'CKPT') == []


def test_the_old_format(tmp_path):
    file = tmp_path / 'old.pth'
    torch.save({'w': 1}, file, _use_new_zipfile_serialization=False)
    assert file_fault(file) == ''


def test_other_formats_are_not_judged(tmp_path):
    file = tmp_path / 'a.safetensors'
    file.write_text('text')
    assert file_fault(file) == ''


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
    (found,) = lint(pretrained(str(file)), 'CKPT')
    assert found.rule == 'CKPT002'
    assert fault in found.message
    assert found.key == f'{INIT}.checkpoint'


def test_cut_off(weights):
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    (found,) = lint({'load_from': str(weights)}, 'CKPT')
    assert 'is cut off' in found.message
    assert found.key == 'load_from'
    assert not zipfile.is_zipfile(weights)
    with pytest.raises(RuntimeError):
        torch.load(weights)


def test_missing(tmp_path):
    (found,) = lint({'load_from': str(tmp_path / 'no.pth')}, 'CKPT')
    assert (found.rule, found.severity.name) == ('CKPT001', 'ERROR')
    (found,) = lint({'load_from': str(tmp_path)}, 'CKPT')
    assert 'is a folder' in found.message
    (found,) = lint({'model.pretrained': 'no.pth'}, 'CKPT001')
    assert found.key == 'model.pretrained'


@pytest.mark.parametrize(
    'address',
    [
        'https://host.org/a.pth',
        'http://host.org/b/a.pth',
        'open-mmlab://detectron2/resnet50_caffe',
        's3://bucket/a.pth',
    ],
)
def test_addresses(address):
    assert lint(pretrained(address), 'CKPT') == []


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
    (found,) = lint(pretrained(address), 'CKPT')
    assert (found.rule, found.severity.name) == ('CKPT003', severity)
    assert text in found.message


@pytest.mark.parametrize('value', [None, ''])
def test_nothing_named(value):
    (found,) = lint(pretrained(value), 'CKPT')
    assert found.rule == 'CKPT004'
    assert found.options == {INIT: DELETE}


def test_resume_is_a_switch():
    assert lint({'resume': True}, 'CKPT005') == []
    assert lint({'resume': 'auto'}, 'CKPT005') == []
    (found,) = lint({'resume': 'a.pth'}, 'CKPT005')
    assert found.options == {'resume': True, 'load_from': 'a.pth'}


@pytest.mark.parametrize('here', [True, False])
def test_torchvision(monkeypatch, here):
    def find_spec(name):
        assert name == 'torchvision'
        return object() if here else None

    monkeypatch.setattr(checkpoints.importlib.util, 'find_spec', find_spec)
    notes = list(checkpoints.missing_package(_subject()))
    assert bool(notes) is not here


def _subject():
    from lint_findings import changed

    from mmext.preflight.lint.subject import Subject

    return Subject(changed(pretrained('torchvision://resnet50')))


def test_loaded_twice(weights):
    changes = {**pretrained('https://a.org/b.pth'), 'load_from': str(weights)}
    (found,) = lint(changes, 'CKPT')
    assert (found.rule, found.severity.name) == ('CKPT007', 'INFO')
