"""Names of classes and files that a terminal would obey, through the tools."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.label_sets import DataSet, clean
from helpers.new_configs import BASE
from helpers.toy_ranks import load_tool, process_environ
from PIL import Image

PIDNET = 'mmext::pidnet/pidnet_s_2xb6_120k_cityscapes.py'
EVIL = 'e\x1b[2J\x07\x9b31m\u202e\u2066'
# The first is a file name that is not UTF-8, the second no file name at all.
SURROGATES = os.fsdecode(b'e\xff'), 'e\ud800'
RAW = re.compile(
    '[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e'
    '\u2060-\u206f\ufeff\ud800-\udfff]'
)
REPORTS = ('json', 'jsonl', 'csv', 'sarif', 'html')


def rename(data: DataSet, evil: str) -> None:
    """Add a text to a class name, and to the name of a file of each kind."""
    root, name = data.root, f'car{evil}'
    data.config = eval(repr(data.config).replace("'car'", repr(name)))
    if 'classes' in data.settings:
        classes = data.settings['classes']
        data.settings['classes'] = [f'{kind}{evil}' for kind in classes]
    for path in root.glob('*.json'):
        text = path.read_text().replace('"car"', json.dumps(name))
        path.write_text(
            text.replace('"1.jpg"', json.dumps(f'1{evil}.jpg'))
            if path.stem == 'train'
            else text
        )
    if (root / 'data.yaml').is_file() and RAW.search(evil)[0] < '\ud800':
        text = (root / 'data.yaml').read_text()
        text = text.replace("'car'", json.dumps(name))
        (root / 'data.yaml').write_text(text)
    for path in list(root.rglob('*')) if evil != SURROGATES[1] else ():
        if path.stem == '1' and path.parent.name == 'train':
            path.rename(path.with_stem(f'1{evil}'))


def spoil(data: DataSet, evil: str) -> None:
    """Put faults into these files, so that findings name them."""
    for path in data.root.rglob(f'1{evil}.*'):
        if path.suffix == '.txt':
            path.write_text(
                f'{evil} 1 1 1 1\n9 0.5 0.5 3 3', 'utf-8', 'ignore'
            )
        elif path.parent.parent.name == 'masks':
            values = np.array(Image.open(path))
            values[0] = 77
            Image.fromarray(values).save(path)
    for path in data.root.glob('train.json'):
        content = json.loads(path.read_text())
        for note in content.get('annotations', ()):
            if 'bbox' in note:
                note['bbox'][2] = 0
        if 'annotations' in content:
            wrong = dict(id=evil, image_id=evil, category_id=evil, bbox=[evil])
            content['annotations'].append(wrong)
        path.write_text(json.dumps(content))


def ran(tool: str, argv: list, capsys) -> str:
    """All that a tool prints in this process, whatever its exit code."""
    with suppress(SystemExit):
        load_tool(tool).main([str(item) for item in argv])
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.parametrize('evil', [EVIL, *SURROGATES])
@pytest.mark.parametrize(
    'kind',
    [
        *('semantic', 'folders', 'coco', 'coco_bare', 'openmmlab'),
        *('panoptic', 'yolo', 'yolo_bare', 'nyuv2', 'nyuv2_bare'),
    ],
)
def test_label_check(kind, evil, tmp_path, capsys):
    """No name is raw in a terminal or a report, and --fix goes on."""
    data = clean(kind, tmp_path / 'data')
    rename(data, evil)
    spoil(data, evil)
    out = tmp_path / 'out'
    more = {form: out / f'a.{form}' for form in REPORTS}
    is_repaired = kind in ('semantic', 'folders', 'coco', 'openmmlab')
    for options in ({}, dict(fix=out / 'fixed')) if is_repaired else ({},):
        argv = data.argv(verbose=True, all=True, **more, **options)
        text = ran('validate_labels', argv, capsys)
        assert not RAW.search(text), ascii(text)
        for path in more.values():
            text = path.read_text('utf-8')
            assert path.suffix == '.csv' or not RAW.search(text)
            path.unlink()
    if is_repaired:
        assert (out / 'fixed/fixes.json').is_file()


@pytest.mark.parametrize('evil', [EVIL, *SURROGATES])
@pytest.mark.parametrize('kind', ['semantic', 'coco', 'yolo'])
def test_new_config(kind, evil, tmp_path, capsys):
    data = clean(kind, tmp_path / f'data{evil}'.replace('\ud800', ''))
    rename(data, evil)
    spoil(data, evil)
    base = PIDNET if kind == 'semantic' else BASE
    argv = [data.root, '--base', base, '--out', tmp_path / 'my.py']
    argv += ['--fix', '--no-check']
    if kind != 'coco':
        argv += ['--classes', 'road', f'car{evil}', 'sky']
    text = ran('new_config', argv, capsys)
    assert not RAW.search(text), ascii(text)
    assert (tmp_path / 'my.py').is_file()
    assert ascii(f'car{evil}')[1:-1].replace('udc', 'x') in text


# Training of a few steps, with validation.
CONFIG = """
_base_ = 'base.py'
train_dataloader = dict(
    batch_size=2, num_workers=0, persistent_workers=False
)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = dict(num_workers=0, persistent_workers=False)
train_cfg = dict(max_iters=2, val_interval=2)
optim_wrapper = dict(optimizer=dict(lr=1e-8))
default_hooks = dict(checkpoint=dict(interval=2), logger=dict(interval=1))
"""
SMALL = 'mmext::pidnet/pidnet_small_shapes.py'
WEIGHTS = 'w/iter_2.pth'
# In this order: a tool, and its arguments.
RUNS = (
    ('new_config', 'data', '--base', SMALL, '--out', 'base.py', '--no-check'),
    ('validate_labels', 'c.py', '--verbose'),
    ('validate_labels', 'c.py', '--json', '-'),
    ('preflight', 'c.py', '--verbose', '--image-size', '64', '64'),
    ('train', 'c.py', '--work-dir', 'w'),
    ('test', 'c.py', WEIGHTS, '--work-dir', 't', '--report', 'report'),
    ('infer', 'data/images/val', '--checkpoint', WEIGHTS, '--out', 'drawn'),
    (
        *('infer', '--from-val', '3', '--with-gt', '--json', '-'),
        *('--checkpoint', WEIGHTS, '--out', 'sheet'),
    ),
    ('plot_log', 'w'),
    ('share', WEIGHTS, 'shared'),
)


def in_terminal(command: list[str], folder: Path) -> tuple[int, bytes]:
    """Exit code and output of a process that has a terminal."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        os.execve(command[0], command, process_environ(TERM='xterm'))
    parts = []
    with suppress(OSError):  # The end of a terminal is an error.
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, b''.join(parts)


@pytest.mark.slow
@pytest.mark.parametrize('has_terminal', [False, True])
def test_from_data_to_shared_model(tmp_path, checkout, has_terminal):
    """Raw names are in no output, with or without colours and bars."""
    data = clean('semantic', tmp_path / 'data')
    rename(data, EVIL)
    classes = ['road', f'car{EVIL}', 'sky']
    (tmp_path / 'c.py').write_text(CONFIG)
    named = 0
    for tool, *args in RUNS:
        command = [sys.executable, str(checkout / f'tools/{tool}.py'), *args]
        if tool == 'new_config':
            command += ['--classes', *classes]
        if has_terminal:
            code, output = in_terminal(command, tmp_path)
        else:
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=process_environ(),
                capture_output=True,
                timeout=300,
            )
            code, output = done.returncode, done.stdout + done.stderr
        text = output.decode()
        assert code == 0, f'{tool}: {text!a}'
        # Colours and bars have escape sequences of their own.
        raw = re.compile('[\x07\x9b\u202e\u2066]|\x1b\\[2J')
        raw = raw if has_terminal else RAW
        assert not raw.search(text), f'{tool}: {text!a}'
        named += r'\x9b' in text or r'\u009b' in text
    assert named >= 5
