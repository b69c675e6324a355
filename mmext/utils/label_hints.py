"""Say which labels are out of range, and guess why."""

from collections.abc import Collection, Mapping, Sequence

_CITYSCAPES_CLASSES = 19
_CITYSCAPES_LABEL_IDS = 33
_FEW_CLASSES = 2
_MANY_CODES = 3
# Data sets whose classes begin at 1, by the number of their classes.
_FROM_ONE = {150: 'ADE20K', 59: 'Pascal Context'}
_MAX_VALUES = 12


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
        return _one_based(num_classes, 0 in occurring)
    return (
        'the labels were made for other classes than the model has; compare '
        f'num_classes={num_classes} of the head with the classes of the data '
        'set, and with what its label_map and reduce_zero_label make of masks'
    )


def _one_based(count: int, has_zero: bool) -> str:
    """Labels up to the number of classes, where the last class is one less."""
    if has_zero and count in _FROM_ONE:
        return (
            f'these are the label maps of {_FROM_ONE[count]}, whose classes '
            f'are 1 to {count}, and 0 is none; set reduce_zero_label=True of '
            'the data set, and leave it out of LoadAnnotations'
        )
    if has_zero:
        return (
            f'{count} is num_classes, one more than the last class. If the '
            f'classes are 1 to {count} and 0 is none, set '
            'reduce_zero_label=True of the data set; if '
            f'{count} marks void pixels, set ignore_index={count} of the '
            f'heads, of the metric, and seg_pad_val={count} of the data '
            'preprocessor; if it is a class, set '
            f'num_classes={count + 1}'
        )
    return (
        f'labels start at 1: 0 does not occur, and {count} does. Set '
        'reduce_zero_label=True of the data set if 0 is background that '
        f'shall be ignored, or num_classes={count + 1} if it is a class'
    )
