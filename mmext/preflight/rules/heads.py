"""Numbers of classes in heads and in the data."""

from collections.abc import Iterator, Mapping, Sequence

from ...config import join_key, split_key
from ...engine.hooks import class_vocabulary, model_class_counts
from ...findings import Finding, Severity
from .registry import HEAD, found
from .subject import SPLITS, Subject, as_mapping, change, kind_of

__all__: list[str] = []

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
    model = _model(subject)
    otherwise = _names_classes_itself(subject)
    if subject.model is not None:
        texts = any(key in model for key in _TEXTS)
        if texts or class_vocabulary(subject.model, training=True) is not None:
            return {}
        counts = model_class_counts(subject.model)
    elif otherwise:
        return {}
    else:
        # Its keys are looked up as attributes, as those of a built one.
        counts = model_class_counts(subject.cfg.model)
    return counts if otherwise else counts | _more_counts(subject)


def _more_counts(subject: Subject) -> dict[str, int]:
    """Those of auxiliary heads and of mask heads."""
    counts = {}
    for section in subject.below('model'):
        key = join_key(section.path).removeprefix('model.')
        count = section.cfg.get('num_classes')
        if (
            key.partition('[')[0] in _MORE
            and kind_of(section.cfg) not in _EDGE_HEADS
            and isinstance(count, int)
        ):
            counts[f'model.{key}.num_classes'] = count
    return counts


def _model(subject: Subject) -> Mapping:
    return as_mapping(subject.top.get('model'))


def _names_classes_itself(subject: Subject) -> bool:
    """Whether classes are texts, or things and stuff are counted apart."""
    model = _model(subject)
    return not model or any(key in model for key in _OTHER_COUNTS)


def _classes(subject: Subject) -> tuple[str, tuple[str, ...]]:
    """The split that is trained on, else that which is tested on."""
    for split in SPLITS:
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
        return (
            'one fewer than the data: which is missing? The last is '
            f'{names[-1]}'
        )
    shown = ', '.join(names[:_SHOWN])
    more = ', ...' if len(names) > _SHOWN else ''
    return f'the data have {len(names)} ({shown}{more})'


@HEAD.rule(
    'HEAD001',
    title='a head has fewer classes than the data',
    severity=Severity.ERROR,
    remedy='set num_classes to the number of classes of the data, or '
    'metainfo.classes of the data set to those of the model',
    fix='set num_classes',
)
def too_few_classes(subject: Subject) -> Iterator[Finding]:
    """Labels would be out of range."""
    yield from _differing(subject, fewer=True)


@HEAD.rule(
    'HEAD002',
    title='a head has more classes than the data',
    severity=Severity.WARNING,
    remedy='set num_classes to the number of classes of the data, or '
    'metainfo.classes of the data set to those of the model',
    fix='set num_classes',
)
def too_many_classes(subject: Subject) -> Iterator[Finding]:
    """Some are never trained, and the evaluation lacks their names."""
    yield from _differing(subject, fewer=False)


def _differing(subject: Subject, fewer: bool) -> Iterator[Finding]:
    split, names = _classes(subject)
    for key, count in _counts(subject).items() if names else ():
        if count == len(names) or (count < len(names)) != fewer:
            continue
        path = split_key(key)
        yield found(
            f'{key} is {count}, {_why(count, names)}',
            path=path,
            names=names[:_SHOWN],
            options=change(path, len(names)),
            remedy=f'set it to {len(names)}, or '
            f'{split}_dataloader.dataset.metainfo.classes to the classes '
            'of the model',
        )


@HEAD.rule(
    'HEAD003',
    title='splits have different classes',
    severity=Severity.ERROR,
    remedy='give all splits the same metainfo.classes, in the same order',
)
def other_classes(subject: Subject) -> Iterator[Finding]:
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
        yield found(
            f'{split}_dataloader has {what}',
            path=(f'{split}_dataloader', 'dataset'),
            severity=Severity.ERROR if same else Severity.INFO,
        )


@HEAD.rule(
    'HEAD004',
    title='sliding inference has no window',
    severity=Severity.ERROR,
    remedy="set crop_size and stride in test_cfg, or mode='whole'",
)
def no_window(subject: Subject) -> Iterator[Finding]:
    """``mode='slide'`` of MMSegmentation: the first validation fails."""
    test_cfg = as_mapping(as_mapping(subject.cfg.get('model')).get('test_cfg'))
    if test_cfg.get('mode') != 'slide':
        return
    lacking = [key for key in ('crop_size', 'stride') if not test_cfg.get(key)]
    if lacking:
        yield found(
            f"mode='slide' without {' and '.join(lacking)}",
            path=('model', 'test_cfg', 'mode'),
        )
