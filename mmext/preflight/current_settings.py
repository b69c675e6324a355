"""What a config sets its model wrapper to."""

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from ._right_places import FLAG, RightPlaces, RunnerKind
from .sync_cures import SyncSettings

__all__ = ['current_settings']


def current_settings(cfg: Config | Mapping[str, Any]) -> SyncSettings:
    """The settings that a training with this config would run with.

    Args:
        cfg: The config; keys that its runner does not read do not count.

    Returns:
        What the model wrapper gets.

    Examples:
        >>> current_settings({'find_unused_parameters': True})
        SyncSettings(find_unused_parameters=True, static_graph=False)
    """
    top = cfg.to_dict() if isinstance(cfg, Config) else dict(cfg)
    right = RightPlaces(top, top.get('default_scope') or 'mmengine', None)
    wrapper = right.wrapper
    if right.kind is RunnerKind.FLEXIBLE:
        wrapper = right.strategy.get('model_wrapper') or {}
    flag = wrapper.get(FLAG)
    if flag is None and right.reads_flag:
        flag = top.get(FLAG)
    return SyncSettings(bool(flag), bool(wrapper.get('static_graph')))
