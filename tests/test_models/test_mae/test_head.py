import pytest
import torch
from torch.testing import assert_close

from mmext.models import MAEHead
from mmext.models.mae import PatchMask


@pytest.fixture
def images():
    return torch.randn(2, 3, 8, 12, dtype=torch.float64)


@pytest.fixture
def mask():
    keep = torch.tensor([[0, 3], [5, 2]])
    masked = torch.tensor([[1, 2, 4, 5], [4, 0, 3, 1]])
    return PatchMask(keep, masked)


def test_patches_by_hand(images):
    head = MAEHead(patch_size=4)
    patches = head.patchify(images)
    assert patches.shape == (2, 6, 48)
    # Row 1, column 2; in it row 3, column 1, channel 2.
    expected = images[1, 2, 4 + 3, 8 + 1]
    assert patches[1, 5, (3 * 4 + 1) * 3 + 2] == expected
    assert_close(head.unpatchify(patches, (8, 12)), images)
    tall = MAEHead(patch_size=(8, 4))
    assert_close(tall.unpatchify(tall.patchify(images), (8, 12)), images)


@pytest.mark.parametrize('norm_pix', [False, True])
@pytest.mark.parametrize('criterion', ['L1', 'L2'])
def test_loss_and_gradient_by_hand(images, mask, norm_pix, criterion):
    head = MAEHead(4, norm_pix=norm_pix, criterion=criterion)
    predicted = torch.randn(2, 4, 48, requires_grad=True)
    loss = head.loss(predicted, images, mask)
    total, gradient = 0.0, torch.zeros(2, 4, 48)
    for index in range(2):
        for location, patch in enumerate(mask.masked[index].tolist()):
            top, left = patch // 3 * 4, patch % 3 * 4
            part = images[index, :, top : top + 4, left : left + 4]
            part = part.permute(1, 2, 0).reshape(-1)
            if norm_pix:
                part = (part - part.mean()) / (part.var() + 1e-6) ** 0.5
            error = predicted[index, location].detach() - part
            power = error.abs() if criterion == 'L1' else error**2
            slope = error.sign() if criterion == 'L1' else 2 * error
            total += power.mean() / 8
            gradient[index, location] = slope / (48 * 8)
    assert_close(loss.double(), total, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert_close(predicted.grad, gradient, rtol=1e-4, atol=1e-6)


def test_flat_patches_are_finite(mask):
    head = MAEHead(4)
    images = torch.full((2, 3, 8, 12), 3.0)
    assert (head.target(images, mask) == 0).all()
    predicted = torch.randn(2, 4, 48)
    again = head.reconstruct(predicted * 0, images, mask)
    assert_close(again, images)


def test_blank(images, mask):
    shown = MAEHead(4).blank(images, mask, 7.0)
    assert_close(shown[0, :, :4, :4].double(), images[0, :, :4, :4])
    assert (shown[0, :, :4, 4:] == 7).all()
    assert (shown == 7).float().mean() == pytest.approx(4 / 6)
