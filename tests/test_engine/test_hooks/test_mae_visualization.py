import numpy as np
import pytest
import torch
from helpers import toy_training as toy
from helpers.tiny_mae import mae_config, tiny_mae
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from mmengine.structures import BaseDataElement

from mmext.engine import MAEVisualizationHook, draw_reconstruction


@DATASETS.register_module(force=True)
class Stripes(BaseDataset):
    """Packed pictures of 32 x 32."""

    def load_data_list(self):
        return [dict(number=index) for index in range(6)]

    def prepare_data(self, idx):
        generator = torch.Generator().manual_seed(idx)
        image = torch.randint(
            0, 255, (3, 32, 32), generator=generator, dtype=torch.uint8
        )
        return dict(
            inputs=image,
            data_samples=BaseDataElement(metainfo=dict(number=idx)),
        )


MODEL = mae_config(
    data_preprocessor=dict(
        type='ImgDataPreprocessor', mean=[99.0] * 3, std=[60.0] * 3
    )
)


def run(folder, **changes):
    """Three epochs of three steps."""
    loader = toy.loader(shuffle=False)
    loader['dataset'] = dict(type='Stripes', serialize_data=False)
    runner = toy.build(
        folder,
        **dict(
            model=MODEL,
            train_dataloader=loader,
            val_dataloader=None,
            val_cfg=None,
            val_evaluator=None,
        )
        | changes,
    )
    drawn = []
    runner.visualizer.add_image = lambda name, image, step: drawn.append(
        (step, name, image)
    )
    runner.train()
    return drawn, toy.read_trace(folder / 'trace.0')


def test_draws_and_leaves_the_training_as_it_is(tmp_path):
    hook = dict(type='mmext.MAEVisualizationHook', interval=2, num_images=1)
    drawn, trace = run(tmp_path / 'with', custom_hooks=[hook])
    assert [location[:2] for location in drawn] == [
        (0, 'reconstruction_0'),
        (6, 'reconstruction_0'),
    ]
    first, last = (image for *_, image in drawn)
    assert first.shape == (32, 3 * 32 + 8, 3)
    assert first.dtype == np.uint8
    # The same picture with the same mask, and another model.
    assert np.array_equal(first[:, :68], last[:, :68])
    assert not np.array_equal(first[:, 72:], last[:, 72:])
    _, plain = run(tmp_path / 'without')
    assert trace == plain


def test_iterations(tmp_path):
    hook = dict(type='mmext.MAEVisualizationHook', interval=2, num_images=9)
    loader = toy.loader(sampler='InfiniteSampler')
    loader['dataset'] = dict(type='Stripes', serialize_data=False)
    drawn, _ = run(
        tmp_path,
        custom_hooks=[hook],
        train_dataloader=loader,
        train_cfg=dict(by_epoch=False, max_iters=3),
        param_scheduler=[],
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=9)
        ),
    )
    assert [step for step, *_ in drawn] == [0, 0, 2, 2]


def test_refuses_other_models(tmp_path):
    hook = dict(type='mmext.MAEVisualizationHook')
    with pytest.raises(TypeError, match=r'must be an mmext\.MAE'):
        toy.train(tmp_path, custom_hooks=[hook])


@pytest.mark.parametrize('name', ['interval', 'num_images'])
def test_wrong_arguments(name):
    with pytest.raises(ValueError, match=f'{name} must be at least 1'):
        MAEVisualizationHook(**{name: 0})


def test_pictures_beside_each_other():
    (sample,) = tiny_mae().predict(torch.rand(1, 3, 32, 32) * 255)
    picture = draw_reconstruction(sample)
    assert np.array_equal(
        picture[:, :32], sample.original.permute(1, 2, 0).numpy()
    )
    assert (picture[:, 32:36] == 255).all()
    with pytest.raises(ValueError, match=r"none of .*'original'"):
        draw_reconstruction(BaseDataElement())
