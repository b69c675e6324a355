"""Images of a split, to find those that are the same or look alike."""

import pickle
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import IO, NamedTuple

import numpy as np

from .facts import ImageFacts

__all__ = ['ImageRow', 'ImagesByDigest']

_BLOCK = 1024


class ImageRow(NamedTuple):
    """One image, for the search of duplicates.

    Attributes:
        digest: Of its bytes.
        fingerprint: 64 bits, alike for images that look alike; -1 if
            unknown.
        path: As the data set names it.
    """

    digest: str
    fingerprint: int
    path: str


class ImagesByDigest:
    """Digest, fingerprint and path of images, in temporary files.

    What all images are compared by comes as columns; rows are given of those
    that turn out to be of interest. The files are removed with the object.

    Args:
        images: Path and facts of each image, see :meth:`add`.

    Note:
        Memory does not depend on the number of images, but for 8 bytes of
        each thousand, and 16 bytes of each while its columns are in use.

    Examples:
        >>> images = ImagesByDigest([('b.jpg', ImageFacts(digest='9f')),
        ...                          ('a.jpg', ImageFacts(digest='03'))])
        >>> images.rows([1])
        [ImageRow(digest='03', fingerprint=-1, path='a.jpg')]
    """

    def __init__(self, images: Iterable[tuple[str, ImageFacts]] = ()):
        # Open as long as the object lives.
        self._files = [
            tempfile.TemporaryFile()  # noqa: SIM115
            for _ in range(3)
        ]
        weakref.finalize(self, _close, self._files)
        # Where each block of rows begins in the last of the files.
        self._begins: list[int] = []
        self._new: list[ImageRow] = []
        for path, facts in images:
            self.add(path, facts)

    def add(self, path: str, facts: ImageFacts) -> None:
        """Add an image.

        Args:
            path: As the data set names it.
            facts: Without a digest it could not be read at all, and is left
                out, which its facts tell.
        """
        self.extend((path,), (facts.digest,), (facts.fingerprint,))

    def extend(
        self,
        paths: Sequence[str],
        digests: Sequence[str],
        fingerprints: Sequence[int],
    ) -> None:
        """Add images, as many as may be in memory.

        Args:
            paths: Of each.
            digests: Of each; an empty one leaves it out.
            fingerprints: Of each.
        """
        rows = zip(digests, fingerprints, paths)
        self._new.extend(row for row in rows if row[0])
        while len(self._new) >= _BLOCK:
            block, self._new = self._new[:_BLOCK], self._new[_BLOCK:]
            for file, column in zip(self._files, _columns(block)):
                column.tofile(file)
            rows = self._files[-1]
            self._begins.append(rows.tell())
            rows.write(pickle.dumps(block))

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """What images are compared by.

        Returns:
            Two arrays ``(n,)`` in the order in which images were added:
            int64, the same for the same digest, in this process, and hardly
            ever for two; uint64, the fingerprints, 0 for unknown ones.
        """
        parts = []
        for file, new in zip(self._files, _columns(self._new)):
            file.flush()
            size = file.seek(0, 2)
            file.seek(0)
            stored = np.frombuffer(file.read(size), new.dtype)
            parts.append(np.concatenate((stored, new)))
        return parts[0], parts[1]

    def rows(self, numbers: Iterable[int]) -> list[ImageRow]:
        """Look up images.

        Args:
            numbers: Positions in the order in which they were added, those
                of neighbours one after the other.

        Returns:
            A row for each.
        """
        found: list[ImageRow] = []
        last, rows = -1, []
        file = self._files[-1]
        for number in numbers:
            block, place = divmod(number, _BLOCK)
            if block == len(self._begins):
                rows, last = self._new, block
            elif block != last:
                file.seek(self._begins[block])
                # Written by this object, and seen by no other process.
                rows, last = pickle.load(file), block
            found.append(ImageRow(*rows[place]))
        file.seek(0, 2)
        return found

    def __len__(self) -> int:
        return _BLOCK * len(self._begins) + len(self._new)


def _columns(rows: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and fingerprints."""
    keys = (hash(digest) for digest, _, _ in rows)
    prints = (max(fingerprint, 0) for _, fingerprint, _ in rows)
    return (
        np.fromiter(keys, np.int64, len(rows)),
        np.fromiter(prints, np.uint64, len(rows)),
    )


def _close(files: Sequence[IO[bytes]]) -> None:
    for file in files:
        file.close()
