"""Run a masked autoencoder on image files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from mmcv.transforms import LoadImageFromFile, Resize
from mmengine.dataset import pseudo_collate

from ..datasets.transforms import PackImages
from ..engine import draw_reconstruction
from ..models import MAE
from .infer import UnreadableImageError, prepare_image


@dataclass(frozen=True)
class Reconstruction:
    """What a masked autoencoder made of an image.

    Args:
        path: The image file.
        picture: ``(H, 3 W + 8, 3)``, uint8, red green blue: the image at the
            size of the model, masked, and reconstructed.
        loss: Mean error of the masked patches, as in the training.
    """

    path: Path
    picture: np.ndarray
    loss: float


def reconstruct_images(
    model: MAE,
    images: Sequence[str | Path],
    *,
    batch_size: int = 1,
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None = None,
) -> Iterator[Reconstruction]:
    """Mask and reconstruct image files, resized to the size of the model.

    Args:
        model: From :func:`~mmext.apis.load_detector`, in eval mode.
        images: Image files.
        batch_size: How many go through the model at once.
        on_unreadable: As of :func:`~mmext.apis.infer_images`.

    Yields:
        One for each image; all have the same mask.

    Raises:
        UnreadableImageError: If a file is no whole image, without
            ``on_unreadable``.
        ValueError: If ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f'batch_size must be at least 1, got {batch_size}')
    height, width = (
        count * side for count, side in zip(model.grid, model.head.patch_size)
    )
    transforms = [
        LoadImageFromFile(),
        Resize((width, height), backend='pillow', interpolation='bicubic'),
        PackImages(),
    ]
    inputs = _prepare(images, transforms, on_unreadable)
    while batch := list(islice(inputs, batch_size)):
        with torch.no_grad():
            samples = model.test_step(
                pseudo_collate([results for _, results in batch])
            )
        for (path, _), sample in zip(batch, samples):
            yield Reconstruction(
                path=path,
                picture=draw_reconstruction(sample),
                loss=float(sample.pred_loss),
            )


def _prepare(
    images: Sequence[str | Path],
    transforms: Sequence[Callable],
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None,
) -> Iterator[tuple[Path, dict]]:
    for index, path in enumerate(map(Path, images)):
        try:
            results, _ = prepare_image(path, index, transforms)
        except UnreadableImageError as error:
            if on_unreadable is None:
                raise
            on_unreadable(path, error)
            continue
        yield path, results
