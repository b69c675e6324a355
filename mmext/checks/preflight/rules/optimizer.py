"""How the groups of an optimizer fit the model and its config."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ....utils.training import merge_groups
from ...config import find_component
from ...findings import Finding, Severity
from ..dry_run.run import wrappers_of
from .registry import OPT, count_of, in_words

_KEYS = 'optim_wrapper.paramwise_cfg.custom_keys'
_MERGES = 'mmext.MergedOptimWrapperConstructor'
# Constructors that read ``custom_keys`` as MMEngine documents it.
_READ_CUSTOM_KEYS = ('DefaultOptimWrapperConstructor', _MERGES)

OPT001 = OPT.declare(
    'OPT001',
    title='a trainable parameter is in no group of the optimizer',
    severity=Severity.ERROR,
    remedy='build the optimizer after the last parameter was made and '
    'unfrozen, or freeze them with requires_grad_(False)',
)
OPT002 = OPT.declare(
    'OPT002',
    title='a frozen parameter is in the optimizer',
    severity=Severity.INFO,
    remedy='none is needed, as long as nothing unfreezes them',
)
OPT003 = OPT.declare(
    'OPT003',
    title='a trainable parameter has a learning rate of 0',
    severity=Severity.WARNING,
    remedy='freeze them with requires_grad_(False) or frozen_stages, which '
    'also saves the memory',
)
OPT004 = OPT.declare(
    'OPT004',
    title='a key of custom_keys is in the name of no parameter',
    severity=Severity.WARNING,
    remedy='correct or remove it',
)
OPT005 = OPT.declare(
    'OPT005',
    title='a key of custom_keys is hidden by longer ones',
    severity=Severity.INFO,
    remedy='remove it, or write it into the longer key',
)
OPT006 = OPT.declare(
    'OPT006',
    title='groups of parameters have the same settings',
    severity=Severity.INFO,
    remedy='put parameters with the same settings into one group, in the '
    'constructor of the optimizer wrapper',
    fix='set a constructor that merges them, in the place of that of MMEngine',
)


def optimizer_findings(
    model: nn.Module, optim_wrapper: Any, cfg: Mapping[str, Any]
) -> Iterator[Finding]:
    """Findings about groups of parameters; none without an optimizer."""
    if optim_wrapper is None:
        return
    groups, merged = [], 0
    for wrapper in wrappers_of(optim_wrapper):
        groups += wrapper.optimizer.param_groups
        merged += len(merge_groups(wrapper.optimizer.param_groups))
    rates: dict[int, float] = {}
    for group in groups:
        for parameter in group['params']:
            rate = float(group.get('lr', 1.0))
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), rate)
    named = list(model.named_parameters())
    trainable = {n: id(p) for n, p in named if p.requires_grad}
    frozen = {n: id(p) for n, p in named if not p.requires_grad}
    missing = tuple(n for n in trainable if trainable[n] not in rates)
    if missing:
        yield OPT001.finding(
            'in no group of the optimizer, so never changed: '
            f'{count_of(missing, "trainable parameter")} in '
            f'{in_words(missing, trainable)}',
            names=missing,
        )
    held = tuple(n for n in frozen if frozen[n] in rates)
    if held:
        yield OPT002.finding(
            'in the optimizer, but frozen (requires_grad=False): '
            f'{count_of(held)}',
            names=held,
        )
    still = tuple(n for n in trainable if rates.get(trainable[n]) == 0.0)
    if still:
        yield OPT003.finding(
            'with a learning rate of 0 (lr_mult=0): '
            f'{count_of(still, "trainable parameter")} in '
            f'{in_words(still, trainable)}; gradients are computed and '
            'averaged for nothing',
            key=_KEYS,
            names=still,
        )
    section = _of_default_constructor(cfg)
    yield from _custom_keys(section or {}, trainable, frozen)
    if len(groups) > merged:
        fix: dict[str, Any] = {'key': 'optim_wrapper.constructor'}
        if section is not None:
            fix = {
                'key': 'optim_wrapper.paramwise_cfg',
                'remedy': f'set optim_wrapper.constructor={_MERGES!r}',
                'options': {'optim_wrapper.constructor': _MERGES},
            }
        yield OPT006.finding(
            f'the optimizer has {len(groups)} groups of parameters, with '
            f'{merged} different settings: each group is a step by '
            'itself in the optimizer, which costs time in every iteration',
            **fix,
        )


def _of_default_constructor(
    cfg: Mapping[str, Any],
) -> Mapping[str, Any] | None:
    """The config's optim_wrapper, if MMEngine's own constructor reads it."""
    section = cfg.get('optim_wrapper')
    if not isinstance(section, Mapping):
        return None
    kind = section.get('constructor')
    if kind is not None:
        scope = cfg.get('default_scope') or 'mmengine'
        kind = find_component(kind, (OPTIM_WRAPPER_CONSTRUCTORS,), scope)
        known = map(OPTIM_WRAPPER_CONSTRUCTORS.get, _READ_CUSTOM_KEYS)
        readers = [constructor.add_params for constructor in known]
        if getattr(kind, 'add_params', None) not in readers:
            return None
    return section


def _custom_keys(
    section: Mapping[str, Any], trainable: Iterable[str], frozen: Iterable[str]
) -> Iterator[Finding]:
    """What MMEngine's constructor makes of ``custom_keys``.

    A key applies where it is part of a trainable parameter's name; of several,
    the longest.
    """
    paramwise = section.get('paramwise_cfg')
    if not isinstance(paramwise, Mapping):
        return
    # A parameter of the model itself is called '.name' there.
    names = [name if '.' in name else f'.{name}' for name in trainable]
    keys = sorted(map(str, paramwise.get('custom_keys') or {}))
    keys.sort(key=len, reverse=True)
    fits = {key: [n for n in names if key in n] for key in keys}
    taken = {next((key for key in keys if key in n), '') for n in names}
    for key in keys:
        # A key for what is frozen has no effect, but is no typing error.
        if fits[key] or any(key in name for name in frozen):
            continue
        near = _nearest(key, names)
        hint = f'; the nearest real name is {near!r}' if near else ''
        yield OPT004.finding(
            f'custom_keys {key!r} is in the name of no parameter, so '
            f'it does nothing{hint}',
            remedy=f'write {near!r}' if near else '',
            key=_KEYS if '.' in key else f'{_KEYS}.{key}',
            names=(key,),
        )
    for key in keys:
        if fits[key] and key not in taken:
            yield OPT005.finding(
                f'custom_keys {key!r} does nothing: for every parameter '
                'that it fits, a longer key, or one before it in the '
                'alphabet, is used instead',
                key=_KEYS if '.' in key else f'{_KEYS}.{key}',
                names=(key,),
            )


def _nearest(key: str, names: Iterable[str]) -> str:
    """The part of a name that a key resembles most."""
    length = key.count('.') + 1
    candidates = {}
    for name in names:
        parts = name.strip('.').split('.')
        for start in range(max(len(parts) - length + 1, 0)):
            candidates['.'.join(parts[start : start + length])] = None
    return ''.join(difflib.get_close_matches(key, candidates, 1, 0.6))
