"""The tool as users start it: exit codes, messages, console and log."""

import json
import math
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import (
    load_tool,
    start_ranks,
)
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from torch.utils._pytree import tree_flatten

from mmext.datasets import ShapesSpec, write_shapes_dataset

pytestmark = pytest.mark.xdist_group('processes')


def test_wrong_input_is_one_line(tmp_path, capsys):
    main = load_tool('train').main
    path = toy.write(tmp_path / 'cfg.py', toy.config())
    misspelt = str(tmp_path / 'cfg2.py')
    Path(misspelt).write_text(
        "_base_ = 'cfg.py'\ntrain_dataloader = dict(batch_sise=2)\n"
    )
    for args, message in (
        (['none.py'], 'config must be an existing file, got none.py'),
        ([path, '--device', 'gpu'], "device must be 'auto', 'cpu', 'cuda'"),
        ([path, '--resume', 'a.pth'], "existing checkpoint, got 'a.pth'"),
        (
            [misspelt],
            'cfg2.py:2) is no argument of data loaders; rename it to',
        ),
    ):
        with pytest.raises(SystemExit) as info:
            main(args)
        assert info.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert 'Traceback' not in error
        assert error.count('\n') == 1


def test_errors_of_the_config_stop_it_first(tmp_path, capsys):
    """The same findings as of the preflight; those of a test do not count."""
    main = load_tool('train').main
    path = toy.write(tmp_path / 'cfg.py', toy.config())
    work = tmp_path / 'w'
    args = [path, '--work-dir', str(work), '--device', 'cpu']
    wrong = ['--cfg-options', 'model.widht=4']
    assert main([*args, *wrong]) == 2
    printed = capsys.readouterr().err
    assert f'Do not train with {path} yet: mend the error: ' in printed
    assert 'error ARG001' in printed
    assert 'rename it to width' in printed
    assert not work.exists()
    with pytest.raises(TypeError, match='widht'):
        main([*args, *wrong, '--no-preflight'])
    # No weights to begin from are needed to go on; nor is the test built.
    test = [
        *("test_dataloader={'dataset': {'type': 'None'}, 'batch_size': 1}",),
        *('test_cfg={}', "test_evaluator={'type': 'ToyMetric'}"),
    ]
    assert main([*args, '--cfg-options', *test]) == 0
    capsys.readouterr()
    gone = ['--cfg-options', 'load_from=gone.pth', 'train_cfg.max_epochs=4']
    assert main([*args, '--resume', *gone]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == (
        f'Next: python tools/share.py {work}/epoch_4.pth {work}/shared '
        '--no-test'
    )


@pytest.mark.slow
def test_errors_of_the_config_stop_all_processes(tmp_path):
    """None waits for one that does not train; the first one says it."""
    path = toy.write(tmp_path / 'cfg.py', toy.config())
    args = [path, '--work-dir', tmp_path / 'w', '--cfg-options', 'model.a=4']
    ranks = start_ranks(args, 2, tmp_path / 'out')
    assert ranks.wait(60) == [2, 2]
    assert 'error ARG001' in ranks.output(0)


def test_only_damaged_checkpoints_are_one_line(tmp_path, capsys):
    path = toy.write(tmp_path / 'cfg.py', toy.config())
    main = load_tool('train').main
    args = [path, '--work-dir', str(tmp_path / 'w'), '--device', 'cpu']
    assert main(args) == 0
    files = sorted((tmp_path / 'w').glob('epoch_*.pth'))
    for file in files:
        file.write_bytes(file.read_bytes()[:2000])
    capsys.readouterr()
    with pytest.raises(SystemExit) as info:
        main([*args, '--resume'])
    assert info.value.code == 2
    out, printed = capsys.readouterr()
    assert 'Traceback' not in printed
    # Neither that it starts anew, nor the same reasons before.
    assert 'starting from' not in out
    assert 'passed over' not in out
    message = printed.splitlines()[-1]
    assert f'No checkpoint in {tmp_path}/w can be used: ' in message
    assert all(f'{file.name}: ' in message for file in files)
    assert f'remove {tmp_path}/w/last_checkpoint' in message
    assert all(file.stat().st_size == 2000 for file in files)
    damaged = str(files[0])
    for option in (
        ['--resume', damaged],
        ['--no-preflight', '--cfg-options', f'load_from={damaged}'],
    ):
        with pytest.raises(SystemExit) as info:
            main([*args, *option])
        assert info.value.code == 2
        printed = capsys.readouterr().err
        assert 'Traceback' not in printed
        message = printed.splitlines()[-1]
        assert f"checkpoint '{damaged}' is damaged: it is cut off" in message


def test_one_training_in_a_work_dir(tmp_path, capsys):
    path = toy.write(
        tmp_path / 'cfg.py',
        toy.config(model=dict(type='ToyModel', seconds=20.0)),
    )
    args = [path, '--work-dir', tmp_path / 'w', '--device', 'cpu']
    first = start_ranks(args, 1, tmp_path / 'out')
    lock = tmp_path / 'w/training.lock'
    end = time.monotonic() + 120
    while not (lock.exists() and lock.read_text()):
        assert time.monotonic() < end, first.output()
        time.sleep(0.1)
    pid = json.loads(lock.read_text())['pid']
    main = load_tool('train').main
    with pytest.raises(SystemExit) as second:
        main(list(map(str, args)))
    assert second.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f'is in use by another training: process {pid} on ' in message
    assert 'Give this one a --work-dir of its own' in message
    os.kill(pid, signal.SIGKILL)
    assert first.wait() != [0]
    # Whose owner is gone is taken over, and goes with the training.
    assert lock.exists()
    toy.write(path, toy.config())
    assert main(list(map(str, args))) == 0
    assert not lock.exists()


def test_a_config_of_a_package_has_a_work_dir_of_its_name(
    tmp_path, monkeypatch
):
    shipped = tmp_path / 'toys/.mim'
    toy.write(shipped / 'configs/toy/small.py', toy.config())
    (tmp_path / 'toys/__init__.py').touch()
    (shipped / 'model-index.yml').write_text('Import: []\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODULE2PACKAGE, 'toys', 'toys')
    monkeypatch.chdir(tmp_path)
    args = ['toys::toy/small.py', '--resume', '--cfg-options']
    for epochs in (1, 2):
        options = [*args, f'train_cfg.max_epochs={epochs}']
        ranks = start_ranks(options, 1, tmp_path / f'out{epochs}')
        assert ranks.wait() == [0], ranks.output()
    assert 'Resuming from' in ranks.output()
    options = [args[0], '--no-labels', '--batches', 'normal', '--verbose']
    ranks = start_ranks(options, 1, tmp_path / 'checked', tool='preflight')
    assert ranks.wait() == [0], ranks.output()
    assert 'toys/.mim/configs/toy/small.py can be trained' in ranks.output()
    size = '2 parameter tensors to train (0.0 M values)'
    assert size in ranks.output()
    folder = tmp_path / 'work_dirs/small'
    assert (folder / 'epoch_2.pth').exists()
    assert (folder / 'small.py').exists()


@pytest.mark.parametrize('tool', ['train', 'preflight', 'infer'])
def test_a_clone_without_an_install_is_told_of(
    tmp_path, monkeypatch, capsys, tool
):
    (tmp_path / 'clone/toys').mkdir(parents=True)
    (tmp_path / 'clone/toys/__init__.py').touch()
    monkeypatch.syspath_prepend(tmp_path / 'clone')
    monkeypatch.setitem(MODULE2PACKAGE, 'toys', 'toys')
    monkeypatch.chdir(tmp_path)
    Path('child.py').write_text("_base_ = 'toys::toy/small.py'\n")
    Path('a.jpg').touch()
    torch.save({}, 'a.pth')
    for config in ('child.py', 'toys::toy/small.py'):
        args = [config]
        if tool == 'infer':
            args = ['--config', config, '--checkpoint', 'a.pth']
            args += ['a.jpg', '--out', 'out']
        with pytest.raises(SystemExit) as info:
            load_tool(tool).main(args)
        assert info.value.code == 2
        remedy = 'toys is not installed, so its configs are not found by '
        remedy += f'name: pip install -e {tmp_path}/clone\n'
        assert capsys.readouterr().err.endswith(remedy)


@pytest.mark.parametrize('world_size', [1, 2])
def test_rows_on_the_console_and_all_in_the_log(
    tmp_path, monkeypatch, world_size
):
    for name in ('_EVERY_S', '_LATER_S'):
        monkeypatch.setattr(f'mmext.engine.hooks.progress.{name}', 0.0)
    cfg = toy.config(
        default_hooks=dict(logger=dict(type='LoggerHook', interval=50)),
        visualizer=dict(
            type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]
        ),
    )
    ranks = start_ranks(
        [toy.write(tmp_path / 'cfg.py', cfg), '--work-dir', tmp_path / 'w'],
        world_size,
        tmp_path / 'out',
    )
    assert ranks.wait() == [0] * world_size, ranks.output()
    lines = ranks.output().splitlines()
    rows = [line for line in lines if 'Epoch(train) [' in line]
    steps = 6 // world_size
    assert len(rows) == 3 * steps
    assert re.fullmatch(
        rf'\d+/\d+ \d+:\d+:\d+ Epoch\(train\) \[1\]\[1/{steps}\]  '
        r'loss \d+\.\d{4}  lr 5\.00e-03  \d+\.\d\d s/step  0:00:0\d left',
        rows[0],
    )
    assert lines.index(rows[0]) <= 25
    assert not any('System environment' in line for line in lines)
    assert not any('\r' in line for line in lines)
    if world_size == 2:
        assert 'Epoch(train)' not in ranks.output(1)
    # The file is as MMEngine writes it: one line of an epoch of six steps.
    (log,) = (tmp_path / 'w').glob('*/*.log')
    text = log.read_text()
    for part in ('System environment', 'Config:\n', 'Hooks will be executed'):
        assert part in text
    assert text.count('Epoch(train) ') == 3
    assert 'data_time: ' in text
    assert 's/step' not in text
    (file,) = (tmp_path / 'w').rglob('scalars.json')
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    assert [step['loss'] > 0 for step in steps if 'lr' in step] == [True] * 3


@pytest.mark.slow
def test_small_co_dino_in_bfloat16(checkout, tmp_path):
    """50 steps with finite losses and gradients, down to maps of one pixel."""
    spec = ShapesSpec(image_size=(64, 64), max_objects=4, hue_by_class=1.0)
    write_shapes_dataset(tmp_path / 'data', spec, num_train=100, num_val=2)
    config = checkout / 'configs' / 'co_dino' / 'co_dino_r18_shapes.py'
    args = [str(config), '--work-dir', str(tmp_path / 'work'), '--amp']
    options = [
        f'data_root={tmp_path / "data"}',
        'train_dataloader.batch_size=2',
        'train_cfg.max_epochs=1',
        'train_cfg.val_begin=2',
        'default_hooks.logger.interval=1',
        'log_processor.window_size=1',
        'randomness.seed=0',
    ]
    main = load_tool('train').main
    assert main([*args, '--device', 'cpu', '--cfg-options', *options]) == 0
    (file,) = (tmp_path / 'work').rglob('scalars.json')
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(steps) == 50
    for step in steps:
        assert all(map(math.isfinite, step.values()))
    losses = [step['loss'] for step in steps]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.slow
def test_small_vit_resumes_bit_by_bit(checkout, tmp_path):
    """In bfloat16, with drop path, checkpoints and averaged weights."""
    spec = ShapesSpec(image_size=(64, 64), max_objects=4)
    write_shapes_dataset(tmp_path / 'data', spec, num_train=6, num_val=2)
    folder = checkout / 'configs' / 'co_dino'
    cfg = Config.fromfile(folder / 'co_dino_r18_shapes.py')
    vit = Config.fromfile(folder / 'co_dino_5scale_vit_l_16xb1_1x_coco.py')
    cfg.model = reduce_model({**vit.model.to_dict(), 'num_classes': 6})
    cfg.merge_from_dict({'custom_hooks': vit.custom_hooks})
    cfg.optim_wrapper = vit.optim_wrapper
    cfg.dump(tmp_path / 'vit.py')
    options = [
        *('--amp', '--device', 'cpu', '--cfg-options'),
        *(f'data_root={tmp_path / "data"}', 'train_dataloader.batch_size=2'),
        *('train_cfg.max_epochs=2', 'train_cfg.val_begin=3'),
    ]
    main = load_tool('train').main
    ends = []
    for name, more in (
        ('whole', []),
        ('resumed', ['--resume', str(tmp_path / 'whole' / 'epoch_1.pth')]),
    ):
        work_dir = tmp_path / name
        args = [str(tmp_path / 'vit.py'), '--work-dir', str(work_dir), *more]
        assert main([*args, *options]) == 0
        ends.append(torch.load(work_dir / 'epoch_2.pth', weights_only=False))
    for part in ('state_dict', 'ema_state_dict', 'optimizer'):
        pairs = zip(*(tree_flatten(end[part])[0] for end in ends), strict=True)
        assert all(
            torch.equal(one, other) if torch.is_tensor(one) else one == other
            for one, other in pairs
        ), part
