"""Let a loss balancer learn between steps, and resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import Tensor, nn

from ...registry import HOOKS
from ...utils.training import get_rng_state, set_rng_state
from ..accumulation import named_wrappers
from ..distributed import unwrap_model

_KEY = 'loss_balancer'


@HOOKS.register_module()
class LossBalancerHook(Hook):
    """What the balancer of a model needs besides the forward.

    It ends the epochs, or intervals, of :class:`mmext.DWA` and
    :class:`mmext.STCH`, and gives :class:`mmext.FAMO` the losses of the same
    batch after a step of the optimizer: one more forward of the model in
    training mode, without graph, under the same autocast, with the same
    preprocessed data and the same random numbers; the statistics of batch
    norm and the generators are left as they were.

    The state of the balancer is in the message hub after each iteration, so
    that every checkpoint has it: ``resume`` restores it, ``load_from`` does
    not. :class:`~mmext.engine.PortableRunner` adds this hook by itself to a
    model with a balancer.

    Raises:
        TypeError: Before training, if the model has no balancer.
        ValueError: Before training, if the balancer waits for the end of an
            epoch and the loop has none, or if the state in the checkpoint is
            of other tasks.
    """

    priority = 'NORMAL'

    def before_train(self, runner: Runner) -> None:
        """Find the balancer, and restore its state on resume."""
        model = unwrap_model(runner.model)
        balancer = getattr(model, 'balancer', None)
        if not hasattr(balancer, 'get_state'):
            raise TypeError(
                'LossBalancerHook needs a model with a balancer, such as '
                f'mmext.MultiTaskModel, got {type(model).__name__}; leave '
                'the hook out of custom_hooks'
            )
        if (
            balancer.uses_epochs
            and balancer.interval is None
            and isinstance(runner.train_loop, IterBasedTrainLoop)
        ):
            raise ValueError(
                f'model.balancer.interval of {type(balancer).__name__} must '
                'be a number of iterations, as a training by iterations has '
                f'no epochs: {len(runner.train_dataloader)} are one pass '
                'over the data'
            )
        self.balancer, balancer.hooked = balancer, True
        if _KEY in runner.message_hub.runtime_info:
            balancer.set_state(runner.message_hub.get_info(_KEY))
        if balancer.needs_losses_after_step:
            self._watch(runner, model)

    def _watch(self, runner: Runner, model: nn.Module) -> None:
        """Note steps of the optimizer, and the data that the model gets."""
        self._stepped, self._seen = False, None

        def note_step(*_: Any) -> None:
            self._stepped = True

        def note_data(module: nn.Module, inputs: Any, outputs: Any) -> None:
            self._seen = (outputs, get_rng_state())

        self._handles = [
            wrapper.optimizer.register_step_post_hook(note_step)
            for wrapper in named_wrappers(runner.optim_wrapper).values()
        ]
        self._handles.append(
            model.data_preprocessor.register_forward_hook(note_data)
        )

    def after_train(self, runner: Runner) -> None:
        """Take the watch off again."""
        for handle in getattr(self, '_handles', ()):
            handle.remove()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Let the balancer learn from the step, and keep its state."""
        balancer = self.balancer
        balancer.after_step()
        if balancer.needs_losses_after_step:
            if self._stepped:
                before = balancer.last_losses
                balancer.update(before, self._losses_now(runner))
            self._stepped, self._seen = False, None
        interval = balancer.interval
        if interval is not None and self.every_n_train_iters(runner, interval):
            balancer.end_epoch()
        self._keep(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        """End an epoch of the balancer."""
        if self.balancer.interval is None:
            self.balancer.end_epoch()
            self._keep(runner)

    def _keep(self, runner: Runner) -> None:
        if self.balancer.needs_hook:
            runner.message_hub.update_info(_KEY, self.balancer.get_state())

    def _losses_now(self, runner: Runner) -> Tensor:
        """Raw losses of the last batch, ``(K,)``, mean over ranks."""
        model = unwrap_model(runner.model)
        data, state = self._seen
        after = get_rng_state()
        set_rng_state(state)
        try:
            with (
                torch.no_grad(),
                runner.optim_wrapper.optim_context(model),
                _kept_statistics(model),
            ):
                model._run_forward(data, mode='loss')
        finally:
            set_rng_state(after)
        losses = self.balancer.last_losses
        all_reduce(losses, 'mean')
        return losses


@contextmanager
def _kept_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norm normalises as in training, and keeps its statistics."""
    norms = [
        module
        for module in model.modules()
        if module.training and getattr(module, 'track_running_stats', False)
    ]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
