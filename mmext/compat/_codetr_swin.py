"""Translation of a public CO-DETR config's backbone."""

from typing import Any

from ._section import Section, component

__all__ = ['translate_backbone']

# Key there, key here, default there; where that differs from mmdet's default
# it has to be written out.
_SWIN_KEYS = (
    ('pretrain_img_size', 'pretrain_img_size', 224),
    ('patch_size', 'patch_size', 4),
    ('in_chans', 'in_channels', 3),
    ('embed_dim', 'embed_dims', 96),
    ('depths', 'depths', (2, 2, 6, 2)),
    ('num_heads', 'num_heads', (3, 6, 12, 24)),
    ('window_size', 'window_size', 7),
    ('mlp_ratio', 'mlp_ratio', 4),
    ('qkv_bias', 'qkv_bias', True),
    ('qk_scale', 'qk_scale', None),
    ('drop_rate', 'drop_rate', 0.0),
    ('attn_drop_rate', 'attn_drop_rate', 0.0),
    ('drop_path_rate', 'drop_path_rate', 0.2),
    ('ape', 'use_abs_pos_embed', False),
    ('patch_norm', 'patch_norm', True),
    ('out_indices', 'out_indices', (0, 1, 2, 3)),
    ('use_checkpoint', 'with_cp', False),
)


def translate_backbone(cfg: Any) -> dict:
    """Translate ``model.backbone``.

    A backbone of mmdet only gets its prefix. The original project's
    ``SwinTransformerV1`` becomes ``mmdet.SwinTransformer``; its
    ``pretrained`` file is a Microsoft checkpoint and becomes a ``Pretrained``
    ``init_cfg`` with ``convert_weights``.

    Args:
        cfg: The public backbone config.

    Returns:
        The config for mmdet.

    Raises:
        TypeError: If ``cfg`` is not a dict.
        ValueError: If the type is not registered, or a key of
            ``SwinTransformerV1`` has no counterpart.

    Examples:
        >>> swin = translate_backbone({'type': 'SwinTransformerV1'})
        >>> swin['type'], swin['drop_path_rate']
        ('mmdet.SwinTransformer', 0.2)
    """
    section = Section(cfg, 'model.backbone')
    if cfg.get('type') != 'SwinTransformerV1':
        return component(cfg, section.place)
    section.take('type')
    swin = {'type': 'mmdet.SwinTransformer'}
    swin.update(
        {
            here: section.take(there, default)
            for there, here, default in _SWIN_KEYS
        }
    )
    # mmdet multiplies without rounding and needs a whole number.
    if swin['mlp_ratio'] != int(swin['mlp_ratio']):
        raise ValueError(
            'model.backbone.mlp_ratio must be a whole number, got '
            f'{swin["mlp_ratio"]}; mmdet.SwinTransformer has no other'
        )
    swin['mlp_ratio'] = int(swin['mlp_ratio'])
    section.expect(
        'frozen_stages',
        [-1],
        default=-1,
        remedy='mmdet counts from another stage and freezes the output norms '
        'too; leave it out and set it in the result',
    )
    pretrained = section.take('pretrained', None)
    section.expect(
        'init_cfg', [None], default=None, remedy='give the file as pretrained'
    )
    if pretrained is not None:
        swin['convert_weights'] = True
        swin['init_cfg'] = {'type': 'Pretrained', 'checkpoint': pretrained}
    section.close()
    return swin
