"""The page of a report, and its pictures of errors."""

import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cv2
import mmcv
import numpy as np
from markupsafe import Markup
from scipy.sparse import coo_matrix

from ...checks.findings import page
from ...evaluation import ERROR_KINDS, BoxError, JudgedBoxes
from ...utils.draw import (
    Color,
    class_palette,
    color_labels,
    draw_boxes,
    draw_instances,
    picture_scale,
    scaled,
    scaled_labels,
    side_by_side,
    tile_sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As in the style sheet of the page.
_COLORS = {
    'classification': (150, 90, 255),
    'localization': (0, 160, 80),
    'both': (150, 75, 0),
    'duplicate': (255, 196, 0),
    'background': (255, 90, 0),
    'missed': (255, 0, 144),
}
# TIDE's short names, and what they mean.
_KINDS = {
    'classification': ('Cls', 'on an object of another class'),
    'localization': ('Loc', 'near an object of its class, IoU 0.1 to 0.5'),
    'both': ('Both', 'near an object of another class'),
    'duplicate': ('Dupe', 'on an object that a better box has'),
    'background': ('Bkg', 'near no object, IoU up to 0.1'),
    'missed': ('Miss', 'an object without a box on or near it'),
    'false positive': ('FP', 'all boxes that are wrong'),
    'false negative': ('FN', 'all objects without a right box'),
}
_RIGHT = (0, 180, 216)
_SIDE = 800
_MAP_SIDE = 400
_MAX_CLASSES = 100
# Of more classes so many of the worst, the best and those with most errors.
_FEW = 20
_MAX_PAIRS = 20
_MAX_LINES = 8
_LEVELS = 9
_BOX_COLUMNS = {
    'objects': 'Objects',
    'AP': 'AP',
    'AP_50': 'AP50',
    'AP_75': 'AP75',
    'AP_s': 'AP small',
    'AP_m': 'AP med.',
    'AP_l': 'AP large',
    'AR': 'AR',
    'F1': 'best F1',
    'F1_score': 'from score',
    'right': 'Right',
    **{kind: _KINDS[kind][0] for kind in ERROR_KINDS},
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


def _fit(shape: tuple[int, int], side: int) -> tuple[float, int, int]:
    """Scale, height and width of a picture whose longer side is to fit."""
    scale = picture_scale(*shape, side=side, shrink=True)
    return scale, *(max(1, round(n * scale)) for n in shape)


def _read(path: str, height: int, width: int) -> np.ndarray | None:
    """The image as RGB in that size; None without a file."""
    try:
        image = mmcv.imread(path, channel_order='rgb')
    except FileNotFoundError:
        return None
    return image if image is None else scaled(image, width, height)


def _caption(
    error: BoxError, classes: Sequence[str], scores: Sequence = ()
) -> str:
    """What is wrong; with the scores of all errors that say the same."""
    text = f'{error.kind}: {classes[error.label]}'
    if error.score is not None:
        texts = sorted(f'{score:.2f}' for score in scores or [error.score])
        text += f' {" to ".join(dict.fromkeys((texts[0], texts[-1])))}'
    if error.truth_label not in (None, error.label):
        text += f', is {classes[error.truth_label]}'
    return text if len(scores) < 2 else f'{text} ({len(scores)} times)'


def _box_card(
    path: str,
    shape: tuple[int, int],
    judged: JudgedBoxes,
    classes: Sequence[str],
) -> dict[str, Any]:
    errors = judged.errors
    kinds = [error.kind for error in errors]
    scale, *size = _fit(shape, _SIDE)
    image = _read(path, *size)
    if image is not None:
        # What is right as thin boxes, errors as thick ones with names.
        right = judged.pred.bboxes[judged.right] * scale
        draw_boxes(image, right, [_RIGHT] * len(right), 2)
        boxes = np.array([error.box for error in errors]).reshape(-1, 4)
        image = draw_instances(
            image,
            boxes * scale,
            np.arange(len(boxes)),
            classes=[_caption(error, classes) for error in errors],
            palette=[_COLORS[kind] for kind in kinds],
            side=max(image.shape[:2]),
            shrink=True,
        )
    counts = [f'{kinds.count(k)} {k}' for k in ERROR_KINDS if k in kinds]
    same = defaultdict(list)
    labels = {}
    for error in errors:
        same[error.kind, error.label, error.truth_label].append(error)
        labels |= {error.label: None, error.truth_label: None}
    lines = [
        _caption(group[0], classes, [error.score for error in group])
        for group in same.values()
    ]
    return _card(
        path,
        image,
        ', '.join([*counts, f'{int(judged.right.sum())} right']),
        lines,
        dict.fromkeys(kinds),
        [classes[label] for label in labels if label is not None],
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


def _map_card(
    path: str,
    counts: coo_matrix,
    maps: tuple[np.ndarray, np.ndarray],
    classes: Sequence[str],
    palette: Sequence[Color],
) -> dict[str, Any]:
    truth, pred = maps
    _, height, width = _fit(truth.shape, _MAP_SIDE)
    image = _read(path, height, width)
    if image is None:
        image = np.zeros((height, width, 3), np.uint8)
    wrong = (truth != pred) & (truth < len(classes))
    # Means: an error narrower than a pixel of the picture is seen, too.
    parts = cv2.resize(
        wrong.astype(np.float32),
        (width, height),
        interpolation=cv2.INTER_AREA,
    )
    marked = np.where(parts[..., None] > 0, _COLORS['missed'], image // 2 + 40)
    panels = [
        color_labels(scaled_labels(item, width, height), palette)
        for item in maps
    ]
    rows = [
        side_by_side([image, marked.astype(np.uint8)], ['image', 'errors']),
        side_by_side(panels, ['ground truth', 'prediction']),
    ]
    matrix = counts.toarray()
    total = max(int(matrix.sum()), 1)
    pairs = list(_errors_of(matrix))[:_MAX_LINES]
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


def _errors_of(matrix: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Row, column and count of what is wrong, the most frequent first."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind='stable')
    for index in order[: np.count_nonzero(wrong)].tolist():
        row, column = divmod(index, len(matrix))
        yield row, column, int(wrong[row, column])


def _matrix(confusion: Mapping[str, Any]) -> dict[str, Any]:
    """Cells with the share of their row as a level of the style sheet."""
    names = confusion['classes']
    counts = np.zeros((len(names), len(names)), int)
    for row, column, count in confusion['cells']:
        counts[row, column] = count
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    levels = np.ceil(shares * _LEVELS).astype(int)
    chosen = range(len(names))
    if len(names) > _MAX_CLASSES:
        errors = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
        chosen = sorted(np.argsort(-errors, kind='stable')[:_FEW].tolist())
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
                for m in chosen
            ],
        }
        for n in chosen
    ]
    pairs = [
        {
            'truth': names[row],
            'pred': names[column],
            'count': count,
            'share': f'{shares[row, column]:.1%}',
        }
        for row, column, count in _errors_of(counts)
    ]
    return {
        'names': [names[n] for n in chosen],
        'num_classes': len(names),
        'rows': rows,
        'pairs': pairs[:_MAX_PAIRS],
        'num_pairs': len(pairs),
    }


def _worst_and_best(rows: Sequence[Mapping], metric: str) -> Sequence[Mapping]:
    """All classes, or of many the worst and the best that have a metric."""
    if len(rows) <= _MAX_CLASSES:
        return rows
    known = [row for row in rows if _text(row[metric])]
    # Of as bad ones those that are most frequent.
    size = 'objects' if 'objects' in rows[0] else 'pixels'
    known.sort(key=lambda row: (row[metric], -row[size]))
    return known[:_FEW] + known[_FEW:][-_FEW:]


def _figure(xlabel: str, ylabel: str) -> tuple['Figure', 'Axes']:
    """Axes from 0 to 1, of 194.4 x 165.6 points, as the template has it."""
    # Not at the top: only this page needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ticks = np.linspace(0, 1, 5)
    with rc_context({'font.size': 9}):
        figure = Figure(figsize=(2.7, 2.3), layout='constrained')
        axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks)
    axes.set_axisbelow(True)
    axes.grid(visible=True, gid='grid', clip_on=False)
    axes.spines[['top', 'right']].set_visible(False)
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    return figure, axes


def _svg(figure: 'Figure', name: str) -> Markup:
    """A figure without styles, which the policy of the page forbids.

    Its style sheet gives them, by the names of matplotlib's groups.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    none = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))
    with rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name}):
        figure.savefig(file, format='svg', metadata=none)
    text = file.getvalue()
    text = re.sub(r'<style.*?</style>| style=".*?"', '', text)
    text = text.replace('<g id=', '<g class=')
    # What is left is matplotlib's alone: ticks, numbers, our two labels.
    return Markup(re.search('<svg.*?>(.*)</svg>', text, re.DOTALL)[1])


def _curves(
    report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Axes, and lines of the mean of all classes and of each in ``rows``."""
    known = [
        (row['class'], row['AP_50'], row['precision'])
        for row in rows
        if row['precision'] is not None
    ]
    if len(known) > 1:
        curves = [row['precision'] for row in report['per_class']]
        means = np.mean([curve for curve in curves if curve], 0)
        known.insert(0, ('mean of the classes', float(means.mean()), means))
    figure, axes = _figure('recall', 'precision')
    for _, _, curve in known:
        axes.plot(report['recalls'], curve, gid='curve', clip_on=False)
    around, *lines = re.split(
        '(<g class="curve">.*?</g>)', _svg(figure, 'curves'), flags=re.DOTALL
    )
    return {
        'axes': Markup(around + ''.join(lines[1::2])),
        'lines': [
            {'name': name, 'metric': _text(metric), 'line': Markup(line)}
            for (name, metric, _), line in zip(known, lines[::2])
        ],
    }


def _bars(bins: Sequence[Mapping[str, Any]]) -> Markup:
    """The share of right boxes over the score, and what it should be."""
    figure, axes = _figure('score', 'share of right boxes')
    full = [item for item in bins if item['count']]
    lows, shares = ([item[key] for item in full] for key in ('low', 'right'))
    axes.bar(lows, shares, 0.1, align='edge', gid='bar', clip_on=False)
    axes.plot([0, 1], [0, 1], gid='diagonal', clip_on=False)
    return _svg(figure, 'calibration')


def report_page(
    report: Mapping[str, Any],
    shown: Sequence[tuple],
    classes: Sequence[str],
    palette: Any = None,
) -> bytes:
    """One page, as UTF-8, that shows a report and its worst pictures.

    It loads nothing, follows the light or dark theme of the browser, and can
    be read without JavaScript. ``shown`` has of a detector path, ``(height,
    width)`` and the judged boxes; of a segmentor path, matrix, and the maps
    of ground truth and prediction, ``(H, W)``.
    """
    detector = report['task'] == 'detection'
    if detector:
        cards = [_box_card(*item, classes) for item in shown]
        columns, metric, kinds = _BOX_COLUMNS, 'AP', ERROR_KINDS
    else:
        colors = class_palette(len(classes), palette)
        cards = [_map_card(*item, classes, colors) for item in shown]
        columns, metric, kinds = _MAP_COLUMNS, 'IoU', ()
    rows = _worst_and_best(report['per_class'], metric)
    if 'frequency' in rows[0]:
        columns = {'frequency': 'Frequency', **columns}
    numbers = [
        ('info', _text(value), name)
        for name, value in report['summary'].items()
    ]
    verdict = f'{numbers[0][2]} {numbers[0][1] or "unknown"}'
    errors = []
    if detector:
        lost, counts = report['lost_AP_50'], Counter(report['counts'])
        objects = sum(row['objects'] for row in report['per_class'])
        counts['false negative'] = objects - counts['right']
        counts['false positive'] = sum(counts[kind] for kind in kinds[:-1])
        errors = [
            {'kind': kind, 'short': short, 'meaning': meaning}
            | {'count': counts[kind], 'lost': lost[kind]}
            | {'part': max(100 * lost[kind], 0) / (max(lost.values()) or 1)}
            for kind, (short, meaning) in _KINDS.items()
        ]
        worst = max(kinds, key=lost.get)
        if 0 < objects == counts['missed']:
            verdict += f', all {objects} objects are missed'
        elif lost[worst] > 0:
            verdict += f', most AP50 lost to {worst}: {lost[worst]:.3f}'
    content = {
        'verdict': verdict,
        'errors': errors,
        'tiles': [
            {'word': word, 'kinds': value, 'label': label, 'findings': ''}
            for word, value, label in numbers
            if value != ''
        ],
        'detector': detector,
        'report': report,
        'metrics': {
            name: _text(value) for name, value in report['metrics'].items()
        },
        'table': {
            'columns': list(columns.values()),
            'rows': [
                {
                    'name': row['class'],
                    'cells': [_text(row[key]) for key in columns],
                }
                for row in rows
            ],
        },
        'curves': _curves(report, rows) if detector else {'lines': []},
        'bars': _bars(report['calibration']['bins']) if detector else '',
        'matrix': _matrix(report['confusion']),
        'cards': cards,
        'kinds': kinds,
        'classes': sorted(
            {name for card in cards for name in card['class_data'].split('\n')}
            - {''}
        ),
    }
    return page.render(__package__, 'report.html.jinja', page=content)
