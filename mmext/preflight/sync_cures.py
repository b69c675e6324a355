"""Settings that make a step work in many processes, proved by replaying it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .step_usage import StepUsage, UnusedReason
from .sync_outcome import Outcome, predict_outcome

__all__ = ['Cure', 'SyncSettings', 'find_cures']

_FLAG = 'find_unused_parameters = {}'
_HOOK = """default_hooks = dict(
    activation_checkpoint=dict(
        type='mmext.ActivationCheckpointHook', replace_reentrant=True
    )
)"""
_WRAPPER = """model_wrapper_cfg = dict(
    type='mmext.DistributedDataParallel', static_graph={}
)"""

# What to do in the model about an unused parameter.
_IN_MODEL = {
    UnusedReason.NO_GRAD: 'compute it with gradients at the place above',
    UnusedReason.DETACHED: 'let gradients pass at the place above',
    UnusedReason.FROZEN: 'freeze it earlier, when the model is built',
}
_USE = 'use it in the loss (times 0 where a batch has nothing for it)'
_FREEZE = (
    'or, if it shall not be trained, freeze it in __init__ with '
    'requires_grad_(False), or remove it'
)


@dataclass(frozen=True)
class SyncSettings:
    """The two settings that decide what DDP makes of a step.

    Attributes:
        find_unused_parameters: As DDP's.
        static_graph: As DDP's.
    """

    find_unused_parameters: bool = False
    static_graph: bool = False


@dataclass(frozen=True)
class Cure:
    """One way to make it work.

    Attributes:
        text: What to do, and what it costs.
        config: Lines for the top level of the config, or empty.
    """

    text: str
    config: str = ''


def find_cures(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> list[Cure]:
    """Ways to make steps work, the cheapest first.

    Args:
        usages: What one step did, for each process.
        settings: What the training ran with.

    Returns:
        Cures; those that are settings have been tried on the given steps.

    Examples:
        >>> from mmext.preflight import Firing
        >>> step = StepUsage(('a', 'b'), (Firing('a', 0),), frozenset('a'))
        >>> [cure.config for cure in find_cures([step], SyncSettings())]
        ['find_unused_parameters = True']
    """
    cures = _cures_in_model(usages, settings)
    if _not_trained_by_checkpoint(usages):
        # Flags would only hide that these are not trained.
        return [*_checkpoint_cures(usages, settings), *cures]
    fixed = next(
        (flag for flag in (False, True) if _works(usages, flag)), None
    )
    if fixed is not None and settings != SyncSettings(fixed):
        cures.append(_flag_cure(fixed, settings))
    if any(usage.reentrant for usage in usages):
        cures += _checkpoint_cures(usages, settings)
    if fixed is None and not settings.static_graph and _is_static(usages):
        cures.append(
            Cure(
                'If every step uses the same parameters in the same way, and '
                'gradients are not accumulated, at the top level of the '
                'config:',
                _WRAPPER.format(True),
            )
        )
    return cures


def _works(usages: Sequence[StepUsage], flag: bool) -> bool:
    return all(
        predict_outcome([usage], find_unused_parameters=flag).outcome
        is Outcome.OK
        for usage in usages
    )


def _lines(flag: bool, settings: SyncSettings) -> list[str]:
    """Config lines that change settings to a flag, and no static graph."""
    lines = []
    if settings.static_graph:
        lines.append(_WRAPPER.format(False))
    if settings.find_unused_parameters != flag:
        lines.append(_FLAG.format(flag))
    return lines


def _flag_cure(flag: bool, settings: SyncSettings) -> Cure:
    if flag:
        text = (
            'Let every step search for unused parameters, which costs a walk '
            'over the graph and a small reduction. At the top level of the '
            'config:'
        )
    else:
        text = (
            'Every parameter is used, so search for none. At the top level '
            'of the config:'
        )
    return Cure(text, '\n'.join(_lines(flag, settings)))


def _checkpoint_cures(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> list[Cure]:
    """Replace reentrant checkpoints, with the flag that this needs."""
    plain = [usage.without_reentrant() for usage in usages]
    flag = next((flag for flag in (False, True) if _works(plain, flag)), None)
    if flag is None:
        return []
    return [
        Cure(
            'Replace the reentrant checkpoints; where code of yours calls '
            'torch.utils.checkpoint, pass use_reentrant=False there. At the '
            'top level of the config:',
            '\n'.join([_HOOK, *_lines(flag, settings)]),
        )
    ]


def _reasons(usages: Sequence[StepUsage]) -> list[UnusedReason]:
    return [use.reason for usage in usages for use in usage.unused.values()]


def _unused_names(usages: Sequence[StepUsage]) -> str:
    names = list(dict.fromkeys(n for usage in usages for n in usage.unused))
    if len(names) <= 2:
        return ' and '.join(names)
    return f'{names[0]} and {len(names) - 1} more'


def _not_trained_by_checkpoint(usages: Sequence[StepUsage]) -> bool:
    return UnusedReason.CHECKPOINT_INPUT in _reasons(usages)


def _is_static(usages: Sequence[StepUsage]) -> bool:
    """Whether nothing tells that steps differ."""
    return not {
        UnusedReason.BRANCH_NOT_TAKEN,
        UnusedReason.FROZEN,
    }.intersection(_reasons(usages))


def _cures_in_model(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> list[Cure]:
    """What to change in the model itself."""
    cures = []
    reasons = dict.fromkeys(_reasons(usages))
    reasons.pop(UnusedReason.CHECKPOINT_INPUT, None)
    steps = dict.fromkeys(_IN_MODEL.get(reason, _USE) for reason in reasons)
    if steps:
        used = [usage.without_unused() for usage in usages]
        flag = settings.find_unused_parameters
        if not _works(used, flag):
            flag = next((f for f in (False, True) if _works(used, f)), flag)
        lines = []
        if flag != settings.find_unused_parameters:
            lines = _lines(flag, settings)
        also = '. Then, at the top level of the config:' if lines else '.'
        if not settings.static_graph or not lines:
            cures.append(
                Cure(
                    f'In the model, for {_unused_names(usages)}: '
                    f'{"; ".join(steps)}; {_FREEZE}{also}',
                    '\n'.join(lines),
                )
            )
    if any(usage.outside_forward for usage in usages):
        cures.append(
            Cure(
                'In the model: use the parameters in '
                "forward(mode='loss'), and not in what comes after it."
            )
        )
    return cures
