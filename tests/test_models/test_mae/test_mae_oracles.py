"""Against numbers that mmpretrain 1.2.0 computed, with the same mask."""

import pytest
from helpers.tiny_mae import ARCH, GRID, record, recorded_mask, tiny_mae
from torch.testing import assert_close

from mmext.models import MAEViT
from mmext.models.mae.layers import sincos_positions

CLOSE = dict(rtol=1e-5, atol=1e-5)


@pytest.fixture
def model():
    model = tiny_mae()
    model.load_state_dict(record()['mmpretrain']['state_dict'])
    return model


def test_keys_and_shapes_are_those_of_mmpretrain(model):
    theirs = record()['mmpretrain']['state_dict']
    ours = model.state_dict()
    assert {k: v.shape for k, v in ours.items()} == {
        k: v.shape for k, v in theirs.items()
    }
    assert 'backbone.layers.0.ffn.layers.0.0.weight' in theirs


def test_positions_are_no_parameters(model):
    names = {name for name, _ in model.named_parameters()}
    assert set(model.state_dict()) - names == {
        'backbone.pos_embed',
        'neck.decoder_pos_embed',
    }


def test_mask_latent_prediction_and_loss(model):
    theirs, images = record()['mmpretrain'], record()['images']
    mask = recorded_mask()
    assert_close(mask.mask, theirs['mask'], rtol=0, atol=0)
    assert_close(mask.restore, theirs['restore'], rtol=0, atol=0)
    latent = model.backbone(images, mask)
    assert_close(latent, theirs['latent'], **CLOSE)
    predicted = model.neck(latent, mask)
    index = mask.masked[..., None].expand(-1, -1, predicted.shape[-1])
    assert_close(predicted, theirs['predicted'].gather(1, index), **CLOSE)
    loss = model.head.loss(predicted, images, mask)
    assert_close(loss, theirs['loss'], **CLOSE)
    model.head.norm_pix = False
    plain = model.head.loss(predicted, images, mask)
    assert_close(plain, theirs['loss_without_norm'], **CLOSE)


def test_gradients(model):
    theirs, images = record()['mmpretrain'], record()['images']
    mask = recorded_mask()
    latent = model.backbone(images, mask)
    model.head.loss(model.neck(latent, mask), images, mask).backward()
    ours = {name: p.grad for name, p in model.named_parameters()}
    # Theirs have one for all that is trained, too.
    assert ours.keys() == theirs['gradients'].keys()
    for name, gradient in ours.items():
        assert_close(gradient, theirs['gradients'][name], **CLOSE, msg=name)


@pytest.mark.parametrize('name', ['features', 'features_of_tall'])
def test_whole_pictures_are_those_of_their_plain_backbone(name):
    """With positions interpolated, for a picture of another size."""
    theirs, images = record()['mmpretrain'], record()['images']
    vit = MAEViT(
        arch=ARCH,
        img_size=32,
        patch_size=8,
        out_type='featmap',
        out_indices=(0, 1),
    )
    state = {
        key.removeprefix('backbone.'): value
        for key, value in theirs['state_dict'].items()
        if key.startswith('backbone.')
    }
    vit.load_state_dict(state)
    if 'tall' in name:
        images = images.repeat(1, 1, 2, 1)
    for ours, expected in zip(vit(images, mask=False), theirs[name]):
        assert_close(ours, expected, **CLOSE)


def test_initial_positions():
    ours = sincos_positions(GRID, 32)
    assert_close(ours, record()['mmpretrain']['positions'], **CLOSE)
