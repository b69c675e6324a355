"""Settings of data sets and their loaders that are not read or not allowed."""

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset, ConcatDataset
from mmengine.registry import DATASETS, DefaultScope
from torch.utils.data import IterableDataset

from ...config import (
    DELETE,
    OLD_LOADER_KEYS,
    ConfigNode,
    copy_tree,
    dataset_configs,
    inner_dataset_configs,
    takes,
    unknown_loader_keys,
)
from ...findings import Finding, Severity
from .loops import training_length
from .registry import DATA, new_finding
from .subject import (
    NO_CLASSES,
    SPLITS,
    TEXTS,
    Subject,
    as_mapping,
    change,
    is_kind,
    kind_of,
    package_of,
    sure_name,
)


def _loaders(subject: Subject) -> Iterator[tuple[str, Mapping]]:
    for split in SPLITS:
        name = f'{split}_dataloader'
        loader = as_mapping(subject.top.get(name))
        if 'dataset' in loader:
            yield name, loader


@DATA.rule(
    'DATA001',
    symptoms=('persistent_workers option needs num_workers > 0',),
    title='a data loader without workers has settings of workers',
    severity=Severity.ERROR,
    remedy='set num_workers above 0, or remove the setting',
    fix='remove the setting',
)
def settings_of_workers(subject: Subject) -> Iterator[Finding]:
    """PyTorch refuses them."""
    for name, loader in _loaders(subject):
        if loader.get('num_workers', 0) != 0:
            continue
        for key in ('persistent_workers', 'prefetch_factor'):
            # FlexibleRunner takes the first one away.
            taken = subject.is_flexible and key == 'persistent_workers'
            if taken or not loader.get(key):
                continue
            yield new_finding(
                f'{name}.{key} = {loader[key]!r} needs num_workers above 0, '
                'and there are none',
                path=(name, key),
                options={f'{name}.{key}': DELETE},
            )


@DATA.rule(
    'DATA002',
    symptoms=('sampler option is mutually exclusive with shuffle',),
    title='a data loader has settings that exclude each other',
    severity=Severity.ERROR,
    remedy='let the sampler decide: sampler=dict(type=..., shuffle=...)',
    fix='move the setting to the sampler',
)
def excluding_settings(subject: Subject) -> Iterator[Finding]:
    """``shuffle`` beside a sampler, and what batch samplers rule out."""
    for name, loader in _loaders(subject):
        if loader.get('shuffle') and loader.get('sampler') is not None:
            yield new_finding(
                f'{name}.shuffle = True beside a sampler: PyTorch refuses '
                'both',
                path=(name, 'shuffle'),
                options=_moved(subject, name, 'sampler', 'shuffle'),
            )
        if loader.get('batch_sampler') is not None and loader.get('drop_last'):
            yield new_finding(
                f'{name}.drop_last beside a batch_sampler: PyTorch refuses '
                'both',
                path=(name, 'drop_last'),
                remedy='set drop_last of the batch_sampler',
                options=_moved(subject, name, 'batch_sampler', 'drop_last'),
            )


def _moved(
    subject: Subject, loader: str, sampler: str, key: str
) -> dict[str, Any]:
    """Options that give a switch to a sampler that does not contradict."""
    section = next(subject.below(loader, sampler), None)
    kind = section and subject.component(section)
    if kind is None or takes(kind, key) is not True:
        return {}
    if section.cfg.get(key, True) is not True:
        return {}
    return {f'{loader}.{key}': DELETE, f'{loader}.{sampler}.{key}': True}


@DATA.rule(
    'DATA003',
    title='a data loader has no sampler',
    severity=Severity.WARNING,
    remedy="set sampler=dict(type='DefaultSampler', shuffle=...)",
    fix='set a DefaultSampler',
)
def no_sampler(subject: Subject) -> Iterator[Finding]:
    """Data in the order of the files, the same in each process."""
    for name, loader in _loaders(subject):
        if any(loader.get(key) for key in ('sampler', 'batch_sampler')):
            continue
        section = next(subject.below(name, 'dataset'), None)
        kind = section and subject.component(section)
        if is_kind(kind, IterableDataset):
            # A stream, which has no sampler.
            continue
        trains = name.startswith('train')
        if trains and loader.get('shuffle') and subject.world == 1:
            continue
        shuffle = bool(loader.get('shuffle', trains))
        options: dict[str, Any] = {
            f'{name}.sampler': {'type': 'DefaultSampler', 'shuffle': shuffle}
        }
        if 'shuffle' in loader:
            options[f'{name}.shuffle'] = DELETE
        order = trains and not loader.get('shuffle')
        effect = 'each process reads all data'
        effect += ', in the order of the files' if order else ''
        severity = Severity.WARNING if trains else Severity.INFO
        if 'sampler' not in loader:
            # As None it would be built.
            effect, severity = 'the runner refuses it', Severity.ERROR
        yield new_finding(
            f'{name} has no sampler: {effect}',
            path=(name,),
            severity=severity,
            options=options,
        )


@DATA.rule(
    'DATA004',
    title='an epoch has no end',
    severity=Severity.ERROR,
    remedy="set sampler=dict(type='DefaultSampler', shuffle=True), or train "
    'by iterations',
    fix='set a DefaultSampler',
)
def endless_epoch(subject: Subject) -> Iterator[Finding]:
    """Samplers without an end in loops over epochs."""
    length = training_length(subject)
    for name, loader in _loaders(subject):
        kind = kind_of(loader.get('sampler'))
        ends = name.startswith('train') and not (length and length.by_epoch)
        if kind == 'InfiniteSampler' and not ends:
            yield new_finding(
                f'{name} draws from an InfiniteSampler, and its loop waits '
                'for the end of the data',
                path=(name, 'sampler', 'type'),
                options={f'{name}.sampler.type': 'DefaultSampler'},
            )


@DATA.rule(
    'DATA005',
    title='a data loader does not take an argument',
    severity=Severity.ERROR,
    remedy='remove the argument, or correct its name',
    fix='correct a name that can only be one of the known ones',
)
def unknown_argument(subject: Subject) -> Iterator[Finding]:
    """Keys that neither runners nor PyTorch take."""
    for name, loader in _loaders(subject):
        for key, near in unknown_loader_keys(loader):
            sure = OLD_LOADER_KEYS.get(key) or sure_name(str(key), [near])
            yield new_finding(
                f'data loaders take no argument {key}',
                path=(name, key),
                remedy=f'rename it to {near}, or remove it'
                if near
                else 'remove it',
                names=(near,) if near else (),
                options=subject.renamed((name, key), sure) if sure else {},
            )


@DATA.rule(
    'DATA006',
    title='training data are not shuffled, or test data are',
    severity=Severity.INFO,
    remedy='set shuffle of the sampler to True for training only',
)
def shuffled(subject: Subject) -> Iterator[Finding]:
    """The ``shuffle`` of samplers that have it."""
    for name, loader in _loaders(subject):
        shuffle = as_mapping(loader.get('sampler')).get('shuffle')
        wanted = name.startswith('train')
        if isinstance(shuffle, bool) and shuffle != wanted:
            yield new_finding(
                f'{name}.sampler has shuffle={shuffle}',
                path=(name, 'sampler', 'shuffle'),
            )


_PREFIX = 'data_prefix'
_FILTER = 'filter_cfg'
# Names of MMCV 1.x.
_OLD = {
    'img_dir': 'img_path',
    'ann_dir': 'seg_map_path',
    'img_prefix': 'img',
    'seg_prefix': 'seg',
}


@cache
def _read_keys(kind: type, name: str) -> dict[str, bool]:
    """Keys of a dict, such as ``data_prefix``, that a class reads.

    True for those that are read without a look whether they are there.
    Empty if they are not known.
    """
    keys: dict[str, bool] = {}
    for base in inspect.getmro(kind):
        if base in inspect.getmro(BaseDataset):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, SyntaxError, TypeError):
            return {}
        for node in ast.walk(tree):
            read = _keys_at(node, name)
            if read is None:
                return {}
            for key in read:
                must = isinstance(node, ast.Subscript)
                keys[key] = keys.get(key, True) and must
    return keys


def _keys_at(node: ast.AST, name: str) -> set[str] | None:
    """Keys that an expression reads; None if they are computed."""

    def is_it(held: ast.AST) -> bool:
        return name in (getattr(held, 'attr', ''), getattr(held, 'id', ''))

    match node:
        case ast.Subscript(value=held, slice=key) if is_it(held):
            pass
        case ast.Compare(left=key, comparators=[held, *_]) if is_it(held):
            pass
        case ast.Call(
            func=ast.Attribute(value=held, attr=method), args=[*args]
        ) if is_it(held):
            known = method in ('get', 'pop', 'setdefault') and args
            key = args[0] if known else None
        case ast.Call(func=ast.Name(), args=[*values]):
            # Handed on as a whole.
            whole = [v for v in values if isinstance(v, ast.Attribute)]
            return None if any(map(is_it, whole)) else set()
        case ast.keyword(value=ast.Attribute() as held) if is_it(held):
            return None
        case _:
            return set()
    text = getattr(key, 'value', None)
    return {text} if isinstance(text, str) else None


def _given(
    subject: Subject, key: str
) -> Iterator[tuple[Any, type, tuple[str | int, ...]]]:
    """Values of an argument of data sets, with the class and the location."""
    for split in SPLITS:
        for section in subject.below(f'{split}_dataloader', 'dataset'):
            kind = subject.component(section)
            if key in section.cfg and inspect.isclass(kind):
                yield section.cfg[key], kind, (*section.path, key)


@DATA.rule(
    'DATA007',
    title='a data set does not read a key of data_prefix',
    severity=Severity.ERROR,
    remedy='use the keys that it reads',
    fix='rename a key, where only one can be meant',
)
def unread_prefix(subject: Subject) -> Iterator[Finding]:
    """``img_path`` for ``img``, and the like: nothing is found there."""
    for prefix, kind, path in _given(subject, _PREFIX):
        known = _read_keys(kind, _PREFIX)
        host = package_of(kind) in ('mmdet', 'mmseg')
        if isinstance(prefix, str) and host and known:
            must = [key for key in known if known[key]]
            yield new_finding(
                f'data_prefix must be a dict, got {prefix!r}; '
                f'{kind.__name__} reads {", ".join(sorted(known))} of it',
                path=path,
                options=change(path, {must[0]: prefix})
                if len(must) == 1
                else {},
            )
        if not isinstance(prefix, Mapping):
            continue
        unread = [key for key, *_ in subject.unread(prefix, path, known)]
        for key in unread if known else ():
            yield _unread(subject, kind, prefix, (*path, key), unread)


def _unread(
    subject: Subject, kind: Any, prefix: Mapping, path: tuple, unread: list
) -> Finding:
    known = _read_keys(kind, _PREFIX)
    hard = [key for key in known if known[key]] or list(known)
    lacking = [key for key in hard if key not in prefix]
    meant = _OLD.get(path[-1])
    if meant not in lacking:
        alone = len(unread) == len(lacking) == 1
        meant = lacking[0] if alone else None
    return new_finding(
        f'{kind.__name__} reads {", ".join(sorted(known))} of data_prefix, '
        f'and not {path[-1]}',
        path=path,
        severity=Severity.ERROR if lacking else Severity.WARNING,
        **subject.renaming(path, meant),
    )


@DATA.rule(
    'DATA008',
    title='a data set does not read a key of filter_cfg',
    severity=Severity.WARNING,
    remedy='use the keys that it reads: nothing is left out for this one',
    fix='correct a name that can only be one of the known ones',
)
def unread_filter(subject: Subject) -> Iterator[Finding]:
    """``filter_empty_gts`` for ``filter_empty_gt``, and the like."""
    for wanted, kind, at in _given(subject, _FILTER):
        if not isinstance(wanted, Mapping):
            continue
        known = _read_keys(kind, _FILTER)
        unread = subject.unread(wanted, at, known)
        for key, path, sure in unread if known else ():
            yield new_finding(
                f'{kind.__name__} reads {", ".join(sorted(known))} of '
                f'filter_cfg, and not {key}',
                path=path,
                severity=Severity.WARNING if sure else Severity.INFO,
                **subject.renaming(path, sure),
            )


# What Pascal VOC's data sets have of the year, and keys that are for drawings.
_YEAR = 'dataset_type'
_FREE = ('palette', _YEAR)


@DATA.rule(
    'DATA009',
    symptoms=('does not match meta information of the first dataset',),
    title='the parts of a joined data set have different metainfo',
    severity=Severity.ERROR,
    remedy='set the same metainfo in all parts, key by key',
    fix='set ignore_keys, where only drawings and names of data sets differ',
)
def parts_differ(subject: Subject) -> Iterator[Finding]:
    """MMEngine's ``ConcatDataset`` refuses them.

    The metainfo of MMDetection's is a list then, which metrics and
    :func:`mmdet.apis.init_detector` cannot read.
    """
    for split in SPLITS:
        for join in subject.below(f'{split}_dataloader', 'dataset'):
            kind = subject.component(join)
            if is_kind(kind, ConcatDataset):
                refuses = kind.__init__ is ConcatDataset.__init__
                lists = kind.__init__.__module__.startswith('mmdet.')
                if refuses or (lists and not _reads_lists(subject, split)):
                    yield from _differing(subject, join, refuses)


def _reads_lists(subject: Subject, split: str) -> bool:
    """Whether classes are texts, or each part is evaluated by itself."""
    if split == 'train':
        model = as_mapping(subject.top.get('model'))
        return any(key in model for key in TEXTS)
    return any(
        kind_of(node.cfg) == 'MultiDatasetsEvaluator'
        for node in subject.below(f'{split}_evaluator')
    )


def _differing(
    subject: Subject, join: ConfigNode, refuses: bool
) -> Iterator[Finding]:
    """What comes of keys in which a part is not like the first."""
    ignored = join.cfg.get('ignore_keys') or []
    ignored = [ignored] if isinstance(ignored, str) else list(ignored)
    infos = _metainfos(join)
    if not infos:
        return
    parts: dict[str, int] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        for number, info in enumerate(infos):
            if not _is_same(info.get(key), infos[0].get(key)):
                parts.setdefault(key, number)
    keys = [key for key in parts if key not in ignored]
    trains, path = join.path[0].startswith('train'), (*join.path, 'datasets')
    names = [
        infos[number].get('classes') or ()
        for number in (0, parts.get('classes', 0))
    ]
    exchanged = any(a != b for a, b in zip(*names)) and not any(
        kind_of(node.cfg) == 'LoadEmptyAnnotations'
        for node in subject.below(*path)
    )
    severity = Severity.ERROR
    if keys and refuses:
        effect = 'ConcatDataset refuses that'
    elif keys and not trains:
        effect = 'ConcatDataset has a list for metainfo, and metrics fail'
    elif exchanged:
        keys = ['classes']
        effect = 'the same label is another class in each part'
    elif keys:
        severity = Severity.WARNING
        effect = (
            'ConcatDataset has a list for metainfo, which goes into '
            'checkpoints, and init_detector fails at it'
        )
    else:
        return
    texts = []
    for key in keys:
        one, other = (infos[number].get(key) for number in (0, parts[key]))
        texts.append(
            f'{key}: {_brief(one, other)} in datasets[0], '
            f'{_brief(other, one)} in datasets[{parts[key]}]'
        )
    free = [key for key in keys if key in _FREE]
    # A label_map follows from the classes.
    must = [key for key in keys if key not in (*_FREE, 'label_map')]
    ways = [f'the same {", ".join(must)} in all parts'] if must else []
    if free:
        way = f'ignore_keys={[*ignored, *free]} of the {kind_of(join.cfg)}'
        same = ', or the same palette in all parts'
        ways.append(way + (same if 'palette' in free else ''))
    yield new_finding(
        f'{"; ".join(texts)}; {effect}',
        path=path,
        severity=severity,
        names=tuple(keys),
        remedy=f'set {", and ".join(ways)}' if ways else '',
        options=change((*join.path, 'ignore_keys'), [*ignored, *keys])
        if free == keys
        else {},
    )


def _metainfos(join: ConfigNode) -> list[Mapping]:
    """Metainfo of the parts, made without their files; empty if not known."""
    infos = []
    with (
        suppress(AssertionError, StopIteration, *NO_CLASSES),
        DefaultScope.overwrite_default_scope(join.scope),
    ):
        for part in join.cfg['datasets']:
            leaves = (own for _, own in dataset_configs(part))
            leaf = next(
                own for own in leaves if not inner_dataset_configs(own)
            )
            infos.append(
                DATASETS.build(
                    {**copy_tree(leaf), 'lazy_init': True, 'pipeline': []}
                ).metainfo
            )
        return infos
    return []


def _is_same(one: Any, other: Any) -> bool:
    """As both kinds of ``ConcatDataset`` compare."""
    if type(one) is not type(other):
        return False
    same = one == other
    return same if isinstance(same, bool) else bool(np.all(same))


def _brief(value: Any, other: Any) -> str:
    """A value in words, of a sequence the first that is not as in another."""
    if value is None:
        return 'none'
    if not isinstance(value, list | tuple):
        return repr(value)
    text = f'a {type(value).__name__} of {len(value)}'
    if type(value) is type(other):
        for index, pair in enumerate(zip(value, other)):
            if pair[0] != pair[1]:
                return f'{text} with {pair[0]!r} at {index}'
    return text


# Bytes of dicts and numbers of Python for each byte of JSON as it is exported;
# of indented files it is less.
_GROWTH = 4
_GIB = 2**30


@DATA.rule(
    'DATA010',
    symptoms=('is killed by signal',),
    title='each worker of a data loader copies the annotations',
    severity=Severity.INFO,
    remedy='set serialize_data=True, which workers share, or fewer workers',
    fix='set serialize_data=True, where the memory of this machine is too '
    'small',
)
def copied_annotations(subject: Subject) -> Iterator[Finding]:
    """Workers count references to the samples, which copies their memory."""
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    for split in SPLITS:
        name = f'{split}_dataloader'
        workers = as_mapping(subject.top.get(name)).get('num_workers', 0)
        for section in subject.below(name, 'dataset'):
            cfg = section.cfg
            file = Path(cfg.get('data_root') or '', cfg.get('ann_file') or '')
            if (
                not is_kind(subject.component(section), BaseDataset)
                or subject.setting(section, 'serialize_data') is not False
                or not file.is_file()
            ):
                continue
            size = file.stat().st_size * _GROWTH
            total = size * (1 + workers)
            if workers and total > _GIB:
                path = (*section.path, 'serialize_data')
                yield new_finding(
                    f'serialize_data=False: {workers} workers and the process '
                    f'itself have about {size / _GIB:.1f} GiB each of '
                    f'{file.name}, together {total / _GIB:.1f} GiB, of '
                    f'{memory / _GIB:.1f} GiB of this machine',
                    path=path,
                    severity=Severity.WARNING if total > memory else None,
                    options=change(path, True) if total > memory else {},
                )
