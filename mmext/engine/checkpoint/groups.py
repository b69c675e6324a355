"""A checkpoint whose optimizer has the same parameters in other groups.

MMEngine's constructor makes a group of each parameter where there is a
``paramwise_cfg``, :class:`~mmext.engine.MergedOptimWrapperConstructor` one of
all that have the same settings. The state of an optimizer and those of its
schedulers count groups, and gradients that wait count parameters in the order
of the groups. Here a checkpoint is rewritten, before it is compared and
loaded, as if it had been saved with the groups of the present training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from ...utils.param_groups import MULTIPLIERS
from ..accumulation import named_wrappers
from ..optim import IMPLEMENTATIONS
from .plan import CONFIG, Change, by_wrapper

# Lists in the states of schedulers that have an entry for each group.
_PER_GROUP = ('_last_value', 'base_values', 'min_values')


def parameter_names(runner: Runner, wrapper: OptimWrapper) -> list[list[str]]:
    """Names of the parameters in each group of an optimizer."""
    names = {
        id(parameter): name.removeprefix('module.')
        for name, parameter in runner.model.named_parameters()
    }
    return [
        [names.get(id(item), '?') for item in group['params']]
        for group in wrapper.optimizer.param_groups
    ]


def group_sizes(sizes: Sequence[int]) -> str:
    """Numbers of parameters in groups, in words."""
    shown = ', '.join(map(str, sizes[:6]))
    more = ', ...' if len(sizes) > 6 else ''
    return f'{sum(sizes)} in {len(sizes)} groups ({shown}{more})'


def take_over_groups(
    runner: Runner, checkpoint: dict[str, Any]
) -> list[Change]:
    """Arrange a checkpoint in the groups of this training, where that can be.

    It can where the parameters are the same and, in the checkpoint as well as
    now, those that share a group in one of both have the same settings.
    Otherwise the groups stay as they are. Whether a step is computed fused or
    foreach is no state: the present setting holds, in any case.

    Args:
        runner: Optimizer and schedulers are built, states not yet loaded.
        checkpoint: What was read; changed in place.

    Returns:
        A change for each optimizer whose groups were others.
    """
    states = checkpoint['optimizer']
    if 'param_groups' in states:
        states = {'': states}
    changes = []
    for name, wrapper in named_wrappers(runner.optim_wrapper).items():
        if name not in states:
            continue  # Refused, when it is compared.
        move = _Move(runner, checkpoint, name, wrapper, states[name])
        if move.is_possible():
            sizes = [
                group_sizes(list(map(len, groups)))
                for groups in (move.before, move.now)
            ]
            move.apply()
            changes.append(
                Change(
                    f'optim_wrapper{name and "." + name}: groups',
                    *sizes,
                    CONFIG,
                    'the same settings in other groups; the state of each '
                    'parameter goes on',
                )
            )
        _set_implementation(states[name], wrapper)
    return changes


def _set_implementation(state: dict[str, Any], wrapper: OptimWrapper) -> None:
    """How steps are computed now, in the groups of a state."""
    groups = [*state['param_groups'], state.get('base_param_settings') or {}]
    own = [*wrapper.optimizer.param_groups, wrapper.base_param_settings or {}]
    for group, given in zip(groups, own, strict=False):
        for key in IMPLEMENTATIONS:
            if key in given:
                group[key] = given[key]


class _Move:
    """From the groups of a checkpoint to those of a training."""

    def __init__(
        self,
        runner: Runner,
        checkpoint: Mapping[str, Any],
        name: str,
        wrapper: OptimWrapper,
        state: dict[str, Any],
    ) -> None:
        self.name, self.state = name, state
        self.groups = state['param_groups']
        self.old_base = state.get('base_param_settings')
        self.own_groups = wrapper.optimizer.param_groups
        self.own_base = wrapper.base_param_settings
        self.schedulers = by_wrapper(
            checkpoint.get('param_schedulers'), []
        ).get(name, [])
        meta = checkpoint['meta']
        self.noted = (
            (meta.get('training') or {}).get('optimizers', {}).get(name, {})
        )
        self.gradients = (meta.get('accumulation') or {}).get('gradients', [])
        self.now = parameter_names(runner, wrapper)
        self.before = self.noted.get('params') or self._unnoted(runner)
        where = {
            parameter: index
            for index, group in enumerate(self.before)
            for parameter in group
        }
        # Of each group now, the groups that its parameters were in.
        self.sources = [
            list(dict.fromkeys(where.get(parameter) for parameter in group))
            for group in self.now
        ]

    def _unnoted(self, runner: Runner) -> list[list[str]]:
        """Names by groups of one, which MMEngine makes in the model's order.

        Its runner notes no names; empty if groups are larger.
        """
        own = {name for group in self.now for name in group}
        names = [
            [name]
            for each, _ in runner.model.named_parameters()
            if (name := each.removeprefix('module.')) in own
        ]
        sizes = [len(group['params']) for group in self.groups]
        return names if sizes == [1] * len(names) else []

    def is_possible(self) -> bool:
        """Whether groups differ, and nothing else does."""
        before = [name for group in self.before for name in group]
        now = [name for group in self.now for name in group]
        if (
            self.before == self.now
            or sorted(before) != sorted(now)
            or len(set(now)) < len(now)
            or [len(group['params']) for group in self.groups]
            != [len(group) for group in self.before]
        ):
            return False
        surgery = self.state.get('gradient_surgery')
        if before != now and surgery and surgery['aggregator']['modules']:
            return False  # It may count numbers in the order of parameters.
        return self._were_alike() and self._are_alike()

    def _were_alike(self) -> bool:
        """Whether what is now in one group had the same settings."""
        count = len(self.groups) + (self.old_base is not None)
        lists = [
            state[key]
            for state in self.schedulers
            for key in _PER_GROUP
            if key in state
        ]
        if any(len(values) != count for values in lists):
            return False
        facts = [
            (_settings(group), [values[index] for values in lists])
            for index, group in enumerate(self.groups)
        ]
        return all(
            facts[source] == facts[sources[0]]
            for sources in self.sources
            for source in sources
        )

    def _are_alike(self) -> bool:
        """Whether what was in one group has the same settings."""
        first: dict[int, dict[str, Any]] = {}
        for group, sources in zip(self.own_groups, self.sources, strict=True):
            own = _settings(group)
            if any(first.setdefault(one, own) != own for one in sources):
                return False
        # With several groups MMEngine follows the settings of the config, too.
        needs_base = self.own_base is not None and self.old_base is None
        return not needs_base or _settings(self.own_base) == first[0]

    def apply(self) -> None:
        """Rewrite the states."""
        firsts = [sources[0] for sources in self.sources]
        numbers = dict(
            zip(
                (name for group in self.before for name in group),
                (item for group in self.groups for item in group['params']),
                strict=True,
            )
        )
        self.state['param_groups'] = [
            {
                **_settings(self.groups[source]),
                **{key: own[key] for key in MULTIPLIERS if key in own},
                'params': [numbers[name] for name in names],
            }
            for own, source, names in zip(
                self.own_groups, firsts, self.now, strict=True
            )
        ]
        if self.own_base is None:
            self.state.pop('base_param_settings', None)
        elif self.old_base is None:
            self.state['base_param_settings'] = {
                **_settings(self.groups[0]),
                'params': self.own_base['params'],
            }
        if self.own_base is not None:
            firsts.append(0 if self.old_base is None else len(self.groups))
        for state in self.schedulers:
            for key in _PER_GROUP:
                if key in state:
                    state[key] = [state[key][index] for index in firsts]
        self._move_gradients()
        if self.noted:
            self.noted['params'] = self.now

    def _move_gradients(self) -> None:
        """Number gradients that wait for the optimizer anew."""
        now = {
            name: index
            for index, name in enumerate(
                name for group in self.now for name in group
            )
        }
        moved = [now[name] for group in self.before for name in group]
        for of_rank in self.gradients:
            if of_rank and self.name in of_rank:
                of_rank[self.name] = {
                    (key[0], moved[key[1]])
                    if isinstance(key, tuple)
                    else moved[key]: gradient
                    for key, gradient in of_rank[self.name].items()
                }


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """What a group does to its parameters."""
    without = ('params', *IMPLEMENTATIONS, *MULTIPLIERS)
    return {key: group[key] for key in group if key not in without}
