"""What is known of one file or sample, before any rule checks it.

Facts depend on the bytes of a file alone, so they are kept from one run to
the next, whatever the rules and the config are.
"""

from enum import Enum

import msgspec

# What Pillow itself refuses, unless it is configured.
DEFAULT_MAX_PIXELS = 178_956_970


class ErrorKind(Enum):
    """Why a file cannot be used; rules go by it, never by the text."""

    MISSING = 'missing'
    UNAVAILABLE = 'unavailable'  # It is there, or may be; reading it failed.
    EMPTY = 'empty'
    TRUNCATED = 'truncated'
    CORRUPT = 'corrupt'
    REFUSED = 'refused'  # For its size.
    SUSPECT = 'suspect'  # One decoder complains about it, another reads it.


class ReadError(msgspec.Struct, frozen=True):
    """What is wrong with a file: a kind for rules, a sentence for people."""

    kind: ErrorKind
    text: str

    def __str__(self) -> str:
        return self.text


class RecordError(msgspec.Struct, frozen=True):
    """What is wrong with one part of an annotation file.

    Attributes:
        place: ``'annotations[17].bbox'``; empty for the whole file.
        message: What is wrong there.
        kind: Whether it is missing or damaged.
    """

    place: str
    message: str
    kind: ErrorKind = ErrorKind.CORRUPT


class MaskFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A label map as it is stored, one number per pixel.

    Attributes:
        width: In pixels; 0 if it could not be read.
        height: In pixels.
        mode: ``'L'``, ``'P'``, ``'I;16'``, ``'1'``, ``'RGB'``, ``'RGBA'``,
            ``'LA'``, or as Pillow names it.
        values: Each value with its number of pixels, smallest first. Of
            colours: ``0xRRGGBB``. At most 4096; then ``truncated``.
        first: For each of ``values``, in the same order, the first pixel in
            reading order, ``y * width + x``.
        truncated: There are more values than listed.
        lossy: Format of the bytes, as Pillow names it, if it does not keep
            values; else empty.
        error: Why it could not be read; None if it could.
    """

    width: int = 0
    height: int = 0
    mode: str = ''
    values: tuple[tuple[int, int], ...] = ()
    first: tuple[int, ...] = ()
    truncated: bool = False
    lossy: str = ''
    error: ReadError | None = None


class ImageFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """An image, or depth or surface normals as an array of numbers.

    Attributes:
        width: In pixels, as stored (before EXIF orientation).
        height: In pixels.
        mode: As in :class:`MaskFacts`.
        orientation: EXIF orientation, 1 to 8.
        digest: SHA-256 of the bytes, hexadecimal.
        fingerprint: 64-bit difference hash of the decoded image, -1 if it
            was not computed.
        error: Why it could not be read, as far as was looked.
        bad: Of an array, for each kind of wrong values (``'not finite'``,
            ``'negative'``, ``'not unit'``, ``'out of range'``) the number of
            pixels and the first, ``y * width + x``.
    """

    width: int = 0
    height: int = 0
    mode: str = ''
    orientation: int = 1
    digest: str = ''
    fingerprint: int = -1
    error: ReadError | None = None
    bad: tuple[tuple[str, int, int], ...] = ()


_QUARTER_TURNS = (5, 6, 7, 8)


def is_turned(image: ImageFacts) -> bool:
    """Whether MMCV loads an image with its sides exchanged."""
    return image.orientation in _QUARTER_TURNS


def loaded_size(image: ImageFacts) -> tuple[int, int]:
    """Width and height as loaded: MMCV turns images as EXIF says."""
    if is_turned(image):
        return image.height, image.width
    return image.width, image.height


def has_size(facts: ImageFacts | MaskFacts | None) -> bool:
    """Whether the size of a file can be held against another.

    A file that is damaged or refused claims whatever it likes, and has a
    finding of its own.
    """
    return (
        facts is not None
        and facts.width > 0
        and (facts.error is None or facts.error.kind is ErrorKind.SUSPECT)
    )


class BoxFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One annotated object.

    Attributes:
        box: ``(x1, y1, x2, y2)`` in pixels, as annotated; may be not finite.
        label: Index in the classes of the data set; -1 if unknown to it.
        class_name: As annotated.
        place: Where in the file, such as ``'annotation 17'``.
        ignored: Crowd, difficult, or marked to be ignored.
        mask_box: Box around its mask or polygon; empty without one.
        polygon_error: What is wrong with its polygon or RLE; empty if
            nothing.
        unreadable: A side is missing or is no number, which is an error of
            its file.
    """

    box: tuple[float, float, float, float]
    label: int = -1
    class_name: str = ''
    place: str = ''
    ignored: bool = False
    mask_box: tuple[float, ...] = ()
    polygon_error: str = ''
    unreadable: bool = False


class VocFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An annotation file in the XML format of Pascal VOC.

    Attributes:
        image: File name of the image; empty without one.
        width: Of the image in pixels; 0 if the file does not say.
        height: Of the image.
        has_size: It has a ``<size>``, which the loader then reads in place
            of the image.
        boxes: Each object that is there, without its label, coordinates as
            written; NaN for one that is missing or is no number.
        error: Why it cannot be read, or not all of it; None if it can.
            Boxes outside of the image and the like are for rules to find.
        errors: Of a file that is well-formed, each thing that is wrong.
    """

    image: str = ''
    width: int = 0
    height: int = 0
    has_size: bool = False
    boxes: tuple[BoxFacts, ...] = ()
    error: ReadError | None = None
    errors: tuple[RecordError, ...] = ()


class YoloFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A label file in YOLO's form.

    Attributes:
        boxes: Of each line that can be read, in fractions of the picture;
            NaN, and marked as unreadable, where they are none.
        error: Why it cannot be read, or not all of it; None if it can.
        errors: Of a file of text, lines that cannot be read.
        range: Lines whose coordinates are no fractions.
    """

    boxes: tuple[BoxFacts, ...] = ()
    error: ReadError | None = None
    errors: tuple[RecordError, ...] = ()
    range: tuple[RecordError, ...] = ()


class SegmentFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A segment of a panoptic image, as its annotation file says.

    Attributes:
        id: Colour of its pixels, red + 256 green + 65536 blue.
        area: Number of its pixels; -1 if the file does not say.
        place: Where in the file.
    """

    id: int
    area: float = -1.0
    place: str = ''


class Sample(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """What a data set says of one sample; no file has been opened for it.

    Attributes:
        index: In its split.
        image: Path or URL of the image; empty without one.
        mask: Path or URL of the label map; empty without one.
        depth: Path of the depth; empty without one.
        normal: Path of the surface normals; empty without one.
        annotation: File that holds its boxes; empty without one.
        annotation_kind: ``'voc'`` or ``'yolo'`` if that file is of this
            sample alone, and is still to be read; empty if ``boxes`` holds
            what it says.
        boxes: Its objects; of a large file only those that a rule may have
            something to say about.
        segments: Of panoptic labels, what ``mask`` must hold.
        num_boxes: Number of its objects, listed or not; -1 for
            ``len(boxes)``.
        width: As the annotation says; 0 if it does not.
        height: As the annotation says.
        num_small: Number of its objects that ``bbox_min_size`` of
            ``filter_cfg`` ignores, and nothing else.
        left_out: Why that of the data set leaves it out of the
            training; empty if it does not.
    """

    index: int
    image: str = ''
    mask: str = ''
    depth: str = ''
    normal: str = ''
    annotation: str = ''
    annotation_kind: str = ''
    boxes: tuple[BoxFacts, ...] = ()
    segments: tuple[SegmentFacts, ...] = ()
    num_boxes: int = -1
    width: int = 0
    height: int = 0
    num_small: int = 0
    left_out: str = ''


class SampleFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A sample and its files, for rules that look at one at a time.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        sample: What the data set says; boxes of an annotation file that is
            the sample's own are among it.
        image: Of the image; this and what follows is None without a file.
        mask: Of the label map.
        annotation: Of such an annotation file of Pascal VOC.
        yolo: Of such a file of YOLO.
        depth: Of the depth.
        normal: Of the surface normals.
    """

    split: str
    sample: Sample
    image: ImageFacts | None = None
    mask: MaskFacts | None = None
    annotation: VocFile | None = None
    yolo: YoloFile | None = None
    depth: ImageFacts | None = None
    normal: ImageFacts | None = None


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A file that lies where a data set has its files, and is not read.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        path: Of the file.
        kind: ``'mask'``, ``'image'`` or ``'annotation'``.
    """

    split: str
    path: str
    kind: str
