"""How long a config trains, in epochs or iterations."""

from typing import NamedTuple

from .subject import Subject, as_mapping, plain_name

__all__ = ['TrainingLength', 'training_length']

_EPOCHS = ('EpochBasedTrainLoop', 'ResumableEpochBasedTrainLoop')
_ITERS = ('IterBasedTrainLoop', 'ResumableIterBasedTrainLoop')


class TrainingLength(NamedTuple):
    """The end of a training.

    Attributes:
        by_epoch: It is counted in epochs, else in iterations.
        total: How many there are.
    """

    by_epoch: bool
    total: int

    @property
    def unit(self) -> str:
        """What is counted, in the plural."""
        return 'epochs' if self.by_epoch else 'iterations'

    @property
    def key(self) -> str:
        """Of ``train_cfg`` that holds the number."""
        return 'max_epochs' if self.by_epoch else 'max_iters'


def training_length(subject: Subject) -> TrainingLength | None:
    """Read how long a training is.

    Args:
        subject: The config.

    Returns:
        The length; None if the config has no training, one with a loop of
        its own, or no whole number.
    """
    loop = as_mapping(subject.top.get('train_cfg'))
    kind = plain_name(loop.get('type'))
    by_epoch = loop.get('by_epoch')
    if kind in _EPOCHS:
        by_epoch = True
    elif kind in _ITERS:
        by_epoch = False
    elif kind or not isinstance(by_epoch, bool):
        return None
    total = loop.get('max_epochs' if by_epoch else 'max_iters')
    if not isinstance(total, int) or isinstance(total, bool) or total < 1:
        return None
    return TrainingLength(by_epoch, total)
