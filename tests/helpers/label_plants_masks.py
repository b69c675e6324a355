"""Errors in label maps: their values, and their files."""

import zlib

import numpy as np
from PIL import Image

from helpers.image_bytes import bare_png, chunk
from helpers.label_plants import Planted, plant
from helpers.label_sets import SIZES, DataSet

_ALL = sum(SIZES.values())
_PIXELS = 24 * 32


def _paint(data: DataSet, values: dict[tuple[int, int], int], index: int = 1):
    """Set single pixels of a label map; its file."""
    path = data.mask(index)
    with Image.open(path) as image:
        palette = image.getpalette()
        pixels = np.array(image)
    for position, value in values.items():
        pixels[position] = value
    image = Image.fromarray(pixels)
    if palette:
        image.putpalette(palette)
    image.save(path)
    return path


@plant('SEG001', 'semantic', 'wide', 'palette', 'camvid', 'folders')
@plant('SEG001', 'reduced')
def out_of_range(data: DataSet) -> Planted:
    at = {(5, 7): 77, (5, 8): 77, (23, 31): 77}
    return Planted(_paint(data, at), 'y=5, x=7', '77', count=3)


@plant('SEG001', 'semantic', 'folders')
def first_and_last_pixel(data: DataSet) -> Planted:
    at = {(0, 0): 3, (23, 31): 3}
    return Planted(_paint(data, at), 'y=0, x=0', '3', count=2)


@plant('SEG001', 'camvid')
def void_that_is_not_ignored(data: DataSet) -> Planted:
    """The config agrees with itself; the files hold another void."""
    model = data.config['model']
    model['decode_head']['ignore_index'] = 255
    model['data_preprocessor']['seg_pad_val'] = 255
    data.config['val_evaluator']['ignore_index'] = 255
    y, x = np.argwhere(data.pixels(0) == 11)[0]
    return Planted(
        data.mask(0),
        f'y={y}, x={x}',
        '11',
        count=64 * _ALL,
        files=_ALL,
    )


@plant('SEG002', 'wide')
def instance_ids(data: DataSet) -> Planted:
    at = {(2, 9): 26001, (2, 10): 26002, (0, 3): 300}
    return Planted(_paint(data, at), 'y=0, x=3', '300', count=3)


@plant('SEG003', 'mapped')
def not_in_label_map(data: DataSet) -> Planted:
    at = {(20, 1): 33, (21, 0): 33}
    return Planted(_paint(data, at), 'y=20, x=1', '33', count=2)


@plant('CFG014', 'camvid')
def void_that_is_reduced(data: DataSet) -> Planted:
    """11 becomes 10, and each class the one before it."""
    for split in SIZES:
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['reduce_zero_label'] = True
    count = sum(
        int((data.pixels(index, split) == 11).sum())
        for split, size in SIZES.items()
        for index in range(size)
    )
    return Planted(value='11', count=count, files=0, findings=len(SIZES))


@plant('SEG004', 'camvid')
def void_of_others(data: DataSet) -> Planted:
    at = {(9, 9): 255, (10, 0): 255}
    return Planted(_paint(data, at), 'y=9, x=9', '255', count=2)


@plant('SEG005', 'binary')
def white(data: DataSet) -> Planted:
    path = data.mask(2)
    pixels = data.pixels(2) * np.uint8(255)
    Image.fromarray(pixels).save(path)
    y, x = np.argwhere(pixels == 255)[0]
    count = int((pixels == 255).sum())
    return Planted(path, f'y={y}, x={x}', '255', count=count)


@plant('SEG006', 'semantic', 'folders')
def void_less_one(data: DataSet) -> Planted:
    at = {(1, 30): 254, (2, 2): 254}
    return Planted(_paint(data, at), 'y=1, x=30', '254', count=2)


@plant('SEG007', 'semantic', 'folders')
def nothing_but_void(data: DataSet) -> Planted:
    path = data.mask(4)
    Image.new('L', (32, 24), 255).save(path)
    return Planted(path, count=_PIXELS)


@plant('SEG008', 'wide')
def wide_void(data: DataSet) -> Planted:
    at = {(3, 4): 65535}
    return Planted(_paint(data, at), 'y=3, x=4', '65535')


@plant('SEG009', 'binary_folders')
def all_white(data: DataSet) -> Planted:
    count = 0
    for index in range(SIZES['train']):
        pixels = data.pixels(index) * np.uint8(255)
        count += int((pixels == 255).sum())
        Image.fromarray(pixels).save(data.mask(index))
    return Planted(value='255', count=count, files=0, findings=1)


@plant('SEG010', 'semantic', 'folders')
def colours(data: DataSet) -> Planted:
    path = data.mask(3)
    Image.open(path).convert('RGB').save(path)
    return Planted(path, value='RGB')


@plant('SEG010', 'semantic')
def alpha(data: DataSet) -> Planted:
    path = data.mask(3)
    Image.open(path).convert('LA').save(path)
    return Planted(path, value='LA')


def _load_by_cv2(data: DataSet) -> None:
    for split in SIZES:
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['pipeline'][1]['imdecode_backend'] = 'cv2'


@plant('SEG011', 'semantic')
def palette_for_cv2(data: DataSet) -> Planted:
    _load_by_cv2(data)
    path = data.mask(0)
    image = Image.open(path).convert('L')
    image.putpalette([1, 2, 3] * 256)
    image.save(path)
    return Planted(path, value='P')


@plant('SEG012', 'semantic')
def one_bit_for_cv2(data: DataSet) -> Planted:
    _load_by_cv2(data)
    path = data.mask(5)
    Image.fromarray(data.pixels(5) == 1).save(path)
    return Planted(path, value='1')


@plant('SEG013', 'semantic')
def lossy(data: DataSet) -> Planted:
    """JPEG keeps blocks of one value at its best quality, and only those."""
    for split, size in SIZES.items():
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['seg_map_suffix'] = '.jpg'
        for index in range(size):
            pixels, path = data.pixels(index, split), data.mask(index, split)
            path.unlink()
            path = path.with_suffix('.jpg')
            Image.fromarray(pixels).save(path, quality=100)
            assert (np.array(Image.open(path)) == pixels).all()
    return Planted(data.mask(0), value='JPEG', count=_ALL, files=_ALL)


@plant('SEG013', 'folders')
def lossy_in_folders(data: DataSet) -> Planted:
    for index in range(SIZES['train']):
        pixels, path = data.pixels(index), data.mask(index)
        path.unlink()
        Image.fromarray(pixels).save(path.with_suffix('.jpg'), quality=100)
    size = SIZES['train']
    return Planted(data.mask(0), value='JPEG', count=size, files=size)


@plant('SEG013', 'semantic', 'folders')
def lossy_named_png(data: DataSet) -> Planted:
    Image.fromarray(data.pixels(2)).save(data.mask(2), 'JPEG', quality=100)
    return Planted(data.mask(2), value='JPEG')


@plant('SEG014', 'semantic', 'folders')
def one_row(data: DataSet) -> Planted:
    for path in (data.mask(1), data.image(1)):
        image = Image.open(path)
        image.crop((0, 0, 32, 1)).save(path)
    return Planted(data.mask(1), value='32 x 1')


@plant('SEG015', 'semantic')
def missing(data: DataSet) -> Planted:
    path = data.mask(1)
    path.unlink()
    return Planted(path)


@plant('SEG016', 'semantic', 'folders', 'wide')
def empty(data: DataSet) -> Planted:
    data.mask(1).write_bytes(b'')
    return Planted(data.mask(1))


@plant('SEG017', 'semantic', 'folders', 'palette')
def cut_off(data: DataSet) -> Planted:
    path = data.mask(2)
    path.write_bytes(path.read_bytes()[:-20])
    return Planted(path)


def _write_png(data: DataSet, stream: bytes) -> Planted:
    """A file with the right CRCs, whatever is in the zlib stream."""
    empty = bare_png(32, 24)
    begin, end = empty.index(b'IDAT') - 4, empty.index(b'IEND') - 4
    path = data.mask(2)
    path.write_bytes(empty[:begin] + chunk(b'IDAT', stream) + empty[end:])
    return Planted(path)


def _rows(data: DataSet) -> bytes:
    return b''.join(b'\x00' + row.tobytes() for row in data.pixels(2))


@plant('SEG017', 'semantic', 'folders')
def writer_stopped_early(data: DataSet) -> Planted:
    """Half of the rows; Pillow fills up with 0 and says nothing."""
    rows = _rows(data)
    return _write_png(data, zlib.compress(rows[: len(rows) // 2]))


@plant('SEG018', 'semantic', 'folders', 'wide')
def flipped_bit(data: DataSet) -> Planted:
    path = data.mask(2)
    content = bytearray(path.read_bytes())
    content[content.index(b'IDAT') + 12] ^= 4
    path.write_bytes(content)
    return Planted(path)


@plant('SEG018', 'folders')
def no_image(data: DataSet) -> Planted:
    data.mask(0).write_text('class,value\nroad,0\n')
    return Planted(data.mask(0))


@plant('SEG019', 'semantic', 'folders')
def huge(data: DataSet) -> Planted:
    path = data.mask(2)
    path.write_bytes(bare_png(100_000, 100_000))
    return Planted(path)
