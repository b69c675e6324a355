"""Read what MMEngine logged while training, over all runs of a work dir.

MMEngine writes one ``<time>/vis_data/scalars.json`` per run, one JSON object
per line. A training that was resumed has several; here they become one
history.
"""

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ['ScalarLog', 'Series', 'merge_records', 'read_scalars']

_PATTERNS = (
    'scalars.json',
    'vis_data/scalars.json',
    '*/vis_data/scalars.json',
)
_NOT_SCALARS = frozenset({'iter', 'epoch', 'step'})


@dataclass(frozen=True)
class Series:
    """One logged value over training.

    Args:
        steps: Training iterations, ascending, counted from 1 (0 for a
            validation before the training).
        values: The value at each of them; may be NaN or infinite.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class ScalarLog:
    """The history of one training.

    Args:
        train: Series by name, from the training log: ``loss``, ``lr``, ...
        val: Series by name, from the validation log, such as
            ``coco/bbox_mAP``.
        restarts: First logged iteration of each run but the first.
        notes: What was left out while reading, one sentence each.
    """

    train: dict[str, Series]
    val: dict[str, Series]
    restarts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def _parse_file(path: Path) -> tuple[list[dict], list[str]]:
    """Records of one file, and a note when its last line is cut off."""
    records, notes = [], []
    lines = path.read_text(encoding='utf-8', errors='replace').split('\n')
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                notes.append(
                    f'{path}: line {number}, the last, is only half '
                    'written and was left out'
                )
                break
            raise ValueError(
                f'{path} must hold one JSON object per line, got {line[:60]!r}'
                f' in line {number}; remove that line'
            ) from error
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
    columns: dict[str, dict[int, float]] = {}
    for step, record in records:
        for key, value in record.items():
            if key not in _NOT_SCALARS and _number(value):
                columns.setdefault(key, {})[step] = float(value)
    return {
        key: Series(tuple(column), tuple(column.values()))
        for key, column in columns.items()
    }


def merge_records(records: list[dict]) -> ScalarLog:
    """Make one history of log records in the order they were written.

    A training record has ``iter``; every other record is a validation. A
    training record that goes back in ``iter`` starts a new run, and all that
    older runs logged at or after that iteration is dropped: the newest wins.

    A validation stands at its own ``step``, or, where MMEngine counted that
    in epochs, at the last training iteration logged before it (which is
    early by less than one log interval).

    Args:
        records: Log records, oldest first.

    Returns:
        The history. ``notes`` says how many records were dropped.

    Raises:
        ValueError: If a training record's ``iter`` is not a number.

    Examples:
        >>> log = merge_records([
        ...     dict(loss=3.0, iter=10), dict(loss=2.0, iter=20),
        ...     dict(loss=2.5, iter=20), dict(loss=1.5, iter=30)])
        >>> log.train['loss']
        Series(steps=(10, 20, 30), values=(3.0, 2.5, 1.5))
        >>> log.restarts
        (20,)
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
        if not _number(record['iter']):
            raise ValueError(
                'iter must be a number in every training record, '
                f'got {record["iter"]!r}'
            )
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
    """Read all runs of a work dir as one history.

    Args:
        work_dir: A work dir of a training, one of its time-stamped runs, or
            that run's ``vis_data``.

    Returns:
        The merged history, see :func:`merge_records`.

    Raises:
        FileNotFoundError: If there is no such directory or no log in it.
        ValueError: If a line other than the last of a file is not a JSON
            object, or nothing is logged at all.
    """
    work_dir = Path(work_dir)
    if not work_dir.is_dir():
        raise FileNotFoundError(
            f'work_dir must be an existing directory, got {work_dir}; give '
            'the --work-dir of a training'
        )
    paths = sorted(
        path for pattern in _PATTERNS for path in work_dir.glob(pattern)
    )
    if not paths:
        raise FileNotFoundError(
            f'work_dir must hold a training log, got {work_dir} without any '
            '<time>/vis_data/scalars.json; give the --work-dir of a training '
            "whose visualizer has a 'LocalVisBackend'"
        )
    records, notes = [], []
    for path in paths:
        found, problems = _parse_file(path)
        records += found
        notes += problems
    log = merge_records(records)
    if not log.train and not log.val:
        raise ValueError(
            f'work_dir must hold a training log, got {work_dir} whose '
            f'{len(paths)} log file(s) are empty; train for at least one log '
            'interval (default_hooks.logger.interval iterations)'
        )
    return ScalarLog(log.train, log.val, log.restarts, (*notes, *log.notes))
