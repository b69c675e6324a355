"""Checkpoints of which a complete one is always on the disk.

MMEngine's hook removes the oldest checkpoint, and the previous best one,
before it has written the new one, and writes ``last_checkpoint`` and the
published file in place. A process that is killed meanwhile leaves less than
there was.
"""

import hashlib
import io
import os
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from ...registry import HOOKS
from ...utils.files import atomic_path, retry_transient
from ..checkpoint import (
    CheckpointingRunner,
    MissingRanksError,
    read_checkpoint,
)
from ..checkpoint.work_dir import (
    OUTDATED,
    checkpoint_dir,
    is_below,
    join_names,
    with_names_only,
    write_last_checkpoint,
)


def saving_on_all_ranks(runner: Runner) -> AbstractContextManager:
    """A block in which all ranks save; see ``CheckpointingRunner``."""
    if isinstance(runner, CheckpointingRunner):
        return runner.saving_on_all_ranks()
    return nullcontext()


def _remove(backend: Any, path: str) -> bool:
    """Remove a checkpoint; returns whether there was one."""
    if backend.isfile(path):
        backend.remove(path)
    elif backend.isdir(path):
        # Engines that shard a model write folders.
        backend.rmtree(path)
    else:
        return False
    return True


class _LateRemovals:
    """A file backend that notes removals, to be done afterwards."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.paths: list[str] = []

    def remove(self, path: str) -> None:
        self.paths.append(path)

    rmtree = remove

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """Save checkpoints; remove old ones only when the new one is complete.

    Takes the arguments of MMEngine's ``CheckpointHook`` and writes the same
    files. :class:`~mmext.engine.PortableRunner` uses it for every config
    that names ``CheckpointHook``; that no checkpoint is ever half-written
    comes from that runner, too.

    Only what is in its own folder is ever removed: ``out_dir``, by default
    the work dir. Checkpoints hold names of others, not paths, so a run goes
    on in a copy of its work dir without touching the original.

    With ``max_keep_ckpts=N`` there are ``N + 1`` checkpoints for a moment.
    """

    def before_train(self, runner: Runner) -> None:
        """Find the folder for checkpoints."""
        # What a resumed checkpoint holds, with MMEngine's runner.
        join_names(runner.message_hub, checkpoint_dir([self], runner.work_dir))
        super().before_train(runner)
        if isinstance(self.file_backend, LocalBackend):
            self.out_dir = os.path.abspath(self.out_dir)
        # Of a training that was killed before it could remove them.
        if self.max_keep_ckpts > 0 and is_main_process():
            for step in runner.message_hub.runtime_info.get(OUTDATED, ()):
                path = self._path(self.filename_tmpl.format(step))
                if self._is_there(path):
                    self._remove(runner, path)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put names of checkpoints in place of their paths."""
        checkpoint.update(with_names_only(checkpoint))

    def _remove(self, runner: Runner, path: str) -> None:
        """Remove a checkpoint of this run."""
        if not is_below(path, self.out_dir):
            runner.logger.warning(
                f'{path} is not removed, as it is outside of {self.out_dir}'
            )
            return
        try:
            retry_transient(_remove, self.file_backend, path)
        except OSError as error:
            runner.logger.warning(
                f'{path} could not be removed ({error.strerror}); the '
                'training goes on. Remove it yourself'
            )

    def _rotate(self, runner: Runner, step: int) -> list[str]:
        """Count in the checkpoint of a step; returns those to remove."""
        if self.max_keep_ckpts <= 0:
            return []
        outdated = []
        if step not in self.keep_ckpt_ids:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                outdated.append(self.keep_ckpt_ids.popleft())
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info(
                'keep_ckpt_ids', list(self.keep_ckpt_ids)
            )
            runner.message_hub.update_info(OUTDATED, outdated)
        return [self._path(self.filename_tmpl.format(old)) for old in outdated]

    def _path(self, name: str) -> str:
        return self.file_backend.join_path(self.out_dir, name)

    def _save_checkpoint_with_step(
        self, runner: Runner, step: int, meta: dict
    ) -> None:
        before = self.last_ckpt, list(getattr(self, 'keep_ckpt_ids', ()))
        try:
            with saving_on_all_ranks(runner):
                self._save_and_rotate(runner, step, meta)
        except MissingRanksError as error:
            # Resumed from, it would go on with other random numbers.
            runner.logger.error(str(error))
            self.last_ckpt, ids = before
            runner.message_hub.update_info('last_ckpt', self.last_ckpt)
            if self.max_keep_ckpts > 0:
                self.keep_ckpt_ids = deque(ids, self.max_keep_ckpts)
                runner.message_hub.update_info('keep_ckpt_ids', ids)

    def _save_and_rotate(self, runner: Runner, step: int, meta: dict) -> None:
        outdated = self._rotate(runner, step)
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self._path(name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            write_last_checkpoint(runner.work_dir, self.last_ckpt)
            for path in outdated:
                self._remove(runner, path)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if not self.save_best:
            return
        # As plain numbers: readers that run no code know few of numpy's.
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in metrics.items()
        }
        late = _LateRemovals(self.file_backend)
        with patch.object(self, 'file_backend', late):
            super()._save_best_checkpoint(runner, plain)
        if len(self.key_indicators) == 1:
            best = [self.best_ckpt_path]
        else:
            best = self.best_ckpt_path_dict.values()
        for path in late.paths if is_main_process() else ():
            # A validation that is done again writes the same name.
            if path not in best:
                self._remove(runner, path)

    def _is_there(self, path: str) -> bool:
        return self.file_backend.isfile(path) or self.file_backend.isdir(path)

    def _publish_model(self, runner: Runner, ckpt_path: str | None) -> None:
        if not is_main_process():
            return
        if not ckpt_path or not self._is_there(ckpt_path):
            runner.logger.warning(
                f'{ckpt_path or "a best checkpoint"} is not published, as it '
                'is not here'
            )
            return
        backend = get_file_backend(ckpt_path, backend_args=self.backend_args)
        if not isinstance(backend, LocalBackend):
            super()._publish_model(runner, ckpt_path)
            return
        checkpoint = read_checkpoint(ckpt_path)
        dropped = sorted(set(checkpoint) - set(self.published_keys))
        buffer = io.BytesIO()
        torch.save(
            {
                key: value
                for key, value in checkpoint.items()
                if key not in dropped
            },
            buffer,
        )
        digest = hashlib.sha256(buffer.getbuffer()).hexdigest()[:8]
        source = Path(ckpt_path)
        with atomic_path(source.with_name(f'{source.stem}-{digest}.pth')) as (
            temporary
        ):
            temporary.write_bytes(buffer.getbuffer())
        runner.logger.info(
            f'{ckpt_path} is published to {source.stem}-{digest}.pth, without '
            f'{dropped or "leaving out anything"}'
        )
