import json

import cv2
import numpy as np
import pytest
import torch
from helpers.tiny_mae import mae_config, tiny_mae
from helpers.toy_ranks import load_tool
from mmengine.config import Config

from mmext.apis import Predictor, infer_images, infer_to_folder

MODEL = dict(
    data_preprocessor=dict(
        type='ImgDataPreprocessor',
        mean=[123.0, 116.0, 103.0],
        std=[58.0, 57.0, 57.0],
        bgr_to_rgb=True,
    )
)


@pytest.fixture
def model():
    model = tiny_mae(**MODEL).eval()
    model.cfg = Config(dict(default_scope='mmdet'))
    model.dataset_meta = {'classes': ()}
    return model


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    paths = []
    for number in range(3):
        small = rng.integers(0, 255, (4, 4, 3), np.uint8)
        path = tmp_path / f'{number}.png'
        cv2.imwrite(str(path), cv2.resize(small, (48, 40)))
        paths.append(path)
    return paths


def test_pictures_and_losses(model, images):
    alone = list(infer_images(model, images))
    together = list(infer_images(model, images, batch_size=2))
    assert [result.path for result in together] == images
    for one, other in zip(alone, together):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.picture.shape == (32, 104, 3)
    array = Predictor(model)(cv2.imread(str(images[0])))
    assert array.loss == pytest.approx(alone[0].loss, rel=1e-5)
    np.testing.assert_array_equal(array.plot(), alone[0].picture)
    # Red first, at the size of the model.
    shown = alone[0].picture[:, :32].astype(int)
    expected = cv2.resize(cv2.imread(str(images[0])), (32, 32))[..., ::-1]
    assert abs(shown - expected).mean() < 6


def test_no_annotations(model, images, tmp_path):
    with pytest.raises(ValueError, match='has no annotations'):
        infer_to_folder(model, images, tmp_path / 'out', sheet=True)


def test_tool(images, tmp_path, capsys):
    config, weights = tmp_path / 'config.py', tmp_path / 'mae.pth'
    Config(dict(model=mae_config(**MODEL), default_scope='mmdet')).dump(config)
    torch.save({'state_dict': tiny_mae(**MODEL).state_dict()}, weights)
    out = tmp_path / 'out'
    args = ['--config', config, '--checkpoint', weights, '--out', out]
    images[1].write_bytes(b'nothing')
    code = load_tool('infer').main([*map(str, [*images, *args])])
    assert code == 1
    printed = capsys.readouterr()
    assert '2 images; predictions in' in printed.out
    assert 'error: image must be a whole image file' in printed.err
    rows = json.loads((out / 'predictions.json').read_text())['images']
    assert all(row['loss'] > 0 for row in rows)
    assert cv2.imread(rows[0]['picture']).shape == (32, 104, 3)
    video = tmp_path / 'a.mp4'
    video.touch()
    with pytest.raises(SystemExit):
        load_tool('infer').main([*map(str, [video, *args])])
    assert 'a MAE predicts images only, got the' in capsys.readouterr().err
