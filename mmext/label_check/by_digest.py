"""Images in the order of their digests, so that equal ones are neighbours."""

import sqlite3
from collections.abc import Iterable, Iterator

from .facts import ImageFacts

__all__ = ['ImagesByDigest']


class ImagesByDigest:
    """Digest, fingerprint and path of images, sorted on disk.

    Can be iterated any number of times. The rows are in a temporary file of
    SQLite, which is removed with the object, so memory does not depend on
    their number.

    Args:
        images: Path and facts of each image, see :meth:`add`.

    Examples:
        >>> rows = ImagesByDigest([('b.jpg', ImageFacts(digest='9f')),
        ...                        ('a.jpg', ImageFacts(digest='03'))])
        >>> list(rows)
        [('03', -1, 'a.jpg'), ('9f', -1, 'b.jpg')]
    """

    def __init__(self, images: Iterable[tuple[str, ImageFacts]] = ()):
        # An empty name is a data base that SQLite makes for itself.
        self._db = sqlite3.connect('', isolation_level=None)
        self._db.execute(
            'CREATE TABLE images (digest TEXT, path BLOB, fingerprint TEXT, '
            'PRIMARY KEY (digest, path)) WITHOUT ROWID'
        )
        self._db.execute('BEGIN')
        for path, facts in images:
            self.add(path, facts)

    def add(self, path: str, facts: ImageFacts) -> None:
        """Add an image.

        Args:
            path: As the data set names it.
            facts: Without a digest it could not be read at all, and is left
                out, which its facts tell.
        """
        if facts.digest:
            # Fingerprints have 64 bits and no sign; SQLite's integers have
            # one.
            self._db.execute(
                'INSERT OR IGNORE INTO images VALUES (?,?,?)',
                (
                    facts.digest,
                    path.encode('utf-8', 'surrogateescape'),
                    str(facts.fingerprint),
                ),
            )

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        query = 'SELECT digest, fingerprint, path FROM images ORDER BY 1, 3'
        for digest, fingerprint, path in self._db.execute(query):
            name = path.decode('utf-8', 'surrogateescape')
            yield digest, int(fingerprint), name

    def __len__(self) -> int:
        return self._db.execute('SELECT count(*) FROM images').fetchone()[0]
