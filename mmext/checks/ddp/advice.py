"""Changes that make a step work in many processes, each tried by replaying.

The texts are printed at the end of a ``GradientSyncError``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .reducer import Outcome, SyncSettings, predict_outcome
from .trace import StepUsage, UnusedReason

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
class Advice:
    """What to do, and lines for the top level of the config, if any."""

    text: str
    config: str = ''


def find_advice(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> list[Advice]:
    """Ways to make steps work, the cheapest first.

    ``usages`` has one step of each process. Settings are advised only if the
    steps work with them.
    """
    advice = _change_model(usages, settings)
    if UnusedReason.CHECKPOINT_INPUT in _reasons(usages):
        # Flags would only hide that these are not trained.
        return [*_replace_checkpoints(usages, settings), *advice]
    flag = _flag_that_works(usages)
    if flag is not None and settings != SyncSettings(flag):
        advice.append(_set_flag(flag, settings))
    if any(usage.reentrant for usage in usages):
        advice += _replace_checkpoints(usages, settings)
    if flag is None and not settings.static_graph and _may_be_static(usages):
        advice.append(
            Advice(
                'If every step uses the same parameters in the same way, and '
                'gradients are not accumulated, at the top level of the '
                'config:',
                _WRAPPER.format(True),
            )
        )
    return advice


def _change_model(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> list[Advice]:
    """What to change in the model itself."""
    advice = []
    reasons = dict.fromkeys(_reasons(usages))
    reasons.pop(UnusedReason.CHECKPOINT_INPUT, None)
    changes = dict.fromkeys(_IN_MODEL.get(reason, _USE) for reason in reasons)
    if changes:
        used = [usage.without_unused() for usage in usages]
        flag = settings.find_unused_parameters
        if not _works(used, flag):
            other = _flag_that_works(used)
            flag = flag if other is None else other
        lines = []
        if flag != settings.find_unused_parameters:
            lines = _lines(flag, settings)
        also = '. Then, at the top level of the config:' if lines else '.'
        if not settings.static_graph or not lines:
            advice.append(
                Advice(
                    f'In the model, for {_unused_names(usages)}: '
                    f'{"; ".join(changes)}; {_FREEZE}{also}',
                    '\n'.join(lines),
                )
            )
    if any(usage.outside_forward for usage in usages):
        advice.append(
            Advice(
                'In the model: use the parameters in '
                "forward(mode='loss'), and not in what comes after it."
            )
        )
    return advice


def _set_flag(flag: bool, settings: SyncSettings) -> Advice:
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
    return Advice(text, '\n'.join(_lines(flag, settings)))


def _replace_checkpoints(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> list[Advice]:
    """Replace reentrant checkpoints, with the flag that this needs."""
    flag = _flag_that_works([usage.without_reentrant() for usage in usages])
    if flag is None:
        return []
    return [
        Advice(
            'Replace the reentrant checkpoints; where code of yours calls '
            'torch.utils.checkpoint, pass use_reentrant=False there. At the '
            'top level of the config:',
            '\n'.join([_HOOK, *_lines(flag, settings)]),
        )
    ]


def _flag_that_works(usages: Sequence[StepUsage]) -> bool | None:
    return next((flag for flag in (False, True) if _works(usages, flag)), None)


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


def _reasons(usages: Sequence[StepUsage]) -> list[UnusedReason]:
    return [
        unused.reason for usage in usages for unused in usage.unused.values()
    ]


def _unused_names(usages: Sequence[StepUsage]) -> str:
    names = list(dict.fromkeys(n for usage in usages for n in usage.unused))
    if len(names) <= 2:
        return ' and '.join(names)
    return f'{names[0]} and {len(names) - 1} more'


def _may_be_static(usages: Sequence[StepUsage]) -> bool:
    """Whether no reason implies that steps differ."""
    return not {
        UnusedReason.BRANCH_NOT_TAKEN,
        UnusedReason.FROZEN,
    }.intersection(_reasons(usages))
