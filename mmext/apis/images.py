"""Find the images a user named, and names for what is made of them."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ['IMAGE_SUFFIXES', 'list_images', 'output_paths']

IMAGE_SUFFIXES = (
    '.bmp',
    '.jpeg',
    '.jpg',
    '.png',
    '.pgm',
    '.ppm',
    '.tif',
    '.tiff',
    '.webp',
)
_KEPT_SUFFIXES = ('.png', '.jpg', '.jpeg')


def _image_files(paths: Sequence[Path]) -> list[Path]:
    return sorted(
        path
        for path in paths
        if path.suffix.lower() in IMAGE_SUFFIXES
        and path.is_file()
        and not path.name.startswith('.')
    )


def list_images(sources: Sequence[str | Path]) -> list[Path]:
    """Turn files, directories and patterns into a list of files.

    A directory stands for the image files right in it, a pattern such as
    ``'a/**/*.jpg'`` for the image files it matches; both go by the suffix
    and leave hidden files out. A file is taken as it is. The same file is
    listed once.

    Args:
        sources: What the user named. Order is kept, the content of a
            directory or pattern is sorted.

    Returns:
        At least one existing file.

    Raises:
        FileNotFoundError: If any of the sources does not exist or holds no
            image. The message names all of them.
        ValueError: If there is no source.
    """
    if not sources:
        raise ValueError('images must name at least one file, got none')
    found: dict[Path, Path] = {}
    missing = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            files = _image_files(list(path.iterdir()))
        elif path.exists():
            files = [path]
        else:
            matches = glob.glob(str(source), recursive=True)
            files = _image_files([Path(match) for match in matches])
        if not files:
            missing.append(
                f'{source} '
                + (
                    '(a directory without images)'
                    if path.is_dir()
                    else '(does not exist)'
                )
            )
        for file in files:
            found.setdefault(file.resolve(), file)
    if missing:
        raise FileNotFoundError(
            'images must be existing files, directories with images or '
            f'patterns that match some, got {", ".join(missing)}; known '
            f'suffixes in directories are {" ".join(IMAGE_SUFFIXES)}'
        )
    return list(found.values())


def output_paths(images: Sequence[Path], out_dir: str | Path) -> list[Path]:
    """Choose a picture file in ``out_dir`` for each image.

    It has the image's name, with ``.png`` appended unless the name ends in
    ``.png``, ``.jpg`` or ``.jpeg``. When two images have the same name, all
    keep their folders below the deepest folder they share.

    Args:
        images: Files, no two the same.
        out_dir: The folder the pictures go to; need not exist.

    Returns:
        One path per image, no two the same.

    Raises:
        ValueError: If a picture would take the place of one of the images.

    Examples:
        >>> [path.as_posix() for path in output_paths(
        ...     [Path('a/x.jpg'), Path('a/y.bmp')], 'out')]
        ['out/x.jpg', 'out/y.bmp.png']
        >>> [path.as_posix() for path in output_paths(
        ...     [Path('a/x.jpg'), Path('b/x.jpg')], 'out')]
        ['out/a/x.jpg', 'out/b/x.jpg']
    """
    full = [Path(os.path.abspath(image)) for image in images]
    names = [Path(image.name) for image in full]
    if len(set(names)) < len(names):
        shared = os.path.commonpath([image.parent for image in full])
        names = [image.relative_to(shared) for image in full]
    paths = []
    for name in names:
        keep = name.suffix.lower() in _KEPT_SUFFIXES
        paths.append(
            Path(out_dir, name if keep else name.with_name(f'{name.name}.png'))
        )
    inputs = {image.resolve() for image in full}
    for path in paths:
        if path.resolve() in inputs:
            raise ValueError(
                'out must not be a folder of the images, got '
                f'{out_dir}, where {path} would be written over; choose '
                'another folder'
            )
    return paths
