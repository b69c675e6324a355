"""Read a pickle as inert records: nothing in it is imported or called.

A pickle is a program for a stack machine. :func:`read_records` runs only the
instructions that move values around. An instruction that would import a name
or call a function leaves a :class:`Name` or a :class:`Call` instead, and dict
keys are not hashed. :mod:`mmext.utils.plain_types` makes values of them.

Source: the instructions as ``pickletools`` of Python documents them.
"""

import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, Any

from .archive import DamagedFileError

# A checkpoint has some 10,000 instructions. One instruction of one byte can
# make an object of 100 bytes, so a small file could take all memory.
_MAX_INSTRUCTIONS = 30_000_000
# Modules that had another name in Python 2 and in NumPy 1.
_RENAMED = (
    ('__builtin__.', 'builtins.'),
    ('numpy.core.', 'numpy._core.'),
    ('pathlib._local.', 'pathlib.'),
)


@dataclass(slots=True, eq=False)
class Name:
    """A class or function that a pickle names, with its module."""

    full: str

    def __post_init__(self) -> None:
        for old, new in _RENAMED:
            if self.full.startswith(old):
                self.full = new + self.full.removeprefix(old)


@dataclass(slots=True, eq=False)
class Mapping:
    """A dict, as the pairs in the order in which they were set."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Set:
    """A set or a frozenset."""

    items: list[Any]
    frozen: bool = False


@dataclass(slots=True, eq=False)
class Persistent:
    """An object that is stored outside of the pickle, by its identifier."""

    key: Any


@dataclass(slots=True, eq=False)
class Call:
    """An object that a call would make, and the state that it would get."""

    function: Any
    args: Any
    states: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


def read_records(
    stream: IO[bytes],
    names: dict[str, None] | None = None,
    persistent: list[Any] | None = None,
) -> Any:
    """Read one pickle; the stream is left after its end.

    Args:
        stream: A file that allocates no more bytes than it has when more are
            asked for, such as ``BytesIO``.
        names: Gets each full name that the pickle contains.
        persistent: Gets each persistent identifier.

    Returns:
        None, bool, int, float, str, bytes, list and tuple as they are, and
        the records of this module.

    Raises:
        DamagedFileError: If the bytes are not a pickle, are cut off, or have
            more than 30 million instructions.
    """
    machine = _Machine(
        {} if names is None else names,
        [] if persistent is None else persistent,
    )
    try:
        for number, (code, value, _) in enumerate(pickletools.genops(stream)):
            if number == _MAX_INSTRUCTIONS:
                raise DamagedFileError(
                    f'the pickle has more than {_MAX_INSTRUCTIONS:,} '
                    'instructions'
                )
            run = _RUN.get(code.name)
            if run is None:
                raise DamagedFileError(
                    f'the pickle has the unknown instruction {code.name}'
                )
            run(machine, value)
        return machine.stack.pop()
    except DamagedFileError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
    ) as error:
        raise DamagedFileError(
            f'the pickle is cut off or damaged ({type(error).__name__}: '
            f'{str(error)[:200]!r})'
        ) from error


class _Machine:
    def __init__(self, names: dict[str, None], persistent: list[Any]) -> None:
        self.names = names
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def pop_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def name(self, full: str) -> Name:
        name = Name(full)
        self.names[name.full] = None
        return name


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _push_constant(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


def _push_of_mark(
    make: Callable[[list[Any]], Any],
) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make(machine.pop_mark()))


def _tuple(length: int) -> Callable[[_Machine, Any], None]:
    def run(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < length:
            raise IndexError('the stack is empty')
        items = tuple(machine.stack[-length:])
        machine.stack[-length:] = [items]

    return run


def _mark(machine: _Machine, _: Any) -> None:
    machine.marks.append(len(machine.stack))


def _pop(machine: _Machine, _: Any) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()


def _put(machine: _Machine, key: int) -> None:
    machine.memo[key] = machine.stack[-1]


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(machine: _Machine, key: int) -> None:
    machine.stack.append(machine.memo[key])


def _global(machine: _Machine, value: str) -> None:
    machine.stack.append(machine.name(value.replace(' ', '.', 1)))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.name(module + '.' + name))


def _instance(machine: _Machine, value: str) -> None:
    args = tuple(machine.pop_mark())
    name = machine.name(value.replace(' ', '.', 1))
    machine.stack.append(Call(name, args))


def _object(machine: _Machine, _: Any) -> None:
    function, *args = machine.pop_mark()
    machine.stack.append(Call(function, tuple(args)))


def _call(machine: _Machine, _: Any) -> None:
    args, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(Call(function, args))


def _call_with_keywords(machine: _Machine, _: Any) -> None:
    keywords = machine.stack.pop()
    if keywords.pairs:
        raise ValueError('an object with keyword arguments')
    _call(machine, _)


def _persistent(machine: _Machine, key: Any) -> None:
    machine.persistent.append(key)
    machine.stack.append(Persistent(key))


def _build(machine: _Machine, _: Any) -> None:
    state = machine.stack.pop()
    machine.stack[-1].states.append(state)


def _append(machine: _Machine, items: Iterable[Any]) -> None:
    target = machine.stack[-1]
    (target if isinstance(target, list) else target.items).extend(items)


def _set(machine: _Machine, items: list[Any]) -> None:
    pairs = zip(items[::2], items[1::2], strict=True)
    machine.stack[-1].pairs.extend(pairs)


_RUN: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(
        (
            *('INT', 'BININT', 'BININT1', 'BININT2'),
            *('LONG', 'LONG1', 'LONG4', 'FLOAT', 'BINFLOAT'),
            *('STRING', 'BINSTRING', 'SHORT_BINSTRING'),
            *('UNICODE', 'SHORT_BINUNICODE', 'BINUNICODE', 'BINUNICODE8'),
            *('BINBYTES', 'SHORT_BINBYTES', 'BINBYTES8', 'BYTEARRAY8'),
        ),
        _push,
    ),
    **dict.fromkeys(('PROTO', 'FRAME', 'STOP'), lambda machine, value: None),
    'NONE': _push_constant(lambda: None),
    'NEWTRUE': _push_constant(lambda: True),
    'NEWFALSE': _push_constant(lambda: False),
    'EMPTY_LIST': _push_constant(list),
    'EMPTY_TUPLE': _push_constant(tuple),
    'EMPTY_DICT': _push_constant(Mapping),
    'EMPTY_SET': _push_constant(lambda: Set([])),
    'LIST': _push_of_mark(list),
    'TUPLE': _push_of_mark(tuple),
    'FROZENSET': _push_of_mark(lambda items: Set(items, frozen=True)),
    'DICT': _push_of_mark(
        lambda items: Mapping([*zip(items[::2], items[1::2], strict=True)])
    ),
    'TUPLE1': _tuple(1),
    'TUPLE2': _tuple(2),
    'TUPLE3': _tuple(3),
    'MARK': _mark,
    'POP': _pop,
    'POP_MARK': lambda machine, _: machine.pop_mark() and None,
    'DUP': lambda machine, _: machine.stack.append(machine.stack[-1]),
    **dict.fromkeys(('PUT', 'BINPUT', 'LONG_BINPUT'), _put),
    'MEMOIZE': _memoize,
    **dict.fromkeys(('GET', 'BINGET', 'LONG_BINGET'), _get),
    'GLOBAL': _global,
    'STACK_GLOBAL': _stack_global,
    'INST': _instance,
    'OBJ': _object,
    **dict.fromkeys(('REDUCE', 'NEWOBJ'), _call),
    'NEWOBJ_EX': _call_with_keywords,
    'BUILD': _build,
    'APPEND': lambda machine, _: _append(machine, [machine.stack.pop()]),
    **dict.fromkeys(
        ('APPENDS', 'ADDITEMS'),
        lambda machine, _: _append(machine, machine.pop_mark()),
    ),
    'SETITEM': lambda machine, _: _set(
        machine, [machine.stack.pop(-2), machine.stack.pop()]
    ),
    'SETITEMS': lambda machine, _: _set(machine, machine.pop_mark()),
    'PERSID': _persistent,
    'BINPERSID': lambda machine, _: _persistent(machine, machine.stack.pop()),
}
