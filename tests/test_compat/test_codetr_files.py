"""Converting files: whole, or not at all."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from mmengine import Config
from reference.codetr_port_config import port_model

from mmext.compat import (
    convert_checkpoint_file,
    convert_config_file,
    translate_codetr_config,
)

THERE = 'query_head.label_embedding.weight'
HERE = 'query_head.dn_generator.label_embedding.weight'


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint of the original project, with averaged weights."""
    path = tmp_path / 'public.pth'
    content = {
        'meta': {'epoch': 12},
        'state_dict': {THERE: torch.ones(2), 'other': torch.ones(1)},
        'ema_state_dict': {
            'steps': torch.tensor(7),
            f'module.{THERE}': torch.zeros(2),
        },
        'optimizer': {'state': {}},
    }
    torch.save(content, path)
    return path


def write_config(path: Path, **sections) -> Path:
    """A config file with these sections."""
    lines = [f'{key} = {value!r}' for key, value in sections.items()]
    path.write_text('\n'.join(lines))
    return path


def test_checkpoint(checkpoint, tmp_path):
    target = tmp_path / 'ours.pth'
    assert convert_checkpoint_file(checkpoint, target) == (2, 1)
    content = torch.load(target, weights_only=True)
    assert list(content) == ['meta', 'state_dict']
    assert content['meta'] == {'epoch': 12}
    assert list(content['state_dict']) == [HERE, 'other']
    assert content['state_dict'][HERE].tolist() == [1, 1]


def test_averaged_weights(checkpoint, tmp_path):
    target = tmp_path / 'ours.pth'
    assert convert_checkpoint_file(checkpoint, target, ema=True) == (1, 1)
    state = torch.load(target, weights_only=True)['state_dict']
    assert state[HERE].tolist() == [0, 0]


def test_bare_state_dict(tmp_path):
    source, target = tmp_path / 'bare.pth', tmp_path / 'ours.pth'
    torch.save({THERE: torch.ones(2)}, source)
    assert convert_checkpoint_file(source, target) == (1, 1)
    assert torch.load(target, weights_only=True)['meta'] == {}


def test_more_than_tensors_needs_trust(tmp_path):
    source, target = tmp_path / 'odd.pth', tmp_path / 'ours.pth'
    meta = {'args': Namespace(a=1)}
    torch.save({'meta': meta, 'state_dict': {'a': torch.ones(1)}}, source)
    with pytest.raises(ValueError, match='tensors and plain values only, got'):
        convert_checkpoint_file(source, target)
    assert not target.exists()
    assert convert_checkpoint_file(source, target, trust=True) == (1, 0)


@pytest.mark.parametrize(
    ('content', 'ema', 'message'),
    [
        ([1], False, 'source must hold a dict, got list'),
        ({'a': 1}, False, r"must hold a state_dict, got keys \['a'\]"),
        ({'state_dict': {}}, True, 'must hold a ema_state_dict, got keys'),
    ],
)
def test_rejects_what_is_no_checkpoint(content, ema, message, tmp_path):
    source, target = tmp_path / 'odd.pth', tmp_path / 'ours.pth'
    torch.save(content, source)
    with pytest.raises(ValueError, match=message):
        convert_checkpoint_file(source, target, ema=ema)
    assert not target.exists()


@pytest.mark.parametrize(
    'convert', [convert_checkpoint_file, convert_config_file]
)
def test_rejects_a_missing_source(convert, tmp_path):
    with pytest.raises(FileNotFoundError, match='source must be a file, got'):
        convert(tmp_path / 'no.py', tmp_path / 'ours.py')


def test_replaces_only_when_asked(checkpoint, tmp_path):
    target = tmp_path / 'ours.pth'
    target.write_text('precious')
    with pytest.raises(FileExistsError, match='target must not exist, got'):
        convert_checkpoint_file(checkpoint, target)
    assert target.read_text() == 'precious'
    convert_checkpoint_file(checkpoint, target, overwrite=True)
    assert torch.load(target, weights_only=True)['state_dict']


def test_config(tmp_path):
    source = write_config(
        tmp_path / 'public.py',
        model=port_model(),
        custom_imports={'imports': ['projects.codetr']},
    )
    target = tmp_path / 'ours.py'
    convert_config_file(source, target)
    cfg = Config.fromfile(target)
    assert list(cfg) == ['model']
    expected = translate_codetr_config(port_model())
    assert cfg.model.to_dict() == expected
    with pytest.raises(FileExistsError, match='target must not exist'):
        convert_config_file(source, target)
    convert_config_file(source, target, overwrite=True)


def test_rejects_a_config_without_model(tmp_path):
    source = write_config(tmp_path / 'public.py', data=1)
    with pytest.raises(ValueError, match=r"model section, got \['data'\]"):
        convert_config_file(source, tmp_path / 'ours.py')


def test_leaves_nothing_of_a_failed_translation(tmp_path):
    source = write_config(
        tmp_path / 'public.py', model={**port_model(), 'mask_head': {}}
    )
    with pytest.raises(ValueError, match='got mask_head='):
        convert_config_file(source, tmp_path / 'ours.py')
    assert [path.name for path in tmp_path.iterdir()] == ['public.py']
