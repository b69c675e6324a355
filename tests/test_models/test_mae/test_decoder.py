import torch
from torch.testing import assert_close

from mmext.models import MAEDecoder
from mmext.models.mae.masking import PatchMask, draw_noise, make_mask


def decoder(**kwargs) -> MAEDecoder:
    options = dict(
        img_size=(32, 16),
        patch_size=8,
        embed_dim=12,
        decoder_embed_dim=8,
        decoder_depth=3,
        decoder_num_heads=2,
    )
    return MAEDecoder(**options | kwargs).eval()


def test_order_of_the_mask_does_not_matter():
    """Tokens know their place by the position embeddings alone."""
    model, mask = decoder(), make_mask(draw_noise(2, 8, (0,)), (4, 2), 0.5)
    latent = torch.randn(2, 5, 12)
    predicted = model(latent, mask)
    turned = PatchMask(mask.keep.flip(1), mask.masked.flip(1))
    patches = latent[:, 1:].flip(1)
    again = model(torch.cat((latent[:, :1], patches), 1), turned)
    assert_close(again.flip(1), predicted)


def test_last_layer_is_that_of_all_tokens():
    """What it leaves out has no influence on what it gives."""
    model, mask = decoder(), make_mask(draw_noise(2, 8, (0,)), (4, 2), 0.5)
    tokens = torch.randn(2, 9, 8)
    last = model.decoder_blocks[-1]
    assert_close(last(tokens, 4), last(tokens)[:, -4:])
    assert model(torch.randn(2, 5, 12), mask).shape[1] == 4
