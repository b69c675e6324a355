"""Config of the wrapper that makes a model work in several processes."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.registry import MODEL_WRAPPERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ['model_wrapper_config', 'unwrap_model']

_DDP = 'mmext.DistributedDataParallel'


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside of its wrappers.

    Args:
        model: Wrapped or not.
    """
    while is_model_wrapper(model):
        model = model.module
    return model


def model_wrapper_config(
    cfg: Mapping[str, Any] | None,
    device: torch.device,
    find_unused_parameters: bool | None = None,
) -> dict[str, Any]:
    """Complete the config of a model wrapper.

    MMEngine reads the top-level ``find_unused_parameters`` only when there
    is no ``model_wrapper_cfg``, and leaves ``broadcast_buffers`` at PyTorch's
    True when there is one. Here both hold in either case.

    Args:
        cfg: ``model_wrapper_cfg`` of the config, by default of the type
            ``mmext.DistributedDataParallel``. It is not changed.
        device: Device of the model.
        find_unused_parameters: The same-named top-level key, None if it is
            not set.

    Returns:
        A config to build the wrapper from, but for the module.

    Raises:
        KeyError: If the type is not registered.
        ValueError: If both places set ``find_unused_parameters``, and not to
            the same.

    Examples:
        >>> model_wrapper_config(None, torch.device('cpu'), True)
        {'type': 'mmext.DistributedDataParallel', \
'broadcast_buffers': False, 'find_unused_parameters': True}
    """
    result = {'type': _DDP, **(cfg or {})}
    kind = result['type']
    if not inspect.isclass(kind):
        kind = MODEL_WRAPPERS.get(kind)
        if kind is None:
            raise KeyError(
                'model_wrapper_cfg.type must be a registered model wrapper, '
                f'got {result["type"]!r}'
            )
    if not issubclass(kind, DistributedDataParallel):
        return result
    own = result.get('find_unused_parameters')
    if None not in (own, find_unused_parameters) and bool(own) != bool(
        find_unused_parameters
    ):
        raise ValueError(
            'find_unused_parameters must be the same wherever it is set, got '
            f'{find_unused_parameters} at the top level and {own} in '
            'model_wrapper_cfg; set it in one place'
        )
    result.setdefault('broadcast_buffers', False)
    result.setdefault('find_unused_parameters', bool(find_unused_parameters))
    if device.type == 'cpu':
        # Gloo takes the module where it is; an index means a GPU.
        result.pop('device_ids', None)
        result.pop('output_device', None)
    else:
        result.setdefault('device_ids', [device.index])
    return result
