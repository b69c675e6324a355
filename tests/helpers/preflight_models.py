"""Small models with one mistake each, and what a preflight needs of them."""

from typing import Any

import torch
from mmdet.models import RetinaNet
from mmdet.registry import MODELS
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.runner import Runner
from torch import Tensor, distributed, nn
from torch.utils.checkpoint import checkpoint

from mmext.checks.ddp import SyncSettings
from mmext.checks.findings import Finding
from mmext.checks.preflight.dry_run.run import DryRun, dry_run_model
from mmext.checks.preflight.rules.steps import dry_run_findings

WIDTH = 3


# A table that is in no model.
_OUTSIDE = nn.Embedding(4, WIDTH)


class Planted(BaseModel):
    """A stem, a block and a head, and one mistake.

    Args:
        mistake: Name of the mistake; empty for none.
    """

    def __init__(self, mistake: str = '') -> None:
        super().__init__()
        self.mistake = mistake
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, 1)
        if 'extra' in mistake:
            self.extra = nn.Linear(WIDTH, WIDTH)
            self.extra.requires_grad_('unfrozen' not in mistake)
            nn.init.zeros_(self.extra.bias)
        if mistake == 'lazy':
            self.lazy = nn.LazyLinear(WIDTH)
        if 'sparse' in mistake:
            self.table = nn.Embedding(4, WIDTH, sparse=True)
        if 'norm' in mistake:
            self.norm = nn.BatchNorm1d(WIDTH)
        if 'frozen stem' in mistake or 'silent' in mistake:
            self.stem.requires_grad_(False)
        self.kept: Any = []
        self.loss_weight = 0 if 'weight 0' in mistake else 1

    def forward(
        self, inputs: Tensor, kind: str = 'normal', mode: str = 'loss'
    ) -> dict[str, Tensor]:
        """The losses, with the mistake."""
        x = self.stem(inputs)
        if self.mistake == 'lazy':
            x = self.lazy(x)
        if 'sparse' in self.mistake:
            x = x + self.table(torch.arange(2)).mean()
        if self.mistake == 'outside':
            x = x + _OUTSIDE(torch.arange(2)).mean()
        if self.mistake == 'on the host':
            x = x * torch.ones(x.shape[-1])
        if 'tied' in self.mistake:
            x = x + (x @ self.table.weight.t()).mean()
        x = self._checkpoints(x)
        if 'norm' in self.mistake:
            x = self.norm(x) + (
                self.norm(-x) if 'twice' in self.mistake else 0
            )
        x = self._memory(x)
        losses = {'loss': self.head(x).square().mean()}
        losses.update(self._extra(x, kind))
        losses.update(self._values(x, kind))
        return losses

    def _checkpoints(self, x: Tensor) -> Tensor:
        if 'reentrant' not in self.mistake:
            return self.block(x)
        if 'silent' in self.mistake:
            x = x.detach().requires_grad_()
        x = checkpoint(self.block, x, use_reentrant=True)
        if 'twice' in self.mistake or 'silent' in self.mistake:
            x = checkpoint(self.block, x, use_reentrant=True)
        return x

    def _memory(self, x: Tensor) -> Tensor:
        if self.mistake == 'memory':
            x = x + sum(self.kept) if self.kept else x
            self.kept = [x.mean(0)]
        elif self.mistake == 'memory that grows':
            self.kept.append(x.mean(0))
        elif self.mistake == 'memory for nobody':
            self.kept = {'last': x}
        return x

    def _extra(self, x: Tensor, kind: str) -> dict[str, Tensor]:
        how = self.mistake.removeprefix('extra ')
        if how == 'dropped':
            self.extra(x)
        elif how == 'unfrozen':
            value = self.extra(x).square().mean()
            # From the second step on.
            self.extra.requires_grad_()
            return {'loss_e': value}
        elif how == 'no_grad':
            with torch.no_grad():
                self.extra(x)
        elif how == 'detached':
            return {'loss_e': (x - self.extra(x).detach()).square().mean()}
        elif how == 'frozen within':
            self.extra.requires_grad_(False)
            return {'loss_e': self.extra(x).square().mean()}
        elif how == 'logged':
            return {'norm': self.extra(x).norm()}
        elif how == 'weight 0':
            value = self.extra(x).square().mean()
            return {'loss_e': value * self.loss_weight}
        elif (
            (how == 'by kind' and kind != 'empty')
            or (how == 'alone' and not distributed.is_initialized())
            or (how == 'before an update' and not self.extra.bias.any())
        ):
            return {'loss_e': self.extra(x).square().mean()}
        return {}

    def _values(self, x: Tensor, kind: str) -> dict[str, Tensor]:
        mistake = self.mistake
        if mistake == 'crash' and kind == 'empty':
            raise IndexError('no boxes')
        if mistake == 'nan':
            return {'loss_n': self.head(x).mean() * float('nan')}
        if mistake == 'eps of float32':
            zeros = self.head(x) * 0
            return {'loss_n': (zeros / (zeros.abs() + 1e-8)).mean()}
        if mistake == 'nan inside':
            return {'loss_n': self.head(x * float('inf')).mean()}
        if mistake == 'nan gradient':
            return {'loss_n': (self.head(x).mean() * 0).abs().sqrt()}
        if mistake == 'no gradient':
            return {'loss_n': x.detach().mean()}
        return {}


def batches(kinds: tuple[str, ...] = ('normal',), steps: int = 2) -> dict:
    """Batches that differ, of each kind."""
    numbers = torch.Generator().manual_seed(0)
    return {
        kind: [
            {
                'inputs': torch.randn(4, WIDTH, generator=numbers),
                'kind': kind,
            }
            for _ in range(steps)
        ]
        for kind in kinds
    }


def build(mistake: str = '') -> Planted:
    """The model, with the same weights each time."""
    torch.manual_seed(0)
    return Planted(mistake)


def sgd(model: nn.Module, **changes: Any) -> OptimWrapper:
    """An optimizer of all parameters that are trained."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return OptimWrapper(torch.optim.SGD(parameters, **{'lr': 0.1, **changes}))


def dry_run_planted(
    mistake: str = '', kinds: tuple[str, ...] = ('normal',), *flags: bool
) -> DryRun:
    """Two steps of each kind, with flags of DDP as of ``SyncSettings``."""
    model, settings = build(mistake), SyncSettings(*flags)
    cfg: dict[str, Any] = {}
    if settings.find_unused_parameters:
        cfg['find_unused_parameters'] = True
    if settings.static_graph:
        kind = 'mmext.DistributedDataParallel'
        cfg['model_wrapper_cfg'] = {'type': kind, 'static_graph': True}
    return dry_run_model(
        model, batches(kinds), optim_wrapper=sgd(model), cfg=cfg
    )


def find(
    mistake: str,
    *flags: bool,
    kinds: tuple[str, ...] = ('normal',),
) -> dict[str, Finding]:
    """Findings by their rule, of which each must be there once."""
    dry_run = dry_run_planted(mistake, kinds, *flags)
    findings = dry_run_findings(dry_run, SyncSettings(*flags))
    rules = {finding.rule: finding for finding in findings}
    assert len(rules) == len(findings), findings
    return rules


class OwnDict(dict):
    """A dict that DDP does not open everywhere."""


class PlantedDetector(RetinaNet):
    """A RetinaNet with a :class:`Planted` beside it, for configs on disk.

    Args:
        mistake: Of :class:`Planted`; ``'extra alone'`` uses a layer in a
            single process only, ``'extra outside'`` in ``parse_losses`` only.
        **options: Of RetinaNet.
    """

    def __init__(self, mistake: str = '', **options: Any) -> None:
        super().__init__(**options)
        self.planted = Planted(mistake)
        if 'silent' in mistake:
            # The last parameter of all must be in the checkpoint.
            for part in (self.backbone, self.neck, self.bbox_head):
                part.requires_grad_(False)

    def loss(self, batch_inputs: Tensor, batch_data_samples: list) -> dict:
        """The losses of both; those of the latter begin with ``planted_``."""
        losses = {}
        if 'silent' not in self.planted.mistake:
            losses = super().loss(batch_inputs, batch_data_samples)
        boxes = sum(len(sample.gt_instances) for sample in batch_data_samples)
        kind = 'normal' if boxes else 'empty'
        more = self.planted(batch_inputs.mean((2, 3)), kind)
        losses |= {f'planted_{key}': more[key] for key in more}
        if self.planted.mistake == 'container':
            return OwnDict(losses)
        return losses

    def parse_losses(self, losses: dict) -> tuple:
        """As MMEngine's, with what is used outside of the forward."""
        loss, logs = super().parse_losses(losses)
        if self.planted.mistake == 'extra outside':
            loss = loss + sum(p.sum() for p in self.planted.extra.parameters())
        return loss, logs


class OwnStepDetector(PlantedDetector):
    """Does more in a step than DDP's wrapper would."""

    def train_step(self, data: Any, optim_wrapper: OptimWrapper) -> dict:
        """As MMEngine's, and a count."""
        self.count = getattr(self, 'count', 0) + 1
        return super().train_step(data, optim_wrapper)


class Untold(int):
    """A number that must not be asked whether it is 0."""

    def __bool__(self) -> bool:
        """Raises."""
        raise RuntimeError('ask something else')


@HOOKS.register_module()
class TrainableFrom(Hook):
    """Sets whether a part is trained, from an epoch or an iteration on."""

    def __init__(self, part: str, train: bool, **begin: int) -> None:
        self.part, self.train = part, train
        self.begin = begin.get('epoch', begin.get('iter', 0))
        self.by_epoch = 'iter' not in begin

    def before_train_epoch(self, runner: Runner) -> None:
        """Look at the epoch."""
        if self.by_epoch and runner.epoch == self.begin:
            self._set(runner)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Look at the iteration."""
        if not self.by_epoch and runner.iter == self.begin:
            self._set(runner)

    def _set(self, runner: Runner) -> None:
        part = runner.model.get_submodule(self.part)
        part.requires_grad_(self.train)


class BackboneOnlyConstructor(DefaultOptimWrapperConstructor):
    """Leaves out all but the backbone."""

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """The wrapper of the backbone's optimizer."""
        return super().__call__(model.backbone)


MODELS.register_module(module=PlantedDetector, force=True)
MODELS.register_module(module=OwnStepDetector, force=True)
OPTIM_WRAPPER_CONSTRUCTORS.register_module(
    module=BackboneOnlyConstructor, force=True
)
