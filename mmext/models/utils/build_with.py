"""Building a part with settings that its owner derives."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmdet.registry import MODELS as MMDET_MODELS
from torch import nn

__all__ = ['as_list', 'build_with']


def as_list(cfg: Mapping | Sequence[Mapping] | None) -> list[Mapping]:
    """Configs of all parts of one kind, given as one, as several or as none.

    Examples:
        >>> as_list(None), as_list({'type': 'A'})
        ([], [{'type': 'A'}])
    """
    if cfg is None:
        return []
    return list(cfg) if isinstance(cfg, list | tuple) else [cfg]


def build_with(cfg: Mapping, owner: str, **settings: Any) -> nn.Module:
    """Build a module from its config and the settings its owner derives.

    Args:
        cfg: Config with a ``type``. Not edited.
        owner: Who sets the settings, for the message.
        **settings: Further arguments, which ``cfg`` must not give: a number
            that stands in two places is wrong in one of them sooner or later.

    Returns:
        The module.

    Raises:
        ValueError: If ``cfg`` gives one of the settings.
    """
    for key in settings:
        if key in cfg:
            raise ValueError(
                f'{cfg.get("type")} must not be given {key}, which the '
                f'{owner} sets, got {cfg[key]!r}; remove it'
            )
    return MMDET_MODELS.build({**cfg, **settings})
