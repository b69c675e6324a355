"""Checkpoint activations of modules that the config names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, Runner
from torch import nn

from ...registry import HOOKS
from ..distributed import unwrap_model

if TYPE_CHECKING:
    from ...models.checkpointing import CheckpointedModules


@HOOKS.register_module()
class ActivationCheckpointHook(Hook):
    """Make modules of a model run again in the backward pass, to save memory.

    Acts once, right before the first step: on the model without its wrapper,
    after weights are loaded. Checkpoints are never reentrant, so that they
    work with ``find_unused_parameters``, ``static_graph``, keyword arguments,
    frozen stems and every kind of mixed precision; see
    :class:`~mmext.models.checkpointing.checkpoint.CheckpointedForward`.
    Names, state dict, evaluation and copies of the model stay as they are.
    One line of the log lists the modules; a warning names those that the
    first step did not run, such as a ``Sequential`` whose items are called
    one by one.

    Args:
        modules: Names as in ``named_modules()``, or patterns where ``*``,
            ``?`` and ``[...]`` stand for characters other than a dot:
            ``'backbone.layer3.*'``. Where one thing that fits is inside
            another, the outer one is checkpointed.
        classes: Classes by name, alone or after their package, derived ones
            included: ``'SwinBlock'``, ``'mmdet.SwinBlock'``.
        replace_reentrant: Make the reentrant checkpoints of the host
            non-reentrant: ``with_cp=True`` of backbones and necks,
            ``num_cp`` of mmdet's transformers (fairscale), and MMEngine's
            ``activation_checkpointing``; see :func:`~mmext.models.layers.\
reentrant_checkpoints.replace_reentrant_checkpoints`. False leaves them.

    Raises:
        TypeError: Before the weights are initialised, if ``modules`` or
            ``classes`` holds something else than names.
        ValueError: At the same time, if a name, a pattern or a class fits
            nothing in the model that can be checkpointed; the message lists
            names that are near. Before the first step, if fairscale's wrapper
            offloads to the CPU.

    Note:
        Where all is checkpointed, a step takes about a third longer: one
        more forward, beside one and a backward of twice its cost.

        A direct call of ``torch.utils.checkpoint`` in a module without
        ``with_cp`` or ``use_checkpoint``, or outside of modules, is not
        replaced. The former is warned of; write ``use_reentrant=False``
        there.

    Examples:
        >>> hook = ActivationCheckpointHook(classes='mmdet.SwinBlock')
        >>> hook.replace_reentrant
        True
    """

    # Before hooks that look at the model.
    priority = 'VERY_HIGH'

    def __init__(
        self,
        modules: str | Sequence[str] = (),
        classes: str | Sequence[str] = (),
        replace_reentrant: bool = True,
    ) -> None:
        self.modules = modules
        self.classes = classes
        self.replace_reentrant = replace_reentrant
        self._watched: list[str] = []

    def before_run(self, runner: Runner) -> None:
        """Stop at a name that fits nothing, before anything is loaded."""
        if not isinstance(runner._train_loop, BaseLoop):
            return  # a validation or a test

        # Here, as it brings mmdet along.
        from ...models.checkpointing import find_modules

        find_modules(unwrap_model(runner.model), self.modules, self.classes)

    def checkpoint(self, model: nn.Module) -> 'CheckpointedModules':
        """Checkpoint the modules of a model, as at the start of a training."""
        # Here, as it brings mmdet along.
        from ...models.checkpointing import checkpoint_model

        return checkpoint_model(
            unwrap_model(model),
            self.modules,
            self.classes,
            self.replace_reentrant,
        )

    def before_train(self, runner: Runner) -> None:
        """Checkpoint, and say what is."""
        summary = self.checkpoint(runner.model)
        self._watched = summary.modules
        text = (
            'Activation checkpointing (non-reentrant): '
            f'{len(summary.modules)} modules, {len(summary.replaced)} of '
            f'them reentrant before: {", ".join(summary.modules) or "none"}'
        )
        if summary.modules:
            runner.logger.info(text)
        else:
            runner.logger.warning(text)
        if summary.unreplaced:
            runner.logger.warning(
                'These modules may run a reentrant checkpoint of their own, '
                'which fails with find_unused_parameters=True: '
                f'{", ".join(summary.unreplaced)}; '
                + (
                    'write use_reentrant=False in their code'
                    if self.replace_reentrant
                    else 'set replace_reentrant=True'
                )
            )

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """After the first step, name what is checkpointed in vain."""
        if not self._watched:
            return
        model = unwrap_model(runner.model)
        idle = [
            name
            for name in self._watched
            if not model.get_submodule(name).forward.has_run
        ]
        self._watched = []
        if idle:
            runner.logger.warning(
                'Checkpointed, but not run as modules in the first step, so '
                f'no memory is saved there: {", ".join(idle)}; name the '
                'modules in them that are called'
            )
