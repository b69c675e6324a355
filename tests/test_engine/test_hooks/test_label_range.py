"""Labels out of range stop all processes, with their images."""

import logging
from types import SimpleNamespace

import pytest
import torch
from helpers.toy_ranks import results_of_ranks
from mmengine.config import Config
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import RUNNERS
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import nn
from torch.utils.data import Dataset

from mmext.engine import LabelRangeHook
from mmext.engine.distributed import DistributedDataParallel
from mmext.models import CheckedCrossEntropyLoss
from mmext.models.losses import LabelRangeError
from mmext.models.losses.label_range import set_current_batch


@pytest.fixture(autouse=True)
def _no_batch():
    yield
    set_current_batch()


class Head(nn.Module):
    """A linear layer per pixel, and a loss."""

    def __init__(self, **loss):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)
        self.loss_decode = nn.ModuleList([CheckedCrossEntropyLoss(**loss)])


@ROOT_MODELS.register_module(name='LabelRangeToy', force=True)
class Model(BaseModel):
    def __init__(self, deferred=None, **loss):
        super().__init__()
        torch.manual_seed(0)
        self.decode_head = Head(**loss)
        monitor = self.decode_head.loss_decode[0].label_range
        monitor.deferred = deferred

    def forward(self, inputs, data_samples=None, mode='tensor'):
        out = self.decode_head.conv(torch.stack(list(inputs)).float())
        label = torch.cat([sample.gt_sem_seg.data for sample in data_samples])
        loss = self.decode_head.loss_decode[0]
        return {'loss_ce': loss(out, label, ignore_index=255)}


def sample(name: str, bad: int = 0) -> dict:
    label = torch.ones(1, 4, 5, dtype=torch.long)
    label[0, 2, :bad] = 3
    packed = SegDataSample(metainfo={'img_path': name})
    packed.gt_sem_seg = PixelData(data=label)
    return {'inputs': torch.rand(1, 4, 5), 'data_samples': packed}


def batch(*bad: int, prefix: str = '') -> dict:
    samples = [sample(f'{prefix}{i}.png', n) for i, n in enumerate(bad)]
    return {key: [sample[key] for sample in samples] for key in samples[0]}


class Samples(Dataset):
    """Six images, of which those named have bad pixels."""

    metainfo: dict = {}

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return sample(f'{index}.png', self.bad.get(index, 0))


def run(tmp_path, bad, **model) -> None:
    cfg = {
        'model': {'type': 'LabelRangeToy', **model},
        'work_dir': str(tmp_path),
        'train_dataloader': {
            'dataset': Samples(bad),
            'batch_size': 2,
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
        },
        'train_cfg': {'by_epoch': True, 'max_epochs': 1},
        'optim_wrapper': {'optimizer': {'type': 'SGD', 'lr': 0.1}},
        'custom_hooks': [{'type': 'mmext.LabelRangeHook'}],
        'default_hooks': {'checkpoint': None},
        'default_scope': 'mmengine',
        'experiment_name': tmp_path.name,
    }
    RUNNERS.get('mmext.PortableRunner').from_cfg(Config(cfg)).train()


@pytest.mark.parametrize('deferred', [None, True])
def test_names_loss_iteration_and_image(tmp_path, deferred, clean_globals):
    with pytest.raises(LabelRangeError) as caught:
        run(tmp_path, {3: 2}, deferred=deferred)
    text = str(caught.value)
    assert text.startswith('decode_head.loss_decode.0 (loss_ce): 2 pixels')
    assert '[iteration 2, rank 0]' in text
    assert '3.png: 2 pixels, first 3 at (y=2, x=0)' in text


def test_last_iteration_is_not_lost(tmp_path, clean_globals, monkeypatch):
    """Results that had not come by the last step are waited for."""
    monkeypatch.setattr(LabelRangeHook, 'after_train_iter', lambda *a, **k: 0)
    with pytest.raises(LabelRangeError, match=r'\[iteration 3, rank 0\]'):
        run(tmp_path, {5: 1}, deferred=True)


def test_ignored_labels_are_summed_up(tmp_path, clean_globals):
    run(tmp_path, {1: 2, 4: 3}, deferred=True, out_of_range='ignore')
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert '5 labels out of range were left out of the loss' in log


def on_two_ranks(tmp_path, wrapper, deferred):
    """Train; only rank 1 has a bad label, in its second step."""

    def work(rank):
        model = wrapper(Model(deferred=deferred))
        optim = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
        hook = LabelRangeHook()
        runner = SimpleNamespace(
            model=model, iter=0, logger=logging.getLogger()
        )
        hook.before_train(runner)
        for step in range(4):
            runner.iter = step
            wrong = 2 if (rank, step) == (1, 1) else 0
            data = batch(0, wrong, prefix=f'rank{rank}_')
            hook.before_train_iter(runner, step, data)
            model.train_step(data, optim)
            hook.after_train_iter(runner, step, data)
            (tmp_path / f'step.{rank}').write_text(str(step))

    results = results_of_ranks(work, tmp_path)
    # The second step is the last one on both.
    for rank in range(2):
        assert (tmp_path / f'step.{rank}').read_text() == '0'
    return results


@pytest.mark.xdist_group('processes')
def test_all_ranks_stop_with_our_wrapper(tmp_path):
    """On CPUs: at once, the wrapper passes it to the other rank."""
    other, own = on_two_ranks(tmp_path, DistributedDataParallel, None)
    assert (own['error'], other['error']) == ('LabelRangeError', 'PeerError')
    assert 'rank1_1.png: 2 pixels, first 3' in own['text']
    # One line, as the rank that has the cause shows all of it.
    assert 'rank 1: LabelRangeError: ' in other['text']
    assert '\n' not in other['text']


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    'wrapper', [DistributedDataParallel, MMDistributedDataParallel]
)
def test_all_ranks_stop_where_errors_come_later(tmp_path, wrapper):
    """As on GPUs: both raise, after the same step, with the same text."""
    other, own = on_two_ranks(tmp_path, wrapper, True)
    assert own['error'] == other['error'] == 'LabelRangeError'
    assert own['text'] == other['text']
    assert '[iteration 2, rank 1]' in own['text']
    assert 'rank1_1.png: 2 pixels' in own['text']
