"""Settings of the model wrapper and of checkpointing where nobody reads them.

MMEngine hands most sections of a config on without a look at their keys. A
``find_unused_parameters`` in ``model.train_cfg`` is not an error there; it
does nothing. In other places it is an error, but only when the training
starts, after the model was built.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config

from ._misplaced_search import MisplacedKey, MisplacedKeySearch
from ._right_places import RIGHT_PLACES, config_lines, merge

__all__ = [
    'RIGHT_PLACES',
    'MisplacedKey',
    'MisplacedKeyError',
    'check_misplaced_keys',
    'find_misplaced_keys',
]

_SWITCH = 'check_misplaced_keys'


class MisplacedKeyError(ValueError):
    """Settings are where nothing reads them.

    Args:
        keys: All of them.
    """

    def __init__(self, keys: Sequence[MisplacedKey]) -> None:
        self.keys = list(keys)
        lines = ['settings must be where something reads them, got']
        cure: dict[str, Any] = {}
        for each in keys:
            lines.append(f'  {each.place} = {each.value!r}')
            lines.append(f'    {each.reason}; it is read {each.read_at}')
            merge(cure, each.cure)
        lines.append('Remove what is named above.')
        if cure:
            lines.append('For what it was meant to do, set:')
            # Not indented, so that it can be pasted.
            lines += ['', config_lines(cure).rstrip(), '']
        if any(each.key == 'with_cp' and each.value for each in keys):
            lines.append(
                'Modules without with_cp are checkpointed by '
                'mmext.ActivationCheckpointHook, in default_hooks.'
            )
        lines.append(
            'Where a component of your own does read it, set at the top '
            f'level: {_SWITCH} = False (or --cfg-options {_SWITCH}=False)'
        )
        super().__init__('\n'.join(lines))

    def __reduce__(self) -> tuple:
        """Go to another process whole."""
        return type(self), (self.keys,)


def check_misplaced_keys(
    cfg: Config | Mapping[str, Any], runner: type | str | None = None
) -> None:
    """Raise if a config sets something where nothing reads it.

    Args:
        cfg: The config of a training. ``check_misplaced_keys=False`` at its
            top level turns this check off, for components that read such a
            key in a place of their own.
        runner: See :func:`find_misplaced_keys`.

    Raises:
        TypeError: If the switch is not a bool.
        MisplacedKeyError: If there are misplaced keys. It names all of them
            and the lines that work.

    Examples:
        >>> check_misplaced_keys({'model': {'train_cfg': {'with_cp': False}}})
        Traceback (most recent call last):
            ...
        mmext.preflight.misplaced_keys.MisplacedKeyError: settings must be \
where something reads them, got
          model.train_cfg.with_cp = False
        ...
    """
    switch = cfg.get(_SWITCH, True)
    if not isinstance(switch, bool):
        raise TypeError(f'{_SWITCH} must be True or False, got {switch!r}')
    found = find_misplaced_keys(cfg, runner) if switch else []
    if found:
        raise MisplacedKeyError(found)


def find_misplaced_keys(
    cfg: Config | Mapping[str, Any], runner: type | str | None = None
) -> list[MisplacedKey]:
    """Find settings that nothing reads where they are.

    These are ``find_unused_parameters``, ``static_graph``,
    ``gradient_as_bucket_view``, ``broadcast_buffers``,
    ``detect_anomalous_params`` and ``with_cp``, and at the top level names
    that differ from theirs by a typing error. An argument of a component is
    misplaced if its class does not take it; what cannot be known, such as
    what a class does with ``**kwargs``, is not reported.

    Args:
        cfg: The config. It is not changed. Nothing is built, but packages
            that components are registered in may be imported.
        runner: The runner that is going to be used, a class or a name. By
            default ``runner_type`` of the config, else ``FlexibleRunner``
            where there is a ``strategy``, else mmext's.

    Returns:
        The misplaced ones, in the order of the config's sections.

    Examples:
        >>> cfg = {'model': {'train_cfg': {'find_unused_parameters': True}}}
        >>> [each.remedy for each in find_misplaced_keys(cfg)]
        ['find_unused_parameters = True']
    """
    text = cfg.text if isinstance(cfg, Config) else ''
    return MisplacedKeySearch(dict(cfg.items()), text, runner).run()
