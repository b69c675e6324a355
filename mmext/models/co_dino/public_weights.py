"""Public CO-DETR state dicts and files, converted to ours.

Our names are those of the mmdetection port. The original project differs in
the name of the denoising label embedding, in the heads of masks, and in the
Swin backbone, which has Microsoft's names and patch-merging order there.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ...utils.files import atomic_path
from ...utils.safe_load import check_paths, read_weights

# Tensors of the head that are a part's here.
_MOVED = {
    'query_head.label_embedding.': 'query_head.dn_generator.label_embedding.',
    'query_head.query_embedding.': 'query_head.transformer.query_embed.',
}
_SWIN_LAYER = re.compile(
    r'backbone\.layers\.(\d+)\.'
    r'(?=blocks\.\d+\.(?:norm[12]|attn|mlp)\.|downsample\.(?:norm|reduction)\.)'
)
_SWIN_PATCH = re.compile(r'backbone\.patch_embed\.proj\.')
# Below a Swin block, in Microsoft's names and in mmdet's.
_SWIN_BLOCK = (
    ('.attn.', '.attn.w_msa.'),
    ('.mlp.fc1.', '.ffn.layers.0.0.'),
    ('.mlp.fc2.', '.ffn.layers.1.'),
)
# The masks of the original project's -Inst models.
_MASKS = re.compile(
    r'(?=mask_iou_head\.|mask_head\.(?:instance_convs|semantic_convs|stages|'
    r'stage_instance_logits)\.)'
)
_WRAPPER = 'module.'
# Probabilities of LVIS's categories in a federated loss.
_FEDERATED = 'loss_cls.fed_loss_weight'


def convert_codetr_state_dict(
    state_dict: Mapping[str, Tensor],
    *,
    own_keys: Mapping | set[str] | frozenset[str] = frozenset(),
) -> dict[str, Tensor]:
    """Rename the keys of a public CO-DETR state dict to ours.

    | there | here |
    |---|---|
    | ``module.*``, when every key has it | ``*`` |
    | ``steps`` of an averaged model, next to ``module.*`` | left out |
    | ``*loss_cls.fed_loss_weight``, which the config has | left out |
    | ``query_head.label_embedding.*`` | ``query_head.dn_generator.\
label_embedding.*`` |
    | ``query_head.query_embedding.*`` | ``query_head.transformer.\
query_embed.*`` |
    | ``backbone.patch_embed.proj.*`` | ``backbone.patch_embed.projection.*`` |
    | ``backbone.layers.i.blocks.j.attn.*`` | ``backbone.stages.i.blocks.j.\
attn.w_msa.*`` |
    | ``backbone.layers.i.blocks.j.mlp.fc1.*``, ``fc2`` | ``backbone.stages.\
i.blocks.j.ffn.layers.0.0.*``, ``layers.1`` |
    | ``backbone.layers.i.downsample.*`` | ``backbone.stages.i.\
downsample.*``, values reordered |
    | ``mask_head.stages.*``, ... and ``mask_iou_head.*`` | \
``mask_head.mask_head.*``, ``mask_head.mask_iou_head.*`` |
    | anything else | the same |

    The names say what has to be done. A state dict with our names is returned
    equal, so that this can run on every load.

    Args:
        state_dict: Names relative to the detector. Not edited.
        own_keys: Names of the model that will load it. They are never
            renamed: a user's own backbone may have Microsoft's names.

    Returns:
        A new dict in the same order, with the same tensors, apart from the
        reordered ones.

    Raises:
        ValueError: If two keys would get one name, or a patch-merging tensor
            has an impossible shape.

    Source:
        Names of the mmdetection port of CO-DETR and of Sense-X/Co-DETR; Swin
        Transformer, arXiv 2103.14030.

    Examples:
        >>> import torch
        >>> list(convert_codetr_state_dict(
        ...     {'module.query_head.label_embedding.weight': torch.ones(1)}))
        ['query_head.dn_generator.label_embedding.weight']
    """
    converted: dict[str, Tensor] = {}
    # Without the prefix of a data-parallel or averaged model.
    keys = [key for key in state_dict if key != 'steps']
    if keys and all(key.startswith(_WRAPPER) for key in keys):
        state_dict = {key[len(_WRAPPER) :]: state_dict[key] for key in keys}
    for key, value in state_dict.items():
        if key.endswith(_FEDERATED) and key not in own_keys:
            continue
        name, change = (key, None) if key in own_keys else _translate(key)
        if name in converted:
            raise ValueError(
                f'state_dict must give every tensor once, got {key!r} and '
                f'another key for {name!r}; remove one of them'
            )
        converted[name] = value if change is None else change(value)
    return converted


def _translate(key: str) -> tuple[str, Callable[[Tensor], Tensor] | None]:
    """New name of a key, and what happens to its tensor."""
    for there, here in _MOVED.items():
        if key.startswith(there):
            return here + key.removeprefix(there), None
    if _MASKS.match(key):
        return f'mask_head.{key}', None
    if _SWIN_PATCH.match(key):
        return key.replace('.proj.', '.projection.', 1), None
    if not _SWIN_LAYER.match(key):
        return key, None
    name = key.replace('.layers.', '.stages.', 1)
    if '.downsample.' in name:
        return name, _reorder_patch_merging
    for there, here in _SWIN_BLOCK:
        name = name.replace(there, here, 1)
    return name, None


def _reorder_patch_merging(tensor: Tensor) -> Tensor:
    """Reorder the last axis, of size 4 * C, of a patch-merging weight.

    Microsoft concatenates the four pixels of a 2x2 patch, columns outermost:
    index ``(w, h, c)``. mmdet unfolds: index ``(c, h, w)``.
    """
    *lead, size = tensor.shape
    if size % 4:
        raise ValueError(
            'tensor must have a last axis that is a multiple of '
            f'4, got shape {tuple(tensor.shape)}'
        )
    pixels = tensor.reshape(*lead, 2, 2, size // 4)
    return pixels.transpose(-1, -3).reshape(tensor.shape)


def convert_checkpoint_file(
    source: str | Path,
    target: str | Path,
    *,
    ema: bool = False,
    trust: bool = False,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Write a public checkpoint with our names.

    Loading does the same in memory, so this is only needed for other readers
    of the file. The weights and ``meta`` are kept; the state of the optimizer
    is left out, because it belongs to another order of parameters.

    Args:
        source: The public checkpoint, or a file with a state dict only.
        target: The file to write.
        ema: Take ``ema_state_dict`` instead of ``state_dict``.
        trust: Read any type, which can run code. Only for a file from a
            source you trust.
        overwrite: Replace a ``target`` that exists.

    Returns:
        How many tensors there are, and how many changed their name.

    Raises:
        FileNotFoundError: If there is no ``source``.
        FileExistsError: If ``target`` exists and ``overwrite`` is False.
        ValueError: If the file holds more than tensors and ``trust`` is
            False, or no such state dict, or cannot be converted.
    """
    check_paths(source, target, overwrite)
    checkpoint = read_weights(source, trust)
    name = 'ema_state_dict' if ema else 'state_dict'
    state = checkpoint.get(name) if name in checkpoint or ema else checkpoint
    if not isinstance(state, dict) or not all(
        isinstance(value, torch.Tensor) for value in state.values()
    ):
        raise ValueError(
            f'source must hold a {name}, got keys {sorted(checkpoint)[:8]} '
            f'in {source}'
        )
    converted = convert_codetr_state_dict(state)
    content = {'meta': checkpoint.get('meta', {}), 'state_dict': converted}
    if state is checkpoint:
        content['meta'] = {}
    with atomic_path(target) as temporary:
        torch.save(content, temporary)
    return len(converted), len(converted.keys() - state.keys())
