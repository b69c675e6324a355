"""Models with a ``train_step`` of their own, trained by tools/train.py."""

import copy

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.model import (
    BaseModel,
    BaseTTAModel,
    MMDistributedDataParallel,
    MMSeparateDistributedDataParallel,
)
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapperDict
from mmengine.registry import (
    HOOKS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
)
from torch import nn

from mmext.checks.ddp import (
    bypassed_methods,
    has_own_train_step,
    loose_parameters,
)
from mmext.engine.distributed import DistributedDataParallel

pytestmark = pytest.mark.xdist_group('processes')


class _Base(BaseModel):
    def __init__(self, loose=False):
        super().__init__()
        self.generator = nn.Linear(3, 3)
        self.critic = nn.Linear(3, 1)
        if loose:
            self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs, mode='tensor', **_):
        points = torch.stack(list(inputs))
        if mode == 'loss':
            return {'loss': self.critic(self.generator(points)).mean()}
        return [point.mean() for point in points]


@MODELS.register_module(force=True)
class ToyGAN(_Base):
    """Trains a critic, then a generator, each with its optimizer."""

    def train_step(self, data, optim_wrapper):
        points = torch.stack(list(self.data_preprocessor(data)['inputs']))
        with torch.no_grad():
            made = self.generator(points)
        loss = (self.critic(points) - self.critic(made)).mean()
        optim_wrapper['critic'].update_params(loss)
        made = self.generator(points)
        fooled = (made - points.flip(1)).square().mean()
        optim_wrapper['generator'].update_params(fooled)
        return {'critic': loss.detach(), 'generator': fooled.detach()}


class ToyCounting(_Base):
    """As MMEngine's, with something small after it."""

    def train_step(self, data, optim_wrapper):
        logs = super().train_step(data, optim_wrapper)
        self.count = getattr(self, 'count', 0) + 1
        return logs


class ToyForward(_Base):
    """Changes how the batch reaches forward."""

    def _run_forward(self, data, mode):
        return super()._run_forward(data, mode)


class _NoBase(nn.Module):
    def train_step(self, data, optim_wrapper):
        return {}


class _Own(MMDistributedDataParallel):
    def train_step(self, data, optim_wrapper):
        return self.module.train_step(data, optim_wrapper)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(force=True)
class TwoOptimizers(DefaultOptimWrapperConstructor):
    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        self.cfg = optim_wrapper_cfg

    def __call__(self, model):
        model = getattr(model, 'module', model)
        return OptimWrapperDict(
            **{
                name: DefaultOptimWrapperConstructor(copy.deepcopy(self.cfg))(
                    getattr(model, name)
                )
                for name in ('generator', 'critic')
            }
        )


def write(folder, model, **changes):
    changes = {'param_scheduler': None, **changes}
    if model['type'] == 'ToyGAN':
        changes['optim_wrapper'] = dict(
            constructor='TwoOptimizers',
            type='OptimWrapper',
            optimizer=dict(type='SGD', lr=0.05),
        )
    cfg = toy.config(model=model, **changes)
    cfg['custom_imports']['imports'] = []
    return toy.write(folder / 'cfg.py', cfg)


def train(folder, world, *args):
    ranks = start_ranks(
        [folder / 'cfg.py', '--work-dir', folder / 'w', *args],
        world,
        folder / 'out',
    )
    return ranks.wait(end_others=False), ranks


def weights(folder, epoch):
    path = folder / 'w' / f'epoch_{epoch}.pth'
    return torch.load(path, weights_only=False)['state_dict']


@pytest.mark.slow
def test_it_is_refused_at_the_first_step(tmp_path):
    write(tmp_path, dict(type='ToyGAN'))
    codes, _ = train(tmp_path, 1)
    assert codes == [0]
    codes, ranks = train(tmp_path, 2)
    assert codes == [2, 2]
    assert 'error IGN008' in ranks.output(0)
    codes, ranks = train(tmp_path, 2, '--no-preflight')
    assert codes == [1, 1]
    # Rank 1 has the same error, and prints one line at most.
    printed = ranks.output(0)
    assert 'TypeError: ToyGAN has a method of its own, train_step' in printed
    assert 'MMSeparateDistributedDataParallel' in printed
    assert 'Traceback' not in ranks.output(1)


SEPARATE = dict(type='MMSeparateDistributedDataParallel')


@HOOKS.register_module(force=True)
class SameWeights(Hook):
    """Ends the training where the processes have different weights."""

    def after_train_iter(self, runner, *args, **kwargs):
        weights = [p.tolist() for p in runner.model.parameters()]
        assert all_gather_object(weights) == [weights] * 2


@pytest.mark.slow
def test_the_separate_wrapper_trains_and_resumes(tmp_path):
    """On gloo: equal weights in both processes, and after a resume."""
    whole, parts = tmp_path / 'a', tmp_path / 'b'
    for folder in (whole, parts):
        folder.mkdir()
        write(
            folder,
            dict(type='ToyGAN'),
            model_wrapper_cfg=SEPARATE,
            find_unused_parameters=True,
            custom_hooks=[dict(type='SameWeights')],
        )
    codes, ranks = train(whole, 2)
    assert codes == [0, 0], ranks.output()
    assert sorted(weights(whole, 3)) == [
        'critic.bias',
        'critic.weight',
        'generator.bias',
        'generator.weight',
    ]
    codes, ranks = train(parts, 2, '--cfg-options', 'train_cfg.max_epochs=1')
    assert codes == [0, 0], ranks.output()
    codes, ranks = train(parts, 2, '--resume')
    assert codes == [0, 0], ranks.output()
    expected = weights(whole, 3)
    for name, value in weights(parts, 3).items():
        assert torch.equal(value, expected[name]), name


def test_parameters_beside_the_submodules_are_refused(tmp_path):
    write(
        tmp_path, dict(type='ToyGAN', loose=True), model_wrapper_cfg=SEPARATE
    )
    codes, ranks = train(tmp_path, 2)
    assert codes == [1, 1]
    assert 'has trainable parameters outside of them' in ranks.output()
    assert 'scale' in ranks.output()


def test_which_wrappers_pass_over_what():
    passing = (DistributedDataParallel, MMDistributedDataParallel)
    for model in (ToyGAN, ToyGAN(), ToyCounting, _NoBase, _NoBase()):
        assert has_own_train_step(model)
        for wrapper in passing:
            assert bypassed_methods(model, wrapper) == ('train_step',)
        for wrapper in (_Own, MMSeparateDistributedDataParallel):
            assert bypassed_methods(model, wrapper) == ()
    patched = _Base()
    patched.train_step = lambda data, optim_wrapper: {}
    assert bypassed_methods(patched, passing[0]) == ('train_step',)
    assert bypassed_methods(ToyForward, passing[0]) == ('_run_forward',)
    within = _Base()
    within.inner = ToyGAN()
    for model in (within, _Base, BaseTTAModel, nn.Linear):
        assert bypassed_methods(model, passing[0]) == ()
    assert loose_parameters(ToyGAN(True), _Own) == []
    frozen = ToyGAN(True)
    frozen.scale.requires_grad_(False)
    assert loose_parameters(frozen, MMSeparateDistributedDataParallel) == []


def test_no_model_of_the_hosts_has_one():
    import mmdet.models
    import mmseg.models

    import mmext.models

    for package in (mmdet.models, mmseg.models, mmext.models):
        kinds = [
            kind
            for name in {*vars(package), *getattr(package, '__all__', ())}
            if isinstance(kind := getattr(package, name), type)
            and issubclass(kind, BaseModel)
        ]
        assert kinds
        for kind in kinds:
            assert bypassed_methods(kind, DistributedDataParallel) == ()
