"""Hooks in places, or of kinds, that runners do not take."""

from collections import Counter
from collections.abc import Iterator, Mapping

from ...config import join_key
from ...findings import Finding, Severity
from .loops import training_length
from .registry import HOOK, new_finding
from .subject import Subject, as_mapping, kind_of

_ONCE = ('CheckpointHook', 'EMAHook', 'ParamSchedulerHook', 'LoggerHook')


@HOOK.rule(
    'HOOK001',
    title='hooks have the wrong form',
    severity=Severity.ERROR,
    remedy='default_hooks is a dict of hooks by name, custom_hooks a list of '
    'hooks; each is a dict with a type',
    fix='put a single hook into a list',
)
def wrong_form(subject: Subject) -> Iterator[Finding]:
    """Lists for dicts, dicts for lists, and hooks without a type."""
    default = subject.top.get('default_hooks')
    if default is not None and not isinstance(default, Mapping):
        yield new_finding(
            'default_hooks must be a dict of hooks by name, got '
            f'{type(default).__name__}',
            path=('default_hooks',),
        )
    custom = subject.top.get('custom_hooks')
    own = enumerate(custom if isinstance(custom, list) else ())
    named = as_mapping(default).items()
    hooks = {('default_hooks', name): hook for name, hook in named}
    hooks |= {('custom_hooks', index): hook for index, hook in own}
    for path, hook in hooks.items():
        # Objects are taken; None takes a hook of default_hooks away.
        plain = isinstance(hook, Mapping | list | str)
        none = hook is None and path[0] == 'custom_hooks'
        if none or (plain and 'type' not in as_mapping(hook)):
            yield new_finding(
                f'{join_key(path)} must be a dict with a type, got {hook!r}',
                path=path,
            )
    if custom is not None and not isinstance(custom, list):
        yield new_finding(
            f'custom_hooks must be a list, got {type(custom).__name__}',
            path=('custom_hooks',),
            options={'custom_hooks': [custom]}
            if isinstance(custom, Mapping) and 'type' in custom
            else {},
        )


@HOOK.rule(
    'HOOK002',
    title='a hook is there twice',
    severity=Severity.WARNING,
    remedy='change the one of default_hooks instead of adding another',
)
def twice(subject: Subject) -> Iterator[Finding]:
    """Hooks of which a runner has one, in both sections."""
    default = as_mapping(subject.top.get('default_hooks'))
    custom = subject.top.get('custom_hooks')
    kinds = Counter(map(kind_of, default.values()))
    for index, hook in enumerate(custom if isinstance(custom, list) else ()):
        kind = kind_of(hook)
        kinds[kind] += 1
        if kind in _ONCE and kinds[kind] > 1:
            yield new_finding(
                f'{kind} is there {kinds[kind]} times',
                path=('custom_hooks', index),
            )


@HOOK.rule(
    'HOOK003',
    title='the moving average never begins',
    severity=Severity.ERROR,
    remedy='set one of begin_epoch and begin_iter, below the end of the '
    'training',
)
def late_average(subject: Subject) -> Iterator[Finding]:
    """MMEngine refuses such an EMAHook when the training starts."""
    length = training_length(subject)
    for section in subject.below('custom_hooks'):
        hook = section.cfg
        if kind_of(hook) != 'EMAHook':
            continue
        epoch, step = hook.get('begin_epoch', 0), hook.get('begin_iter', 0)
        if epoch and step:
            yield new_finding(
                f'EMAHook has begin_epoch={epoch} and begin_iter={step}, of '
                'which one may be set',
                path=section.path,
            )
            continue
        key, begin = ('begin_epoch', epoch) if epoch else ('begin_iter', step)
        counts = length is not None and length.by_epoch == bool(epoch)
        if counts and isinstance(begin, int) and begin > length.total:
            yield new_finding(
                f'EMAHook has {key}={begin}, and the training ends at '
                f'{length.total} {length.unit}',
                path=(*section.path, key),
            )
