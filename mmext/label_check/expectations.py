"""What the training will expect of the labels."""

import msgspec

__all__ = ['Expectations', 'HeadFacts']


class HeadFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A head of the model that reads labels.

    Attributes:
        place: Where in the config, such as ``'model.decode_head'``.
        num_classes: As configured; 0 if it says none.
        ignore_index: As configured or by default; None for none.
        class_weights: For each loss, its place and the number of weights.
        losses: Place and type of each loss.
    """

    place: str
    num_classes: int = 0
    ignore_index: int | None = None
    class_weights: tuple[tuple[str, int], ...] = ()
    losses: tuple[tuple[str, str], ...] = ()


class Expectations(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """What one split will be read as.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        task: ``'semantic'``, ``'detection'``, ``'instance'``,
            ``'panoptic'``, or ``'unlabelled'`` for pictures alone.
        num_classes: Labels are in ``[0, num_classes)``; 0 if not known.
        classes: Their names; empty if not known.
        thing_classes: Of panoptic labels, those of objects that are counted.
        classes_are_texts: The model is told the names of classes, so that
            other ones may be evaluated than were trained.
        ignore_index: Value of pixels that the loss ignores; None for none.
        reduce_zero_label: The loader turns 0 into 255 and n into n - 1.
        label_map: Pairs (stored value, value after loading) that the loader
            applies; empty for none.
        seg_pad_val: What padding writes into label maps; None if unknown.
        ignore_places: Each place in the config that holds a value to ignore,
            or to fill with, and the value.
        heads: Of the model.
        loader_backend: What decodes label maps: ``'pillow'``, ``'cv2'``, ...;
            ``'npy'`` if they are arrays, whose -1 is loaded as 255.
        casts_to_bytes: The loader casts label maps to uint8, which wraps, as
            MMSegmentation's does; else values over 255 stay.
        with_images: Images belong to what is checked.
        unread: End of the names of images whose form is not looked at, such
            as ``'.nii.gz'``; empty if all are looked at.
    """

    split: str = 'train'
    task: str = 'semantic'
    num_classes: int = 0
    classes: tuple[str, ...] = ()
    thing_classes: tuple[str, ...] = ()
    classes_are_texts: bool = False
    ignore_index: int | None = 255
    reduce_zero_label: bool = False
    label_map: tuple[tuple[int, int], ...] = ()
    seg_pad_val: int | None = None
    ignore_places: tuple[tuple[str, int], ...] = ()
    heads: tuple[HeadFacts, ...] = ()
    loader_backend: str = 'pillow'
    casts_to_bytes: bool = True
    with_images: bool = True
    unread: str = ''
