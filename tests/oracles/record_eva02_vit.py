"""Record the backbone and the neck of the original CO-DETR with ViT-L.

Runs, of Sense-X/Co-DETR at 26653521: ``ViT`` (mmdet/models/backbones/vit.py)
and ``SFP`` (mmdet/models/necks/sfp.py) at a small width, with two window
blocks and a global one, on two sizes whose maps are no multiple of a window.
tools/benchmarks/vit.py loads them; einops must be installed::

    PYTHONPATH=. python tests/oracles/record_eva02_vit.py CHECKOUT OUT.pt
"""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / 'tools' / 'benchmarks'))
from vit import load_reference

SIZES = ((64, 80), (48, 64))


def record(model: nn.Module, inputs: list) -> dict:
    """Random weights, outputs for each input, and the gradients of all."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        # Numbers that half the bytes hold.
        nn.init.normal_(parameter, std=0.1)
        parameter.data = parameter.data.bfloat16().float()
    leaves = [x[0] if isinstance(x, list) else x for x in inputs]
    outputs = [model(x) for x in inputs]
    # A plain sum of normed values would be constant.
    loss = sum((t * t.detach().cos()).sum() for out in outputs for t in out)
    loss.backward()
    return {
        'state': {k: v.bfloat16() for k, v in model.state_dict().items()},
        'inputs': [x.detach() for x in leaves],
        'outputs': [[t.detach() for t in out] for out in outputs],
        'gradients': {k: p.grad for k, p in model.named_parameters()},
        'input_gradients': [x.grad for x in leaves],
    }


def main(checkout: Path, out: Path) -> None:
    """Record to a file."""
    public = load_reference(checkout)
    torch.manual_seed(0)
    result = {}
    for lsj in (False, True):
        # Half of a head's channels are 32 in the table that is not stored.
        vit = public(
            img_size=64,
            in_chans=1,
            embed_dim=64,
            depth=3,
            num_heads=1,
            window_size=3,
            window_block_indexes=(0, 1),
            pretrain_img_size=64,
            use_lsj=lsj,
        )
        if lsj:
            # The same weights, and a stored table of the whole map.
            weights = {k: v.float() for k, v in result['vit']['state'].items()}
            vit.load_state_dict(weights, strict=False)
            images = torch.randn(1, 1, 64, 64)
            result['lsj'] = {
                'inputs': images,
                'outputs': vit(images)[0].detach(),
                'keys': [k for k in vit.state_dict() if k not in weights],
            }
            continue
        images = [
            torch.randn(1, 1, *size, requires_grad=True) for size in SIZES
        ]
        result['vit'] = record(vit, images)
    neck = load_reference(checkout, 'mmdet/models/necks/sfp.py', 'SFP')
    neck = neck([16], 8, 5, use_p2=True)
    maps = [torch.randn(1, 16, 5, 7, requires_grad=True)]
    result['sfp'] = record(neck, [maps])
    torch.save(result, out)


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(sys.argv[2]))
