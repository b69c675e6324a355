"""Train and test settings addressed by name, with unknown names refused."""

import copy
import difflib
from collections.abc import Mapping

from mmdet.registry import MODELS as MMDET_MODELS
from mmengine.config import ConfigDict

from ...preflight.misplaced_keys import RIGHT_PLACES

__all__ = [
    'TEST_CFG_KEYS',
    'TRAIN_CFG_KEYS',
    'check_named_cfg',
    'per_head',
    'with_head_keys',
]

_NMS_KEYS = {'nms_pre', 'max_per_img', 'nms', 'min_bbox_size', 'score_thr'}
_ANCHOR_KEYS = {'assigner', 'sampler', 'allowed_border', 'pos_weight', 'debug'}

TRAIN_CFG_KEYS: dict[str, set[str]] = {
    'query_head': {'assigner'},
    'rpn_head': _ANCHOR_KEYS,
    'rpn_proposal': _NMS_KEYS,
    'roi_head': {'assigner', 'sampler', 'pos_weight', 'mask_size', 'debug'},
    'bbox_head': _ANCHOR_KEYS,
}
TEST_CFG_KEYS: dict[str, set[str]] = {
    'query_head': {'max_per_img', 'nms', 'score_thr'},
    'rpn_head': _NMS_KEYS,
    'roi_head': _NMS_KEYS | {'mask_thr_binary'},
    'bbox_head': _NMS_KEYS,
}

# There is one of these, so that a list of settings has no meaning.
_SINGLE = {'query_head', 'rpn_head', 'rpn_proposal'}

# Settings that another kind of head reads.
_OTHER_HEADS = {
    'class_embeddings': 'a query_head of type mmext.CoDINOClassEmbedHead '
    'reads it, in test_cfg',
}


def check_named_cfg(
    cfg: Mapping | None, known: Mapping[str, set[str]], name: str
) -> ConfigDict:
    """Refuse what no head would read.

    Args:
        cfg: Settings per head, ``{head: settings}``; ``roi_head`` and
            ``bbox_head`` may hold a list of settings. None is empty.
        known: Allowed settings per head.
        name: ``'train_cfg'`` or ``'test_cfg'``, for the message.

    Returns:
        A copy of ``cfg`` with attribute access, which mmdet's heads need.

    Raises:
        TypeError: If ``cfg`` or a head's settings are of another type, such
            as the positional list of the public port.
        ValueError: If a head or a setting is unknown. The message names the
            nearest known key, or where the setting belongs.

    Examples:
        >>> check_named_cfg({'query_head': {'max_per_image': 3}},
        ...                 TEST_CFG_KEYS, 'test_cfg')
        Traceback (most recent call last):
            ...
        ValueError: test_cfg.query_head must have keys in ['max_per_img', \
'nms', 'score_thr'], got 'max_per_image'; did you mean 'max_per_img'?
    """
    if cfg is None:
        return ConfigDict()
    if not isinstance(cfg, Mapping):
        raise TypeError(
            f'{name} must be a dict keyed by head, got '
            f'{type(cfg).__name__}; a config of the public port is translated '
            'by mmext.compat.translate_codetr_config'
        )
    _check_keys(cfg, set(known), name)
    for head, settings in cfg.items():
        may_list = head not in _SINGLE
        many = may_list and isinstance(settings, list | tuple)
        for item in settings if many else [settings]:
            if item is None:
                continue
            if not isinstance(item, Mapping):
                or_list = ' or a list of dicts' if may_list else ''
                raise TypeError(
                    f'{name}.{head} must be a dict{or_list}, got {item!r}'
                )
            _check_keys(item, known[head], f'{name}.{head}')
    return ConfigDict(copy.deepcopy(dict(cfg)))


def with_head_keys(
    known: Mapping[str, set[str]], query_head: Mapping, attribute: str
) -> dict[str, set[str]]:
    """Allowed settings, with those that the kind of query head adds.

    Args:
        known: Allowed settings per head. Not edited.
        query_head: Config of the query head; its class may have ``attribute``
            with the names of further settings.
        attribute: ``'train_cfg_keys'`` or ``'test_cfg_keys'``.

    Returns:
        Allowed settings per head.

    Examples:
        >>> with_head_keys(
        ...     {'query_head': set()},
        ...     {'type': 'mmext.CoDINOClassEmbedHead'},
        ...     'test_cfg_keys',
        ... )
        {'query_head': {'class_embeddings'}}
    """
    kind = query_head.get('type')
    if isinstance(kind, str):
        kind = MMDET_MODELS.get(kind)
    more = set(getattr(kind, attribute, ()))
    return {**known, 'query_head': known['query_head'] | more}


def per_head(
    settings: Mapping | list | tuple | None, count: int, name: str
) -> list:
    """Settings for each of ``count`` heads of one kind.

    Args:
        settings: One dict for all heads, or a list with one per head, or
            None.
        count: Number of heads.
        name: For the message, such as ``'train_cfg.roi_head'``.

    Returns:
        ``count`` settings.

    Raises:
        ValueError: If a list has another length.
    """
    if not isinstance(settings, list | tuple):
        return [settings] * count
    if len(settings) != count:
        raise ValueError(
            f'{name} must hold one dict per head ({count}), got '
            f'{len(settings)}'
        )
    return list(settings)


def _check_keys(cfg: Mapping, known: set[str], name: str) -> None:
    for key in cfg:
        if key in known:
            continue
        if key in RIGHT_PLACES:
            hint = f'it belongs {RIGHT_PLACES[key]}'
        elif key in _OTHER_HEADS:
            hint = _OTHER_HEADS[key]
        else:
            near = difflib.get_close_matches(str(key), sorted(known), 1)
            hint = f'did you mean {near[0]!r}?' if near else 'remove it'
        raise ValueError(
            f'{name} must have keys in {sorted(known)}, got {key!r}; {hint}'
        )
