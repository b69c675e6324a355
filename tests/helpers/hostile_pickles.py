"""Pickles of allowed names with fields that they cannot have.

With a reader that calls constructors, each of them crashes the process, reads
memory beyond its own, opens a file, or takes all memory or time.
"""

import io
import pickle
import zipfile
from collections import OrderedDict, deque

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer

RECONSTRUCT = np.array(0).__reduce__()[0]
SCALAR = np.float64(0).__reduce__()[0]
# The function that protocol 5 calls.
FROM_BUFFER = np.arange(3).__reduce_ex__(5)[0]


class Call:
    """An object that a pickle makes by a call, with a state."""

    def __init__(self, function, *args, state=None):
        self.parts = function, args, state

    def __reduce__(self):
        return self.parts


def dtype(code, *, fields=None, size=-1, flags=0):
    """A dtype with a state that the file chooses."""
    names = None if fields is None else tuple(fields)
    state = (3, '|', None, names, fields, size, -1, flags)
    return Call(np.dtype, code, False, True, state=state)


def array(kind, shape, data, code=np.ndarray):
    start = RECONSTRUCT, code, (0,), b'b'
    return Call(*start, state=(1, shape, kind, False, data))


def doubled(levels):
    value = ['ha']
    for _ in range(levels):
        value = [value, value]
    return value


def itself():
    value = []
    value.append(value)
    return value


def hostile_values(folder):
    """Each value by name; a file in ``folder`` is what one would open."""
    secret = folder / 'secret.py'
    secret.write_text('a = 1')
    address = b'\x10' * 8
    plain = np.dtype('f8')
    buffer = dict(
        max_length=1 << 40,
        _log_history=np.zeros(2),
        _count_history=np.zeros(3, int),
    )
    return dict(
        objects_as_bytes=Call(SCALAR, dtype('O8'), address),
        array_of_pointers=array(dtype('O8'), (1,), address),
        field_of_objects=Call(
            SCALAR,
            dtype('V8', fields=dict(a=(np.dtype('O'), 0)), size=8),
            address,
        ),
        field_beyond=Call(
            SCALAR,
            dtype('V8', fields=dict(a=(plain, 1 << 20)), size=8),
            address,
        ),
        size_of_dtype=Call(SCALAR, dtype('V8', size=1 << 20), address),
        code_of_dtype=Call(np.dtype, '(1000000000,)f8', False, True),
        array_beyond=array(plain, (1 << 20,), address),
        array_negative=array(plain, (-1,), address),
        buffer_beyond=Call(FROM_BUFFER, b'', plain, (1 << 34,), 'C'),
        array_of_memory=Call(np.ndarray, (1 << 34,)),
        no_character=array(np.dtype('U1'), (1,), b'\xff\xff\xff\x7f'),
        no_truth=array(np.dtype('?'), (2,), b'\x01\x7f'),
        opened_file=Call(Config, None, None, str(secret)),
        bytes_of_memory=Call(bytes, 1 << 34),
        bytearray_of_memory=Call(bytearray, 1 << 34),
        set_of_memory=Call(set, range(1 << 30)),
        list_of_memory=Call(deque, range(9)),
        key_of_memory={1 << 70: 1},
        keys_of_one_hash={complex(n, 0.5): 1 for n in range(10_001)},
        hidden_method=Call(OrderedDict, state=dict(items=1)),
        doubled=doubled(60),
        itself=itself(),
        buffer_of_others=Call(HistoryBuffer, state=buffer),
    )


def hostile_tensors():
    """Pickles of a checkpoint with one storage of two numbers."""
    rebuild = torch._utils._rebuild_tensor_v2
    fields = dict(
        beyond=(0, (1 << 20,), (1,)),
        offset=(1 << 40, (1,), (1,)),
        negative=(-1, (1,), (1,)),
        strides=(0, (2, 2), (1, 1 << 40)),
        expanded=(0, (1 << 20, 1 << 20), (0, 0)),
        mixed=(0, (2,), (1, 1)),
    )

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if item == 'STORAGE':
                return ('storage', torch.FloatStorage, '0', 'cpu', 2)
            return None

    for name, (offset, size, stride) in fields.items():
        stream = io.BytesIO()
        tensor = Call(rebuild, 'STORAGE', offset, size, stride, False, {})
        Pickler(stream, 2).dump(dict(state_dict=dict(a=tensor)))
        yield name, stream.getvalue()


# Lists in each other, of which pickle itself writes no more than 1,000.
DEEP = b'\x80\x02' + b']' * 20_000 + b'a' * 19_999 + b'.'
# An index that the table of the unpickler would be made as long as.
LONG_TABLE = b'\x80\x02]r\xff\xff\xff\x7f.'
# A length of bytes, where there is one.
LONG_BYTES = b'\x80\x05\x8e' + (1 << 40).to_bytes(8, 'little') + b'a.'


def write_checkpoint(path, data, *, compress=False):
    """An archive of ``torch.save`` with this pickle and eight bytes."""
    with zipfile.ZipFile(path, 'w') as archive:
        kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        archive.writestr('archive/data.pkl', data, kind)
        archive.writestr('archive/data/0', bytes(8))
        archive.writestr('archive/version', b'3\n')
    return path
