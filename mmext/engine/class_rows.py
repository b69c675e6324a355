"""Weights of a model for other classes than it was trained with.

The rows of a classifier belong to classes. Where a model is built for other
ones, the rows of classes of the same name are brought to their new places, and
the others stay as the model was initialised.

K classes have ``a * K + b`` rows: 1 each; 1 each and one for the background
at the end; 4 each for a box per class; 1 each for every anchor.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..checks.config import copy_tree, walk_dicts
from ..checks.findings import ErrorCatcher

# The layer that rates a query, in the public CO-DETR models, too.
_CO_DETR = 'query_head.cls_branches.0.bias'
_NUM_COCO = 80
_MAX_NAMES = 5


def checkpoint_metainfo(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``meta`` of a checkpoint says of its data: ``classes``, ...

    Understands MMEngine's ``dataset_meta``, with keys in any case, and the
    ``CLASSES`` and ``PALETTE`` of mmdet 2; empty if there is neither.
    """
    meta = meta or {}
    info = {
        key.lower(): value
        for key, value in (meta.get('dataset_meta') or {}).items()
    }
    if not info.get('classes') and meta.get('CLASSES'):
        info = {'classes': meta['CLASSES'], 'palette': meta.get('PALETTE')}
    return info


class _Layout(NamedTuple):
    """Dimension of the rows of classes: ``rows`` per class, ``rest`` more."""

    dim: int
    rows: int
    rest: int
    by_class: bool

    def index(self, label: int, count: int) -> list[int]:
        """Rows of a class, of ``count``."""
        if self.by_class or self.rows == 1:
            return [label * self.rows + j for j in range(self.rows)]
        block = count + self.rest // self.rows
        return [j * block + label for j in range(self.rows)]

    def others(self, count: int) -> list[int]:
        """Rows of no class: of the background."""
        known = {i for k in range(count) for i in self.index(k, count)}
        size = count * self.rows + self.rest
        return [i for i in range(size) if i not in known]


def _layout(
    name: str, sizes: tuple[torch.Size, torch.Size], counts: tuple[int, int]
) -> _Layout | None:
    """From the shapes for two numbers of classes; None if it is no such."""
    one, other = sizes
    if len(one) != len(other):
        return None
    dims = [dim for dim in range(len(one)) if one[dim] != other[dim]]
    if len(dims) != 1:
        return None
    (dim,) = dims
    rows, left = divmod(other[dim] - one[dim], counts[1] - counts[0])
    rest = one[dim] - rows * counts[0]
    if left or rows < 1 or rest < 0 or rest % rows or rest > rows:
        return None
    # Boxes are given class by class, scores anchor by anchor.
    module = name.rpartition('.')[0].rpartition('.')[2]
    return _Layout(dim, rows, rest, by_class='reg' in module)


class ClassRows:
    """Brings rows of weights from some classes to others, by name.

    Args:
        old: Names of the classes of the checkpoint, in its order.
        new: Names of those of the model.
        layouts: For as many new as old ones, where shapes do not tell: the
            layout of each parameter that depends on the classes.

    Attributes:
        same: Names in both, in the order of ``new``.
        copied: Name of a parameter -> rows that were copied, and all it has.
    """

    def __init__(
        self,
        old: Sequence[str],
        new: Sequence[str],
        layouts: Mapping[str, _Layout] | None = None,
    ) -> None:
        self.old, self.new = tuple(old), tuple(new)
        self.layouts = layouts
        self.same = [name for name in self.new if name in self.old]
        self.copied: dict[str, tuple[int, int]] = {}

    def adapt(self, name: str, value: Tensor, own: Tensor) -> Tensor:
        """What to load into the parameter ``own`` of a model.

        ``value`` itself, of the checkpoint, if it does not depend on the
        classes, or cannot be brought into the shape of ``own``.
        """
        counts = len(self.old), len(self.new)
        if self.layouts is not None:
            layout = self.layouts.get(name)
            if value.shape != own.shape:
                return value
        else:
            layout = _layout(name, (value.shape, own.shape), counts)
        if layout is None:
            return value
        source, target = layout.others(counts[0]), layout.others(counts[1])
        for label in self.same:
            source += layout.index(self.old.index(label), counts[0])
            target += layout.index(self.new.index(label), counts[1])
        result = own.detach().to('cpu', copy=True)
        result.index_copy_(
            layout.dim,
            torch.tensor(target, dtype=torch.long),
            value.to(result.dtype).index_select(
                layout.dim, torch.tensor(source, dtype=torch.long)
            ),
        )
        self.copied[name] = len(target), own.shape[layout.dim]
        return result


def _names(classes: Any) -> tuple[str, ...] | None:
    """Names of classes; None if there are none, or one name twice."""
    if isinstance(classes, str) or not classes:
        return None
    names = tuple(map(str, classes))
    return names if len(set(names)) == len(names) else None


def _probe(model: nn.Module, cfg: Any, count: int) -> dict[str, _Layout]:
    """Which parameters depend on the number of classes, by building another.

    A model for one class more is built and thrown away.
    """
    other = ConfigDict(copy_tree(cfg))
    for path, part in walk_dicts(other):
        # An RPN knows one class, whatever its detector knows.
        if part.get('num_classes') == count and 'rpn_head' not in path:
            part['num_classes'] = count + 1
    with torch.random.fork_rng(devices=[]):
        shapes = {
            name: value.shape
            for name, value in MODELS.build(other).named_parameters()
        }
    layouts = {}
    for name, value in model.named_parameters():
        sizes = (value.shape, shapes.get(name, value.shape))
        layout = _layout(name, sizes, (count, count + 1))
        if layout is not None:
            layouts[name] = layout
    return layouts


def class_rows(
    model: nn.Module,
    cfg: Any,
    classes: Any,
    meta: Mapping[str, Any],
    weights: Mapping[str, Tensor],
) -> ClassRows | None:
    """What brings a checkpoint's rows to a model, if its classes are others.

    ``classes`` are those of the training data, ``meta`` and ``weights`` of the
    checkpoint. None if they are the same, or not known on both sides.
    """
    old = _names(checkpoint_metainfo(meta).get('classes'))
    new, bias = _names(classes), weights.get(_CO_DETR)
    if old is None and bias is not None and len(bias) == _NUM_COCO:
        # The public ones of COCO do not say it. Here, as it loads data sets.
        from mmdet.datasets import CocoDataset

        old = tuple(CocoDataset.METAINFO['classes'])
    if old is None or new is None or old == new:
        return None
    if len(old) != len(new):
        return ClassRows(old, new)
    # A model may be for its number of classes only.
    reasons: list[Any] = []
    layouts: dict[str, _Layout] = {}
    with ErrorCatcher(reasons.append):
        layouts = _probe(model, cfg, len(new))
    if not layouts:
        reasons.append(f'num_classes={len(new)} is nowhere in the config')
        print_log(
            'The checkpoint is of other classes, as many as the training '
            f'data have ({", ".join(old[:_MAX_NAMES])}, ...), and which '
            f'weights belong to them cannot be found out ({reasons[0]}): they '
            'are loaded as they are, the first for the first',
            logger='current',
            level=logging.WARNING,
        )
        return None
    return ClassRows(old, new, layouts)
