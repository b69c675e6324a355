"""Choosing an encoder, and one clear error where there is none."""

import importlib.util
import socket

import pytest
import tiny_text_models
import torch

from mmext.apis import text_encoders
from mmext.apis.text_encoders import TEXT_ENCODERS, build_text_encoder

PACKAGES = {
    'open_clip': ('open_clip', 'open-clip'),
    'sentence-transformers': ('sentence_transformers',) * 2,
    'transformers': ('transformers',) * 2,
}


@pytest.fixture
def calls(monkeypatch):
    """Attempts to reach anything over a network, none of which succeeds."""
    attempts = []

    def refuse(*args, **_):
        attempts.append(args)
        raise OSError('no network in tests')

    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    monkeypatch.setattr(socket.socket, 'connect', refuse)
    return attempts


@pytest.mark.parametrize('kind', TEXT_ENCODERS)
def test_names_the_extra_where_the_package_is_missing(kind, monkeypatch):
    package, extra = PACKAGES[kind]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        'mmext.apis._extras.find_spec',
        lambda name: None if name == package else found(name),
    )
    extra = extra.replace('_', '-')
    with pytest.raises(ImportError) as caught:
        build_text_encoder(kind, 'any', device='cpu')
    command = f"pip install 'mmext[{extra}]'"
    assert str(caught.value) == f'{package} is not installed; run: {command}'


@pytest.mark.parametrize('kind', TEXT_ENCODERS)
@pytest.mark.parametrize('model', ['no-such-model', 'nobody/no-such-model'])
def test_offline_says_how_to_get_the_model(kind, model, calls):
    try:
        pytest.importorskip(PACKAGES[kind][0])
    except RuntimeError as error:
        pytest.skip(f'cannot be imported: {error}')
    options = {}
    if kind == 'open_clip':
        # Its names are its own; these are known, and not in the cache.
        model = {'no-such-model': 'ViT-B-32'}.get(model, f'hf-hub:{model}')
        if ':' not in model:
            options['pretrained'] = 'laion400m_e31'
    with pytest.raises(FileNotFoundError) as caught:
        build_text_encoder(kind, model, device='cpu', offline=True, **options)
    message = str(caught.value)
    assert message.startswith(f'{kind} cannot load the model {model!r}, got ')
    assert 'run this once without --offline' in message
    assert not calls


def test_offline_ends_with_the_call(tmp_path, calls):
    pytest.importorskip('transformers')
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    folder = tiny_text_models.write_bert(tmp_path)
    encoder = build_text_encoder(
        'transformers', folder, device='cpu', offline=True
    )
    assert before == constants.HF_HUB_OFFLINE
    assert encoder.encode(['a', 'b']).shape == (2, 24)
    assert not calls


class Failing:
    """An encoder that cannot be built."""

    def __init__(self, model, **options):
        raise options.pop('error', RuntimeError)('it\nfailed')


def test_online_says_what_to_check(monkeypatch):
    monkeypatch.setitem(TEXT_ENCODERS, 'transformers', Failing)
    with pytest.raises(FileNotFoundError) as caught:
        build_text_encoder('transformers', 'a/b', device='cpu')
    assert 'got RuntimeError: it failed\nRemedy: check the name' in str(
        caught.value
    )
    assert '--offline' not in str(caught.value)


def test_memory_errors_stay_what_they_are(monkeypatch):
    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError('full')

    monkeypatch.setitem(TEXT_ENCODERS, 'transformers', fail)
    with pytest.raises(torch.cuda.OutOfMemoryError, match='full'):
        build_text_encoder('transformers', 'a/b', device='cpu')


def test_rejects_a_folder_of_something_else(tmp_path, monkeypatch):
    monkeypatch.setitem(TEXT_ENCODERS, 'transformers', Failing)
    with pytest.raises(ValueError, match=r'is this folder a model for'):
        build_text_encoder('transformers', str(tmp_path), device='cpu')


def test_folders_are_found_and_nothing_else_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setitem(
        TEXT_ENCODERS, 'transformers', lambda model, **_: model
    )
    (tmp_path / 'm').mkdir()
    found = build_text_encoder('transformers', '~/m', device='cpu')
    assert found == str(tmp_path / 'm')
    assert build_text_encoder('transformers', 'a/b', device='cpu') == 'a/b'
    for name in ('~/n', './n', str(tmp_path / 'n')):
        with pytest.raises(FileNotFoundError, match='an existing folder'):
            build_text_encoder('transformers', name, device='cpu')


def test_rejects_arguments():
    with pytest.raises(ValueError, match=r'one of open_clip, .* got .word2'):
        build_text_encoder('word2vec', 'a')
    with pytest.raises(ValueError, match='must be None for transformers'):
        build_text_encoder('transformers', 'a', pretrained='b', device='cpu')
    with pytest.raises(ValueError, match="device must be 'auto'"):
        build_text_encoder('transformers', 'a', device='gpu')


def test_every_kind_has_a_place():
    assert set(PACKAGES) == set(text_encoders.TEXT_ENCODERS)
