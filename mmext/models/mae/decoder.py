"""The decoder of an MAE, and the loss and pictures of what it predicts.

Shape letters: N pictures, L patches, K of them that stay, M that are masked,
T class tokens, C channels, in the decoder those of the encoder, P pixels times
channels of a patch.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from ...registry import MODELS
from ..checkpointing.checkpoint import checkpoint_modules
from .layers import (
    Block,
    PatchMask,
    fit_positions,
    init_parameters,
    patch_grid,
    sincos_positions,
    split_patches,
    take_patches,
    to_pair,
)

_EPS = 1e-6


@MODELS.register_module()
class MAEDecoder(BaseModule):
    """Predict the pixels of masked patches from the tokens of the others.

    Attention asks for no order, so the tokens stay in that of the mask, and
    only the masked ones, which come last, are projected to pixels: the loss
    looks at no others. The last layer computes only these, too.

    Keys of the state dict are those of mmpretrain's ``MAEPretrainDecoder``;
    position embeddings are a buffer.

    Args:
        img_size: Pixels of a side, or (height, width), as of the encoder.
        patch_size: The same of a patch.
        in_channels: Of the pictures.
        embed_dim: C.
        decoder_embed_dim: Channels here, a multiple of 4 and of
            ``decoder_num_heads``.
        decoder_depth: Number of layers, from 1; 8 in MAE, 32 in Pixio.
        decoder_num_heads: Heads of the attention.
        mlp_ratio: Width of the feed-forward networks, in
            ``decoder_embed_dim``.
        num_cls_tokens: T, as of the encoder.
        with_cp: See :class:`MAEViT`.
        init_cfg: As of mmengine's ``BaseModule``.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        MAE, arXiv 2111.06377; Pixio, arXiv 2512.15715.
    """

    def __init__(
        self,
        img_size: int | Sequence[int] = 224,
        patch_size: int | Sequence[int] = 16,
        in_channels: int = 3,
        embed_dim: int = 768,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 8,
        decoder_num_heads: int = 16,
        mlp_ratio: float = 4,
        num_cls_tokens: int = 1,
        with_cp: bool | int = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        if decoder_depth < 1:
            raise ValueError(
                f'decoder_depth must be at least 1, got {decoder_depth}'
            )
        patch = to_pair(patch_size, 'patch_size')
        self.grid = patch_grid(to_pair(img_size, 'img_size'), patch)
        self.embed_dims, self.num_cls_tokens = embed_dim, num_cls_tokens
        width = decoder_embed_dim
        self.decoder_embed = nn.Linear(embed_dim, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.register_buffer(
            'decoder_pos_embed',
            sincos_positions(self.grid, width, num_cls_tokens),
        )
        self.decoder_blocks = nn.ModuleList(
            Block(width, decoder_num_heads, int(mlp_ratio * width))
            for _ in range(decoder_depth)
        )
        self.ln1 = nn.LayerNorm(width, eps=1e-6)
        pixels = patch[0] * patch[1] * in_channels
        self.decoder_pred = nn.Linear(width, pixels)
        init_parameters(self)
        checkpoint_modules(self.decoder_blocks, with_cp, 'MAEDecoder')
        self._register_load_state_dict_pre_hook(self._fit_positions)

    def _fit_positions(
        self, state_dict: dict, prefix: str, *_: object
    ) -> None:
        key = f'{prefix}decoder_pos_embed'
        if key in state_dict:
            state_dict[key] = fit_positions(
                state_dict[key], self.grid, self.num_cls_tokens, key
            )

    def forward(self, latent: Tensor, mask: PatchMask) -> Tensor:
        """Pixels of the masked patches.

        Args:
            latent: ``(N, T + K, C)``, from the encoder.
            mask: The mask that it was encoded with.

        Returns:
            ``(N, M, height * width * in_channels)``, in the order of
            ``mask.masked``; in a patch rows first and channels last.
        """
        extra, positions = self.decoder_pos_embed.tensor_split(
            [self.num_cls_tokens], 1
        )
        order = torch.cat(mask, 1)
        positions = torch.cat(
            (
                extra.expand(len(latent), -1, -1),
                take_patches(positions, order),
            ),
            1,
        )
        seen = self.decoder_embed(latent)
        hidden = self.mask_token.to(seen.dtype).expand(*mask.masked.shape, -1)
        tokens = torch.cat((seen, hidden), 1) + positions
        *blocks, last = self.decoder_blocks
        for block in blocks:
            tokens = block(tokens)
        tokens = last(tokens, mask.masked.shape[1])
        return self.decoder_pred(self.ln1(tokens))


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
