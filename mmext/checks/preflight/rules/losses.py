"""Losses that are not added to the total, or add nothing to it."""

from collections.abc import Iterator

from ...config import ConfigNode
from ...findings import Finding, Severity
from .registry import LOSS, new_finding
from .subject import Subject, as_mapping, change, kind_of

_WEIGHT = 'loss_weight'


def _losses(subject: Subject) -> Iterator[ConfigNode]:
    for section in subject.below('model'):
        name = str(section.name)
        if 'type' in section.cfg and name.startswith('loss'):
            yield section


def _weights(subject: Subject) -> Iterator[tuple[ConfigNode, float]]:
    for section in _losses(subject):
        weight = section.cfg.get(_WEIGHT)
        if isinstance(weight, int | float):
            yield section, weight


@LOSS.rule(
    'LOSS001',
    title='a loss has the weight 0',
    severity=Severity.INFO,
    remedy='remove the loss, if nothing is to be learned from it: it is '
    'computed, and its parameters get gradients of 0',
)
def weightless(subject: Subject) -> Iterator[Finding]:
    """``loss_weight=0``."""
    for section, weight in _weights(subject):
        if weight == 0:
            yield new_finding(
                f'{kind_of(section.cfg)} has loss_weight=0',
                path=(*section.path, _WEIGHT),
            )


@LOSS.rule(
    'LOSS002',
    title='a loss is not added to the total',
    severity=Severity.ERROR,
    remedy="begin its loss_name with 'loss_': others are logged only",
    fix="begin the name with 'loss_', where a head has no other loss",
)
def never_summed(subject: Subject) -> Iterator[Finding]:
    """``loss_name`` without ``loss``, in heads of MMSegmentation.

    A value beside losses that are summed may be logged on purpose.
    """
    heads: dict[tuple, list[ConfigNode]] = {}
    for section in _losses(subject):
        at = max(i for i, s in enumerate(section.path) if isinstance(s, str))
        heads.setdefault(section.path[:at], []).append(section)
    for losses in heads.values():
        logged = [
            (loss, name)
            for loss in losses
            if isinstance(name := loss.cfg.get('loss_name'), str)
            and 'loss' not in name
        ]
        for section, name in logged:
            path = (*section.path, 'loss_name')
            alone = len(logged) == len(losses)
            yield new_finding(
                f'loss_name is {name!r}; only values whose name has '
                "'loss' in it are summed"
                + ('' if alone else ', as other losses of the head are'),
                path=path,
                severity=Severity.ERROR if alone else Severity.WARNING,
                options=change(path, f'loss_{name}') if alone else {},
            )


@LOSS.rule(
    'LOSS003',
    title='a loss has a negative weight',
    severity=Severity.WARNING,
    remedy='set a positive loss_weight: this one is made larger',
)
def negative_weight(subject: Subject) -> Iterator[Finding]:
    """``loss_weight`` below 0."""
    for section, weight in _weights(subject):
        if weight < 0:
            yield new_finding(
                f'{kind_of(section.cfg)} has loss_weight={weight}',
                path=(*section.path, _WEIGHT),
            )


@LOSS.rule(
    'LOSS004',
    title='softmax over one class',
    severity=Severity.ERROR,
    remedy='set num_classes=2, or num_classes=2, out_channels=1 and '
    'use_sigmoid=True of the loss',
)
def one_class(subject: Subject) -> Iterator[Finding]:
    """Heads of MMSegmentation whose cross-entropy is always 0."""
    for section in subject.below('model'):
        losses = section.cfg.get('loss_decode')
        counts = ('num_classes', 'out_channels')
        one = next((key for key in counts if section.cfg.get(key) == 1), '')
        if losses is None or not one:
            continue
        for loss in losses if isinstance(losses, list) else [losses]:
            kind = kind_of(loss)
            sigmoid = as_mapping(loss).get('use_sigmoid', False)
            if kind.endswith('CrossEntropyLoss') and not sigmoid:
                yield new_finding(
                    f'{kind} over {one}=1 without use_sigmoid=True is '
                    'always 0, or refuses labels of 1: nothing is learned',
                    path=(*section.path, one),
                )


@LOSS.rule(
    'LOSS005',
    title='class weights of a sigmoid loss',
    severity=Severity.ERROR,
    remedy='remove class_weight, or use mmext.CheckedCrossEntropyLoss, which '
    'multiplies the term of each class by its weight',
)
def weighted_sigmoid(subject: Subject) -> Iterator[Finding]:
    """MMSegmentation multiplies along the width of maps, not by class."""
    for section in _losses(subject):
        weight = section.cfg.get('class_weight')
        kind = subject.component(section)
        if (
            getattr(kind, '__module__', '').startswith('mmseg.')
            and kind.__name__ == 'CrossEntropyLoss'
            and section.cfg.get('use_sigmoid')
            and isinstance(weight, list | tuple)
            and len(weight) > 1
        ):
            yield new_finding(
                f'class_weight has {len(weight)} values, use_sigmoid=True: '
                'mmseg multiplies the pixels of each row by them, which fails '
                'unless a row has so many pixels',
                path=(*section.path, 'class_weight'),
            )
