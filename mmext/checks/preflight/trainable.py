"""Hooks that change which parameters are trained, when DDP has the model.

A runner wraps the model before it calls any hook. Hooks whose code names the
freezing of parameters are watched in the smoke run, and called again after it
with the counts of later epochs or iterations.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..config import Steps
from ..findings import ErrorCatcher
from .rules.subject import sources

_FREEZES = re.compile('requires_grad|freez', re.IGNORECASE)
_BY_EPOCH = 'before_train_epoch', 'after_train_epoch'
_BY_ITER = 'before_train_iter', 'after_train_iter'
_METHODS = 'before_run', 'before_train', *_BY_EPOCH, *_BY_ITER
_MAX_EPOCHS = 1000


class TrainableChange(NamedTuple):
    """A change of ``requires_grad`` by a hook.

    ``path`` is the location of the hook in the config, ``when`` the method
    and the count of the loop in words. ``unfrozen`` has no parameter that
    was trained when DDP got the model.
    """

    path: Steps
    hook: str
    when: str
    frozen: tuple[str, ...]
    unfrozen: tuple[str, ...]


class TrainableWatch:
    """Changes of ``requires_grad`` by the hooks of one runner."""

    def __init__(self) -> None:
        self.changes: list[TrainableChange] = []
        self._watched: list[tuple[Hook, Steps]] = []
        # Parameters that DDP has, and whether it averages their gradients.
        self._wrapped: dict[str, bool] = {}

    def add(self, hook: Hook, path: Steps) -> None:
        """Watch a hook, if its code names the freezing of parameters."""
        if any(map(_FREEZES.search, sources(type(hook)) or ())):
            self._watched.append((hook, path))
            for name in self._overridden(hook, _METHODS):
                method = getattr(hook, name)
                setattr(hook, name, self._watching(hook, path, name, method))

    def replay(self, runner: Runner, end: int, by_epoch: bool) -> list[str]:
        """Call hooks as later in the training, until they change something.

        ``end`` is the number of epochs or iterations of the training. The
        caller restores the counts of the loop. Returns errors in words.
        """
        loop, names = runner.train_loop, _BY_EPOCH if by_epoch else _BY_ITER
        failed: list[Exception] = []
        for hook, path in self._watched:
            for count in self._counts(hook, end, by_epoch):
                if any(change.path == path for change in self.changes):
                    break
                setattr(loop, '_epoch' if by_epoch else '_iter', count)
                for name in self._overridden(hook, names):
                    more = {} if by_epoch else {'batch_idx': count}
                    with ErrorCatcher(failed.append):
                        getattr(hook, name)(runner, **more)
        texts = (
            'hooks that freeze parameters were not followed: '
            f'{type(error).__name__}: {error}'
            for error in failed
        )
        return list(dict.fromkeys(texts))

    def _overridden(self, hook: Hook, names: tuple[str, ...]) -> Iterator[str]:
        """Methods that a hook overrides."""
        for name in names:
            if getattr(type(hook), name, None) is not getattr(Hook, name):
                yield name

    def _counts(self, hook: Hook, end: int, by_epoch: bool) -> list[int]:
        """All epochs; iterations beside numbers that the hook was given."""
        if by_epoch:
            return list(range(min(end, _MAX_EPOCHS)))
        numbers = [v for v in vars(hook).values() if type(v) is int]
        near = {n + step for n in [0, *numbers] for step in (-1, 0, 1)}
        return sorted(n for n in near if 0 <= n < end)

    def _watching(
        self, hook: Hook, path: Steps, name: str, method: Callable
    ) -> Callable:
        """A method that notes what it changes."""

        def watching(runner: Runner, *args: Any, **named: Any) -> Any:
            before = _trainable(runner)
            self._wrapped = self._wrapped or before
            result = method(runner, *args, **named)
            after = _trainable(runner)
            frozen = tuple(n for n in after if before.get(n, False) > after[n])
            unfrozen = tuple(
                n
                for n in after
                if before.get(n, True) < after[n] and not self._wrapped.get(n)
            )
            seen = [(c.path, c.frozen, c.unfrozen) for c in self.changes]
            if (frozen or unfrozen) and (path, frozen, unfrozen) not in seen:
                at = ''
                if name in _BY_EPOCH:
                    at = f' of epoch {runner.epoch + 1}'
                elif name in _BY_ITER:
                    at = f' of iteration {runner.iter + 1}'
                self.changes.append(
                    TrainableChange(
                        path,
                        type(hook).__name__,
                        f'{name}{at}',
                        frozen,
                        unfrozen,
                    )
                )
            return result

        return watching


def _trainable(runner: Runner) -> dict[str, bool]:
    return {n: p.requires_grad for n, p in runner.model.named_parameters()}
