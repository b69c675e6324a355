"""Run a host's head with its own losses, and with ours in their place."""

import warnings
from collections.abc import Callable

import torch
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope, Registry
from torch import nn

THEIRS = 'CrossEntropyLoss'
OURS = 'mmext.CheckedCrossEntropyLoss'


def replace_type(value: object) -> object:
    """A copy of a config with our loss for the host's, at any depth."""
    if isinstance(value, dict):
        return {key: replace_type(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace_type(item) for item in value)
    return OURS if value == THEIRS else value


def build_pair(
    registry: Registry, scope: str, cfg: dict
) -> tuple[nn.Module, nn.Module]:
    """The head as it is, and with our losses; with the same parameters."""
    heads = []
    for value in (cfg, replace_type(cfg)):
        torch.manual_seed(0)
        with (
            DefaultScope.overwrite_default_scope(scope),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter('ignore')  # of avg_non_ignore
            heads.append(registry.build(ConfigDict(value)))
    theirs, ours = heads
    count = [
        sum(type(module).__name__ == name for module in head.modules())
        for head, name in ((theirs, THEIRS), (ours, OURS.split('.')[1]))
    ]
    assert count[0] == count[1] > 0
    assert THEIRS not in {type(m).__name__ for m in ours.modules()}
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs.train(), ours.train()


def _total(losses: object) -> torch.Tensor:
    """Sum of all losses, accuracies left out."""
    if isinstance(losses, torch.Tensor):
        return losses.sum()
    if isinstance(losses, dict):
        losses = [v for k, v in losses.items() if 'loss' in k]
    return sum(_total(loss) for loss in losses)


def assert_drop_in(
    registry: Registry,
    scope: str,
    cfg: dict,
    run: Callable[[nn.Module], object],
    tolerance: float = 1e-5,
) -> None:
    """Both give the same losses, and the same gradient to each parameter.

    Args:
        registry: Of the host.
        scope: Of the host.
        cfg: Of the head, with ``CrossEntropyLoss`` in it.
        run: Its losses: tensors in dicts and lists, on the same data at each
            call.
        tolerance: Relative, and to the largest gradient of a parameter.
    """
    results = []
    for head in build_pair(registry, scope, cfg):
        torch.manual_seed(1)
        with (
            DefaultScope.overwrite_default_scope(scope),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter('ignore', DeprecationWarning)
            losses = run(head)
        _total(losses).backward()
        grads = {n: p.grad for n, p in head.named_parameters()}
        results.append((losses, grads))
    (expected, grads), (losses, our_grads) = results
    torch.testing.assert_close(
        losses, expected, rtol=tolerance, atol=tolerance
    )
    moved = 0
    for name, grad in grads.items():
        if grad is None:
            assert our_grads[name] is None, name
            continue
        moved += bool(grad.abs().max() > 0)
        torch.testing.assert_close(
            our_grads[name],
            grad,
            rtol=0,
            atol=tolerance * float(grad.abs().max()) + 1e-12,
            msg=lambda text, name=name: f'{name}: {text}',
        )
    assert moved
