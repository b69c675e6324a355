"""Rules for files that are missing, empty, cut, damaged or refused.

One table for all kinds of files: a reader gives an error its kind, and the
rule of that kind tells of it. COCO001 is about a file of all samples.
"""

from collections.abc import Callable

from ...findings import Severity, new_finding
from ..expectations import Expectations
from ..facts import ErrorKind, RecordError, SampleFacts
from .registry import IMG, MTL, SEG, VOC, YOLO, Findings

_MISSING = (ErrorKind.MISSING,)
_DAMAGED = (ErrorKind.CORRUPT, ErrorKind.UNAVAILABLE)
_ALL = tuple(ErrorKind)
_THERE = tuple(kind for kind in ErrorKind if kind is not ErrorKind.MISSING)
# Files of a family: the fields of their facts and of their path in a sample,
# and what they are called.
_FILES = {
    'IMG': (('image', 'image', 'image'),),
    'SEG': (('mask', 'mask', 'mask'),),
    'MTL': (('depth', 'depth', 'depth'), ('normal', 'normal', 'normals')),
    'VOC': (('annotation', 'annotation', 'annotation file'),),
    'YOLO': (('yolo', 'annotation', 'label file'),),
}
_ANEW = 'copy or make the file anew'
_CUT = 'copy the file anew; a download or a full disk may have cut it'
_TOO_LARGE = (
    'the file claims more pixels than are allowed; see whether it is damaged, '
    'and cut large scenes into tiles'
)
# Family, id, kinds of error, title, remedy.
_RULES = (
    (
        IMG,
        'IMG001',
        _MISSING,
        'image is missing where loaders look',
        'add the file, or correct img_suffix, data_prefix or the list that '
        'names it',
    ),
    (
        IMG,
        'IMG002',
        (ErrorKind.EMPTY,),
        'image file is empty',
        'copy the file anew',
    ),
    (IMG, 'IMG003', (ErrorKind.TRUNCATED,), 'image file is cut off', _CUT),
    (
        IMG,
        'IMG004',
        _DAMAGED,
        'image file is damaged or no image',
        'copy the file anew, or save it as PNG or JPEG',
    ),
    (
        IMG,
        'IMG005',
        (ErrorKind.REFUSED,),
        'image is too large to be read',
        _TOO_LARGE,
    ),
    (
        IMG,
        'IMG006',
        (ErrorKind.SUSPECT,),
        'image file may be damaged',
        'look at the image; copy or save it anew if parts are grey or shifted',
    ),
    (
        SEG,
        'SEG015',
        _MISSING,
        'mask is missing',
        'add the file, or correct seg_map_suffix, data_prefix or the list '
        'that names it; the loader finds out in the middle of the training',
    ),
    (SEG, 'SEG016', (ErrorKind.EMPTY,), 'mask file is empty', _ANEW),
    (SEG, 'SEG017', (ErrorKind.TRUNCATED,), 'mask file is cut off', _CUT),
    (
        SEG,
        'SEG018',
        _DAMAGED,
        'mask file is damaged or no label map',
        'copy the file anew, or save it as 8-bit PNG',
    ),
    (
        SEG,
        'SEG019',
        (ErrorKind.REFUSED,),
        'mask is too large to be read',
        _TOO_LARGE,
    ),
    (
        MTL,
        'MTL001',
        _ALL,
        'file of depth or normals is missing or cannot be read',
        f'{_ANEW}: an npy array of numbers, (H, W) or (H, W, 1) of depth, '
        '(H, W, 3) of normals',
    ),
    (
        VOC,
        'VOC001',
        _MISSING,
        'annotation file is missing',
        'add the file, or correct ann_subdir, or the list that names it; '
        'building the data set fails at it',
    ),
    (
        VOC,
        'VOC002',
        _THERE,
        'annotation file that cannot be read, or not all of it',
        'correct the file at the place that is named; until then the loader '
        'fails when the data set is built, or drops what it cannot use',
    ),
    (
        # A file that is missing has no objects.
        YOLO,
        'YOLO001',
        _THERE,
        'label file that cannot be read, or not all of it',
        'write one object a line: the number of its class, then x and y of '
        'the centre, width and height of the box, or the corners of an '
        'outline; building the data set fails until then',
    ),
)


def _check_of(
    files: tuple[tuple[str, str, str], ...], kinds: tuple[ErrorKind, ...]
) -> Callable[[SampleFacts, Expectations], Findings]:
    """Tell of files with an error of some kinds, of each record if known."""

    def check(facts: SampleFacts, expected: Expectations) -> Findings:
        for field, path_field, name in files:
            path = getattr(facts.sample, path_field)
            file = getattr(facts, field)
            error = None if file is None else file.error
            if error is not None and error.kind in kinds:
                suspect = error.kind is ErrorKind.SUSPECT
                verb = 'may be damaged' if suspect else 'cannot be read'
                whole = RecordError('', f'the {name} {verb}: {error}')
                for record in getattr(file, 'errors', ()) or (whole,):
                    yield new_finding(
                        record.message, file=path, key=record.location
                    )
            if field == 'image' and kinds is _MISSING:
                yield from _not_jpg(facts)

    return check


def _not_jpg(facts: SampleFacts) -> Findings:
    """MMDetection adds .jpg to the names of Pascal VOC's images."""
    sample = facts.sample
    if sample.annotation_kind == 'voc' and not sample.image.endswith('.jpg'):
        yield new_finding(
            'the image must be .jpg: XMLDataset finds no others, and fails',
            file=sample.image,
            remedy='save the image as .jpg; a PNG file may just be renamed',
        )


for _family, _id, _kinds, _title, _remedy in _RULES:
    _suspect = _kinds == (ErrorKind.SUSPECT,)
    _family.rule(
        _id,
        title=_title,
        severity=Severity.WARNING if _suspect else Severity.ERROR,
        remedy=_remedy,
        blocks_training=not _suspect,
    )(_check_of(_FILES[_family.letters], _kinds))
