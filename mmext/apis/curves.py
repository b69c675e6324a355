"""Draw loss, learning rate and mAP of a training as one picture."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..utils.files import atomic_path
from .scalars import ScalarLog, Series, read_scalars

__all__ = ['draw_curves', 'group_losses', 'loss_group', 'plot_log']

# Colours of Okabe and Ito, told apart with any kind of colour vision.
_COLORS = (
    '#0072B2',
    '#D55E00',
    '#009E73',
    '#CC79A7',
    '#E69F00',
    '#56B4E9',
    '#7F7F7F',
    '#8C564B',
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
    """Tell which part of CO-DINO a loss belongs to.

    Args:
        name: Key of the loss dict, such as ``'d0.dn_loss_cls'``.

    Returns:
        ``'total'``, ``'rpn'``, ``'dn'``, ``'aux'`` (queries made of a
        co-head's positives), ``'co-heads'`` or ``'detr'``.

    Examples:
        >>> loss_group('d0.dn_loss_cls'), loss_group('enc_loss_bbox')
        ('dn', 'detr')
        >>> loss_group('loss_cls_aux1'), loss_group('loss_cls1')
        ('aux', 'co-heads')
    """
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


def _sum_series(parts: Sequence[Series]) -> Series:
    total: dict[int, float] = {}
    for part in parts:
        for step, value in zip(part.steps, part.values):
            total[step] = total.get(step, 0.0) + value
    steps = sorted(total)
    return Series(tuple(steps), tuple(total[step] for step in steps))


def group_losses(train: Mapping[str, Series]) -> dict[str, Series]:
    """Sum the logged losses of each part of the model.

    A name is a loss when it contains ``loss``, as in MMEngine. The parts of
    CO-DINO are summed up by :func:`loss_group`; a log without denoising or
    layer-wise losses is of another kind of detector, and each loss is a line
    of its own there.

    Args:
        train: The training series of a :class:`ScalarLog`.

    Returns:
        Series by label, ``'total'`` first where it was logged.

    Examples:
        >>> one = Series((1, ), (1.0, ))
        >>> list(group_losses(dict(
        ...     lr=one, loss=one, loss_rpn_cls=one, dn_loss_cls=one)))
        ['total', 'DN, denoising queries', 'RPN']
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
            grouped[label] = _sum_series(parts)
    return grouped


def _pick_metrics(val: Mapping[str, Series]) -> dict[str, Series]:
    """The mAP lines, or all of them when there is no mAP; -1 is no value."""
    skip = ('time', 'data_time', 'memory', 'lr')
    names = [name for name in val if name.split('/')[-1] not in skip]
    pattern = re.compile(r'(mAP|AP)(_?50|_?75)?$')
    names = [name for name in names if pattern.search(name)] or names
    found = {}
    for name in names[:_MAX_LINES]:
        # pycocotools writes -1 for "there was nothing to measure".
        values = [np.nan if v == -1 else v for v in val[name].values]
        found[name] = Series(val[name].steps, tuple(values))
    return found


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
    steps = np.asarray(item.steps, dtype=float)
    values = np.asarray(item.values, dtype=float)
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
        label=f'{label} (last {item.values[-1]:.3g})',
    )


def _use_log_scale(lines: Mapping[str, Series]) -> bool:
    """Whether positive values spread so far that a log scale reads better."""
    values = np.concatenate([np.asarray(v.values) for v in lines.values()])
    values = values[np.isfinite(values)]
    return bool(
        values.size and values.min() > 0 and values.max() > 20 * values.min()
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
    if ylabel == 'loss' and _use_log_scale(lines):
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

    Panels without data are left out. The loss panel has a logarithmic axis
    when its values spread over more than a factor of 20 and are positive.
    From 40 points on a loss is a moving mean over 1/20 of them, with the
    logged values faint behind it. NaN and infinite values are gaps.

    Args:
        log: What :func:`~mmext.apis.scalars.read_scalars` returned.
        title: Text above the picture.

    Returns:
        The figure, bound to no window system; it can be saved as it is.

    Raises:
        ValueError: If the log holds neither a loss, a learning rate nor a
            metric.
    """
    losses = group_losses(log.train)
    losses = dict(list(losses.items())[:_MAX_LINES])
    rates = {
        name: item
        for name, item in log.train.items()
        if name.split('/')[-1] == 'lr' or name.endswith('.lr')
    }
    panels = [
        (losses, 'loss', 3.0),
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
        work_dir: See :func:`~mmext.apis.scalars.read_scalars`.
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
        figure.savefig(temporary, dpi=110)
    return log
