"""Parameter groups with equal settings as one, and a fused optimizer step."""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIMIZERS
from torch import nn

from ...registry import OPTIM_WRAPPER_CONSTRUCTORS
from ...utils.torch_compat import has_fused_optimizers
from ...utils.training import merge_groups

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

    Parameters with equal settings are in one group. The groups come in the
    order of their first parameter, so that the first one, whose ``lr`` is
    logged, has the same settings. ``lr_mult`` and ``decay_mult`` are no longer
    noted in them. Optimizers that compute something over the whole of a
    group, which none of PyTorch's do, get other results.

    ``fused=True`` is set for Adam and AdamW of parameters that are floating
    point numbers, on CPUs with PyTorch 2.4 or newer. ``fused`` and
    ``foreach`` in the config hold, also as None or False.

    ``docs/training.md`` says what becomes of results, checkpoints and time.

    Args:
        optim_wrapper_cfg: Config of the optimizer wrapper, with
            ``optimizer``.
        paramwise_cfg: Settings per parameter, see MMEngine's constructor.
            Or ``dict(layer_decay_rate=0.8)``: the learning rate of a layer
            of the backbone is that of the next one times so much, and
            vectors and biases have no weight decay, as is usual for Vision
            Transformers. The backbone needs ``get_layer_depth``.
    """

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer wrapper of a model, on the device it is on.

        Raises:
            ValueError: If ``layer_decay_rate`` cannot be used; by
                ``load_state_dict`` of its optimizer, if the state has
                another number of groups.
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
        if 'layer_decay_rate' in self.paramwise_cfg:
            self._add_by_layer(params, module)
        else:
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

    def _add_by_layer(
        self, params: list[dict[str, Any]], module: nn.Module
    ) -> None:
        """A group of each parameter, by its layer of the backbone."""
        rate = self.paramwise_cfg['layer_decay_rate']
        backbone = getattr(module, 'backbone', None)
        depth_of = getattr(backbone, 'get_layer_depth', None)
        if len(self.paramwise_cfg) > 1 or not 0 < rate <= 1:
            raise ValueError(
                'layer_decay_rate must be in (0, 1] and the only key of '
                f'paramwise_cfg, got {dict(self.paramwise_cfg)}'
            )
        if depth_of is None:
            raise ValueError(
                'layer_decay_rate needs a backbone with get_layer_depth, such '
                f'as mmext.EVA02ViT or mmext.MAEViT, got {backbone}'
            )
        for name, parameter in module.named_parameters():
            depth, depths = depth_of(name, 'backbone.')
            decays = parameter.dim() != 1 and not name.endswith('.bias')
            if parameter.requires_grad:
                params.append(
                    {
                        'params': [parameter],
                        'lr': self.base_lr * rate ** (depths - depth - 1),
                        'weight_decay': self.base_wd if decays else 0.0,
                    }
                )

    def _can_fuse(self, model: nn.Module) -> bool:
        """Whether the optimizer can step fused, where no config says it."""
        if any(key in self.optimizer_cfg for key in IMPLEMENTATIONS):
            return False
        kind = self.optimizer_cfg['type']
        if isinstance(kind, str):
            with OPTIMIZERS.switch_scope_and_registry(None) as registry:
                kind = registry.get(kind)
        # Fused SGD with momentum ends with an error where a parameter gets its
        # first gradient late, as after a thaw.
        if kind not in (torch.optim.Adam, torch.optim.AdamW):
            return False
        # Those that are frozen are left out of groups with settings of theirs.
        return all(
            parameter.is_floating_point()
            and has_fused_optimizers(parameter.device)
            for parameter in model.parameters()
            if parameter.requires_grad or not self.paramwise_cfg
        )


def _check_groups(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Say what helps where PyTorch only says that numbers differ."""
    saved, own = len(state['param_groups']), len(optimizer.param_groups)
    if saved != own:
        raise ValueError(
            f'the state to load has {saved} parameter groups, the optimizer '
            f'{own}; use the constructor that the optim_wrapper of the '
            'checkpoint had'
        )
