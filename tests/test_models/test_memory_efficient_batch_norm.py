"""MemoryEfficientBatchNorm against PyTorch's BatchNorm2d."""

from collections.abc import Callable

import pytest
import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from torch import Tensor, nn

import mmext
from mmext.models import MemoryEfficientBatchNorm


def _norms(
    trained: bool = False,
    training: bool = False,
    dtype: torch.dtype = torch.float32,
    **settings: bool,
) -> tuple[MemoryEfficientBatchNorm, nn.BatchNorm2d]:
    """Ours and PyTorch's, of the same random state."""
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(5, eps=1e-3, **settings)
    for name, values in theirs.state_dict().items():
        if values.is_floating_point():
            nn.init.uniform_(values, 0.1 if 'var' in name else -2, 4)
    ours = MemoryEfficientBatchNorm(5, eps=1e-3, **settings)
    ours.load_state_dict(theirs.state_dict())
    for norm in (ours, theirs):
        norm.requires_grad_(trained).train(training).to(dtype)
    return ours, theirs


def _bytes_kept(run: Callable[[], Tensor]) -> int:
    """Bytes of what autograd keeps for the backward pass of a call."""
    sizes = {}

    def keep(x: Tensor) -> Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        run().sum().backward()
    return sum(sizes.values())


@pytest.mark.parametrize('trained', [False, True])
@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(
    'memory_format', [torch.contiguous_format, torch.channels_last]
)
@pytest.mark.parametrize(
    'settings', [{}, {'affine': False}, {'track_running_stats': False}]
)
def test_it_is_batch_norm(
    trained: bool,
    training: bool,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    settings: dict[str, bool],
) -> None:
    """Values, gradients, and statistics that training updates."""
    norms = _norms(trained, training, dtype, **settings)
    x = torch.randn(2, 5, 7, 6, dtype=dtype).to(memory_format=memory_format)
    given = torch.randn(2, 5, 7, 6, dtype=dtype)
    results = []
    for norm in norms:
        leaf = x.clone().requires_grad_()
        out = norm(leaf)
        assert out.is_contiguous(memory_format=memory_format)
        leaves = [leaf, *(p for p in norm.parameters() if p.requires_grad)]
        grads = torch.autograd.grad(out, leaves, given)
        results.append([out, *grads, *norm.buffers()])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_gradients_of_gradients() -> None:
    ours, _ = _norms(dtype=torch.float64)
    x = torch.randn(2, 5, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, x)
    assert torch.autograd.gradgradcheck(ours, x)


def test_bfloat16_with_statistics_of_float32() -> None:
    """What autocast asks for."""
    ours, theirs = _norms()
    grads = []
    for norm in (ours, theirs):
        torch.manual_seed(1)
        leaf = torch.randn(2, 5, 7, 6).bfloat16().requires_grad_()
        norm(leaf).square().sum().backward()
        grads.append(leaf.grad)
    assert grads[0].dtype == torch.bfloat16
    torch.testing.assert_close(*grads)


def test_it_keeps_no_activations() -> None:
    ours, theirs = _norms()
    x = torch.randn(2, 5, 32, 32, requires_grad=True)
    assert _bytes_kept(lambda: theirs(x)) >= x.nbytes
    assert _bytes_kept(lambda: ours(x)) <= 2 * 5 * 4
    # Gradients of weight and bias need the input.
    assert _bytes_kept(lambda: ours.requires_grad_()(x)) >= x.nbytes


def test_wrong_shapes_are_an_error() -> None:
    ours, _ = _norms()
    with pytest.raises(ValueError, match='4D'):
        ours(torch.randn(2, 5, requires_grad=True))
    with pytest.raises(RuntimeError, match='running_mean'):
        ours(torch.randn(2, 4, 3, 3, requires_grad=True))


def test_it_compiles_and_exports() -> None:
    ours, theirs = _norms()
    x = torch.randn(2, 5, 4, 4)
    program = torch.export.export(ours, (x.requires_grad_(),))
    torch.testing.assert_close(program.module()(x), theirs(x))
    traced = torch.jit.trace(ours, x)
    torch.testing.assert_close(traced(x), theirs(x))


def _backbone(norm: str) -> nn.Module:
    torch.manual_seed(0)
    base = '_base_/models/co_dino_5scale_r50.py'
    cfg = Config.fromfile(mmext.config_path(base))
    cfg = cfg.model.backbone
    cfg.init_cfg = None
    cfg.norm_cfg.type = norm
    net = MODELS.build(cfg)
    net.train()
    return net


def test_backbone_of_the_config_keeps_half() -> None:
    """R50 of CO-DINO: same state dict, optimizer, values and gradients."""
    ours, theirs = _backbone('mmext.MemoryEfficientBatchNorm'), _backbone('BN')
    theirs.load_state_dict(ours.state_dict())
    trained, others = (
        [(name, p.requires_grad) for name, p in net.named_parameters()]
        for net in (ours, theirs)
    )
    assert trained == others
    x = torch.randn(1, 3, 64, 64)
    kept = [
        _bytes_kept(lambda net=net: sum(out.mean() for out in net(x)))
        for net in (ours, theirs)
    ]
    weights = sum(p.nbytes for p in ours.parameters())
    assert kept[0] - weights < 0.6 * (kept[1] - weights)
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)
