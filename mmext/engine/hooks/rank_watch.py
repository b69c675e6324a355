"""Note where each process of a run is, and that all have as many batches."""

from typing import Any

from mmengine.dist import all_gather_object, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..distributed import DistributedDataParallel, note_phase


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
        if get_world_size() == 1 or not isinstance(
            runner.train_loop, EpochBasedTrainLoop
        ):
            return
        try:
            length = len(runner.train_dataloader)
        except TypeError:
            length = None  # a loader that does not know
        lengths = all_gather_object(length)
        if len(set(lengths)) > 1:
            shown = ', '.join(
                f'{count} on rank {rank}' for rank, count in enumerate(lengths)
            )
            raise ValueError(
                'train_dataloader must have the same number of batches on all '
                f'processes, got {shown}: DDP would wait for ever for the '
                'process that ends first; let the sampler give each process '
                'as many samples (DefaultSampler with round_up=True), or '
                'train by iterations (train_cfg.type IterBasedTrainLoop, '
                'where data begin anew)'
            )

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

    def _after_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        """Note the end of the step, or the batch of an evaluation."""
        phase = 'the hooks and the loading of data after the step'
        if mode == 'val':
            phase = f'batch {batch_idx + 1} of the validation after the step'
        elif mode == 'test':
            phase = f'batch {batch_idx + 1} of the test'
        note_phase(phase)

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

    def after_val(self, runner: Runner) -> None:
        """Note the end of the validation."""
        note_phase('the hooks and the loading of data after the validation')

    def before_test(self, runner: Runner) -> None:
        """Note the test."""
        note_phase('the test', 0, 0)
