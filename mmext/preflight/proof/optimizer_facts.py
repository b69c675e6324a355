"""Compare the groups of an optimizer with the parameters of the model."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from .._config_sections import find_component
from .facts import OptimizerFacts

__all__ = ['custom_key_use', 'optimizer_facts']

_SIMILAR = 0.6


def optimizer_facts(
    model: nn.Module,
    optim_wrapper: Any,
    cfg: Mapping[str, Any] | None = None,
) -> OptimizerFacts:
    """What an optimizer holds of a model.

    Args:
        model: The model.
        optim_wrapper: Built for it; an ``OptimWrapperDict`` counts as one.
        cfg: The config, for ``optim_wrapper.paramwise_cfg``; None for none.

    Returns:
        The facts.
    """
    groups = [
        group
        for wrapper in _wrappers(optim_wrapper)
        for group in wrapper.param_groups
    ]
    rates: dict[int, float] = {}
    for group in groups:
        for parameter in group['params']:
            rate = float(group.get('lr', 1.0))
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), rate)
    named = list(model.named_parameters())
    trainable = [(n, p) for n, p in named if p.requires_grad]
    unmatched, shadowed = {}, ()
    keys = _custom_keys(cfg)
    if keys:
        unmatched, shadowed = custom_key_use(keys, [n for n, _ in trainable])
        frozen = [n for n, p in named if not p.requires_grad]
        # A key for what is frozen has no effect, but is no typing error.
        unmatched = {
            key: near
            for key, near in unmatched.items()
            if not any(key in name for name in frozen)
        }
    return OptimizerFacts(
        missing=tuple(n for n, p in trainable if id(p) not in rates),
        frozen=tuple(
            n for n, p in named if not p.requires_grad and id(p) in rates
        ),
        rate_zero=tuple(n for n, p in trainable if rates.get(id(p)) == 0.0),
        unmatched=unmatched,
        shadowed=shadowed,
    )


def _wrappers(optim_wrapper: Any) -> list[Any]:
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.optim_wrappers.values())
    return [optim_wrapper]


def _custom_keys(cfg: Mapping[str, Any] | None) -> list[str]:
    """Keys of the config, where MMEngine's own constructor reads them."""
    section = (cfg or {}).get('optim_wrapper')
    if not isinstance(section, Mapping):
        return []
    kind = section.get('constructor')
    if kind is not None:
        scope = (cfg or {}).get('default_scope') or 'mmengine'
        kind = find_component(kind, (OPTIM_WRAPPER_CONSTRUCTORS,), scope)
        own = getattr(kind, 'add_params', None)
        if own is not DefaultOptimWrapperConstructor.add_params:
            return []
    paramwise = section.get('paramwise_cfg')
    if not isinstance(paramwise, Mapping):
        return []
    return [str(key) for key in paramwise.get('custom_keys') or {}]


def custom_key_use(
    keys: Iterable[str], names: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What MMEngine's constructor makes of ``custom_keys``.

    A key applies where it is part of a parameter's name; of several, the
    longest.

    Args:
        keys: The keys.
        names: Of the trainable parameters.

    Returns:
        Keys that fit nothing, with the nearest real name or an empty string;
        and keys that fit, but never as the longest.

    Examples:
        >>> custom_key_use(['absolute_pos'], ['backbone.absolute_pos_embed'])
        ({}, ())
        >>> custom_key_use(['backbon.stem'], ['backbone.stem.weight'])
        ({'backbon.stem': 'backbone.stem'}, ())
    """
    # A parameter of the model itself is called '.name' there.
    names = [name if '.' in name else f'.{name}' for name in names]
    ordered = sorted(sorted(keys), key=len, reverse=True)
    fits = {key: [n for n in names if key in n] for key in ordered}
    taken = {
        next((key for key in ordered if key in name), '') for name in names
    }
    unmatched = {key: _nearest(key, names) for key in ordered if not fits[key]}
    shadowed = tuple(k for k in ordered if fits[k] and k not in taken)
    return unmatched, shadowed


def _nearest(key: str, names: Iterable[str]) -> str:
    """The part of a name that a key resembles most."""
    length = key.count('.') + 1
    candidates = {}
    for name in names:
        parts = name.strip('.').split('.')
        for start in range(max(len(parts) - length + 1, 0)):
            candidates['.'.join(parts[start : start + length])] = None
    near = difflib.get_close_matches(key, list(candidates), 1, _SIMILAR)
    return near[0] if near else ''
