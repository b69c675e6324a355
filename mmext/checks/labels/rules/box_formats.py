"""Rules for faults that all boxes or labels of a split have alike.

Each hypothesis says how the numbers of a file can be meant instead of as its
format defines them, and has the line that converts them. The boxes that fit
their image are counted under the format and under the hypothesis. A finding
needs a hypothesis that explains nearly all boxes where the format does not,
and silences the rules on single boxes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ....datasets import box_limits
from ...findings import Severity, new_finding
from ..box_columns import BoxColumns
from ..expectations import Expectations
from ..totals import SplitTotals
from .registry import DET, Findings

# With fewer boxes, chance decides how many of them fit.
_LEAST_BOXES = 12
_LEAST_SHIFTED = 12
_LEAST_SCALED = 50
_LEAST_SHARE = 0.9
_EXAMPLES = 3
_LARGEST_OFFSET = 1000
# Boxes that are as small as that, in pixels, are fractions.
_FIRST_PIXELS = 2.02
# Boxes of clipped objects end within the one distance of the border, in
# pixels, and few of them between the two.
_AT_BORDER, _NEAR_BORDER = 2, 8


class _Counts(NamedTuple):
    """Boxes under the format of a file and under a hypothesis, all (N,)."""

    before: np.ndarray  # whether they fit their image under the format
    after: np.ndarray  # whether they fit under the hypothesis
    # Whether they fit if they are moved twice as far as the hypothesis does.
    mirrored: np.ndarray
    far: np.ndarray  # whether no right box is like that under the format
    moved: np.ndarray  # pixels by which the hypothesis moves a side
    # Pixels from the right and the lower border under the hypothesis, (2, N).
    gap: np.ndarray
    # Right and lower side by the size of the image, (2, N).
    share: np.ndarray
    extent: np.ndarray  # the larger of width and height by it

    @property
    def gained(self) -> np.ndarray:
        """Boxes that fit under the hypothesis alone."""
        return self.after & ~self.before

    def explained(self, share: float, least: float) -> bool:
        """Whether the hypothesis is better than the format.

        A share of all boxes must fit under it, the least share fit under it
        alone, and few of them under the format alone.
        """
        gained = np.count_nonzero(self.gained)
        missed = np.count_nonzero(self.before & ~self.after)
        return (
            np.mean(self.after) >= share
            and gained >= max(least * len(self.after), 8)
            and missed <= 0.05 * gained
        )

    @property
    def reaches_border(self) -> bool:
        """Whether boxes come near to the right and to the lower border."""
        return bool((self.share[:, self.after].max(axis=1) >= 0.9).all())


def _does_not_fit(counts: _Counts) -> bool:
    """For numbers with another meaning.

    Small boxes fit by chance under no other meaning. Where boxes are large,
    many leave their images in some right files: there must be boxes that no
    right file has, or more that leave than in those.
    """
    number, gained = len(counts.after), np.count_nonzero(counts.gained)
    is_small = np.median(counts.extent) < 0.25
    return counts.explained(_LEAST_SHARE, 0.3 if is_small else 0.5) and (
        is_small
        or np.mean(counts.far) >= 0.25
        or gained >= 0.5 * number + 2 * number**0.5
    )


def _is_shifted(counts: _Counts) -> bool:
    """For boxes that are moved, so that they leave the image on one side.

    If boxes leave a right file there, those near the opposite side contradict
    the hypothesis: none may do so, and some must be near it.
    """
    gained = np.count_nonzero(counts.gained)
    missed = np.count_nonzero(counts.before & ~counts.after)
    near = np.count_nonzero(counts.after & ~counts.mirrored)
    return (
        counts.explained(0.95, 0.02)
        and min(gained, near) >= max(0.2 * gained, _LEAST_SHIFTED)
        and missed <= 0.05 * near
    )


def _is_centre(counts: _Counts) -> bool:
    """For centres: boxes are large enough for their halves to be seen."""
    least = 2 * box_limits.BORDER_TOLERANCE
    return _is_shifted(counts) and np.median(counts.moved) > least


def _is_one_based(counts: _Counts) -> bool:
    """For pixels from 1 on: boxes that leave the image do so by 1."""
    gap = counts.gap[:, counts.gained].min(axis=0)
    return _is_shifted(counts) and np.mean(gap < 0.1) > 0.8


def _is_swapped(counts: _Counts) -> bool:
    """For x and y: some boxes lie far outside, up to the longer side."""
    return (
        counts.explained(0.95, 0.05)
        and np.mean(counts.far[counts.gained]) >= 0.3
        and counts.reaches_border
    )


def _is_double(counts: _Counts) -> bool:
    """For pixels of an image of double size, which the boxes fill."""
    return (
        len(counts.after) >= _LEAST_SCALED
        and counts.explained(_LEAST_SHARE, 0.5)
        and np.mean(counts.far) >= 0.25
        and counts.reaches_border
    )


def _is_half(counts: _Counts) -> bool:
    """For pixels of an image of half size: boxes are clipped at its border.

    All of them fit under the format, too, and lie in a quarter of the image.
    """
    number = len(counts.after)
    if number < _LEAST_SCALED or np.mean(counts.after) < 0.99:
        return False
    ending = np.count_nonzero(counts.gap <= _AT_BORDER, axis=1)
    near = np.count_nonzero(counts.gap <= _NEAR_BORDER, axis=1) - ending
    return bool((ending >= np.maximum(near, 0.01 * number)).all())


class _Hypothesis(NamedTuple):
    """Another meaning of the four numbers of a box.

    The line gives the numbers that the format wants; W and H are the width
    and height of the image.
    """

    meaning: str
    line: str
    holds: Callable[[_Counts], bool] = _does_not_fit
    # Polygons may have the same fault: if they agree, they refute nothing.
    polygons_too: bool = False
    tolerance: float = box_limits.BORDER_TOLERANCE
    severity: Severity = Severity.ERROR


class _Format(NamedTuple):
    """Meaning of the four numbers of a box in a kind of annotation file."""

    record: str
    fields: str
    # Gives x1, y1, x2 and y2 in pixels.
    sides: str
    hypotheses: Sequence[_Hypothesis]


_CORNERS = 'corners (x1, y1, x2, y2)'
_CENTRE = 'centre and size (cx, cy, width, height)'
_LEFT_TOP = '(left, top, width, height)'
_FRACTIONS = 'in fractions of the image'
_SWAPPED = 'x and y swapped'
_DOUBLE = 'pixels of an image of double size'
_HALF = 'pixels of an image of half size'
_FORMATS = {
    'coco': _Format(
        'bbox',
        'x, y, w, h',
        'x, y, x + w, y + h',
        (
            _Hypothesis(_CORNERS, 'x, y, w - x, h - y'),
            _Hypothesis(_CENTRE, 'x - w / 2, y - h / 2, w, h', _is_centre),
            _Hypothesis(
                f'{_LEFT_TOP} {_FRACTIONS}',
                'x * W, y * H, w * W, h * H',
                polygons_too=True,
            ),
            _Hypothesis(
                f'{_CORNERS} {_FRACTIONS}',
                'x * W, y * H, (w - x) * W, (h - y) * H',
                polygons_too=True,
            ),
            _Hypothesis(
                f'{_CENTRE} {_FRACTIONS}',
                '(x - w / 2) * W, (y - h / 2) * H, w * W, h * H',
                polygons_too=True,
            ),
            _Hypothesis(_SWAPPED, 'y, x, h, w', _is_swapped, True),
            _Hypothesis(
                'one-based pixels',
                'x - 1, y - 1, w, h',
                _is_one_based,
                polygons_too=True,
                tolerance=0,
                severity=Severity.WARNING,
            ),
            _Hypothesis(
                _DOUBLE, 'x / 2, y / 2, w / 2, h / 2', _is_double, True
            ),
            _Hypothesis(_HALF, '2 * x, 2 * y, 2 * w, 2 * h', _is_half, True),
        ),
    ),
    'voc': _Format(
        'bndbox',
        'xmin, ymin, xmax, ymax',
        'xmin, ymin, xmax, ymax',
        (
            _Hypothesis(_LEFT_TOP, 'xmin, ymin, xmin + xmax, ymin + ymax'),
            _Hypothesis(
                _CENTRE,
                'xmin - xmax / 2, ymin - ymax / 2, '
                'xmin + xmax / 2, ymin + ymax / 2',
            ),
            _Hypothesis(
                f'{_CORNERS} {_FRACTIONS}',
                'xmin * W, ymin * H, xmax * W, ymax * H',
            ),
            _Hypothesis(
                f'{_LEFT_TOP} {_FRACTIONS}',
                'xmin * W, ymin * H, (xmin + xmax) * W, (ymin + ymax) * H',
            ),
            _Hypothesis(
                f'{_CENTRE} {_FRACTIONS}',
                '(xmin - xmax / 2) * W, (ymin - ymax / 2) * H, '
                '(xmin + xmax / 2) * W, (ymin + ymax / 2) * H',
            ),
            _Hypothesis(_SWAPPED, 'ymin, xmin, ymax, xmax', _is_swapped),
            _Hypothesis(
                _DOUBLE, 'xmin / 2, ymin / 2, xmax / 2, ymax / 2', _is_double
            ),
            _Hypothesis(
                _HALF, '2 * xmin, 2 * ymin, 2 * xmax, 2 * ymax', _is_half
            ),
        ),
    ),
    'yolo': _Format(
        'line',
        'x, y, w, h',
        '(x - w / 2) * W, (y - h / 2) * H, (x + w / 2) * W, (y + h / 2) * H',
        (
            _Hypothesis(
                f'{_CORNERS} {_FRACTIONS}',
                '(x + w) / 2, (y + h) / 2, w - x, h - y',
            ),
            _Hypothesis(
                f'{_LEFT_TOP} {_FRACTIONS}',
                'x + w / 2, y + h / 2, w, h',
                _is_centre,
            ),
            _Hypothesis(f'{_CENTRE} in pixels', 'x / W, y / H, w / W, h / H'),
            _Hypothesis(
                f'{_CORNERS} in pixels',
                '(x + w) / 2 / W, (y + h) / 2 / H, (w - x) / W, (h - y) / H',
            ),
            _Hypothesis(
                f'{_LEFT_TOP} in pixels',
                '(x + w / 2) / W, (y + h / 2) / H, w / W, h / H',
            ),
        ),
    ),
}


def _evaluate(line: str, fields: str, numbers: tuple, size: np.ndarray):
    """Columns of a line of the tables above, which no file can change."""
    names = dict(zip(fields.split(', '), numbers), W=size[0], H=size[1])
    with np.errstate(invalid='ignore', over='ignore'):
        return eval(line, {}, names)


class _Judge:
    """Boxes of a split, and the hypotheses that hold for them."""

    def __init__(self, columns: BoxColumns) -> None:
        self.format = _FORMATS[columns.format]
        known = (columns.size > 0).all(1)
        known &= np.isfinite(columns.written).all(1)
        self.rows = np.flatnonzero(known)
        self.numbers = tuple(columns.written[known].T)
        self.size = columns.size[known].T
        self.polygon = columns.polygon[known].T
        self.sides = self._sides(self.numbers)
        self.agreement = self._agreement(self.sides)

    def _sides(self, numbers: tuple) -> np.ndarray:
        """x1, y1, x2, y2 in pixels of the numbers of the format, (4, N)."""
        fields, line = self.format.fields, self.format.sides
        return np.stack(_evaluate(line, fields, numbers, self.size))

    def _fit(self, sides: np.ndarray, tolerance: float) -> np.ndarray:
        return (
            box_limits.has_area(sides)
            & (sides.max(axis=0) > _FIRST_PIXELS)
            & ~box_limits.is_outside(sides, *self.size)
            & ~box_limits.is_beyond(sides, *self.size, tolerance)
        )

    def _agreement(self, sides: np.ndarray) -> float:
        """Share of the polygons that have these boxes; 0.5 if unknown."""
        outlined = np.isfinite(self.polygon[0])
        if np.count_nonzero(outlined) < _LEAST_BOXES:
            return 0.5
        same = ~box_limits.is_off_mask(sides, self.polygon)
        return float(np.mean((same & box_limits.has_area(sides))[outlined]))

    def _counts(self, new: np.ndarray, tolerance: float) -> _Counts:
        """Compare the boxes with the boxes of a hypothesis, (4, N)."""
        x1, y1, x2, y2 = self.sides
        width, height = 2 * self.size
        far = ~box_limits.has_area(self.sides)
        far |= self.sides.max(axis=0) <= _FIRST_PIXELS
        far |= (x1 + x2 < 0) | (y1 + y2 < 0)
        far |= (x1 + x2 > width) | (y1 + y2 > height)
        return _Counts(
            before=self._fit(self.sides, tolerance),
            after=self._fit(new, tolerance),
            # Boxes at the border are to leave the image then.
            mirrored=self._fit(2 * new - self.sides, tolerance - 0.01),
            far=far,
            moved=np.abs(new - self.sides).max(axis=0),
            gap=self.size - new[2:],
            share=new[2:] / self.size,
            extent=((new[2:] - new[:2]) / self.size).max(axis=0),
        )

    def holding(self) -> list[tuple[_Hypothesis, _Counts, bool]]:
        """The hypotheses that explain the boxes best, and if polygons do.

        More than one if as many boxes fit under each.
        """
        found = []
        for own in self.format.hypotheses:
            fields = self.format.fields
            new = self._sides(
                _evaluate(own.line, fields, self.numbers, self.size)
            )
            proven = self._agreement(new) >= 0.9 and self.agreement <= 0.1
            refuted = self.agreement > 0.5 and not own.polygons_too
            # Most hypotheses end here, which saves time.
            fitting = np.mean(self._fit(new, own.tolerance))
            if refuted or not (proven or fitting >= _LEAST_SHARE):
                continue
            counts = self._counts(new, own.tolerance)
            if proven or own.holds(counts):
                # Smaller boxes always fit: other explanations come first.
                is_scale = own.holds in (_is_double, _is_half)
                number = np.count_nonzero(counts.after)
                found.append(((proven, not is_scale, number), own, counts))
        best = max((key for key, *_ in found), default=())
        # Boxes that leave their images may make such a difference.
        close = max(5, 0.06 * len(self.rows))
        return [
            (hypothesis, counts, key[0])
            for key, hypothesis, counts in found
            if key[:2] == best[:2] and key[2] > best[2] - close
        ]


@DET.rule(
    'DET013',
    symptoms=('= 0.000',),
    title='boxes in another format than the annotation file has',
    remedy='convert the boxes, then check again',
    scope='split',
    subject='split',
    unit='box',
    per_value=True,
    explains=(
        *('DET002', 'DET003', 'DET004', 'DET005', 'DET008', 'DET010'),
        *('DET012', 'PAIR004', 'YOLO002'),
    ),
)
def _other_format(totals: SplitTotals, expected: Expectations) -> Findings:
    """The hypothesis that explains the boxes, for splits of 12 or more."""
    columns = totals.columns
    judge = _Judge(columns) if columns is not None else None
    if judge is None or len(judge.rows) < _LEAST_BOXES:
        return
    holding = judge.holding()
    if not holding:
        return
    hypothesis, counts, proven = holding[0]
    number, fields = len(judge.rows), judge.format.fields
    before = np.count_nonzero(counts.before)
    message = f'{before:,} of {number:,} boxes fit their image as ({fields})'
    for other, fitting, _ in holding:
        after = np.count_nonzero(fitting.after)
        message += f', {after:,} as {other.meaning}'
    if proven:
        message += ', which the polygons confirm'
    elif hypothesis.holds is _is_half:
        message += '; all are in the top-left quarter, and clipped at its end'
    lines = [f'{fields} = {other.line}' for other, *_ in holding]
    remedy = f'convert each {judge.format.record} and check again: {lines[0]}'
    if lines[1:]:
        remedy = (
            f'see in the images (--html) what is meant, and convert each '
            f'{judge.format.record} by its line: {", or ".join(lines)}'
        )
    if 'W' in ''.join(lines):
        remedy += ' (W and H: width and height of the image)'
    if judge.agreement > 0.5 and hypothesis.polygons_too:
        remedy += '; convert the points of segmentation in the same way'
    gained = np.flatnonzero(counts.gained)
    rows = judge.rows[gained if len(gained) else slice(None)][:_EXAMPLES]
    first, *others = map(columns.location, rows.tolist())
    shown = ', '.join(
        f'({", ".join(f"{side:g}" for side in box)})'
        for box in columns.written[rows].tolist()
    )
    yield new_finding(
        f'{message}; for example {shown}',
        remedy=remedy,
        severity=hypothesis.severity,
        file=first.file,
        key=first.key,
        image=first.image,
        related=tuple(others),
        value=' or '.join(other.meaning for other, *_ in holding),
        count=number,
    )


@DET.rule(
    'DET014',
    symptoms=('= 0.000',),
    title='class indices or category ids off by a constant',
    remedy='add the constant to all of them, then check again',
    scope='split',
    subject='split',
    unit='object',
    per_value=True,
    explains=('COCO006', 'DET007'),
)
def _offset(totals: SplitTotals, expected: Expectations) -> Findings:
    """The constant with which nearly all labels exist, where many do not."""
    columns = totals.columns
    if columns is None or len(columns.label) < _LEAST_BOXES:
        return
    label, known = columns.label, np.unique(columns.labels)
    exists = np.isin(label, known)
    unknown = np.flatnonzero(~exists)
    if not len(known) or len(unknown) < max(3, 0.01 * len(label)):
        return
    shares = {
        offset: np.mean(np.isin(label + offset, known))
        for offset in (
            int(known[0]) - int(label.min()),
            int(known[-1]) - int(label.max()),
        )
        if 0 < abs(offset) <= _LARGEST_OFFSET
    }
    offset = max(shares, key=shares.get, default=0)
    if shares.get(offset, 0) < 0.98:
        return
    name = 'category_id' if columns.format == 'coco' else 'label'
    sign = '+' if offset > 0 else '-'
    first, *others = map(columns.location, unknown[:_EXAMPLES].tolist())
    yield new_finding(
        f'{name} of {np.count_nonzero(exists):,} of {len(label):,} objects '
        f'exists, and {name} {sign} {abs(offset)} of '
        f'{round(shares[offset] * len(label)):,}; for example '
        + ', '.join(map(str, label[unknown[:_EXAMPLES]].tolist())),
        remedy='convert each object and check again: '
        f'{name} = {name} {sign} {abs(offset)}',
        file=first.file,
        key=first.key,
        image=first.image,
        related=tuple(others),
        value=f'{name} {sign} {abs(offset)}',
        count=len(label),
    )
