"""Write a model as an ONNX file or as a program of PyTorch, and check it."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from unittest.mock import Mock, patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...utils.files import atomic_path
from ...version import __version__
from ..detector import inference_pipeline
from .exported_models import (
    BOX_TOLERANCE,
    SCORE_TOLERANCE,
    ExportableModel,
    ExportError,
    make_exportable,
)

# Heights and widths, in pixels, and numbers of pictures to check a file at.
_CHECKED_SIZES = ((160, 192), (224, 160), (256, 320))
_CHECKED_BATCHES = (1, 3)
_TRACED = 192, 256
_OPSET = 17
_LIMITS = {'boxes': BOX_TOLERANCE, 'scores': SCORE_TOLERANCE}
# Pictures that are tried until one is no matter of rounding.
_TRIES = 10
_INPUT = (
    'images: float32, (batch, 3, height, width), channels red green blue, '
    'values 0 to 255, all pictures of a batch of the same size; the mean is '
    'subtracted inside'
)

Run = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how exact it is.

    Attributes:
        path: The file.
        outputs: Names of what it computes.
        checks: Per check the shape of the input, and the largest differences
            from the model: ``boxes`` in pixels, ``scores``.
        left_out: What the prediction of the model does and the file does not.
        metadata: What the file says about itself.
    """

    path: Path
    outputs: tuple[str, ...]
    checks: tuple[tuple[tuple[int, ...], dict[str, float]], ...]
    left_out: tuple[str, ...]
    metadata: dict[str, str]

    def worst(self) -> dict[str, float]:
        """The largest differences of all checks."""
        return {
            name: max(apart[name] for _, apart in self.checks)
            for name in self.checks[0][1]
        }


def export_model(
    model: nn.Module,
    path: str | Path,
    *,
    kind: str = 'onnx',
) -> ExportReport:
    """Write a model as a file that runs without this package.

    The file takes any number of pictures of any size, see
    :class:`~.exported_models.ExportableDetector` and
    :class:`~.exported_models.ExportableSegmentor` for what goes in
    and comes out. It is checked before it appears under its name: generated
    pictures of three sizes, one and three at once, must give what
    ``model.test_step`` predicts without NMS and score threshold.

    Args:
        model: From :func:`~mmext.apis.load_detector`: a CO-DINO or a
            segmentor of mmseg, on the CPU, in eval mode.
        path: The file.
        kind: ``'onnx'``, or ``'pt2'`` for ``torch.export.load``.

    Returns:
        What was written.

    Raises:
        ExportError: If the file computes something else, or has operators
            that are not of ONNX's own. There is no file then.
        ImportError: If a package that ONNX needs is not there.
        ValueError: If the model cannot be exported, or ``kind`` is unknown.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be 'onnx' or 'pt2', got {kind!r}")
    _require_packages(kind)
    wrapped = make_exportable(model.eval()).eval()
    write, load = _KINDS[kind]
    metadata = _describe(wrapped)
    divisor = wrapped.size_divisor
    sizes = [_whole(size, divisor) for size in _CHECKED_SIZES]
    with torch.no_grad(), _quiet(), atomic_path(path) as temporary:
        with wrapped.traceable():
            write(wrapped, temporary, metadata)
        run = load(temporary, wrapped)
        checks = tuple(
            ((batch, 3, *size), _check(run, wrapped, batch, size))
            for size, batch in product(sizes, _CHECKED_BATCHES)
        )
    left_out = tuple(wrapped.left_out)
    return ExportReport(
        Path(path), wrapped.outputs, checks, left_out, metadata
    )


def _whole(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    """The next size of which both sides are multiples."""
    height, width = (-(-side // divisor) * divisor for side in size)
    return height, width


def _require_packages(kind: str) -> None:
    if kind == 'pt2':
        if not hasattr(torch.compiler, 'is_exporting'):
            raise ImportError(
                'an export to .pt2 needs PyTorch 2.7 or later, got '
                f'{torch.__version__}; update it, or export to ONNX'
            )
        return
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'an export to ONNX needs the package {error.name}, which is not '
            'there; install it with pip install "mmext[onnx]"'
        ) from error


def _describe(model: ExportableModel) -> dict[str, str]:
    """What the file says about itself, as texts."""
    inner = model.model
    preprocessor = inner.data_preprocessor
    facts = {
        'classes': list(inner.dataset_meta['classes']),
        'size_divisor': model.size_divisor,
        # How the test prepares its pictures.
        'resize': [
            step
            for step in inference_pipeline(inner.cfg)
            if str(step['type']).endswith(('Resize', 'Pad'))
        ],
        'outputs': list(model.outputs),
        'left_out': model.left_out,
        'completion': model.completion,
    }
    if preprocessor._enable_normalize:
        for name in ('mean', 'std'):
            values = getattr(preprocessor, name).flatten().numpy()
            # The shortest text of a float32, as it stands in the config.
            facts[name] = [float(str(value)) for value in values]
    return {
        'task': model.task,
        'input': _INPUT,
        'mmext_version': __version__,
        **{key: json.dumps(value) for key, value in facts.items()},
    }


def _pictures(batch: int, size: Sequence[int], seed: int) -> Tensor:
    """Patches of colours below noise, ``(B, 3, H, W)``, whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, 6, 7, generator=generator) * 200
    noise = torch.rand(batch, 3, *size, generator=generator) * 55
    return (F.interpolate(coarse, tuple(size)) + noise).floor()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress and the warnings of the exporters."""
    logger = logging.getLogger('torch.onnx')
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # Where it fails, the exporter prints the whole graph.
        log = patch.object(torch._C, '_jit_onnx_log', Mock(), create=True)
        with warnings.catch_warnings(), log:
            warnings.simplefilter('ignore')
            yield
    finally:
        logger.setLevel(level)


def _write_onnx(
    model: ExportableModel, path: Path, metadata: Mapping[str, str]
) -> None:
    import onnx

    dynamic = {'images': {0: 'batch', 2: 'height', 3: 'width'}}
    for name in model.outputs:
        dynamic[name] = {0: 'batch', **model.variable}
    # The exporter on top of torch.export takes 40 times as long for CO-DINO:
    # it reasons about every size. Old ones of PyTorch have no other.
    has_both = 'dynamo' in signature(torch.onnx.export).parameters
    try:
        torch.onnx.export(
            model,
            (_pictures(2, _whole(_TRACED, model.size_divisor), seed=0),),
            str(path),
            input_names=['images'],
            output_names=list(model.outputs),
            dynamic_axes=dynamic,
            opset_version=_OPSET,
            **({'dynamo': False} if has_both else {}),
        )
    except torch.onnx.OnnxExporterError as error:
        what = str(error).split('. ')[0].split('  [')[0]
        raise ExportError(
            'the model must have operators that ONNX has for every size, got '
            f'"{what}" from PyTorch; no file was written, --pt2 may do'
        ) from error
    written = onnx.load(path)
    onnx.helper.set_model_props(written, dict(metadata))
    onnx.checker.check_model(written)
    # Operators that are not of ONNX's own end the check, which runs it.
    onnx.save(written, path)


@contextmanager
def _ends_export(*kinds: type[Exception]) -> Iterator[None]:
    """A file that does not run is a wrong one."""
    try:
        yield
    except kinds as error:
        reason = str(error).strip().partition('\n')[0]
        raise ExportError(
            'the file must run at every size and number of pictures, got '
            f'"{reason}"; no file was written. A part of the model, such as '
            'its backbone, may keep the size that it was traced with'
        ) from error


def _load_onnx(path: Path, model: ExportableModel) -> Run:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    failures = (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.NotImplemented,
        errors.RuntimeException,
    )

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what ends a run is raised
    with _ends_export(*failures):
        session = onnxruntime.InferenceSession(
            str(path), options, providers=['CPUExecutionProvider']
        )

    def run(images: Tensor) -> dict[str, Tensor]:
        with _ends_export(*failures):
            arrays = session.run(model.outputs, {'images': images.numpy()})
        return dict(zip(model.outputs, map(torch.from_numpy, arrays)))

    return run


def _write_program(
    model: ExportableModel, path: Path, metadata: Mapping[str, str]
) -> None:
    divisor, dim = model.size_divisor, torch.export.Dim
    # Batch, height and width of the input are variable.
    dynamic = {
        0: dim('batch'),
        2: divisor * dim('rows'),
        3: divisor * dim('columns'),
    }
    if divisor == 1:
        # The model tells the smallest size.
        dynamic = dict.fromkeys((0, 2, 3), dim.DYNAMIC)
    # PyTorch 2.6 or newer.
    from torch.fx.experimental import _config as fx_config

    # The coarsest maps of PIDNet have one row in the example, and may have
    # more; those of CO-DINO have several, and a batch may have one picture.
    with fx_config.patch(backed_size_oblivious=divisor > 1):
        program = torch.export.export(
            model,
            (_pictures(2, _whole(_TRACED, model.size_divisor), seed=0),),
            dynamic_shapes=(dynamic,),
        )
    extra = {'metadata.json': json.dumps(dict(metadata))}
    torch.export.save(program, path, extra_files=extra)


def _load_program(path: Path, model: ExportableModel) -> Run:
    module = torch.export.load(path).module()

    def run(images: Tensor) -> dict[str, Tensor]:
        # What an exported program says of a size that it is not for.
        with _ends_export(AssertionError, RuntimeError):
            return dict(zip(model.outputs, module(images)))

    return run


_KINDS = {
    'onnx': (_write_onnx, _load_onnx),
    'pt2': (_write_program, _load_program),
}


def _check(
    run: Run, model: ExportableModel, batch: int, size: tuple[int, int]
) -> dict[str, float]:
    """Largest differences at one shape; ExportError if one is too large."""
    images = _pictures(batch, size, seed=1)
    for seed in range(2, 2 + _TRIES):
        expected, computed = model.predict(images), run(images)
        if not all(array.isfinite().all() for array in computed.values()):
            raise ExportError(
                'the file must give finite numbers, got NaN or inf for '
                f'{batch} pictures of {size[0]} x {size[1]}; no file was '
                'written'
            )
        differences = [
            model.differences(_picture(computed, i), _picture(expected, i))
            for i in range(batch)
        ]
        names = differences[0].keys()
        apart = {name: max(one[name] for one in differences) for name in names}
        bad = [
            i
            for i, one in enumerate(differences)
            if not all(one[name] <= _LIMITS[name] for name in names)
        ]
        if not bad:
            return apart
        if not all(model.is_tied(images[i : i + 1]) for i in bad):
            break
        images[bad] = _pictures(batch, size, seed)[bad]
    raise ExportError(
        'the file must compute what the model does, got differences of '
        + ', '.join(
            f'{apart[name]:.2g} in {name} (at most {_LIMITS[name]})'
            for name in apart
        )
        + f' for {batch} pictures of {size[0]} x {size[1]}; no file was '
        'written'
    )


def _picture(arrays: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """One picture of a batch, as a batch."""
    return {name: array[index : index + 1] for name, array in arrays.items()}
