"""What tests need that rehearse a step."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine import Config
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope

from mmext.checks import rehearse
from mmext.checks.device import Rehearsal
from mmext.checks.device.recorder import Recorder
from mmext.checks.device.rehearse import parameters_stay
from mmext.checks.device.tensor import watched_device
from mmext.checks.preflight.batches import make_batches
from mmext.checks.preflight.build import build_for_preflight

# What PyTorch 2.13 has, and older ones lack.
SETUP = '_setup_privateuseone_for_python_backend'
HAS_DEVICE = hasattr(torch.utils.backend_registration, SETUP)
needs_device = pytest.mark.skipif(not HAS_DEVICE, reason='needs PyTorch 2.13')


def step_on_cpu(model: BaseModel, batch: Any) -> SimpleNamespace:
    """The same step, losses and model of ``rehearse``, and nothing seen."""
    model, batch = copy.deepcopy((model, batch))
    data = model.train().data_preprocessor(batch, True)
    loss, losses = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    losses = {name: value.item() for name, value in losses.items()}
    return SimpleNamespace(losses=losses, reads={}, model=model)


def take_step(model: BaseModel, batch: Any) -> Rehearsal | SimpleNamespace:
    """A training step, on the device that watches where there is one."""
    return (rehearse if HAS_DEVICE else step_on_cpu)(model, batch)


@torch.no_grad()
def predict(model: BaseModel, batch: Any) -> tuple[list, Recorder]:
    """A prediction, on the device that watches where there is one."""
    recorder = Recorder(model)
    model, batch = copy.deepcopy((model, batch))
    model.eval()
    if not HAS_DEVICE:
        return model.test_step(batch), recorder
    with watched_device(recorder) as device:
        with parameters_stay():
            model.to(device)
        with recorder.watching():
            results = model.test_step(batch)
        return [sample.cpu() for sample in results], recorder


def build_with_batch(
    cfg: Config, size: tuple[int, int]
) -> tuple[BaseModel, Any, str]:
    """Model of a config, a batch for it, and the scope that both need."""
    built = build_for_preflight(cfg, size=size)
    (batches,) = make_batches(built, ('normal',), steps=1).values()
    return built.model, batches[0], built.scope


def take_first_step(
    cfg: Config, size: tuple[int, int]
) -> Rehearsal | SimpleNamespace:
    """A training step of the model of a config."""
    model, batch, scope = build_with_batch(cfg, size)
    with DefaultScope.overwrite_default_scope(scope):
        return take_step(model, batch)


def assert_trained(
    done: Rehearsal | SimpleNamespace, most_reads: int, most_loss: float
) -> None:
    """A sane loss, a gradient for all that trains, and few host reads."""
    assert 0 < done.losses['loss'] < most_loss
    without = [
        key
        for key, parameter in done.model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    assert not without
    assert sum(done.reads.values()) <= most_reads, str(done)
