"""Draw loss, learning rate and mAP of a training as one picture."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..utils.files import atomic_path, open_regular

_FOLDERS = ('', 'vis_data/', '*/vis_data/')
_NOT_SCALARS = frozenset({'iter', 'epoch', 'step'})


# One logged value over training, by iteration.
Series = dict[int, float]


@dataclass(frozen=True)
class ScalarLog:
    """The history of one training, by the names of logged values."""

    train: dict[str, Series]
    val: dict[str, Series]
    restarts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def _parse_file(path: Path) -> tuple[list[dict], list[str]]:
    """Records of one file, and a note when its last line is cut off."""
    records, notes = [], []
    with open_regular(path) as file:
        lines = file.read().decode('utf-8', 'replace').split('\n')
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                notes.append(
                    f'{path}: line {number}, the last, is only half '
                    'written and was left out'
                )
                break
            record = None
        if not isinstance(record, dict):
            raise ValueError(
                f'{path} must hold one JSON object per line, got {line[:60]!r}'
                f' in line {number}; remove that line'
            )
        records.append(record)
    return records, notes


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _series(records: list[tuple[int, dict]]) -> dict[str, Series]:
    columns: dict[str, Series] = {}
    for step, record in records:
        for key, value in record.items():
            if key not in _NOT_SCALARS and _number(value):
                columns.setdefault(key, {})[step] = float(value)
    return columns


def merge_records(records: list[dict]) -> ScalarLog:
    """Make one history of log records in the order they were written.

    A training record has ``iter``; every other record is a validation. A
    training record that goes back in ``iter`` starts a new run, and all that
    older runs logged at or after that iteration is dropped: the newest wins.

    A validation stands at its own ``step``, or, where MMEngine counted that
    in epochs, at the last training iteration logged before it (which is
    early by less than one log interval).
    """
    train: list[tuple[int, dict]] = []
    val: list[tuple[int, dict]] = []
    restarts: list[int] = []
    dropped = 0
    for record in records:
        if 'iter' not in record:
            last = train[-1][0] if train else 0
            step = record.get('step', 0)
            val.append((max(last, int(step) if _number(step) else 0), record))
            continue
        step = int(record['iter'])
        if train and step <= train[-1][0]:
            before = len(train) + len(val)
            train = [item for item in train if item[0] < step]
            val = [item for item in val if item[0] < step]
            dropped += before - len(train) - len(val)
            restarts = [item for item in restarts if item < step]
            restarts += [step] if train else []
        train.append((step, record))
    notes = ()
    if dropped:
        notes = (
            f'{dropped} records of older runs were left out: a newer run '
            'logged the same iterations again',
        )
    return ScalarLog(_series(train), _series(val), tuple(restarts), notes)


def read_scalars(work_dir: str | Path) -> ScalarLog:
    """Read all runs of a work dir as one history."""
    work_dir = Path(work_dir)
    if not work_dir.is_dir():
        raise FileNotFoundError(
            f'work_dir must be an existing directory, got {work_dir}; give '
            'the --work-dir of a training'
        )
    paths = sorted(
        path
        for folder in _FOLDERS
        for path in work_dir.glob(f'{folder}scalars.json')
    )
    if not paths:
        raise FileNotFoundError(
            f'work_dir must hold a training log, got {work_dir} without any '
            '<time>/vis_data/scalars.json; give the --work-dir of a training '
            "whose visualizer has a 'LocalVisBackend'"
        )
    records, notes = [], []
    for path in paths:
        new_records, problems = _parse_file(path)
        records += new_records
        notes += problems
    log = merge_records(records)
    if not log.train and not log.val:
        raise ValueError(
            f'work_dir must hold a training log, got {work_dir} whose '
            f'{len(paths)} log file(s) are empty; train for at least one log '
            'interval (default_hooks.logger.interval iterations)'
        )
    return ScalarLog(log.train, log.val, log.restarts, (*notes, *log.notes))


# Colours of Okabe and Ito, distinct for any kind of colour vision.
_COLORS = (
    *('#0072B2', '#D55E00', '#009E73', '#CC79A7'),
    *('#E69F00', '#56B4E9', '#7F7F7F', '#8C564B'),
)
_MAX_LINES = len(_COLORS)
_GROUPS = {
    'detr': 'DETR, matched queries',
    'dn': 'DN, denoising queries',
    'aux': 'co-head queries in the decoder',
    'co-heads': 'co-heads',
    'rpn': 'RPN',
}


def loss_group(name: str) -> str:
    """The part of CO-DINO that a loss belongs to."""
    if name == 'loss':
        return 'total'
    if 'rpn' in name:
        return 'rpn'
    if 'dn_' in name:
        return 'dn'
    if re.search(r'aux\d*$', name):
        return 'aux'
    if re.search(r'\d$', name):
        return 'co-heads'
    return 'detr'


def group_losses(train: Mapping[str, Series]) -> dict[str, Series]:
    """Sum the logged losses of each part of the model, ``'total'`` first.

    A name is a loss when it contains ``loss``, as in MMEngine. The parts of
    CO-DINO are summed up by :func:`loss_group`; a log without denoising or
    layer-wise losses is of another kind of detector, and each loss is a line
    of its own there.
    """
    losses = {name: item for name, item in train.items() if 'loss' in name}
    grouped: dict[str, Series] = {}
    if 'loss' in losses:
        grouped['total'] = losses.pop('loss')
    by_query = re.compile(r'^d\d+\.|^enc_|dn_')
    if not any(by_query.search(name) for name in losses):
        return grouped | losses
    for group, label in _GROUPS.items():
        parts = [losses[name] for name in losses if loss_group(name) == group]
        if parts:
            total: Series = {}
            for part in parts:
                for step, value in part.items():
                    total[step] = total.get(step, 0.0) + value
            grouped[label] = dict(sorted(total.items()))
    return grouped


def _pick_metrics(val: Mapping[str, Series]) -> dict[str, Series]:
    """The mAP lines, or all of them when there is no mAP; -1 is no value."""
    skip = ('time', 'data_time', 'memory', 'lr')
    names = [name for name in val if name.split('/')[-1] not in skip]
    pattern = re.compile(r'(mAP|AP)(_?50|_?75)?$')
    names = [name for name in names if pattern.search(name)] or names
    metrics = {}
    for name in names[:_MAX_LINES]:
        # pycocotools writes -1 for "there was nothing to measure".
        metrics[name] = {
            step: np.nan if value == -1 else value
            for step, value in val[name].items()
        }
    return metrics


def _smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving mean of finite values; the window shrinks at the ends."""
    good = np.isfinite(values)
    kernel = np.ones(width)
    total = np.convolve(np.where(good, values, 0.0), kernel, 'same')
    count = np.convolve(good.astype(float), kernel, 'same')
    with np.errstate(invalid='ignore'):
        return np.where(count > 0, total / count, np.nan)


def _plot(
    axes: Axes, label: str, item: Series, color: str, smooth: bool
) -> None:
    steps, values = np.array([*item.items()], dtype=float).T
    last = values[-1]
    width = len(values) // 40 * 2 + 1 if smooth else 1
    if width > 1:
        axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.3)
        values = _smooth(values, width)
    axes.plot(
        steps,
        values,
        color=color,
        linewidth=2.4 if label == 'total' else 1.6,
        marker='o' if len(values) < 25 else None,
        markersize=3.5,
        label=f'{label} (last {last:.3g})',
    )


def _panel(
    axes: Axes,
    lines: Mapping[str, Series],
    ylabel: str,
    restarts: Sequence[int],
) -> None:
    for index, (label, item) in enumerate(lines.items()):
        color = _COLORS[index % len(_COLORS)]
        _plot(axes, label, item, color, smooth=ylabel == 'loss')
    for number, step in enumerate(restarts):
        axes.axvline(
            step,
            color='0.35',
            linestyle=':',
            linewidth=1.2,
            label='training resumed' if number == 0 else None,
        )
    axes.set_ylabel(ylabel)
    axes.grid(True, which='both', alpha=0.25)
    axes.margins(x=0.02)
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)
    axes.legend(loc='upper left', bbox_to_anchor=(1.01, 1.0), frameon=False)
    values = np.concatenate([[*item.values()] for item in lines.values()])
    values = values[np.isfinite(values)]
    # Where they spread so far that it reads better.
    is_wide = values.size and 0 < 20 * values.min() < values.max()
    if ylabel == 'loss' and is_wide:
        axes.set_yscale('log', subs=(2, 5))
        plain = FuncFormatter(lambda value, _: f'{value:g}')
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(plain)
        axes.set_ylabel('loss (log scale)')
    elif ylabel == 'learning rate':
        axes.ticklabel_format(axis='y', scilimits=(-2, 2))
        axes.set_ylim(bottom=0)
    elif ylabel == 'validation' and all('AP' in name for name in lines):
        axes.set_ylim(0, min(1.0, 1.25 * axes.dataLim.y1 or 1.0))
        axes.set_ylabel('validation mAP')


def draw_curves(log: ScalarLog, *, title: str = '') -> Figure:
    """Draw a history: losses, learning rate and validation, one below other.

    A multi-task training has the weights of its tasks in a panel, too. Panels
    without data are left out. The loss panel has a logarithmic axis when its
    values spread over more than a factor of 20 and are positive.
    From 40 points on a loss is a moving mean over 1/20 of them, with the
    logged values faint behind it. NaN and infinite values are gaps.
    """
    losses = group_losses(log.train)
    losses = dict(list(losses.items())[:_MAX_LINES])
    rates = {
        name: item
        for name, item in log.train.items()
        if name.split('/')[-1] == 'lr' or name.endswith('.lr')
    }
    weights = {
        name.removeprefix('weight/'): item
        for name, item in log.train.items()
        if name.startswith('weight/')
    }
    panels = [
        (losses, 'loss', 3.0),
        (dict(list(weights.items())[:_MAX_LINES]), 'weight of task', 1.8),
        (rates, 'learning rate', 1.3),
        (_pick_metrics(log.val), 'validation', 1.8),
    ]
    panels = [panel for panel in panels if panel[0]]
    if not panels:
        raise ValueError(
            'log must hold a loss, a learning rate or a metric, got only '
            f'{sorted({*log.train, *log.val})}'
        )
    heights = [panel[2] for panel in panels]
    figure = Figure(figsize=(11, 1.5 * sum(heights)), layout='constrained')
    grid = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, height_ratios=heights
    )
    for axes, (lines, ylabel, _) in zip(grid[:, 0], panels):
        _panel(axes, lines, ylabel, log.restarts)
    grid[-1, 0].set_xlabel('training iteration')
    if title:
        figure.suptitle(title, fontsize=13)
    return figure


def plot_log(work_dir: str | Path, out: str | Path) -> ScalarLog:
    """Draw the history of a work dir into a PNG file.

    The file appears whole or not at all; an older one is replaced.

    Args:
        work_dir: See :func:`~mmext.apis.curves.read_scalars`.
        out: The picture to write, ending in ``.png``. Missing folders are
            made.

    Returns:
        The history that was drawn, with its ``notes``.

    Raises:
        FileNotFoundError: If ``work_dir`` holds no log.
        ValueError: If ``out`` does not end in ``.png``, or the log is broken.
    """
    out = Path(out)
    if out.suffix.lower() != '.png':
        raise ValueError(f'out must end in .png, got {out}')
    log = read_scalars(work_dir)
    figure = draw_curves(log, title=Path(work_dir).resolve().name)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, dpi=110, format='png')
    return log
