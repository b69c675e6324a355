"""Settings of a preflight."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .batches.kinds import check_kinds

__all__ = ['PreflightSettings', 'check_settings']


class PreflightSettings(msgspec.Struct, kw_only=True):
    """Settings of a preflight; those of the tool, by the same names.

    Attributes:
        config: Config file.
        cfg_options: Settings to put over it.
        batches: Kinds of batches, see
            :data:`~mmext.preflight.batches.kinds.KINDS`.
        steps: Of the first kind, at least 2: the second shows what the
            first one has left behind. The other kinds get one.
        batch_size: Samples of a batch; 0 for 2 where a model computes
            statistics of batches, which one sample may not suffice for, and
            else 1.
        image_size: Height and width of made-up pictures; None for what suits
            the model.
        device: Where the model runs.
        world: Processes to confirm the verdict with; 0 for none.
        labels: Check the labels of the data, too, if they are there.
        store: File that keeps what was read of them, see
            :class:`~mmext.label_check.settings.CheckSettings`.
        fail_on: Least severity that makes the exit code 1.
        json: File for the report; None for none.
        html: The same as a page to read.
        fix: File for a config that inherits this one and has its findings
            mended; None for none, ``Path('')`` for a name of its own beside
            the config.
    """

    config: str
    cfg_options: dict | None = None
    batches: Sequence[str] = ('normal', 'empty', 'one-class', 'crowded')
    steps: int = 2
    batch_size: int = 0
    image_size: tuple[int, int] | None = None
    device: str = 'cpu'
    world: int = 0
    labels: bool = True
    store: Path = Path('work_dirs/label_check.sqlite')
    fail_on: str = 'error'
    json: Path | None = None
    html: Path | None = None
    fix: Path | None = None


def check_settings(settings: PreflightSettings) -> None:
    """Refuse settings that cannot be.

    Args:
        settings: Any.

    Raises:
        FileNotFoundError: If there is no such config.
        ValueError: If another setting is not as said.
    """
    if not Path(settings.config).is_file():
        raise FileNotFoundError(
            f'config must be an existing file, got {settings.config}'
        )
    check_kinds(settings.batches)
    if settings.steps < 2:
        raise ValueError(
            '--steps must be at least 2, as the second step shows what the '
            f'first has left behind, got {settings.steps}'
        )
    if settings.batch_size < 0:
        raise ValueError(
            '--batch-size must be at least 1, or 0 for what suits the model, '
            f'got {settings.batch_size}'
        )
    if settings.world < 0 or settings.world == 1:
        raise ValueError(
            '--world must be 2 or more processes, or 0 for none, got '
            f'{settings.world}'
        )
    size = settings.image_size
    if size is not None and min(size) < 1:
        raise ValueError(
            f'--image-size must be two positive numbers, got {size}'
        )
