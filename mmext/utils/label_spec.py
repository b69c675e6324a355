"""The range of labels, and the likely cause of labels out of range.

The checks of labels and of configs, and the hooks of a training, all go by a
:class:`LabelSpec`. It is read from a config by :mod:`mmext.checks.config`,
and from a model, or the part of a config that builds one, here. Only msgspec
is loaded, as processes that read label files know ranges, too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

_CITYSCAPES_CLASSES = 19
_CITYSCAPES_LABEL_IDS = 33
_FEW_CLASSES = 2
_MANY_CODES = 3
# Data sets whose classes begin at 1, by the number of their classes.
_FROM_ONE = {150: 'ADE20K', 59: 'Pascal Context'}
_MAX_VALUES = 12
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
        location: Where in the config, such as ``'model.decode_head'``.
        class_weights: For each loss, its location and its weights, one for
            each class; as the config has them, whatever their type.
        weight_files: For each loss whose weights are in a file, its location
            and the file's path.
        losses: Location and type of each loss.
        of_masks: It gives a class to each of some masks, as Mask2Former's,
            and its losses have a weight for masks of no class, too.
    """

    location: str
    ignore_index: int | None = None
    class_weights: tuple[tuple[str, tuple[float, ...]], ...] = ()
    weight_files: tuple[tuple[str, str], ...] = ()
    losses: tuple[tuple[str, str], ...] = ()
    of_masks: bool = False


class IgnoreLocation(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A location of a config with a value to ignore, or to fill with.

    Attributes:
        location: Such as ``'val_evaluator.ignore_index'``.
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

    location: str
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
        return (HeadSpec(location='model', num_classes=own),)
    return tuple(
        HeadSpec(location=f'model.{key}', num_classes=head.num_classes)
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


def allowed_labels(
    num_classes: int, ignore_index: int | None, last: int
) -> str:
    """What labels must be; ``last`` is the largest one."""
    return (
        f'labels must be in [0, {last}] (num_classes={num_classes}, '
        f'ignore_index={ignore_index})'
    )


def values_text(values: Sequence[tuple[float, int]]) -> str:
    """The first values with their counts, and how many more there are."""
    shown = ', '.join(
        f'{value:g} ({count:,})'
        if isinstance(value, float)
        else f'{value} ({count:,})'
        for value, count in values[:_MAX_VALUES]
    )
    more = len(values) - _MAX_VALUES
    return shown + (f', and {more} more values' if more > 0 else '')


def likely_cause(
    num_classes: int,
    ignore_index: int | None,
    bad: Mapping[int, int],
    in_range: Collection[int],
    shape: tuple[int, ...],
) -> str:
    """The likely cause of labels out of range, and what to do about it.

    Args:
        num_classes: Of the head or the metric.
        ignore_index: The value that is no class; None for none.
        bad: Values out of range with their counts.
        in_range: Other values that occur.
        shape: Of the label maps, ``(N, H, W)`` if they are as they should be.
    """
    wrong, occurring = set(bad), {*bad, *in_range} - {ignore_index}
    # From the special to the general.
    if len(shape) == 4:
        return (
            'the masks have several channels, such as RGB colours; save '
            'them with one channel that holds the class index'
        )
    codes = {value for value in occurring if value % 32 in (0, 31)}
    if len(codes) >= _MANY_CODES and codes == occurring and max(codes) > 63:
        return (
            'the masks hold colours or grey levels (multiples of 32) instead '
            'of class indices; convert them, each colour to its class'
        )
    if (
        num_classes <= _FEW_CLASSES
        and wrong == {255}
        and occurring <= {0, 255}
    ):
        return (
            'the masks are black and white, 0 and 255; save them with 1 in '
            'place of 255, or map 255 to 1 by the label_map of the data set'
        )
    ids = {-1, *range(num_classes, _CITYSCAPES_LABEL_IDS + 1)}
    if (
        num_classes == _CITYSCAPES_CLASSES
        and wrong <= ids
        and wrong - {_CITYSCAPES_CLASSES}
    ):
        return (
            'these are the labelIds of Cityscapes, not its trainIds; make '
            "the *_labelTrainIds.png files with MMSegmentation's "
            'tools/dataset_converters/cityscapes.py, and let seg_map_suffix '
            'of the data set be _gtFine_labelTrainIds.png'
        )
    if wrong == {254}:
        return (
            'reduce_zero_label=True has turned the 255 of the masks into '
            '254; set reduce_zero_label=False, or write the masks with 0 '
            'where they have 255'
        )
    if wrong == {255}:
        return (
            '255 is what masks, padding (seg_pad_val of the data '
            'preprocessor) and reduce_zero_label mark as "to be ignored", '
            f'but the loss ignores {ignore_index}; set ignore_index=255 of '
            'the heads, or let masks and seg_pad_val hold the value that '
            'they ignore'
        )
    if len(wrong) == 1 and min(wrong) < 0:
        (value,) = wrong
        return (
            f'{value} often marks what is to be ignored, but the loss '
            f'ignores {ignore_index}; set ignore_index={value} of the heads'
        )
    if wrong == {num_classes}:
        if 0 not in occurring:
            return (
                f'labels start at 1: 0 does not occur, and {num_classes} '
                'does. Set reduce_zero_label=True of the data set if 0 is '
                'background that shall be ignored, or '
                f'num_classes={num_classes + 1} if it is a class'
            )
        if num_classes in _FROM_ONE:
            return (
                f'these are the label maps of {_FROM_ONE[num_classes]}, whose '
                f'classes are 1 to {num_classes}, and 0 is none; set '
                'reduce_zero_label=True of the data set, and leave it out of '
                'LoadAnnotations'
            )
        return (
            f'{num_classes} is num_classes, one more than the last class. If '
            f'the classes are 1 to {num_classes} and 0 is none, set '
            f'reduce_zero_label=True of the data set; if {num_classes} marks '
            f'void pixels, set ignore_index={num_classes} of the heads, of '
            f'the metric, and seg_pad_val={num_classes} of the data '
            'preprocessor; if it is a class, set '
            f'num_classes={num_classes + 1}'
        )
    return (
        'the labels were made for other classes than the model has; compare '
        f'num_classes={num_classes} of the head with the classes of the data '
        'set, and with what its label_map and reduce_zero_label make of masks'
    )
