"""Where a run is: short rows for the user, notes for the watch of its ranks.

What the rows leave out is in the log file.
"""

import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.logging import MMLogger
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..distributed import DistributedDataParallel, current_watch

# Functions of MMEngine that log hooks, environment and config, that there is
# no SyncBN, and all parts of the loss; then lines for each parameter.
_LONG = ('__init__', '_log_env', 'wrap_model')
_LONG += ('after_train_iter', 'after_val_iter', 'after_test_iter')
_LONG_STARTS = ('paramwise_options', 'Param groups')
# Seconds between two rows: the first ones of a run, and later ones.
_EVERY_S, _LATER_S = 5.0, 30.0


def _is_for_console(record: logging.LogRecord) -> bool:
    text = str(record.msg)
    if 'mmengine' not in Path(record.pathname).parts:
        return True
    if record.levelno >= logging.WARNING:
        # Of its own calls.
        return 'will be deprecated in future' not in text
    return not (record.funcName in _LONG or text.startswith(_LONG_STARTS))


def shorten_console(logger: MMLogger) -> None:
    """Keep what is long, and not for each user, to the log file."""
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.addFilter(lambda row: not hasattr(row, 'console_only'))
        else:
            handler.addFilter(_is_for_console)
            handler.formatter.info_format = '%(asctime)s %(message)s'


class ProgressHook(Hook):
    """Prints a row of progress after the first step, and every few seconds.

    Also where the config's ``LoggerHook`` logs a step. Loss and time are
    means since the row before.
    """

    # Before the LoggerHook, which resets the largest memory.
    priority = 'NORMAL'

    def __init__(self) -> None:
        self._begun, self._due, self._steps = time.monotonic(), 0.0, 0

    def before_val_epoch(self, runner: Runner) -> None:
        """Show nothing of what takes less than some seconds."""
        self._due, self._steps = time.monotonic() + _EVERY_S, 0

    before_test_epoch = before_val_epoch

    def _after_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        self._steps += 1
        size = len(getattr(runner, f'{mode}_dataloader'))
        now = time.monotonic()
        logged = (mode == 'train' and batch_idx + 1 == size) or any(
            isinstance(hook, LoggerHook)
            and self.every_n_inner_iters(batch_idx, hook.interval)
            for hook in runner.hooks
        )
        if is_main_process() and (logged or now >= self._due):
            rest = max(_EVERY_S, (now - self._begun) / 60)
            self._due = now + min(rest, _LATER_S)
            row = self._row(runner, batch_idx + 1, size, mode)
            runner.logger.info(row, extra={'console_only': True})
            self._steps = 0

    def _row(self, runner: Runner, step: int, size: int, mode: str) -> str:
        head = f'Iter({mode}) '
        if runner.log_processor.by_epoch:
            head = f'Epoch({mode}) '
            if mode != 'test':
                head += f'[{runner.log_processor._get_epoch(runner, mode)}]'
        elif mode == 'train':
            step, size = runner.iter + 1, runner.max_iters
        parts = [f'{head}[{step:>{len(str(size))}}/{size}]']
        scalars = runner.message_hub.log_scalars
        for key, form, steps in (
            ('loss', 'loss {:.4f}', self._steps),
            ('lr', 'lr {:.2e}', 1),
            ('time', '{:.2f} s/step', self._steps),
        ):
            if f'{mode}/{key}' in scalars:
                value = scalars[f'{mode}/{key}'].mean(steps)
                parts.append(form.format(value))
        if runner.device.type == 'cuda':
            memory = torch.cuda.max_memory_allocated(runner.device)
            parts.append(f'{memory >> 20} MB')
        if 'eta' in runner.message_hub.runtime_info:
            left = int(runner.message_hub.get_info('eta'))
            parts.append(f'{timedelta(seconds=left)} left')
        return '  '.join(parts)


class RankWatchHook(Hook):
    """Tell the watch of a run where this process is.

    At the end of an epoch, all processes vote whether they have had as many
    batches. Validation may be uneven.

    Raises:
        PeerError: If data end on one process before they do on another.
    """

    # Before all others, whose waits it names.
    priority = 'HIGHEST'

    def before_train(self, runner: Runner) -> None:
        """Note the start."""
        current_watch().note('the start of the training', 0, 0)

    def before_train_epoch(self, runner: Runner) -> None:
        """Note the epoch."""
        current_watch().note('loading data', epoch=runner.epoch + 1)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Note the iteration."""
        current_watch().note(
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
        current_watch().note(phase)

    def after_train_epoch(self, runner: Runner) -> None:
        """See whether all processes are at the end of their data."""
        current_watch().note('the end of an epoch')
        model = runner.model
        if isinstance(model, DistributedDataParallel) and isinstance(
            runner.train_loop, EpochBasedTrainLoop
        ):
            model.finish_data()

    def before_val(self, runner: Runner) -> None:
        """Note the validation."""
        current_watch().note('the validation after the step')

    def after_val(self, runner: Runner) -> None:
        """Note the end of the validation."""
        current_watch().note(
            'the hooks and the loading of data after the validation'
        )

    def before_test(self, runner: Runner) -> None:
        """Note the test."""
        current_watch().note('the test', 0, 0)
