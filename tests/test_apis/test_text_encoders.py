"""Text encoders: their vectors, and one clear error where there is none.

All but the first tests need transformers; their models are small and random,
written by the tests.
"""

import socket
from contextlib import nullcontext

import pytest
import torch
from helpers import tiny_text_models

from mmext.apis import TextEncoder

TEXTS = ['photo of a cell.', 'b', 'a car of wood', 'zebra']
LONG = 'photo of cell ' * 6
TOO_LONG = rf'at most {tiny_text_models.MAX_TOKENS} tokens .*photo of cell'


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


@pytest.fixture
def transformers():
    return pytest.importorskip('transformers')


def load(folder):
    return TextEncoder(folder, device='cpu', offline=True)


def test_names_the_extra_where_the_package_is_missing(monkeypatch):
    monkeypatch.setattr(
        'mmext.apis.class_embeddings.find_spec', lambda _: None
    )
    with pytest.raises(ImportError) as caught:
        TextEncoder('any', device='cpu')
    command = "pip install 'mmext[transformers]'"
    assert str(caught.value) == (
        f'transformers is not installed; run: {command}'
    )


@pytest.mark.parametrize('model', ['no-such-model', 'nobody/no-such-model'])
def test_offline_says_how_to_get_the_model(transformers, model, calls):
    with pytest.raises(FileNotFoundError) as caught:
        load(model)
    message = str(caught.value)
    assert message.startswith(
        f'transformers cannot load the model {model!r}, got '
    )
    assert 'run this once without --offline' in message
    assert not calls


def test_offline_ends_with_the_call(transformers, tmp_path, calls):
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    encoder = load(tiny_text_models.write_clip(tmp_path))
    assert before == constants.HF_HUB_OFFLINE
    assert encoder.name == f'transformers: {tmp_path}'
    assert encoder.encode(['a', 'b']).shape == (2, 20)
    assert not calls


@pytest.fixture
def loading(monkeypatch):
    """Set what an encoder does when it is to load the files of a model."""
    package = 'mmext.apis.class_embeddings'
    monkeypatch.setattr(f'{package}.find_spec', lambda _: True)
    monkeypatch.setattr(f'{package}._hub_offline', nullcontext)

    def set_to(function):
        monkeypatch.setattr(
            TextEncoder, '_load', lambda _, model, __: function(model)
        )

    return set_to


def test_online_says_what_to_check(loading):
    def fail(_):
        raise RuntimeError('it\nfailed')

    loading(fail)
    with pytest.raises(FileNotFoundError) as caught:
        TextEncoder('a/b', device='cpu')
    assert 'got RuntimeError: it failed\nRemedy: check the name' in str(
        caught.value
    )
    assert '--offline' not in str(caught.value)


def test_rejects_a_folder_of_something_else(transformers, tmp_path):
    message = r'no file config\.json; is this folder a model for trans'
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path))


def test_folders_are_found_and_nothing_else_is_asked(
    tmp_path, monkeypatch, loading
):
    monkeypatch.setenv('HOME', str(tmp_path))
    asked = []
    loading(asked.append)
    (tmp_path / 'm').mkdir()
    load('~/m')
    load('a/b')
    assert asked == [str(tmp_path / 'm'), 'a/b']
    for name in ('~/n', './n', str(tmp_path / 'n')):
        with pytest.raises(FileNotFoundError, match='an existing folder'):
            load(name)


def test_clip_gives_the_projected_text(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    encoder = load(folder)
    vectors = encoder.encode(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    half = transformers.CLIPTextModelWithProjection
    half = half.from_pretrained(folder, projection_dim=20).eval()
    with torch.no_grad():
        expected = torch.cat(
            [
                half(**tokenizer(text, return_tensors='pt')).text_embeds
                for text in TEXTS
            ]
        )
    assert vectors.shape == (len(TEXTS), 20)
    assert expected.std(dim=0).min() > 0.01, 'all texts are alike'
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    assert 'a photo of a {}.' in encoder.default_templates


def test_siglip_reads_full_length(transformers, tmp_path):
    folder = tiny_text_models.write_siglip(tmp_path)
    vectors = load(folder).encode(TEXTS)
    model = transformers.SiglipModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def embed(width):
        ids = [tokenizer(text)['input_ids'] for text in TEXTS]
        rows = [row + [0] * (width - len(row)) for row in ids]
        with torch.no_grad():
            states = model.text_model(torch.tensor(rows)).last_hidden_state
            return model.text_model.head(states[:, -1])

    expected = embed(tiny_text_models.MAX_TOKENS)
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    assert (expected - embed(12)).abs().max() > 1e-3


def test_rejects_long_texts(transformers, tmp_path):
    encoder = load(tiny_text_models.write_clip(tmp_path))
    with pytest.raises(ValueError, match=TOO_LONG):
        encoder.encode([*TEXTS, LONG])


def test_runs_in_float32(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    expected = load(folder).encode(TEXTS)
    model = transformers.CLIPModel.from_pretrained(folder)
    model.half().save_pretrained(folder)
    vectors = load(folder).encode(TEXTS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, expected, atol=5e-3, rtol=0)
    assert not torch.equal(vectors, vectors.half().float())


def test_rejects_missing_weights(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    model = transformers.CLIPModel.from_pretrained(folder)
    state = model.state_dict()
    kept = {k: v for k, v in state.items() if 'text_projection' not in k}
    model.save_pretrained(folder, state_dict=kept)
    with pytest.raises(ValueError, match=r'1 missing, .*text_projection'):
        load(folder)


def test_rejects_half_a_clip(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    model = transformers.CLIPTextModel.from_pretrained(folder)
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="of type 'clip_text_model'"):
        load(folder)


def test_names_the_way_to_run_another_encoder(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    with pytest.raises(ValueError, match="of type 'bert'") as caught:
        load(folder)
    assert 'make_class_embeddings(names, SentenceTransformer(' in str(
        caught.value
    )
