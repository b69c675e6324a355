"""The range of labels: which values are classes, and which is ignored.

The checks of labels and of configs, and the hooks of a training, all go by a
:class:`LabelSpec`. It is read from a config by :mod:`mmext.checks.config`,
and from a model, or the part of a config that builds one, here. Only msgspec
is loaded, as processes that read label files know ranges, too.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

# Where hosts keep the head that names the classes, best first. Not all
# modules with `num_classes`: that of an RPN is 1, that of a semantic branch
# counts other classes.
_HEADS = (
    'panoptic_fusion_head',
    'bbox_head',
    'roi_head.bbox_head',
    'mask_head',
    'panoptic_head',
    'decode_head',
    'head',
)


class LabelSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of labels.

    Attributes:
        num_classes: Labels are in ``[0, num_classes)``; 0 if not known.
        classes: Their names; empty if not known.
        ignore_index: Value of pixels that are ignored; None for none.
        reduce_zero_label: The loader turns 0 into 255 and n into n - 1.
    """

    num_classes: int = 0
    classes: tuple[str, ...] = ()
    ignore_index: int | None = 255
    reduce_zero_label: bool = False


class HeadSpec(LabelSpec, frozen=True, kw_only=True, omit_defaults=True):
    """The range of labels of a head, or of a model.

    Attributes:
        place: Where in the config, such as ``'model.decode_head'``.
        class_weights: For each loss, its place and its weights, one for
            each class; as the config has them, whatever their type.
        weight_files: For each loss whose weights are in a file, its place
            and the file's path.
        losses: Place and type of each loss.
        of_masks: It gives a class to each of some masks, as Mask2Former's,
            and its losses have a weight for masks of no class, too.
    """

    place: str
    ignore_index: int | None = None
    class_weights: tuple[tuple[str, tuple[float, ...]], ...] = ()
    weight_files: tuple[tuple[str, str], ...] = ()
    losses: tuple[tuple[str, str], ...] = ()
    of_masks: bool = False


class IgnorePlace(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A place of a config with a value to ignore, or to fill with.

    Attributes:
        place: Such as ``'val_evaluator.ignore_index'``.
        value: There, or by default.
        role: ``'loss'``: its pixels are ignored by a loss, or by what else
            fails at labels out of range; ``'metric'``: by a metric;
            ``'look'``: by what only looks at label maps, to choose a crop or
            draw edges; ``'fill'``: it is written into label maps; ``'pad'``:
            it is written where an image is too small.
        said: The config says so; False for a default.
        kind: Type of the component.
        pads: Of the role ``'pad'``: ``'always'`` if some images are
            certainly too small, ``'stored'`` if those are that are stored
            smaller than ``size``, ``'perhaps'`` if it is not known.
        size: Height and width in pixels that images are padded to.
    """

    place: str
    value: int
    role: str = 'loss'
    said: bool = True
    kind: str = ''
    pads: str = ''
    size: tuple[int, ...] = ()


def _unwrap(model: Any) -> Any:
    # Not at the top, as it loads torch.
    from mmengine.model import BaseTTAModel, is_model_wrapper

    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def _get(module: Any, path: str) -> Any:
    for name in path.split('.'):
        module = getattr(module, name, None)
    return module


def heads_of_model(model: Any) -> tuple[HeadSpec, ...]:
    """The number of classes that a model is built for, by config key.

    The model's own attribute ``num_classes`` counts, else that of its heads; a
    segmentor of mmseg copies that attribute from its head, which is where the
    config has it. Empty if the model does not say, or knows objects only,
    whatever their class, as a region proposal network.

    Args:
        model: The model, in wrappers or not; or its config, whose keys are
            attributes.
    """
    # Not at the top: this loads the models of MMDetection.
    from mmdet.models.detectors import RPN

    model = _unwrap(model)
    if isinstance(model, RPN):
        return ()
    own = getattr(model, 'num_classes', None)
    if isinstance(own, int) and not hasattr(model, 'decode_head'):
        return (HeadSpec(place='model', num_classes=own),)
    return tuple(
        HeadSpec(place=f'model.{key}', num_classes=head.num_classes)
        for key, head in _parts(model)
        if isinstance(getattr(head, 'num_classes', None), int)
    )


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Heads that classify, each with its key."""
    from torch.nn import ModuleList

    for path in _HEADS:
        head = _get(model, path)
        if isinstance(head, ModuleList | list | tuple):
            yield from (
                (f'{path}[{number}]', part) for number, part in enumerate(head)
            )
        elif head is not None:
            yield path, head
        if head is not None and path == 'panoptic_fusion_head':
            # The other heads know things, or stuff, only.
            return


def class_vocabulary(model: Any, training: bool) -> Any:
    """Class embeddings that a model classifies by, or None."""
    method = _get(_unwrap(model), 'query_head.class_vocabulary')
    return None if method is None else method(training)
