"""Translation of the model section of a public CO-DETR config.

Understood are the CO-DINO configs of the mmdetection port
(``projects/CO-DETR``) and of the original project (Sense-X/Co-DETR, mmdet
2.x). Each dict of such a config has its table of keys here; see
:func:`translate_codetr_config` for the result.
"""

from collections.abc import Mapping
from typing import Any

from .public_section import (
    NO_INIT,
    REQUIRED,
    Key,
    Section,
    agree,
    component,
    keep,
    only,
    read,
    required_type,
    to_plain,
    with_host_prefix,
)
from .public_transformer import ALWAYS, translate_transformer
from .settings import TEST_CFG_KEYS, TRAIN_CFG_KEYS, check_named_cfg

__all__ = ['translate_codetr_config']

# SwinTransformerV1 of the original project. A default that differs from
# mmdet's has to be written out, so all of them are.
_SWIN = (
    only('type', 'SwinTransformerV1'),
    keep('pretrain_img_size', 224),
    keep('patch_size', 4),
    Key('in_chans', 'in_channels', 3),
    Key('embed_dim', 'embed_dims', 96),
    keep('depths', (2, 2, 6, 2)),
    keep('num_heads', (3, 6, 12, 24)),
    keep('window_size', 7),
    keep('mlp_ratio', 4),
    keep('qkv_bias', True),
    keep('qk_scale', None),
    keep('drop_rate', 0.0),
    keep('attn_drop_rate', 0.0),
    keep('drop_path_rate', 0.2),
    Key('ape', 'use_abs_pos_embed', False),
    keep('patch_norm', True),
    keep('out_indices', (0, 1, 2, 3)),
    Key('use_checkpoint', 'with_cp', False),
    only(
        'frozen_stages',
        -1,
        remedy='mmdet counts from another stage and freezes the output norms '
        'too; leave it out and set it in the result',
    ),
    keep('pretrained', None),
    only('init_cfg', None, remedy='give the file as pretrained'),
)


def _backbone(cfg: Any, place: str) -> dict:
    """A backbone of mmdet gets its prefix; the original's Swin is mapped."""
    if not isinstance(cfg, Mapping) or cfg.get('type') != 'SwinTransformerV1':
        return _with_frozen_norms(component(cfg, place))
    swin = {'type': 'mmdet.SwinTransformer', **read(cfg, place, *_SWIN)}
    # mmdet multiplies without rounding and needs a whole number.
    if swin['mlp_ratio'] != int(swin['mlp_ratio']):
        raise ValueError(
            f'{place}.mlp_ratio must be a whole number, got '
            f'{swin["mlp_ratio"]}; mmdet.SwinTransformer has no other'
        )
    swin['mlp_ratio'] = int(swin['mlp_ratio'])
    pretrained = swin.pop('pretrained')
    if pretrained is not None:
        # A checkpoint of Microsoft's, with other names than mmdet's.
        swin['convert_weights'] = True
        swin['init_cfg'] = {'type': 'Pretrained', 'checkpoint': pretrained}
    return swin


def _with_frozen_norms(backbone: dict) -> dict:
    """A backbone whose untrained norms keep no activations."""
    norm = {'type': 'BN', 'requires_grad': False}
    if backbone.get('norm_cfg') == norm:
        norm['type'] = 'mmext.MemoryEfficientBatchNorm'
        backbone['norm_cfg'] = norm
    return backbone


def _noise_scales(cfg: Any, place: str) -> dict | None:
    """The original project's dict of both scales."""
    if cfg is None:
        return None
    return read(
        cfg,
        place,
        Key('label', 'label_noise_scale'),
        Key('box', 'box_noise_scale'),
    )


_QUERY_HEAD = (
    required_type('CoDINOHead', 'mmdet.CoDINOHead'),
    keep('num_classes'),
    Key('num_query', 'num_queries', 900),
    Key('max_pos_coords', 'max_co_queries', 300),
    # The published weights were trained with it; see the public function.
    keep('sync_cls_avg_factor', True),
    *ALWAYS,
    only(
        'with_box_refine',
        True,
        remedy='CO-DINO is defined with it; remove the key',
    ),
    only(
        'use_zero_padding',
        False,
        remedy='mmext pads positives with negatives only',
    ),
    only(
        'lambda_1',
        1,
        1.0,
        remedy='mmext has no extra weight for the positive queries',
    ),
    only('num_reg_fcs', 2),
    only(
        'share_pred_layer',
        False,
        remedy='every decoder layer has branches of its own',
    ),
    NO_INIT,
    # Stored there and never read, whatever it is.
    Key('in_channels', None, None),
    keep('transformer'),
    # A missing encoding has mmdet's temperature, not that of the configs.
    keep(
        'positional_encoding',
        {
            'type': 'SinePositionalEncoding',
            'num_feats': 128,
            'normalize': True,
        },
        read=component,
    ),
    keep('dn_cfg'),
    keep('loss_cls', read=component),
    keep('loss_bbox', read=component),
    keep('loss_iou', read=component),
)


def _own_settings(train: Any, test: Any) -> tuple[Key, ...]:
    """Settings inside a head, which must repeat those of the lists."""
    return tuple(
        only(
            key,
            None,
            listed,
            remedy=f'it must equal the entry of model.{key}, which the public '
            'code uses; keep one of them',
        )
        for key, listed in (('train_cfg', train), ('test_cfg', test))
    )


def _query_head(
    cfg: Any, place: str, own: tuple[Key, ...], **transformer: Any
) -> dict:
    section = Section(cfg, place)
    head = {'type': 'mmext.CoDINOHead', **section.read(*_QUERY_HEAD, *own)}
    num_queries = head['num_queries']
    head['transformer'] = translate_transformer(
        head['transformer'],
        f'{place}.transformer',
        num_queries=num_queries,
        **transformer,
    )
    embed_dims = head['transformer']['embed_dims']
    section.read(
        *(
            only(
                key,
                head['transformer'][key],
                remedy="it repeats the transformer's",
            )
            for key in ('num_feature_levels', 'embed_dims')
        )
    )
    section.close()
    repeated = {
        'num_matching_queries': num_queries,
        'num_queries': num_queries,
        'embed_dims': embed_dims,
        'hidden_dim': embed_dims,
    }
    dn_cfg = read(
        head['dn_cfg'],
        f'{place}.dn_cfg',
        only('type', 'CdnQueryGenerator', 'mmdet.CdnQueryGenerator'),
        keep('num_classes', None),
        *(
            only(key, value, remedy='the head fills it in; remove the key')
            for key, value in repeated.items()
        ),
        keep('label_noise_scale', 0.5),
        keep('box_noise_scale', 1.0),
        keep('noise_scale', None, read=_noise_scales),
        keep('group_cfg'),
    )
    dn_cfg.update(dn_cfg.pop('noise_scale') or {})
    if dn_cfg['num_classes'] is None:
        del dn_cfg['num_classes']
    head['dn_cfg'] = dn_cfg
    return head


def _rpn_head(cfg: Any, place: str, own: tuple[Key, ...]) -> dict:
    section = Section(cfg, place)
    section.read(*own)
    return component(section.rest(), place)


def _roi_head(cfg: Any, place: str, own: tuple[Key, ...]) -> dict:
    head = read(
        cfg,
        place,
        required_type('CoStandardRoIHead', 'mmdet.CoStandardRoIHead'),
        *own,
        keep('bbox_roi_extractor', read=component),
        keep('bbox_head', read=component),
        keep('mask_roi_extractor', None, read=_optional),
        keep('mask_head', None, read=_optional),
        NO_INIT,
    )
    head = {key: value for key, value in head.items() if value is not None}
    # 80 is what mmdet's heads take for a missing number.
    for name in filter(head.get, ('bbox_head', 'mask_head')):
        head[name].setdefault('num_classes', 80)
    return {'type': 'mmext.CoStandardRoIHead', **head}


def _bbox_head(cfg: Any, place: str, own: tuple[Key, ...]) -> dict:
    section = Section(cfg, place)
    keys = (
        required_type('CoATSSHead', 'mmdet.CoATSSHead'),
        *own,
        keep('num_classes'),
    )
    head = {'type': 'mmext.CoATSSHead', **section.read(*keys)}
    return {**head, **with_host_prefix(section.rest())}


def _split_by_head(
    cfg: Any, place: str, *, num_roi: int, num_bbox: int, with_rpn: bool
) -> dict:
    """Settings by head, from a positional ``train_cfg`` or ``test_cfg``.

    Entry 0 is the query head's; then one entry for each R-CNN head follows,
    the first of which holds the RPN's too, and one for each ATSS head.
    """
    if cfg is None:
        cfg = []
    if not isinstance(cfg, list | tuple):
        raise TypeError(
            f'{place} must be a list, as in the public code, got {cfg!r}'
        )
    if with_rpn and num_bbox and not num_roi and cfg:
        raise ValueError(
            f'{place} must have a slot of its own for the RPN, got an '
            'rpn_head without a roi_head, which the public code cannot '
            'address either; add a roi_head or remove the rpn_head'
        )
    first_bbox = 1 + max(num_roi, int(with_rpn and not num_bbox))
    needed = first_bbox + num_bbox
    entries = list(cfg)
    if any(entry is not None for entry in entries[needed:]):
        raise ValueError(
            f'{place} must have {needed} entries for the heads of this '
            f'model, got {len(entries)}; remove those that nothing reads'
        )
    entries += [None] * (needed - len(entries))
    settings: dict[str, Any] = {'query_head': entries[0]}
    roi_heads = []
    for index, entry in enumerate(entries[1:first_bbox], 1):
        section = Section(entry or {}, f'{place}[{index}]')
        if index == 1 and with_rpn:
            settings |= section.read(
                Key('rpn', 'rpn_head', None), keep('rpn_proposal', None)
            )
        if index <= num_roi:
            roi_heads.append(section.read(keep('rcnn', None))['rcnn'])
        section.close()
    settings['roi_head'] = roi_heads
    settings['bbox_head'] = entries[first_bbox:needed]
    return to_plain(settings)


def _named_settings(
    settings: dict, place: str, known: Mapping[str, set[str]]
) -> dict:
    """Settings by head as :class:`mmext.models.CoDETR` takes them."""
    query_head = settings['query_head']
    if query_head is not None and 'assigner' in query_head:
        assigner = _assigner(query_head['assigner'], f'{place}[0].assigner')
        query_head = {**query_head, 'assigner': assigner}
    named = {**settings, 'query_head': query_head}
    for kind in ('roi_head', 'bbox_head'):
        named[kind] = named[kind] or None
    named = {
        key: with_host_prefix(value)
        for key, value in named.items()
        if value is not None
    }
    return check_named_cfg(named, known, place)


def _assigner(cfg: Any, place: str) -> Any:
    """Hungarian costs of mmdet 2.x as the list of mmdet 3.x."""
    old = ('cls_cost', 'reg_cost', 'iou_cost')
    if not any(key in Section(cfg, place).rest() for key in old):
        return cfg
    assigner = read(cfg, place, keep('type'), *map(keep, old))
    costs = [assigner.pop(key) for key in old]
    return {**assigner, 'match_costs': costs}


def _head_list(heads: Any, _place: str) -> list:
    """Heads of one kind, given as one, as several or as none."""
    heads = heads if isinstance(heads, list | tuple) else [heads]
    return [head for head in heads if head is not None]


def _optional(cfg: Any, place: str) -> dict | None:
    return None if cfg is None else component(cfg, place)


def _no_pretrained(value: Any, place: str) -> None:
    items = value if isinstance(value, list | tuple) else [value]
    if any(item is not None for item in items):
        raise ValueError(
            f'{place} must be None, got {value!r}; give the '
            "checkpoint as the backbone's init_cfg=dict(type='Pretrained', "
            'checkpoint=...)'
        )


_FLAGS = {'allowed': (True, False), 'remedy': 'it is a flag'}
_MODEL = (
    only(
        'type',
        'CoDETR',
        'mmdet.CoDETR',
        default=REQUIRED,
        remedy='mmext translates CO-DINO models only',
    ),
    only('_scope_', 'mmdet', remedy='remove it'),
    Key('pretrained', None, None, read=_no_pretrained),
    Key('with_pos_coord', 'with_co_queries', True, **_FLAGS),
    Key('use_lsj', None, True, **_FLAGS),
    Key('with_attn_mask', 'mask_policy', True, **_FLAGS),
    keep('eval_module', 'detr'),
    keep('eval_index', 0),
    keep('data_preprocessor', None),
    keep('backbone', read=_backbone),
    keep('neck', None, read=_optional),
    only(
        'init_cfg',
        None,
        remedy="give the checkpoint as the config's load_from instead",
    ),
    keep('query_head'),
    keep('rpn_head', None),
    keep('roi_head', None, read=_head_list),
    keep('bbox_head', None, read=_head_list),
    keep('train_cfg', None),
    keep('test_cfg', None),
)
_NO_MASKS = (
    "mmext has mask heads of mmdet only, as roi_head's mask_head; remove it "
    'for a model that detects boxes'
)
_REMEDIES = dict.fromkeys(
    ('mask_head', 'mask_iou_head', 'mask_roi_extractor'), _NO_MASKS
)


def translate_codetr_config(
    model_cfg: Mapping[str, Any],
    *,
    data_preprocessor: Mapping[str, Any] | None = None,
) -> dict:
    """Translate the ``model`` section of a public CO-DINO config.

    Nothing is dropped in silence: a key is translated as in this table, or it
    raises. ``[i]`` counts the heads of a kind, R is the number of heads in
    ``roi_head``, and N that in ``roi_head`` and ``bbox_head`` together.

    | there | here |
    |---|---|
    | ``type='CoDETR'`` | ``type='mmext.CoDETR', _scope_='mmdet'`` |
    | mmdet's types, at any depth | the same with ``mmdet.`` |
    | ``use_lsj``, either value | ``mask_policy='valid'`` (see Note) |
    | ``with_attn_mask`` True, False | ``mask_policy`` 'valid', 'canvas' |
    | ``with_pos_coord`` | ``with_co_queries``; the transformer's must agree |
    | ``num_classes`` of every head and of ``dn_cfg`` | must agree; \
``num_classes``, once |
    | ``train_cfg[0]``, ``test_cfg[0]`` | ``.query_head`` |
    | ``train_cfg[1].rpn``, ``.rpn_proposal`` | ``.rpn_head``, \
``.rpn_proposal`` |
    | ``train_cfg[1 + i].rcnn`` | ``.roi_head[i]`` |
    | ``train_cfg[1 + R + i]`` | ``.bbox_head[i]`` |
    | ``train_cfg``, ``test_cfg`` inside a head | must agree with the list |
    | ``assigner`` with ``cls_cost, reg_cost, iou_cost`` | ``match_costs`` |
    | ``pretrained`` of the model, None or a list of it | left out |
    | ``query_head.num_query`` | ``num_queries`` |
    | ``query_head.max_pos_coords`` | ``max_co_queries`` |
    | ``query_head.sync_cls_avg_factor``, missing | True (see Note) |
    | ``query_head.in_channels`` | left out: nothing reads it there |
    | ``as_two_stage, with_box_refine, mixed_selection`` | must be True |
    | ``use_zero_padding``; ``lambda_1``; ``num_reg_fcs`` | must be False; \
1; 2 |
    | ``dn_cfg.noise_scale`` of label and box | ``label_noise_scale``, \
``box_noise_scale`` |
    | ``dn_cfg.num_matching_queries, embed_dims`` and older names | must \
repeat the head's |
    | ``transformer.two_stage_num_proposals``, ``num_co_heads`` | must be \
``num_query``; N |
    | ``encoder.with_cp``, a number of layers, -1 for none | ``with_cp``, 0 \
for none |
    | ``transformerlayers.attn_cfgs``, ``ffn_cfgs`` and older keys | \
``num_heads, num_points, feedforward_channels, dropout``, which must be \
expressible |
    | ``roi_head[i].mask_head`` and ``mask_roi_extractor`` | the same |
    | ``mask_head``, ``mask_iou_head``, ``mask_roi_extractor`` of the model | \
refused: mmdet has no such head |
    | ``SwinTransformerV1`` | ``mmdet.SwinTransformer`` |
    | ``BN`` of a backbone, ``requires_grad=False`` | \
:class:`mmext.models.MemoryEfficientBatchNorm` |
    | loss weights, whatever they were multiplied with | the same numbers |

    Args:
        model_cfg: The public section, a plain dict or a ``ConfigDict``. Not
            edited.
        data_preprocessor: Used if ``model_cfg`` has none: mmdet 2.x kept the
            normalisation in the pipeline.

    Returns:
        Config of :class:`mmext.models.CoDETR`, plain dicts throughout, sharing
        nothing with the argument.

    Raises:
        TypeError: If a section is not a dict.
        ValueError: If a key or a value cannot be translated, or places that
            repeat a number disagree. The message names key, place and remedy.

    Note:
        ``use_lsj`` does nothing in the port: the images' own shapes are used
        whatever it says, and with ``Pad`` in the pipeline that shape is the
        canvas. ``'valid'`` therefore computes what the port computes. To have
        what the flag promises also without ``Pad``, set
        ``mask_policy='canvas'`` in the result. The original's
        ``with_attn_mask`` did work and is followed.

        The port lost ``sync_cls_avg_factor=True``, with which the published
        weights were trained, so a missing key gives True. It has no effect on
        evaluation or on one process.

    Source:
        Config schema of the mmdetection port of CO-DETR and of
        Sense-X/Co-DETR.
    """
    root = Section(model_cfg, 'model')
    model = root.read(*_MODEL)
    root.close(_REMEDIES)
    result = {'type': 'mmext.CoDETR', '_scope_': 'mmdet', 'num_classes': None}
    result |= model
    result['mask_policy'] = 'valid' if model['mask_policy'] else 'canvas'
    preprocessor = model['data_preprocessor'] or data_preprocessor
    if preprocessor is None:
        raise ValueError(
            'data_preprocessor must be given for a model section that has '
            "none, got None; pass dict(type='mmdet.DetDataPreprocessor', "
            'mean=..., std=..., bgr_to_rgb=...) with the numbers of the old '
            "pipeline's Normalize"
        )
    result['data_preprocessor'] = component(
        preprocessor, 'model.data_preprocessor'
    )
    _translate_heads(result)
    for key in ('neck', 'rpn_head', 'roi_head', 'bbox_head'):
        if not result[key]:
            del result[key]
    return result


def _translate_heads(model: dict) -> None:
    """Translate heads and their settings in place; fill ``num_classes``."""
    roi_heads, bbox_heads = model['roi_head'], model['bbox_head']
    counts = {
        'num_roi': len(roi_heads),
        'num_bbox': len(bbox_heads),
        'with_rpn': model['rpn_head'] is not None,
    }
    train = _split_by_head(model['train_cfg'], 'model.train_cfg', **counts)
    test = _split_by_head(model['test_cfg'], 'model.test_cfg', **counts)
    model['query_head'] = _query_head(
        model['query_head'],
        'model.query_head',
        _own_settings(train['query_head'], test['query_head']),
        num_co_heads=len(roi_heads) + len(bbox_heads),
        with_co_queries=model['with_co_queries'],
    )
    if model['rpn_head'] is not None:
        own = _own_settings(train['rpn_head'], test['rpn_head'])
        model['rpn_head'] = _rpn_head(model['rpn_head'], 'model.rpn_head', own)
    for kind, translate in (
        ('roi_head', _roi_head),
        ('bbox_head', _bbox_head),
    ):
        model[kind] = [
            translate(head, f'model.{kind}[{i}]', _own_settings(*own))
            for i, (head, *own) in enumerate(
                zip(model[kind], train[kind], test[kind])
            )
        ]
    model['num_classes'] = _take_num_classes(model)
    model['train_cfg'] = _named_settings(
        train, 'model.train_cfg', TRAIN_CFG_KEYS
    )
    model['test_cfg'] = _named_settings(test, 'model.test_cfg', TEST_CFG_KEYS)


def _take_num_classes(model: dict) -> int:
    """Remove the number of classes from all heads, which must agree."""
    parts = {
        'query_head': model['query_head'],
        'query_head.dn_cfg': model['query_head']['dn_cfg'],
    }
    for i, head in enumerate(model['roi_head']):
        for name in filter(head.get, ('bbox_head', 'mask_head')):
            parts[f'roi_head[{i}].{name}'] = head[name]
    for i, head in enumerate(model['bbox_head']):
        parts[f'bbox_head[{i}]'] = head
    numbers = {
        f'model.{place}.num_classes': part.pop('num_classes')
        for place, part in parts.items()
        if 'num_classes' in part
    }
    return agree('num_classes', numbers)
