"""Note where each process of a run is, and that all have as many batches."""

from collections.abc import Sequence
from typing import Any

from mmengine.dist import all_gather_object, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..distributed import DistributedDataParallel, note_phase


def check_even_batches(num_batches: Sequence[int | None]) -> None:
    """Raise if the processes have different numbers of batches per epoch.

    ``num_batches`` has one per rank; None for a loader that does not know.

    Raises:
        ValueError: If they differ; it names the ranks.
    """
    if len(set(num_batches)) == 1:
        return
    shown = ', '.join(
        f'{count} on rank {rank}' for rank, count in enumerate(num_batches)
    )
    raise ValueError(
        'train_dataloader must have the same number of batches on all '
        f'processes, got {shown}: DDP would wait for ever for the process '
        'that ends first; let the sampler give each process as many samples '
        '(DefaultSampler with round_up=True), or train by iterations '
        '(train_cfg.type IterBasedTrainLoop, where data begin anew)'
    )


def _num_batches(dataloader: Any) -> int | None:
    try:
        return len(dataloader)
    except TypeError:
        return None


class RankWatchHook(Hook):
    """Tell the watch of a run where this process is.

    An epoch has to have as many batches on all processes: that is checked
    before the first one by the length of the loaders, and at the end of each
    by a vote. Validation may be uneven.

    Raises:
        PeerError: If data end on one process before they do on another.
        ValueError: If the loaders have different lengths.
    """

    # Before all others, whose waits it names.
    priority = 'HIGHEST'

    def before_train(self, runner: Runner) -> None:
        """Compare the lengths of the loaders."""
        note_phase('the start of the training', 0, 0)
        if get_world_size() > 1 and isinstance(
            runner.train_loop, EpochBasedTrainLoop
        ):
            length = _num_batches(runner.train_dataloader)
            check_even_batches(all_gather_object(length))

    def before_train_epoch(self, runner: Runner) -> None:
        """Note the epoch."""
        note_phase('loading data', epoch=runner.epoch + 1)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Note the iteration."""
        note_phase(
            'the hooks before the step', runner.iter + 1, runner.epoch + 1
        )

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Note the end of the step."""
        note_phase('the hooks and the loading of data after the step')

    def after_train_epoch(self, runner: Runner) -> None:
        """See whether all processes are at the end of their data."""
        note_phase('the end of an epoch')
        model = runner.model
        if isinstance(model, DistributedDataParallel) and isinstance(
            runner.train_loop, EpochBasedTrainLoop
        ):
            model.finish_data()

    def before_val(self, runner: Runner) -> None:
        """Note the validation."""
        note_phase('the validation after the step')

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence | None = None,
    ) -> None:
        """Note the batch."""
        note_phase(f'batch {batch_idx + 1} of the validation after the step')

    def after_val(self, runner: Runner) -> None:
        """Note the end of the validation."""
        note_phase('the hooks and the loading of data after the validation')

    def before_test(self, runner: Runner) -> None:
        """Note the test."""
        note_phase('the test', 0, 0)

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence | None = None,
    ) -> None:
        """Note the batch."""
        note_phase(f'batch {batch_idx + 1} of the test')
