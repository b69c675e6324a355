"""Put pictures side by side and into a grid, with titles."""

from collections.abc import Sequence

import numpy as np

from ._labels import font_size, title_bar

__all__ = ['side_by_side', 'tile_sheet']

_PAPER = 250


def _paper(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), _PAPER, dtype=np.uint8)


def side_by_side(
    panels: Sequence[np.ndarray], titles: Sequence[str], *, gap: int = 6
) -> np.ndarray:
    """Put pictures next to each other, each under its title.

    Args:
        panels: At least one picture ``(H, W, 3)``, uint8; lower ones stand
            at the top.
        titles: One line of text for each.
        gap: Pixels between the panels.

    Returns:
        One picture.

    Raises:
        ValueError: If there is no panel, or not one title for each.
    """
    if not panels or len(panels) != len(titles):
        raise ValueError(
            'panels must be at least one, with one title each, got '
            f'{len(panels)} with {len(titles)} titles'
        )
    height = max(panel.shape[0] for panel in panels)
    size = font_size(max(max(panel.shape[:2]) for panel in panels))
    columns = []
    for panel, title in zip(panels, titles):
        low, wide = panel.shape[:2]
        parts = [
            title_bar(title, wide, size),
            panel,
            _paper(height - low, wide),
        ]
        columns += [np.concatenate(parts), None]
    columns.pop()
    strip = _paper(columns[0].shape[0], gap)
    return np.concatenate(
        [strip if column is None else column for column in columns], axis=1
    )


def tile_sheet(
    tiles: Sequence[np.ndarray], *, columns: int, gap: int = 14
) -> np.ndarray:
    """Put pictures into the cells of a grid, row by row.

    Args:
        tiles: At least one picture ``(H, W, 3)``, uint8, of any sizes.
        columns: Number of cells in a row.
        gap: Pixels between the cells and around them.

    Returns:
        One picture; a row is as high as its highest tile.

    Raises:
        ValueError: If there is no tile, or no column.
    """
    if not tiles or columns < 1:
        raise ValueError(
            'tiles and columns must be at least one, got '
            f'{len(tiles)} and {columns}'
        )
    columns = min(columns, len(tiles))
    wide = max(tile.shape[1] for tile in tiles)
    sheet = [_paper(gap, columns * (wide + gap) + gap)]
    for start in range(0, len(tiles), columns):
        row = tiles[start : start + columns]
        height = max(tile.shape[0] for tile in row)
        strip = _paper(height + gap, sheet[0].shape[1])
        for index, tile in enumerate(row):
            left = gap + index * (wide + gap)
            strip[: tile.shape[0], left : left + tile.shape[1]] = tile
        sheet.append(strip)
    return np.concatenate(sheet)
