"""Settings that the detector derives for its parts, and checks of others."""

import copy
import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from mmdet.registry import MODELS as MMDET_MODELS
from mmengine.config import ConfigDict
from torch import nn

from ...checks.config import RIGHT_LOCATIONS
from ...utils.host_packages import installed


def as_list(cfg: Mapping | Sequence[Mapping] | None) -> list[Mapping]:
    """Configs of all parts of one kind, given as one, several or none."""
    if cfg is None:
        return []
    return list(cfg) if isinstance(cfg, list | tuple) else [cfg]


def build_with(cfg: Mapping, owner: str, **settings: Any) -> nn.Module:
    """Build a module from its config and the settings its owner derives."""
    for key in settings:
        if key in cfg:
            raise ValueError(
                f'{cfg.get("type")} must not be given {key}, which the '
                f'{owner} sets, got {cfg[key]!r}; remove it'
            )
    return MMDET_MODELS.build({**cfg, **settings})


def check_backbone_host(cfg: Mapping) -> None:
    """Refuse a backbone of mmpretrain where that cannot be imported.

    MMEngine would say that its registry has no such name.
    """
    kind = cfg.get('type')
    if not isinstance(kind, str) or not kind.startswith('mmpretrain.'):
        return
    try:
        import_module('mmpretrain.models')
    except ImportError as error:
        package = 'mmpretrain'
        if 'onedl-mmengine' in installed('mmengine'):
            package = "'mmext[mmpretrain]'"
        raise ImportError(
            'backbone.type must be of a package that can be imported, got '
            f'{kind!r} ({error}); run: pip install {package}'
        ) from error


EVAL_MODULES = ('detr', 'one-stage', 'two-stage')


def check_eval_module(
    eval_module: str,
    eval_index: int,
    *,
    num_roi_heads: int,
    num_bbox_heads: int,
    has_rpn: bool,
    has_test_classes: bool = False,
) -> None:
    """Refuse a head that is not there."""
    if eval_module not in EVAL_MODULES:
        raise ValueError(
            f'eval_module must be one of {EVAL_MODULES}, got {eval_module!r}'
        )
    if eval_module == 'detr':
        return
    if has_test_classes:
        raise ValueError(
            "eval_module must be 'detr' with test_cfg.query_head."
            f'class_embeddings, got {eval_module!r}; remove one of them'
        )
    one_stage = eval_module == 'one-stage'
    count = num_bbox_heads if one_stage else num_roi_heads
    if not 0 <= eval_index < count:
        name = 'bbox_head' if one_stage else 'roi_head'
        raise ValueError(
            f'eval_index must be one of the {count} {name}(s) for '
            f'eval_module={eval_module!r}, got {eval_index}'
        )
    if not one_stage and not has_rpn:
        raise ValueError(
            "rpn_head must be given for eval_module='two-stage', got None"
        )


def share_num_classes(
    num_classes: int | None, heads: Mapping[str, dict | Sequence[dict]]
) -> tuple[int, dict[str, dict | list[dict]]]:
    """Give every head the number of classes; refuse heads that disagree."""
    given = dict(_given(heads))
    if num_classes is None:
        if not given:
            raise ValueError(
                'num_classes must be given, got None; set model.num_classes'
            )
        num_classes = next(iter(given.values()))
    if num_classes < 1:
        raise ValueError(f'num_classes must be at least 1, got {num_classes}')
    wrong = {
        name: value for name, value in given.items() if value != num_classes
    }
    if wrong:
        raise ValueError(
            f'num_classes must be the same in all heads, got {num_classes} '
            f'and {wrong}; set model.num_classes only'
        )
    return num_classes, {
        name: [_filled(item, num_classes) for item in cfg]
        if isinstance(cfg, list | tuple)
        else _filled(cfg, num_classes)
        for name, cfg in heads.items()
    }


def _parts(cfg: dict) -> list[tuple[str, dict]]:
    """The configs inside a head's config that hold a number of classes."""
    inner = [
        (f'.{key}', cfg[key])
        for key in ('bbox_head', 'mask_head', 'mask_iou_head')
        if isinstance(cfg.get(key), Mapping)
    ]
    return inner or [('', cfg)]


def _given(heads: Mapping[str, dict | Sequence[dict]]):
    """Pairs of head and number, where a head gives one."""
    for name, cfg in heads.items():
        items = cfg if isinstance(cfg, list | tuple) else [cfg]
        for i, item in enumerate(items):
            head = f'{name}[{i}]' if len(items) > 1 else name
            for suffix, part in _parts(item):
                if part.get('num_classes') is not None:
                    yield f'{head}{suffix}', part['num_classes']


def _filled(cfg: dict, num_classes: int) -> dict:
    """A copy of a head's config with the number of classes."""
    filled = dict(cfg)
    for suffix, part in _parts(cfg):
        if suffix:
            filled[suffix[1:]] = {**part, 'num_classes': num_classes}
        else:
            filled['num_classes'] = num_classes
    return filled


_NMS_KEYS = {'nms_pre', 'max_per_img', 'nms', 'min_bbox_size', 'score_thr'}
_ANCHOR_KEYS = {'assigner', 'sampler', 'allowed_border', 'pos_weight', 'debug'}

TRAIN_CFG_KEYS: dict[str, set[str]] = {
    'query_head': {'assigner'},
    'rpn_head': _ANCHOR_KEYS,
    'rpn_proposal': _NMS_KEYS,
    'roi_head': {'assigner', 'sampler', 'pos_weight', 'mask_size', 'debug'},
    'bbox_head': _ANCHOR_KEYS,
    'mask_head': {'assigner', 'sampler', 'mask_thr_binary', 'debug'},
}
TEST_CFG_KEYS: dict[str, set[str]] = {
    'query_head': {'max_per_img', 'nms', 'score_thr'},
    'rpn_head': _NMS_KEYS,
    'roi_head': _NMS_KEYS | {'mask_thr_binary'},
    'bbox_head': _NMS_KEYS,
    'mask_head': {'mask_thr_binary'},
}

# There is one of these, so that a list of settings has no meaning.
_SINGLE = {'query_head', 'rpn_head', 'rpn_proposal', 'mask_head'}

# Settings that another kind of head reads.
_OTHER_HEADS = {
    'class_embeddings': 'a query_head of type mmext.CoDINOClassEmbedHead '
    'reads it, in test_cfg',
}


def check_named_cfg(
    cfg: Mapping | None, known: Mapping[str, set[str]], name: str
) -> ConfigDict:
    """Refuse what no head would read."""
    if cfg is None:
        return ConfigDict()
    if not isinstance(cfg, Mapping):
        raise TypeError(
            f'{name} must be a dict keyed by head, got '
            f'{type(cfg).__name__}; docs/co_detr_configs.md lists what the '
            'keys of the public CO-DETR configs are called here'
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
    """Allowed settings, with those that the kind of query head adds."""
    kind = query_head.get('type')
    if isinstance(kind, str):
        kind = MMDET_MODELS.get(kind)
    more = set(getattr(kind, attribute, ()))
    return {**known, 'query_head': known['query_head'] | more}


def per_head(
    settings: Mapping | list | tuple | None, count: int, name: str
) -> list:
    """Settings for each of ``count`` heads of one kind."""
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
        if key in RIGHT_LOCATIONS:
            hint = f'it belongs {RIGHT_LOCATIONS[key]}'
        elif key in _OTHER_HEADS:
            hint = _OTHER_HEADS[key]
        else:
            near = difflib.get_close_matches(str(key), sorted(known), 1)
            hint = f'did you mean {near[0]!r}?' if near else 'remove it'
        raise ValueError(
            f'{name} must have keys in {sorted(known)}, got {key!r}; {hint}'
        )
