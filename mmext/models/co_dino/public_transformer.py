"""Translation of the public transformer config, layer lists and all.

The public code nests mmcv's generic transformer layers; ours has one number
for each property. A layer that those numbers cannot express is refused. The
defaults are mmcv's.
"""

from typing import Any

from .public_section import (
    ABSENT,
    NO_INIT,
    REQUIRED,
    Key,
    Section,
    agree,
    keep,
    only,
    read,
    required_type,
)

__all__ = ['ALWAYS', 'translate_transformer']

ALWAYS = tuple(
    only(key, True, remedy='CO-DINO is defined with it; remove the key')
    for key in ('mixed_selection', 'as_two_stage')
)
_ENCODER_ORDER = ('self_attn', 'norm', 'ffn', 'norm')
_DECODER_ORDER = ('self_attn', 'norm', 'cross_attn', 'norm', 'ffn', 'norm')
_TOKENS_FIRST = only(
    'batch_first',
    False,
    remedy='the public transformer passes tokens first; remove the key',
)
_RELU = only('act_cfg', {'type': 'ReLU', 'inplace': True}, {'type': 'ReLU'})
_ENCODER = (
    required_type('DetrTransformerEncoder', 'mmdet.DetrTransformerEncoder'),
    only(
        'post_norm_cfg',
        None,
        {'type': 'LN'},
        remedy='it is not even built with this operation_order; remove it',
    ),
    keep('num_layers'),
    keep('transformerlayers'),
    NO_INIT,
    keep('with_cp', -1),
)
_DECODER = (
    required_type('DinoTransformerDecoder', 'mmdet.DinoTransformerDecoder'),
    only(
        'return_intermediate',
        True,
        default=REQUIRED,
        remedy='every decoder layer has a loss',
    ),
    keep('num_layers'),
    keep('transformerlayers'),
    NO_INIT,
)
_LAYER = (
    only(
        'type',
        *(
            f'{scope}{name}'
            for scope in ('', 'mmdet.', 'mmcv.')
            for name in ('BaseTransformerLayer', 'DetrTransformerDecoderLayer')
        ),
        default=REQUIRED,
    ),
    keep('attn_cfgs'),
    keep('ffn_cfgs', None),
    # Older keys, which override those of ffn_cfgs.
    keep('feedforward_channels', ABSENT),
    Key('ffn_dropout', 'ffn_drop', ABSENT),
    Key('ffn_num_fcs', 'num_fcs', ABSENT),
    _RELU,
    _TOKENS_FIRST,
    only('norm_cfg', {'type': 'LN'}),
    NO_INIT,
)
_FFN = (
    only('type', 'FFN'),
    keep('embed_dims', ABSENT),
    keep('feedforward_channels', 1024),
    Key('ffn_drop', 'dropout', 0.0),
    only('num_fcs', 2),
    only('add_identity', True),
    only('dropout_layer', None),
    _RELU,
)
_DEFORMABLE_ATTENTION = (
    required_type('MultiScaleDeformableAttention'),
    keep('embed_dims', 256),
    keep('num_heads', 8),
    keep('num_levels', 4),
    keep('num_points', 4),
    keep('dropout', 0.1),
    # How many images one kernel launch takes: it changes no number.
    Key('im2col_step', None, None),
    only('norm_cfg', None),
    only('value_proj_ratio', 1.0, 1),
    _TOKENS_FIRST,
)


def _drop_prob(cfg: Any, place: str) -> float:
    """Rate of a ``dropout_layer``; None is no dropout, and 0.5 mmcv's own."""
    if not cfg:
        return 0.0
    keys = (only('type', 'Dropout'), keep('drop_prob', 0.5))
    return read(cfg, place, *keys)['drop_prob']


_SELF_ATTENTION = (
    required_type('MultiheadAttention'),
    keep('embed_dims'),
    keep('num_heads'),
    # The old single rate, or the new three, of which two must agree.
    keep('dropout', None),
    keep('attn_drop', 0.0),
    only(
        'proj_drop',
        0.0,
        0,
        remedy='mmext drops the output once, with the rate of dropout_layer',
    ),
    Key('dropout_layer', 'output_drop', None, read=_drop_prob),
    _TOKENS_FIRST,
)


def _self_attention(cfg: Any, place: str) -> dict:
    attention = read(cfg, place, *_SELF_ATTENTION)
    weights = attention.pop('attn_drop')
    output = attention.pop('output_drop')
    if attention['dropout'] is None:
        attention['dropout'] = agree(
            f'{place} dropout',
            {
                f'{place}.attn_drop': weights,
                f'{place}.dropout_layer.drop_prob': output,
            },
        )
    return attention


def _encoder(cfg: Any, place: str) -> dict:
    encoder = read(cfg, place, *_ENCODER)
    layer = _layer(encoder, place, _ENCODER_ORDER)
    count, with_cp = encoder['num_layers'], encoder['with_cp']
    # Booleans too count as numbers of layers there: True is one layer.
    if not isinstance(with_cp, int) or with_cp > count:
        raise ValueError(
            f'{place}.with_cp must be a number of layers up to {count}, got '
            f'{with_cp!r}; it counts the checkpointed layers'
        )
    return {'num_layers': count, **layer, 'with_cp': max(int(with_cp), 0)}


def _decoder(cfg: Any, place: str) -> dict:
    decoder = read(cfg, place, *_DECODER)
    layer = _layer(decoder, place, _DECODER_ORDER)
    return {'num_layers': decoder['num_layers'], **layer, 'with_cp': False}


def _layer(part: dict, place: str, order: tuple[str, ...]) -> dict:
    """The numbers that all layers, attentions and FFNs of a part share."""
    place = f'{place}.transformerlayers'
    layers = part['transformerlayers']
    if isinstance(layers, list | tuple):
        if len(layers) != part['num_layers'] or not layers:
            raise ValueError(
                f'{place} must hold num_layers={part["num_layers"]} dicts, '
                f'got {len(layers)}; or write one dict for all layers'
            )
        layers = agree(
            place, {f'{place}[{i}]': layer for i, layer in enumerate(layers)}
        )
    order_key = only('operation_order', order, list(order), default=REQUIRED)
    layer = read(layers, place, *_LAYER, order_key)
    parts = _attentions(layer.pop('attn_cfgs'), f'{place}.attn_cfgs', order)
    ffn = layer.pop('ffn_cfgs')
    ffn = {} if ffn is None else Section(ffn, f'{place}.ffn_cfgs').rest()
    parts[f'{place}.ffn_cfgs'] = read(
        {**ffn, **layer}, f'{place}.ffn_cfgs', *_FFN
    )
    return {
        key: agree(
            f'{place} {key} (a missing key means the mmcv default)',
            {
                f'{name}.{key}': numbers[key]
                for name, numbers in parts.items()
                if key in numbers
            },
        )
        for key in (
            *('embed_dims', 'num_heads', 'num_levels', 'num_points'),
            *('feedforward_channels', 'dropout'),
        )
    }


def _attentions(cfgs: Any, place: str, order: tuple[str, ...]) -> dict:
    """Settings of a layer's attentions by place, in the order they run."""
    count = sum(name.endswith('attn') for name in order)
    if not isinstance(cfgs, list | tuple):
        cfgs = [cfgs] * count
    if len(cfgs) != count:
        raise ValueError(
            f'{place} must hold {count} dicts for operation_order={order}, '
            f'got {len(cfgs)}'
        )
    places = [f'{place}[{i}]' for i in range(count)]
    # Only the decoder, which has two, attends among its queries.
    attentions = {
        name: _self_attention(cfg, name)
        for name, cfg in zip(places[:-1], cfgs[:-1])
    }
    attentions[places[-1]] = read(cfgs[-1], places[-1], *_DEFORMABLE_ATTENTION)
    return attentions


def translate_transformer(
    cfg: Any,
    place: str,
    *,
    num_queries: int,
    num_co_heads: int,
    with_co_queries: bool,
) -> dict:
    """Translate ``query_head.transformer``, which repeats three numbers."""
    result = {'type': 'mmext.CoDINOTransformer', 'embed_dims': None}
    result |= read(
        cfg,
        place,
        required_type('CoDinoTransformer', 'mmdet.CoDinoTransformer'),
        NO_INIT,
        *ALWAYS,
        only(
            'two_stage_num_proposals',
            num_queries,
            remedy="it repeats the head's num_query",
        ),
        only(
            'num_co_heads',
            num_co_heads,
            default=1,
            remedy='it is the number of heads in roi_head and bbox_head, and '
            'a missing key means 1',
        ),
        only(
            'with_pos_coord',
            with_co_queries,
            default=True,
            remedy="it repeats the detector's, and a missing key means True",
        ),
        keep('num_feature_levels', 4),
        keep('with_coord_feat', True),
        keep('encoder', read=_encoder),
        keep('decoder', read=_decoder),
    )
    parts = ('encoder', 'decoder')
    levels = f'{place}.num_feature_levels'
    agree(
        levels,
        {levels: result['num_feature_levels']}
        | {
            f'{place}.{p} num_levels': result[p].pop('num_levels')
            for p in parts
        },
    )
    result['embed_dims'] = agree(
        f'{place} embed_dims',
        {
            f'{place}.{p} embed_dims': result[p].pop('embed_dims')
            for p in parts
        },
    )
    return result
