"""Checkpoints of which a complete one is always on the disk.

MMEngine's hook removes the oldest checkpoint, and the previous best one,
before it has written the new one, and writes ``last_checkpoint`` and the
published file in place. A process that is killed meanwhile leaves less than
there was.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from ..registry import HOOKS
from ..utils.files import atomic_path
from .checkpoint_file import read_checkpoint

__all__ = ['AtomicCheckpointHook', 'write_last_checkpoint']


def write_last_checkpoint(work_dir: str | Path, checkpoint: str) -> None:
    """Note in a work dir which checkpoint was written last.

    Args:
        work_dir: Folder of the run.
        checkpoint: Path or address of the checkpoint.
    """
    with atomic_path(Path(work_dir) / 'last_checkpoint') as temporary:
        temporary.write_text(checkpoint)


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

    With ``max_keep_ckpts=N`` there are ``N + 1`` checkpoints for a moment.
    """

    @contextmanager
    def _late_removals(self) -> Iterator[_LateRemovals]:
        outer = self.file_backend
        self.file_backend = late = _LateRemovals(outer)
        try:
            yield late
        finally:
            self.file_backend = outer

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
        return [self._path(self.filename_tmpl.format(old)) for old in outdated]

    def _path(self, name: str) -> str:
        return self.file_backend.join_path(self.out_dir, name)

    def _save_checkpoint_with_step(
        self, runner: Runner, step: int, meta: dict
    ) -> None:
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
                _remove(self.file_backend, path)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if not self.save_best:
            return
        with self._late_removals() as late:
            super()._save_best_checkpoint(runner, metrics)
        if is_main_process():
            for path in late.paths:
                # A validation that is done again writes the same name.
                if path not in self._best_paths():
                    _remove(self.file_backend, path)

    def _best_paths(self) -> list[str | None]:
        if len(self.key_indicators) == 1:
            return [self.best_ckpt_path]
        return list(self.best_ckpt_path_dict.values())

    def _publish_model(self, runner: Runner, ckpt_path: str) -> None:
        if not is_main_process():
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
