"""Mutated pickles, read in a process that watches what the readers do.

    python -m helpers.pickle_fuzz FIRST COUNT FOLDER

reads the files of the seeds ``FIRST`` to ``FIRST + COUNT - 1``, written into
``FOLDER``, with each reader, and prints one JSON object: what went wrong, and
how many files were read or refused.
"""

import argparse
import codecs
import datetime
import io
import json
import os
import pickle
import pickletools
import resource
import signal
import struct
import sys
import traceback
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import mmengine
import mmengine.optim
import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer

from mmext.apis import from_pretrained
from mmext.engine.checkpoint.files import summarize_checkpoint
from mmext.utils.archive import DamagedFileError
from mmext.utils.safe_load import (
    UntrustedTypeError,
    careful_readers,
    load_torch,
)

MEMORY_BYTES = 1 << 30
SECONDS = 5
NAMES = (
    *('os.system', 'posix.system', 'builtins.eval', 'builtins.exec'),
    *('builtins.open', 'builtins.getattr', 'builtins.setattr'),
    *('builtins.__import__', 'builtins.bytes', 'builtins.set'),
    *('builtins.list', 'builtins.range', 'builtins.type', 'builtins.object'),
    *('subprocess.Popen', 'pathlib.Path.touch', 'pathlib.PosixPath'),
    *('shutil.rmtree', 'copyreg._reconstructor', 'numpy.dtype'),
    *('numpy.ndarray', 'numpy.load', 'numpy._core.multiarray._reconstruct'),
    *('numpy._core.multiarray.scalar', 'numpy.core.multiarray.scalar'),
    *('numpy._core.numeric._frombuffer', 'mmengine.config.config.Config'),
    *('mmengine.config.config.Config.fromfile',),
    *('mmengine.logging.history_buffer.HistoryBuffer', 'addict.addict.Dict'),
    *('collections.deque', 'collections.OrderedDict', 'collections.Counter'),
    *('collections.defaultdict', 'torch.storage._load_from_bytes'),
    *('torch.load', 'torch._utils._rebuild_tensor_v2'),
    *('torch._utils._rebuild_tensor_v3', 'torch._utils._rebuild_parameter'),
    *('torch.FloatStorage', 'torch.LongStorage'),
    *('torch.storage.UntypedStorage', 'torch.Size', 'torch.device'),
    *('_codecs.encode', 'argparse.Namespace', 'datetime.datetime'),
    *('datetime.date', 'builtins.bytearray', 'pickle.loads'),
    *('mmengine.fileio.io.load', 'torch.hub.load'),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 63, 64, 127, 255, 256, 1 << 16, 1 << 30),
    *((1 << 31) - 1, -(1 << 31)),
)
TEXTS = (
    *('O', 'O8', 'V8', 'V0', 'U1', 'U0', 'S4', 'M8', 'f4', 'f8', 'i8', 'b1'),
    *('|', '<', '>', '=', 'latin1', 'storage', '0', 'cpu', 'cuda:7', 'meta'),
    *('i4,O', '(1000000000,)f8', 'a' * 300, '__class__', 'statistics_methods'),
)
CODES = [code.code.encode('latin1') for code in pickletools.opcodes]


def contents() -> list[dict]:
    """Content of the checkpoints that are mutated, one kind of value each."""
    buffer = HistoryBuffer([1.0, 2.0], [1, 3])
    weights = torch.arange(6.0).reshape(2, 3)
    ordered = OrderedDict(
        a=weights, b=weights[0], c=torch.nn.Parameter(weights)
    )
    ordered._metadata = OrderedDict({'': {'version': 1}})
    arrays = [
        np.arange(3.0),
        np.array(['a', 'bc']),
        np.array([1, 'a', None], dtype=object),
        np.zeros(2, dtype=[('x', 'f4'), ('y', 'i8')]),
        np.array([True, False]),
    ]
    scalars = [np.float64(0.5), np.str_('a'), np.datetime64('2020-01-01')]
    plain = [
        *(1, 2.5, 'ä', None, True, b'c', 1 << 70, 1j, slice(1), range(3)),
        *({1, 2}, frozenset('ab'), bytearray(b'a'), Path('/a/b')),
        *(Counter('ab'), deque([1], 3), defaultdict(dict, {0: 1})),
        *(datetime.datetime(2024, 2, 3), datetime.timedelta(3)),
        argparse.Namespace(a=1),
    ]
    config = [ConfigDict(a=[dict(b=1)]), Config(dict(a=dict(b=[1])))]
    meta = dict(iter=3, epoch=1, run_id='a', dataset_meta=dict(classes=('a',)))
    tensors = dict(
        state_dict=ordered,
        flags=torch.tensor([True, False]),
        expanded=torch.ones(1).expand(3),
        half=torch.ones(2, dtype=torch.float16),
    )
    numpy = dict(arrays=arrays, scalars=scalars)
    engine = dict(message_hub=dict(log_scalars=dict(loss=buffer)), cfg=config)
    parts = dict(plain=plain), numpy, engine, tensors
    return [dict(meta=meta, optimizer={}, **part) for part in parts]


def _argument(
    code: pickletools.OpcodeInfo, random: np.random.Generator
) -> bytes:
    """An instruction with an argument that is hostile, and well-formed."""
    number = NUMBERS[random.integers(len(NUMBERS))]
    text = TEXTS[random.integers(len(TEXTS))].encode()
    name = NAMES[random.integers(len(NAMES))].rpartition('.')
    kinds = {
        'BININT': lambda: struct.pack('<i', number),
        'BININT1': lambda: struct.pack('<B', number % 256),
        'BININT2': lambda: struct.pack('<H', number % 65536),
        'LONG_BINPUT': lambda: struct.pack('<I', number % (1 << 32)),
        'LONG_BINGET': lambda: struct.pack('<I', number % 40),
        'BINPUT': lambda: struct.pack('<B', number % 256),
        'BINGET': lambda: struct.pack('<B', random.integers(40)),
        'LONG1': lambda: b'\x08' + struct.pack('<q', number << 31),
        'BINUNICODE': lambda: struct.pack('<I', len(text)) + text,
        'SHORT_BINUNICODE': lambda: struct.pack('<B', len(text) % 256) + text,
        'BINBYTES8': lambda: struct.pack('<Q', 1 << 40) + text,
        'BYTEARRAY8': lambda: struct.pack('<Q', 1 << 34) + text,
        'FRAME': lambda: struct.pack('<Q', 1 << 62),
        'GLOBAL': lambda: f'{name[0]}\n{name[2]}\n'.encode(),
        'INST': lambda: f'{name[0]}\n{name[2]}\n'.encode(),
    }
    made = kinds.get(code.name)
    return code.code.encode('latin1') + (b'' if made is None else made())


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """Change, repeat, drop or move one to four instructions, or bytes."""
    parsed = list(pickletools.genops(data))
    ends = [position for *_, position in parsed[1:]] + [len(data)]
    codes = [code for code, *_ in parsed]
    parts = [
        data[position:end]
        for (*_, position), end in zip(parsed, ends, strict=True)
    ]
    for _ in range(random.integers(1, 5)):
        at, other = random.integers(1, len(parts), 2)
        kind = random.integers(8)
        if kind < 3:
            # The same instruction, so that the pickle stays well-formed.
            name = codes[at % len(codes)].name
            known = [i for i, code in enumerate(codes) if code.name == name]
            at = known[random.integers(len(known))]
            parts[at] = _argument(codes[at], random)
        elif kind == 3:
            code = pickletools.opcodes[random.integers(len(CODES))]
            parts.insert(at, _argument(code, random))
        elif kind == 4:
            parts.insert(at, parts[other])
        elif kind == 5:
            parts[at] = b''
        elif kind == 6:
            parts[at], parts[other] = parts[other], parts[at]
        elif parts[at]:
            changed = bytearray(parts[at])
            changed[random.integers(len(changed))] ^= 1 << random.integers(8)
            parts[at] = bytes(changed)
        codes = codes[: len(parts)]
    return b''.join(parts)


def write_mutant(seed: int, folder: Path) -> tuple[Path, Path]:
    """Write a checkpoint, and a bare pickle, of one seed."""
    random = np.random.default_rng(seed)
    content = contents()[random.integers(4)]
    stream = io.BytesIO()
    is_old = random.random() < 0.2
    torch.save(content, stream, _use_new_zipfile_serialization=not is_old)
    path = folder / 'a.pth'
    if is_old:
        stream.seek(0)
        for _ in range(3):
            list(pickletools.genops(stream))
        start = stream.tell()
        list(pickletools.genops(stream))
        end, data = stream.tell(), stream.getvalue()
        changed = mutate(data[start:end], random)
        path.write_bytes(data[:start] + changed + data[end:])
    else:
        with (
            zipfile.ZipFile(stream) as source,
            zipfile.ZipFile(path, 'w') as target,
        ):
            for name in source.namelist():
                data = source.read(name)
                if name.endswith('data.pkl'):
                    data = mutate(data, random)
                target.writestr(name, data)
    bare = folder / 'a.pkl'
    content = {**content, 'state_dict': {}}
    for name in ('flags', 'expanded', 'half'):
        content.pop(name, None)
    data = pickle.dumps(content, int(random.integers(6)))
    bare.write_bytes(mutate(data, random))
    return path, bare


class Watch:
    """Files opened, processes started and classes found by readers."""

    ALLOWED = (
        'os.listdir',
        'os.scandir',
        'object.__getattr__',
        'sys._getframe',
    )
    WATCHED = (
        *('open', 'exec', 'compile', 'pickle.find_class'),
        *('os.', 'subprocess.', 'socket.', 'shutil.', 'ctypes.', 'mmap.'),
    )

    def __init__(self) -> None:
        self.paths: tuple[str, ...] | None = None
        self.seen: list[str] = []
        # Python loads it for names in a ZIP file.
        codecs.lookup('cp437')
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple) -> None:
        if self.paths is None or not event.startswith(self.WATCHED):
            return
        if event in self.ALLOWED:
            return
        if event == 'open' and str(args[0]) in self.paths:
            return
        self.seen.append(f'{event}{args!r}'[:200])


class TooLong(BaseException):
    pass


def _stop(signum: int, frame: object) -> None:
    raise TooLong


def try_file(path: Path, read, watch: Watch) -> tuple[str, str | None]:
    """Outcome of one reader: 'read' or 'refused', and what went wrong."""
    watch.seen.clear()
    watch.paths = str(path), os.fspath(path)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    error = None
    try:
        read(path)
    except BaseException as caught:
        error = caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        watch.paths = None
    if watch.seen:
        return 'wrong', f'the reader did {watch.seen[:3]}'
    if error is None:
        return 'read', None
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    kinds = UntrustedTypeError, DamagedFileError, ValueError
    is_ours = type(error).__module__.startswith('mmext.')
    if (
        type(error) in kinds or (is_ours and isinstance(error, ValueError))
    ) and (f'mmext{os.sep}' in last):
        return 'refused', None
    lines = traceback.format_exception(error)
    return 'wrong', ''.join(lines)[-1500:]


def main() -> None:
    first, count, folder = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
    )
    signal.signal(signal.SIGALRM, _stop)
    readers = {
        'load_torch': lambda path: load_torch(path, trust=False),
        'summarize_checkpoint': summarize_checkpoint,
        'from_pretrained': from_pretrained,
    }
    watch = Watch()
    outcomes: Counter = Counter()
    wrong = []
    # Lazy imports of the readers happen before the files are read.
    torch.save(contents()[0], folder / 'warm.pth')
    for read in readers.values():
        try_file(folder / 'warm.pth', read, watch)
    in_use = int(Path('/proc/self/statm').read_text().split()[0])
    limit = in_use * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with careful_readers():
        for seed in range(first, first + count):
            path, bare = write_mutant(seed, folder)
            tried = [(name, path, read) for name, read in readers.items()]
            for name, file, read in (
                *tried,
                ('mmengine.load', bare, mmengine.load),
            ):
                print(seed, name, file=sys.stderr)
                outcome, reason = try_file(file, read, watch)
                outcomes[f'{name}: {outcome}'] += 1
                if reason:
                    wrong.append(f'seed {seed}, {name}: {reason}')
    print(
        json.dumps(dict(outcomes=outcomes, wrong=wrong[:20], count=len(wrong)))
    )


if __name__ == '__main__':
    main()
