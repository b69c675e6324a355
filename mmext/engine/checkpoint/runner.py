"""The part of the runner that saves, loads and resumes."""

import errno
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.fileio import FileClient, LocalBackend, get_file_backend
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseTTAModel
from mmengine.optim import _ParamScheduler
from mmengine.runner import BaseLoop, Runner
from torch import Tensor, nn

from ...utils.files import atomic_path, is_stream, retry_transient
from ...utils.safe_load import careful_readers, foreign_names
from ...utils.training import freeze_modules, set_rng_state
from ..accumulation import (
    is_not_of_lost_gradients,
    restore_gradients,
    restore_windows,
)
from ..class_rows import ClassRows, class_rows
from ..distributed import unwrap_model
from ..launch import DEFAULT_TIMEOUT_S
from ..loops import (
    ResumableEpochBasedTrainLoop,
    ResumableIterBasedTrainLoop,
    batch_size_of,
    remaining_iterations,
)
from .differences import check_differences, differences_table
from .exchange import gather_states, saved_buffers, states_to_save
from .files import SearchResult, find_newest_checkpoint
from .load import (
    WRAPPER_PREFIX,
    check_complete,
    check_fits,
    load_weights,
    read_checkpoint,
)
from .states import by_wrapper, carry_over, compare, describe_training
from .work_dir import adopt_checkpoints, checkpoint_dir

# What MMEngine notes of a run, which the one that goes on has of its own.
_OF_THE_RUN = ('cfg', 'experiment_name', 'mmengine_version')


def _samplers(dataloader: Any) -> list[Any]:
    """Samplers of a loader that draw an order from a seed."""
    batch_sampler = getattr(dataloader, 'batch_sampler', None)
    candidates = (dataloader.sampler, getattr(batch_sampler, 'sampler', None))
    return [item for item in candidates if hasattr(item, 'seed')]


def _plain_hub(hub: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a message hub as what ``weights_only`` allows.

    A ``HistoryBuffer`` becomes two tensors below ``log_history``, a key that
    MMEngine's runner passes over: there, the smoothed losses begin anew.
    """
    scalars = hub['log_scalars']
    return {
        'log_scalars': {},
        'log_history': {
            name: tuple(map(torch.as_tensor, buffer.data))
            for name, buffer in scalars.items()
        },
        'runtime_info': {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in hub['runtime_info'].items()
        },
        'resumed_keys': {
            key: value
            for key, value in hub['resumed_keys'].items()
            if key not in scalars
        },
    }


class UnusableCheckpointError(ValueError):
    """What to resume from, or to load, is there and cannot be used."""


class CheckpointingRunner(Runner):
    """MMEngine's runner with checkpoints that are whole, and exact resume.

    See :class:`~mmext.engine.PortableRunner`.
    """

    dist_timeout_s: float = DEFAULT_TIMEOUT_S
    _resuming = False
    _evaluating = False
    _saved_by_all_ranks = False
    _windows_to_restore: Mapping[str, Any] | None = None
    _resumed_meta: Mapping[str, Any] = {}
    # What has steps to make up for, once it is loaded.
    _late_schedulers: Sequence[_ParamScheduler] = ()
    # Whether the checkpoint was found in a folder, and not named by the user.
    _found = False
    _run_id = ''
    _types_checked = False

    # Trust -----------------------------------------------------------------

    @property
    def trust_checkpoint(self) -> bool:
        """Whether files that are named may run code when they are read."""
        trust = self.cfg.get('trust_checkpoint', False)
        if not isinstance(trust, bool):
            raise ValueError(
                f'trust_checkpoint must be True or False, got {trust!r}'
            )
        return trust and not self._found

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        """Build the model; files that it reads run no code."""
        with careful_readers(self.trust_checkpoint):
            model = super().build_model(model)
        # Before it is wrapped, so that DDP does not wait for frozen ones.
        inner = model.module if isinstance(model, BaseTTAModel) else model
        self._frozen = freeze_modules(inner, self.cfg.get('freeze') or [])
        return model

    # Saving ----------------------------------------------------------------

    def _position(self, meta: Mapping[str, Any], by_epoch: bool) -> dict:
        """``meta`` with all that is needed to go on from here."""
        meta = dict(meta)
        epoch = meta.setdefault('epoch', self.epoch + bool(by_epoch))
        meta.setdefault('iter', self.iter + (not by_epoch))
        meta.setdefault('pending_val', self._is_val_awaited(meta))
        loader = self.train_dataloader
        loop = self.train_loop
        meta.update(
            batch_in_epoch=getattr(loop, 'batch_in_epoch', 0)
            if epoch == loop.epoch
            else 0,
            batches_per_epoch=len(loader),
            batch_size=batch_size_of(loader),
            world_size=self.world_size,
            sampler_seed=next(
                (sampler.seed for sampler in _samplers(loader)), None
            ),
            run_id=self.run_id,
        )
        return meta

    @property
    def run_id(self) -> str:
        """Tells this training, with all resumptions, from any other one."""
        self._run_id = self._run_id or uuid.uuid4().hex
        return self._run_id

    def _is_val_awaited(self, meta: Mapping[str, Any]) -> bool:
        """Whether a validation follows that decides on the learning rate."""
        loop = self.train_loop
        if not any(
            getattr(scheduler, 'need_val_args', False)
            for schedulers in by_wrapper(self.param_schedulers, []).values()
            for scheduler in schedulers
        ):
            return False
        if isinstance(loop, ResumableEpochBasedTrainLoop):
            epoch = meta['epoch']
            return epoch > loop.epoch and loop.is_val_due_after_epoch(epoch)
        return (
            isinstance(loop, ResumableIterBasedTrainLoop)
            and meta['iter'] > loop.iter
            and loop.is_val_due_after(meta['iter'])
        )

    @contextmanager
    def saving_on_all_ranks(self) -> Iterator[None]:
        """What is saved in this block is saved by all ranks or not at all.

        Outside, it may be that only rank 0 is asked to save.
        :class:`MissingRanksError` is raised on rank 0 if another rank does
        not come.
        """
        self._saved_by_all_ranks = True
        try:
            yield
        finally:
            self._saved_by_all_ranks = False

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        file_client_args: dict | None = None,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        meta: dict | None = None,
        by_epoch: bool = True,
        backend_args: dict | None = None,
    ) -> None:
        """Save a checkpoint, whole or not at all.

        To be called on all ranks; rank 0 writes. On a local disk the file
        appears under its name when it is complete. ``meta`` may give the
        position, ``epoch`` and ``iter``; else ``by_epoch`` says whether this
        is the end of an epoch or of an iteration.
        """
        meta = self._position(meta or {}, by_epoch)
        if save_optimizer:
            name = f'{filename}/{meta["iter"]}'
            states = gather_states(
                self, name, from_all=self._saved_by_all_ranks
            )
            if states:
                meta['training'] = describe_training(self)
                meta.update(states_to_save(self, meta, states))
        if not is_main_process():
            return
        options = {
            'file_client_args': file_client_args,
            'save_optimizer': save_optimizer,
            'save_param_scheduler': save_param_scheduler,
            'meta': meta,
            'by_epoch': by_epoch,
            'backend_args': backend_args,
        }
        if file_client_args is None:
            backend = get_file_backend(out_dir, backend_args=backend_args)
        else:
            backend = FileClient.infer_client(file_client_args, out_dir).client
        if not isinstance(backend, LocalBackend):
            super().save_checkpoint(out_dir, filename, **options)
            return
        path = os.path.join(out_dir, filename)
        try:
            if is_stream(path):
                raise OSError(errno.EEXIST, 'it is not a regular file')
            with atomic_path(path) as temporary:
                retry_transient(
                    super().save_checkpoint,
                    str(temporary.parent),
                    temporary.name,
                    **options,
                )
                names = () if self._types_checked else foreign_names(temporary)
                self._types_checked = True
        except OSError as error:
            raise OSError(
                error.errno,
                f'checkpoint {path} could not be written '
                f'({error.strerror or error}); earlier checkpoints are '
                'untouched. Make room or choose another --work-dir, then go '
                'on with --resume',
            ) from error
        if names:
            self.logger.warning(
                f'{filename} holds {", ".join(names)}, which is not plain '
                'data: it can be read with --resume FILE --trust-checkpoint '
                'only. Let the hook or part that saves it save plain values'
            )

    # Loading ---------------------------------------------------------------

    def load_checkpoint(
        self,
        filename: str,
        map_location: str | Callable = 'cpu',
        strict: bool = False,
        revise_keys: Sequence[tuple[str, str]] = WRAPPER_PREFIX,
    ) -> dict:
        """Load weights into the model; returns the checkpoint.

        ``map_location`` is ignored: checkpoints are read on the CPU, and the
        weights go from there to where the model is. With ``strict``, model and
        checkpoint must be the same, entry by entry.
        """
        checkpoint = read_checkpoint(filename, trust=self.trust_checkpoint)
        if self._resuming:
            self._check_resumable(checkpoint, filename)
        try:
            self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        except RuntimeError as error:
            raise ValueError(
                f'checkpoint {filename!r} does not fit the model: {error}'
            ) from error
        report = load_weights(
            unwrap_model(self.model),
            checkpoint,
            filename,
            revise_keys=revise_keys,
            rows=partial(self._class_rows, checkpoint),
        )
        if strict or self._resuming:
            check_fits(report, filename)
        elif self._evaluating:
            check_complete(report, filename)
        self._has_loaded = True
        if report.is_exact:
            self.logger.info(f'Loaded {filename}: {report}')
        else:
            self.logger.warning(
                f'Loaded {filename} in part: {report}. What was not loaded '
                f'keeps its initial values.\n{report.table()}'
            )
        return checkpoint

    def _class_rows(
        self, checkpoint: Mapping[str, Any], weights: Mapping[str, Tensor]
    ) -> ClassRows | None:
        """How to load weights that are of other classes, for a training."""
        loop = self._train_loop
        if (
            self._resuming
            or self._evaluating
            or not isinstance(loop, BaseLoop)
            or not self.cfg.get('match_classes', True)
        ):
            return None
        metainfo = getattr(loop.dataloader.dataset, 'metainfo', None) or {}
        return class_rows(
            unwrap_model(self.model),
            self.cfg.get('model'),
            metainfo.get('classes'),
            checkpoint.get('meta') or {},
            weights,
        )

    def _check_resumable(self, checkpoint: Mapping, filename: str) -> None:
        parts = ('meta', 'message_hub', 'optimizer')
        missing = [part for part in parts if part not in checkpoint]
        if missing:
            raise ValueError(
                f'checkpoint {filename!r} must hold the state of a training '
                f'to resume from it, but has no {" and no ".join(missing)}; '
                'set load_from (and not resume) to use its weights only'
            )
        # MMEngine would run the text of a config that it finds there.
        checkpoint['meta'].pop('config', None)
        hub = checkpoint['message_hub']
        for name, data in hub.pop('log_history', {}).items():
            hub['log_scalars'][name] = HistoryBuffer(*map(np.asarray, data))
            hub['resumed_keys'][name] = True
        self._resumed_meta = checkpoint['meta']
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.param_schedulers is not None:
            self.param_schedulers = self.build_param_scheduler(
                self.param_schedulers
            )
        differences = compare(self, checkpoint)
        if differences:
            self.logger.warning(
                f'{filename} was saved by a training that differs from this '
                f'one:\n{differences_table(differences)}'
            )
        else:
            self.logger.info(f'{filename} is of a training like this one.')
        check_differences(differences, filename)
        self._late_schedulers = carry_over(self, checkpoint)

    # Resuming --------------------------------------------------------------

    def load_or_resume(self) -> None:
        """Resume or load what the config asks for, once.

        ``resume=True`` with ``load_from`` goes on from that file. Without
        one, and with ``resume='auto'``, it goes on from the newest complete
        checkpoint of the work dir; if there is none, the training starts
        from the beginning, from the weights of ``load_from`` if that is set.

        Raises:
            UnusableCheckpointError: If a checkpoint is damaged, or does not
                go with the model or the training; of a work dir, if none
                of its checkpoints can be used.
        """
        if self._has_loaded:
            return
        if self._evaluating and self._load_from:
            # The config that a resumed training wrote asks to resume.
            self._resume = False
        try:
            if not self._resumes_newest():
                super().load_or_resume()
        except ValueError as error:
            raise UnusableCheckpointError(str(error)) from error

    def _resumes_newest(self) -> bool:
        """Resume from the newest of the work dir if asked to, and if any."""
        if self._resume != 'auto' and (not self._resume or self._load_from):
            return False
        newest = self._find_newest()
        if newest is None:
            self._resume = False
            return False
        self._found = True
        try:
            self.resume(newest)
        finally:
            self._found = False
        return True

    def _find_newest(self) -> str | None:
        result = SearchResult(None)
        if is_main_process():
            result = find_newest_checkpoint(
                self.work_dir, checkpoint_dir(self.hooks, self.work_dir)
            )
            for note in result.notes:
                self.logger.warning(note)
        # One view for all: file systems of several machines may differ.
        newest = [result.checkpoint, result.unused]
        broadcast_object_list(newest)
        checkpoint, unused = newest
        if checkpoint is None and unused:
            raise UnusableCheckpointError(
                f'{unused}. To start anew, remove {self.work_dir}/'
                'last_checkpoint and any damaged file beside it'
            )
        if result.leftovers:
            names = ', '.join(path.name for path in result.leftovers)
            self.logger.warning(
                f'removing what an interrupted write left: {names}'
            )
            for path in result.leftovers:
                retry_transient(path.unlink, missing_ok=True)
        if checkpoint is None:
            start = self._load_from and f'the weights of {self._load_from}'
            self.logger.info(
                f'No checkpoint to resume from in {self.work_dir}, starting '
                f'from {start or "the beginning"}.'
            )
        else:
            self.logger.info(f'Resuming from {checkpoint}.')
        return checkpoint

    def resume(
        self,
        filename: str,
        resume_optimizer: bool = True,
        resume_param_scheduler: bool = True,
        map_location: str | Callable = 'cpu',
    ) -> None:
        """Go on from a checkpoint of the same training."""
        self._resuming = True
        info = self.message_hub.runtime_info
        about_this_run = {key: info[key] for key in _OF_THE_RUN if key in info}
        try:
            super().resume(
                filename, resume_optimizer, resume_param_scheduler, 'cpu'
            )
        finally:
            self._resuming = False
        if self._found:
            self._run_id = str(self._resumed_meta.get('run_id', ''))
        forgotten = adopt_checkpoints(
            self.message_hub,
            filename,
            self.work_dir,
            checkpoint_dir(self.hooks, self.work_dir),
        )
        if forgotten:
            self.logger.warning(
                f'{filename} is outside of this work dir: what it says of '
                f'checkpoints beside it ({", ".join(forgotten)}) is left '
                'alone, and not replaced by better ones'
            )
        self.message_hub.runtime_info.update(about_this_run)
        for scheduler in self._late_schedulers:
            scheduler.step()
        meta = self._resumed_meta
        if meta.get('sampler_seed') is not None:
            for sampler in _samplers(self.train_dataloader):
                sampler.seed = meta['sampler_seed']
        state = self._own('rng_states')
        buffers = saved_buffers(unwrap_model(self.model))
        for name, buffer in (self._own('rank_buffers') or {}).items():
            buffers[name].copy_(buffer)
        if 'accumulation' in meta:
            self._windows_to_restore = meta['accumulation']
            self.logger.addFilter(is_not_of_lost_gradients)
        loop = self.train_loop
        if hasattr(loop, 'go_on_from'):
            loop.go_on_from(
                epoch=loop.epoch,
                iteration=loop.iter,
                batch_in_epoch=self._batch_to_go_on(),
                pending_val=meta.get('pending_val', False),
                rng_state=state,
            )
        elif state is not None:
            set_rng_state(state)

    def _own(self, key: str) -> Any:
        """What the checkpoint has of this rank, None with other numbers."""
        states = self._resumed_meta.get(key) or []
        return states[self.rank] if len(states) == self.world_size else None

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """Call a method of all hooks; restores open windows before training.

        That is after MMEngine has set the counters of the optimizer wrapper
        from the number of the iteration.
        """
        if fn_name == 'before_train' and self._windows_to_restore is not None:
            saved, self._windows_to_restore = self._windows_to_restore, None
            self.logger.removeFilter(is_not_of_lost_gradients)
            loop = self.train_loop
            remaining = remaining_iterations(
                loop, loop.epoch, loop.iter, getattr(loop, 'batch_in_epoch', 0)
            )
            factors = restore_windows(self.optim_wrapper, saved, remaining)
            restore_gradients(
                self.optim_wrapper,
                saved.get('gradients', []),
                self.rank,
                self.world_size,
                factors,
            )
        elif fn_name == 'before_save_checkpoint':
            # OneCycle has a function, which is no plain data.
            states = kwargs['checkpoint'].get('param_schedulers')
            for entries in by_wrapper(states, []).values():
                for entry in entries:
                    for key in [k for k in entry if callable(entry[k])]:
                        del entry[key]
            hub = kwargs['checkpoint']['message_hub']
            kwargs['checkpoint']['message_hub'] = _plain_hub(hub)
        super().call_hook(fn_name, **kwargs)

    def _batch_to_go_on(self) -> int:
        """Batches of the epoch in progress that are trained already."""
        loop, meta = self.train_loop, self._resumed_meta
        if not isinstance(loop, ResumableEpochBasedTrainLoop):
            return 0
        length = len(self.train_dataloader)
        if 'batch_in_epoch' not in meta:
            # Saved by MMEngine's runner.
            batch = loop.iter - loop.epoch * length
            return batch if 0 < batch <= length else 0
        if meta['batch_in_epoch'] == meta['batches_per_epoch']:
            return length
        return meta['batch_in_epoch']
