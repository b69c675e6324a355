"""Swin Transformer in the layout of Microsoft's checkpoints, in plain code.

Written from the paper, arXiv 2103.14030, and the names in the checkpoints:
loops where a fast version would reshape, one image at a time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

PATCH = 4


def random_state(
    embed_dim: int, depths: list[int], num_heads: list[int], window: int
) -> dict[str, Tensor]:
    """Random tensors under all names of a Swin backbone."""
    state: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        state[name] = torch.randn(*shape) * 0.2

    def add_norm(name: str, dim: int) -> None:
        add(f'{name}.weight', dim)
        state[f'{name}.weight'] += 1
        add(f'{name}.bias', dim)

    def add_linear(name: str, inner: int, outer: int) -> None:
        add(f'{name}.weight', outer, inner)
        add(f'{name}.bias', outer)

    add('patch_embed.proj.weight', embed_dim, 3, PATCH, PATCH)
    add('patch_embed.proj.bias', embed_dim)
    add_norm('patch_embed.norm', embed_dim)
    for i, (depth, heads) in enumerate(zip(depths, num_heads)):
        dim = embed_dim * 2**i
        for j in range(depth):
            block = f'layers.{i}.blocks.{j}'
            add_norm(f'{block}.norm1', dim)
            add_linear(f'{block}.attn.qkv', dim, 3 * dim)
            add_linear(f'{block}.attn.proj', dim, dim)
            table = f'{block}.attn.relative_position_bias_table'
            add(table, (2 * window - 1) ** 2, heads)
            index = f'{block}.attn.relative_position_index'
            state[index] = relative_index(window)
            add_norm(f'{block}.norm2', dim)
            add_linear(f'{block}.mlp.fc1', dim, 4 * dim)
            add_linear(f'{block}.mlp.fc2', 4 * dim, dim)
        if i + 1 < len(depths):
            add_norm(f'layers.{i}.downsample.norm', 4 * dim)
            add(f'layers.{i}.downsample.reduction.weight', 2 * dim, 4 * dim)
        add_norm(f'norm{i}', dim)
    return state


def relative_index(window: int) -> Tensor:
    """Row of the bias table for every pair of pixels in a window."""
    pixels = [(y, x) for y in range(window) for x in range(window)]
    span = 2 * window - 1
    return torch.tensor(
        [
            [
                (y - v + window - 1) * span + (x - u + window - 1)
                for v, u in pixels
            ]
            for y, x in pixels
        ]
    )


def forward(
    state: dict[str, Tensor],
    image: Tensor,
    *,
    depths: list[int],
    num_heads: list[int],
    window: int,
) -> list[Tensor]:
    """Maps ``(C, H, W)`` of every stage for one image ``(3, H, W)``."""
    x = F.conv2d(
        image[None],
        state['patch_embed.proj.weight'],
        state['patch_embed.proj.bias'],
        stride=PATCH,
    )[0].permute(1, 2, 0)
    x = norm(state, 'patch_embed.norm', x)
    maps = []
    for i, (depth, heads) in enumerate(zip(depths, num_heads)):
        for j in range(depth):
            shift = 0 if j % 2 == 0 else window // 2
            block = f'layers.{i}.blocks.{j}'
            y = norm(state, f'{block}.norm1', x)
            x = x + attend(state, f'{block}.attn', y, heads, window, shift)
            y = norm(state, f'{block}.norm2', x)
            y = linear(state, f'{block}.mlp.fc1', y)
            x = x + linear(state, f'{block}.mlp.fc2', F.gelu(y))
        maps.append(norm(state, f'norm{i}', x).permute(2, 0, 1))
        if i + 1 < len(depths):
            x = merge(state, f'layers.{i}.downsample', x)
    return maps


def norm(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Layer norm over the last axis."""
    return F.layer_norm(
        x, x.shape[-1:], state[f'{name}.weight'], state[f'{name}.bias']
    )


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Linear layer with bias."""
    return F.linear(x, state[f'{name}.weight'], state[f'{name}.bias'])


def merge(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Patch merging: the four pixels of a 2 x 2 patch, columns outermost."""
    pixels = [x[y::2, u::2] for u in range(2) for y in range(2)]
    x = norm(state, f'{name}.norm', torch.cat(pixels, -1))
    return x @ state[f'{name}.reduction.weight'].T


def attend(
    state: dict[str, Tensor],
    name: str,
    x: Tensor,
    heads: int,
    window: int,
    shift: int,
) -> Tensor:
    """Attention within windows of a map ``(H, W, C)``, rolled by ``shift``.

    Both sides must be multiples of the window. Pixels that the roll brought
    together from opposite borders do not see each other.
    """
    height, width, _ = x.shape
    rolled = x.roll((-shift, -shift), (0, 1))
    region = torch.zeros(height, width, dtype=torch.long)
    region[height - shift :] += 1
    region[:, width - shift :] += 2
    output = torch.empty_like(rolled)
    for top in range(0, height, window):
        for left in range(0, width, window):
            part = (
                slice(top, top + window),
                slice(left, left + window),
            )
            output[part] = attend_in_window(
                state, name, rolled[part], heads, region[part].flatten()
            )
    return output.roll((shift, shift), (0, 1))


def attend_in_window(
    state: dict[str, Tensor],
    name: str,
    pixels: Tensor,
    heads: int,
    region: Tensor,
) -> Tensor:
    """Attention among the pixels ``(S, S, C)`` of one window."""
    shape = pixels.shape
    channels = shape[-1] // heads
    qkv = linear(state, f'{name}.qkv', pixels.reshape(-1, shape[-1]))
    query, key, value = qkv.view(-1, 3, heads, channels).permute(1, 2, 0, 3)
    logits = query @ key.transpose(-1, -2) / channels**0.5
    table = state[f'{name}.relative_position_bias_table']
    index = state[f'{name}.relative_position_index']
    logits = logits + table[index].permute(2, 0, 1)
    apart = region[:, None] != region[None]
    mixed = logits.masked_fill(apart, -torch.inf).softmax(-1) @ value
    mixed = mixed.transpose(0, 1).reshape(-1, shape[-1])
    return linear(state, f'{name}.proj', mixed).view(shape)
