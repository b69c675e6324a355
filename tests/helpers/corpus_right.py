"""Right configs, in which the tool must find no error."""

from pathlib import Path

from helpers.corpus_bases import BASES, write_base

NAMES = tuple(f'base_{name}' for name in BASES)


def write_right(name: str, data: Path, folder: Path) -> Path:
    """Write a right config."""
    return write_base(name.removeprefix('base_'), data, folder)
