"""Translation of the public transformer config, layer lists and all.

The public code nests mmcv's generic transformer layers; ours has one number
for each property. A layer that those numbers cannot express is refused. The
defaults written here are mmcv's, because that is what a missing key meant.
"""

from typing import Any

from ._section import Section, agree

__all__ = ['translate_transformer']

_ENCODER_ORDER = ('self_attn', 'norm', 'ffn', 'norm')
_DECODER_ORDER = ('self_attn', 'norm', 'cross_attn', 'norm', 'ffn', 'norm')
_ONLY = 'mmext has no other kind'


def translate_transformer(
    section: Section,
    *,
    num_queries: int,
    num_co_heads: int,
    with_co_queries: bool,
) -> dict:
    """Translate ``query_head.transformer``.

    Args:
        section: The public ``CoDinoTransformer`` dict; all of it is taken.
        num_queries: The head's number of queries, which a
            ``two_stage_num_proposals`` has to repeat.
        num_co_heads: Number of heads in ``roi_head`` and ``bbox_head``.
        with_co_queries: The detector's ``with_pos_coord``.

    Returns:
        Config of :class:`mmext.models.layers.CoDINOTransformer`.

    Raises:
        TypeError: If a nested config is not a dict.
        ValueError: If a key is unknown, or a value has no counterpart, or
            places that repeat a number disagree.
    """
    place = section.place
    _check_constants(
        section,
        {
            'two_stage_num_proposals': num_queries,
            'num_co_heads': num_co_heads,
            'with_pos_coord': with_co_queries,
        },
    )
    num_levels = section.take('num_feature_levels', 4)
    with_coord_feat = section.take('with_coord_feat', True)
    encoder = _encoder(section.section('encoder'))
    decoder = _decoder(section.section('decoder'))
    section.close()
    agree(
        f'{place}.num_feature_levels',
        {
            f'{place}.num_feature_levels': num_levels,
            f'{place}.encoder num_levels': encoder.pop('num_levels'),
            f'{place}.decoder num_levels': decoder.pop('num_levels'),
        },
    )
    embed_dims = agree(
        f'{place} embed_dims',
        {
            f'{place}.encoder embed_dims': encoder.pop('embed_dims'),
            f'{place}.decoder embed_dims': decoder.pop('embed_dims'),
        },
    )
    return {
        'type': 'mmext.CoDINOTransformer',
        'embed_dims': embed_dims,
        'num_feature_levels': num_levels,
        'with_coord_feat': with_coord_feat,
        'encoder': encoder,
        'decoder': decoder,
    }


def _check_constants(section: Section, repeated: dict[str, Any]) -> None:
    """Take what has one meaning here, or repeats what stands elsewhere."""
    section.expect(
        'type', ['CoDinoTransformer', 'mmdet.CoDinoTransformer'], remedy=_ONLY
    )
    section.expect('init_cfg', [None], default=None, remedy=_ONLY)
    for flag in ('mixed_selection', 'as_two_stage'):
        section.expect(
            flag,
            [True],
            default=True,
            remedy='CO-DINO is defined with it; remove the key',
        )
    for key, default, remedy in (
        (
            'two_stage_num_proposals',
            repeated['two_stage_num_proposals'],
            "it repeats the head's num_query",
        ),
        (
            'num_co_heads',
            1,
            'it is the number of heads in roi_head and bbox_head, and a '
            'missing key means 1',
        ),
        (
            'with_pos_coord',
            True,
            "it repeats the detector's, and a missing key means True",
        ),
    ):
        section.expect(key, [repeated[key]], default=default, remedy=remedy)


def _encoder(section: Section) -> dict:
    names = ['DetrTransformerEncoder', 'mmdet.DetrTransformerEncoder']
    section.expect('type', names, remedy=_ONLY)
    section.expect(
        'post_norm_cfg',
        [{'type': 'LN'}, None],
        default=None,
        remedy='it is not even built with this operation_order; remove it',
    )
    num_layers, layer = _layers(section)
    with_cp = section.take('with_cp', -1)
    # Booleans too count as numbers of layers there: True is one layer.
    if not isinstance(with_cp, int) or with_cp > num_layers:
        raise ValueError(
            f'{section.place}.with_cp must be a number of layers up to '
            f'{num_layers}, got {with_cp!r}; it counts the checkpointed '
            'layers'
        )
    section.close()
    (attention,) = _attentions(layer, _ENCODER_ORDER)
    settings = {'num_layers': num_layers}
    settings.update(_finish_layer(layer, [attention]))
    return {**settings, 'with_cp': max(int(with_cp), 0)}


def _decoder(section: Section) -> dict:
    names = ['DinoTransformerDecoder', 'mmdet.DinoTransformerDecoder']
    section.expect('type', names, remedy=_ONLY)
    section.expect(
        'return_intermediate', [True], remedy='every decoder layer has a loss'
    )
    num_layers, layer = _layers(section)
    section.close()
    settings = {'num_layers': num_layers}
    settings.update(_finish_layer(layer, _attentions(layer, _DECODER_ORDER)))
    return {**settings, 'with_cp': False}


def _layers(section: Section) -> tuple[int, Section]:
    """Number of layers, and the one config that all of them share."""
    num_layers = section.take('num_layers')
    place = f'{section.place}.transformerlayers'
    layers = section.take('transformerlayers')
    section.expect('init_cfg', [None], default=None, remedy=_ONLY)
    if isinstance(layers, list | tuple):
        if len(layers) != num_layers or not layers:
            raise ValueError(
                f'{place} must hold num_layers={num_layers} dicts, got '
                f'{len(layers)}; or write one dict for all layers'
            )
        layers = agree(
            place, {f'{place}[{i}]': each for i, each in enumerate(layers)}
        )
    return num_layers, Section(layers, place)


def _attentions(layer: Section, order: tuple[str, ...]) -> list[dict]:
    """Settings of a layer's attentions, in the order in which they run."""
    layer.expect(
        'type',
        [
            f'{scope}{name}'
            for scope in ('', 'mmdet.', 'mmcv.')
            for name in ('BaseTransformerLayer', 'DetrTransformerDecoderLayer')
        ],
        remedy=_ONLY,
    )
    layer.expect('operation_order', [order, list(order)], remedy=_ONLY)
    num_attentions = sum(name.endswith('attn') for name in order)
    cfgs = layer.take('attn_cfgs')
    if not isinstance(cfgs, list | tuple):
        cfgs = [cfgs] * num_attentions
    if len(cfgs) != num_attentions:
        raise ValueError(
            f'{layer.place}.attn_cfgs must hold {num_attentions} dicts for '
            f'operation_order={order}, got {len(cfgs)}'
        )
    sections = [
        Section(cfg, f'{layer.place}.attn_cfgs[{i}]')
        for i, cfg in enumerate(cfgs)
    ]
    # Only the decoder, which has two, attends among its queries.
    plain = [_self_attention(each) for each in sections[:-1]]
    return [*plain, _deformable_attention(sections[-1])]


def _self_attention(section: Section) -> dict:
    section.expect('type', ['MultiheadAttention'], remedy=_ONLY)
    settings = {
        'embed_dims': section.take('embed_dims'),
        'num_heads': section.take('num_heads'),
    }
    _batch_second(section)
    settings['dropout'] = _self_attention_dropout(section)
    section.close()
    return settings


def _self_attention_dropout(section: Section) -> float:
    """The old single ``dropout``, or the new three, which must fit it."""
    old = section.take('dropout', None)
    weights = section.take('attn_drop', 0.0)
    section.expect(
        'proj_drop',
        [0, 0.0],
        default=0.0,
        remedy='mmext drops the output once, with the rate of dropout_layer',
    )
    layer = section.take(
        'dropout_layer', {'type': 'Dropout', 'drop_prob': 0.0}
    )
    if old is not None:
        return old
    output = Section(
        layer or {'type': 'Dropout'}, f'{section.place}.dropout_layer'
    )
    output.expect('type', ['Dropout'], remedy=_ONLY)
    rate = output.take('drop_prob', 0.0 if not layer else 0.5)
    output.close()
    return agree(
        f'{section.place} dropout',
        {
            f'{section.place}.attn_drop': weights,
            f'{section.place}.dropout_layer.drop_prob': rate,
        },
    )


def _deformable_attention(section: Section) -> dict:
    section.expect('type', ['MultiScaleDeformableAttention'], remedy=_ONLY)
    settings = {
        'embed_dims': section.take('embed_dims', 256),
        'num_heads': section.take('num_heads', 8),
        'num_levels': section.take('num_levels', 4),
        'num_points': section.take('num_points', 4),
        'dropout': section.take('dropout', 0.1),
    }
    # How many images one kernel launch takes: it changes no number.
    section.take('im2col_step', None)
    section.expect('norm_cfg', [None], default=None, remedy=_ONLY)
    section.expect('value_proj_ratio', [1, 1.0], default=1.0, remedy=_ONLY)
    _batch_second(section)
    section.close()
    return settings


def _batch_second(section: Section) -> None:
    section.expect(
        'batch_first',
        [False],
        default=False,
        remedy='the public transformer passes tokens first; remove the key',
    )


def _finish_layer(layer: Section, attentions: list[dict]) -> dict:
    """Merge a layer's attentions and its FFN into one set of settings."""
    place = layer.place
    ffn = _ffn(layer)
    _batch_second(layer)
    layer.expect(
        'norm_cfg', [{'type': 'LN'}], default={'type': 'LN'}, remedy=_ONLY
    )
    layer.expect('init_cfg', [None], default=None, remedy=_ONLY)
    layer.close()
    merged: dict[str, Any] = {}
    parts = {f'attn_cfgs[{i}]': each for i, each in enumerate(attentions)}
    parts['ffn_cfgs'] = ffn
    for key in (
        'embed_dims',
        'num_heads',
        'num_levels',
        'num_points',
        'feedforward_channels',
        'dropout',
    ):
        values = {
            f'{place}.{name}.{key}': part[key]
            for name, part in parts.items()
            if key in part
        }
        remedy = f'{place} {key} (a missing key means the mmcv default)'
        merged[key] = agree(remedy, values)
    return merged


def _ffn(layer: Section) -> dict:
    """Settings of a layer's FFN, from ``ffn_cfgs`` and the older keys."""
    cfg = layer.take('ffn_cfgs', None)
    section = Section(
        {
            'type': 'FFN',
            'feedforward_channels': 1024,
            **(cfg if isinstance(cfg, dict) else {}),
        },
        f'{layer.place}.ffn_cfgs',
    )
    if cfg is not None and not isinstance(cfg, dict):
        raise TypeError(f'{section.place} must be a dict, got {cfg!r}')
    relu = [{'type': 'ReLU', 'inplace': True}, {'type': 'ReLU'}]
    section.expect('type', ['FFN'], remedy=_ONLY)
    section.expect('add_identity', [True], default=True, remedy=_ONLY)
    section.expect('dropout_layer', [None], default=None, remedy=_ONLY)
    for holder in (section, layer):
        holder.expect('act_cfg', relu, default=relu[0], remedy=_ONLY)
    settings = {}
    # mmcv lets the older keys of the layer override ffn_cfgs.
    for key, old, default in (
        ('feedforward_channels', 'feedforward_channels', None),
        ('ffn_drop', 'ffn_dropout', 0.0),
        ('num_fcs', 'ffn_num_fcs', 2),
    ):
        inner = section.take(key, default)
        settings[key] = layer.take(old, inner)
    if settings.pop('num_fcs') != 2:
        raise ValueError(f'{section.place}.num_fcs must be 2; {_ONLY}')
    settings['dropout'] = settings.pop('ffn_drop')
    embed_dims = section.take('embed_dims', None)
    if embed_dims is not None:
        settings['embed_dims'] = embed_dims
    section.close()
    return settings
