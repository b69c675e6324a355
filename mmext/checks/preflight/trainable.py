"""Hooks that change which parameters are trained, when DDP has the model.

A runner wraps the model before any hook is called. What hooks do in a smoke
run is seen; of later epochs and iterations, hooks whose code names the
freezing of parameters are called again with other counts of the loop.
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
    """What a hook has done to ``requires_grad`` of parameters.

    ``path`` is the hook's in the config, ``when`` the method and the count
    of the loop in words.
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

    def add(self, hook: Hook, path: Steps) -> None:
        """Watch a hook, if its code names the freezing of parameters."""
        if any(map(_FREEZES.search, sources(type(hook)) or ())):
            self._watched.append((hook, path))
            for name in self._own(hook, _METHODS):
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
                for name in self._own(hook, names):
                    more = {} if by_epoch else {'batch_idx': count}
                    with ErrorCatcher(failed.append):
                        getattr(hook, name)(runner, **more)
        texts = (
            'hooks that freeze parameters were not followed: '
            f'{type(error).__name__}: {error}'
            for error in failed
        )
        return list(dict.fromkeys(texts))

    def _own(self, hook: Hook, names: tuple[str, ...]) -> Iterator[str]:
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
            result = method(runner, *args, **named)
            after = _trainable(runner)
            frozen, unfrozen = (
                tuple(n for n in one if one[n] and not other.get(n, True))
                for one, other in ((before, after), (after, before))
            )
            if frozen or unfrozen:
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
