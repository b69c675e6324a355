"""What a run prints: short rows of progress; the log file has the rest."""

import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.logging import MMLogger
from mmengine.runner import Runner

__all__ = ['ProgressHook', 'shorten_console']

# Functions of MMEngine that log the environment, the config and the hooks,
# SyncBN that there is not, and all parts of the loss.
_LONG = frozenset(
    {
        '__init__',
        '_log_env',
        'after_test_iter',
        'after_train_iter',
        'after_val_iter',
        'wrap_model',
    }
)
# A line for each parameter, all groups of them, and MMEngine's own calls.
_LONG_STARTS = ('paramwise_options', 'Param groups')
_OWN_CALLS = 'will be deprecated in future'
# Seconds between two rows: the first ones of a run, and later ones.
_EVERY_S = 5.0
_LATER_S = 30.0


def _is_for_console(record: logging.LogRecord) -> bool:
    if 'mmengine' not in Path(record.pathname).parts:
        return True
    text = str(record.msg)
    if record.levelno >= logging.WARNING:
        return _OWN_CALLS not in text
    return not (record.funcName in _LONG or text.startswith(_LONG_STARTS))


def _is_for_file(record: logging.LogRecord) -> bool:
    return not hasattr(record, 'console_only')


def shorten_console(logger: MMLogger) -> None:
    """Keep what is long, and not for each user, to the log file."""
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.addFilter(_is_for_file)
        elif isinstance(handler, logging.StreamHandler):
            handler.addFilter(_is_for_console)
            handler.formatter.info_format = '%(asctime)s %(message)s'


class ProgressHook(Hook):
    """Prints a row of progress after the first step, and every few seconds.

    Also where the config's ``LoggerHook`` logs a step. A row has the mean loss
    since the row before, the learning rate, on a GPU the memory, the time of
    a step, and the time that the steps left will take.
    """

    # Before the LoggerHook, which resets the largest memory.
    priority = 'NORMAL'

    def before_train(self, runner: Runner) -> None:
        """Show the first step."""
        self._begun, self._due, self._steps = time.monotonic(), 0.0, 0

    def before_val_epoch(self, runner: Runner) -> None:
        """Show nothing of a validation that takes seconds."""
        now = time.monotonic()
        self._begun = getattr(self, '_begun', now)
        self._due, self._steps = now + _EVERY_S, 0

    before_test_epoch = before_val_epoch

    def _after_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        """Print a row if it is time for one."""
        if not is_main_process():
            return
        self._steps += 1
        loader = getattr(runner, f'{mode}_dataloader')
        logged = any(
            isinstance(hook, LoggerHook)
            and self.every_n_inner_iters(batch_idx, hook.interval)
            for hook in runner.hooks
        ) or (mode == 'train' and self.end_of_epoch(loader, batch_idx))
        now = time.monotonic()
        if not logged and now < self._due:
            return
        self._due = now + min(
            max(_EVERY_S, (now - self._begun) / 60), _LATER_S
        )
        runner.logger.info(
            self._row(runner, batch_idx + 1, len(loader), mode),
            extra={'console_only': True},
        )
        self._steps = 0

    def _row(self, runner: Runner, step: int, size: int, mode: str) -> str:
        by_epoch = runner.log_processor.by_epoch
        head = f'{"Epoch" if by_epoch else "Iter"}({mode}) '
        if mode == 'train' and not by_epoch:
            step, size = runner.iter + 1, runner.max_iters
        elif by_epoch and mode != 'test':
            epoch = runner.log_processor._get_epoch(runner, mode)
            head += f'[{epoch}]'
        parts = [f'{head}[{step:>{len(str(size))}}/{size}]']
        scalars = runner.message_hub.log_scalars
        for key, form in (
            ('loss', 'loss {:.4f}'),
            ('lr', 'lr {:.2e}'),
            ('time', '{:.2f} s/step'),
        ):
            scalar = scalars.get(f'{mode}/{key}')
            if scalar is not None:
                value = (
                    scalar.current()
                    if key == 'lr'
                    else scalar.mean(self._steps)
                )
                parts.append(form.format(value))
        if runner.device.type == 'cuda':
            memory = torch.cuda.max_memory_allocated(runner.device)
            parts.append(f'{memory >> 20} MB')
        left = runner.message_hub.runtime_info.get('eta')
        if left is not None:
            parts.append(f'{timedelta(seconds=int(left))} left')
        return '  '.join(parts)
