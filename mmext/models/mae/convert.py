"""Weights of public MAE and ViT models, read and written.

| layout | of | container | encoder |
|---|---|---|---|
| ``mmext``, ``mmpretrain`` | ``MAE`` of both | ``state_dict`` | \
``backbone.layers.0.ln1`` |
| ``original`` | facebookresearch/mae | ``model`` | ``blocks.0.norm1`` |
| ``timm`` | ``VisionTransformer`` | ``state_dict`` | ``blocks.0.norm1`` |
| ``mmseg`` | ``VisionTransformer`` | ``state_dict`` | ``layers.0.ln1`` |
| ``vitdet`` | ``ViT`` of mmdet's ViTDet project | ``model`` | \
``blocks.0.norm1`` |
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...utils.files import atomic_path
from ...utils.safe_load import check_paths, read_weights
from .layers import fit_positions, patch_grid, to_pair

# What a state dict can be written for, and the key of it in the file.
LAYOUTS = {
    'mmext': 'state_dict',
    'mmpretrain': 'state_dict',
    'original': 'model',
    'timm': 'state_dict',
    'mmseg': 'state_dict',
    'vitdet': 'model',
}
_WITH_DECODER = ('mmext', 'mmpretrain', 'original')
_BACKBONE, _NECK = 'backbone.', 'neck.'
_LIGHTLY = 'backbone.vit.'
# Below a layer, ours and mmpretrain's first, then timm's.
_IN_LAYER = (
    ('ln1.', 'norm1.'),
    ('ln2.', 'norm2.'),
    ('ffn.layers.0.0.', 'mlp.fc1.'),
    ('ffn.layers.1.', 'mlp.fc2.'),
)
_IN_ENCODER = (
    ('patch_embed.projection.', 'patch_embed.proj.'),
    ('ln1.', 'norm.'),
    ('ln2.', 'fc_norm.'),
)
_IN_DECODER = (('ln1.', 'decoder_norm.'),)
_MMSEG = (
    ('attn.qkv.', 'attn.attn.in_proj_'),
    ('attn.proj.', 'attn.attn.out_proj.'),
)
_LAYER = re.compile(r'((?:layers|blocks|decoder_blocks)\.\d+\.)(.+)')
_ENCODER_KEY = re.compile(
    r'(cls_token|pos_embed|patch_embed\.|layers\.|ln[12]\.)'
)


class Converted(NamedTuple):
    """A state dict in another layout.

    Attributes:
        state_dict: Names there -> tensors.
        left_out: Old names of tensors that the layout does not have.
        initial: New names of parameters that the state dict does not give,
            and that keep their initial values.
    """

    state_dict: dict[str, Tensor]
    left_out: tuple[str, ...] = ()
    initial: tuple[str, ...] = ()


def _swap(
    key: str, pairs: tuple[tuple[str, str], ...], reverse: bool = False
) -> str:
    """Replace the start of a key by its counterpart."""
    for ours, theirs in pairs:
        old, new = (theirs, ours) if reverse else (ours, theirs)
        if key.startswith(old):
            return new + key[len(old) :]
    return key


def _split(key: str) -> tuple[str, str]:
    """Name of a layer, empty for what is in none, and the rest."""
    match = _LAYER.fullmatch(key)
    return match.groups() if match else ('', key)


def import_mae_state_dict(state_dict: Mapping[str, Tensor]) -> Converted:
    """Give the weights of an MAE, or of its encoder, our names.

    Known by their names are the layouts ``mmext``, ``mmpretrain``,
    ``original`` and ``timm``, with ``module.`` in front or without, the
    backbone alone of the first two, and lightly's models of ``backbone`` and
    ``decoder`` (``MaskedVisionTransformerTIMM``, ``MAEDecoderTIMM``). Values
    stay as they are: position embeddings are fitted when a model loads them.

    Args:
        state_dict: Public names -> tensors. Not edited.

    Returns:
        Names of :class:`mmext.MAE`, ``backbone.*`` and ``neck.*``; what is
        left out are heads, mask tokens of an encoder and the like.

    Raises:
        ValueError: If the names are of no such model.

    Examples:
        >>> import torch
        >>> weights = {'blocks.0.norm1.weight': torch.ones(4)}
        >>> list(import_mae_state_dict(weights).state_dict)
        ['backbone.layers.0.ln1.weight']
    """
    names = {
        key: key.removeprefix('module.')
        for key in state_dict
        if isinstance(state_dict[key], Tensor)
    }
    if any(name.startswith(f'{_BACKBONE}layers.') for name in names.values()):
        rename = _from_mmpretrain
    elif any(name.startswith('layers.') for name in names.values()):
        rename = _from_backbone
    elif any(name.startswith('blocks.') for name in names.values()):
        rename = _from_original
    elif any(name.startswith(_LIGHTLY) for name in names.values()):
        rename = _from_lightly
    else:
        raise ValueError(
            'state_dict must have the names of an MAE of mmpretrain or of '
            'facebookresearch/mae, of lightly, or of a ViT of timm, got '
            f'{sorted(names.values())[:4]}; give a checkpoint of one of them'
        )
    converted: dict[str, Tensor] = {}
    left_out = []
    for key, name in names.items():
        new = rename(name)
        if new is None:
            left_out.append(key)
        else:
            converted[new] = state_dict[key]
    return Converted(converted, tuple(left_out))


def _from_backbone(name: str) -> str | None:
    return _BACKBONE + name if _ENCODER_KEY.match(name) else None


def _from_mmpretrain(name: str) -> str | None:
    if name.startswith(_BACKBONE):
        return _from_backbone(name.removeprefix(_BACKBONE))
    return name if name.startswith(_NECK) else None


def _from_original(name: str) -> str | None:
    layer, rest = _split(name)
    if layer:
        name = layer + _swap(rest, _IN_LAYER, reverse=True)
        if layer.startswith('decoder_'):
            return _NECK + name
        return _BACKBONE + name.replace('blocks.', 'layers.', 1)
    if name.startswith('decoder_') or name == 'mask_token':
        return _NECK + _swap(name, _IN_DECODER, reverse=True)
    return _from_backbone(_swap(name, _IN_ENCODER, reverse=True))


def _from_lightly(name: str) -> str | None:
    """The names of ``original`` below two parts."""
    if name.startswith(_LIGHTLY):
        return _from_original(name.removeprefix(_LIGHTLY))
    part, _, rest = name.partition('.')
    is_known = rest.startswith('decoder_') or rest == 'mask_token'
    return _from_original(rest) if part == 'decoder' and is_known else None


def export_mae_state_dict(
    state_dict: Mapping[str, Tensor],
    layout: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    decoder: bool = False,
) -> Converted:
    """Name the weights of an MAE as another model does.

    Args:
        state_dict: Names of :class:`mmext.MAE` -> tensors. Not edited.
        layout: A key of :data:`LAYOUTS`. ``mmseg`` needs
            ``patch_bias=True``, ``final_norm=True`` and ``norm_cfg=dict(
            type='LN', eps=1e-6)``; ``vitdet`` ``pretrain_img_size`` as the
            ``image_size``, and its relative positions stay zero.
        image_size: Pixels of a side, or (height, width), that position
            embeddings are interpolated to.
        decoder: Keep the decoder, where the layout has one.

    Returns:
        Names there; what was left out: the decoder, or parts that the model
        lacks; and what stays as it was initialised.

    Raises:
        ValueError: If the layout is not known or has no decoder, or there is
            not one class token, which these models have.
    """
    if layout not in LAYOUTS:
        raise ValueError(
            f'layout must be one of {tuple(LAYOUTS)}, got {layout!r}'
        )
    if decoder and layout not in _WITH_DECODER:
        raise ValueError(
            f'decoder must be False for layout {layout!r}, which has none; '
            f'{" and ".join(_WITH_DECODER)} have one'
        )
    state = _resized(state_dict, image_size)
    token = state.get(f'{_BACKBONE}cls_token')
    if layout != 'mmext' and (token is None or token.shape[1] != 1):
        raise ValueError(
            f'layout {layout!r} must get one class token, got '
            f'{0 if token is None else token.shape[1]}; pre-train with '
            'num_cls_tokens=1'
        )
    converted: dict[str, Tensor] = {}
    left_out = []
    for key, value in state.items():
        new = _export_name(key, layout, decoder)
        if new is None:
            left_out.append(key)
        else:
            converted[new] = value
    initial: list[str] = []
    if layout == 'vitdet':
        layers = {_split(key)[0] for key in converted} - {''}
        initial = sorted(
            f'{layer}attn.rel_pos_{side}' for layer in layers for side in 'hw'
        )
    return Converted(converted, tuple(left_out), tuple(initial))


def _resized(
    state_dict: Mapping[str, Tensor],
    image_size: int | tuple[int, int] | None,
) -> dict[str, Tensor]:
    state = dict(state_dict)
    if image_size is None:
        return state
    weight = state[f'{_BACKBONE}patch_embed.projection.weight']
    size = to_pair(image_size, 'image_size')
    grid = patch_grid(size, tuple(weight.shape[-2:]), 'image_size')
    token = state.get(f'{_BACKBONE}cls_token')
    count = 0 if token is None else token.shape[1]
    for key in (f'{_BACKBONE}pos_embed', f'{_NECK}decoder_pos_embed'):
        if key in state:
            state[key] = fit_positions(state[key], grid, count, key)
    return state


def _export_name(key: str, layout: str, decoder: bool) -> str | None:
    """New name; None if the layout does not have it."""
    if key.startswith(_NECK):
        if not decoder:
            return None
        return _original_decoder(key) if layout == 'original' else key
    if not key.startswith(_BACKBONE):
        return None
    if layout in ('mmext', 'mmpretrain'):
        return key
    name = key.removeprefix(_BACKBONE)
    layer, rest = _split(name)
    if layout == 'mmseg':
        # It has no norm after the mean of the patches.
        if name.startswith('ln2.'):
            return None
        return layer + _swap(rest, _MMSEG) if layer else name
    if layer:
        return layer.replace('layers.', 'blocks.', 1) + _swap(rest, _IN_LAYER)
    if layout == 'vitdet' and name.startswith(('cls_token', 'ln')):
        return None
    return _swap(name, _IN_ENCODER)


def _original_decoder(key: str) -> str:
    name = key.removeprefix(_NECK)
    layer, rest = _split(name)
    if layer:
        return layer + _swap(rest, _IN_LAYER)
    return _swap(name, _IN_DECODER)


def convert_mae_file(
    source: str | Path,
    target: str | Path,
    layout: str = 'mmext',
    *,
    image_size: int | tuple[int, int] | None = None,
    decoder: bool = False,
    trust: bool = False,
    overwrite: bool = False,
) -> Converted:
    """Write the weights of an MAE checkpoint in another layout.

    Args:
        source: Checkpoint of mmext, mmpretrain, facebookresearch/mae,
            lightly or timm, or a file with a state dict only.
        target: The file to write. It holds weights only.
        layout: See :func:`export_mae_state_dict`.
        image_size: The same.
        decoder: The same.
        trust: Read any type, which can run code. Only for a file from a
            source you trust.
        overwrite: Replace a ``target`` that exists.

    Returns:
        What was written; ``left_out`` has names of the source for what was
        not recognised, and ours for the rest.

    Raises:
        FileNotFoundError: If there is no ``source``.
        FileExistsError: If ``target`` exists and ``overwrite`` is False.
        ValueError: If the file holds more than tensors and ``trust`` is
            False, or no such weights, or they cannot be converted.
    """
    check_paths(source, target, overwrite)
    checkpoint = read_weights(source, trust)
    state = checkpoint
    for name in ('state_dict', 'model'):
        if isinstance(checkpoint.get(name), Mapping):
            state = checkpoint[name]
            break
    imported = import_mae_state_dict(state)
    result = export_mae_state_dict(
        imported.state_dict, layout, image_size=image_size, decoder=decoder
    )
    content: dict = {LAYOUTS[layout]: result.state_dict}
    if LAYOUTS[layout] == 'state_dict':
        content['meta'] = {}
    with atomic_path(target) as temporary:
        torch.save(content, temporary)
    return result._replace(left_out=imported.left_out + result.left_out)
