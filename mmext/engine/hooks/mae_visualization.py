"""Pictures of what a masked autoencoder makes of its training data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.structures import BaseDataElement

from ...registry import HOOKS
from ..distributed import unwrap_model

_GAP = 4


def draw_reconstruction(sample: BaseDataElement) -> np.ndarray:
    """Original, masked and reconstructed picture beside each other.

    Args:
        sample: A result of :class:`mmext.MAE` in mode ``'predict'``.

    Returns:
        ``(H, 3 W + 8, 3)``, uint8, with white gaps of 4 pixels.

    Raises:
        ValueError: If the sample has no such pictures.
    """
    names = ('original', 'masked', 'reconstructed')
    missing = [name for name in names if name not in sample]
    if missing:
        raise ValueError(
            f'sample must have {names} as mmext.MAE predicts them, got none '
            f'of {missing}'
        )
    images = [
        sample.get(name).permute(1, 2, 0).cpu().numpy() for name in names
    ]
    if images[0].shape[2] == 1:
        images = [image.repeat(3, 2) for image in images]
    gap = np.full((len(images[0]), _GAP, 3), 255, np.uint8)
    return np.concatenate([images[0], gap, images[1], gap, images[2]], 1)


@HOOKS.register_module()
class MAEVisualizationHook(Hook):
    """Hand the visualizer reconstructions of the first pictures of an epoch.

    Rank 0 reconstructs pictures of the first batch of an epoch, all with the
    same mask, before the step, in evaluation mode and without gradients: the
    training goes as it would without the hook. Its model must give RGB to
    the backbone (``bgr_to_rgb=True`` for files that are read by OpenCV).

    Args:
        interval: In epochs; the last one is drawn, too. In trainings that
            count iterations, in iterations.
        num_images: Of the batch, from its start; of a smaller batch all.

    Raises:
        ValueError: If an argument is below 1.
        TypeError: If the model predicts no reconstructions.
    """

    priority = 'LOW'

    def __init__(self, interval: int = 1, num_images: int = 4) -> None:
        for name, value in (
            ('interval', interval),
            ('num_images', num_images),
        ):
            if value < 1:
                raise ValueError(f'{name} must be at least 1, got {value}')
        self.interval, self.num_images = interval, num_images

    def before_train(self, runner: Runner) -> None:
        """Refuse a model that is no masked autoencoder."""
        model = unwrap_model(runner.model)
        if not hasattr(model, 'mask_ratio'):
            raise TypeError(
                'model must be an mmext.MAE for MAEVisualizationHook, got '
                f'{type(model).__name__}; take the hook out'
            )

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Draw, if it is time."""
        if self._is_due(runner, batch_idx):
            self._draw(runner, data_batch)

    def _is_due(self, runner: Runner, batch_idx: int) -> bool:
        if isinstance(runner.train_loop, IterBasedTrainLoop):
            return runner.iter % self.interval == 0
        if batch_idx:
            return False
        last = runner.epoch + 1 == runner.max_epochs
        return last or runner.epoch % self.interval == 0

    @master_only
    def _draw(self, runner: Runner, data_batch: Mapping[str, Any]) -> None:
        model = unwrap_model(runner.model)
        few = {
            key: value[: self.num_images] for key, value in data_batch.items()
        }
        few['data_samples'] = [
            BaseDataElement(metainfo=sample.metainfo)
            for sample in few['data_samples']
        ]
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                samples = model.test_step(few)
        finally:
            model.train(training)
        for index, sample in enumerate(samples):
            runner.visualizer.add_image(
                f'reconstruction_{index}',
                draw_reconstruction(sample),
                step=runner.iter,
            )
