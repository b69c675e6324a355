"""Settings of data loaders that exclude each other."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from ...config import (
    DELETE,
    OLD_LOADER_KEYS,
    takes,
    unknown_loader_keys,
)
from ...findings import Finding, Severity
from .loops import training_length
from .registry import DATA, new_finding
from .subject import SPLITS, Subject, as_mapping, kind_of, sure_name


def _loaders(subject: Subject) -> Iterator[tuple[str, Mapping]]:
    for split in SPLITS:
        name = f'{split}_dataloader'
        loader = as_mapping(subject.top.get(name))
        if 'dataset' in loader:
            yield name, loader


@DATA.rule(
    'DATA001',
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
        if isinstance(kind, type) and issubclass(kind, IterableDataset):
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
