"""Masked autoencoder: pre-training that needs no labels and no DDP flag.

Masks are drawn anew in each step, the same after a resume.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ...registry import MODELS
from .layers import PatchMask

# What a mask is drawn for, the second word of its key.
_TRAINING, _PREDICTION = 0, 1


def draw_noise(num_images: int, length: int, key: Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1) that depend on nothing but the arguments.

    Drawn on the CPU, so that they are the same on each device, and from a
    generator of their own, so that others draw what they would draw without.

    Args:
        num_images: N.
        length: Numbers for each picture.
        key: Integers from 0, such as seed, rank and iteration.

    Returns:
        ``(num_images, length)``, float32.
    """
    words = np.random.SeedSequence(tuple(key)).generate_state(1, np.uint64)
    # A generator takes a signed number.
    generator = torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))
    return torch.rand(num_images, length, generator=generator)


def make_mask(
    noise: Tensor, grid: tuple[int, int], ratio: float = 0.75, block: int = 1
) -> PatchMask:
    """Keep the patches, or blocks of them, with the smallest noise.

    ``int(blocks * (1 - ratio))`` blocks of each picture stay.

    Args:
        noise: ``(N, blocks)``, one number for each block, rows first, where
            ``blocks`` is ``rows * columns / block ** 2``.
        grid: Rows and columns of patches; multiples of ``block``.
        ratio: Share of patches to mask, in (0, 1).
        block: Side of a block, in patches.

    Raises:
        ValueError: If the grid cannot be cut into such blocks, or no block
            would stay, or none be masked.

    Source:
        MAE, arXiv 2111.06377; blocks: Pixio, arXiv 2512.15715.
    """
    rows, columns = grid
    if block < 1 or rows % block or columns % block:
        raise ValueError(
            'mask_block must divide the rows and columns of the patches, got '
            f'{block} for {rows} x {columns}; choose 1, or another img_size'
        )
    count = rows * columns // block**2
    num_keep = int(count * (1 - ratio))
    if not 0 < num_keep < count:
        raise ValueError(
            'mask_ratio must leave some patches and mask some, got '
            f'{ratio} for {count} blocks of {block} x {block} patches, of '
            f'which {num_keep} would stay; choose another ratio or block'
        )
    order = noise.argsort(dim=1, stable=True)
    if block > 1:
        patches = torch.arange(rows * columns, device=noise.device)
        patches = patches.reshape(
            rows // block, block, columns // block, block
        ).transpose(1, 2)
        order = patches.reshape(count, -1)[order].flatten(1)
        num_keep *= block**2
    return PatchMask(order[:, :num_keep], order[:, num_keep:])


class NonFiniteError(FloatingPointError):
    """The loss is NaN or infinite; the message names the first bad module."""


@MODELS.register_module()
class MAE(BaseModel):
    """Mask patches of pictures, encode the rest, predict what was masked.

    Each parameter gets a gradient in each step on each process, so that
    DDP's ``find_unused_parameters`` would only cost time.

    Masks depend on nothing but ``mask_seed``, the rank, and the iteration,
    which is the runner's as MMEngine's ``MessageHub`` has it: it counts
    batches, those that only accumulate gradients included, and goes on after
    a resume, which hence draws the masks that an uninterrupted training
    would. A further forward in the same iteration draws another mask.
    Without a runner the forwards are counted from 0.

    Args:
        backbone: Config of a :class:`MAEViT`.
        neck: Config of a :class:`MAEDecoder` of the same grid of patches.
        head: Config of a :class:`MAEHead`.
        mask_ratio: Share of patches to mask, in (0, 1).
        mask_block: Side, in patches, of the blocks that are masked as a
            whole: 1 in MAE; 2 or 4 in Pixio.
        mask_seed: Of the masks, from 0.
        check_finite: Check in each step that the loss is finite, which waits
            for a GPU; if it is not, compute it again to find the first
            module with a bad output.
        data_preprocessor: As of mmengine's ``BaseModel``;
            ``ImgDataPreprocessor`` normalises and stacks pictures.
        init_cfg: As of mmengine's ``BaseModule``.

    Raises:
        ValueError: If the parts do not fit, or a mask cannot be drawn.
        NonFiniteError: In training, if the loss is not finite, with
            ``check_finite``.

    Source:
        MAE, arXiv 2111.06377. Loss and keys of the state dict are those of
        mmpretrain's ``MAE``.
    """

    def __init__(
        self,
        backbone: dict,
        neck: dict,
        head: dict,
        mask_ratio: float = 0.75,
        mask_block: int = 1,
        mask_seed: int = 0,
        check_finite: bool = True,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build(backbone)
        self.neck = MODELS.build(neck)
        self.head = MODELS.build(head)
        self.mask_ratio, self.mask_block = mask_ratio, mask_block
        self.mask_seed, self.check_finite = mask_seed, check_finite
        self._iteration: int | None = None
        self._num_drawn = 0
        for name, value, least in (
            ('mask_block', mask_block, 1),
            ('mask_seed', mask_seed, 0),
        ):
            if value < least:
                raise ValueError(
                    f'{name} must be at least {least}, got {value}'
                )
        self._check_parts()
        make_mask(self._noise(1, (0,)), self.grid, mask_ratio, mask_block)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.backbone.grid

    def _check_parts(self) -> None:
        for name in ('grid', 'num_cls_tokens', 'embed_dims'):
            ours, theirs = (
                getattr(self.backbone, name),
                getattr(self.neck, name),
            )
            if ours != theirs:
                raise ValueError(
                    f'neck must have the {name} of backbone, {ours}, got '
                    f'{theirs}; give both the same img_size, patch_size, '
                    'num_cls_tokens and channels'
                )
        if self.head.patch_size != self.backbone.patch_size:
            raise ValueError(
                'head must have the patch_size of backbone, '
                f'{self.backbone.patch_size}, got {self.head.patch_size}'
            )
        if len(self.backbone.out_indices) > 1:
            raise ValueError(
                'backbone.out_indices must be one layer in pre-training, got '
                f'{self.backbone.out_indices}; leave it out'
            )

    def _noise(self, num_images: int, key: Sequence[int]) -> Tensor:
        blocks = self.grid[0] // self.mask_block
        blocks *= self.grid[1] // self.mask_block
        return draw_noise(num_images, blocks, key)

    def _mask_of(self, num_images: int, key: Sequence[int]) -> PatchMask:
        noise = self._noise(num_images, key)
        return make_mask(noise, self.grid, self.mask_ratio, self.mask_block)

    def draw_mask(self, num_images: int) -> PatchMask:
        """The next mask of this rank in training, on the CPU."""
        hub = MessageHub.get_current_instance()
        iteration = hub.get_info('iter', 0)
        if iteration != self._iteration:
            self._iteration, self._num_drawn = iteration, 0
        key = (
            self.mask_seed,
            _TRAINING,
            get_rank(),
            iteration,
            self._num_drawn,
        )
        self._num_drawn += 1
        return self._mask_of(num_images, key)

    def forward(
        self,
        inputs: Tensor,
        data_samples: Sequence[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Train, predict, or encode.

        Args:
            inputs: ``(N, C, H, W)``, float32, normalised.
            data_samples: Of the pictures; filled by ``'predict'``.
            mode: ``'loss'``, ``'predict'`` or ``'tensor'``.

        Returns:
            For ``'loss'`` a dict with a 0-d float32 ``loss``, the mean over
            all pixels of all masked patches. For ``'tensor'`` what the
            backbone gives without a mask. For ``'predict'`` the data
            samples, see :meth:`predict`.

        Raises:
            ValueError: For any other mode.
            NonFiniteError: See the class.
        """
        if mode == 'tensor':
            return self.backbone(inputs)
        if mode == 'predict':
            return self.predict(inputs, data_samples)
        if mode != 'loss':
            raise ValueError(
                f"mode must be 'loss', 'predict' or 'tensor', got {mode!r}"
            )
        mask = self.draw_mask(len(inputs)).to(inputs.device)
        loss = self.head.loss(self._predict(inputs, mask), inputs, mask)
        if self.check_finite and not loss.isfinite():
            raise NonFiniteError(self._blame(loss, inputs, mask))
        return {'loss': loss}

    def _predict(self, inputs: Tensor, mask: PatchMask) -> Tensor:
        return self.neck(self.backbone(inputs, mask), mask)

    def _blame(self, loss: Tensor, inputs: Tensor, mask: PatchMask) -> str:
        if not inputs.isfinite().all():
            reason = 'the pictures are not finite: look at the pipeline'
        else:
            reason = first_non_finite(
                self, lambda: self._predict(inputs, mask)
            )
        return (
            f'loss must be finite, got {loss.item()} on rank {get_rank()} in '
            f'iteration {self._iteration}: {reason}'
        )

    @torch.no_grad()
    def predict(
        self,
        inputs: Tensor,
        data_samples: Sequence[BaseDataElement] | None = None,
    ) -> list[BaseDataElement]:
        """Reconstruct pictures; all get the same mask, of ``mask_seed``.

        Args:
            inputs: ``(N, C, H, W)``, float32, normalised.
            data_samples: To be filled; made if None.

        Returns:
            The samples, each with ``original``, ``masked`` and
            ``reconstructed``, ``(C, H, W)``, uint8, before normalisation, in
            the order of channels that the model gets; and ``pred_loss``, a
            0-d float32, the mean error of its masked patches.
        """
        mask = self._mask_of(1, (self.mask_seed, _PREDICTION))
        mask = mask.to(inputs.device)
        mask = PatchMask(*(ids.expand(len(inputs), -1) for ids in mask))
        predicted = self._predict(inputs, mask)
        errors = self.head.errors(predicted, inputs, mask).mean(1)
        pictures = {
            'original': inputs,
            'masked': self.head.blank(inputs, mask, 0.0),
            'reconstructed': self.head.reconstruct(predicted, inputs, mask),
        }
        mean = getattr(self.data_preprocessor, 'mean', None)
        for name, images in pictures.items():
            if mean is not None:
                images = images * self.data_preprocessor.std + mean
            pictures[name] = images.round().clamp(0, 255).to(torch.uint8)
        if data_samples is None:
            data_samples = [BaseDataElement() for _ in inputs]
        for index, sample in enumerate(data_samples):
            for name, images in pictures.items():
                sample.set_data({name: images[index]})
            sample.set_data({'pred_loss': errors[index]})
        return list(data_samples)


def first_non_finite(model: nn.Module, run: Callable[[], Any]) -> str:
    """Which module is the first to return NaN or infinity, and why.

    Args:
        model: The model.
        run: Runs it; called without gradients.

    Returns:
        One sentence with the name of the module, and of those of its
        parameters that are not finite.
    """
    bad_modules: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                bad_modules.append(name)

        return hook

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if not bad_modules:
        return 'all modules give finite outputs when run again'
    first = bad_modules[0]
    module = model.get_submodule(first)
    bad = [
        name
        for name, parameter in module.named_parameters()
        if not parameter.isfinite().all()
    ]
    if bad:
        return (
            f'{first} is the first module with such an output; of its '
            f'parameters, {" and ".join(bad)} hold NaN or infinity since an '
            'earlier step; resume from an older checkpoint, with a lower '
            'learning rate or gradient clipping'
        )
    return (
        f'{first} is the first module with such an output, from finite '
        'parameters: it overflows; use bfloat16, float32 or a lower learning '
        'rate'
    )
