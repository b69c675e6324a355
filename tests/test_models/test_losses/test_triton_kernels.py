"""The kernels compile for GPUs that are not here."""

import pytest

from mmext.models.losses import _triton_kernels as kernels
from mmext.models.losses._pixel_targets import LN_2, TOO_LARGE

CONSTANTS = {
    'pixel_kernel': {
        'LN_2': LN_2,
        'TOO_LARGE': TOO_LARGE,
        'WITH_MAP': True,
        'PIXELS': 256,
    },
    'source_kernel': {'SOURCES': 16, 'ROWS': 16, 'COLUMNS': 32},
}
INT32 = {'row_sources', 'column_sources', 'target_map'}
INT64 = {'row_start', 'row_stop', 'column_start', 'column_stop', 'hits'}
NUMBERS = {
    'classes',
    'low_height',
    'low_width',
    'height',
    'width',
    'blocks',
    'row_tiles',
    'column_tiles',
}


def type_of(name: str) -> str:
    if name in NUMBERS:
        return 'i32'
    if name in INT32:
        return '*i32'
    return '*i64' if name in INT64 else '*fp32'


@pytest.mark.parametrize('smooth', [False, True])
@pytest.mark.parametrize('capability', [80, 90])
@pytest.mark.parametrize('name', list(CONSTANTS))
def test_compiles_without_atomics_and_tf32(
    name, capability, smooth, tmp_path, monkeypatch
):
    triton = pytest.importorskip('triton', minversion='3.4')
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    kernel = getattr(kernels, name)
    constants = {**CONSTANTS[name], 'SMOOTH': smooth}
    signature = {
        argument: 'constexpr' if argument in constants else type_of(argument)
        for argument in kernel.arg_names
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget('cuda', capability, 32))
    ptx = compiled.asm['ptx']
    assert 'fma.rn.f32' in ptx
    assert 'atom.' not in ptx
    assert 'tf32' not in ptx


def test_loads_without_triton():
    """Every module is imported on machines that lack it."""
    assert callable(kernels.pixel_kernel) or kernels.HAS_TRITON
    assert set(kernels.__all__) <= set(vars(kernels))
