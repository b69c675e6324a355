"""The part of the runner that saves, loads and resumes."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmengine.dist import (
    broadcast_object_list,
    get_dist_info,
    is_main_process,
)
from mmengine.fileio import FileClient, LocalBackend, get_file_backend
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from ..utils.files import atomic_path
from .checkpoint_file import (
    find_newest_checkpoint,
    read_checkpoint,
    remove_leftovers,
)
from .checkpoint_load import (
    WRAPPER_PREFIX,
    check_complete,
    check_fits,
    load_weights,
)
from .dist_setup import default_store
from .resumable_loops import ResumableEpochBasedTrainLoop
from .rng_state import exchange_rng_states, get_rng_state, set_rng_state

__all__ = ['CheckpointingRunner']

# How long rank 0 waits for the random states of the others, which arrive
# unless only rank 0 was asked to save; and how long when there was a signal,
# which may be due to the loss of a process.
_RNG_TIMEOUTS_S = {False: 20, True: 3}


def _batch_size(dataloader: Any) -> int | None:
    size = getattr(dataloader, 'batch_size', None)
    if size is None:
        size = getattr(dataloader.batch_sampler, 'batch_size', None)
    return size


def _samplers(dataloader: Any) -> list[Any]:
    """Samplers of a loader that draw an order from a seed."""
    batch_sampler = getattr(dataloader, 'batch_sampler', None)
    candidates = (dataloader.sampler, getattr(batch_sampler, 'sampler', None))
    return [item for item in candidates if hasattr(item, 'seed')]


class CheckpointingRunner(Runner):
    """MMEngine's runner with checkpoints that are whole, and exact resume.

    See :class:`~mmext.engine.PortableRunner`.
    """

    _resuming = False
    _evaluating = False
    _resumed_meta: Mapping[str, Any] = {}

    # Saving ----------------------------------------------------------------

    def _position(self, meta: Mapping[str, Any], by_epoch: bool) -> dict:
        """``meta`` with all that is needed to go on from here."""
        meta = dict(meta)
        epoch = meta.setdefault('epoch', self.epoch + bool(by_epoch))
        meta.setdefault('iter', self.iter + (not by_epoch))
        meta.setdefault('pending_val', False)
        loader = self.train_dataloader
        loop = self.train_loop
        meta.update(
            batch_in_epoch=getattr(loop, 'batch_in_epoch', 0)
            if epoch == loop.epoch
            else 0,
            batches_per_epoch=len(loader),
            batch_size=_batch_size(loader),
            world_size=self.world_size,
            sampler_seed=next(
                (sampler.seed for sampler in _samplers(loader)), None
            ),
        )
        return meta

    def _gather_rng_states(self, name: str) -> list[dict | None]:
        """Random states of all ranks, on rank 0; nothing of use elsewhere."""
        state = (
            getattr(self.train_loop, 'rng_before_val', None) or get_rng_state()
        )
        rank, world_size = get_dist_info()
        if world_size == 1:
            return [state]
        self._num_saves: Counter = getattr(self, '_num_saves', Counter())
        self._num_saves[name] += 1
        signalled = any(
            getattr(hook, 'is_requested', False) for hook in self.hooks
        )
        states = exchange_rng_states(
            default_store(),
            f'{self.timestamp}/{name}/{self._num_saves[name]}',
            state,
            rank=rank,
            world_size=world_size,
            timeout_s=_RNG_TIMEOUTS_S[signalled],
        )
        if None in states:
            self.logger.warning(
                f'{name} is saved without the random states of '
                f'{states.count(None)} processes, which do not save'
            )
        return states

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
        appears under its name when it is complete.

        Args:
            out_dir: Folder or address.
            filename: Name of the file.
            file_client_args: Deprecated form of ``backend_args``.
            save_optimizer: Save the optimizer, without which a training
                cannot be resumed.
            save_param_scheduler: Save the schedules.
            meta: What to note; ``epoch`` and ``iter`` are the position.
            by_epoch: Called at the end of an epoch, and not of an iteration.
                Decides the position that ``meta`` does not give.
            backend_args: Of the file backend.

        Raises:
            OSError: If the file cannot be written. Those that are there
                stay.
        """
        meta = self._position(meta or {}, by_epoch)
        if save_optimizer:
            meta['rng_states'] = self._gather_rng_states(
                f'{filename}/{meta["iter"]}'
            )
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
            with atomic_path(path) as temporary:
                super().save_checkpoint(
                    str(temporary.parent), temporary.name, **options
                )
        except OSError as error:
            raise OSError(
                error.errno,
                f'checkpoint {path} could not be written '
                f'({error.strerror}); earlier checkpoints are untouched. Make '
                'room or choose another --work-dir, then go on with '
                '--resume',
            ) from error

    # Loading ---------------------------------------------------------------

    def load_checkpoint(
        self,
        filename: str,
        map_location: str | Callable = 'cpu',
        strict: bool = False,
        revise_keys: Sequence[tuple[str, str]] = WRAPPER_PREFIX,
    ) -> dict:
        """Load weights into the model.

        Args:
            filename: A file, or any address that MMEngine can load from.
            map_location: Ignored: checkpoints are read on the CPU, and the
                weights go from there to where the model is.
            strict: Raise unless model and checkpoint are the same, entry by
                entry.
            revise_keys: Regular expressions and replacements for names.

        Returns:
            The checkpoint.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it cannot be read, is of another model, or leaves
                weights of a model random that is only evaluated.
        """
        checkpoint = read_checkpoint(filename)
        if self._resuming:
            self._check_resumable(checkpoint, filename)
        try:
            self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        except RuntimeError as error:
            raise ValueError(
                f'checkpoint {filename!r} does not fit the model: {error}'
            ) from error
        model = (
            self.model.module if is_model_wrapper(self.model) else self.model
        )
        report = load_weights(
            model, checkpoint, filename, revise_keys=revise_keys
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
                'keeps its initial values.'
            )
        return checkpoint

    def _check_resumable(self, checkpoint: Mapping, filename: str) -> None:
        parts = ('meta', 'message_hub', 'optimizer')
        missing = [part for part in parts if part not in checkpoint]
        if missing:
            raise ValueError(
                f'checkpoint {filename!r} must hold the state of a training '
                f'to resume from it, but has no {" and no ".join(missing)}; '
                'set load_from (and not resume) to use its weights only'
            )
        saved = checkpoint.get('param_schedulers')
        current = self.param_schedulers
        if (
            isinstance(saved, list)
            and isinstance(current, list)
            and len(saved) != len(current)
        ):
            raise ValueError(
                'param_scheduler must have as many entries as in the '
                f'training that is resumed, got {len(current)}, and '
                f'{len(saved)} in {filename!r}; resume with the config it was '
                'trained with'
            )
        self._resumed_meta = checkpoint['meta']

    def val(self) -> dict:
        """Validate; a checkpoint must fill the model."""
        self._evaluating = True
        return super().val()

    def test(self) -> dict:
        """Test; a checkpoint must fill the model."""
        self._evaluating = True
        return super().test()

    # Resuming --------------------------------------------------------------

    def load_or_resume(self) -> None:
        """Resume or load what the config asks for, once.

        ``resume=True`` with ``load_from`` goes on from that file. Without
        one, and with ``resume='auto'``, it goes on from the newest complete
        checkpoint of the work dir; if there is none, the training starts
        from the beginning, from the weights of ``load_from`` if that is set.
        """
        if self._has_loaded:
            return
        if self._resume == 'auto' or (self._resume and not self._load_from):
            newest = self._find_newest()
            if newest is not None:
                self.resume(newest)
                return
            self._resume = False
        super().load_or_resume()

    def _find_newest(self) -> str | None:
        found = [None]
        if is_main_process():
            result = find_newest_checkpoint(self.work_dir)
            for note in result.notes:
                self.logger.warning(note)
            if result.leftovers:
                names = ', '.join(path.name for path in result.leftovers)
                self.logger.warning(
                    f'removing what an interrupted write left: {names}'
                )
                remove_leftovers(result.leftovers)
            found = [result.checkpoint]
            if result.checkpoint is None:
                start = (
                    f'the weights of {self._load_from}'
                    if (self._load_from)
                    else 'the beginning'
                )
                self.logger.info(
                    f'No checkpoint to resume from in {self.work_dir}, '
                    f'starting from {start}.'
                )
            else:
                self.logger.info(f'Resuming from {result.checkpoint}.')
        # One view for all: file systems of several machines may differ.
        broadcast_object_list(found)
        return found[0]

    def resume(
        self,
        filename: str,
        resume_optimizer: bool = True,
        resume_param_scheduler: bool = True,
        map_location: str | Callable = 'cpu',
    ) -> None:
        """Go on from a checkpoint of the same training.

        Args:
            filename: The checkpoint.
            resume_optimizer: Go on with the state of the optimizer.
            resume_param_scheduler: Go on with the schedules.
            map_location: Ignored, see :meth:`load_checkpoint`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it cannot be read, holds no state of a training,
                is of another model, or was saved within an epoch that is
                divided in another way now.
        """
        self._resuming = True
        try:
            super().resume(
                filename, resume_optimizer, resume_param_scheduler, 'cpu'
            )
        finally:
            self._resuming = False
        meta = self._resumed_meta
        if meta.get('sampler_seed') is not None:
            for sampler in _samplers(self.train_dataloader):
                sampler.seed = meta['sampler_seed']
        states = meta.get('rng_states') or []
        state = states[self.rank] if len(states) == self.world_size else None
        loop = self.train_loop
        if hasattr(loop, 'go_on_from'):
            loop.go_on_from(
                epoch=loop.epoch,
                iteration=loop.iter,
                batch_in_epoch=self._batch_to_go_on(filename),
                pending_val=meta.get('pending_val', False),
                rng_state=state,
            )
        elif state is not None:
            set_rng_state(state)

    def _batch_to_go_on(self, filename: str) -> int:
        """Batches of the epoch in progress that are trained already."""
        loop, meta = self.train_loop, self._resumed_meta
        if not isinstance(loop, ResumableEpochBasedTrainLoop):
            return 0
        length = len(self.train_dataloader)
        if 'batch_in_epoch' not in meta:
            # Saved by MMEngine's runner.
            batch = loop.iter - loop.epoch * length
            return batch if 0 < batch <= length else 0
        now = {
            'batches_per_epoch': length,
            'batch_size': _batch_size(self.train_dataloader),
            'world_size': self.world_size,
        }
        before = {key: meta[key] for key in now}
        if meta['batch_in_epoch'] and before != now:
            raise ValueError(
                f'checkpoint {filename!r} was saved within an epoch, so '
                'batches must be divided as before to resume from it, got '
                f'{now} and before {before}; use the same number of processes '
                'and batch size, or a checkpoint from the end of an epoch'
            )
        return meta['batch_in_epoch']
