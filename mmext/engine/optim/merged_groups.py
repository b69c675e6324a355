"""Parameter groups with equal settings as one, and a fused optimizer step."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIMIZERS
from torch import nn

from ...registry import OPTIM_WRAPPER_CONSTRUCTORS
from ...utils.param_groups import merge_groups

# Keys of a group that say how a step is computed, and not what it does.
IMPLEMENTATIONS = ('foreach', 'fused')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's constructor, with few parameter groups and a fused step.

    ``optim_wrapper=dict(constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=..., paramwise_cfg=...)``. Takes the same arguments, and gives
    each parameter the same settings, as MMEngine's
    ``DefaultOptimWrapperConstructor``. That one makes a group of each
    parameter wherever there is a ``paramwise_cfg``; the optimizer, its
    schedulers and the log then go through hundreds of them.

    * **Groups**: parameters with equal settings are in one group. The groups
      come in the order of their first parameter, so that the first one, whose
      ``lr`` is logged, has the same settings. ``lr_mult`` and ``decay_mult``
      are no longer noted in them.
    * **Implementation**: ``fused=True`` is set if the class of the optimizer
      has it, and a step of it with an element of each device and dtype of the
      model works; not with modules whose gradients are sparse
      (``nn.Embedding(sparse=True)``). Else PyTorch chooses, which is foreach
      on GPUs. ``fused`` and ``foreach`` in the config hold, also as None or
      False.
    * **Results**: without ``fused`` the steps are bit by bit those of single
      groups, except for the norm of the gradients with ``clip_grad``, whose
      sum has another order. A fused step rounds differently (1e-7 of a
      weight). Optimizers that compute something over the whole of a group,
      which none of PyTorch's do, get other groups, so other results.
    * **Resume**: a training goes on with the groups that it began with;
      another number of groups is an error.

    Args:
        optim_wrapper_cfg: Config of the optimizer wrapper, with
            ``optimizer``.
        paramwise_cfg: Settings per parameter, see MMEngine's constructor.
    """

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer wrapper of a model, on the device it is on.

        Raises:
            ValueError: By ``load_state_dict`` of its optimizer, if the state
                has another number of groups.
        """
        if self._can_fuse(model):
            self.optimizer_cfg = self.optimizer_cfg.copy()
            self.optimizer_cfg['fused'] = True
            print_log('The optimizer steps fused.', 'current')
        wrapper = super().__call__(model)
        if isinstance(wrapper.optimizer, torch.optim.Optimizer):
            wrapper.optimizer.register_load_state_dict_pre_hook(_check_groups)
        return wrapper

    def add_params(
        self,
        params: list[dict[str, Any]],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: int | float | None = None,
    ) -> None:
        """Add the groups of a module's parameters to ``params``, in place."""
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:
            return
        every = [id(item) for group in params for item in group['params']]
        if len(set(every)) < len(every):
            # An error of PyTorch, which would be a warning within a group.
            return
        defaults = {'lr': self.base_lr, 'weight_decay': self.base_wd}
        merged = merge_groups(
            params,
            {k: value for k, value in defaults.items() if value is not None},
        )
        print_log(
            f'{len(params)} parameter groups are {len(merged)}, one for each '
            'combination of settings.',
            'current',
        )
        params[:] = merged

    def _can_fuse(self, model: nn.Module) -> bool:
        """Whether the optimizer can step fused, where no config says it."""
        if any(key in self.optimizer_cfg for key in IMPLEMENTATIONS):
            return False
        options = dict(self.optimizer_cfg)
        kind = options.pop('type')
        if isinstance(kind, str):
            with OPTIMIZERS.switch_scope_and_registry(None) as registry:
                kind = registry.get(kind)
        if kind is None or 'fused' not in inspect.signature(kind).parameters:
            return False
        if any(
            getattr(item, 'sparse', False) is True for item in model.modules()
        ):
            print_log('Sparse gradients: no fused optimizer step.', 'current')
            return False
        # Those that are frozen are left out of groups with settings of theirs.
        given = [
            parameter
            for parameter in model.parameters()
            if parameter.requires_grad or not self.paramwise_cfg
        ]
        return _steps_fused(kind, options, given)


def _check_groups(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Say what helps where PyTorch only says that numbers differ."""
    saved, own = len(state['param_groups']), len(optimizer.param_groups)
    if saved != own:
        raise ValueError(
            f'the state to load has {saved} parameter groups, the optimizer '
            f"{own}; use runner_type='mmext.PortableRunner', which resumes "
            'from single groups into merged ones, or the constructor that the '
            'optim_wrapper of the checkpoint had'
        )


def _steps_fused(
    kind: type[torch.optim.Optimizer],
    options: Mapping[str, Any],
    parameters: Sequence[nn.Parameter],
) -> bool:
    """Whether fused steps of such parameters work, by trying two.

    In the first one, only every other parameter has a gradient: fused SGD
    with momentum ends with an error if the others get theirs later.
    """
    probes = [
        torch.zeros(1, device=device, dtype=dtype, requires_grad=trained)
        for device, dtype, trained in dict.fromkeys(
            (item.device, item.dtype, item.requires_grad)
            for item in parameters
        )
        for _ in range(2)
    ]
    try:
        optimizer = kind(probes, **options, fused=True)
        for first in range(2):
            for probe in probes[first::2]:
                if probe.requires_grad:
                    probe.grad = torch.zeros_like(probe)
            optimizer.step()
    except (RuntimeError, TypeError, ValueError) as error:
        print_log(f'The optimizer does not step fused: {error}', 'current')
        return False
    return True
