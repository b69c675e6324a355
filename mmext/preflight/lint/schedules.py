"""Schedules of the learning rate that do not fit the training."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..findings import Severity
from .registry import Note, lint_rule
from .subject import Subject, plain_name
from .training_length import TrainingLength, training_length

__all__ = []

_ENDLESS = 10**9
# A schedule that ends this early is hardly meant to.
_LONG = 0.75
# Schedules that go down to the end of their span, by a formula with it.
_SPANNING = ('Poly', 'CosineAnnealing', 'OneCycle')
_DECAYS = (*_SPANNING, 'MultiStep', 'Step', 'Exponential', 'CosineRestart')


class _Schedule(NamedTuple):
    path: tuple[str | int, ...]
    cfg: Mapping
    kind: str
    by_epoch: bool
    begin: Any
    end: Any

    @property
    def unit(self) -> str:
        return 'epochs' if self.by_epoch else 'iterations'

    @property
    def quantity(self) -> str:
        return 'momentum' if self.kind.endswith('Momentum') else 'lr'

    @property
    def family(self) -> str:
        for ending in ('LR', 'Momentum', 'ParamScheduler'):
            if self.kind.endswith(ending):
                return self.kind[: -len(ending)]
        return self.kind


def _schedules(subject: Subject) -> Iterator[_Schedule]:
    for section in subject.below('param_scheduler'):
        cfg = section.cfg
        if 'type' not in cfg:
            continue
        end = cfg.get('end', _ENDLESS)
        yield _Schedule(
            section.path,
            cfg,
            plain_name(cfg['type']),
            bool(cfg.get('by_epoch', True)),
            cfg.get('begin', 0),
            end if end is not None else _ENDLESS,
        )


def _fitting(
    subject: Subject,
) -> Iterator[tuple[_Schedule, TrainingLength]]:
    """Schedules that count what the training counts, with numbers."""
    length = training_length(subject)
    for each in _schedules(subject) if length else ():
        numbers = isinstance(each.begin, int) and isinstance(each.end, int)
        if numbers and each.by_epoch == length.by_epoch:
            yield each, length


@lint_rule(
    'SCHED001',
    title='a schedule counts epochs, of which the training has one',
    severity=Severity.ERROR,
    remedy='set by_epoch=False, and begin, end and the like in iterations',
)
def epochs_of_iterations(subject: Subject) -> Iterator[Note]:
    """``by_epoch`` in a training that is counted in iterations."""
    length = training_length(subject)
    if length is None or length.by_epoch:
        return
    for each in _schedules(subject):
        if each.by_epoch and each.family != 'ReduceOnPlateau':
            said = 'by_epoch' in each.cfg
            yield Note(
                f'{each.kind} counts epochs'
                f'{"" if said else ", which is its default"}, but '
                f'{length.total} iterations are one epoch to MMEngine: it '
                'changes nothing before the end',
                path=(*each.path, 'by_epoch') if said else each.path,
                options=_option(each, 'by_epoch', False),
            )


def _option(each: _Schedule, key: str, value: Any) -> dict[str, Any]:
    path = ''.join(
        f'[{step}]' if isinstance(step, int) else f'.{step}'
        for step in (*each.path, key)
    )
    return {path[1:]: value}


@lint_rule(
    'SCHED002',
    title='a schedule begins when the training is over',
    severity=Severity.WARNING,
    remedy='let it begin earlier, or train longer',
)
def never_begins(subject: Subject) -> Iterator[Note]:
    """``begin`` at or after the end."""
    for each, length in _fitting(subject):
        if each.begin >= length.total:
            yield Note(
                f'{each.kind} begins at {each.begin} {each.unit}, and '
                f'train_cfg.{length.key} is {length.total}: it changes '
                'nothing',
                path=(*each.path, 'begin'),
            )


@lint_rule(
    'SCHED003',
    title='no milestone of a schedule is reached',
    severity=Severity.WARNING,
    remedy='set milestones below the end of the training',
)
def late_milestones(subject: Subject) -> Iterator[Note]:
    """Milestones at or after the end."""
    for each, length in _fitting(subject):
        stones = each.cfg.get('milestones')
        if each.begin >= length.total or not isinstance(stones, list | tuple):
            continue
        late = [
            stone
            for stone in stones
            if isinstance(stone, int) and stone >= min(length.total, each.end)
        ]
        if late:
            every = len(late) == len(stones)
            yield Note(
                f'{each.kind} has milestones {list(stones)}, of which '
                f'{"none" if every else f"{late} are not"} reached: the '
                f'training ends at {length.total}, the schedule at '
                f'{"the same" if each.end >= length.total else each.end}',
                path=(*each.path, 'milestones'),
                severity=Severity.WARNING if every else Severity.INFO,
            )


@lint_rule(
    'SCHED004',
    title='a schedule has another end than the training',
    severity=Severity.WARNING,
    remedy='set end (and T_max) to the end of the training',
)
def other_end(subject: Subject) -> Iterator[Note]:
    """Schedules down to a lowest value that is not where training ends."""
    spanning = [
        pair for pair in _fitting(subject) if pair[0].family in _SPANNING
    ]
    for each, length in spanning:
        if each.begin >= length.total:
            continue
        if each.end > length.total and each.end != _ENDLESS:
            yield Note(
                f'{each.kind} ends at {each.end}, the training at '
                f'{length.total} {each.unit}: the {each.quantity} does not '
                'come down to its lowest value',
                path=(*each.path, 'end'),
                options=_option(each, 'end', length.total),
            )
        last = not any(
            other.quantity == each.quantity and other.end > each.end
            for other, _ in _fitting(subject)
        )
        if each.end < length.total and last:
            yield Note(
                f'{each.kind} ends at {each.end}, the training at '
                f'{length.total} {each.unit}: from there on the '
                f'{each.quantity} stays at its lowest value',
                path=(*each.path, 'end'),
                severity=Severity.WARNING
                if each.end <= _LONG * length.total
                else Severity.INFO,
                options=_option(each, 'end', length.total),
            )


@lint_rule(
    'SCHED005',
    title='T_max of a cosine is not its span',
    severity=Severity.WARNING,
    remedy='remove T_max: it is end - begin by itself',
)
def other_period(subject: Subject) -> Iterator[Note]:
    """Half a period that is shorter or longer than the schedule."""
    for each, length in _fitting(subject):
        period = each.cfg.get('T_max')
        span = min(each.end, length.total) - each.begin
        if (
            each.family != 'CosineAnnealing'
            or not isinstance(period, int)
            or period == span
            or span <= 0
        ):
            continue
        if period < span:
            effect = f'the {each.quantity} rises again after it'
        else:
            effect = f'the {each.quantity} does not come down to eta_min'
        yield Note(
            f'{each.kind} has T_max={period} and lasts for {span} '
            f'{each.unit}: {effect}',
            path=(*each.path, 'T_max'),
            severity=Severity.WARNING if period < span else Severity.INFO,
            options=_option(each, 'T_max', span),
        )


@lint_rule(
    'SCHED006',
    title='the warm-up is as long as the training',
    severity=Severity.WARNING,
    remedy='shorten the warm-up',
)
def long_warm_up(subject: Subject) -> Iterator[Note]:
    """A rising schedule that does not end before the training."""
    for each, length in _fitting(subject):
        factor = each.cfg.get('start_factor', 1.0 / 3)
        rises = each.family in ('Linear', 'QuadraticWarmup') and (
            each.family != 'Linear' or factor < each.cfg.get('end_factor', 1.0)
        )
        if rises and each.begin == 0 and each.end >= length.total > 1:
            end = 'never' if each.end == _ENDLESS else f'at {each.end}'
            yield Note(
                f'the warm-up {each.kind} ends {end}, the training at '
                f'{length.total} {each.unit}',
                path=(*each.path, 'end') if 'end' in each.cfg else each.path,
            )


@lint_rule(
    'SCHED007',
    title='two schedules change the same value at the same time',
    severity=Severity.WARNING,
    remedy='let one begin where the other ends; their factors multiply',
)
def overlapping(subject: Subject) -> Iterator[Note]:
    """Two that decay, with spans that overlap."""
    decays = [each for each, _ in _fitting(subject) if each.family in _DECAYS]
    for index, each in enumerate(decays):
        for other in decays[:index]:
            if (
                each.path[:-1] == other.path[:-1]
                and each.quantity == other.quantity
                and each.begin < other.end
                and other.begin < each.end
            ):
                yield Note(
                    f'{other.kind} ({other.begin} to {_end(other)}) and '
                    f'{each.kind} ({each.begin} to {_end(each)} '
                    f'{each.unit}) both change the {each.quantity}',
                    path=each.path,
                )


def _end(each: _Schedule) -> str:
    return 'the end' if each.end == _ENDLESS else str(each.end)
