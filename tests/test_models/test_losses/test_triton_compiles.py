"""The Triton kernels compile for GPUs that this machine does not have."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch

from mmext.models.losses import resized_logits

triton = pytest.importorskip('triton', minversion='3.4')

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

CLASSES = 19
# Source and result: Triton compiles anew for integers that are 1, and for
# those that 16 divides.
SIZES = [((32, 64), (128, 256)), ((33, 50), (100, 77)), ((1, 3), (1, 5))]
# Bytes of registers that a thread spills, and its registers, in ptxas -v.
USE = re.compile(
    r'(\d+) bytes spill stores, (\d+) bytes spill loads'
    r'.*?Used (\d+) registers',
    re.DOTALL,
)


def run_losses(source, size, dtype):
    """Call what launches kernels, forward and backward."""
    logits = torch.randn(2, CLASSES, *source).to(dtype).requires_grad_()
    label = torch.randint(0, CLASSES, (2, *size))
    resized = resized_logits.ResizedLogits(logits, size)
    for smoothing in (0.0, 0.1):
        resized.cross_entropy_sum(
            label, label > 1, label_smoothing=smoothing
        ).backward()
    resized.nll(label, label > 1).sum().backward()


def functions_of(kernel):
    """The kernel itself, and all that are compiled into it."""
    names = kernel.fn.__code__.co_names
    for value in map(kernel.fn.__globals__.get, names):
        if isinstance(value, JITFunction):
            yield from functions_of(value)
    yield kernel


@pytest.mark.parametrize('capability', [80, 90])
def test_kernels_spill_no_register(capability, tmp_path, monkeypatch, capsys):
    launches = {}
    run = JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **options):
        # Triton's own path of a launch, from the arguments to ptxas.
        compiled = run(kernel, *args, grid=grid, warmup=True, **options)
        log = capsys.readouterr().out
        launches.setdefault(compiled, (kernel, log))
        return compiled

    # Compiled kernels are kept per device, so each target has its own.
    target = GPUTarget('cuda', capability, 32)
    device = SimpleNamespace(
        get_current_device=lambda: capability,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: target,
    )
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    # Triton prints what ptxas writes.
    monkeypatch.setenv('TRITON_DUMP_PTXAS_LOG', '1')
    monkeypatch.setattr(driver, '_active', device)
    monkeypatch.setattr(JITFunction, 'run', compile_only)
    monkeypatch.setattr(resized_logits, 'can_use_triton', lambda logits: True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for source, size in SIZES:
            run_losses(source, size, dtype)

    spilled = []
    for compiled, (kernel, log) in launches.items():
        (use,) = USE.findall(log)
        stores, loads, registers = map(int, use)
        line = (
            f'{kernel.fn.__name__}: {registers} registers, {stores} bytes '
            f'spilled, {loads} loaded, with {compiled.src.constants}'
        )
        print(line)
        if stores or loads:
            spilled.append(line)
        ptx = compiled.asm['ptx']
        assert 'fma.rn.f32' in ptx
        # Neither results that vary, nor products of three digits.
        assert 'atom.' not in ptx
        assert 'tf32' not in ptx
    assert not spilled, spilled
    ours = {
        value
        for name, module in list(sys.modules.items())
        if name.partition('.')[0] == 'mmext'
        for value in vars(module).values()
        if isinstance(value, JITFunction)
    }
    kernels = {kernel for kernel, _ in launches.values()}
    compiled_in = {f for kernel in kernels for f in functions_of(kernel)}
    assert ours == compiled_in, 'no test launches these'
