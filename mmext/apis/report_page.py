"""The page of a report, and its pictures of what is wrong."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cv2
import mmcv
import numpy as np
from scipy.sparse import coo_matrix

from ..checks.findings import page
from ..evaluation import ERROR_KINDS, BoxError, JudgedBoxes
from ..utils.draw import (
    Color,
    class_palette,
    draw_instances,
    picture_scale,
    side_by_side,
    tile_sheet,
)

_COLORS = {
    'missed': (255, 0, 144),
    'doubled': (255, 196, 0),
    'confused': (150, 90, 255),
    'invented': (255, 90, 0),
}
_RIGHT = (0, 180, 216)
_IGNORED = (120, 120, 120)
_SIDE = 800
_MAP_SIDE = 400
# As the style sheet calls the tiles of each.
_WORDS = dict(zip(ERROR_KINDS, ('error', 'warning', 'error', 'warning')))
_MAX_CLASSES = 100
# Of more classes so many of the worst, the best and the most confused.
_FEW = 20
_MAX_PAIRS = 20
_MAX_LINES = 8
_LEVELS = 9
_BOX_COLUMNS = {
    'objects': 'Objects',
    'AP': 'AP',
    'AP_50': 'AP50',
    'AP_75': 'AP75',
    'AP_s': 'small',
    'AP_m': 'medium',
    'AP_l': 'large',
    'mask_AP': 'mask AP',
    'mask_AP_50': 'mask AP50',
    'mask_AP_75': 'mask AP75',
    'AR': 'AR',
    'F1': 'best F1',
    'F1_score': 'from score',
    'right': 'Right',
    **{kind: kind.capitalize() for kind in ERROR_KINDS},
}
_MAP_COLUMNS = {
    'pixels': 'Pixels',
    'IoU': 'IoU',
    'Precision': 'Precision',
    'Recall': 'Recall',
    'Fscore': 'F1',
}


def _text(value: float | None) -> str:
    """A count, or a share with three places, which also sort as texts."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ''
    return f'{value:.3f}' if isinstance(value, float) else str(value)


def _read(path: str, size: tuple[int, int]) -> np.ndarray | None:
    """The image as RGB, ``size`` high and wide; None without a file."""
    try:
        image = mmcv.imread(path, channel_order='rgb')
    except FileNotFoundError:
        return None
    if image is None or image.shape[:2] == size:
        return image
    return cv2.resize(image, size[::-1])


def _caption(
    error: BoxError, classes: Sequence[str], scores: Sequence = ()
) -> str:
    """What is wrong; with the scores of all errors that say the same."""
    text = f'{error.kind}: {classes[error.label]}'
    if error.score is not None:
        texts = sorted(f'{each:.2f}' for each in scores or [error.score])
        text += f' {" to ".join(dict.fromkeys((texts[0], texts[-1])))}'
    if error.truth_label not in (None, error.label):
        text += f', is {classes[error.truth_label]}'
    return text if len(scores) < 2 else f'{text} ({len(scores)} times)'


def _draw_boxes(
    image: np.ndarray, judged: JudgedBoxes, captions: Sequence[str]
) -> np.ndarray:
    """What is right as thin boxes, what is wrong as thick ones with names."""
    height, width = image.shape[:2]
    scale = picture_scale(height, width, side=_SIDE, shrink=True)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    for box in judged.found.boxes[judged.right]:
        x1, y1, x2, y2 = (round(float(side) * scale) for side in box)
        cv2.rectangle(canvas, (x1, y1), (x2, y2), _RIGHT, 2)
    boxes = np.array([error.box for error in judged.errors]).reshape(-1, 4)
    return draw_instances(
        canvas,
        boxes * scale,
        np.arange(len(boxes)),
        classes=captions,
        palette=[_COLORS[error.kind] for error in judged.errors],
        side=max(size),
        shrink=True,
    )


def _box_card(
    path: str,
    size: tuple[int, int],
    judged: JudgedBoxes,
    classes: Sequence[str],
) -> dict[str, Any]:
    captions = [_caption(error, classes) for error in judged.errors]
    image = _read(path, size)
    kinds = [error.kind for error in judged.errors]
    labels = dict.fromkeys(
        label
        for error in judged.errors
        for label in (error.label, error.truth_label)
        if label is not None
    )
    counts = [f'{kinds.count(k)} {k}' for k in ERROR_KINDS if k in kinds]
    same = defaultdict(list)
    for each in judged.errors:
        same[each.kind, each.label, each.truth_label].append(each)
    lines = [
        _caption(group[0], classes, [each.score for each in group])
        for group in same.values()
    ]
    return _card(
        path,
        None if image is None else _draw_boxes(image, judged, captions),
        ', '.join([*counts, f'{int(judged.right.sum())} right']),
        lines,
        dict.fromkeys(kinds),
        [classes[label] for label in labels],
    )


def _card(
    path: str,
    picture: np.ndarray | None,
    message: str,
    lines: Sequence[str],
    kinds: Sequence[str],
    classes: Sequence[str],
) -> dict[str, Any]:
    """What the template shows of a picture."""
    more = len(lines) - _MAX_LINES
    height, width = (0, 0) if picture is None else picture.shape[:2]
    return {
        'uri': '' if picture is None else page.data_uri(picture),
        'width': width,
        'height': height,
        'alt': f'{path}: {message}'
        if picture is not None
        else 'there is no image file to draw on',
        'message': message,
        'lines': list(lines[:_MAX_LINES])
        + ([f'and {more} more, see report.json'] if more > 0 else []),
        'file': path,
        'kind_data': '\n'.join(kinds),
        'class_data': '\n'.join(' '.join(name.split()) for name in classes),
    }


def _paint_map(labels: np.ndarray, colors: Sequence[Color]) -> np.ndarray:
    """Colours of classes; grey for what is none."""
    table = np.array([*colors, _IGNORED], np.uint8)
    return table[np.minimum(labels, len(colors))]


def _map_card(
    path: str,
    counts: coo_matrix,
    maps: tuple[np.ndarray, np.ndarray],
    classes: Sequence[str],
    palette: Sequence[Color],
) -> dict[str, Any]:
    truth, found = maps
    height, width = truth.shape
    scale = picture_scale(height, width, side=_MAP_SIDE, shrink=True)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    image = _read(path, truth.shape)
    if image is None:
        image = np.zeros((height, width, 3), np.uint8)
    wrong = (truth != found) & (truth < len(classes))
    marked = image // 2 + 40
    marked[wrong] = _COLORS['missed']
    panels = [
        cv2.resize(each, size, interpolation=cv2.INTER_AREA)
        for each in (image, marked)
    ] + [
        cv2.resize(
            _paint_map(each, palette), size, interpolation=cv2.INTER_NEAREST
        )
        for each in maps
    ]
    rows = [
        side_by_side(panels[:2], ['image', 'wrong']),
        side_by_side(panels[2:], ['truth', 'found']),
    ]
    matrix = counts.toarray()
    total = max(int(matrix.sum()), 1)
    pairs = list(_confused(matrix))[:_MAX_LINES]
    lines = [
        f'{classes[row]} called {classes[column]}: {count / total:.1%}'
        for row, column, count in pairs
    ]
    share = 1 - matrix.trace() / total
    labels = dict.fromkeys(
        n for row, column, _ in pairs for n in (row, column)
    )
    return _card(
        path,
        tile_sheet(rows, columns=1, gap=4),
        f'{share:.1%} of the pixels are wrong',
        lines,
        (),
        [classes[n] for n in labels],
    )


def _confused(matrix: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Row, column and count of what is wrong, the most frequent first."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind='stable')
    for place in order[: np.count_nonzero(wrong)].tolist():
        row, column = divmod(place, len(matrix))
        yield row, column, int(wrong[row, column])


def _matrix(confusion: Mapping[str, Any]) -> dict[str, Any]:
    """Cells with the share of their row as a level of the style sheet."""
    names = confusion['classes']
    counts = np.zeros((len(names), len(names)), int)
    for row, column, count in confusion['cells']:
        counts[row, column] = count
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    levels = np.ceil(shares * _LEVELS).astype(int)
    places = range(len(names))
    if len(names) > _MAX_CLASSES:
        errors = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
        places = sorted(np.argsort(-errors, kind='stable')[:_FEW].tolist())
    rows = [
        {
            'name': names[n],
            'cells': [
                {
                    'count': int(counts[n, m]),
                    'level': int(levels[n, m]),
                    'right': n == m,
                    'share': f'{shares[n, m]:.1%}',
                }
                for m in places
            ],
        }
        for n in places
    ]
    pairs = [
        {
            'truth': names[row],
            'found': names[column],
            'count': count,
            'share': f'{shares[row, column]:.1%}',
        }
        for row, column, count in _confused(counts)
    ]
    return {
        'names': [names[n] for n in places],
        'num_classes': len(names),
        'rows': rows,
        'pairs': pairs[:_MAX_PAIRS],
        'num_pairs': len(pairs),
    }


def _worst_and_best(rows: Sequence[Mapping], figure: str) -> Sequence[Mapping]:
    """All classes, or of many the worst and the best that have a figure."""
    if len(rows) <= _MAX_CLASSES:
        return rows
    known = [row for row in rows if _text(row[figure])]
    # Of as bad ones those that are most frequent.
    size = 'objects' if 'objects' in rows[0] else 'pixels'
    known.sort(key=lambda row: (row[figure], -row[size]))
    return known[:_FEW] + known[_FEW:][-_FEW:]


def _table(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> dict[str, Any]:
    columns = {k: columns[k] for k in columns if k in next(iter(rows), ())}
    return {
        'columns': list(columns.values()),
        'rows': [
            {
                'name': row['class'],
                'cells': [_text(row[key]) for key in columns],
            }
            for row in rows
        ],
    }


def _curves(
    report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Points of the classes in a square of 100, and of the mean of all."""
    known = [
        (row['class'], row['AP_50'], row['precision'])
        for row in rows
        if row['precision'] is not None
    ]
    if len(known) > 1:
        curves = [row['precision'] for row in report['per_class']]
        means = np.mean([curve for curve in curves if curve], 0)
        known.insert(0, ('mean of the classes', float(means.mean()), means))
    return [
        {
            'name': name,
            'figure': _text(figure),
            'points': ' '.join(
                f'{100 * recall:.0f},{100 - 100 * value:.1f}'
                for recall, value in zip(report['recalls'], precision)
            ),
        }
        for name, figure, precision in known
    ]


def _tiles(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The numbers at the top."""
    figures = [
        ('info', _text(value), name)
        for name, value in report['figures'].items()
        if _text(value)
    ]
    counts = [
        (_WORDS[kind], report['counts'][kind], kind)
        for kind in ERROR_KINDS
        if 'counts' in report
    ]
    return [
        {'word': word, 'kinds': value, 'label': label, 'findings': ''}
        for word, value, label in (*figures, *counts)
    ]


def _verdict(report: Mapping[str, Any]) -> str:
    """The main figure and the errors on one line."""
    name, value = next(iter(report['figures'].items()))
    words = [f'{name} {_text(value) or "unknown"}']
    if 'counts' in report:
        words += [f'{report["counts"][kind]} {kind}' for kind in ERROR_KINDS]
    return ', '.join(words)


def report_page(
    report: Mapping[str, Any],
    shown: Sequence[tuple],
    classes: Sequence[str],
    palette: Any = None,
) -> bytes:
    """One page, as UTF-8, that shows a report and its worst pictures.

    It loads nothing, follows the light or dark theme of the browser, and can
    be read without JavaScript. Curves are drawn by its style sheet:
    matplotlib's are all attributes of style, which the policy of the page
    forbids, and have fixed colours.

    Args:
        report: What ``report.json`` holds.
        shown: The worst pictures. Of a detector path, ``(height, width)`` and
            the judged boxes; of a segmentor path, matrix, and the maps of
            truth and prediction, ``(H, W)``.
        classes: Their names.
        palette: Colours of the data set.
    """
    detector = report['task'] == 'detection'
    if detector:
        cards = [_box_card(*each, classes) for each in shown]
        columns = _BOX_COLUMNS
    else:
        colors = class_palette(len(classes), palette)
        cards = [_map_card(*each, classes, colors) for each in shown]
        columns = _MAP_COLUMNS
    figure = 'AP' if detector else 'IoU'
    rows = _worst_and_best(report['per_class'], figure)
    content = {
        'verdict': _verdict(report),
        'tiles': _tiles(report),
        'detector': detector,
        'report': report,
        'metrics': {
            name: _text(value) for name, value in report['metrics'].items()
        },
        'table': _table(rows, columns),
        'curves': _curves(report, rows) if detector else [],
        'matrix': _matrix(report['confusion']),
        'cards': cards,
        'kinds': ERROR_KINDS if detector else (),
        'classes': sorted(
            {name for card in cards for name in card['class_data'].split('\n')}
            - {''}
        ),
    }
    return page.render(__package__, 'report.html.jinja', page=content)
