"""What the region operators have in common: checks, and pixels as a table.

Shape letters: N images, C channels, H W map size, R regions, U pixels in use.
"""

import torch
from torch import Tensor

from ..utils.precision import wide_type


def check_rois(rois: Tensor, images: int) -> None:
    """Refuse regions that the compiled operators would read memory with.

    ``rois``: ``(R, 5)``: image, x1 y1 x2 y2.
    """
    image = rois[:, 0]
    good = rois.isfinite().all(1) & (image >= 0) & (image < images)
    if not good.all():
        first = int(good.logical_not().nonzero()[0])
        raise ValueError(
            f'rois must be finite with an image index in [0, {images}), got '
            f'{rois[first].tolist()} at index {first}'
        )


class PixelTable:
    """The pixels of a feature map that some windows cover, as table rows.

    Rows of all channels are what :mod:`mmext.ops._rows` sums. Bringing a map
    into that order costs as much as a few dozen regions, so it is done only
    for the pixels that are needed, or for a whole image where those are most.

    Args:
        shape: ``(N, C, H, W)`` of the map.
        image: ``(R,)``, int64, image of every window.
        first: ``(R, 2)``, int64, first row and column of every window.
        last: ``(R, 2)``, int64, last row and column; inside the map.
    """

    def __init__(
        self, shape: torch.Size, image: Tensor, first: Tensor, last: Tensor
    ) -> None:
        images, self.channels, height, width = shape
        # A window adds 1 at its corner and takes it away past its edges, so
        # that sums along both axes count the windows over each pixel.
        marks = torch.zeros(
            images, height + 1, width + 1, dtype=torch.int, device=image.device
        )
        (y0, x0), (y1, x1) = first.unbind(1), (last + 1).unbind(1)
        for y, x, sign in (
            (y0, x0, 1),
            (y0, x1, -1),
            (y1, x0, -1),
            (y1, x1, 1),
        ):
            one = torch.full_like(y, sign, dtype=torch.int)
            marks.index_put_((image, y, x), one, accumulate=True)
        used = marks.cumsum(1).cumsum(2)[:, :-1, :-1].flatten(1) > 0
        used |= used.float().mean(1, keepdim=True) > 0.5
        self._row = used.flatten().cumsum(0) - 1
        self._pixels = [row.nonzero()[:, 0] for row in used]

    def rows_of(self, index: Tensor) -> Tensor:
        """Table rows of pixels given as ``(n * H + y) * W + x``."""
        if len(self) == len(self._row):
            return index
        return self._row[index].clamp_(min=0)

    def __len__(self) -> int:
        return sum(len(pixels) for pixels in self._pixels)

    def read(self, source: Tensor) -> Tensor:
        """Copy the pixels out of a map.

        ``source``: ``(N, C, H, W)``, any floating type. Returns ``(U, C)``,
        float64 for float64, else float32.
        """
        table = source.new_empty(
            len(self), self.channels, dtype=wide_type(source)
        )
        parts = table.split([len(pixels) for pixels in self._pixels])
        for plane, pixels, part in zip(source.flatten(2), self._pixels, parts):
            whole = len(pixels) == plane.shape[1]
            part.copy_((plane if whole else plane[:, pixels]).t())
        return table

    def add_to_(self, target: Tensor, table: Tensor) -> None:
        """Add the rows to the pixels of a map in place.

        ``target``: ``(N, C, H, W)``, any floating type; ``table``: ``(U, C)``.
        """
        parts = table.split([len(pixels) for pixels in self._pixels])
        for plane, pixels, part in zip(target.flatten(2), self._pixels, parts):
            part = part.t().to(target.dtype)
            if len(pixels) == plane.shape[1]:
                plane.add_(part)
            else:
                plane.index_add_(1, pixels, part)
