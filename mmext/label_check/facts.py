"""What is known of one file or sample, before any rule judges it.

Facts depend on the bytes of a file alone, so they are kept from one run to
the next, whatever the rules and the config are.
"""

import msgspec

__all__ = [
    'BoxFacts',
    'ImageFacts',
    'MaskFacts',
    'Orphan',
    'Sample',
    'SampleFacts',
    'VocFile',
]


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
        error: Why it could not be read; empty if it could.
    """

    width: int = 0
    height: int = 0
    mode: str = ''
    values: tuple[tuple[int, int], ...] = ()
    first: tuple[int, ...] = ()
    truncated: bool = False
    error: str = ''


class ImageFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """An image.

    Attributes:
        width: In pixels, as stored (before EXIF orientation).
        height: In pixels.
        mode: As in :class:`MaskFacts`.
        orientation: EXIF orientation, 1 to 8.
        digest: SHA-256 of the bytes, hexadecimal.
        fingerprint: 64-bit difference hash of the decoded image, -1 if it
            was not computed.
        error: Why it could not be read, as far as was looked.
    """

    width: int = 0
    height: int = 0
    mode: str = ''
    orientation: int = 1
    digest: str = ''
    fingerprint: int = -1
    error: str = ''


class BoxFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One annotated object.

    Attributes:
        box: ``(x1, y1, x2, y2)`` in pixels, as annotated; may be not finite.
        label: Index in the classes of the data set; -1 if unknown to it.
        class_name: As annotated.
        place: Where in the file, such as ``'annotation 17'``.
        ignored: Crowd, difficult, or marked to be ignored.
        mask_box: Box around its mask or polygon; empty without one.
        mask_area: Pixels of the mask or polygon; -1 without one.
        polygon_error: What is wrong with its polygon or RLE; empty if
            nothing.
    """

    box: tuple[float, float, float, float]
    label: int = -1
    class_name: str = ''
    place: str = ''
    ignored: bool = False
    mask_box: tuple[float, ...] = ()
    mask_area: float = -1.0
    polygon_error: str = ''


class VocFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An annotation file in the XML format of Pascal VOC.

    Attributes:
        image: File name of the image; empty without one.
        width: Of the image in pixels; 0 if the file does not say.
        height: Of the image.
        boxes: Each object that is there, without its label, coordinates as
            written; NaN for one that is missing or is no number.
        error: What is wrong, each with its place, divided by ``'; '``; empty
            if nothing is. Boxes outside of the image and the like are for
            rules to find.
    """

    image: str = ''
    width: int = 0
    height: int = 0
    boxes: tuple[BoxFacts, ...] = ()
    error: str = ''


class Sample(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """What a data set says of one sample; no file has been opened for it.

    Attributes:
        index: In its split.
        image: Path or URL of the image; empty without one.
        mask: Path or URL of the label map; empty without one.
        annotation: File that holds its boxes; empty without one.
        annotation_kind: ``'voc'`` if that file is of this sample alone, and
            is still to be read; empty if ``boxes`` holds what it says.
        boxes: Its objects; of a large file only those that a rule may have
            something to say about.
        num_boxes: Number of its objects, listed or not; -1 for
            ``len(boxes)``.
        width: As the annotation says; 0 if it does not.
        height: As the annotation says.
    """

    index: int
    image: str = ''
    mask: str = ''
    annotation: str = ''
    annotation_kind: str = ''
    boxes: tuple[BoxFacts, ...] = ()
    num_boxes: int = -1
    width: int = 0
    height: int = 0


class SampleFacts(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A sample and its files, for rules that look at one at a time.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        sample: What the data set says; boxes of an annotation file that is
            the sample's own are among it.
        image: Facts of the image; None if there is none.
        mask: Facts of the label map; None if there is none.
        annotation: Facts of such an annotation file; None if there is none.
    """

    split: str
    sample: Sample
    image: ImageFacts | None = None
    mask: MaskFacts | None = None
    annotation: VocFile | None = None


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
