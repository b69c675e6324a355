"""Types that checkpoints may hold, and those that are refused."""

import argparse
import collections
import datetime
import io
import os
import pathlib
import pickle
import zipfile
from fractions import Fraction

import addict
import mmengine
import numpy as np
import pytest
import torch
from helpers.hostile import Hostile
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import load_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader

from mmext.utils.archive import DamagedFileError
from mmext.utils.safe_load import (
    UntrustedTypeError,
    careful_readers,
    foreign_names,
    is_trusted,
    load_torch,
)

ORDERED = collections.OrderedDict(a=torch.ones(1))
ORDERED._metadata = collections.OrderedDict({'': dict(version=1)})
SAME = dict(
    plain=dict(a=[1, 2.5, 'ä', None, True, b'c', (1, (2,)), 1 << 70]),
    ordered=ORDERED,
    counter=collections.Counter('aab'),
    configdict=ConfigDict(a=[dict(b=(1, 2))]),
    namespace=argparse.Namespace(lr=0.1, names=['a']),
    path=pathlib.Path('/a/b'),
    date=datetime.datetime(2024, 2, 3),
    delta=datetime.timedelta(seconds=3),
    sets=[{1, 2}, frozenset('ab')],
    slices=[slice(1, None), range(3), 1j, bytearray(b'a')],
    scalars=[
        np.float64(0.5),
        np.float32(2),
        np.float16(3),
        np.int64(-5),
        np.uint8(7),
        np.bool_(True),
        np.str_('a'),
        np.datetime64('2020-01-01'),
    ],
    torch=[torch.device('cpu'), torch.float16, torch.Size([1, 2])],
)
ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.arange(3, dtype=np.uint32),
    np.array(['a', 'bc']),
    np.array([True]),
    np.array([1, 'a', None], dtype=object),
    np.zeros(2, dtype=[('x', 'f4'), ('y', 'i8')]),
    np.array([], dtype=np.float32),
]


@pytest.fixture(params=[True, False], ids=['zip', 'old'])
def save(request, tmp_path):
    def function(content, name='a.pth'):
        torch.save(
            content,
            tmp_path / name,
            _use_new_zipfile_serialization=request.param,
        )
        return tmp_path / name

    return function


def test_what_mmengine_saves(save):
    buffer = HistoryBuffer([1.0, 2.0], [1, 3])
    buffer.mean()
    path = save(
        dict(
            SAME,
            arrays=ARRAYS,
            buffer=buffer,
            config=Config(dict(a=dict(b=[1]))),
        )
    )
    assert foreign_names(path) == []
    loaded = load_torch(path)
    for name, value in SAME.items():
        assert loaded[name] == value
        assert type(loaded[name]) is type(value)
    assert loaded['ordered']._metadata == ORDERED._metadata
    for array, expected in zip(loaded['arrays'], ARRAYS, strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
    assert loaded['buffer'].mean() == buffer.mean()
    assert loaded['buffer'].statistics('max') == 2
    assert loaded['config'].a.b == [1]


SCHEDULES = dict(
    CosineAnnealingLR=dict(T_max=5),
    CosineRestartLR=dict(periods=[1], restart_weights=[1], eta_min=0),
    ExponentialLR=dict(gamma=0.1),
    MultiStepLR=dict(milestones=[1]),
    OneCycleLR=dict(eta_max=0.1, total_steps=10),
    ReduceOnPlateauLR=dict(monitor='loss'),
    StepLR=dict(step_size=2),
)


def test_state_of_every_schedule(tmp_path):
    kinds = {
        name for name in PARAM_SCHEDULERS.module_dict if name.endswith('LR')
    }
    assert {'LinearLR', 'PolyLR', *SCHEDULES} <= kinds
    for name in kinds:
        weight = torch.nn.Parameter(torch.ones(1))
        schedule = PARAM_SCHEDULERS.build(
            dict(type=name, **SCHEDULES.get(name, {})),
            default_args=dict(optimizer=torch.optim.SGD([weight], lr=0.1)),
        )
        state = schedule.state_dict()
        torch.save(state, tmp_path / 'a.pth')
        assert load_torch(tmp_path / 'a.pth') == state


def test_containers_become_plain_ones(save):
    loaded = load_torch(
        save(
            dict(
                addict=addict.Dict(a=dict(b=[1])),
                default=collections.defaultdict(dict, {0: dict(step=1)}),
                deque=collections.deque([1, 2], maxlen=3),
            )
        )
    )
    assert loaded == dict(
        addict=dict(a=dict(b=[1])), default={0: dict(step=1)}, deque=[1, 2]
    )


@pytest.mark.parametrize('module', [b'numpy.core', b'numpy._core'])
def test_of_numpy_1_and_of_numpy_2(tmp_path, module):
    path, other = tmp_path / 'a.pth', tmp_path / 'b.pth'
    torch.save(dict(a=np.float64(0.5), b=np.arange(3)), path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, 'w') as to:
        for name in source.namelist():
            content = source.read(name)
            for given in (b'numpy._core', b'numpy.core'):
                content = content.replace(b'c' + given, b'c' + module)
            to.writestr(name, content)
    with zipfile.ZipFile(other) as archive:
        assert b'c%s.multiarray\nscalar' % module in archive.read('a/data.pkl')
    loaded = load_torch(other)
    assert loaded['a'] == 0.5
    assert loaded['b'].tolist() == [0, 1, 2]


def test_hostile_file_is_not_run(save, tmp_path):
    trap = tmp_path / 'trap'
    path = save(dict(state_dict={}, meta=Hostile(trap)))
    with pytest.raises(UntrustedTypeError) as info:
        load_torch(path)
    assert not trap.exists()
    for words in ('posix.mkdir', str(path), '--trust-checkpoint'):
        assert words in str(info.value)
    with careful_readers():
        assert not is_trusted()
        with pytest.raises(UntrustedTypeError):
            load_torch(path)
    load_torch(path, trust=True)
    assert trap.is_dir()


@pytest.mark.parametrize('protocol', [0, 1, 2, 3, 4, 5])
def test_bare_pickle_is_not_run(tmp_path, protocol):
    trap, path = tmp_path / 'trap', tmp_path / 'a.pth'
    path.write_bytes(pickle.dumps(dict(a=Hostile(trap)), protocol))
    with pytest.raises(UntrustedTypeError, match='mkdir'):
        load_torch(path)
    torch.save(dict(a=Hostile(trap)), path, pickle_protocol=max(protocol, 1))
    with pytest.raises(UntrustedTypeError, match='mkdir'):
        load_torch(path)
    assert not trap.exists()


class Call:
    """A call of an allowed function, with arguments of its own."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    'call',
    [
        Call(getattr, HistoryBuffer, '__init__'),
        Call(getattr, np.ndarray, 'tofile'),
        Call(np.array(0).__reduce__()[0], np.matrix, (0,), b'b'),
        Call(np.float64(0).__reduce__()[0], np.dtype('O'), b'a'),
    ],
)
def test_allowed_names_do_nothing_else(tmp_path, call):
    torch.save(dict(a=call), tmp_path / 'a.pth')
    with pytest.raises(UntrustedTypeError, match=r'without running|matrix'):
        load_torch(tmp_path / 'a.pth')


def test_every_protocol(tmp_path):
    path = tmp_path / 'a.pth'
    content = dict(a=torch.ones(2), b=np.arange(3), c=[1, 'b', b'c', {2}])
    for protocol in range(2, 6):
        torch.save(content, path, pickle_protocol=protocol)
        loaded = load_torch(path)
        assert loaded['a'].tolist() == [1, 1]
        assert loaded['b'].tolist() == [0, 1, 2]
        assert loaded['c'] == content['c']


def test_sparse_tensors_need_trust(tmp_path):
    path = tmp_path / 'a.pth'
    torch.save(dict(a=torch.eye(2).to_sparse()), path)
    with pytest.raises(UntrustedTypeError, match='_rebuild_sparse_tensor'):
        load_torch(path)
    assert load_torch(path, trust=True)['a'].is_sparse


def test_many_names_are_cut_short(tmp_path):
    kinds = [bytes.fromhex, Fraction, os.mkdir, os.rmdir, eval, exec, print]
    torch.save(kinds, tmp_path / 'a.pth')
    with pytest.raises(UntrustedTypeError, match=r'\.\.\., which is not'):
        load_torch(tmp_path / 'a.pth')


# MMEngine's readers ---------------------------------------------------------


def test_checkpoints_through_mmengine(tmp_path):
    trap, path = tmp_path / 'trap', tmp_path / 'a.pth'
    torch.save(dict(weight=torch.ones(1, 1), bias=Hostile(trap)), path)
    before = CheckpointLoader.__dict__['load_checkpoint'], torch.load
    with careful_readers():
        with pytest.raises(UntrustedTypeError, match=r'posix\.mkdir'):
            load_checkpoint(torch.nn.Linear(1, 1), str(path))
        with careful_readers(), pytest.raises(UntrustedTypeError):
            CheckpointLoader.load_checkpoint(str(path))
    assert not trap.exists()
    assert before == (
        CheckpointLoader.__dict__['load_checkpoint'],
        torch.load,
    )
    with careful_readers(trust=True):
        CheckpointLoader.load_checkpoint(str(path))
    assert trap.is_dir()


def test_addresses_through_mmengine(tmp_path, monkeypatch):
    """A file that was downloaded before; nothing is asked for."""
    trap = tmp_path / 'trap'
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    folder = tmp_path / 'hub/checkpoints'
    folder.mkdir(parents=True)
    torch.save(dict(a=Hostile(trap)), folder / 'a.pth')
    with (
        careful_readers(),
        pytest.raises(UntrustedTypeError, match=r'https://host/a.pth.* holds'),
    ):
        CheckpointLoader.load_checkpoint('https://host/a.pth')
    assert not trap.exists()


@pytest.mark.parametrize('where', ['file', 'bytes'])
def test_damage_through_mmengine(tmp_path, where):
    """The weights of an init_cfg, from a disk or from elsewhere."""
    path = tmp_path / 'a.pth'
    torch.save(dict(a=torch.ones(100)), path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.ones(9).numpy().tobytes())] ^= 1
    path.write_bytes(data)
    if where == 'bytes':
        CheckpointLoader.register_scheme(
            'damaged://',
            lambda filename, map_location: torch.load(io.BytesIO(data)),
            force=True,
        )
        path = 'damaged://a'
    with (
        careful_readers(),
        pytest.raises(DamagedFileError, match=r"a.*' is damaged: record"),
    ):
        CheckpointLoader.load_checkpoint(str(path))


@pytest.mark.parametrize('protocol', [2, 5])
def test_pickles_of_plain_data(tmp_path, protocol):
    path = tmp_path / 'a.pkl'
    content = dict(
        a=[1, 'b', {2}], b=np.float32(3), c=collections.OrderedDict()
    )
    path.write_bytes(pickle.dumps(dict(content, d=np.arange(3)), protocol))
    with careful_readers():
        loaded = mmengine.load(path)
    assert loaded.pop('d').tolist() == [0, 1, 2]
    assert loaded == content


@pytest.mark.parametrize('suffix', ['pkl', 'pickle', 'yaml', 'yml'])
def test_hostile_data(tmp_path, suffix):
    trap, path = tmp_path / 'trap', tmp_path / f'a.{suffix}'
    if suffix.startswith('p'):
        path.write_bytes(pickle.dumps(Hostile(trap)))
    else:
        path.write_text(f'!!python/object/apply:os.mkdir ["{trap}"]')
    with careful_readers():
        with pytest.raises(UntrustedTypeError) as info:
            mmengine.load(path)
        for words in ('mkdir', str(path), '--trust-checkpoint'):
            assert words in str(info.value)
        assert not trap.exists()
        with careful_readers(trust=True):
            mmengine.load(path)
    assert trap.is_dir()


def test_yaml_that_mmengine_writes(tmp_path):
    content = dict(a=[1, 2.5, 'b'], b=(1, (2,)), c=None)
    mmengine.dump(content, tmp_path / 'a.yaml')
    with careful_readers():
        assert mmengine.load(tmp_path / 'a.yaml') == content
