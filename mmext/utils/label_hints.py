"""Guess, from the values, why labels are out of range."""

from collections.abc import Collection, Mapping

_CITYSCAPES_CLASSES = 19
_CITYSCAPES_LABEL_IDS = 33
_FEW_CLASSES = 2
_MANY_CODES = 3
# Data sets whose classes begin at 1, by the number of their classes.
_FROM_ONE = {150: 'ADE20K', 59: 'Pascal Context'}


def likely_cause(
    num_classes: int,
    ignore_index: int | None,
    bad: Mapping[int, int],
    in_range: Collection[int],
    shape: tuple[int, ...],
) -> str:
    """The likely cause of labels out of range, and what to do about it."""
    occurring = {*bad, *in_range} - {ignore_index}
    for rule in _RULES:
        cause = rule(num_classes, ignore_index, set(bad), occurring, shape)
        if cause:
            return cause
    return (
        'the labels were made for other classes than the model has; compare '
        f'num_classes={num_classes} of the head with the classes of the data '
        'set, and with what its label_map and reduce_zero_label make of masks'
    )


def _colours(
    c: int, ignore: int | None, bad: set, all_: set, shape: tuple
) -> str | None:
    if len(shape) == 4:
        return (
            'the masks have several channels, such as RGB colours; save '
            'them with one channel that holds the class index'
        )
    codes = {value for value in all_ if value % 32 in (0, 31)}
    if len(all_) >= _MANY_CODES and codes == all_ and max(all_) > 63:
        return (
            'the masks hold colours or grey levels (multiples of 32) instead '
            'of class indices; convert them, each colour to its class'
        )
    return None


def _binary(
    c: int, ignore: int | None, bad: set, all_: set, shape: tuple
) -> str | None:
    if c <= _FEW_CLASSES and bad == {255} and all_ <= {0, 255}:
        return (
            'the masks are black and white, 0 and 255; save them with 1 in '
            'place of 255, or map 255 to 1 by the label_map of the data set'
        )
    return None


def _cityscapes(
    c: int, ignore: int | None, bad: set, all_: set, shape: tuple
) -> str | None:
    ids = bad <= {-1, *range(c, _CITYSCAPES_LABEL_IDS + 1)}
    if c == _CITYSCAPES_CLASSES and ids and bad & {-1, *range(20, 34)}:
        return (
            'these are the labelIds of Cityscapes, not its trainIds; make '
            "the *_labelTrainIds.png files with MMSegmentation's "
            'tools/dataset_converters/cityscapes.py, and let seg_map_suffix '
            'of the data set be _gtFine_labelTrainIds.png'
        )
    return None


def _reduced_zero(
    c: int, ignore: int | None, bad: set, all_: set, shape: tuple
) -> str | None:
    if bad == {254}:
        return (
            'reduce_zero_label=True has turned the 255 of the masks into '
            '254; set reduce_zero_label=False, or write the masks with 0 '
            'where they have 255'
        )
    return None


def _other_ignored(
    c: int, ignore: int | None, bad: set, all_: set, shape: tuple
) -> str | None:
    if bad == {255}:
        return (
            '255 is what masks, padding (seg_pad_val of the data '
            'preprocessor) and reduce_zero_label mark as "to be ignored", '
            f'but the loss ignores {ignore}; set ignore_index=255 of the '
            'heads, or let masks and seg_pad_val hold the value that they '
            'ignore'
        )
    if len(bad) == 1 and min(bad) < 0:
        value = min(bad)
        return (
            f'{value} often marks what is to be ignored, but the loss '
            f'ignores {ignore}; set ignore_index={value} of the heads'
        )
    return None


def _one_based(
    c: int, ignore: int | None, bad: set, all_: set, shape: tuple
) -> str | None:
    if bad != {c}:
        return None
    if 0 in all_ and c in _FROM_ONE:
        return (
            f'these are the label maps of {_FROM_ONE[c]}, whose classes are 1 '
            f'to {c}, and 0 is none; set reduce_zero_label=True of the data '
            'set, and leave it out of LoadAnnotations'
        )
    if 0 in all_:
        return (
            f'{c} is num_classes, one more than the last class. If the '
            f'classes are 1 to {c} and 0 is none, set reduce_zero_label=True '
            f'of the data set; if {c} marks void pixels, set ignore_index={c} '
            f'of the heads, of the metric, and seg_pad_val={c} of the data '
            f'preprocessor; if it is a class, set num_classes={c + 1}'
        )
    return (
        f'labels start at 1: 0 does not occur, and {c} does. Set '
        'reduce_zero_label=True of the data set if 0 is background that '
        f'shall be ignored, or num_classes={c + 1} if it is a class'
    )


# From the special to the general.
_RULES = (
    _colours,
    _binary,
    _cityscapes,
    _reduced_zero,
    _other_ignored,
    _one_based,
)
