"""Checkpoints and pickles that lie, made by hand and by a fuzzer."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import mmengine
import pytest
import torch
from helpers.hostile_pickles import (
    DEEP,
    LONG_BYTES,
    LONG_TABLE,
    hostile_tensors,
    hostile_values,
    write_checkpoint,
)

from mmext.utils.archive import DamagedFileError, check_archive
from mmext.utils.safe_load import (
    UntrustedTypeError,
    careful_readers,
    load_torch,
)

VALUES = (
    *('objects_as_bytes', 'array_of_pointers', 'field_of_objects'),
    *('field_beyond', 'size_of_dtype', 'code_of_dtype', 'array_beyond'),
    *('array_negative', 'buffer_beyond', 'array_of_memory', 'no_character'),
    *('no_truth', 'opened_file', 'bytes_of_memory', 'bytearray_of_memory'),
    *('set_of_memory', 'list_of_memory', 'key_of_memory', 'doubled'),
    *('itself', 'buffer_of_others', 'keys_of_one_hash', 'hidden_method'),
)


@pytest.fixture
def opened():
    """Paths that this process opens for reading."""
    paths, active = [], [True]

    def hook(event, args):
        if active and event == 'open':
            paths.append(str(args[0]))

    sys.addaudithook(hook)
    yield paths
    active.clear()


@pytest.mark.parametrize('name', VALUES)
def test_no_value_of_a_lie(tmp_path, opened, name):
    values = hostile_values(tmp_path)
    assert set(values) == set(VALUES)
    for protocol in (2, 5):
        data = pickle.dumps(dict(meta=values[name]), protocol)
        path = write_checkpoint(tmp_path / 'a.pth', data)
        (tmp_path / 'a.pkl').write_bytes(data)
        opened.clear()
        with pytest.raises(UntrustedTypeError, match=r'a\.pth'):
            load_torch(path)
        with careful_readers(), pytest.raises(UntrustedTypeError):
            mmengine.load(tmp_path / 'a.pkl')
        assert str(tmp_path / 'secret.py') not in opened


def test_no_table_or_stack_that_a_pickle_asks_for(tmp_path):
    path = tmp_path / 'a.pth'
    with pytest.raises(UntrustedTypeError, match='100 levels'):
        load_torch(write_checkpoint(path, DEEP))
    with pytest.raises(DamagedFileError, match='cut off'):
        load_torch(write_checkpoint(path, LONG_BYTES))
    assert load_torch(write_checkpoint(path, LONG_TABLE)) == []


def test_no_tensor_beyond_its_storage(tmp_path):
    for name, data in hostile_tensors():
        path = write_checkpoint(tmp_path / 'a.pth', data)
        for options in ({}, {'mmap': True}, {'map_location': 'meta'}):
            with pytest.raises(UntrustedTypeError) as info:
                load_torch(path, **options)
            assert 'tensor' in str(info.value) or 'offset' in str(info.value)
        assert name


def test_compressed_archive_is_not_unpacked(tmp_path):
    """4 MB of zeros, compressed, can be 4 GB."""
    data = pickle.dumps(dict(meta=bytes(1 << 26)), 2)
    path = write_checkpoint(tmp_path / 'a.pth', data, compress=True)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DamagedFileError, match='compressed'):
        load_torch(path)
    with pytest.raises(DamagedFileError, match='compressed'):
        check_archive(path)


@pytest.mark.parametrize(
    'kind', ['pipe', 'device', 'folder', 'program', 'nothing']
)
def test_other_files(tmp_path, kind):
    path = tmp_path / 'a.pth'
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'device':
        path.symlink_to('/dev/zero')
    elif kind == 'folder':
        path.mkdir()
    elif kind == 'program':
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), str(path))
    else:
        path.touch()
    error = DamagedFileError if kind in ('program', 'nothing') else OSError
    with pytest.raises(error, match=r'a\.pth'):
        load_torch(path)


@pytest.mark.parametrize(
    ('first', 'count'),
    [
        (0, 150),
        pytest.param(10_000, 5000, marks=pytest.mark.slow),
        pytest.param(20_000, 5000, marks=pytest.mark.slow),
    ],
)
def test_mutated_files(tmp_path, first, count):
    """Each seed is a checkpoint for three readers, and a pickle for one."""
    helpers = Path(__file__).parents[1]
    environment = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join((str(helpers), *sys.path)),
    )
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'helpers.pickle_fuzz'),
            *(str(first), str(count), str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result['count'] == 0, result['wrong'][:3]
    assert sum(result['outcomes'].values()) == 4 * count
    # Some mutants are harmless, or the reader would refuse everything.
    for name in ('load_torch', 'mmengine.load'):
        assert result['outcomes'][f'{name}: read'] > count / 50
