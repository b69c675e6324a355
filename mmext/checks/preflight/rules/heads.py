"""Numbers of classes in heads and in the data, and losses of heads."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ....utils.label_spec import class_vocabulary, heads_of_model
from ...config import (
    ConfigNode,
    Steps,
    inner_dataset_configs,
    join_key,
    split_key,
)
from ...findings import Finding, Severity
from .registry import HEAD, LOSS, new_finding
from .subject import (
    SPLITS,
    TEXTS,
    Subject,
    as_mapping,
    base_names,
    change,
    kind_of,
    package_of,
    sure_name,
)

# Besides those by which a model is judged when it is built.
_MORE = r'model\.(auxiliary_head|(detector\.)?roi_head\.mask_head)(\[.*)?$'
# Models that have one of these count something else than classes of the data.
_OTHER_COUNTS = ('panoptic_fusion_head', 'panoptic_head', *TEXTS)
# Heads that tell edges from the rest.
_EDGE_HEADS = ('STDCHead',)
# Their files have fewer names than they: MMDetection's converters of
# MOT write the category pedestrian alone.
_WITH_UNUSED_NAMES = {'MOTChallengeDataset'}
_SEGMENTOR = 'mmseg.models.segmentors.encoder_decoder'
_SHOWN = 4
# Modules of MMDetection with losses of boxes, and of numbers that stand for
# them.
_OF_BOXES = 'mmdet.models.losses.iou_loss'
_OF_DELTAS = (
    'mmdet.models.losses.balanced_l1_loss',
    'mmdet.models.losses.smooth_l1_loss',
)
_DECODED = 'reg_decoded_bbox'
# Methods that call AnchorHead.loss_by_feat_single, which reads it.
_DECODING = tuple(
    f'{head}.loss_by_feat'
    for head in (
        *('AnchorHead', 'RPNHead', 'FSAFHead', 'GuidedAnchorHead'),
        'GARPNHead',
    )
)
_FIX = 'set a num_classes of a base, where the config names the classes'


def _counts(subject: Subject) -> dict[str, int]:
    """Keys that say how many classes a model has, and the numbers."""
    model, built = _model(subject), subject.model
    otherwise = _counts_otherwise(model)
    if built is None:
        if otherwise:
            return {}
        # Its keys are looked up as attributes, as those of a built one.
        built = subject.cfg.model
    elif (
        any(key in model for key in TEXTS)
        or class_vocabulary(built, training=True) is not None
    ):
        return {}
    inner = ''
    kind = next(map(subject.component, subject.below('model')), None)
    if 'SemiBaseDetector' in base_names(kind):
        # Student and teacher are built of the same config.
        built, inner = subject.cfg.model.detector, '.detector'
    counts = {
        f'model{inner}{head.location[5:]}.num_classes': head.num_classes
        for head in heads_of_model(built)
    }
    for section in () if otherwise else subject.below('model'):
        key = join_key(section.path)
        if not re.match(_MORE, key) or kind_of(section.cfg) in _EDGE_HEADS:
            continue
        # One number for the whole model is passed on to its heads.
        count = section.cfg.get('num_classes')
        if not isinstance(model.get('num_classes'), int):
            count = subject.setting(section, 'num_classes')
        if isinstance(count, int):
            counts[f'{key}.num_classes'] = count
    return counts


def _model(subject: Subject) -> Mapping:
    return as_mapping(subject.top.get('model'))


def _counts_otherwise(model: Mapping) -> bool:
    """Whether classes are texts, or things and stuff are counted apart."""
    return not model or any(key in model for key in _OTHER_COUNTS)


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
    symptoms=(
        'device-side assert triggered',
        'is out of bounds.',
    ),
    title='a head has fewer classes than the data',
    severity=Severity.ERROR,
    remedy='set num_classes to the number of classes of the data, or '
    'metainfo.classes of the data set to those of the model',
    fix=_FIX,
)
def too_few_classes(subject: Subject) -> Iterator[Finding]:
    """Labels would be out of range."""
    yield from _differing(subject, fewer=True)


@HEAD.rule(
    'HEAD002',
    symptoms=('list index out of range',),
    title='a head has more classes than the data',
    severity=Severity.ERROR,
    remedy='set num_classes to the number of classes of the data, or '
    'metainfo.classes of the data set to those of the model',
    fix=_FIX,
)
def too_many_classes(subject: Subject) -> Iterator[Finding]:
    """Some are never trained, and the evaluation lacks their names.

    An error with COCO's metric, which looks up a category by each label.
    """
    yield from _differing(subject, fewer=False)


def _coco_fails(subject: Subject, split: str, num_labels: int) -> str:
    """How COCO's metric of a split ends, where labels exceed its classes."""
    names = subject.classes(split)
    for node in subject.below(f'{split}_evaluator'):
        kinds = base_names(subject.component(node))
        if 'CocoMetric' not in kinds:
            continue
        # That of LVIS has a label for each category of the file.
        whole = 'LVISMetric' in kinds and _named_at(subject, split)
        if names and len(names) < num_labels and not whole:
            return (
                f'; {join_key(node.path)} ends with an IndexError at the '
                'first object that is predicted with a label above '
                f'{len(names) - 1}'
            )
    return ''


def _differing(subject: Subject, fewer: bool) -> Iterator[Finding]:
    # The split that is trained on, else that which is tested on.
    named = {split: subject.classes(split) for split in SPLITS}
    split = next(filter(named.get, SPLITS), '')
    if not split or any(_misnamed(subject)) or any(_texts(subject)):
        # What the data have is not what was meant.
        return
    names, said = named[split], _named_at(subject, split)
    where = f'{split}_dataloader.dataset.metainfo.classes'
    for key, count in _counts(subject).items():
        if count == len(names) or (count < len(names)) != fewer:
            continue
        path = split_key(key)
        # The classes are named above a number of a base, or of none.
        try:
            subject.at(path)
            left = bool(said) and subject.is_above(said, key)
        except (KeyError, IndexError, TypeError):
            left = bool(said)
        ways = [f'set it to {len(names)}', f'set {where} to the {count} names']
        if key == 'model.num_classes' and 'panoptic_head' in _model(subject):
            path, left = ('model', 'panoptic_head'), False
            key = 'num_things_classes + num_stuff_classes'
            ways[0] = (
                f'set them to {len(names)} in all, in panoptic_head and '
                'panoptic_fusion_head'
            )
        if not said:
            ways.reverse()
        # Whether the labels of predictions are those of this head.
        predicts = not re.match(_MORE, key.removesuffix('.num_classes'))
        if 'query_head' in _model(subject):
            predicts = key.startswith('model.query_head.')
        ends = [
            _coco_fails(subject, split, count) for split in SPLITS if predicts
        ]
        fatal = next(filter(None, ends), '')
        yield new_finding(
            f'{key} is {count}, {_why(count, names)}'
            + (
                ''
                if said
                else ', by the names that the data set has of itself'
            )
            + fatal,
            path=path,
            severity=Severity.ERROR if fewer or fatal else Severity.WARNING,
            names=names[:_SHOWN],
            options=change(path, len(names)) if left else {},
            remedy=', or '.join(ways)
            + ('' if said else ', and in the other splits'),
        )


def _named_at(subject: Subject, split: str) -> str:
    """The key that names the classes; empty where the data set does."""
    for path, dataset in _datasets(subject, split):
        if 'classes' in as_mapping(dataset.get('metainfo')):
            return join_key((*path, 'metainfo', 'classes'))
    return ''


def _datasets(subject: Subject, split: str) -> Iterator[tuple[Steps, Mapping]]:
    """Data sets of a split that are no wrappers."""
    for path, dataset in subject.datasets(split):
        if not inner_dataset_configs(dataset):
            yield path, dataset


@HEAD.rule(
    'HEAD003',
    symptoms=('list index out of range',),
    title='splits have different classes',
    severity=Severity.ERROR,
    remedy='give all splits the same metainfo.classes, in the same order',
    fix='set the classes of the training where a split names none',
)
def other_classes(subject: Subject) -> Iterator[Finding]:
    """A model is evaluated by other names than it was trained with."""
    if _counts_otherwise(_model(subject)) or any(_misnamed(subject)):
        return
    first, named = subject.classes('train'), _named_at(subject, 'train')
    for split in ('val', 'test') if first else ():
        own, kinds = subject.classes(split), _kinds(subject, split)
        if not own or own == first:
            continue
        if own[: len(first)] == first and kinds <= _WITH_UNUSED_NAMES:
            continue
        what = f'{len(own)} classes, and train_dataloader {len(first)}'
        if len(own) == len(first):
            pairs = enumerate(zip(own, first))
            index = next(i for i, (one, other) in pairs if one != other)
            what = (
                f'{own[index]!r} as class {index}, and train_dataloader '
                f'{first[index]!r}'
            )
        same = set(own) == set(first)
        fatal = _coco_fails(subject, split, len(first))
        # Another kind of data set may be judged by names of its own.
        forgotten = (
            named != ''
            and not same
            and not _named_at(subject, split)
            and kinds == _kinds(subject, 'train')
        )
        options = {}
        if forgotten:
            what += ': its metainfo names none'
            for path, _ in _datasets(subject, split):
                options |= change((*path, 'metainfo', 'classes'), first)
        yield new_finding(
            f'{split}_dataloader has {what}{fatal}',
            path=(f'{split}_dataloader', 'dataset'),
            severity=Severity.ERROR
            if same or forgotten or fatal
            else Severity.INFO,
            options=options,
        )


def _kinds(subject: Subject, split: str) -> set[str]:
    return {kind_of(dataset) for _, dataset in _datasets(subject, split)}


@HEAD.rule(
    'HEAD004',
    symptoms=("'ConfigDict' object has no attribute",),
    title='sliding inference has no window',
    severity=Severity.ERROR,
    remedy="set crop_size and stride in test_cfg, or mode='whole'",
)
def no_window(subject: Subject) -> Iterator[Finding]:
    """``mode='slide'`` of MMSegmentation: the first validation fails."""
    test_cfg = as_mapping(_model(subject).get('test_cfg'))
    path = ('model', 'test_cfg')
    mode = test_cfg.get('mode', 'whole')
    kind = next(map(subject.component, subject.below('model')), None)
    # Others have modes of their own.
    own = getattr(getattr(kind, 'inference', None), '__module__', '')
    if own == _SEGMENTOR and mode not in ('slide', 'whole'):
        yield new_finding(
            f"mode={mode!r} is neither 'slide' nor 'whole'",
            path=(*path, 'mode'),
            remedy="set mode='whole' or 'slide'",
        )
    if mode != 'slide':
        return
    sizes = {key: test_cfg.get(key) for key in ('crop_size', 'stride')}
    lacking = [key for key, size in sizes.items() if not size]
    wrong = [
        key
        for key, size in sizes.items()
        if not isinstance(size, list | tuple)
        or [type(side) for side in size] != [int, int]
        or min(size) < 1
    ]
    if lacking:
        yield new_finding(
            f"mode='slide' without {' and '.join(lacking)}",
            path=(*path, 'mode'),
        )
    elif wrong:
        yield new_finding(
            f'{wrong[0]} must be (height, width) above 0, got '
            f'{sizes[wrong[0]]!r}',
            path=(*path, wrong[0]),
        )
    elif any(step > side for side, step in zip(*sizes.values())):
        yield new_finding(
            f'stride={tuple(sizes["stride"])} leaves gaps between windows of '
            f'crop_size={tuple(sizes["crop_size"])}',
            path=(*path, 'stride'),
            remedy='set a stride that is not larger than crop_size',
        )


@HEAD.rule(
    'HEAD005',
    title='the names of the classes are a text',
    severity=Severity.ERROR,
    remedy="name them in a tuple; one class is ('cat',), with a comma",
    fix='put a single name into a tuple, where the model has one class',
)
def text_for_classes(subject: Subject) -> Iterator[Finding]:
    """``('cat')`` is ``'cat'``, which counts its letters."""
    for at, names in _texts(subject):
        alone = names and not re.search(r'[\s,;./\\]', names)
        one = set(_counts(subject).values()) == {1}
        yield new_finding(
            f'{join_key(at)} is the text {names!r}, and no file: the '
            f'data set has {len(names)} classes, its letters',
            path=at,
            options=change(at, (names,)) if alone and one else {},
        )


def _metainfos(subject: Subject) -> Iterator[tuple[Steps, Mapping]]:
    for split in SPLITS:
        for path, dataset in _datasets(subject, split):
            yield (*path, 'metainfo'), as_mapping(dataset.get('metainfo'))


def _texts(subject: Subject) -> Iterator[tuple[Steps, str]]:
    """Texts in the place of classes that are no files."""
    for path, metainfo in _metainfos(subject):
        names = metainfo.get('classes')
        if isinstance(names, str) and not Path(names).is_file():
            yield (*path, 'classes'), names


def _misnamed(subject: Subject) -> Iterator[tuple[Steps, str]]:
    """Keys of metainfo that are ``classes`` or ``palette``, misspelt."""
    for path, metainfo in _metainfos(subject):
        for key in metainfo:
            meant = sure_name(str(key), ('classes', 'palette'))
            if meant and meant not in metainfo:
                yield (*path, key), meant


@HEAD.rule(
    'HEAD006',
    title='a key of metainfo is misspelt',
    severity=Severity.ERROR,
    remedy='rename it: the data set has its own classes else',
    fix='rename the key',
)
def misspelt_metainfo(subject: Subject) -> Iterator[Finding]:
    """``CLASSES``, as it was before MMEngine, and the like."""
    for path, meant in _misnamed(subject):
        yield new_finding(
            f'{join_key(path)} is not read; {meant} is',
            path=path,
            names=(meant,),
            remedy=f'rename it to {meant}: the data set has its own '
            f'{meant} else',
            options=subject.renamed(path, meant),
        )


@HEAD.rule(
    'HEAD008',
    symptoms=('The length of palette should not be less than `num_classes`',),
    title='palette has fewer colours than there are classes',
    severity=Severity.WARNING,
    remedy="name a colour for each class, or set metainfo.palette='random'",
)
def short_palette(subject: Subject) -> Iterator[Finding]:
    """Drawing ends with the first object of a class without a colour.

    MMSegmentation refuses such a palette as it builds the data set.
    """
    draws = any(
        kind_of(section.cfg).endswith('VisualizationHook')
        and section.cfg.get('draw')
        for section in subject.sections
    )
    seen = []
    for split in SPLITS:
        for section in subject.below(f'{split}_dataloader', 'dataset'):
            kind = subject.component(section)
            if 'BaseDetDataset' not in base_names(kind):
                continue
            own = as_mapping(section.cfg.get('metainfo'))
            classes, colours = (
                own.get(key, kind.METAINFO.get(key))
                for key in ('classes', 'palette')
            )
            if (
                not isinstance(classes, list | tuple)
                # A tuple is one colour for all classes.
                or not isinstance(colours, list)
                or len(colours) >= len(classes)
                or (classes, colours) in seen
            ):
                continue
            seen.append((classes, colours))
            said = '' if 'palette' in own else ', which the data set has'
            yield new_finding(
                f'the palette has {len(colours)} colours{said}, and there are '
                f'{len(classes)} classes: drawing an object of class '
                f'{classes[len(colours)]!r} or a later one ends with an '
                'AssertionError',
                path=(*section.path, 'metainfo'),
                severity=Severity.ERROR if draws else Severity.WARNING,
            )


def _losses(subject: Subject) -> Iterator[ConfigNode]:
    for section in subject.below('model'):
        name = str(section.name)
        if 'type' in section.cfg and name.startswith('loss'):
            yield section


def _weights(
    subject: Subject, is_wrong: Callable[[float], bool]
) -> Iterator[Finding]:
    """Weights of losses for which something holds."""
    for section in _losses(subject):
        weight = section.cfg.get('loss_weight')
        if isinstance(weight, int | float) and is_wrong(weight):
            yield new_finding(
                f'{kind_of(section.cfg)} has loss_weight={weight}',
                path=(*section.path, 'loss_weight'),
            )


@LOSS.rule(
    'LOSS001',
    title='a loss has the weight 0',
    severity=Severity.INFO,
    remedy='remove the loss, if nothing is to be learned from it: it is '
    'computed, and its parameters get gradients of 0',
)
def weightless(subject: Subject) -> Iterator[Finding]:
    """``loss_weight=0``."""
    return _weights(subject, lambda weight: weight == 0)


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
    return _weights(subject, lambda weight: weight < 0)


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
    symptoms=('must match the size of tensor b',),
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
            package_of(kind) == 'mmseg'
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


@LOSS.rule(
    'LOSS006',
    symptoms=('too many indices for tensor of dimension',),
    title='class weights fail where ignored pixels do not count',
    severity=Severity.ERROR,
    remedy='set avg_non_ignore=False: with class_weight the mean is over '
    'labelled pixels in any case',
    fix='set avg_non_ignore=False, which computes the same',
)
def weights_of_labelled(subject: Subject) -> Iterator[Finding]:
    """``class_weight`` and ``avg_non_ignore`` of MMSegmentation."""
    for section in _losses(subject):
        kind, loss = subject.component(section), section.cfg
        if (
            loss.get('class_weight')
            and loss.get('avg_non_ignore')
            and not loss.get('use_sigmoid')
            and not loss.get('use_mask')
            and loss.get('reduction', 'mean') == 'mean'
            and package_of(kind) == 'mmseg'
            and kind.__name__ == 'CrossEntropyLoss'
            and _fails_with_weights(kind)
        ):
            path = (*section.path, 'avg_non_ignore')
            yield new_finding(
                'class_weight with avg_non_ignore=True: this version of mmseg '
                'leaves ignored pixels out twice, which ends the first step '
                'with an IndexError',
                path=path,
                options=change(path, False),
            )


@cache
def _fails_with_weights(kind: type) -> bool:
    """Whether a loss of MMSegmentation fails with both, as that of 1.2.0."""
    loss = kind(class_weight=[1.0], avg_non_ignore=True)
    with suppress(IndexError):
        loss(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long))
        return False
    return True


@LOSS.rule(
    'LOSS007',
    title='a loss of boxes gets what is not decoded, or the reverse',
    severity=Severity.ERROR,
    remedy=f'set {_DECODED}=True of the head for losses of boxes (IoULoss, '
    'GIoULoss, ...), and False for L1Loss and SmoothL1Loss',
    fix=f'set {_DECODED}=True for a loss of boxes',
)
def undecoded_boxes(subject: Subject) -> Iterator[Finding]:
    """``reg_decoded_bbox`` of MMDetection's heads against ``loss_bbox``."""
    losses = {section.path: section for section in _losses(subject)}
    for section in subject.below('model'):
        loss = losses.get((*section.path, 'loss_bbox'))
        head = subject.component(section)
        if loss is None or not _may_decode(head):
            continue
        kind = subject.component(loss)
        decoded = subject.setting(section, _DECODED)
        coder = kind_of(section.cfg.get('bbox_coder'))
        module = getattr(kind, '__module__', '')
        path = (*section.path, _DECODED)
        at = path if _DECODED in section.cfg else (*loss.path, 'type')
        # What PseudoBBoxCoder encodes are boxes.
        if module == _OF_BOXES and not decoded and coder != 'PseudoBBoxCoder':
            yield new_finding(
                f'{kind.__name__} compares boxes, and {_DECODED}=False of '
                f'{head.__name__} gives it what is still to be decoded to '
                'boxes: none is learned',
                path=at,
                options=change(path, True),
            )
        elif module in _OF_DELTAS and decoded:
            key = join_key((*loss.path, 'type'))
            left = subject.is_above(key, join_key(path))
            yield new_finding(
                f'{kind.__name__} gets boxes in pixels, by {_DECODED}=True '
                f'of {head.__name__}: it is as large as the boxes are far '
                'apart, and outweighs other losses',
                path=at,
                severity=Severity.WARNING,
                options=change(path, False) if left else {},
            )


def _may_decode(head: Any) -> bool:
    """Whether what computes a head's loss is known to read the flag."""
    if package_of(head) != 'mmdet':
        return False
    names = ('loss', 'loss_by_feat', 'loss_by_feat_single')
    methods = [getattr(head, name, None) for name in names]
    box, whole, single = (getattr(m, '__qualname__', '') for m in methods)
    dense = single == 'AnchorHead.loss_by_feat_single'
    return box == 'BBoxHead.loss' or (dense and whole in _DECODING)
