"""Outputs of the tools: tried first, streams written as such, files whole."""

import json
import os
import pty
import signal
import stat
import sys
import threading
import time

import pytest
from helpers.label_data import write_pairs
from helpers.toy_ranks import load_tool
from PIL import Image

import mmext.checks.labels.run  # noqa: F401  (before processes are forked)
from mmext.utils.cli import run_tool

pytestmark = pytest.mark.xdist_group('processes')


@pytest.fixture
def data(tmp_path):
    return write_pairs(tmp_path / 'data')


def argv(data, *more):
    given = [
        '--masks', data / 'masks', '--num-classes', 3,
        '--store', data / 'facts.sqlite', '--workers', 1, *more,
    ]  # fmt: skip
    return [str(item) for item in given]


class Forked:
    """A tool as a script, its descriptors as given, without the start-up."""

    def __init__(self, tool, arguments, stdout, stderr=None, keep=()):
        main = load_tool(tool).main
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(stdout, 1)
            os.dup2(write if stderr is None else stderr, 2)
            for number in {stdout, read, write} - {1, 2, *keep}:
                os.close(number)
            sys.stdout = os.fdopen(1, 'w', closefd=False)
            sys.stderr = os.fdopen(2, 'w', closefd=False)
            sys.argv = [f'{tool}.py', *map(str, arguments)]
            code = 70
            try:
                run_tool(main)
            except SystemExit as error:
                code = error.code
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(write)
        self._errors = os.fdopen(read)

    def wait(self, seconds=60):
        """Exit code, and what was written to standard error."""
        killer = threading.Timer(seconds, os.kill, (self.pid, signal.SIGKILL))
        killer.start()
        errors = self._errors.read()
        status = os.waitpid(self.pid, 0)[1]
        killer.cancel()
        self._errors.close()
        return os.waitstatus_to_exitcode(status), errors


def run(tool, arguments, out):
    """Run a tool with standard output in a file."""
    with open(out, 'ab') as file:
        return Forked(tool, arguments, file.fileno()).wait()


class TestStreams:
    @pytest.mark.parametrize(
        'kind',
        [
            'file',
            pytest.param('pipe', marks=pytest.mark.slow),
            pytest.param('terminal', marks=pytest.mark.slow),
        ],
    )
    def test_standard_output_has_the_report_only(self, kind, data, tmp_path):
        if kind == 'file':
            # What stands there already stays: the place is that of the
            # descriptor.
            (tmp_path / 'out').write_text('first\n')
            code, errors = run(
                'validate_labels', argv(data, '--json', '-'), tmp_path / 'out'
            )
            text = (tmp_path / 'out').read_text()
            assert text.startswith('first\n')
            text = text.removeprefix('first\n')
        else:
            read, write = os.pipe() if kind == 'pipe' else pty.openpty()
            forked = Forked(
                'validate_labels', argv(data, '--json', '-'), write
            )
            os.close(write)
            text = _read_all(read)
            code, errors = forked.wait()
        assert code == 0, errors
        assert json.loads(text)['splits']
        assert '0 errors' in errors

    def test_another_name_of_standard_output(self, data, tmp_path):
        """The file that it leads to would be replaced."""
        code, errors = run(
            'validate_labels',
            argv(data, '--json', '/dev/stdout'),
            tmp_path / 'out',
        )
        assert code == 2
        assert 'this is standard output, which is -' in errors

    @pytest.mark.parametrize('form', ['--json', '--sarif', '--html'])
    def test_null_stays_a_device(self, form, data, tmp_path):
        # The node is the test's own, where it may make one.
        path = tmp_path / 'null'
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            os.close(os.open(path, os.O_WRONLY))
        except OSError:
            path.unlink(missing_ok=True)
            path.symlink_to('/dev/null')
        before = os.stat(path).st_ino
        code, errors = run(
            'validate_labels', argv(data, form, path), tmp_path / 'out'
        )
        assert code == 0, errors
        assert stat.S_ISCHR(os.stat(path).st_mode)
        assert os.stat(path).st_ino == before
        assert '0 errors' in (tmp_path / 'out').read_text()

    def test_a_full_device_is_an_error(self, data, tmp_path):
        code, errors = run(
            'validate_labels',
            argv(data, '--json', '/dev/full'),
            tmp_path / 'out',
        )
        assert code == 2
        assert 'No space left' in errors
        assert 'Traceback' not in errors

    @pytest.mark.parametrize('more', [(), ('--json', '-')])
    def test_a_reader_that_goes_changes_no_exit_code(
        self, more, data, tmp_path
    ):
        report = tmp_path / 'report.html'
        for expected in (0, 1):
            if expected:
                path = data / 'masks' / '3.png'
                Image.open(path).convert('RGB').save(path)
            read, write = os.pipe()
            os.close(read)
            arguments = argv(data, '--html', report, *more)
            forked = Forked('validate_labels', arguments, write)
            os.close(write)
            code, errors = forked.wait()
            assert code == expected, errors
            assert 'Traceback' not in errors
            assert 'BrokenPipe' not in errors
            assert report.is_file()
            report.unlink()


def _read_all(descriptor):
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # a terminal that nobody writes to any more
            chunk = b''
        if not chunk:
            os.close(descriptor)
            return b''.join(chunks).decode()
        chunks.append(chunk)


class TestTried:
    def test_one_error_names_all(self, data, tmp_path):
        (tmp_path / 'file').write_text('')
        (tmp_path / 'folder').mkdir()
        os.mkfifo(tmp_path / 'fifo')
        before = sorted(os.listdir(tmp_path))
        arguments = argv(
            data,
            '--json', tmp_path / 'file' / 'a.json',
            '--sarif', tmp_path / 'folder',
            '--html', '/proc/no/such.html',
            '--store', tmp_path / 'fifo',
            '--fix', tmp_path / 'file' / 'fixed',
            '--csv', tmp_path / 'new' / 'b.csv',
        )  # fmt: skip
        start = time.monotonic()
        code, errors = run('validate_labels', arguments, tmp_path / 'out')
        assert time.monotonic() - start < 30
        assert code == 2
        for name in ('json', 'sarif', 'html', 'store', 'fix'):
            assert f' --{name} /' in errors, errors
        # What could be written is not named, and nothing of it is left.
        assert '--csv' not in errors
        assert (tmp_path / 'out').read_text() == ''
        assert sorted({*os.listdir(tmp_path)} - {'out'}) == before
        assert not (data / 'facts.sqlite').exists()

    @pytest.mark.parametrize(
        ('first', 'second', 'message'),
        [
            ('--json=same.json', '--sarif=./same.json', '--json, too'),
            ('--json=-', '--sarif=-', '--json, too'),
            ('--json=link.json', '--sarif=./same.json', '--json, too'),
            ('--json=coco.json', '--coco=coco.json', 'the input --coco, too'),
            ('--json=new/a', '--fix=new', 'folder of --fix, which must be'),
        ],
    )
    def test_two_to_one_file(
        self, first, second, message, data, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'link.json').symlink_to('same.json')
        (tmp_path / 'coco.json').write_text('{"images": []}')
        arguments = argv(data, first, second)
        if '--coco' in second:
            arguments = arguments[4:]  # without --masks
        code, errors = run('validate_labels', arguments, tmp_path / 'out')
        assert code == 2
        assert message in errors
        assert (tmp_path / 'coco.json').read_text() == '{"images": []}'

    @pytest.mark.skipif(os.geteuid() == 0, reason='root may write anything')
    def test_permissions(self, data, tmp_path):
        folder, file = tmp_path / 'folder', tmp_path / 'file'
        folder.mkdir(mode=0o500)
        file.touch(mode=0o400)
        arguments = argv(data, '--json', file, '--html', folder / 'a.html')
        code, errors = run('validate_labels', arguments, tmp_path / 'out')
        assert code == 2
        assert f'--json {file}: there is no permission' in errors
        assert f'--html {folder}/a.html: no file can be made' in errors

    @pytest.mark.parametrize(
        ('tool', 'arguments'),
        [
            ('preflight', ('{config}', '--json', '{bad}')),
            ('preflight', ('{config}', '--html', '{bad}')),
            ('preflight', ('{config}', '--fix', '{bad}.py')),
            ('preflight', ('{config}', '--store', '{bad}')),
            ('train', ('{config}', '--work-dir', '{bad}')),
            ('test', ('{config}', '{pth}', '--work-dir', '{bad}')),
            ('test', ('{config}', '{pth}', '--out', '{bad}.pkl')),
            ('infer', ('a.jpg', '--checkpoint', '{pth}', '--out', '{bad}')),
            (
                'infer',
                (
                    'a.jpg', '--checkpoint', '{pth}', '--out', 'o',
                    '--json', '{bad}',
                ),
            ),
            ('plot_log', ('.', '--out', '{bad}.png')),
            (
                'make_class_embeddings',
                (
                    '--classes', 'a', '--model', 'm',
                    '--out', '{bad}.safetensors',
                ),
            ),
            ('make_scenes_dataset', ('--out', '{bad}')),
            ('make_shapes_dataset', ('--out', '{bad}')),
            ('convert_codetr', ('checkpoint', '{pth}', '{bad}')),
            ('benchmarks/validate_labels', ('--json', '{bad}')),
            ('benchmarks/cuda_step', ('{config}', '--json', '{bad}')),
            ('benchmarks/preflight_sweep', (
                '--configs', '{config}', '--table', '{bad}',
            )),
        ],
    )  # fmt: skip
    def test_every_tool(self, tool, arguments, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'file').write_text('')
        (tmp_path / 'config.py').write_text(
            "model = dict(type='A')\ntest_dataloader = dict()\n"
        )
        (tmp_path / 'a.pth').write_bytes(b'')
        names = {
            'bad': tmp_path / 'file' / 'x',
            'config': tmp_path / 'config.py',
            'pth': tmp_path / 'a.pth',
        }
        files = sorted(os.listdir(tmp_path))
        code, errors = run(
            tool,
            [item.format(**names) for item in arguments],
            tmp_path / 'out',
        )
        assert code == 2
        assert str(names['bad']) in errors
        assert 'is not a folder' in errors
        assert 'Traceback' not in errors
        assert sorted({*os.listdir(tmp_path)} - {'out'}) == files


class TestFiles:
    def test_a_link_stays_and_permissions_too(self, data, tmp_path):
        (tmp_path / 'other').mkdir()
        target = tmp_path / 'other' / 'report.json'
        target.write_text('old')
        target.chmod(0o640)
        link = tmp_path / 'link.json'
        link.symlink_to('other/report.json')
        dangling = tmp_path / 'dangling.sarif'
        dangling.symlink_to('other/new.sarif')
        hard = tmp_path / 'hard.html'
        hard.write_text('old')
        os.link(hard, tmp_path / 'backup.html')
        code, errors = run(
            'validate_labels',
            argv(data, '--json', link, '--sarif', dangling, '--html', hard),
            tmp_path / 'out',
        )
        assert code == 0, errors
        assert link.is_symlink()
        assert dangling.is_symlink()
        assert json.loads(target.read_text())['splits']
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        assert (tmp_path / 'other' / 'new.sarif').is_file()
        assert (tmp_path / 'backup.html').read_text() == 'old'
        assert sorted(os.listdir(tmp_path / 'other')) == [
            'new.sarif',
            'report.json',
        ]
