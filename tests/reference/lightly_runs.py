"""Lightly's MAE in two processes, in an environment that has it.

::

    pip install torch==2.13.0 timm==1.0.31
    pip install --no-deps lightly==1.6.0
    python tests/reference/lightly_runs.py

Trains three steps on two processes joined by gloo: as Lightly publishes the
loop, but without ``find_unused_parameters``; with it; and without it once the
parameters that no step uses are out of the model. Prints as JSON what happened
to each. The loop is written with the functions that Lightly's example calls,
around a ViT of two layers that has a classification head, as the example's.
Needs nothing of mmext, no torchvision and no PyTorch Lightning, whose ``ddp``
is the wrapper that is used here.
"""

import json
import os
import socket
import sys

# Also the name of parameters that got no gradient.
os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'INFO'

import torch
import torch.distributed as dist
from mae_oracles import EmptyModules
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.meta_path.insert(0, EmptyModules())

from lightly.models import utils  # noqa: E402
from lightly.models.modules import (  # noqa: E402
    MaskedVisionTransformerDecoderTIMM,
    MaskedVisionTransformerTIMM,
)
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

WORLD_SIZE, STEPS = 2, 3
SIZE, PATCH, WIDTH, DECODER_WIDTH = 32, 8, 32, 24


class LightlyMAE(nn.Module):
    """Lightly's encoder and decoder; images in, loss out."""

    def __init__(self):
        super().__init__()
        vit = VisionTransformer(
            img_size=SIZE,
            patch_size=PATCH,
            embed_dim=WIDTH,
            depth=2,
            num_heads=2,
        )
        self.backbone = MaskedVisionTransformerTIMM(vit=vit)
        self.decoder_embed = nn.Linear(WIDTH, DECODER_WIDTH)
        self.decoder = MaskedVisionTransformerDecoderTIMM(
            num_patches=vit.patch_embed.num_patches,
            embed_dim=DECODER_WIDTH,
            depth=1,
            num_heads=3,
            num_prefix_tokens=vit.num_prefix_tokens,
            mlp_ratio=4.0,
            proj_drop_rate=0.0,
            attn_drop_rate=0.0,
        )
        self.prediction_head = nn.Linear(DECODER_WIDTH, 3 * PATCH**2)

    def forward(self, images):
        size = (len(images), self.backbone.sequence_length)
        keep, hidden = utils.random_token_mask(
            size=size, mask_ratio=0.75, device=images.device
        )
        latent = self.backbone.encode(images=images, idx_keep=keep)
        seen = self.decoder_embed(latent)
        tokens = utils.set_at_index(
            seen.new_zeros(*size, DECODER_WIDTH), keep, seen
        )
        decoded = self.decoder(tokens, idx_mask=hidden)
        predicted = self.prediction_head(utils.get_at_index(decoded, hidden))
        patches = utils.patchify(images, PATCH)
        target = utils.get_at_index(patches, hidden - 1)
        return nn.functional.mse_loss(predicted, target)


def train(flag, cure):
    """Losses of some steps, or the error of the one that stopped."""
    torch.manual_seed(0)
    model = LightlyMAE()
    if cure:
        model.backbone.vit.reset_classifier(0)
        model.backbone.mask_token.requires_grad_(False)
    wrapped = DistributedDataParallel(model, find_unused_parameters=flag)
    optim = torch.optim.AdamW(wrapped.parameters(), lr=1.5e-4)
    torch.manual_seed(1 + dist.get_rank())
    losses, error = [], None
    try:
        for _ in range(STEPS):
            loss = wrapped(torch.randn(2, 3, SIZE, SIZE))
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses.append(round(loss.item(), 4))
    except RuntimeError as caught:
        error = str(caught)
    unused = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    return {'losses': losses, 'error': error, 'unused': unused}


def work(rank, port):
    dist.init_process_group(
        'gloo',
        init_method=f'tcp://127.0.0.1:{port}',
        rank=rank,
        world_size=WORLD_SIZE,
    )
    found = {
        'published': train(flag=False, cure=False),
        'flag': train(flag=True, cure=False),
        'cured': train(flag=False, cure=True),
    }
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def main():
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        port = server.getsockname()[1]
    torch.multiprocessing.start_processes(
        work, (port,), nprocs=WORLD_SIZE, start_method='fork'
    )


if __name__ == '__main__':
    main()
