"""Make values of the records of a pickle: plain data, and no other type.

Each type that a checkpoint may contain has a function here that checks every
field and makes the value itself. No constructor that a pickle names runs, and
no ``__setstate__``: NumPy's believes sizes and flags that a file states.
"""

import argparse
import datetime
import re
import reprlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

from . import pickle_records as records

# A configuration has some 20 levels, and Python needs several calls for each.
_MAX_DEPTH = 100
# A value that is used twice counts twice: a deep copy has as many.
_MAX_VALUES = 30_000_000
# Elements of an expanded tensor, of which fewer are stored.
_MAX_EXPANDED = 1 << 24
_BITS_OF_KEY = 64
# Keys of types whose hashes can be chosen, of one container.
_MAX_CHOSEN_KEYS = 10_000
_MAX_CHARACTER = 0x10FFFF


class RefusedValueError(ValueError):
    """A pickle contains something that is not plain data."""


def _check(is_right: bool, what: str, *values: Any) -> None:
    if is_right:
        return
    for value in values:
        if isinstance(value, records.Name):
            what += f' {value.full}'
        elif isinstance(value, Tensor | np.ndarray):
            # Its text can be as long as its content, and imports modules.
            what += f' type {type(value).__name__}'
        else:
            what += f' {reprlib.repr(value)}'
    raise RefusedValueError(what)


@dataclass(frozen=True, eq=False)
class Storage:
    """Memory of tensors; ``dtype`` is None for bytes without a type."""

    memory: torch.UntypedStorage
    dtype: torch.dtype | None


class _Arguments(tuple):
    """A tuple with a name or a storage in it, which only a call may get."""

    __slots__ = ()


class Maker:
    """Makes values of records, each once.

    Args:
        storage: Returns the storage of a persistent identifier, which is as
            the pickle has it; None if the file has no tensors.
    """

    def __init__(
        self, storage: Callable[[Any], Storage] | None = None
    ) -> None:
        self._storage = storage
        self._made: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()
        self._count = 0

    def make(self, record: Any) -> Any:
        """Make the value of what ``read_records`` returns.

        Raises:
            RefusedValueError: If a type is unknown, a field of a known one
                has a value that it cannot have, a container contains itself,
                or there are more than 100 levels or 30 million values.
        """
        try:
            return self.value(record)
        except RefusedValueError:
            raise
        # From NumPy, PyTorch and MMEngine, for fields that have the right
        # types and make no sense together.
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise RefusedValueError(
                f'a value that cannot be made ({type(error).__name__}: '
                f'{str(error)[:200]})'
            ) from error

    def value(self, record: Any) -> Any:
        """Make a value that is complete: no name, and no storage."""
        value = self.argument(record)
        if isinstance(value, records.Name | Storage | _Arguments):
            _check(False, 'as a value,', value)
        return value

    def argument(self, record: Any) -> Any:
        """Make a value, or return a name or a storage, for a call."""
        self._count += 1
        _check(self._count <= _MAX_VALUES, f'more than {_MAX_VALUES:,} values')
        kind = type(record)
        if kind in _ATOMS:
            return record
        if kind is records.Name:
            return _VALUES.get(record.full, record)
        key = id(record)
        if key in self._made:
            value, count = self._made[key]
            self._count += count
            return value
        _check(key not in self._open, 'a container that contains itself')
        _check(len(self._open) < _MAX_DEPTH, f'more than {_MAX_DEPTH} levels')
        self._open.add(key)
        before = self._count
        value = _RECORDS[kind](self, record)
        self._open.remove(key)
        self._made[key] = value, self._count - before
        return value

    def _list(self, items: list[Any]) -> list[Any]:
        return [self.value(item) for item in items]

    def _tuple(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        made = [self.argument(item) for item in items]
        inert = records.Name | Storage | _Arguments
        is_inert = any(isinstance(item, inert) for item in made)
        return (_Arguments if is_inert else tuple)(made)

    def _dict(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        keys = [self.value(key) for key, _ in pairs]
        _check_keys(keys)
        return {key: self.value(item) for key, (_, item) in zip(keys, pairs)}

    def _set(self, record: records.Set) -> set[Any] | frozenset[Any]:
        items = self._dict([(item, None) for item in record.items])
        return frozenset(items) if record.frozen else set(items)

    def _persistent(self, record: records.Persistent) -> Storage:
        _check(self._storage is not None, 'a tensor outside of a checkpoint')
        return self._storage(record.key)

    def _call(self, record: records.Call) -> Any:
        """Make what a call of a known name would have made."""
        name = record.function
        _check(type(name) is records.Name, 'a call of something unnamed')
        _check(name.full in _MAKERS, 'a call of', name)
        make, takes = _MAKERS[name.full]
        args = self.argument(record.args)
        _check(isinstance(args, tuple), f'a call of {name.full} with', args)
        # The state of an addict.Dict is the object itself.
        states = [item for item in record.states if item is not record]
        _check(len(states) < 2, f'two states of {name.full}')
        parts = {
            'state': self.value(states[0]) if states else None,
            'items': self._list(record.items),
            'pairs': self._dict(record.pairs),
        }
        for part, value in parts.items():
            _check(part in takes or not value, f'{part} of {name.full}')
        return make(*args, **{part: parts[part] for part in takes})


_ATOMS = {type(None), bool, int, float, str, bytes, bytearray}
_RECORDS: dict[type, Callable[[Maker, Any], Any]] = {
    list: Maker._list,
    tuple: Maker._tuple,
    records.Mapping: lambda maker, record: maker._dict(record.pairs),
    records.Set: Maker._set,
    records.Persistent: Maker._persistent,
    records.Call: Maker._call,
}
_MAKERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {}
# Names that are values: factories of a defaultdict, and dtypes.
_VALUES: dict[str, Any] = {
    f'builtins.{kind.__name__}': kind for kind in (dict, float, int, list, set)
} | {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_ARRAY = 'numpy.ndarray'
_BUFFER = 'mmengine.logging.history_buffer.HistoryBuffer'
_ONE_CYCLE = 'mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler'
_TENSORS = ('torch.Tensor', 'torch._tensor.Tensor')
_PARAMETER = 'torch.nn.parameter.Parameter'
_STORAGES: dict[str, torch.dtype | None] = {
    'torch.storage.UntypedStorage': None,
    'torch.UntypedStorage': None,
} | {
    f'torch.{prefix}{name}Storage': dtype
    for prefix in ('', 'cuda.')
    for name, dtype in {
        'BFloat16': torch.bfloat16,
        'Bool': torch.bool,
        'Byte': torch.uint8,
        'Char': torch.int8,
        'ComplexDouble': torch.complex128,
        'ComplexFloat': torch.complex64,
        'Double': torch.float64,
        'Float': torch.float32,
        'Half': torch.float16,
        'Int': torch.int32,
        'Long': torch.int64,
        'Short': torch.int16,
    }.items()
}


def is_known(name: str) -> bool:
    """Whether a pickle may contain this name, with the right arguments."""
    inert = {_ARRAY, _ONE_CYCLE, *_TENSORS, _PARAMETER, *_STORAGES}
    return name in _MAKERS or name in _VALUES or name in inert


def storage_dtype(name: Any) -> torch.dtype | None:
    """Return the dtype of a class of storages, given as a ``Name``.

    None for untyped bytes. RefusedValueError if the class is unknown.
    """
    known = isinstance(name, records.Name) and name.full in _STORAGES
    _check(known, 'a storage of class', name)
    return _STORAGES[name.full]


def _makes(*names: str, takes: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Register the function that makes what a pickle calls by these names.

    It gets the arguments of the call, and by keyword which of ``'state'``,
    ``'items'`` and ``'pairs'`` the object ``takes`` after it is made.
    """

    def register(function: Any) -> Any:
        _MAKERS.update(dict.fromkeys(names, (function, takes)))
        return function

    return register


def _check_keys(keys: list[Any]) -> None:
    """Refuse keys that can all have one hash: a dict of them has no end."""
    for key in keys:
        is_short = type(key) is not int or key.bit_length() <= _BITS_OF_KEY
        text = f'an integer of more than {_BITS_OF_KEY} bits as a key'
        _check(is_short, text)
    chosen = sum(type(key) not in _ATOMS for key in keys)
    _check(
        chosen <= _MAX_CHOSEN_KEYS,
        f'more than {_MAX_CHOSEN_KEYS:,} keys that are tuples or the like',
    )


def _check_count(value: Any, what: str) -> None:
    _check(type(value) is int and value >= 0, what, value)


def _check_counts(values: Any, what: str) -> None:
    _check(isinstance(values, tuple), what, values)
    for value in values:
        _check_count(value, what)


# Python -----------------------------------------------------------------


@_makes('_codecs.encode')
def _encode(text: Any, encoding: Any = 'latin1') -> bytes:
    """Make the bytes that protocol 2 writes as text."""
    _check(type(text) is str and encoding == 'latin1', 'an encoding', encoding)
    return text.encode('latin1')


def _bytes_of(data: Any) -> bytes:
    """Bytes of a field; a text where Python 2 wrote the file."""
    if type(data) is str:
        return data.encode('latin1')
    _check(type(data) in (bytes, bytearray), 'bytes of type', type(data))
    return bytes(data)


@_makes('builtins.bytes')
def _bytes() -> bytes:
    return b''


@_makes('builtins.bytearray')
def _bytearray(data: Any = b'', encoding: Any = None) -> bytearray:
    return bytearray(_bytes_of(data))


def _sequence(items: Any) -> Any:
    _check(isinstance(items, list | tuple), 'a sequence of type', type(items))
    return items


def _set_maker(kind: type) -> Callable[..., Any]:
    def make(items: Any = ()) -> Any:
        _check_keys(_sequence(items))
        return kind(items)

    return make


def _plain_maker(kind: type, *types: type) -> Callable[..., Any]:
    """Maker of a type that may get any arguments of some types."""

    def make(*args: Any) -> Any:
        for arg in args:
            _check(type(arg) in types, f'{kind.__name__} with', arg)
        return kind(*args)

    return make


_MAKERS |= {
    name: (make, ())
    for name, make in {
        'builtins.complex': _plain_maker(complex, float),
        'builtins.frozenset': _set_maker(frozenset),
        'builtins.range': _plain_maker(range, int),
        'builtins.set': _set_maker(set),
        'builtins.slice': _plain_maker(slice, int, type(None)),
        'builtins.xrange': _plain_maker(range, int),
        'datetime.timedelta': _plain_maker(datetime.timedelta, int),
        'pathlib.PosixPath': _plain_maker(Path, str),
        'torch.device': _plain_maker(torch.device, str, int),
    }.items()
}


@_makes('collections.deque', takes=('items',))
def _deque(first: Any = (), length: Any = None, *, items: Any) -> list[Any]:
    return [*_sequence(first), *items]


@_makes('collections.defaultdict', takes=('pairs',))
def _default_dict(factory: Any = None, *, pairs: Any) -> dict[Any, Any]:
    _check(not isinstance(factory, records.Name), 'a factory', factory)
    return pairs


@_makes('collections.Counter')
def _counter(counts: Any = None) -> Counter[Any]:
    counts = {} if counts is None else counts
    _check(type(counts) is dict, 'a Counter with', counts)
    return Counter(counts)


@_makes('collections.OrderedDict', takes=('state', 'pairs'))
def _ordered_dict(first: Any = (), *, state: Any, pairs: Any) -> Any:
    # Python 2 wrote the pairs as arguments.
    _check_keys([key for key, _ in _sequence(first)])
    result = OrderedDict(first)
    result.update(pairs)
    return _with_attributes(result, state)


@_makes('addict.addict.Dict', takes=('state', 'pairs'))
def _addict(*first: Any, state: Any, pairs: Any) -> dict[Any, Any]:
    _check_keys([key for key, _ in map(_sequence, first)])
    return {**dict(first), **(state or {}), **pairs}


@_makes('argparse.Namespace', takes=('state',))
def _namespace(*, state: Any) -> argparse.Namespace:
    return _with_attributes(argparse.Namespace(), state)


def _with_attributes(value: Any, attributes: Any) -> Any:
    """Set attributes without calling a setter."""
    if attributes is not None:
        _check(type(attributes) is dict, 'attributes', attributes)
        for name in attributes:
            # It would hide a method.
            is_free = type(name) is str and not hasattr(type(value), name)
            _check(is_free, 'an attribute', name)
        vars(value).update(attributes)
    return value


@_makes('datetime.date')
def _date(data: Any) -> datetime.date:
    high, low, month, day = _bytes_of(data)
    return datetime.date(high * 256 + low, month, day)


@_makes('datetime.datetime')
def _datetime(data: Any) -> datetime.datetime:
    high, low, month, *rest = _bytes_of(data)
    day, hour, minute, second, *microsecond = rest
    _check(len(microsecond) == 3, 'a datetime of bytes', data)
    return datetime.datetime(
        high * 256 + low,
        month & 0x7F,
        day,
        hour,
        minute,
        second,
        int.from_bytes(bytes(microsecond), 'big'),
        fold=month >> 7,
    )


# NumPy ------------------------------------------------------------------

_DTYPE = re.compile(r'[?bhilqBHILQefdgFDGO]|b1|[iufcSUVOMm]\d{1,9}')
_UNIT = re.compile(r'Y|M|W|D|h|m|[munpfa]?s|generic')


@_makes('numpy.dtype', takes=('state',))
def _dtype(code: Any, *flags: Any, state: Any) -> np.dtype:
    """Make a dtype from its code; sizes and flags of the state are ignored."""
    is_plain = type(code) is str and _DTYPE.fullmatch(code)
    _check(bool(is_plain), 'a dtype', code)
    dtype = np.dtype(code)
    if state is None:
        return dtype
    order, base, names, fields, size = _sequence(state)[1:6]
    _check(base is None, 'a dtype of arrays')
    _check(order in ('<', '>', '=', '|'), 'a byte order', order)
    if names is not None:
        dtype = _structure(names, fields, size)
    elif dtype.kind in 'Mm':
        dtype = _time_dtype(dtype, state)
    if order in '<>':
        dtype = dtype.newbyteorder(order)
    _check(size in (-1, dtype.itemsize), f'a dtype {code} of size', size)
    return dtype


def _structure(names: Any, fields: Any, size: Any) -> np.dtype:
    formats, offsets = [], []
    for name in _sequence(names):
        dtype, offset, *_ = fields[name]
        is_number = isinstance(dtype, np.dtype) and dtype.kind in 'biufc'
        _check(is_number, f'a field {name!r} of', dtype)
        _check_count(offset, 'an offset')
        formats.append(dtype)
        offsets.append(offset)
    return np.dtype(
        {
            'names': names,
            'formats': formats,
            'offsets': offsets,
            'itemsize': size,
        }
    )


def _time_dtype(dtype: np.dtype, state: Any) -> np.dtype:
    unit, count, *_ = state[8][1]
    unit = _bytes_of(unit).decode('latin1')
    _check(bool(_UNIT.fullmatch(unit)), 'a unit of time', unit)
    _check_count(count, 'a number of units of time')
    return np.dtype(
        dtype.char if unit == 'generic' else f'{dtype.char}8[{count}{unit}]'
    )


@_makes('numpy._core.multiarray._reconstruct', takes=('state',))
def _array(kind: Any, *empty: Any, state: Any) -> np.ndarray:
    is_array = isinstance(kind, records.Name) and kind.full == _ARRAY
    _check(is_array, 'an array of class', kind)
    shape, dtype, is_fortran, data = _sequence(state)[-4:]
    return _filled(data, dtype, shape, 'F' if is_fortran else 'C')


@_makes('numpy._core.numeric._frombuffer')
def _filled(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """Make an array that has exactly the bytes, or objects, that there are."""
    _check(isinstance(dtype, np.dtype), 'a dtype', dtype)
    _check_counts(shape, 'a shape')
    count = prod(shape)
    if dtype.hasobject:
        _check(dtype.kind == 'O' and len(_sequence(data)) == count, 'an array')
        array = np.empty(count, object)
        for index, item in enumerate(data):
            array[index] = item
    else:
        data = _bytes_of(data)
        _check(
            len(data) == count * dtype.itemsize and (data or not count),
            f'an array of {count} {dtype} in {len(data)} bytes',
        )
        if dtype.kind == 'b':
            _check(not data.strip(b'\0\1'), 'truth values other than 0 and 1')
        array = np.frombuffer(bytearray(data), dtype, count)
        if dtype.kind == 'U':
            codes = array.view(f'{dtype.str[0]}u4')
            _check(bool((codes <= _MAX_CHARACTER).all()), 'no characters')
    return array.reshape(shape, order=order)


@_makes('numpy._core.multiarray.scalar')
def _scalar(dtype: Any, data: Any = b'') -> Any:
    _check(isinstance(dtype, np.dtype), 'a dtype', dtype)
    _check(not dtype.hasobject, 'a scalar of type', dtype)
    if not dtype.itemsize:
        return np.zeros((), dtype)[()]
    return _filled(data, dtype, (), 'C')[()]


# MMEngine ---------------------------------------------------------------


@_makes('builtins.getattr')
def _function_of(owner: Any, name: Any) -> Any:
    """Return a function that a state keeps: of a schedule, of a buffer."""
    owner = owner.full if isinstance(owner, records.Name) else owner
    if owner == _BUFFER and name in ('current', 'max', 'mean', 'min'):
        return getattr(HistoryBuffer, name)
    is_known = name in ('_annealing_cos', '_annealing_linear')
    _check(
        owner == _ONE_CYCLE and is_known, f'the attribute {name!r} of {owner}'
    )
    # Not at the top: a check of labels needs no optimizers.
    from mmengine.optim import OneCycleParamScheduler

    return getattr(OneCycleParamScheduler, name)


@_makes(_BUFFER, takes=('state',))
def _history_buffer(*, state: Any) -> HistoryBuffer:
    _check(type(state) is dict, 'a HistoryBuffer with', state)
    state = dict(state)
    length = state.pop('max_length')
    histories = state.pop('_log_history'), state.pop('_count_history')
    # By name, and only those that every HistoryBuffer has.
    state.pop('statistics_methods', None)
    _check(not state, 'a HistoryBuffer with', sorted(state))
    _check_count(length, 'max_length')
    for array in histories:
        is_history = isinstance(array, np.ndarray) and array.ndim == 1
        _check(is_history and array.dtype.kind in 'biuf', 'a history', array)
        _check(len(array) <= length, f'more than {length} values of a history')
    return HistoryBuffer(*histories, length)


@_makes('mmengine.config.config.ConfigDict')
def _config_dict(content: Any = None) -> ConfigDict:
    content = {} if content is None else content
    _check(type(content) is dict, 'a ConfigDict with', content)
    return ConfigDict(content)


@_makes('mmengine.config.config.Config', takes=('state',))
def _config(*, state: Any) -> Config:
    # Two more fields since MMEngine 0.8.
    fields = [*_sequence(state), *(True, set())[len(state) - 4 :]]
    kinds = (ConfigDict,), (str, type(None)), (str, type(None)), (dict,)
    for value, allowed in zip(fields, (*kinds, (bool,), (set,)), strict=True):
        _check(type(value) in allowed, 'a Config with', value)
    config = Config.__new__(Config)
    Config.__setstate__(config, tuple(fields))
    return config


# PyTorch ----------------------------------------------------------------


@_makes('torch._utils._rebuild_tensor', 'torch._utils._rebuild_tensor_v2')
def _typed_tensor(storage: Any, *fields: Any) -> Tensor:
    _check(isinstance(storage, Storage), 'a tensor of', storage)
    return _tensor(storage, storage.dtype, *fields)


@_makes('torch._utils._rebuild_tensor_v3')
def _untyped_tensor(storage: Any, *fields: Any) -> Tensor:
    return _tensor(storage, fields[5], *fields[:5], *fields[6:])


def _tensor(
    storage: Any,
    dtype: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> Tensor:
    """Make a tensor that lies within its storage."""
    _check(isinstance(storage, Storage), 'a tensor of', storage)
    _check(isinstance(dtype, torch.dtype), 'a tensor of dtype', dtype)
    _check(not hooks and not metadata, 'a tensor with hooks or metadata')
    _check_count(offset, 'an offset')
    _check_counts(size, 'a size')
    _check_counts(stride, 'a stride')
    stored, numel = storage.memory.nbytes() // dtype.itemsize, prod(size)
    steps = zip(size, stride, strict=True)
    end = offset + (numel and 1 + sum((n - 1) * step for n, step in steps))
    _check(
        end <= stored and numel <= max(stored, _MAX_EXPANDED),
        f'a tensor of size {size} and stride {stride} in {stored} elements',
    )
    tensor = torch.empty(0, dtype=dtype, device=storage.memory.device)
    tensor.set_(storage.memory, offset, size, stride)
    if dtype == torch.bool and tensor.device.type == 'cpu':
        is_truth = bool((tensor.view(torch.uint8) <= 1).all())
        _check(is_truth, 'truth values other than 0 and 1')
    return tensor.requires_grad_(requires_grad is True)


@_makes(
    'torch._utils._rebuild_parameter',
    'torch._utils._rebuild_parameter_with_state',
)
def _parameter(
    data: Any, requires_grad: Any, hooks: Any, state: Any = None
) -> nn.Parameter:
    _check(isinstance(data, Tensor) and not hooks, 'a parameter of', data)
    parameter = nn.Parameter(data, requires_grad is True)
    return _with_attributes(parameter, state)


@_makes('torch._tensor._rebuild_from_type_v2')
def _tensor_with_attributes(
    function: Any, kind: Any, args: Any, state: Any
) -> Tensor:
    names = [getattr(item, 'full', '') for item in (function, kind)]
    is_tensor = names[1] in (*_TENSORS, _PARAMETER)
    is_made = names[0].startswith('torch._utils._rebuild_')
    _check(is_tensor and is_made and names[0] in _MAKERS, 'a tensor of', names)
    _check(isinstance(args, tuple), 'arguments', args)
    return _with_attributes(_MAKERS[names[0]][0](*args), state)


@_makes('torch.Size')
def _size(size: Any) -> torch.Size:
    _check_counts(size, 'a size')
    return torch.Size(size)
