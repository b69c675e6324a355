"""Folders as other programs write them, through the tool."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.new_configs import dataset_of, made, run
from PIL import Image

SMALL = 'mmext::co_dino/co_dino_r18_shapes.py'
PIDNET = 'mmext::pidnet/pidnet_s_2xb6_120k_cityscapes.py'
NAMES = ('background', 'cat', 'dog')
COLOURS = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 0]], np.uint8)
MAP = '# label:color_rgb:parts:actions\n' + ''.join(
    f'{name}:{",".join(map(str, colour))}::\n'
    for name, colour in zip(NAMES, COLOURS)
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def mask(path: Path, kind: str = 'numbers', colours: np.ndarray = COLOURS):
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = (np.arange(24 * 32).reshape(24, 32) // 300).astype(np.uint8)
    image = Image.fromarray(labels)
    if kind == 'palette':
        image.putpalette(colours.tobytes())
    elif kind == 'colours':
        image = Image.fromarray(colours[labels])
    image.save(path)


def darknet(root: Path) -> None:
    """CVAT's "YOLO 1.1"."""
    lines = ''
    for index in range(3):
        stem = root / f'obj_train_data/{index}'
        picture(stem.with_suffix('.jpg'))
        write(stem.with_suffix('.txt'), '2 0.5 0.5 0.5 0.5\n')
        lines += f'data/obj_train_data/{index}.jpg\n'
    write(root / 'train.txt', lines)
    write(root / 'obj.names', '\n'.join(NAMES))
    write(root / 'obj.data', 'classes = 3\ntrain = data/train.txt\n')


def supervision(root: Path) -> None:
    """Its data.yaml has names and their number alone."""
    for split in ('train', 'valid'):
        picture(root / split / 'images/a.jpg')
        write(root / split / 'labels/a.txt', '2 0.5 0.5 0.5 0.5\n')
    write(root / 'data.yaml', 'names:\n- background\n- cat\n- dog\nnc: 3\n')


def poses(root: Path) -> None:
    """Key points behind the boxes; the second one is not visible."""
    for split in ('train', 'val'):
        picture(root / 'images' / split / 'a.jpg')
        line = '2 0.5 0.5 0.5 0.5 0.3 0.3 2 0 0 0\n'
        write(root / 'labels' / split / 'a.txt', line)
    write(
        root / 'data.yaml',
        'train: images/train\nval: images/val\nkpt_shape: [2, 3]\n'
        f'flip_idx: [1, 0]\nnames: {[*NAMES]}\n',
    )


def lvis(root: Path) -> None:
    """Names of images are in their URLs."""
    for split in ('train', 'val'):
        picture(root / f'{split}2017/1.jpg')
        url = f'http://images.cocodataset.org/{split}2017/1.jpg'
        box = [8, 6, 16, 12]
        note = {'id': 1, 'image_id': 1, 'category_id': 3, 'bbox': box}
        note |= {'area': 192, 'segmentation': [[8, 6, 24, 6, 24, 18, 8, 18]]}
        kinds = [{'id': i, 'name': name} for i, name in enumerate(NAMES, 1)]
        image = {'id': 1, 'coco_url': url, 'width': 32, 'height': 24}
        content = {'images': [image], 'annotations': [note]}
        content |= {'categories': kinds}
        write(root / f'lvis_v1_{split}.json', json.dumps(content))


def voc_kit(root: Path) -> None:
    """The folder above VOCdevkit, and a list for each split."""
    year = root / 'VOCdevkit/VOC2012'
    for split in ('train', 'val'):
        picture(year / f'JPEGImages/{split}.jpg')
        kinds = ''.join(
            f'<object><name>{name}</name><bndbox><xmin>9</xmin><ymin>7</ymin>'
            '<xmax>25</xmax><ymax>19</ymax></bndbox></object>'
            for name in NAMES
        )
        size = '<size><width>32</width><height>24</height></size>'
        text = f'<annotation>{size}{kinds}</annotation>'
        write(year / f'Annotations/{split}.xml', text)
        write(year / f'ImageSets/Main/{split}.txt', f'{split}\n')


@pytest.mark.parametrize(
    'write_data', [darknet, supervision, poses, lvis, voc_kit]
)
def test_boxes(write_data: Callable, tmp_path, capsys):
    """The third class in the middle of the picture is what is loaded."""
    write_data(tmp_path / 'data')
    cfg = made(tmp_path / 'data', tmp_path / 'my.py', base=SMALL)
    noted = 'key points (kpt_shape [2, 3]) are not used'
    assert (noted in capsys.readouterr().out) == (write_data is poses)
    # Only what the folder lacks is written: a split, and names of images.
    written = (tmp_path / 'my_data').exists()
    assert written == (write_data in (darknet, lvis))
    for split in ('train', 'val'):
        dataset = dataset_of(cfg, split)
        assert dataset.metainfo['classes'] == NAMES
        info = dataset.get_data_info(0)
        assert Path(info['img_path']).is_file()
        last = info['instances'][-1]
        assert last['bbox'] == [8, 6, 24, 18]
        assert (last['bbox_label'], last['ignore_flag']) == (2, 0)
    sample = dataset_of(cfg, 'train', steps=True)[0]
    assert len(sample['data_samples'].gt_instances) == len(info['instances'])


def beside(root: Path, suffix: str = '.jpg') -> None:
    """Roboflow's masks, each beside its picture."""
    for split in ('train', 'valid'):
        for name in 'ab':
            picture(root / split / f'{name}{suffix}')
            mask(root / split / f'{name}_mask.png')
        rows = [f'{number}, {name}\n' for number, name in enumerate(NAMES)]
        csv = f'Pixel Value, Class\n{"".join(rows)}'
        write(root / split / '_classes.csv', csv)


def beside_of_one_suffix(root: Path) -> None:
    """A list keeps the masks out of the pictures."""
    beside(root, '.png')


def voc_classes(root: Path, kind: str = 'palette') -> None:
    """Masks of classes and objects; more pictures than lists name."""
    for name in ('more', 'train', 'val'):
        picture(root / f'JPEGImages/{name}.jpg')
    for name in ('train', 'val'):
        for folder in ('SegmentationClass', 'SegmentationObject'):
            mask(root / folder / f'{name}.png', kind)
        write(root / f'ImageSets/Segmentation/{name}.txt', f'{name}\n')
    write(root / 'labelmap.txt', MAP)


def cityscapes(root: Path, end: str = 'labelTrainIds') -> None:
    """A folder for each city."""
    for split, cities in (('train', ('aachen', 'bochum')), ('val', ('ulm',))):
        for city in cities:
            for number in range(2):
                name = f'{split}/{city}/{city}_{number}'
                picture(root / f'leftImg8bit/{name}_leftImg8bit.png')
                for kind in ('color', 'labelIds', end):
                    mask(root / f'gtFine/{name}_gtFine_{kind}.png')


@pytest.mark.parametrize(
    ('write_data', 'numbers', 'classes'),
    [
        (beside, (2, 2), NAMES),
        (beside_of_one_suffix, (2, 2), NAMES),
        (voc_classes, (1, 1), NAMES),
        (cityscapes, (4, 2), ('road', 'sidewalk')),
    ],
)
def test_masks(write_data: Callable, numbers, classes, tmp_path):
    write_data(tmp_path / 'data')
    cfg = made(tmp_path / 'data', tmp_path / 'my.py', base=PIDNET)
    for split, number in zip(('train', 'val'), numbers):
        dataset = dataset_of(cfg, split)
        assert dataset.metainfo['classes'][: len(classes)] == classes
        infos = [dataset.get_data_info(index) for index in range(len(dataset))]
        assert len(infos) == number
        for info in infos:
            with Image.open(info['img_path']) as image:
                assert image.mode == 'RGB'
            with Image.open(info['seg_map_path']) as labels:
                assert labels.mode in ('L', 'P')
    # Those of the base, where the classes are the same.
    weights = cfg.model.decode_head.loss_decode[0].class_weight
    palette = np.array(dataset_of(cfg, 'train').metainfo['palette'])
    if write_data is cityscapes:
        assert len(weights) == 19
        assert palette[0].tolist() == [128, 64, 128]
    else:
        assert weights is None
        assert np.ptp(palette, axis=1).min() > 100  # no greys
    sample = dataset_of(cfg, 'train', steps=True)[0]
    assert set(sample['data_samples'].gt_sem_seg.data.unique().tolist()) <= {
        *(0, 1, 2, 255)
    }


def coloured(root: Path) -> None:
    """CVAT's "Segmentation mask 1.1"."""
    voc_classes(root, 'colours')


def of_camvid(root: Path) -> None:
    for split in ('train', 'val'):
        picture(root / split / 'a.png')
        mask(root / f'{split}annot/a.png', 'colours')
    lines = (f'{" ".join(map(str, c))} {n}\n' for c, n in zip(COLOURS, NAMES))
    write(root / 'label_colors.txt', ''.join(lines))


def grey_of_three(root: Path) -> None:
    picture(root / 'images/a.png')
    grey = np.repeat(np.arange(3, dtype=np.uint8)[:, None], 3, 1)
    mask(root / 'masks/a.png', 'colours', grey)


def prefixes(root: Path) -> None:
    for number in range(3):
        picture(root / f'images/img_{number}.png')
        mask(root / f'masks/mask_{number}.png')


def only_label_ids(root: Path) -> None:
    cityscapes(root, 'instanceIds')


def two_kits(root: Path) -> None:
    for year in ('VOC2007', 'VOC2012'):
        voc_classes(root / year)


@pytest.mark.parametrize(
    ('write_data', 'message'),
    [
        (coloured, 'datum convert -if voc_segmentation -i'),
        (of_camvid, 'datum convert -if camvid -i'),
        (grey_of_three, 'tools/validate_labels.py --masks'),
        (prefixes, 'for f in mask_*; do mv "$f" "img_${f#mask_}"; done'),
        (only_label_ids, 'csCreateTrainIdLabelImgs'),
        (two_kits, "one folder with ImageSets, got ['VOC2007', 'VOC2012']"),
    ],
)
def test_what_cannot_be_read_names_what_converts(
    write_data: Callable, message, tmp_path, capsys
):
    write_data(tmp_path / 'data')
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path / 'data', tmp_path / 'my.py', base=PIDNET)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count('\n') == 1
    assert not (tmp_path / 'my.py').exists()
