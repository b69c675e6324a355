"""mmext.MAE: gradients, masks, predictions, and what is refused."""

import pytest
import torch
from helpers.tiny_mae import mae_config, tiny_mae
from mmengine.logging import MessageHub
from mmengine.structures import BaseDataElement
from torch.testing import assert_close

from mmext.models import MAEDecoder
from mmext.models.mae import NonFiniteError
from mmext.models.mae import model as module
from mmext.registry import MODELS


@pytest.fixture
def images():
    return torch.randn(3, 3, 32, 32)


@pytest.fixture
def hub(monkeypatch):
    hub = MessageHub('a training')
    monkeypatch.setattr(
        MessageHub, 'get_current_instance', classmethod(lambda _: hub)
    )
    return hub


@pytest.mark.parametrize(
    'kwargs',
    [
        dict(),
        dict(mask_ratio=0.5, mask_block=2),
        dict(num_cls_tokens=4),
        dict(img_size=(16, 40)),
        dict(with_cp=1),
    ],
)
def test_every_parameter_gets_a_gradient(kwargs):
    model = tiny_mae(**kwargs)
    size = kwargs.get('img_size', (32, 32))
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(2, 3, *size), mode='loss')['loss'].backward()
        assert all(p.grad is not None for p in model.parameters())
        assert all(p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ('part', 'change', 'text'),
    [
        ('neck', dict(img_size=64), 'the grid of backbone'),
        ('neck', dict(decoder_depth=0), 'decoder_depth must be at least 1'),
        ('neck', dict(embed_dim=64), 'the embed_dims of backbone, 32'),
        ('neck', dict(num_cls_tokens=2), 'the num_cls_tokens of backbone'),
        ('head', dict(patch_size=4), 'the patch_size of backbone'),
        ('head', dict(criterion='L3'), "'L1' or 'L2'"),
        ('backbone', dict(out_indices=(0, 1)), 'one layer in pre-training'),
    ],
)
def test_parts_must_fit(part, change, text):
    config = mae_config()
    config[part] |= change
    with pytest.raises(ValueError, match=text):
        MODELS.build(config)


def test_the_decoder_has_the_size_of_the_published_one():
    """Of ViT-B/16 in facebookresearch/mae, without positions."""
    with torch.device('meta'):
        decoder = MAEDecoder()
    assert sum(p.numel() for p in decoder.parameters()) == 26_008_320


def test_impossible_mask_is_refused_at_once():
    for wrong in (dict(mask_block=0), dict(mask_seed=-1)):
        with pytest.raises(ValueError, match='must be at least'):
            tiny_mae(**wrong)


def test_mask_follows_the_iteration(hub, monkeypatch):
    """A new model, as after a resume, draws what the old one would."""
    model = tiny_mae()
    drawn = {}
    for step in range(4):
        hub.update_info('iter', step)
        drawn[step] = model.draw_mask(3).keep
    assert len({tuple(k.flatten().tolist()) for k in drawn.values()}) == 4
    resumed = tiny_mae()
    hub.update_info('iter', 2)
    assert torch.equal(resumed.draw_mask(3).keep, drawn[2])
    # A second view in the same step has a mask of its own.
    assert not torch.equal(resumed.draw_mask(3).keep, drawn[2])
    hub.update_info('iter', 3)
    assert torch.equal(resumed.draw_mask(3).keep, drawn[3])
    monkeypatch.setattr(module, 'get_rank', lambda: 1)
    other = tiny_mae()
    assert not torch.equal(other.draw_mask(3).keep, drawn[3])
    monkeypatch.undo()


def test_masks_without_a_runner_are_counted(hub):
    first, second = tiny_mae(), tiny_mae()
    masks = [first.draw_mask(2).keep for _ in range(3)]
    assert not torch.equal(masks[0], masks[1])
    assert all(torch.equal(second.draw_mask(2).keep, mask) for mask in masks)
    other = tiny_mae(mask_seed=1)
    assert not torch.equal(other.draw_mask(2).keep, masks[0])


@pytest.mark.parametrize('with_cp', [1, True])
def test_checkpointing_gives_the_same_gradients(images, with_cp, hub):
    plain, checkpointed = tiny_mae(), tiny_mae(with_cp=with_cp)
    checkpointed.load_state_dict(plain.state_dict())
    gradients = []
    for model in (plain, checkpointed):
        loss = model(images, mode='loss')['loss']
        loss.backward()
        gradients.append([loss, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*gradients):
        assert torch.equal(ours, theirs)


def test_loss_is_float32_under_autocast(images, hub):
    model = tiny_mae()
    exact = model(images, mode='loss')['loss']
    again = tiny_mae()
    again.load_state_dict(model.state_dict())
    with torch.autocast('cpu', torch.bfloat16):
        loss = again(images, mode='loss')['loss']
        loss.backward()
    assert loss.dtype == torch.float32
    assert_close(loss, exact, rtol=2e-2, atol=1e-2)
    assert all(p.grad.isfinite().all() for p in again.parameters())


def test_predict_fills_samples(images):
    model = tiny_mae(
        data_preprocessor=dict(
            type='ImgDataPreprocessor',
            mean=[100.0, 110.0, 120.0],
            std=[50.0, 60.0, 70.0],
        )
    )
    raw = torch.randint(0, 255, (3, 3, 32, 32), dtype=torch.uint8)
    samples = [BaseDataElement(metainfo=dict(img_path=str(i))) for i in '012']
    data = dict(inputs=list(raw), data_samples=samples)
    results = model.test_step(data)
    assert [sample.img_path for sample in results] == ['0', '1', '2']
    for sample, picture in zip(results, raw):
        assert torch.equal(sample.original, picture)
        same = (sample.reconstructed == picture).all(0)
        hidden = (sample.masked != picture).any(0)
        # A quarter is as it was.
        assert same.float().mean() >= 0.25
        assert 0.7 < hidden.float().mean() <= 0.75
        assert sample.pred_loss > 0
    alone = model.test_step(dict(inputs=[raw[1]], data_samples=[samples[1]]))
    assert_close(alone[0].pred_loss, results[1].pred_loss)


def test_modes(images):
    model = tiny_mae()
    assert model(images)[0].shape == (3, 17, 32)
    assert len(model(images, mode='predict')) == 3
    with pytest.raises(ValueError, match="'loss', 'predict' or 'tensor'"):
        model(images, mode='train')


def test_non_finite_loss_names_the_first_bad_module(images):
    model = tiny_mae()
    with torch.no_grad():
        model.backbone.layers[1].ffn.layers[1].weight[3] = float('inf')
    with pytest.raises(NonFiniteError, match='on rank 0') as caught:
        model(images, mode='loss')
    text = str(caught.value)
    assert 'backbone.layers.1.ffn.layers.1 is the first module' in text
    assert 'of its parameters, weight hold NaN or infinity' in text


def test_overflow_and_bad_pictures(images):
    model = tiny_mae()
    with torch.no_grad():
        model.neck.decoder_embed.weight *= 3e38
        model.neck.decoder_embed.weight += 1e38
    with pytest.raises(
        NonFiniteError, match=r'neck\.decoder_embed.* overflows'
    ):
        model(images, mode='loss')
    with pytest.raises(NonFiniteError, match='pictures are not finite'):
        tiny_mae()(images * float('nan'), mode='loss')
    silent = tiny_mae(check_finite=False)
    assert silent(images * float('nan'), mode='loss')['loss'].isnan()
