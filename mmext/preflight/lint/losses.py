"""Losses that are not added to the total, or add nothing to it."""

from collections.abc import Iterator

from .._config_sections import Section
from ..findings import Severity
from .registry import Note, lint_rule
from .subject import Subject, as_mapping, plain_name

__all__ = []

_WEIGHT = 'loss_weight'


def _losses(subject: Subject) -> Iterator[Section]:
    for section in subject.below('model'):
        name = str(section.name)
        if 'type' in section.cfg and name.startswith('loss'):
            yield section


@lint_rule(
    'LOSS001',
    title='a loss has the weight 0',
    severity=Severity.INFO,
    remedy='remove the loss, if nothing is to be learned from it: it is '
    'computed, and its parameters get gradients of 0',
)
def weightless(subject: Subject) -> Iterator[Note]:
    """``loss_weight=0``."""
    for section in _losses(subject):
        weight = section.cfg.get(_WEIGHT)
        if isinstance(weight, int | float) and weight == 0:
            yield Note(
                f'{plain_name(section.cfg["type"])} has loss_weight=0',
                path=(*section.path, _WEIGHT),
            )


@lint_rule(
    'LOSS002',
    title='a loss is not added to the total',
    severity=Severity.ERROR,
    remedy="begin its loss_name with 'loss_': others are logged only",
)
def never_summed(subject: Subject) -> Iterator[Note]:
    """``loss_name`` without ``loss``, in heads of MMSegmentation."""
    for section in _losses(subject):
        name = section.cfg.get('loss_name')
        if isinstance(name, str) and 'loss' not in name:
            path = (*section.path, 'loss_name')
            options = {}
            if not any(isinstance(step, int) for step in path):
                options = {'.'.join(map(str, path)): f'loss_{name}'}
            yield Note(
                f'loss_name is {name!r}; only values whose name has '
                "'loss' in it are summed",
                path=path,
                options=options,
            )


@lint_rule(
    'LOSS003',
    title='a loss has a negative weight',
    severity=Severity.WARNING,
    remedy='set a positive loss_weight: this one is made larger',
)
def negative_weight(subject: Subject) -> Iterator[Note]:
    """``loss_weight`` below 0."""
    for section in _losses(subject):
        weight = section.cfg.get(_WEIGHT)
        if isinstance(weight, int | float) and weight < 0:
            yield Note(
                f'{plain_name(section.cfg["type"])} has loss_weight={weight}',
                path=(*section.path, _WEIGHT),
            )


@lint_rule(
    'LOSS004',
    title='softmax over one class',
    severity=Severity.ERROR,
    remedy='set num_classes=2, or num_classes=2, out_channels=1 and '
    'use_sigmoid=True of the loss',
)
def one_class(subject: Subject) -> Iterator[Note]:
    """Heads of MMSegmentation whose cross-entropy is always 0."""
    for section in subject.below('model'):
        losses = section.cfg.get('loss_decode')
        if losses is None or section.cfg.get('num_classes') != 1:
            continue
        for loss in losses if isinstance(losses, list) else [losses]:
            loss = as_mapping(loss)
            softmax = plain_name(loss.get('type')).endswith(
                'CrossEntropyLoss'
            ) and not loss.get('use_sigmoid', False)
            if softmax:
                yield Note(
                    f'{plain_name(loss["type"])} over num_classes=1 is '
                    'always 0: nothing is learned',
                    path=(*section.path, 'num_classes'),
                )
