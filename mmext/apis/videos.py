"""Read videos frame by frame, and write them whole or not at all."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from mmengine.logging import print_log

from ..utils.files import atomic_path
from .infer import UnreadableImageError


class Video:
    """A video file; iterating over it gives its frames, once.

    OpenCV decodes it. Sound is not read.

    Args:
        path: The file.

    Attributes:
        path: The file.
        fps: Frames per second.
        num_frames: What the file says about its number of frames, which some
            formats only estimate.

    Raises:
        UnreadableImageError: If it is no video, or has no frame rate.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._capture = cv2.VideoCapture(str(path))
        if not self._capture.isOpened():
            raise UnreadableImageError(
                f'video must be a whole file that OpenCV can read, got {path}'
                '; repair it or convert it to .mp4'
            )
        self.fps = self._capture.get(cv2.CAP_PROP_FPS)
        count = self._capture.get(cv2.CAP_PROP_FRAME_COUNT)
        self.num_frames = max(int(count), 0)
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise UnreadableImageError(
                f'video must have a frame rate, got {self.fps} from {path}; '
                'convert it to .mp4'
            )

    def __iter__(self) -> Iterator[np.ndarray]:
        """Frames, ``(H, W, 3)``, uint8, blue green red.

        UnreadableImageError if there is none. A log line says if there are
        fewer than the file says.
        """
        number = 0
        try:
            while (frame := self._capture.read()[1]) is not None:
                number += 1
                yield frame
        finally:
            self._capture.release()
        if not number:
            raise UnreadableImageError(
                f'video must have frames that OpenCV can decode, got '
                f'{self.path}; repair it or convert it to .mp4'
            )
        if number < self.num_frames:
            print_log(
                f'{self.path} ends after {number} frames; by its header there '
                f'are {self.num_frames}: it may be cut off',
                logger='current',
                level=logging.WARNING,
            )


@contextmanager
def write_video(
    path: str | Path, fps: float
) -> Iterator[Callable[[np.ndarray], None]]:
    """Give a function that appends a frame to a video, VP9 in MP4.

    Browsers play it. The file appears when the block succeeds, and takes the
    place of an older one; when it raises, there is none. Frames are ``(H, W,
    3)``, uint8, red green blue, of one size. As OpenCV writes even sizes
    only, the last row or column of an odd one is there twice.

    Args:
        path: Ends in ``.mp4``.
        fps: Frames per second.

    Raises:
        OSError: If it cannot be written.
    """
    count = 0
    with atomic_path(path) as temporary:
        writer = cv2.VideoWriter()

        def write(frame: np.ndarray) -> None:
            nonlocal count
            height, width = frame.shape[:2]
            frame = np.pad(
                frame[..., ::-1],
                ((0, height % 2), (0, width % 2), (0, 0)),
                mode='edge',
            )
            size = frame.shape[1::-1]
            code = cv2.VideoWriter_fourcc(*'vp09')
            if not count and not writer.open(str(temporary), code, fps, size):
                raise OSError(
                    f'{path} cannot be written: OpenCV cannot make a VP9 '
                    f'video of {size[0]} x {size[1]} pixels and {fps:g} '
                    'frames per second there; the wheels of opencv-python '
                    'have that encoder'
                )
            writer.write(frame)
            count += 1

        try:
            yield write
        finally:
            writer.release()
        # The writer says nothing of a full disk.
        check = cv2.VideoCapture(str(temporary))
        written = int(check.get(cv2.CAP_PROP_FRAME_COUNT))
        check.release()
        if written != count:
            raise OSError(
                f'{path} cannot be written: {written} of {count} frames are '
                'in the file; is the disk full?'
            )
