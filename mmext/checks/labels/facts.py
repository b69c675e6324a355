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
    """What is wrong with one part of an annotation file."""

    location: str  # 'annotations[17].bbox'; empty for the whole file.
    message: str
    kind: ErrorKind = ErrorKind.CORRUPT  # Whether it is missing or damaged.


class MaskFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A label map as it is stored, one number per pixel."""

    width: int = 0  # In pixels; 0 if it could not be read.
    height: int = 0  # In pixels.
    # 'L', 'P', 'I;16', '1', 'RGB', 'RGBA', 'LA', or as Pillow names it.
    mode: str = ''
    # Each value with its number of pixels, smallest first. Of colours:
    # 0xRRGGBB. At most 4096; then truncated.
    values: tuple[tuple[int, int], ...] = ()
    # For each of values, in the same order, the first pixel in reading order,
    # y * width + x.
    first: tuple[int, ...] = ()
    truncated: bool = False  # There are more values than listed.
    # Format of the bytes, as Pillow names it, if it does not keep values; else
    # empty.
    lossy: str = ''
    # Why it could not be read; None if it could.
    error: ReadError | None = None


class ImageFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """An image, or depth or surface normals as an array of numbers."""

    width: int = 0  # In pixels, as stored (before EXIF orientation).
    height: int = 0  # In pixels.
    mode: str = ''  # As in MaskFacts.
    bits: int = 8  # Of a channel: 8 or fewer, or 16 or more.
    orientation: int = 1  # EXIF orientation, 1 to 8.
    digest: str = ''  # SHA-256 of the bytes, hexadecimal.
    # 64-bit difference hash of the decoded image, -1 if it was not computed.
    fingerprint: int = -1
    # Why it could not be read, as far as was looked.
    error: ReadError | None = None
    # Of an array, for each kind of wrong values ('not finite', 'negative',
    # 'not unit', 'out of range') the number of pixels and the first, y * width
    # + x.
    bad: tuple[tuple[str, int, int], ...] = ()


def is_turned(image: ImageFacts) -> bool:
    """Whether MMCV loads an image with its sides exchanged."""
    return image.orientation >= 5


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
    """One annotated object."""

    # (x1, y1, x2, y2) in pixels, as annotated; may be not finite.
    box: tuple[float, float, float, float]
    # Index in the classes of the data set; -1 if unknown to it.
    label: int = -1
    class_name: str = ''  # As annotated.
    location: str = ''  # Where in the file, such as 'annotation 17'.
    ignored: bool = False  # Crowd, difficult, or marked to be ignored.
    # Box around its mask or polygon; empty without one.
    mask_box: tuple[float, ...] = ()
    # What is wrong with its polygon or RLE; empty if nothing.
    polygon_error: str = ''
    # A side is missing or is no number, which is an error of its file.
    unreadable: bool = False
    small: bool = False  # The loader ignores it for its width or height.


class VocFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An annotation file in the XML format of Pascal VOC."""

    image: str = ''  # File name of the image; empty without one.
    width: int = 0  # Of the image in pixels; 0 if the file does not say.
    height: int = 0  # Of the image.
    # It has a <size>, which the loader then reads in place of the image.
    has_size: bool = False
    # Each object that is there, without its label, coordinates as written; NaN
    # for one that is missing or is no number.
    boxes: tuple[BoxFacts, ...] = ()
    # Why it cannot be read, or not all of it; None if it can. Boxes outside of
    # the image and the like are for rules to find.
    error: ReadError | None = None
    # Of a file that is well-formed, each thing that is wrong.
    errors: tuple[RecordError, ...] = ()


class YoloFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A label file in YOLO's form."""

    # Boxes of the lines that can be read, in fractions of the image; marked
    # as unreadable where the numbers are not fractions.
    boxes: tuple[BoxFacts, ...] = ()
    # Why it cannot be read, or not all of it; None if it can.
    error: ReadError | None = None
    # Of a file of text, lines that cannot be read.
    errors: tuple[RecordError, ...] = ()
    # Lines whose coordinates are no fractions.
    range: tuple[RecordError, ...] = ()


class SegmentFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A segment of a panoptic image, as its annotation file says."""

    id: int  # Colour of its pixels, red + 256 green + 65536 blue.
    area: float = -1.0  # Number of its pixels; -1 if the file does not say.
    location: str = ''  # Where in the file.


class Sample(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """What a data set says of one sample; no file has been opened for it."""

    index: int  # In its split.
    image: str = ''  # Path or URL of the image; empty without one.
    name: str = ''  # Image name in an annotation file of many images.
    mask: str = ''  # Path or URL of the label map; empty without one.
    depth: str = ''  # Path of the depth; empty without one.
    normal: str = ''  # Path of the surface normals; empty without one.
    annotation: str = ''  # File that holds its boxes; empty without one.
    # 'voc' or 'yolo' if that file is of this sample alone, and is still to be
    # read; empty if boxes holds what it says.
    annotation_kind: str = ''
    # Its objects; of a large file only those that a rule may have something to
    # say about.
    boxes: tuple[BoxFacts, ...] = ()
    # Of panoptic labels, what mask must hold.
    segments: tuple[SegmentFacts, ...] = ()
    # Number of its objects, listed or not; -1 for len(boxes).
    num_boxes: int = -1
    width: int = 0  # As the annotation says; 0 if it does not.
    height: int = 0  # As the annotation says.
    # Number of its objects that bbox_min_size of filter_cfg ignores, and
    # nothing else.
    num_small: int = 0
    # Why that of the data set leaves it out of the training; empty if it does
    # not.
    left_out: str = ''


class SampleFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A sample and its files, for rules that look at one at a time."""

    split: str  # 'train', 'val', ...
    # What the data set says; boxes of an annotation file that is the sample's
    # own are among it.
    sample: Sample
    # Of the image; this and what follows is None without a file.
    image: ImageFacts | None = None
    mask: MaskFacts | None = None  # Of the label map.
    # Of such an annotation file of Pascal VOC.
    annotation: VocFile | None = None
    yolo: YoloFile | None = None  # Of such a file of YOLO.
    depth: ImageFacts | None = None  # Of the depth.
    normal: ImageFacts | None = None  # Of the surface normals.


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A file that lies where a data set has its files, and is not read."""

    split: str  # 'train', 'val', ...
    path: str
    kind: str  # 'mask', 'image' or 'annotation'.


def box_size(facts: SampleFacts) -> tuple[int, int]:
    """Width and height of the image that boxes must lie in; 0 if unknown.

    The size of the image file as loaded, or as stored if the annotation notes
    that one (PAIR005); without a readable file, the noted size.
    """
    sample, image = facts.sample, facts.image
    noted = sample.width, sample.height
    if has_size(image) and noted != (image.width, image.height):
        return loaded_size(image)
    return noted
