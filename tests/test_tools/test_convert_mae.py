import pytest
import torch
from helpers.tiny_mae import record
from helpers.toy_ranks import load_tool

from mmext.models.mae import LAYOUTS

tool = load_tool('convert_mae')
main = tool.main


@pytest.fixture
def source(tmp_path):
    path = tmp_path / 'mae.pth'
    torch.save({'model': record()['facebook']['state_dict']}, path)
    return path


def test_says_what_is_left_out(source, tmp_path, capsys):
    target = tmp_path / 'vitdet.pth'
    args = [str(source), str(target), '--layout', 'vitdet']
    assert main([*args, '--image-size', '64']) == 0
    printed = capsys.readouterr().out
    assert 'Left out: ' in printed
    assert 'backbone.cls_token' in printed
    assert 'blocks.1.attn.rel_pos_h' in printed.split('initialises them: ')[1]
    weights = torch.load(target, weights_only=True)['model']
    assert weights['pos_embed'].shape == (1, 65, 32)
    assert main(args) == 1
    assert 'ask to overwrite it' in capsys.readouterr().err
    assert main([*args, '--overwrite']) == 0


def test_reads_what_lightly_saves(source, tmp_path, capsys):
    """Names of lightly 1.6: MaskedVisionTransformerTIMM, MAEDecoderTIMM."""
    weights = torch.load(source, weights_only=True)['model']
    named = {'backbone.mask_token': torch.zeros(1, 1, 32)}
    for name, value in weights.items():
        is_decoder = name.startswith('decoder_') or name == 'mask_token'
        prefix = 'decoder.' if is_decoder else 'backbone.vit.'
        named[prefix + name] = value
    lightly, target = tmp_path / 'lightly.ckpt', tmp_path / 'out.pth'
    torch.save({'state_dict': named}, lightly)
    args = [str(lightly), str(target), '--layout', 'original', '--decoder']
    assert main(args) == 0
    assert 'Left out: backbone.mask_token\n' in capsys.readouterr().out
    written = torch.load(target, weights_only=True)['model']
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], weights[name]) for name in weights)


def test_offers_all_layouts():
    assert tuple(LAYOUTS) == tool.LAYOUTS
