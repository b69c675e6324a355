"""Bring the model section of a public CO-DETR config along.

Understood are the CO-DINO configs of the mmdetection port
(``projects/CO-DETR``) and of the original project (Sense-X/Co-DETR, mmdet
2.x). See :func:`translate_codetr_config` for the table.
"""

from collections.abc import Mapping
from typing import Any

from ._codetr_heads import (
    Slots,
    split_slots,
    translate_assigner,
    translate_co_head,
    translate_query_head,
    translate_rpn_head,
)
from ._codetr_swin import translate_backbone
from ._section import Section, agree, component, with_host_prefix

__all__ = ['translate_codetr_config']

_NO_MASKS = 'mmext has no instance segmentation for CO-DETR; remove it'
_FLAG = 'it is a flag'
_REMEDIES = {
    'mask_head': _NO_MASKS,
    'mask_iou_head': _NO_MASKS,
    'mask_roi_extractor': _NO_MASKS,
}


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
    | ``SwinTransformerV1`` | ``mmdet.SwinTransformer`` |
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
    root.expect(
        'type',
        ['CoDETR', 'mmdet.CoDETR'],
        remedy='mmext translates CO-DINO models only',
    )
    root.expect('_scope_', ['mmdet'], default='mmdet', remedy='remove it')
    _check_no_pretrained(root)
    result = {'type': 'mmext.CoDETR', '_scope_': 'mmdet', 'num_classes': None}
    result['with_co_queries'] = root.expect(
        'with_pos_coord', [True, False], default=True, remedy=_FLAG
    )
    result['mask_policy'] = _mask_policy(root)
    result['eval_module'] = root.take('eval_module', 'detr')
    result['eval_index'] = root.take('eval_index', 0)
    result['data_preprocessor'] = _preprocessor(root, data_preprocessor)
    result['backbone'] = translate_backbone(root.take('backbone'))
    neck = root.take('neck', None)
    if neck is not None:
        result['neck'] = component(neck, 'model.neck')
    if root.take('init_cfg', None) is not None:
        raise ValueError(
            'model.init_cfg must be None; give the checkpoint as '
            "the config's load_from instead"
        )
    _translate_heads(root, result)
    root.close(_REMEDIES)
    return result


def _check_no_pretrained(root: Section) -> None:
    pretrained = root.take('pretrained', None)
    items = pretrained
    if not isinstance(pretrained, list | tuple):
        items = [pretrained]
    if any(item is not None for item in items):
        raise ValueError(
            f'model.pretrained must be None, got {pretrained!r}; give the '
            "checkpoint as the backbone's init_cfg=dict(type='Pretrained', "
            'checkpoint=...)'
        )


def _mask_policy(root: Section) -> str:
    root.expect('use_lsj', [True, False], default=True, remedy=_FLAG)
    masked = root.expect(
        'with_attn_mask', [True, False], default=True, remedy=_FLAG
    )
    return 'valid' if masked else 'canvas'


def _preprocessor(root: Section, given: Mapping[str, Any] | None) -> dict:
    cfg = root.take('data_preprocessor', None) or given
    if cfg is None:
        raise ValueError(
            'data_preprocessor must be given for a model section that has '
            "none, got None; pass dict(type='mmdet.DetDataPreprocessor', "
            'mean=..., std=..., bgr_to_rgb=...) with the numbers of the old '
            "pipeline's Normalize"
        )
    return component(cfg, 'model.data_preprocessor')


def _head_list(root: Section, key: str) -> list:
    heads = root.take(key, None)
    if not isinstance(heads, list | tuple):
        heads = [heads]
    return [head for head in heads if head is not None]


def _translate_heads(root: Section, result: dict) -> None:
    """Translate heads, train_cfg and test_cfg into ``result``."""
    roi_heads = _head_list(root, 'roi_head')
    bbox_heads = _head_list(root, 'bbox_head')
    rpn_head = root.take('rpn_head', None)
    counts = {
        'num_roi': len(roi_heads),
        'num_bbox': len(bbox_heads),
        'with_rpn': rpn_head is not None,
    }
    train = split_slots(root.take('train_cfg', None), 'train_cfg', **counts)
    test = split_slots(root.take('test_cfg', None), 'test_cfg', **counts)
    num_classes: dict[str, int] = {}
    result['query_head'] = translate_query_head(
        root.section('query_head'),
        train=train.query_head,
        test=test.query_head,
        num_co_heads=len(roi_heads) + len(bbox_heads),
        with_co_queries=result['with_co_queries'],
        num_classes=num_classes,
    )
    if rpn_head is not None:
        result['rpn_head'] = translate_rpn_head(
            Section(rpn_head, 'model.rpn_head'),
            train=train.rpn_head,
            test=test.rpn_head,
        )
    for key, heads in (('roi_head', roi_heads), ('bbox_head', bbox_heads)):
        if heads:
            result[key] = [
                translate_co_head(
                    Section(head, f'model.{key}[{i}]'),
                    kind=key,
                    train=getattr(train, key)[i],
                    test=getattr(test, key)[i],
                    num_classes=num_classes,
                )
                for i, head in enumerate(heads)
            ]
    result['num_classes'] = agree('num_classes', num_classes)
    # Here, because the detector's module imports this package.
    from mmext.models.utils.named_cfg import TEST_CFG_KEYS, TRAIN_CFG_KEYS

    result['train_cfg'] = _named(train, 'model.train_cfg', TRAIN_CFG_KEYS)
    result['test_cfg'] = _named(test, 'model.test_cfg', TEST_CFG_KEYS)


def _named(slots: Slots, place: str, keys: Mapping[str, set[str]]) -> dict:
    """Settings by name, without those that are not there."""
    from mmext.models.utils.named_cfg import check_named_cfg

    named = {
        'query_head': translate_assigner(slots.query_head),
        'rpn_head': slots.rpn_head,
        'rpn_proposal': slots.rpn_proposal,
        'roi_head': slots.roi_head or None,
        'bbox_head': slots.bbox_head or None,
    }
    named = {
        key: with_host_prefix(value)
        for key, value in named.items()
        if value is not None
    }
    return check_named_cfg(named, keys, place)
