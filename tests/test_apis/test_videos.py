"""Videos come back as they went in, or not at all."""

import os

import cv2
import numpy as np
import pytest

from mmext.apis import prediction_files
from mmext.apis.infer import UnreadableImageError
from mmext.apis.prediction_files import Video, write_video


def write(path, frames, fps=30000 / 1001):
    with write_video(path, fps) as add:
        for frame in frames:
            add(frame)


def colours(size, count=4):
    """Frames of one colour each, red green blue."""
    levels = [(60 * n, 200 - 40 * n, 90) for n in range(count)]
    return [np.full((*size[::-1], 3), level, np.uint8) for level in levels]


def test_frames_and_rate_come_back(tmp_path):
    path = tmp_path / 'new' / 'a.mp4'
    frames = colours((64, 48))
    write(path, frames)
    video = Video(path)
    assert video.num_frames == 4
    assert video.fps == pytest.approx(29.97, abs=1e-3)
    results = list(video)
    for one, other in zip(results, frames, strict=True):
        assert one.shape == other.shape
        # As VP9 has them.
        assert np.abs(one[..., ::-1].astype(int) - other).max() <= 6


def test_odd_sizes_get_a_pixel(tmp_path):
    (frame,) = colours((63, 47), 1)
    frame[-1], frame[:, -1] = 255, 255
    write(tmp_path / 'a.mp4', [frame])
    (video,) = Video(tmp_path / 'a.mp4')
    assert video.shape == (48, 64, 3)
    assert video[-1].mean() > 200
    assert video[:, -1].mean() > 200


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / 'a.mp4'
    path.write_bytes(b'older')

    def frames():
        yield from colours((64, 48))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, frames())
    assert path.read_bytes() == b'older'
    assert os.listdir(tmp_path) == ['a.mp4']


def test_frames_of_two_sizes_are_no_video(tmp_path):
    """OpenCV leaves those of another size out in silence."""
    frames = [*colours((64, 48)), *colours((32, 32))]
    with pytest.raises(OSError, match='4 of 8 frames are in the file'):
        write(tmp_path / 'a.mp4', frames)
    assert os.listdir(tmp_path) == []


def test_a_place_that_takes_no_video(tmp_path, monkeypatch):
    monkeypatch.setattr(cv2, 'VideoWriter_fourcc', lambda *code: 0x31313131)
    with pytest.raises(OSError, match=r'VP9 video of 64 x 48 pixels'):
        write(tmp_path / 'a.mp4', colours((64, 48)), fps=-1)
    assert os.listdir(tmp_path) == []


def test_missing_frames_are_told(tmp_path, monkeypatch):
    path = tmp_path / 'a.mp4'
    write(path, colours((64, 48)))
    video = Video(path)
    video.num_frames = 7
    said = []
    monkeypatch.setattr(
        prediction_files,
        'print_log',
        lambda text, *_, **__: said.append(text),
    )
    assert len(list(video)) == 4
    (line,) = said
    assert 'ends after 4 frames; by its header there are 7' in line


def test_a_video_without_frames(tmp_path):
    path = tmp_path / 'a.mp4'
    write(path, colours((64, 48)))
    video = Video(path)
    assert len(list(video)) == 4
    with pytest.raises(UnreadableImageError, match='must have frames'):
        next(iter(video))
