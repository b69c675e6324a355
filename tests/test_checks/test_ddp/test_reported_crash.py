"""The report that the project began with, on a head of the host.

Someone adds ``class_embed`` to a DINO head and uses it nowhere. One process
trains, two do not, and the settings that are passed around for it stand
where nothing reads them. Our wrapper names the parameter, in two
processes on gloo.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.tiny_co_dino import make_batch
from helpers.toy_ranks import run_on_ranks
from mmdet.models.dense_heads import DINOHead
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import MODEL_WRAPPERS, init_default_scope
from torch import nn

from mmext.engine.distributed import model_wrapper_config

pytestmark = pytest.mark.xdist_group('processes')

NUM_STEPS = 3
NAME = 'bbox_head.class_embed'

REPORTED = """
_base_ = 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'
model = dict(
    bbox_head=dict(type='ReportedDINOHead', num_classes=5),
    # The recipe: nothing reads these two here.
    train_cfg=dict(find_unused_parameters=True, with_cp=False),
)
"""


@pytest.fixture(autouse=True)
def _reported_head() -> Iterator[None]:
    """Register the head for the time of a test."""

    class ReportedDINOHead(DINOHead):
        """The host's, and a parameter that waits for its use."""

        def _init_layers(self) -> None:
            super()._init_layers()
            self.class_embed = nn.Parameter(torch.empty(self.embed_dims, 512))

    MODELS.register_module(module=ReportedDINOHead)
    yield
    del MODELS.module_dict['ReportedDINOHead']


@pytest.fixture
def reported(tmp_path: Path) -> Config:
    return read_config(tmp_path / 'reported.py', REPORTED)


def read_config(path: Path, text: str) -> Config:
    """Write a config as a user does, and read it."""
    path.write_text(text)
    return Config.fromfile(str(path))


def build_small(cfg: Config) -> nn.Module:
    """The model of the config with widths of 32 and few layers."""
    model = cfg.to_dict()['model']
    model['num_queries'] = 20
    backbone = model['backbone']
    backbone.update(depth=18, base_channels=4, stem_channels=4, init_cfg=None)
    model['neck'].update(in_channels=[8, 16, 32], out_channels=32)
    model['neck']['norm_cfg']['num_groups'] = 8
    model['positional_encoding']['num_feats'] = 16
    model['dn_cfg']['group_cfg']['num_dn_queries'] = 4
    for name, num_layers in (('encoder', 1), ('decoder', 2)):
        model[name]['num_layers'] = num_layers
        for part, options in model[name]['layer_cfg'].items():
            options['embed_dims'] = 32
            if part == 'ffn_cfg':
                options['feedforward_channels'] = 32
    head = model['bbox_head']
    head['embed_dims'] = 32
    init_default_scope('mmdet')
    torch.manual_seed(0)
    built = MODELS.build(model)
    nn.init.normal_(built.level_embed)  # The host leaves it as it comes.
    return built.train()


def wrap_as_ours(cfg: Config, model: nn.Module) -> nn.Module:
    """What our runner does, which is the same with another default."""
    wrapper = model_wrapper_config(
        cfg.get('model_wrapper_cfg'),
        torch.device('cpu'),
        cfg.get('find_unused_parameters'),
    )
    return MODEL_WRAPPERS.build(wrapper, default_args={'module': model})


def train(cfg: Config) -> None:
    """Print a line per step that was trained."""
    model = wrap_as_ours(cfg, build_small(cfg))
    rank = torch.distributed.get_rank()
    params = [p for p in model.parameters() if p.requires_grad]
    optim = OptimWrapper(torch.optim.SGD(params, lr=1e-3))
    for step in range(NUM_STEPS):
        batch = make_batch(((3, 2), (1, 2))[rank], seed=10 * step + rank)
        losses = model.train_step(batch, optim)
        assert torch.isfinite(torch.as_tensor(losses['loss']))
        print('trained step', step, flush=True)


def run(cfg: Config, out: Path) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of two processes."""
    ranks = run_on_ranks(lambda: train(cfg), 2, out)
    codes = ranks.wait()
    return codes, [ranks.output(rank) for rank in range(2)]


def num_trained(output: str) -> int:
    return output.count('trained step')


@pytest.fixture
def ours(reported: Config, tmp_path: Path) -> list[str]:
    """What our wrapper's two processes write about it."""
    codes, outputs = run(reported, tmp_path / 'ours')
    assert codes == [1, 1]
    return outputs


def test_our_wrapper_names_it_in_the_first_step(ours: list[str]) -> None:
    for output in ours:
        assert num_trained(output) == 0
        message = output.rpartition('GradientSyncError: ')[2]
        assert NAME in message
        assert 'never used in forward' in message
        assert len(re.findall(r'^    bbox_head\.', message, re.M)) == 1
        assert 'requires_grad_(False)' in message
        assert 'Expected to have finished' not in output


def test_the_printed_line_makes_it_train(
    ours: list[str], tmp_path: Path
) -> None:
    advice = re.search(r'^ *(find_unused_parameters = .*)$', ours[0], re.M)[1]
    assert advice == 'find_unused_parameters = True'
    fixed = read_config(tmp_path / 'fixed.py', REPORTED + advice)
    codes, outputs = run(fixed, tmp_path / 'fixed')
    assert codes == [0, 0], outputs
    assert [num_trained(output) for output in outputs] == [NUM_STEPS] * 2
