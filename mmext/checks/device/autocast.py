"""Mixed precision on the device, by the rules that PyTorch has for CUDA.

The operators and what is done to their arguments are those of
``aten/src/ATen/autocast_mode.h``. A device of Python has none of its own.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...utils.torch_compat import tree_leaves

# By name, with any overload. Of those with a ``dtype`` the result is in
# float32, and all others that PyTorch has kernels for compute in it.
_LOWER = """
_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d
conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
convolution einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell
matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
"""
_WIDEST = """
addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add
tensordot vdot
"""
# Of CUDA itself.
_LEFT_OUT = 'cudnn_', '_thnn_', '_scaled_dot_product_flash', '_convolution.d'
_UNSAFE = 'binary_cross_entropy'
_WRAPPER = 'mmengine.optim.optimizer.amp_optimizer_wrapper'
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


class Autocast:
    """Kernels in front of autograd that change the types of tensors.

    Those of the device of this name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Weights, and what they were cast to; as long as PyTorch keeps those.
        self._weights: dict[int, tuple[Tensor, Tensor]] = {}

    def register(self, library: torch.library.Library) -> None:
        """Let PyTorch know the kernels."""
        for full in torch._C._dispatch_get_registrations_for_dispatch_key(
            'AutocastCUDA'
        ):
            name = full.removeprefix('aten::')
            if name.startswith(_LEFT_OUT):
                continue
            packet, _, overload = name.partition('.')
            operator = getattr(
                getattr(torch.ops.aten, packet), overload or 'default'
            )
            if packet == _UNSAFE:
                kernel = self._unsafe
            elif packet in _LOWER.split():
                kernel = self._lower
            elif packet in _WIDEST.split():
                kernel = self._widest
            elif any(a.name == 'dtype' for a in operator._schema.arguments):
                kernel = self._result_float32
            else:
                kernel = self._float32
            library.impl(
                name, partial(kernel, operator), 'AutocastPrivateUse1'
            )

    def patches(self) -> Iterator[Any]:
        """What says "cuda" means the device, and forgets its weights too."""
        cls = torch.amp.autocast_mode.autocast
        init, clear = cls.__init__, torch.clear_autocast_cache
        enabled, get_dtype = (
            torch.is_autocast_enabled,
            torch.get_autocast_dtype,
        )

        def device(kind: str | None) -> str:
            return self._name if kind in (None, 'cuda') else kind

        def make(mode: Any, device_type: str, *args: Any, **options: Any):
            given = options.get('dtype', args[0] if args else None)
            if device_type == 'cuda' and given is None:
                options['dtype'] = get_dtype('cuda')
            init(mode, device(device_type), *args, **options)

        def forget() -> None:
            self._weights.clear()
            clear()

        yield mock.patch.object(cls, '__init__', make)
        yield mock.patch('torch.clear_autocast_cache', forget)
        yield mock.patch(
            'torch.is_autocast_enabled',
            lambda kind=None: enabled(device(kind)),
        )
        for name, value in (
            ('torch.cuda.amp.common.amp_definitely_not_available', False),
            ('torch.cuda.is_bf16_supported', True),
            ('mmengine.runner.amp.get_device', 'cuda'),
            (f'{_WRAPPER}.is_cuda_available', True),
        ):
            yield mock.patch(name, return_value=value)

    def _cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if not self._counts(tensor) or tensor.dtype is dtype:
            return tensor
        if not (
            tensor.is_leaf
            and tensor.requires_grad
            and tensor.dtype is torch.float32
            and torch.is_autocast_cache_enabled()
        ):
            return tensor.to(dtype)
        known = self._weights.get(id(tensor))
        if known is None:
            known = self._weights[id(tensor)] = tensor, tensor.to(dtype)
        return known[1]

    def _counts(self, tensor: Tensor) -> bool:
        return (
            tensor.device.type == self._name
            and tensor.is_floating_point()
            and tensor.dtype is not torch.float64
        )

    def _run(
        self,
        operator: Callable,
        args: tuple,
        kwargs: dict,
        dtype: torch.dtype | None = None,
    ) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if dtype is not None:
                args, kwargs = tree_map_only(
                    Tensor, lambda t: self._cast(t, dtype), (args, kwargs)
                )
            return operator(*args, **kwargs)

    def _lower(self, operator: Callable, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(self._name)
        return self._run(operator, args, kwargs, dtype)

    def _float32(self, operator: Callable, *args: Any, **kwargs: Any) -> Any:
        return self._run(operator, args, kwargs, torch.float32)

    def _result_float32(
        self, operator: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        at = [a.name for a in operator._schema.arguments].index('dtype')
        given = args[at] if len(args) > at else kwargs.get('dtype')
        if given is None and self._counts(args[0]):
            args = args[:at]
            kwargs = {**kwargs, 'dtype': torch.float32}
        return self._run(operator, args, kwargs)

    def _widest(self, operator: Callable, *args: Any, **kwargs: Any) -> Any:
        types = {
            t.dtype
            for t in tree_leaves((args, kwargs))
            if isinstance(t, Tensor) and self._counts(t)
        }
        wide = torch.float32 if torch.float32 in types else None
        return self._run(operator, args, kwargs, wide)

    def _unsafe(self, operator: Callable, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            'torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss '
            'are unsafe to autocast: use binary_cross_entropy_with_logits or '
            'BCEWithLogitsLoss, or torch.autocast(enabled=False) around it.'
        )
