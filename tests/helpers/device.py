"""What tests need that rehearse a step, or a part of it."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine import Config
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from mmext.checks import rehearse
from mmext.checks.device import Rehearsal, is_available
from mmext.checks.device.rehearse import Recorder, parameters_stay
from mmext.checks.device.tensor import watched_device
from mmext.checks.preflight.batches import make_batches
from mmext.checks.preflight.build import build_for_preflight

needs_device = pytest.mark.skipif(
    not is_available(), reason='needs PyTorch 2.13'
)


def device_waits(function: Callable, *values: Any) -> list[str]:
    """Where the host waits for the device in a function, or copies to it.

    The function gets the values on the device: tensors, modules, which are
    moved themselves, samples, and lists of them.
    """
    recorder = Recorder(nn.Module())
    with watched_device(recorder) as device:
        moved = [_moved(value, device) for value in values]
        with recorder.watching():
            function(*moved)
    assert recorder.failure is None
    return [str(p) for p in (recorder.reads + recorder.uploads).elements()]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, Tensor):
        leaf = value.detach().to(device)
        return leaf.requires_grad_(value.requires_grad)
    return value.to(device)


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
    return (rehearse if is_available() else step_on_cpu)(model, batch)


@torch.no_grad()
def predict(model: BaseModel, batch: Any) -> tuple[list, Recorder]:
    """A prediction, on the device that watches where there is one."""
    recorder = Recorder(model)
    model, batch = copy.deepcopy((model, batch))
    model.eval()
    if not is_available():
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
