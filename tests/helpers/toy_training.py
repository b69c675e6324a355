"""A training of seconds, without a host: data, model, metric and config.

Configs name this module in ``custom_imports``; tests that start a process put
this folder on its ``PYTHONPATH``.
"""

import json
import os
import resource
import signal
import time
import uuid
from importlib import import_module
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import (
    DATASETS,
    HOOKS,
    METRICS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    RUNNERS,
)
from mmengine.utils import get_object_from_string
from torch import nn

SIGNALS = signal.Signals.__members__


@DATASETS.register_module(force=True)
class ToyDataset(BaseDataset):
    """``size`` points of a plane; notes the index of each sample it reads."""

    METAINFO = dict(classes=('a', 'b'))

    def __init__(self, size=12, log=None, seconds=0.0, broken=None, **kwargs):
        self.size, self.log, self.seconds = size, log, seconds
        self.broken = broken
        kwargs.setdefault('serialize_data', False)
        super().__init__(**kwargs)

    def load_data_list(self):
        data = torch.Generator().manual_seed(7)
        return [
            dict(img_path=f'{index}.jpg', point=torch.randn(3, generator=data))
            for index in range(self.size)
        ]

    def prepare_data(self, idx):
        if self.log:
            with open(self.log, 'a') as file:
                file.write(f'{idx}\n')
        time.sleep(self.seconds)
        if idx == self.broken:
            raise AttributeError("'NoneType' object has no attribute 'shape'")
        return dict(inputs=self.get_data_info(idx)['point'])


@MODELS.register_module(force=True)
class ToyModel(BaseModel):
    """Linear regression, with noise and an optional batch norm."""

    num_classes = 2

    def __init__(self, noise=0.0, norm=None, width=3, seconds=0.0):
        super().__init__()
        self.noise, self.seconds = noise, seconds
        self.linear = nn.Linear(width, 2)
        self.norm = {
            None: nn.Identity,
            'BN': lambda: nn.BatchNorm1d(2),
            'SyncBN': lambda: nn.SyncBatchNorm(2),
        }[norm]()

    def forward(self, inputs, mode='tensor', **_):
        points = torch.stack(list(inputs))
        time.sleep(self.seconds)
        out = self.norm(self.linear(points))
        if mode != 'loss':
            return [out.mean()]
        target = points.sum(1, keepdim=True)
        if self.noise:
            target = target + self.noise * torch.randn(len(points), 1).to(
                points.device
            )
        return dict(loss=(out.float() - target).square().mean())


@MODELS.register_module(force=True)
class Pair(BaseModel):
    """Two networks, one of which judges the other, as in a GAN."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(3, 3), nn.Linear(3, 1)

    def train_step(self, data, optim_wrapper):
        points = torch.stack(data['inputs'])
        maker, judge = optim_wrapper['maker'], optim_wrapper['judge']
        made = self.maker(points + torch.randn_like(points))
        with judge.optim_context(self):
            wrong = self.judge(made.detach()).square().mean()
            right = (self.judge(points) - 1).square().mean()
        judge.update_params(wrong + right)
        # Leaves gradients in the judge, which its next step adds to.
        loss = (self.judge(made) - 1).square().mean()
        maker.update_params(loss)
        return dict(loss=loss.detach())

    def forward(self, inputs, mode='tensor', **_):
        return [self.judge(self.maker(torch.stack(list(inputs)))).mean()]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(force=True)
class PairConstructor:
    """One optimizer for each network, with windows of their own."""

    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        self.cfg = optim_wrapper_cfg

    def __call__(self, model):
        return OptimWrapperDict(
            **{
                name: OptimWrapper(
                    torch.optim.Adam(getattr(model, name).parameters()),
                    accumulative_counts=counts,
                )
                for name, counts in self.cfg['counts'].items()
            }
        )


@METRICS.register_module(force=True)
class ToyMetric(BaseMetric):
    """Mean of the outputs, or what it is told to say, time after time."""

    def __init__(self, scores=None, **kwargs):
        super().__init__(**kwargs)
        self.scores = list(scores or ())

    def process(self, data_batch, data_samples):
        self.results.extend(float(sample) for sample in data_samples)

    def compute_metrics(self, results):
        if self.scores:
            return dict(mean=self.scores.pop(0))
        return dict(mean=sum(results) / len(results))


@HOOKS.register_module(force=True)
class TraceHook(Hook):
    """Write a line per step and per validation, flushed at once."""

    priority = 'VERY_LOW'

    def __init__(self, path):
        self.path = path

    def note(self, **values):
        with open(f'{self.path}.{os.environ.get("RANK", 0)}', 'a') as file:
            file.write(json.dumps(values) + '\n')

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        rates = runner.optim_wrapper.get_lr()
        self.note(
            iter=runner.iter + 1,
            epoch=runner.epoch,
            batch=batch_idx,
            # By name of the optimizer, if there are several.
            lr=rates['lr'][0] if 'lr' in rates else rates,
            loss=float(outputs['loss']),
        )

    def before_val_epoch(self, runner):
        self.note(val=runner.iter)

    def after_run(self, runner):
        model = getattr(runner.model, 'module', runner.model)
        self.note(
            weights=[value.tolist() for value in model.state_dict().values()]
        )


@HOOKS.register_module(force=True)
class StrikeHook(Hook):
    """Send this process a signal once, at a given place and rank."""

    priority = 'VERY_HIGH'

    def __init__(self, signal, at, stage='after_train_iter', rank=0, once=''):
        self.signum = SIGNALS[signal]
        self.at, self.rank, self.once = at, rank, once
        setattr(self, stage, self.strike)
        self.count = 0

    def strike(self, runner, *args, **kwargs):
        self.count += 1
        due = (
            runner.iter + 1 == self.at
            if self.at > 0
            else (self.count == -self.at)
        )
        if due and runner.rank == self.rank and not os.path.exists(self.once):
            Path(self.once).touch()
            os.kill(os.getpid(), self.signum)


@HOOKS.register_module(force=True)
class AimHook(Hook):
    """End this process, once, at a call of a function while it saves.

    Args:
        call: ``module.function`` or ``module.Class.function``.
        at: From this iteration on.
        number: At which call, counted from 1.
        after: After it has returned, and not before.
        once: File that says that it was done.
    """

    priority = 'VERY_HIGH'

    def __init__(self, call, at, once, number=1, after=False):
        self.call, self.at, self.once = call, at, once
        self.number, self.after, self.count = number, after, 0

    def before_train_iter(self, runner, *args, **kwargs):
        due = runner.iter + 1 == self.at and runner.rank == 0
        if not due or os.path.exists(self.once):
            return
        where, name = self.call.rsplit('.', 1)
        owner = get_object_from_string(where) or import_module(where)
        inner = getattr(owner, name)

        def wrapper(*args, **kwargs):
            self.count += 1
            if self.after:
                result = inner(*args, **kwargs)
            if self.count == self.number:
                Path(self.once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return result if self.after else inner(*args, **kwargs)

        setattr(owner, name, wrapper)


@HOOKS.register_module(force=True)
class FullDiskHook(Hook):
    """From an iteration on, files of checkpoints may have so many bytes only.

    As the system does it: the writer gets an error or, with ``kill``, ends in
    the middle of the write.
    """

    def __init__(self, at, size, once, kill=False):
        self.at, self.size, self.once, self.kill = at, size, once, kill

    def before_train_iter(self, runner, *args, **kwargs):
        due = runner.iter + 1 == self.at and runner.rank == 0
        if not due or os.path.exists(self.once):
            return
        inner = runner.save_checkpoint

        def save_checkpoint(*args, **kwargs):
            Path(self.once).touch()
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            if self.kill:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, limits[1]))
            try:
                return inner(*args, **kwargs)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        runner.save_checkpoint = save_checkpoint


class Killed(BaseException):
    """Stands for the end of the process."""


@HOOKS.register_module(force=True)
class KillHook(Hook):
    """End the training after a step, not gracefully."""

    priority = 'LOWEST'

    def __init__(self, at):
        self.at = at

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter + 1 == self.at:
            raise Killed


def loader(**kwargs):
    """Config of a data loader."""
    options = dict(size=12, log=None, seconds=0.0, broken=None)
    dataset = dict(
        type='ToyDataset',
        **{key: kwargs.pop(key, value) for key, value in options.items()},
    )
    return dict(
        dataset=dataset,
        batch_size=kwargs.pop('batch_size', 2),
        num_workers=kwargs.pop('num_workers', 0),
        sampler=dict(
            type=kwargs.pop('sampler', 'DefaultSampler'),
            shuffle=kwargs.pop('shuffle', True),
        ),
        collate_fn=dict(type='pseudo_collate'),
        **kwargs,
    )


# Changes of the config for a test; weights that make every output 3.
TEST = dict(
    test_dataloader=loader(size=6, shuffle=False),
    test_cfg=dict(),
    test_evaluator=dict(type='ToyMetric'),
)
WEIGHTS = {
    'linear.weight': torch.zeros(2, 3),
    'linear.bias': torch.full((2,), 3.0),
}


def config(**changes):
    """Config of a training of three epochs of six steps (one process)."""
    cfg = dict(
        custom_imports=dict(
            imports=['helpers.toy_training'], allow_failed_imports=False
        ),
        default_scope='mmengine',
        runner_type='mmext.PortableRunner',
        device='cpu',
        model=dict(type='ToyModel'),
        train_dataloader=loader(),
        train_cfg=dict(by_epoch=True, max_epochs=3, val_interval=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9)),
        param_scheduler=[
            dict(
                type='LinearLR',
                start_factor=0.1,
                begin=0,
                end=5,
                by_epoch=False,
            ),
            dict(type='MultiStepLR', milestones=[2], by_epoch=True),
        ],
        val_dataloader=loader(size=4, shuffle=False),
        val_cfg=dict(),
        val_evaluator=dict(type='ToyMetric'),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=1),
            logger=dict(type='LoggerHook', interval=1),
        ),
        custom_hooks=[],
        env_cfg=dict(dist_cfg=dict(timeout=60)),
        randomness=dict(seed=3),
        visualizer=dict(type='Visualizer', vis_backends=[]),
    )
    cfg.update(changes)
    return cfg


def write(path, cfg):
    """Write a config file; returns its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Config(cfg).dump(str(path))
    return str(path)


def traced(path, cfg):
    """The config, with a trace of its steps at ``path``."""
    hooks = [dict(type='TraceHook', path=str(path)), *cfg['custom_hooks']]
    return {**cfg, 'custom_hooks': hooks}


def read_trace(path):
    """Lines of a trace file, as dicts."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def build(work_dir, **changes):
    """A runner in this process, its trace in the work dir."""
    Path(work_dir).mkdir(parents=True, exist_ok=True)
    cfg = traced(Path(work_dir, 'trace'), config(**changes))
    cfg.update(work_dir=str(work_dir), experiment_name=uuid.uuid4().hex)
    return RUNNERS.build(Config(cfg))


def train(work_dir, **changes):
    """Train in this process; returns the trace of all runs in the folder."""
    build(work_dir, **changes).train()
    return read_trace(Path(work_dir, 'trace.0'))


def interrupted(work_dir, kills, **changes):
    """Train, killed after certain steps and resumed each time."""
    for at in kills:
        hooks = [
            *changes.get('custom_hooks', []),
            dict(type='KillHook', at=at),
        ]
        try:
            train(work_dir, resume=True, **{**changes, 'custom_hooks': hooks})
        except Killed:
            continue
        raise AssertionError(f'not killed at {at}')
    return train(work_dir, resume=True, **changes)


# Of a checkpoint, what two runs of the same training need not share.
_OWN = {
    'cfg',
    'experiment_name',
    'time',
    'last_ckpt',
    'best_ckpt',
    'anneal_func',
    'run_id',
}


def differences(one, other, where=''):
    """Where two checkpoints, or parts of them, are not the same."""
    if isinstance(one, Path):
        one = torch.load(one, weights_only=False)
        other = torch.load(other, weights_only=False)
        for checkpoint in (one, other):
            # Times are among the numbers of the log.
            checkpoint.pop('message_hub')
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {*one, *other} - _OWN
        return [
            text
            for key in sorted(keys, key=str)
            for text in differences(
                one.get(key, '-'), other.get(key, '-'), f'{where}.{key}'
            )
        ]
    if isinstance(one, list | tuple) and len(one) == len(other):
        return [
            text
            for index, pair in enumerate(zip(one, other, strict=True))
            for text in differences(*pair, f'{where}[{index}]')
        ]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
    else:
        same = one == other
    return [] if same else [f'{where}: {one} and {other}']


def steps(trace):
    """Those lines of a trace that are steps."""
    return [line for line in trace if 'iter' in line]
