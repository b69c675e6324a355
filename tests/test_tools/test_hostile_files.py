"""Files that run code when they are read, on every way into a run.

Each is given to the tool with and without --trust-checkpoint: the code runs
with it, so the trap works, and does not run without.
"""

import pickle

import numpy as np
import pytest
import torch
from helpers import toy_training as toy
from helpers.hostile import Hostile
from helpers.hostile_pickles import hostile_values, write_checkpoint
from helpers.toy_ranks import load_tool, start_ranks
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModule
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import CheckpointLoader
from torch import nn

pytestmark = pytest.mark.xdist_group('processes')


class Part(BaseModule):
    """A linear layer that loads weights as a host's backbone does."""

    def __init__(self, checkpoint=None, init_cfg=None):
        super().__init__(init_cfg)
        self.layer = nn.Linear(1, 1)
        self.checkpoint = checkpoint

    def init_weights(self):
        super().init_weights()
        if self.checkpoint:
            CheckpointLoader.load_checkpoint(self.checkpoint, 'cpu')


@MODELS.register_module(force=True)
class PartsModel(toy.ToyModel):
    """A model with a part, or with a loss of a host."""

    def __init__(self, part=None, loss=None, **kwargs):
        super().__init__(**kwargs)
        if part is not None:
            self.part = Part(**part).requires_grad_(False)
        if loss is not None:
            self.loss_cls = MODELS.build(loss)


@DATASETS.register_module(force=True)
class AnnotatedDataset(BaseDataset):
    """Reads its annotation file as MMEngine's data sets do."""

    def prepare_data(self, idx):
        return dict(inputs=torch.tensor(self.get_data_info(idx)['point']))


@pytest.fixture
def trap(tmp_path):
    return tmp_path / 'trap'


@pytest.fixture
def run(tmp_path):
    """Run a tool on a config; returns exit code and output."""
    count = iter(range(9))

    def function(tool, changes, *args, world_size=1):
        path = toy.write(tmp_path / 'cfg.py', toy.config(**changes))
        out = tmp_path / f'out{next(count)}'
        argv = [path, *args, '--work-dir', tmp_path / 'w']
        ranks = start_ranks(argv, world_size, out, tool=tool)
        return max(ranks.wait(180)), ranks.output()

    return function


def weights(folder, trap):
    path = folder / 'hostile.pth'
    torch.save(
        dict(state_dict=toy.WEIGHTS, meta=dict(note=Hostile(trap))), path
    )
    return path


def pickled(folder, trap):
    path = folder / 'hostile.pkl'
    path.write_bytes(pickle.dumps(Hostile(trap)))
    return path


def yaml(folder, trap):
    path = folder / 'hostile.yaml'
    path.write_text(f'!!python/object/apply:os.mkdir ["{trap}"]')
    return path


def loss(kind):
    return lambda path: dict(
        model=dict(
            type='PartsModel', loss=dict(type=kind, class_weight=str(path))
        )
    )


# Name: tool, file, changes of the config, arguments.
WAYS = {
    'test': ('test', weights, lambda path: toy.TEST, lambda path: [path]),
    'resume': (
        'train',
        weights,
        lambda path: {},
        lambda path: ['--resume', path],
    ),
    'load_from': (
        'train',
        weights,
        lambda path: dict(load_from=str(path)),
        lambda path: [],
    ),
    'init_cfg': (
        'train',
        weights,
        lambda path: dict(
            model=dict(
                type='PartsModel',
                part=dict(
                    init_cfg=dict(type='Pretrained', checkpoint=str(path))
                ),
            )
        ),
        lambda path: [],
    ),
    'backbone': (
        'train',
        weights,
        lambda path: dict(
            model=dict(type='PartsModel', part=dict(checkpoint=str(path)))
        ),
        lambda path: [],
    ),
    'our class_weight': (
        'train',
        pickled,
        loss('mmext.CheckedCrossEntropyLoss'),
        lambda path: [],
    ),
    "a host's class_weight": (
        'train',
        pickled,
        loss('mmseg.CrossEntropyLoss'),
        lambda path: [],
    ),
    'class_weight in YAML': (
        'test',
        yaml,
        lambda path: {**toy.TEST, **loss('mmseg.CrossEntropyLoss')(path)},
        lambda path: ['unused.pth'],
    ),
    'annotations': (
        'train',
        pickled,
        lambda path: dict(
            train_dataloader=dict(
                dataset=dict(type='AnnotatedDataset', ann_file=str(path)),
                batch_size=1,
                num_workers=0,
                collate_fn=dict(type='pseudo_collate'),
                sampler=dict(type='DefaultSampler', shuffle=False),
            )
        ),
        lambda path: [],
    ),
}


@pytest.mark.parametrize(
    'trusted', [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('way', WAYS)
def test_not_run_unless_trusted(tmp_path, trap, run, way, trusted):
    tool, make, changes, arguments = WAYS[way]
    path = make(tmp_path, trap)
    torch.save(toy.WEIGHTS, tmp_path / 'unused.pth')
    args = [
        tmp_path / arg if isinstance(arg, str) and arg[0] != '-' else arg
        for arg in arguments(path)
    ]
    if trusted:
        run(tool, changes(path), *args, '--trust-checkpoint')
        assert trap.is_dir()
        return
    code, output = run(tool, changes(path), *args)
    assert code > 0
    assert not trap.exists()
    for words in ('mkdir', path.name, '--trust-checkpoint'):
        assert words in output


def test_switch_in_the_config(tmp_path, trap, run):
    path = weights(tmp_path, trap)
    changes = dict(load_from=str(path), trust_checkpoint=True)
    code, output = run('train', changes)
    assert code == 0, output
    assert trap.is_dir()
    assert 'is trusted: it is read with what it may run' in output
    changes['trust_checkpoint'] = 'yes'
    code, output = run('train', changes, '--no-preflight')
    assert code > 0
    assert "trust_checkpoint must be True or False, got 'yes'" in output


@pytest.mark.parametrize(
    ('switch', 'world_size'), [([], 1), (['--trust-checkpoint'], 2)]
)
def test_stray_file_is_never_run(tmp_path, trap, run, switch, world_size):
    epochs = dict(train_cfg=dict(by_epoch=True, max_epochs=1))
    code, output = run('train', epochs, world_size=world_size)
    assert code == 0, output
    checkpoint = torch.load(tmp_path / 'w/epoch_1.pth', weights_only=False)
    checkpoint['meta'].update(iter=1000, epoch=100, note=Hostile(trap))
    torch.save(checkpoint, tmp_path / 'w/epoch_100.pth')
    code, output = run('train', {}, '--resume', *switch, world_size=world_size)
    assert code == 0, output
    assert not trap.exists()
    assert 'passed over epoch_100.pth' in output
    assert 'posix.mkdir' in output
    assert 'going on from epoch_1.pth' in output
    assert (tmp_path / 'w/epoch_3.pth').is_file()


def test_files_that_lie_are_passed_over(tmp_path, run):
    """They would crash the process, open a file, or end the search."""
    epochs = dict(train_cfg=dict(by_epoch=True, max_epochs=1))
    code, output = run('train', epochs)
    assert code == 0, output
    values = {**hostile_values(tmp_path), 'endless': float('inf')}
    values |= {'many': range(1 << 30), 'yes': True, 'large': 1 << 64}
    for name, value in values.items():
        is_position = isinstance(value, float | int | range)
        meta = dict(iter=value if is_position else 1000, note=value)
        data = pickle.dumps(dict(meta=meta, optimizer={}), 2)
        write_checkpoint(tmp_path / 'w' / f'{name}.pth', data)
    code, output = run('train', {}, '--resume')
    assert code == 0, output
    for name in values:
        assert f'passed over {name}.pth' in output
    assert 'going on from epoch_1.pth' in output
    assert (tmp_path / 'w/epoch_3.pth').is_file()


def test_convert_codetr(tmp_path, trap, capsys):
    main = load_tool('convert_codetr').main
    path = weights(tmp_path, trap)
    args = ['checkpoint', str(path), str(tmp_path / 'ours.pth')]
    assert main(args) == 1
    assert not trap.exists()
    error = capsys.readouterr().err
    for words in ('posix.mkdir', path.name, '--trust-checkpoint'):
        assert words in error
    assert main([*args, '--trust-checkpoint']) == 0
    assert trap.is_dir()


def test_preflight(tmp_path, trap, capsys):
    main = load_tool('preflight').main
    path = pickled(tmp_path, trap)
    cfg = toy.config(**loss('mmseg.CrossEntropyLoss')(path))
    args = [toy.write(tmp_path / 'cfg.py', cfg), '--no-labels']
    main(args)
    printed = capsys.readouterr().out
    assert not trap.exists()
    assert 'posix.mkdir' in ' '.join(printed.split())
    main([*args, '--trust-checkpoint'])
    assert trap.is_dir()


def test_runner_of_mmengine(tmp_path, trap, run):
    """Whose own loader falls back to running what it finds."""
    path = weights(tmp_path, trap)
    changes = dict(load_from=str(path), runner_type='Runner')
    code, output = run('train', changes)
    assert code > 0
    assert not trap.exists()
    assert 'posix.mkdir' in output


def test_validate_labels(tmp_path, trap, capsys):
    main = load_tool('validate_labels').main
    path = pickled(tmp_path, trap)
    cfg = toy.config(**WAYS['annotations'][2](path))
    args = [toy.write(tmp_path / 'cfg.py', cfg), '--split', 'train']
    args += ['--store', str(tmp_path / 'store')]
    assert raises_or_returns(main, args) > 0
    assert not trap.exists()
    printed = capsys.readouterr()
    assert 'posix.mkdir' in ' '.join((printed.out + printed.err).split())


def raises_or_returns(main, args):
    """The exit code of a tool."""
    try:
        return main(args)
    except SystemExit as error:
        return error.code


def test_plain_files_need_no_trust(tmp_path, run):
    """Class weights and annotations in pickles, as before."""
    for name, content in (
        ('weight.pkl', [1.0, 2.0]),
        (
            'data.pkl',
            dict(
                metainfo=dict(classes=('a',)),
                data_list=[dict(img_path='', point=np.ones(3, 'f4'))] * 3,
            ),
        ),
    ):
        (tmp_path / name).write_bytes(pickle.dumps(content))
    changes = loss('mmseg.CrossEntropyLoss')(tmp_path / 'weight.pkl')
    changes['train_cfg'] = dict(by_epoch=True, max_epochs=1)
    code, output = run('train', changes)
    assert code == 0, output
    data = WAYS['annotations'][2](tmp_path / 'data.pkl')
    code, output = run('train', data)
    assert code == 0, output
