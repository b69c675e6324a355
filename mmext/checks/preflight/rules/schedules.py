"""Schedules of the learning rate that do not fit the training."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...config import join_key
from ...findings import Finding, Severity
from .loops import training_length
from .registry import SCHED, new_finding
from .subject import Subject, as_mapping, change, kind_of

_ENDLESS = 10**9
# A schedule that begins later is not one after a warm-up.
_WARM_UP = 0.1
# Shorter trainings may have as many epochs.
_MANY_ITERATIONS = 1000
# Arguments that are counted in epochs or iterations.
_COUNTS = (
    'begin',
    'end',
    'T_max',
    'milestones',
    'periods',
    'step_size',
    'total_steps',
)
# A schedule that ends this early is hardly meant to.
_LONG = 0.75
# Schedules that go down to the end of their span, by a formula with it.
_SPANNING = ('Poly', 'CosineAnnealing', 'OneCycle')
# Schedules that begin with a factor -> its argument.
_FACTORS = {'Linear': 'start_factor', 'Constant': 'factor'}
_DECAYS = (*_SPANNING, 'MultiStep', 'Step', 'Exponential', 'CosineRestart')


class _Schedule(NamedTuple):
    path: tuple[str | int, ...]
    cfg: Mapping
    kind: str
    by_epoch: bool
    begin: Any
    end: Any
    total: int

    @property
    def numbers(self) -> set[int]:
        """What it counts to, without 0."""
        values = [self.cfg.get(key) for key in _COUNTS]
        lists = [v if isinstance(v, list | tuple) else [v] for v in values]
        return {
            v for numbers in lists for v in numbers if isinstance(v, int) and v
        }

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
    length = training_length(subject)
    for section in subject.below('param_scheduler'):
        cfg = section.cfg
        if 'type' not in cfg:
            continue
        end = cfg.get('end', _ENDLESS)
        yield _Schedule(
            section.path,
            cfg,
            kind_of(cfg),
            bool(cfg.get('by_epoch', True)),
            cfg.get('begin', 0),
            end if end is not None else _ENDLESS,
            length.total if length else 0,
        )


def _fitting(subject: Subject) -> Iterator[_Schedule]:
    """Schedules that count what the training counts, with numbers."""
    length = training_length(subject)
    for schedule in _schedules(subject) if length else ():
        numbers = isinstance(schedule.begin, int) and isinstance(
            schedule.end, int
        )
        if numbers and schedule.by_epoch == length.by_epoch:
            yield schedule


@SCHED.rule(
    'SCHED001',
    title='a schedule counts epochs, of which the training has one',
    severity=Severity.ERROR,
    remedy='set by_epoch=False, and begin, end and the like in iterations',
    fix='set by_epoch=False, unless it has numbers of epochs',
)
def epochs_of_iterations(subject: Subject) -> Iterator[Finding]:
    """``by_epoch`` in a training that is counted in iterations."""
    length = training_length(subject)
    if length is None or length.by_epoch:
        return
    loader = as_mapping(subject.top.get('train_dataloader'))
    images, batch = '(batch_size x processes)', loader.get('batch_size')
    if isinstance(batch, int) and subject.world:
        images = str(batch * subject.world)
    for schedule in _schedules(subject):
        if (
            schedule.by_epoch
            and schedule.family != 'ReduceOnPlateau'
            and not schedule.cfg.get('convert_to_iter_based')
        ):
            numbers = sorted(schedule.numbers)
            # So many epochs would be absurd.
            iterations = numbers and (
                length.total >= _MANY_ITERATIONS
                and 2 * numbers[-1] > length.total
            )
            epochs = numbers and not iterations
            said = 'by_epoch' in schedule.cfg
            yield new_finding(
                f'{schedule.kind} counts epochs'
                f'{"" if said else ", which is its default"}, but '
                f'{length.total} iterations are one epoch to MMEngine: it '
                'changes nothing before the end',
                path=(*schedule.path, 'by_epoch') if said else schedule.path,
                remedy='set by_epoch=False, and multiply '
                f'{", ".join(map(str, numbers))} by the iterations of an '
                f'epoch: images / {images}'
                if epochs
                else '',
                options={}
                if epochs
                else change((*schedule.path, 'by_epoch'), False),
            )


def _is_left_over(subject: Subject, schedule: _Schedule, key: str) -> bool:
    """Whether a base has a number for a training of another length.

    A schedule that begins late, not after a warm-up, is one of several that
    share the training.
    """
    early = schedule.begin <= _WARM_UP * min(schedule.end, schedule.total)
    return early and subject.is_above(
        f'train_cfg.max_{"epochs" if schedule.by_epoch else "iters"}',
        join_key((*schedule.path, key)),
    )


@SCHED.rule(
    'SCHED002',
    symptoms=('end should be larger than begin, but got begin=',),
    title='a schedule begins when the training is over',
    severity=Severity.WARNING,
    remedy='let it begin earlier, or train longer',
)
def never_begins(subject: Subject) -> Iterator[Finding]:
    """``begin`` at or after the end."""
    for schedule in _fitting(subject):
        if schedule.begin >= schedule.total:
            # Its end is that of the training then, and must be later.
            alone = schedule.end == _ENDLESS
            yield new_finding(
                f'{schedule.kind} begins at {schedule.begin} '
                f'{schedule.unit}, and the training ends at '
                f'{schedule.total}: it changes nothing'
                + (', and cannot be built' if alone else ''),
                path=(*schedule.path, 'begin'),
                severity=Severity.ERROR if alone else Severity.WARNING,
            )


@SCHED.rule(
    'SCHED003',
    title='no milestone of a schedule is reached',
    severity=Severity.WARNING,
    remedy='set milestones below the end of the training',
)
def late_milestones(subject: Subject) -> Iterator[Finding]:
    """Milestones at or after the end."""
    for schedule in _fitting(subject):
        stones = schedule.cfg.get('milestones')
        if schedule.begin >= schedule.total or not isinstance(
            stones, list | tuple
        ):
            continue
        late = [
            stone
            for stone in stones
            if isinstance(stone, int)
            and stone >= min(schedule.total, schedule.end)
        ]
        if late:
            every = len(late) == len(stones)
            late_end = schedule.end >= schedule.total
            yield new_finding(
                f'{schedule.kind} has milestones {list(stones)}, of which '
                f'{"none" if every else f"{late} are not"} reached: the '
                f'training ends at {schedule.total}, the schedule at '
                f'{"the same" if late_end else schedule.end}',
                path=(*schedule.path, 'milestones'),
                severity=Severity.WARNING if every else Severity.INFO,
            )


@SCHED.rule(
    'SCHED004',
    title='a schedule has another end than the training',
    severity=Severity.WARNING,
    remedy='set end (and T_max) to the end of the training',
    fix='set the end of the training, where a base has the old one',
)
def other_end(subject: Subject) -> Iterator[Finding]:
    """Schedules down to a lowest value that is not where training ends."""
    for schedule in _fitting(subject):
        end, total = schedule.end, schedule.total
        last = not any(
            other.quantity == schedule.quantity and other.end > end
            for other in _fitting(subject)
        )
        if (
            schedule.family not in _SPANNING
            or schedule.begin >= total
            or end in (total, _ENDLESS)
            or (end < total and not last)
        ):
            continue
        effect = f'the {schedule.quantity} does not come down to its lowest'
        if end < total:
            effect = (
                f'from there on the {schedule.quantity} stays at its lowest'
            )
        mild = _LONG * total < end < total
        yield new_finding(
            f'{schedule.kind} ends at {end}, the training at {total} '
            f'{schedule.unit}: {effect} value',
            path=(*schedule.path, 'end'),
            severity=Severity.INFO if mild else Severity.WARNING,
            options=_to_the_end(subject, schedule),
        )


def _to_the_end(subject: Subject, schedule: _Schedule) -> dict[str, Any]:
    """Options that stretch a schedule of a base over this training."""
    period = schedule.cfg.get('T_max')
    if (
        period not in (None, schedule.end - schedule.begin)
        or not _is_left_over(subject, schedule, 'end')
        or len([s for s in _schedules(subject) if s.family in _DECAYS]) > 1
    ):
        return {}
    options = change((*schedule.path, 'end'), schedule.total)
    if period is not None:
        options |= change(
            (*schedule.path, 'T_max'), schedule.total - schedule.begin
        )
    return options


@SCHED.rule(
    'SCHED005',
    title='T_max of a cosine is not its span',
    severity=Severity.WARNING,
    remedy='remove T_max: it is end - begin by itself',
    fix='set T_max to the span, where a base has another',
)
def other_period(subject: Subject) -> Iterator[Finding]:
    """Half a period that is shorter or longer than the schedule."""
    for schedule in _fitting(subject):
        period = schedule.cfg.get('T_max')
        span = min(schedule.end, schedule.total) - schedule.begin
        if (
            schedule.family != 'CosineAnnealing'
            or not isinstance(period, int)
            or period == span
            or span <= 0
        ):
            continue
        if period < span:
            effect = f'the {schedule.quantity} rises again after it'
        else:
            effect = f'the {schedule.quantity} does not come down to eta_min'
        left = _is_left_over(subject, schedule, 'T_max')
        left = left and schedule.end == _ENDLESS
        yield new_finding(
            f'{schedule.kind} has T_max={period} and lasts for {span} '
            f'{schedule.unit}: {effect}',
            path=(*schedule.path, 'T_max'),
            severity=Severity.WARNING if period < span else Severity.INFO,
            options=change((*schedule.path, 'T_max'), span) if left else {},
        )


@SCHED.rule(
    'SCHED006',
    title='the warm-up is as long as the training',
    severity=Severity.WARNING,
    remedy='shorten the warm-up',
)
def long_warm_up(subject: Subject) -> Iterator[Finding]:
    """A rising schedule that does not end before the training."""
    for schedule in _fitting(subject):
        factor = schedule.cfg.get('start_factor', 1.0 / 3)
        rises = schedule.family in ('Linear', 'QuadraticWarmup') and (
            schedule.family != 'Linear'
            or factor < schedule.cfg.get('end_factor', 1.0)
        )
        if (
            rises
            and schedule.begin == 0
            and schedule.end >= schedule.total > 1
        ):
            end = 'never' if schedule.end == _ENDLESS else f'at {schedule.end}'
            yield new_finding(
                f'the warm-up {schedule.kind} ends {end}, the training at '
                f'{schedule.total} {schedule.unit}',
                path=(*schedule.path, 'end')
                if 'end' in schedule.cfg
                else schedule.path,
            )


@SCHED.rule(
    'SCHED007',
    title='two schedules change the same value at the same time',
    severity=Severity.WARNING,
    remedy='let one begin where the other ends; their factors multiply',
)
def overlapping(subject: Subject) -> Iterator[Finding]:
    """Two that decay, with spans that overlap."""
    decays = [
        schedule
        for schedule in _fitting(subject)
        if schedule.family in _DECAYS
    ]
    for index, schedule in enumerate(decays):
        for other in decays[:index]:
            if (
                schedule.path[:-1] == other.path[:-1]
                and schedule.quantity == other.quantity
                and schedule.begin < other.end
                and other.begin < schedule.end
            ):
                yield new_finding(
                    f'{other.kind} ({other.begin} to {_end(other)}) and '
                    f'{schedule.kind} ({schedule.begin} to {_end(schedule)} '
                    f'{schedule.unit}) both change the {schedule.quantity}',
                    path=schedule.path,
                )


@SCHED.rule(
    'SCHED008',
    title='a warm-up of one step never ends',
    severity=Severity.ERROR,
    remedy='let it last for two or more',
    fix='set convert_to_iter_based=True, where it lasts for one epoch',
)
def endless_warm_up(subject: Subject) -> Iterator[Finding]:
    """A factor is taken back at the last step, and the first is the last."""
    for schedule in _schedules(subject):
        name = _FACTORS.get(schedule.family, '')
        factor = schedule.cfg.get(name, 1.0 / 3)
        if (
            not name
            or schedule.cfg.get('convert_to_iter_based')
            or factor == 1
            or (schedule.begin, schedule.end) != (0, 1)
        ):
            continue
        remedy, options = '', {}
        if schedule.by_epoch:
            remedy = 'set convert_to_iter_based=True: it ends with the epoch'
            options = change((*schedule.path, 'convert_to_iter_based'), True)
        yield new_finding(
            f'{schedule.kind} lasts for one {schedule.unit[:-1]}: MMEngine '
            f'multiplies the {schedule.quantity} by {name}={factor}, and '
            'leaves it there to the end',
            path=(*schedule.path, 'end'),
            remedy=remedy,
            options=options,
        )


def _end(schedule: _Schedule) -> str:
    return 'the end' if schedule.end == _ENDLESS else str(schedule.end)
