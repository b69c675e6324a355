"""Findings, looked up by the sample that they are about."""

import numpy as np
import pytest
from helpers.image_bytes import bare_png, photo
from helpers.label_report import box_source, finding, save, semantic_source
from PIL import Image, ImageOps

from mmext.checks.findings import Location
from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import BoxFacts, Sample
from mmext.checks.labels.gallery import examples as files_module
from mmext.checks.labels.gallery.examples import (
    ExampleIndex,
    SampleFiles,
    UnreadableFile,
    coloured,
    low_bytes,
    wrong_boxes,
)
from mmext.checks.labels.sources.coco import split_of_coco
from mmext.checks.labels.sources.split_source import SplitSource


def box(place: str, label: int = 0, name: str = 'cat', **fields) -> BoxFacts:
    sides = fields.pop('box', (0.0, 0.0, 1.0, 1.0))
    return BoxFacts(
        box=sides, label=label, class_name=name, place=place, **fields
    )


def index_of(*findings) -> ExampleIndex:
    return ExampleIndex(enumerate(findings))


def test_by_image_and_mask():
    index = index_of(
        finding('SEG001', file='a.png', pixel=(1, 2), value='7'),
        finding('IMG001', file='a.jpg'),
        finding('SEG001', file='b.png'),
    )
    sample = Sample(index=0, image='a.jpg', mask='a.png')
    assert list(index.take(sample)) == [0, 1]
    assert index.take(sample) == {}
    assert len(index) == 1


def test_in_a_file_of_all_images():
    """The image, a box or a class tells which sample it is."""
    index = index_of(
        finding(
            'DET002', file='all.json', key='instance 1', image='x of y.jpg'
        ),
        finding('DET006', file='all.json', value='dog'),
        finding('DET007', file='all.json', value='9'),
        finding(
            'COCO009',
            file='all.json',
            key='annotations[3]',
            related=(Location(file='all.json', key='annotations[4]'),),
        ),
        finding('COCO001', file='all.json', key='categories'),
    )

    def sample(image: str, *boxes: BoxFacts) -> Sample:
        return Sample(index=0, image=image, annotation='all.json', boxes=boxes)

    assert index.take(sample('y.jpg', box('instance 1'))) == {}
    assert list(index.take(sample('x of y.jpg', box('instance 1')))) == [0]
    assert index.take(sample('1.jpg', box('', 0, 'dog'))) == {}
    assert list(index.take(sample('2.jpg', box('', -1, 'dog')))) == [1]
    assert list(index.take(sample('3.jpg', box('', 9, 'x')))) == [2]
    assert list(index.take(sample('4.jpg', box('annotations[4]')))) == [3]
    assert len(index) == 1


def test_an_annotation_file_of_its_own():
    index = index_of(finding('VOC002', file='a.xml', key='size.width'))
    sample = Sample(
        index=0, image='a.jpg', annotation='a.xml', annotation_kind='voc'
    )
    assert list(index.take(sample)) == [0]


def test_no_name_is_not_a_name():
    index = index_of(finding('CFG001', file='', key='model'))
    assert index.take(Sample(index=0)) == {}


def test_wrong_boxes():
    boxes = (
        box('instance 0'),
        box('instance 1', box=(1.5, 2.0, 3.0, 4.0)),
        box('', -1, 'dog'),
        box('', 9, 'x'),
    )
    sample = Sample(index=0, image='a.jpg', boxes=boxes)

    def found(**fields) -> list[int]:
        own = wrong_boxes(finding('DET002', **fields), sample)
        return [boxes.index(each) for each in own]

    assert found(key='instance 1', image='a.jpg') == [1]
    related = (Location(key='instance 0'),)
    assert found(key='instance 1', related=related, count=5) == [0, 1]
    assert found(image='a.jpg', value='(1.5, 2, 3, 4)') == [1]
    assert found(value='dog') == [2]
    assert found(value='9') == [3]
    assert found(image='a.jpg') == []
    assert found() == []


def files_of(max_side: int = 480, backend_args=None, **paths) -> SampleFiles:
    sample = Sample(index=0, **paths)
    source = SplitSource(
        Expectations(num_classes=3, classes=('cat',)),
        lambda: iter([sample]),
        backend_args=backend_args,
    )
    return SampleFiles(sample, source, max_side)


def test_image_is_reduced_and_keeps_its_size(tmp_path):
    pixels = photo(0, 300, 900, blur=20)
    for suffix in ('png', 'jpg'):
        path = save(tmp_path / f'a.{suffix}', pixels)
        image, size = files_of(100, image=path).image
        assert size == (900, 300)
        assert max(image.shape) <= 200
        whole = np.asarray(Image.fromarray(pixels).resize(image.shape[1::-1]))
        assert np.abs(image - whole.astype(int)).mean() < 4


@pytest.mark.parametrize('orientation', range(1, 9))
def test_turned_as_exif_says(tmp_path, orientation):
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:10, :20] = 200
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / 'a.png'
    Image.fromarray(pixels).save(path, exif=exif)
    image, size = files_of(image=str(path)).image
    assert size == image.shape[1::-1]
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    assert (image == wanted).all()


@pytest.mark.parametrize(
    'pixels',
    [
        np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000,
        np.arange(64, dtype=np.int32).reshape(8, 8) * 1000,
        np.arange(64, dtype=np.float32).reshape(8, 8) / 64,
    ],
)
def test_images_of_many_bits_are_scaled(tmp_path, pixels):
    path = save(tmp_path / 'a.tif', pixels)
    image = files_of(image=path).image[0]
    assert image.min() == 0
    assert image.max() == 255
    assert (np.diff(image[..., 0].reshape(-1).astype(int)) >= 3).all()


@pytest.mark.parametrize('mode', ['1', 'L', 'P', 'LA', 'RGBA', 'CMYK'])
def test_images_of_all_kinds(tmp_path, mode):
    image = Image.fromarray(photo(0, 30, 40)).convert(mode)
    path = tmp_path / ('a.tif' if mode == 'CMYK' else 'a.png')
    image.save(path)
    assert files_of(image=str(path)).image[0].shape == (30, 40, 3)


def test_masks(tmp_path):
    pixels = np.array([[0, 1, 2], [3, 255, 7]], np.uint8)
    files = files_of(mask=save(tmp_path / 'a.png', pixels))
    assert (files.mask[0] == pixels).all()
    assert files.mask[1] == 'L'
    one_bit = save(tmp_path / 'b.png', pixels > 2)
    mask, mode = files_of(mask=one_bit).mask
    assert (mode, mask.tolist()) == ('1', [[0, 0, 0], [1, 1, 1]])
    real = save(tmp_path / 'c.tif', np.array([[3.0, np.nan]], np.float32))
    assert files_of(mask=real).mask[0].tolist() == [[3, 0]]
    grey_alpha = save(tmp_path / 'd.png', np.dstack([pixels, pixels]))
    assert (files_of(mask=grey_alpha).mask[0] == pixels).all()


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'missing'),
        (b'', 'empty'),
        (b'GIF', 'not an image'),
        (bare_png(9, 9)[:40], 'truncated'),
        (bare_png(9_000, 10_000), 'max_pixels=89,478,485'),
        (bare_png(9, 9, b'\0' * 3), 'truncated|corrupt'),
    ],
)
def test_what_cannot_be_shown(tmp_path, content, message):
    path = tmp_path / 'a.png'
    if content is not None:
        path.write_bytes(content)
    for name in ('image', 'mask'):
        with pytest.raises(UnreadableFile, match=message):
            getattr(files_of(**{name: str(path)}), name)


def test_read_by_the_file_backend(tmp_path):
    save(tmp_path / 'a.png', photo(0, 8, 8))
    args = {'backend': 'http'}
    files = files_of(image='http://localhost:9/a.png', backend_args=args)
    with pytest.raises(UnreadableFile, match='cannot be read'):
        files.read_image(files.sample.image)


def test_boxes_of_an_annotation_file_of_its_own(tmp_path):
    path = tmp_path / 'a.xml'
    path.write_text(
        '<annotation><size><width>80</width><height>60</height></size>'
        '<object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin>'
        '<xmax>3</xmax><ymax>4</ymax></bndbox></object></annotation>'
    )
    files = files_of(annotation=str(path), annotation_kind='voc')
    (box,) = files.annotated.boxes
    assert (box.label, box.class_name) == (0, 'cat')
    assert files.boxes() == [box.box]


def test_all_boxes_of_a_coco_file(tmp_path):
    """Samples list only what may be wrong."""
    path = tmp_path / 'a.json'
    path.write_text(
        '{"images": [{"id": 3, "file_name": "x.jpg", "width": 80, '
        '"height": 60}, {"id": 5, "file_name": "y.jpg", "width": 80, '
        '"height": 60}], "categories": [{"id": 1, "name": "cat"}], '
        '"annotations": ['
        '{"id": 1, "image_id": 5, "category_id": 1, "bbox": [1, 2, 3, 4], '
        '"area": 12, "iscrowd": 0},'
        '{"id": 2, "image_id": 3, "category_id": 1, "bbox": [0, 0, 0, 0], '
        '"area": 12, "iscrowd": 0}]}'
    )
    source = split_of_coco(str(path), '', Expectations())
    first, second = source.samples()
    assert SampleFiles(second, source, 64).boxes() == [(1, 2, 4, 6)]
    assert SampleFiles(first, source, 64).boxes() == [(0, 0, 0, 0)]


def test_boxes_that_a_source_lists(tmp_path):
    source = box_source(tmp_path, {'a': [(1.0, 2.0, 3.0, 4.0)]})
    (sample,) = source.samples()
    assert SampleFiles(sample, source, 64).boxes() == [(1, 2, 3, 4)]


def test_colours(tmp_path):
    expected = Expectations(num_classes=2, ignore_index=255)
    pixels = np.array([[0, 1, 2, 255, 256, 0]], np.uint16)
    colours = coloured(pixels, expected)[0].tolist()
    assert colours[0] == colours[5] == colours[4] != colours[1]
    assert colours[2] == colours[3] == list(files_module._NO_CLASS)
    own = np.full((2, 2, 4), 9, np.uint8)
    assert coloured(own, expected).tolist() == [[[9] * 3] * 2] * 2
    wide = np.full((1, 1, 3), 0x1234, np.uint16)
    assert coloured(wide, expected).tolist() == [[[0x12] * 3]]


def test_low_bytes_do_not_copy_bytes():
    pixels = np.zeros(3, np.uint8)
    assert low_bytes(pixels) is pixels


def test_source_of_masks_reads(tmp_path):
    mask = np.zeros((24, 32), np.uint8)
    source = semantic_source(tmp_path, {'a': mask})
    (sample,) = source.samples()
    files = SampleFiles(sample, source, 64)
    assert files.image[1] == (32, 24)
    assert (files.mask[0] == 0).all()
