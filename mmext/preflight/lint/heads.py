"""Numbers of classes in heads and in the data."""

from collections.abc import Iterator, Mapping, Sequence

from ...engine.class_count_check_hook import (
    class_vocabulary,
    model_class_counts,
)
from ..config_places import key_steps
from ..findings import Severity
from .registry import Note, lint_rule
from .subject import Subject, as_mapping, plain_name

__all__ = []

# Besides those by which a model is judged when it is built.
_MORE = ('auxiliary_head', 'roi_head.mask_head')
# Models that have one of these count something else than classes of the data.
_TEXTS = ('language_model', 'text_encoder')
_OTHER_COUNTS = ('panoptic_fusion_head', 'panoptic_head', *_TEXTS)
# Heads that tell edges from the rest.
_EDGE_HEADS = ('STDCHead',)
_SHOWN = 4


def _counts(subject: Subject) -> dict[str, int]:
    """Keys that say how many classes a model has, and the numbers."""
    if subject.model is not None:
        texts = any(key in _config_of_model(subject) for key in _TEXTS)
        if texts or class_vocabulary(subject.model, training=True) is not None:
            return {}
        return model_class_counts(subject.model)
    model = subject.cfg.get('model')
    if _names_classes_itself(subject):
        return {}
    found = model_class_counts(model)
    for path in _MORE:
        node = model
        for step in path.split('.'):
            node = as_mapping(node).get(step)
        parts = node if isinstance(node, Sequence) else [node]
        for index, part in enumerate(parts):
            count = as_mapping(part).get('num_classes')
            if plain_name(as_mapping(part).get('type')) in _EDGE_HEADS:
                continue
            key = f'model.{path}'
            if isinstance(node, Sequence):
                key += f'[{index}]'
            if isinstance(count, int):
                found[f'{key}.num_classes'] = count
    return found


def _config_of_model(subject: Subject) -> Mapping:
    return as_mapping(subject.top.get('model'))


def _names_classes_itself(subject: Subject) -> bool:
    """Whether classes are texts, or things and stuff are counted apart."""
    model = _config_of_model(subject)
    return not model or any(key in model for key in _OTHER_COUNTS)


def _classes(subject: Subject) -> tuple[str, tuple[str, ...]]:
    """The split that is trained on, else that which is tested on."""
    for split in ('train', 'val', 'test'):
        names = subject.classes(split)
        if names:
            return split, names
    return '', ()


def _why(count: int, names: Sequence[str]) -> str:
    """What a difference of one is mostly due to."""
    if count == len(names) + 1:
        return (
            f'one more than the data: is the background counted? Heads '
            f'count the {len(names)} classes only'
        )
    if count == len(names) - 1:
        return f'one fewer than the data: which lacks? The last is {names[-1]}'
    shown = ', '.join(names[:_SHOWN])
    more = ', ...' if len(names) > _SHOWN else ''
    return f'the data have {len(names)} ({shown}{more})'


@lint_rule(
    'HEAD001',
    title='a head has fewer classes than the data',
    severity=Severity.ERROR,
    remedy='set num_classes to the number of classes of the data, or '
    'metainfo.classes of the data set to those of the model',
)
def too_few_classes(subject: Subject) -> Iterator[Note]:
    """Labels would be out of range."""
    yield from _differing(subject, fewer=True)


@lint_rule(
    'HEAD002',
    title='a head has more classes than the data',
    severity=Severity.WARNING,
    remedy='set num_classes to the number of classes of the data, or '
    'metainfo.classes of the data set to those of the model',
)
def too_many_classes(subject: Subject) -> Iterator[Note]:
    """Some are never trained, and the evaluation lacks their names."""
    yield from _differing(subject, fewer=False)


def _differing(subject: Subject, fewer: bool) -> Iterator[Note]:
    split, names = _classes(subject)
    for key, count in _counts(subject).items() if names else ():
        if count == len(names) or (count < len(names)) != fewer:
            continue
        path = key_steps(key)
        options = {}
        if not any(isinstance(step, int) for step in path):
            options = {key: len(names)}
        yield Note(
            f'{key} is {count}, {_why(count, names)}',
            path=path,
            names=names[:_SHOWN],
            options=options,
            remedy=f'set it to {len(names)}, or '
            f'{split}_dataloader.dataset.metainfo.classes to the classes '
            'of the model',
        )


@lint_rule(
    'HEAD003',
    title='splits have different classes',
    severity=Severity.ERROR,
    remedy='give all splits the same metainfo.classes, in the same order',
)
def other_classes(subject: Subject) -> Iterator[Note]:
    """A model is evaluated by other names than it was trained with."""
    if _names_classes_itself(subject):
        return
    first = subject.classes('train')
    for split in ('val', 'test') if first else ():
        own = subject.classes(split)
        if not own or own == first:
            continue
        what = f'{len(own)} classes, and train_dataloader {len(first)}'
        if len(own) == len(first):
            index = next(
                i for i, (a, b) in enumerate(zip(own, first)) if a != b
            )
            what = f'{own[index]!r} as class {index}, and train_dataloader '
            what += f'{first[index]!r}'
        same = set(own) == set(first)
        yield Note(
            f'{split}_dataloader has {what}',
            path=(f'{split}_dataloader', 'dataset'),
            severity=Severity.ERROR if same else Severity.INFO,
        )
