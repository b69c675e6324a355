"""A device of PyTorch whose operators are seen, and run on the CPU.

Tensors of the device ``sim:0`` wrap tensors on the CPU, which compute.
Autograd treats them like those of any device, and every operator that would be
a kernel of a GPU goes through :func:`_run`, which tells the observer, a
:class:`~.rehearse.Recorder`.

PyTorch 2.13 or newer is needed, whose experimental
``torch.utils.backend_registration`` lets Python implement a device.
"""

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import count
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...ops import ORDER
from ...utils.torch_compat import tree_leaves
from .autocast import Autocast

NAME = 'sim'
_CPU = torch.device('cpu')
_SETUP = '_setup_privateuseone_for_python_backend'

# The host waits for the size of their result, or for a value.
_READS = {
    '_local_scalar_dense',
    '_unique',
    '_unique2',
    'bincount',
    'equal',
    'masked_select',
    'nonzero',
    'unique_consecutive',
    'unique_dim',
}
# Those of mmcv, or of its Python functions, that do.
_SIZED = {'nms', 'nms_match', 'softnms'}
_COPIES = {'_to_copy', 'copy_', 'set_'}
_INDEXING = {
    '_index_put_impl_',
    '_unsafe_index',
    '_unsafe_index_put',
    'index',
    'index_put',
    'index_put_',
}
_CONVOLUTIONS = 'convolution', 'convolution_backward'
_MASKS = torch.bool, torch.uint8
_HALF = torch.float16, torch.bfloat16
# A processor is slow at these in half precision, or has none.
_PRODUCTS = {
    'addmm',
    'baddbmm',
    'bmm',
    'mm',
    *_CONVOLUTIONS,
}
# No kernel, though they change a tensor or return another.
_METADATA = {
    'as_strided_',
    'detach_',
    'lift_fresh',
    'resize_',
    'set_',
    'squeeze_',
    'swapaxes_',
    't_',
    'transpose_',
    'unsqueeze_',
}


class DeviceMixError(RuntimeError):
    """Tensors of two devices meet in an operator that takes those of one."""


class Memory:
    """That of a storage, alive as long as a tensor has it."""

    __slots__ = ('__weakref__', 'number', 'size')
    _numbers = count()

    def __init__(self, size: int) -> None:
        self.number, self.size = next(self._numbers), size


class _Nobody:
    """In place of a :class:`~.rehearse.Recorder`; nothing comes of it."""

    looks = False

    def __getattr__(self, name: str) -> Callable[..., str]:
        return lambda *args: ''


_NOBODY = _observer = _Nobody()
# Address of a storage of the CPU -> the memory that it is.
_memories: 'weakref.WeakValueDictionary[int, Memory]' = (
    weakref.WeakValueDictionary()
)


class DeviceTensor(torch.Tensor):
    """A tensor of the device.

    Attributes:
        elem: The tensor on the CPU that has its values.
        memory: That of its storage, which its views share.
    """

    elem: Tensor
    memory: Memory
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: Tensor) -> 'DeviceTensor':
        """Wrap a tensor of the CPU."""
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=f'{NAME}:0',
        )
        tensor.elem, tensor.memory = elem, _memory_of(elem)
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable,
        types: Iterable[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run an operator."""
        return _run(func, args, kwargs or {})

    def __repr__(self) -> str:
        """The values, and that they are of the device."""
        return f'{self.elem!r} on {self.device}'

    def tolist(self) -> Any:
        """Copy to the host."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Fail as a tensor of a GPU does, unless it is forced."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use "
            'Tensor.cpu() to copy the tensor to host memory first.'
            f'{_observer.where()}'
        )

    def __array__(self, dtype: Any = None) -> Any:
        """Fail as :meth:`numpy`."""
        return self.numpy()

    @property
    def is_cuda(self) -> bool:
        """True, as hosts then choose what they run on a GPU."""
        return True

    @property
    def data(self) -> Tensor:
        """The tensor without its history."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value: 'DeviceTensor') -> None:
        torch.Tensor.data.__set__(self, value)
        self.elem, self.memory = value.elem, value.memory


def _memory_of(elem: Tensor) -> Memory:
    """That of a tensor of the CPU; new memory is told to the observer."""
    storage = elem.untyped_storage()
    memory = _memories.get(storage._cdata)
    if memory is None or memory.size != storage.nbytes():
        memory = _memories[storage._cdata] = Memory(storage.nbytes())
        _observer.allocate(memory)
        # The observer of that time: another one does not know it.
        weakref.finalize(memory, _observer.free, memory.number).atexit = False
    return memory


def _tensors(value: Any) -> list[Tensor]:
    """All tensors in nested lists and dicts, as operators take them."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _elem(tensor: Tensor) -> Tensor:
    return tensor.elem if isinstance(tensor, DeviceTensor) else tensor


def _is_finite(value: Tensor | float) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    value = _elem(value)
    return not value.is_floating_point() or bool(value.isfinite().all())


def _is_host(tensor: Tensor) -> bool:
    return not isinstance(tensor, DeviceTensor)


def _call(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Run on the CPU; only the shapes, where it has no such operator."""
    args, kwargs = tree_map_only(Tensor, _elem, (args, kwargs))
    try:
        if func.overloadpacket.__name__ in _PRODUCTS:
            return _in_float32(func, args, kwargs)
        return func(*args, **kwargs)
    except RuntimeError as error:
        if isinstance(error, NotImplementedError):
            _observer.shapes_only(str(func))
        else:
            _fail(error)
        args, kwargs = tree_map_only(
            Tensor, lambda t: t.to('meta'), (args, kwargs)
        )
        shapes = func(*args, **kwargs)
        return tree_map_only(
            Tensor, partial(torch.zeros_like, device=_CPU), shapes
        )


def _in_float32(func: Callable, args: tuple, kwargs: dict) -> Any:
    """A product; the result has the type of what is multiplied."""
    types = {t.dtype for t in _tensors((args, kwargs))}
    # Of several types it is an error.
    if len(types) != 1 or not types.issubset(_HALF):
        return func(*args, **kwargs)
    args, kwargs = tree_map_only(Tensor, Tensor.float, (args, kwargs))
    (dtype,) = types
    return tree_map_only(Tensor, lambda t: t.to(dtype), func(*args, **kwargs))


def _run(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Run an operator on the CPU, and say what a GPU would have done."""
    name = func._schema.name.rpartition('::')[2]
    _observer.begin(name)
    inputs = {
        id(t.elem): t
        for t in _tensors((args, kwargs))
        if isinstance(t, DeviceTensor)
    }
    stays = bool(inputs)
    if kwargs.get('device') is not None:
        stays = torch.device(kwargs['device']).type == NAME
        kwargs = {**kwargs, 'device': _CPU}
    elif name in ('copy_', 'set_'):
        stays = isinstance(args[0], DeviceTensor)
    if name in _COPIES:
        # Within the device a kernel; others make the host wait.
        source = args[0] if name == '_to_copy' else args[1]
        later = kwargs.get('non_blocking') or True in args[2:]
        if stays and _is_host(source):
            _observer.upload()
        elif not stays and not later:
            _observer.read()
    elif name in _INDEXING:
        _index(name, *args)
    elif inputs:
        _check_devices(func, name, args, kwargs)
        if name in _READS or (
            name == 'repeat_interleave' and kwargs.get('output_size') is None
        ):
            _observer.read()
    result = _call(func, args, kwargs)
    is_kernel = func._schema.is_mutable
    # Memory that is not written to holds anything.
    if _observer.looks and not name.startswith(('empty', 'new_empty')):
        given = _tensors((args, kwargs))
        given += [value for value in args if isinstance(value, float)]
        finite = all(map(_is_finite, _tensors(result)))
        if not finite and all(map(_is_finite, given)):
            _observer.spoil()

    def wrap(tensor: Tensor) -> Tensor:
        nonlocal is_kernel
        known = inputs.get(id(tensor))
        if known is None:
            storage = tensor.untyped_storage()
            is_kernel = is_kernel or storage._cdata not in _memories
            return DeviceTensor(tensor)
        if (known.shape, known.stride()) != (tensor.shape, tensor.stride()):
            known.data = DeviceTensor(tensor)
        return known

    if stays:
        result = tree_map_only(Tensor, wrap, result)
    if is_kernel and name not in _METADATA and not name.startswith('empty'):
        _observer.launch()
    if name in _CONVOLUTIONS and stays:
        # Kernels of tensor cores have channels last: cuDNN copies what has
        # not.
        backward = name == 'convolution_backward'
        used = args[:3] if backward else (*args[:2], result)
        _observer.workspace(sum(t.nbytes for t in used if t.is_contiguous()))
    if name.startswith('empty') and stays and not result.dim():
        result.is_number = True
    return result


def _index(
    name: str,
    tensor: Tensor,
    indices: list,
    values: Tensor | None = None,
    *others: Any,
) -> None:
    """Indices of the host are copied, and masks have to be counted."""
    tensors = [index for index in indices if index is not None]
    if _is_host(tensor):
        _fail(
            DeviceMixError(
                'indices should be either on cpu or on the same device as '
                f'the indexed tensor (cpu){_observer.where()}'
            )
        )
    for _ in filter(_is_host, tensors):
        _observer.upload()
    masks = [index for index in tensors if index.dtype in _MASKS]
    # Python gives a number to a GPU as a tensor of the host.
    number = (
        values is not None
        and not values.dim()
        and (_is_host(values) or hasattr(values, 'is_number'))
    )
    if number and len(masks) == len(tensors) == 1:
        # What becomes masked_fill.
        return
    if number:
        _observer.upload()
    elif values is not None and _is_host(values):
        _refuse(f'aten::{name}')
    if masks:
        _observer.read()


def _fail(error: RuntimeError) -> None:
    """Raise, or let a backward go on to its end."""
    if torch._C._current_autograd_node() is None:
        raise error
    _observer.fail(error)


def _refuse(operator: str) -> None:
    _fail(
        DeviceMixError(
            'Expected all tensors to be on the same device, but found at '
            f'least two devices, {NAME}:0 and cpu! (when calling {operator})'
            f'{_observer.where()}'
        )
    )


@cache
def _takes_numbers(func: Callable) -> bool:
    """Whether a tensor of the host with one value counts as a number."""
    return torch.Tag.pointwise in func.tags or func._schema.name.startswith(
        ('aten::_foreach', 'aten::fill', 'aten::masked_fill', 'aten::where')
    )


def _check_devices(
    func: Callable, name: str, args: tuple, kwargs: dict
) -> None:
    """Refuse tensors of the host where a GPU's operator would."""
    tensors = _tensors((args, kwargs))
    host = list(filter(_is_host, tensors))
    if _takes_numbers(func) and not (
        name.endswith('_') and _is_host(tensors[0])
    ):
        host = [tensor for tensor in host if tensor.dim()]
    if host:
        _refuse(func._schema.name)


def _copy_from(
    source: Tensor, target: Tensor, non_blocking: bool = False
) -> Tensor:
    copy = torch.ops.aten.copy_.default
    return _run(copy, (target, source, non_blocking), {})


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    """As on a GPU, which keeps one byte for a value."""
    if not train or p == 0:
        return tensor
    return torch.ops.aten.native_dropout(tensor, p, True)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Without a matrix of scores, where a GPU needs none."""
    aten = torch.ops.aten
    learned = attn_mask is not None and attn_mask.requires_grad
    if query.dim() != 4 or dropout_p or learned or enable_gqa:
        return aten._scaled_dot_product_attention_math(
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
            ~attn_mask, -torch.inf
        )
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]


class _DeviceModule:
    """``torch.sim``, as far as PyTorch asks for it.

    PyTorch takes it for the accelerator of the process from then on, and
    would copy random states and pinned memory: nobody watching, there is none.
    """

    def is_available(self) -> bool:
        return _observer is not _NOBODY

    is_initialized = is_available

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(self.is_available())

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """All random numbers are those of the CPU."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return list(_HALF)

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """As above."""

    def synchronize(self, device: Any = None) -> None:
        _observer.begin('synchronize')
        _observer.read()


def is_available() -> bool:
    """Whether PyTorch lets Python implement a device, as from 2.13 on."""
    return hasattr(torch.utils.backend_registration, _SETUP)


_LIBRARIES = []
_autocast = Autocast(NAME)


@cache
def _install() -> None:
    """Let PyTorch know the device, for the rest of the process."""
    if not is_available():
        raise RuntimeError(
            'torch must be 2.13 or newer for a rehearsal on a device that '
            f'Python implements, got {torch.__version__}'
        )
    # The engine of autograd would start a thread for the device, and abort.
    torch.ones((), requires_grad=True).backward()
    setup = getattr(torch.utils.backend_registration, _SETUP)
    setup(NAME, _DeviceModule())
    everywhere, aten = (
        torch.library.Library(n, 'IMPL') for n in ('_', 'aten')
    )
    # Operators without a tensor, and those that PyTorch calls below Python.
    everywhere.fallback(
        lambda func, *args, **kwargs: _run(func, args, kwargs), 'PrivateUse1'
    )
    everywhere.fallback(
        torch.library.fallthrough_kernel, 'AutocastPrivateUse1'
    )
    aten.impl('_copy_from', _copy_from, 'PrivateUse1')
    # PyTorch asks for the kind of device in these, and knows few.
    aten.impl('dropout', _dropout, 'AutogradPrivateUse1')
    aten.impl(
        'scaled_dot_product_attention', _attention, 'AutogradPrivateUse1'
    )
    _autocast.register(aten)
    # As long as they live, the registrations do.
    _LIBRARIES.extend((everywhere, aten))


class _OfType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, DeviceTensor) and value.dtype is cls.dtype


class _LongTensor(metaclass=_OfType):
    dtype = torch.int64


class _BoolTensor(metaclass=_OfType):
    dtype = torch.bool


def _patches() -> Iterator[Any]:
    """What hosts and operators have to know of the device."""
    from mmengine.structures import instance_data

    for name, value in (
        ('is_available', True),
        # PyTorch takes a number for a device of the accelerator.
        ('current_device', 0),
        # What a build for CUDA asks its driver for, which may not be there.
        ('get_device_capability', (8, 0)),
        ('is_current_stream_capturing', False),
    ):
        yield mock.patch(f'torch.cuda.{name}', return_value=value)
    yield mock.patch('torch.cuda.synchronize', _DeviceModule().synchronize)
    yield from _autocast.patches()
    # A kernel of its own, as there is one for GPUs.
    attention = ORDER['ms_deform_attn']
    yield mock.patch.dict(attention, {NAME: attention['cpu']})
    for name, kind in (
        ('LongTypeTensor', _LongTensor),
        ('BoolTypeTensor', _BoolTensor),
        ('IndexType', DeviceTensor),
    ):
        kinds = getattr(instance_data, name) | kind
        yield mock.patch.object(instance_data, name, kinds)
    extension = sys.modules.get('mmcv._ext')
    for name, op in list(vars(extension).items()) if extension else ():
        if callable(op) and not name.startswith('_'):
            yield mock.patch.object(extension, name, _one_kernel(name, op))


def _one_kernel(name: str, op: Callable) -> Callable:
    """An operator of mmcv, which is one kernel where it is compiled."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = _tensors((args, kwargs))
        if all(map(_is_host, tensors)):
            return op(*args, **kwargs)
        _observer.begin(name)
        if any(map(_is_host, tensors)):
            _refuse(name)
        args, kwargs = tree_map_only(Tensor, _elem, (args, kwargs))
        with torch.no_grad():
            result = op(*args, **kwargs)
        _observer.launch()
        if name in _SIZED:
            _observer.read()
        return tree_map_only(Tensor, DeviceTensor, result)

    return run


@contextmanager
def watched_device(observer: Any) -> Iterator[torch.device]:
    """Inside, there is the device, and the observer is told what it does.

    Raises:
        RuntimeError: If PyTorch is older than 2.13.
    """
    global _observer
    _install()
    before, _observer = _observer, observer
    try:
        with ExitStack() as stack:
            for patch in _patches():
                stack.enter_context(patch)
            # The engine of autograd has no thread for it.
            stack.enter_context(
                torch.autograd.set_multithreading_enabled(False)
            )
            yield torch.device(NAME, 0)
    finally:
        _observer = before
