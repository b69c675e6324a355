"""What the training will expect of the labels."""

from collections.abc import Mapping

from ...utils.label_spec import HeadSpec, IgnorePlace, LabelSpec


class Expectations(LabelSpec, frozen=True, kw_only=True, omit_defaults=True):
    """What one split will be read as: its range of labels, and by what.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        task: ``'semantic'``, ``'detection'``, ``'instance'``,
            ``'panoptic'``, or ``'unlabelled'`` for pictures alone.
        thing_classes: Of panoptic labels, those of objects that are counted.
        classes_are_texts: The model is told the names of classes, so that
            other ones may be evaluated than were trained.
        dataset_reduces: The same of the data set, where the loader compares
            both; None if it does not.
        label_map: Pairs (stored value, value after loading) that the loader
            applies; empty for none.
        ignore_places: Each place in the config that holds a value to ignore,
            or to fill with, or has one by default.
        heads: Of the model.
        filter_cfg: Numbers of the data set's ``filter_cfg`` that its loader
            applies, by name: ``filter_empty_gt``, ``min_size``, of XML files
            ``bbox_min_size``; empty for none, and of data that are not
            trained on.
        coco_metric: Place in the config of the metric that reads the same
            annotation file by pycocotools; empty for none, None if what the
            file is used for is not known.
        loads_masks: The pipeline loads a mask of each object.
        loader_backend: What decodes label maps: ``'pillow'``, ``'cv2'``, ...;
            ``'npy'`` if they are arrays, whose -1 is loaded as 255.
        casts_to_bytes: The loader casts label maps to uint8, which wraps, as
            MMSegmentation's does; else values over 255 stay.
        with_images: Images belong to what is checked.
        unread: End of the names of images whose form is not looked at, such
            as ``'.nii.gz'``; empty if all are looked at.
        kpt_shape: Of the key points in YOLO's label files; empty for none.
    """

    split: str = 'train'
    task: str = 'semantic'
    thing_classes: tuple[str, ...] = ()
    classes_are_texts: bool = False
    dataset_reduces: bool | None = None
    label_map: tuple[tuple[int, int], ...] = ()
    ignore_places: tuple[IgnorePlace, ...] = ()
    heads: tuple[HeadSpec, ...] = ()
    filter_cfg: dict[str, int] = {}
    coco_metric: str | None = None
    loads_masks: bool = False
    loader_backend: str = 'pillow'
    casts_to_bytes: bool = True
    with_images: bool = True
    unread: str = ''
    kpt_shape: tuple[int, ...] = ()


def why_left_out(
    num_objects: int, side: float, filter_cfg: Mapping[str, int]
) -> str:
    """Why the loaders of MMDetection leave an image out of a training.

    Args:
        num_objects: Its annotations of a class; crowds and those that the
            loader drops later count for COCO, dropped ones do not for VOC.
        side: The shorter one that the annotation notes, in pixels.
        filter_cfg: Of the data set.

    Returns:
        A reason without numbers of the image; empty if it stays.
    """
    if filter_cfg.get('filter_empty_gt') and not num_objects:
        return 'have no object of a class (filter_empty_gt)'
    least = filter_cfg.get('min_size', 0)
    if side < least:
        return f'are narrower or lower than min_size={least}'
    return ''
