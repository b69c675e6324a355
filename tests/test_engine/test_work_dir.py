"""Trainings on file systems without locks or with passing errors, and in work
dirs whose files are not what they should be."""

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.fileio import LocalBackend

import mmext.engine.checkpoint.files
import mmext.utils.files

pytestmark = pytest.mark.xdist_group('processes')

LIMIT_S = 90


def train(folder, *args, world_size=1, seconds=LIMIT_S, **changes):
    """Exit codes and output of a training in the folder ``w``."""
    path = folder / 'cfg.py'
    if not path.exists():
        toy.write(path, toy.config(**changes))
    ranks = start_ranks(
        [path, '--work-dir', folder / 'w', '--device', 'cpu', *args],
        world_size,
        folder / 'out',
    )
    codes = ranks.wait(seconds)
    return codes, ''.join(map(ranks.output, range(world_size)))


def failing(function, number, times=1, after=False, suffix=''):
    """The function with an error of the system in its first calls.

    With ``after``, it has done its work then, and only the answer is lost.
    Calls whose last argument does not end with ``suffix`` are left alone.
    """
    left = [times]

    def fail(*args, **kwargs):
        if not left[0] or not str(args[-1]).endswith(suffix):
            return function(*args, **kwargs)
        left[0] -= 1
        if after:
            function(*args, **kwargs)
        raise OSError(number, os.strerror(number), str(args[0]))

    return fail


# Locks -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ('number', 'world_size'),
    [('ENOLCK', 1), ('ENOLCK', 2), ('ENOSYS', 1), ('EOPNOTSUPP', 1)],
)
def test_a_file_system_without_locks(
    tmp_path, monkeypatch, number, world_size
):
    error = failing(fcntl.lockf, getattr(errno, number), times=-1)
    monkeypatch.setattr(fcntl, 'lockf', error)
    codes, output = train(tmp_path, world_size=world_size)
    assert codes == [0] * world_size, output
    warning = f'{tmp_path}/w cannot be locked ('
    assert output.count(warning) == 1
    name = errno.errorcode[getattr(errno, number)]
    assert f'{warning}{name}: {os.strerror(getattr(errno, number))})' in output
    assert 'a second training in it would replace the checkpoints' in output
    assert (tmp_path / 'w/epoch_3.pth').exists()
    assert not (tmp_path / 'w/training.lock').exists()


@pytest.mark.parametrize(
    ('number', 'owner'),
    [
        (errno.EAGAIN, '[]'),
        (errno.EACCES, ''),
        (errno.EAGAIN, '{"pid": 7}'),
        (errno.EACCES, '[' * 10**6),
    ],
    ids=['list', 'empty', 'part', 'deep'],
)
def test_a_lock_that_another_process_holds(
    tmp_path, monkeypatch, number, owner
):
    """Whatever is in the file."""
    (tmp_path / 'w').mkdir()
    (tmp_path / 'w/training.lock').write_text(owner)
    monkeypatch.setattr(fcntl, 'lockf', failing(fcntl.lockf, number, times=-1))
    codes, output = train(tmp_path)
    assert codes == [2]
    assert 'is in use by another training. Give this one a' in output
    assert 'Traceback' not in output
    assert (tmp_path / 'w/training.lock').read_text() == owner


# Transient errors ------------------------------------------------------------


@pytest.mark.parametrize(
    ('number', 'suffix', 'after'),
    [
        (errno.ESTALE, 'epoch_2.pth', False),
        (errno.ESTALE, 'epoch_2.pth', True),
        (errno.EINTR, 'last_checkpoint', False),
        (errno.EBUSY, 'cfg.py', False),
    ],
)
def test_a_rename_that_fails_once(
    tmp_path, monkeypatch, number, suffix, after
):
    error = failing(os.replace, number, after=after, suffix=suffix)
    monkeypatch.setattr(os, 'replace', error)
    codes, output = train(tmp_path)
    assert codes == [0], output
    names = {path.name for path in (tmp_path / 'w').iterdir()}
    assert {'epoch_1.pth', 'epoch_2.pth', 'epoch_3.pth'} < names
    assert not any('.tmp' in name for name in names)


def test_a_write_that_fails_once(tmp_path, monkeypatch):
    """All that was written is written again, before it is flushed."""
    error = failing(LocalBackend.put, errno.ESTALE, after=True)
    monkeypatch.setattr(LocalBackend, 'put', error)
    codes, output = train(tmp_path)
    assert codes == [0], output
    assert len(list((tmp_path / 'w').glob('epoch_*.pth'))) == 3


def test_a_rename_that_fails_for_good(tmp_path, monkeypatch):
    monkeypatch.setattr(mmext.utils.files, '_RETRY_DELAYS_S', (0.01, 0.01))
    error = failing(os.replace, errno.ESTALE, times=-1, suffix='epoch_2.pth')
    monkeypatch.setattr(os, 'replace', error)
    codes, output = train(tmp_path)
    assert codes == [1]
    assert (
        f'checkpoint {tmp_path}/w/epoch_2.pth could not be written '
        f'({os.strerror(errno.ESTALE)}); earlier checkpoints are untouched'
    ) in output
    assert (tmp_path / 'w/epoch_1.pth').exists()


def test_an_old_checkpoint_that_cannot_be_removed(tmp_path, monkeypatch):
    """It is no reason to end."""
    monkeypatch.setattr(mmext.utils.files, '_RETRY_DELAYS_S', (0.01,))
    error = failing(os.remove, errno.EBUSY, times=-1, suffix='epoch_1.pth')
    monkeypatch.setattr(os, 'remove', error)
    hooks = dict(
        checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1)
    )
    codes, output = train(tmp_path, default_hooks=hooks)
    assert codes == [0], output
    assert f'{tmp_path}/w/epoch_1.pth could not be removed' in output
    names = {path.name for path in (tmp_path / 'w').glob('epoch_*.pth')}
    assert names == {'epoch_1.pth', 'epoch_3.pth'}


# Files of other kinds --------------------------------------------------------


def make_socket(path):
    """A socket, whose name in the system has to be short."""
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(before)


KINDS = {
    'a folder': Path.mkdir,
    'a pipe': os.mkfifo,
    'a socket': make_socket,
    'a link to a device': lambda path: path.symlink_to(os.devnull),
}


@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        *(('last_checkpoint', kind) for kind in KINDS),
        ('training.lock', 'a folder'),
        ('training.lock', 'a pipe'),
        ('epoch_2.pth', 'a folder'),
        ('epoch_2.pth', 'a pipe'),
        ('cfg.py', 'a pipe'),
    ],
)
def test_a_file_that_cannot_be_replaced(tmp_path, name, kind):
    """The training does not begin, rather than end when it has to save."""
    path = tmp_path / 'w' / name
    path.parent.mkdir()
    KINDS[kind](path)
    args = ['--resume'] if name == 'last_checkpoint' else []
    codes, output = train(tmp_path, *args, seconds=60)
    assert codes == [2], output
    assert 'Traceback' not in output
    *_, last = output.splitlines()
    assert f'error: {path} must be a regular file' in last
    assert last.endswith('remove it, or choose another --work-dir')
    assert path.exists()
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize('target', ['training.lock', 'none', 'weights'])
def test_a_lock_that_is_a_link(tmp_path, target):
    """What it leads to would be emptied."""
    (tmp_path / 'w').mkdir()
    (tmp_path / 'w/weights').write_text('of somebody')
    (tmp_path / 'w/training.lock').symlink_to(target)
    codes, output = train(tmp_path)
    assert codes == [2]
    assert 'must be a regular file' in output
    assert 'got a symbolic link; remove it' in output
    assert (tmp_path / 'w/weights').read_text() == 'of somebody'


def test_files_that_do_not_matter(tmp_path):
    """Links that lead nowhere are replaced, and so is garbage."""
    work = tmp_path / 'w'
    codes, output = train(tmp_path)
    assert codes == [0], output
    for name in ('last_checkpoint', 'epoch_3.pth'):
        (work / name).unlink()
        (work / name).symlink_to(name)
    (work / 'cfg.py').unlink()
    (work / 'cfg.py').symlink_to('without_suffix')
    (work / 'best_mean_epoch_1.pth').symlink_to('nothing.pth')
    (work / 'best_mean_epoch_2.pth').symlink_to('best_mean_epoch_2.pth')
    (work / '.epoch_9.1.tmp.pth').mkdir()
    os.mkfifo(work / '.epoch_8.1.tmp.pth')
    os.mkfifo(work / 'other.pth')
    (work / 'training.lock').write_bytes(b'\xff' * 100)
    codes, output = train(tmp_path, '--resume')
    assert codes == [0], output
    assert 'last_checkpoint is not a file' in output
    assert f'Resuming from {work}/epoch_2.pth' in output
    assert (work / 'last_checkpoint').read_text() == f'{work}/epoch_3.pth'
    assert (work / 'epoch_3.pth').is_file()
    assert (work / 'without_suffix').is_file()
    assert not (work / '.epoch_8.1.tmp.pth').exists()
    assert f'share.py {work}/epoch_3.pth' in output


@pytest.mark.parametrize(
    ('content', 'problem'),
    [
        (b'\xff\x00\x80' * 20, 'does not hold a path'),
        (b'a/' * 5_000_000, 'does not hold a path'),
        (b'\x1b[2Jepoch_1.pth', 'does not hold a path'),
        (b'pipe', 'names pipe, which is not a file'),
    ],
    ids=['garbage', 'huge', 'escape', 'pipe'],
)
def test_a_pointer_that_leads_nowhere(tmp_path, content, problem):
    work = tmp_path / 'w'
    codes, output = train(tmp_path)
    assert codes == [0], output
    os.mkfifo(work / 'pipe')
    (work / 'last_checkpoint').write_bytes(content)
    options = ('--cfg-options', 'train_cfg.max_epochs=4')
    codes, output = train(tmp_path, '--resume', *options, seconds=60)
    assert codes == [0], output
    assert f'last_checkpoint {problem}' in output
    assert f'Resuming from {work}/epoch_3.pth' in output
    assert (work / 'last_checkpoint').read_text() == f'{work}/epoch_4.pth'


def test_only_weights_are_no_checkpoint_to_resume_from(tmp_path):
    """Nor is one whose position is no number: others have such files, too."""
    work = tmp_path / 'w'
    work.mkdir()
    torch.save(toy.WEIGHTS, work / 'weights.pth')
    torch.save({'meta': {'iter': None}, **toy.WEIGHTS}, work / 'none.pth')
    codes, output = train(tmp_path, '--resume')
    assert codes == [0], output
    assert 'passed over weights.pth: ' in output
    assert 'passed over none.pth: ' in output
    assert 'starting from the beginning' in output


@pytest.mark.parametrize('name', ['epoch_2.pth', 'epoch_3.pth'])
def test_a_checkpoint_without_permission(tmp_path, monkeypatch, name):
    """The last one may be whole, and would be replaced by another one."""
    codes, output = train(tmp_path)
    assert codes == [0], output
    inner = mmext.engine.checkpoint.files.check_archive

    def check_archive(path, **kwargs):
        if Path(path).name == name:
            raise PermissionError(errno.EACCES, 'Permission denied', str(path))
        return inner(path, **kwargs)

    target = 'mmext.engine.checkpoint.files.check_archive'
    monkeypatch.setattr(target, check_archive)
    options = ('--cfg-options', 'train_cfg.max_epochs=4')
    codes, output = train(tmp_path, '--resume', *options)
    assert 'Traceback' not in output
    if name == 'epoch_2.pth':
        assert codes == [0]
        assert 'passed over epoch_2.pth: [Errno 13] Permission' in output
    else:
        assert codes == [2]
        assert 'epoch_3.pth cannot be read (Permission denied); make' in output
        assert 'starting from' not in output
