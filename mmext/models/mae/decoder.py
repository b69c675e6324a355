"""The decoder of an MAE.

Shape letters: N pictures, K patches that stay, M that are masked, T class
tokens, C channels of the encoder.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS
from ..checkpointing.checkpoint import checkpoint_modules
from .layers import (
    Block,
    fit_positions,
    init_parameters,
    patch_grid,
    sincos_positions,
    to_pair,
)
from .masking import PatchMask, take_patches


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
