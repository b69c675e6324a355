"""Size of an image as it will be loaded."""

from ..facts import ImageFacts

__all__ = ['loaded_size']

_QUARTER_TURNS = (5, 6, 7, 8)


def loaded_size(image: ImageFacts) -> tuple[int, int]:
    """Width and height as loaded: MMCV turns images as EXIF says.

    Args:
        image: One that could be read.

    Examples:
        >>> loaded_size(ImageFacts(width=4, height=3, orientation=6))
        (3, 4)
    """
    if image.orientation in _QUARTER_TURNS:
        return image.height, image.width
    return image.width, image.height
