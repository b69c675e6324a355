import copy
import pickle

import cv2
import numpy as np
import pytest
from helpers import toy_training as toy
from helpers.loader_workers import shut_down_loaders
from mmengine.dataset import BaseDataset, ConcatDataset
from mmengine.runner.runner import _SlicedDataset
from torch.utils.data import DataLoader

from mmext.engine import SampleError
from mmext.engine.sample_errors import name_failing_samples


class Images(BaseDataset):
    """Image files of a folder."""

    def __init__(self, folder, pipeline, **kwargs):
        self.folder = folder
        super().__init__(pipeline=pipeline, serialize_data=False, **kwargs)

    def load_data_list(self):
        return [dict(img_path=str(p)) for p in sorted(self.folder.iterdir())]


@pytest.fixture
def folder(tmp_path):
    for name in ('0.png', '1.png'):
        cv2.imwrite(str(tmp_path / name), np.zeros((4, 4, 3), np.uint8))
    return tmp_path


@pytest.fixture
def data(folder):
    """Builds a data set that loads images; mmcv's transform, as hosts do."""
    from mmcv.transforms import LoadImageFromFile

    def make(*more):
        return Images(folder, [LoadImageFromFile(), *more])

    return make


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (b'', 'the file is empty'),
        (b'\x89PNG but nothing more', 'no image that can be decoded'),
    ],
)
def test_damaged_image_is_named(data, folder, content, said):
    (folder / '1.png').write_bytes(content)
    dataset = data()
    name_failing_samples(dataset)
    with pytest.raises(
        SampleError,
        match=(rf"sample 1 of Images, image '.*1.png', cannot be .*{said}"),
    ):
        dataset[1]
    assert dataset[0]['img'] is not None


def test_missing_image_is_named(data, folder):
    dataset = data()
    dataset.full_init()
    (folder / '0.png').unlink()
    name_failing_samples(dataset)
    with pytest.raises(SampleError, match=r'0.png.* does not exist; put it b'):
        dataset[0]


def fail(results):
    raise KeyError('gt_bboxes')


def test_failing_transform_is_not_blamed_on_the_image(data):
    dataset = data(fail)
    name_failing_samples(dataset)
    with pytest.raises(
        SampleError,
        match=(r"the image is readable, a step .*KeyError: 'gt_bboxes'"),
    ) as info:
        dataset[0]
    assert isinstance(info.value.__cause__, KeyError)


@pytest.mark.parametrize(
    'wrap',
    [
        lambda d: _SlicedDataset(d, 3),
        lambda d: ConcatDataset(
            [
                toy.ToyDataset(size=3),
                dict(
                    type='RepeatDataset',
                    times=2,
                    dataset=dict(type='ToyDataset', size=4, broken=1),
                ),
            ]
        ),
    ],
)
def test_data_sets_inside_wrappers(wrap):
    dataset = wrap(toy.ToyDataset(size=4, broken=1))
    name_failing_samples(dataset)
    with pytest.raises(SampleError, match='sample 1 of ToyDataset'):
        [dataset[index] for index in range(len(dataset))]


def test_named_once_only():
    class Outer(toy.ToyDataset):
        def prepare_data(self, idx):
            return self.dataset.prepare_data(idx)

    outer = Outer()
    outer.dataset = toy.ToyDataset(broken=1)
    name_failing_samples(outer)
    with pytest.raises(SampleError) as info:
        outer[1]
    assert str(info.value).count('cannot be prepared') == 1


def test_worker_process_passes_it_on():
    dataset = toy.ToyDataset(broken=1)
    name_failing_samples(dataset)
    loader = DataLoader(dataset, num_workers=1, collate_fn=list)
    with pytest.raises(SampleError, match=r"image '1.jpg'"):
        list(loader)
    shut_down_loaders()


def test_copies_and_pickles_are_of_their_own():
    dataset = toy.ToyDataset(broken=1)
    name_failing_samples(dataset)
    for copied in (
        copy.deepcopy(dataset),
        pickle.loads(pickle.dumps(dataset)),
    ):
        assert copied.prepare_data.dataset is copied
        with pytest.raises(SampleError):
            copied[1]


def test_interrupts_pass():
    class Interrupted(toy.ToyDataset):
        def prepare_data(self, idx):
            raise KeyboardInterrupt

    dataset = Interrupted()
    name_failing_samples(dataset)
    with pytest.raises(KeyboardInterrupt):
        dataset[0]
