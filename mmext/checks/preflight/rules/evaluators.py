"""Evaluators that look at other data, or give other values, than is asked."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from mmengine.evaluator import BaseMetric
from mmengine.fileio import load
from mmengine.hooks import CheckpointHook, EarlyStoppingHook
from mmengine.optim.scheduler.param_scheduler import (
    ReduceOnPlateauParamScheduler,
)

from ...config import (
    ConfigNode,
    Steps,
    inner_dataset_configs,
    join_key,
)
from ...findings import Finding, Severity
from .pipelines import are_of_hosts
from .registry import EVAL, new_finding
from .subject import (
    Subject,
    as_mapping,
    base_names,
    change,
    is_kind,
    kind_of,
    package_of,
    path_of,
)

_SPLITS = ('val', 'test')
_COCO_BOXES = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
_COCO_PROPOSALS = (
    *('AR@100', 'AR@300', 'AR@1000'),
    *('AR_s@1000', 'AR_m@1000', 'AR_l@1000'),
)
# What MMSegmentation's metric gives for each of iou_metrics.
_IOU = {
    'mIoU': ('aAcc', 'mIoU', 'mAcc'),
    'mDice': ('aAcc', 'mDice', 'mAcc'),
    'mFscore': ('aAcc', 'mFscore', 'mPrecision', 'mRecall'),
}
_SHOWN = 6
# What looks at values of an evaluation, and where their names are.
_WATCHED = {
    CheckpointHook: 'save_best',
    EarlyStoppingHook: 'monitor',
    ReduceOnPlateauParamScheduler: 'monitor',
}
# Beside those of MMEngine, parts of names of values that are better if they
# are greater.
_GREATER = (
    *('map', 'miou', 'mdice', 'macc', 'aacc', 'mfscore', 'recall', 'pq'),
    *('precision', 'accuracy', 'ar@', 'auc'),
)
# Of CocoMetric and VOCMetric, which count from 0 to 1.
_FRACTIONS = ('coco/', 'pascal_voc/')
_MANY = 0.05
_NO_SCALE = 'detectors bring boxes back by scale_factor, which samples lack: '


def _loader_files(subject: Subject, split: str) -> dict[str, Steps]:
    """Annotation files of a split and their data sets; none if not known."""
    files = {}
    for path, dataset in subject.datasets(split):
        if inner_dataset_configs(dataset):
            continue
        file = dataset.get('ann_file')
        folder = dataset.get('data_root') or ''
        if (
            not file
            or not isinstance(file, str)
            or not isinstance(folder, str)
        ):
            return {}
        files[posixpath.normpath(posixpath.join(folder, file))] = path
    return files


@EVAL.rule(
    'EVAL001',
    symptoms=('Results do not correspond to current coco set',),
    title='the evaluator reads other annotations than the data loader',
    severity=Severity.ERROR,
    remedy='set ann_file of the evaluator to that of the data loader',
    fix='set ann_file of the evaluator, where a base has another one',
)
def other_annotations(subject: Subject) -> Iterator[Finding]:
    """Predictions are compared with the objects of other images."""
    for split in _SPLITS:
        files = _loader_files(subject, split)
        nodes = [
            node
            for node in subject.below(f'{split}_evaluator')
            if isinstance(node.cfg.get('ann_file'), str)
            and node.cfg['ann_file']
            and '://' not in node.cfg['ann_file']
        ]
        if not files or any(_is_same(n.cfg['ann_file'], files) for n in nodes):
            # Others beside it have annotations of another kind.
            continue
        for node in nodes:
            yield _other_file(subject, split, node, files)


def _other_file(
    subject: Subject, split: str, node: ConfigNode, files: Mapping[str, tuple]
) -> Finding:
    own = node.cfg['ann_file']
    (file, path), *more = files.items()
    at = join_key((*node.path, 'ann_file'))
    mine = [join_key((*path, key)) for key in ('ann_file', 'data_root')]
    left = any(subject.is_above(key, at) for key in mine)
    lower = all(subject.is_above(at, key) for key in mine)
    dataset = {'type': subject.at(path).get('type')}
    kinds = {'Panoptic' in kind_of(node.cfg), 'Panoptic' in kind_of(dataset)}
    there = Path(own).is_file() and Path(file).is_file()
    certain = there or (len(kinds) == 1 and (left or lower))
    return new_finding(
        f'{at} is {own}, and {split}_dataloader reads {file}'
        + ('' if certain else '; whether of the same images is not known'),
        path=(*node.path, 'ann_file'),
        severity=Severity.ERROR if certain else Severity.WARNING,
        remedy=f'set it to {file!r}',
        options=change((*node.path, 'ann_file'), file)
        if certain and left and len(kinds) == 1 and not more
        else {},
    )


def _is_same(own: str, files: Mapping[str, Any]) -> bool:
    """Whether a file is one of several, or of the same images, if known."""
    if posixpath.normpath(own) in files:
        return True
    ids = _image_ids(own)
    return ids is not None and any(ids == _image_ids(other) for other in files)


def _image_ids(file: str) -> set | None:
    """Ids of the images of a file in COCO's format; None if not known."""
    if not file.endswith('.json') or not Path(file).is_file():
        return None
    try:
        images = as_mapping(load(file)).get('images')
        return {image['id'] for image in images}
    except (KeyError, TypeError, ValueError):
        return None


def _watchers(subject: Subject) -> Iterator[tuple[ConfigNode, type, str]]:
    """What looks at the values of an evaluation: class, and key of a name."""
    for section in subject.sections:
        kind = subject.component(section)
        for base, key in _WATCHED.items():
            if is_kind(kind, base):
                yield section, kind, key


def _monitored(subject: Subject) -> Iterator[tuple[tuple, str]]:
    """Location and name of each value that must be among the metrics."""
    for section, _, key in _watchers(subject):
        value, path = subject.setting(section, key), path_of(section, key)
        items = enumerate(value if isinstance(value, list | tuple) else ())
        several = [((*path, index), item) for index, item in items]
        for where, item in [(path, value), *several]:
            if isinstance(item, str):
                yield where, item


def _given(subject: Subject) -> list[tuple[str, set[str]]] | None:
    """Prefix and names of the values of each metric; None if not known.

    No names are any of that prefix.
    """
    metrics = []
    for node in subject.below('val_evaluator'):
        if 'type' not in node.cfg:
            continue
        kind = subject.component(node)
        if kind_of(node.cfg) == 'Evaluator':
            continue
        if (
            not is_kind(kind, BaseMetric)
            or kind.evaluate is not BaseMetric.evaluate
        ):
            return None
        prefix = node.cfg.get('prefix') or kind.default_prefix or ''
        names = _names(kind, node)
        if not prefix and not names:
            return None
        metrics.append((prefix, names))
    return metrics or None


def _names(kind: type, node: ConfigNode) -> set[str]:
    """Values of metrics of the hosts, without prefix; empty if not known."""
    package, name, cfg = package_of(kind), kind.__name__, node.cfg

    def several(key: str, default: Any) -> list:
        value = cfg.get(key, default)
        return list(value) if isinstance(value, list | tuple) else [value]

    if package in ('mmdet', 'mmext') and name == 'CocoMetric':
        if cfg.get('classwise') or cfg.get('metric_items'):
            return set()
        names: set[str] = set()
        for metric in several('metric', 'bbox'):
            if metric in ('bbox', 'segm'):
                names |= {f'{metric}_{name}' for name in _COCO_BOXES}
            else:
                names |= set(_COCO_PROPOSALS)
        return names
    if (package, name) == ('mmseg', 'IoUMetric'):
        wanted = several('iou_metrics', 'mIoU')
        return {
            given
            for key in wanted
            if isinstance(key, str)
            for given in _IOU.get(key, ())
        }
    voc = (package, name) == ('mmdet', 'VOCMetric')
    if voc and cfg.get('metric', 'mAP') == 'mAP':
        steps = several('iou_thrs', 0.5)
        if all(isinstance(step, float) for step in steps):
            return {'mAP', *(f'AP{int(step * 100):02d}' for step in steps)}
    return set()


@EVAL.rule(
    'EVAL002',
    title='no metric gives the value that is watched',
    severity=Severity.ERROR,
    remedy='name a value that the evaluator gives',
    fix='add the prefix of the metric',
)
def nobody_gives(subject: Subject) -> Iterator[Finding]:
    """``save_best`` and the like: the first validation ends the training."""
    metrics = _given(subject)
    for path, name in _monitored(subject) if metrics else ():
        may_give = (
            not names or name.removeprefix(f'{prefix}/') in names
            for prefix, names in metrics
            if not prefix or name.startswith(f'{prefix}/')
        )
        if name == 'auto' or any(may_give):
            continue
        known = [
            f'{prefix}/{full}' if prefix else full
            for prefix, names in metrics
            for full in sorted(names)
        ]
        near = [full for full in known if full.endswith(f'/{name}')]
        shown = known or [f'{prefix}/...' for prefix, _ in metrics]
        yield new_finding(
            f'{join_key(path)} asks for {name!r}, which val_evaluator does '
            f'not give: it gives {", ".join(shown[:_SHOWN])}'
            f'{", ..." if len(shown) > _SHOWN else ""}',
            path=path,
            names=tuple(near[:1]),
            remedy=f'set it to {near[0]!r}' if near else '',
            options=change(path, near[0]) if len(near) == 1 else {},
        )


@EVAL.rule(
    'EVAL003',
    symptoms=("KeyError: 'gt_sem_seg'", '= -1.000'),
    title='samples of an evaluation lack what is read of them',
    severity=Severity.ERROR,
    remedy='complete the pipeline: LoadAnnotations for labels, and a Resize, '
    'whose scale_factor brings boxes back to the size of the picture',
)
def lacks_what_is_read(subject: Subject) -> Iterator[Finding]:
    """Annotations and label maps for metrics, and the scale for boxes."""
    yield from _without_annotations(subject)
    rescales = _rescales(subject)
    for split in _SPLITS:
        maps = any(
            kind_of(node.cfg) == 'IoUMetric'
            and not node.cfg.get('format_only')
            for node in subject.below(f'{split}_evaluator')
        )
        for path, dataset in subject.datasets(split):
            path, steps = (*path, 'pipeline'), dataset.get('pipeline')
            if not isinstance(steps, list) or not are_of_hosts(
                subject, path, steps
            ):
                continue
            *names, last = map(kind_of, steps)
            keys = as_mapping(steps[-1]).get('meta_keys', ('scale_factor',))
            lacking = ''
            if maps and last == 'PackSegInputs':
                if 'LoadAnnotations' not in names:
                    lacking = (
                        'IoUMetric reads gt_sem_seg, which the pipeline does '
                        'not load: it has no LoadAnnotations'
                    )
            elif rescales and last == 'PackDetInputs':
                if not any('Resize' in name for name in names):
                    lacking = f'{_NO_SCALE}no step resizes'
                elif 'scale_factor' not in keys:
                    lacking = f'{_NO_SCALE}it is not in meta_keys of {last}'
            if lacking:
                yield new_finding(f'{split}_dataloader: {lacking}', path=path)


def _without_annotations(subject: Subject) -> Iterator[Finding]:
    """Files in COCO's format whose labels are kept back, as of tests."""
    for split in _SPLITS:
        files = _loader_files(subject, split)
        for node in subject.below(f'{split}_evaluator'):
            kinds = base_names(subject.component(node))
            own = node.cfg.get('ann_file')
            read = [own] if isinstance(own, str) and own else list(files)
            if (
                not files
                or not kinds & {'CocoMetric', 'CocoPanopticMetric'}
                or node.cfg.get('format_only')
                or not all(map(_has_no_annotations, read))
            ):
                continue
            yield new_finding(
                f'{join_key(node.path)} computes metrics with the labels of '
                f'{", ".join(read)}, which has no annotations: all are -1',
                path=next(iter(files.values())),
                severity=Severity.ERROR
                if split == 'val'
                else Severity.WARNING,
                remedy='evaluate a split that has labels; or let the metric '
                'only write its predictions, with format_only=True and '
                'outfile_prefix, for those who have kept the labels back',
            )


def _has_no_annotations(file: str) -> bool:
    """Whether a file lists images in COCO's format and no annotation."""
    if not file.endswith('.json') or not Path(file).is_file():
        return False
    if not Path(file).stat().st_size:
        return False
    with (
        open(file, 'rb') as opened,
        mmap(opened.fileno(), 0, access=ACCESS_READ) as content,
    ):
        named = re.search(rb'"annotations"\s*:\s*\[\s*', content)
        return content.find(b'"images"') >= 0 and (
            content.find(b'"annotations"') < 0
            if named is None
            else content[named.end() : named.end() + 1] == b']'
        )


# Methods of MMDetection that refuse samples without a scale.
_RESCALE = tuple(
    f'{head}._predict_by_feat_single'
    for head in ('BaseDenseHead', 'DETRHead', 'BBoxHead')
)


def _rescales(subject: Subject) -> bool:
    """Whether it is known that heads bring boxes back by the scale."""
    heads = [
        subject.component(node)
        for node in subject.below('model')
        if node.name == 'bbox_head' and 'type' in node.cfg
    ]
    methods = [
        getattr(head, '_predict_by_feat_single', None) for head in heads
    ]
    return bool(methods) and all(
        getattr(method, '__qualname__', '') in _RESCALE for method in methods
    )


@EVAL.rule(
    'EVAL004',
    title='the worst value of a metric is taken for the best',
    severity=Severity.ERROR,
    remedy="set rule='greater' for what is to rise, 'less' for what is to "
    'fall',
    fix='set the rule that fits the name of the value',
)
def other_direction(subject: Subject) -> Iterator[Finding]:
    """``rule`` of hooks and schedulers against what they watch."""
    for section, kind, key in _watchers(subject):
        watched = subject.setting(section, key)
        rule = subject.setting(section, 'rule')
        if not isinstance(watched, str) or rule not in ('less', 'greater'):
            continue
        name = watched.casefold()
        rises = any(part in name for part in _GREATER)
        falls = 'loss' in name
        wanted = 'greater' if rises else 'less'
        if rises == falls or rule == wanted:
            continue
        default = '' if 'rule' in section.cfg else ', which is its default'
        better = 'greater' if rises else 'smaller'
        yield new_finding(
            f'{kind.__name__} watches {watched!r} with rule={rule!r}'
            f'{default}, and it is better if it is {better}',
            path=(*section.path, key if default else 'rule'),
            options=change((*section.path, 'rule'), wanted),
            remedy=f'set rule={wanted!r}',
        )


@EVAL.rule(
    'EVAL005',
    title='a value is watched, and nothing is validated',
    severity=Severity.WARNING,
    remedy='set val_dataloader, val_cfg and val_evaluator, or remove what '
    'waits for the value',
)
def nothing_to_watch(subject: Subject) -> Iterator[Finding]:
    """Hooks and schedulers that act after a validation only."""
    top = subject.top
    parts = ('val_cfg', 'val_dataloader', 'val_evaluator')
    if not top.get('train_cfg') or any(top.get(name) for name in parts):
        # That one is there in part is of LOOP001.
        return
    effects = {
        CheckpointHook: 'keeps no best checkpoint',
        EarlyStoppingHook: 'never stops the training',
        ReduceOnPlateauParamScheduler: 'changes nothing',
    }
    for section, kind, key in _watchers(subject):
        effect = next(effects[b] for b in kind.__mro__ if b in effects)
        watched = subject.setting(section, key)
        if watched:
            yield new_finding(
                f'{kind.__name__} waits for {watched!r} of a validation, and '
                f'val_cfg is None: it {effect}',
                path=path_of(section, key),
            )


@EVAL.rule(
    'EVAL006',
    title='a training stops unless its metric rises by a large step',
    severity=Severity.WARNING,
    remedy='set min_delta to the smallest rise that counts, such as 0.001 '
    'for a value between 0 and 1',
)
def large_step(subject: Subject) -> Iterator[Finding]:
    """``min_delta`` of EarlyStoppingHook is 0.1, if nothing is said."""
    for section, kind, key in _watchers(subject):
        watched = str(section.cfg.get(key))
        step = subject.setting(section, 'min_delta')
        if (
            issubclass(kind, EarlyStoppingHook)
            and watched.startswith(_FRACTIONS)
            and isinstance(step, int | float)
            and step >= _MANY
        ):
            said = 'min_delta' in section.cfg
            patience = subject.setting(section, 'patience')
            yield new_finding(
                f'{kind.__name__} ends the training if {patience} '
                f'validations do not raise {watched} by min_delta={step}'
                f'{"" if said else ", which is its default"}; it is between '
                '0 and 1',
                path=path_of(section, 'min_delta'),
            )
