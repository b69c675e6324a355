"""Loss and pictures of an MAE's predictions.

Shape letters: N pictures of C channels, L patches, M of them masked, P pixels
times channels of a patch.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor
from torch.nn import functional as F

from ...registry import MODELS
from .layers import patch_grid, split_patches, to_pair
from .masking import PatchMask, take_patches

_EPS = 1e-6


@MODELS.register_module()
class MAEHead(BaseModule):
    """Mean error of the predicted pixels of masked patches, in float32.

    It has no parameters.

    Args:
        patch_size: Pixels of a patch's side, or (height, width).
        norm_pix: Predict pixels that are normalised by mean and unbiased
            variance of their patch, plus 1e-6.
        criterion: ``'L2'``, squared, or ``'L1'``, absolute errors.
        init_cfg: As of mmengine's ``BaseModule``.

    Raises:
        ValueError: For any other criterion.

    Source:
        MAE, arXiv 2111.06377. Compatible with mmpretrain's
        ``MAEPretrainHead`` with ``PixelReconstructionLoss``.
    """

    def __init__(
        self,
        patch_size: int | Sequence[int] = 16,
        norm_pix: bool = True,
        criterion: str = 'L2',
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        if criterion not in ('L1', 'L2'):
            raise ValueError(
                f"criterion must be 'L1' or 'L2', got {criterion!r}"
            )
        self.patch_size = to_pair(patch_size, 'patch_size')
        self.norm_pix, self.criterion = norm_pix, criterion

    def patchify(self, images: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, L, P)``, in a patch channels last."""
        patches = split_patches(images, self.patch_size)
        return patches.movedim(3, -1).flatten(3).flatten(1, 2)

    def unpatchify(self, patches: Tensor, size: Sequence[int]) -> Tensor:
        """The inverse, for pictures of ``size`` (height, width)."""
        rows, columns = patch_grid(tuple(size), self.patch_size, 'size')
        images = patches.reshape(
            len(patches), rows, columns, *self.patch_size, -1
        )
        images = images.permute(0, 5, 1, 3, 2, 4)
        return images.reshape(len(patches), -1, *size)

    def target(self, images: Tensor, mask: PatchMask) -> Tensor:
        """What is to be predicted: ``(N, M, P)``, float32, no gradient."""
        with torch.no_grad():
            patches = self.patchify(images).float()
            patches = take_patches(patches, mask.masked)
            if not self.norm_pix:
                return patches
            variance, mean = torch.var_mean(patches, -1, keepdim=True)
            return (patches - mean) * (variance + _EPS).rsqrt()

    def errors(
        self, predicted: Tensor, images: Tensor, mask: PatchMask
    ) -> Tensor:
        """Mean error of each masked patch: ``(N, M)``, float32."""
        with torch.autocast(images.device.type, enabled=False):
            measure = F.mse_loss if self.criterion == 'L2' else F.l1_loss
            return measure(
                predicted.float(), self.target(images, mask), reduction='none'
            ).mean(-1)

    def loss(
        self, predicted: Tensor, images: Tensor, mask: PatchMask
    ) -> Tensor:
        """Mean error over all pixels of all masked patches.

        It is what mmpretrain gets from all patches, weighted by the mask,
        since as many are masked in each picture.

        Args:
            predicted: ``(N, M, P)``, from the decoder.
            images: ``(N, C, H, W)``, as the encoder got them.
            mask: The mask that was used.

        Returns:
            A 0-d float32.
        """
        return self.errors(predicted, images, mask).mean()

    def reconstruct(
        self, predicted: Tensor, images: Tensor, mask: PatchMask
    ) -> Tensor:
        """Pictures whose masked patches are the predicted ones.

        With ``norm_pix`` mean and variance, which are not predicted, are
        those of the picture. Arguments as of :meth:`loss`; gives
        ``(N, C, H, W)``, float32.
        """
        patches = self.patchify(images).float()
        predicted = predicted.float()
        if self.norm_pix:
            hidden = take_patches(patches, mask.masked)
            variance, mean = torch.var_mean(hidden, -1, keepdim=True)
            predicted = predicted * (variance + _EPS).sqrt() + mean
        index = mask.masked[..., None].expand_as(predicted)
        patches = patches.scatter(1, index, predicted)
        return self.unpatchify(patches, images.shape[-2:])

    def blank(self, images: Tensor, mask: PatchMask, value: float) -> Tensor:
        """Pictures whose masked patches have one value."""
        patches = self.patchify(images).float()
        kept = patches.gather(
            1, mask.keep[..., None].expand(-1, -1, patches.shape[-1])
        )
        blank = torch.full_like(patches, value)
        index = mask.keep[..., None].expand_as(kept)
        return self.unpatchify(
            blank.scatter(1, index, kept), images.shape[-2:]
        )
