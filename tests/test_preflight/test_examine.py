"""Build a model and train it, as asked."""

from mmengine.config import Config
from mmseg.models import EncoderDecoder
from reduce_semantic_config import reduce_model
from torch import nn

import mmext
from mmext.preflight.examine import examine, fit_batch_size
from mmext.preflight.settings import PreflightSettings


def run(cfg: Config, **options):
    options = {'batches': ('normal',), **options}
    told = []
    found = examine(cfg, PreflightSettings(config='x', **options), told.append)
    return found, told


def small_config() -> Config:
    return Config.fromfile(mmext.config_path('pidnet/pidnet_small_shapes.py'))


def test_batch_size():
    class Frozen(nn.BatchNorm2d):
        def train(self, mode=True):
            return super().train(False)

    assert fit_batch_size(nn.Sequential(nn.GroupNorm(1, 2), Frozen(2))) == 1
    assert fit_batch_size(nn.Sequential(Frozen(2), nn.BatchNorm2d(2))) == 2
    assert fit_batch_size(nn.GroupNorm(2, 2)) == 2


def test_proof():
    found, told = run(small_config(), image_size=(64, 64))
    assert [len(steps) for steps in found.proof.steps.values()] == [2]
    assert found.not_done == []
    assert told[0] == 'building the model'
    assert tuple(found.built.recipe.size) == (64, 64)


def test_kinds_that_mean_nothing():
    found, _ = run(
        small_config(), batches=('normal', 'empty'), image_size=(64, 64)
    )
    # The first kind shows what a step leaves behind.
    assert {k: len(s) for k, s in found.proof.steps.items()} == {
        'normal': 2,
        'empty': 1,
    }


def test_a_model_that_cannot_be_built():
    cfg = small_config()
    cfg.model.backbone.type = 'NoSuchNet'
    found, _ = run(cfg)
    assert found.built is found.proof is None
    assert 'NoSuchNet' in found.not_done[0]


def test_once_more_with_the_size_of_the_training(monkeypatch):
    """A layer that needs more than small pictures have."""
    forward = EncoderDecoder.extract_feat

    def picky(self, inputs):
        if inputs.shape[-1] < 256:
            raise RuntimeError('Output size is too small')
        return forward(self, inputs)

    monkeypatch.setattr(EncoderDecoder, 'extract_feat', picky)
    cfg = Config.fromfile(mmext.config_path('pidnet/pidnet_s_camvid.py'))
    model = cfg.to_dict()['model']
    cfg.model = reduce_model(model)
    cfg.model.data_preprocessor = model['data_preprocessor']
    found, told = run(cfg)
    assert found.proof.crashes == ()
    assert tuple(found.built.recipe.size) == (320, 320)
    assert 'are too small for it (Output size is too small)' in found.notes[-1]
    assert any(text.startswith('once more') for text in told)
    # What was asked for is not changed.
    first, _ = run(cfg, image_size=(64, 64))
    assert first.proof.crashes[0].message == 'Output size is too small'
