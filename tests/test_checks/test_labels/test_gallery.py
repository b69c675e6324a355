"""Pictures of the examples of a report."""

import base64
import io
from unittest import mock

import numpy as np
import pytest
from helpers.image_bytes import fuzzed, kinds_of_images
from helpers.label_report import (
    box_source,
    finding,
    group,
    report_of,
    semantic_source,
)
from PIL import Image, ImageOps

from mmext.checks.findings import Location
from mmext.checks.labels import Expectations
from mmext.checks.labels import page as gallery
from mmext.checks.labels.check import check_sources
from mmext.checks.labels.expectations import SplitSource
from mmext.checks.labels.facts import BoxFacts, Sample
from mmext.checks.labels.page import (
    FINE,
    OTHER,
    OUTSIDE,
    WRONG,
    Picture,
    SampleFiles,
    make_gallery,
    paint_boxes,
    wrong_boxes,
)
from mmext.checks.labels.sources.coco import split_of_coco
from mmext.checks.labels.store import FactStore


def pixels_of(picture: Picture) -> np.ndarray:
    content = base64.b64decode(picture.uri.partition(';base64,')[2])
    image = Image.open(io.BytesIO(content))
    assert image.size == (picture.width, picture.height)
    return np.asarray(image.convert('RGB'))


def shares(picture: Picture) -> tuple[float, float]:
    """Of the picture: what is about the colour of what is wrong, of else."""
    pixels = pixels_of(picture).astype(int)
    return tuple(
        (np.abs(pixels - colour).max(-1) < 90).mean()
        for colour in (WRONG, OTHER)
    )


def checked(tmp_path, *sources) -> list[Picture]:
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_sources(sources, store)
    pictures = make_gallery(report, sources)
    for picture in pictures:
        group = report.groups[picture.group]
        assert picture.finding in group.examples
    return pictures


def of_rule(pictures: list[Picture], rule: str) -> list[Picture]:
    return [picture for picture in pictures if picture.finding.rule == rule]


def clean() -> np.ndarray:
    mask = np.zeros((24, 32), np.uint8)
    mask[8:16], mask[16:] = 1, 2
    return mask


def test_wrong_pixels(tmp_path):
    area, one = clean(), clean()
    area[:, :16], area[:, 16:20] = 7, 9
    one[3, 5] = 7
    source = semantic_source(
        tmp_path, {'area': area, 'clean': clean(), 'one': one}
    )
    pictures = checked(tmp_path, source)
    findings = of_rule(pictures, 'SEG001')
    assert [
        (finding.finding.file[-8:], finding.finding.value)
        for finding in findings
    ] == [
        ('area.png', '7'),
        ('/one.png', '7'),
        ('area.png', '9'),
    ]
    seven, single, nine = map(shares, findings)
    assert seven == pytest.approx((1 / 2, 1 / 8), abs=0.02)
    assert nine == pytest.approx((1 / 8, 1 / 2), abs=0.02)
    # One pixel of 768, enlarged, at its location.
    pixels = pixels_of(findings[1]).astype(int)
    wrong = np.abs(pixels - WRONG).max(-1) < 60
    scale = findings[1].width // 32
    y, x = np.argwhere(wrong).mean(0) / scale
    assert (y, x) == pytest.approx((3.5, 5.5), abs=0.5)
    assert single[1] == 0
    assert 'value 7' in findings[1].alt
    assert findings[1].finding.position == 'y=3, x=5'


@pytest.mark.parametrize(
    ('rule', 'mask'),
    [
        ('SEG010', np.full((24, 32, 3), 90, np.uint8)),
        ('SEG007', np.full((24, 32), 255, np.uint8)),
    ],
)
def test_image_and_mask_together(tmp_path, rule, mask):
    source = semantic_source(tmp_path, {'a': mask})
    (picture,) = of_rule(checked(tmp_path, source), rule)
    assert 'beside it its label map' in picture.alt
    right = pixels_of(picture)[30:, picture.width // 2 + 4 :]
    assert np.ptp(right.astype(int), axis=(0, 1)).max() < 60
    assert picture.width > picture.height


def test_files_that_cannot_be_read(tmp_path):
    source = semantic_source(tmp_path, {'a': clean(), 'b': clean()})
    (tmp_path / 'masks' / 'a.png').unlink()
    (tmp_path / 'images' / 'b.png').write_bytes(b'')
    pictures = checked(tmp_path, source)
    (missing,) = of_rule(pictures, 'SEG015')
    (empty,) = of_rule(pictures, 'IMG002')
    for item, word in ((missing, 'missing'), (empty, 'empty')):
        assert (item.uri, item.width, item.height) == ('', 0, 0)
        assert item.alt.startswith(f'no picture: {word}')


def test_boxes(tmp_path):
    boxes = {
        'fine': [(1.0, 1.0, 20.0, 20.0)],
        'flat': [(1.0, 1.0, 20.0, 20.0), (30.0, 30.0, 30.0, 40.0)],
        'far': [(900.0, 0.0, 950.0, 10.0)],
        'nan': [(float('nan'), 0.0, 9.0, 9.0)],
    }
    source = box_source(tmp_path, boxes, annotation='all.json')
    pictures = checked(tmp_path, source)
    assert {item.finding.rule for item in pictures} >= {
        'DET001',
        'DET002',
        'DET004',
    }
    for rule, number in (('DET001', 1), ('DET002', 2), ('DET004', 1)):
        (picture,) = of_rule(pictures, rule)
        assert picture.alt == f'image with 1 wrong of {number} boxes marked'
        assert shares(picture)[0] > 0


def test_the_same_image_twice(tmp_path):
    source = semantic_source(tmp_path, {'a': clean(), 'b, c (1)': clean()})
    content = (tmp_path / 'images' / 'a.png').read_bytes()
    (tmp_path / 'images' / 'b, c (1).png').write_bytes(content)
    (picture,) = of_rule(checked(tmp_path, source), 'DUP001')
    assert picture.alt.endswith('b, c (1).png')
    source = semantic_source(tmp_path, {'a': clean(), 'b (1)': clean()})
    (tmp_path / 'images' / 'b (1).png').write_bytes(content)
    (picture,) = of_rule(checked(tmp_path, source), 'DUP001')
    assert picture.alt.endswith('b (1).png')
    pixels = pixels_of(picture)
    half = (pixels.shape[1] - 6) // 2
    left, right = (
        pixels[30:, x].astype(int) for x in (slice(half), slice(-half, None))
    )
    assert np.abs(left - right).mean() < 3


def test_findings_of_another_split_are_not_mixed_up(tmp_path):
    mask = clean()
    mask[0] = 7
    train = semantic_source(tmp_path, {'a': mask})
    val = semantic_source(tmp_path, {'a': mask}, split='val')
    (sample,) = train.samples()
    wrong = finding('SEG001', file=sample.mask, value='7', split='val')
    report = report_of(group('SEG001', wrong))
    assert make_gallery(report, [train]) == []
    assert len(make_gallery(report, [train, val])) == 1


def test_damaged_files_end_in_an_entry(tmp_path, monkeypatch):
    """Whatever the bytes are, there is a picture or a reason."""
    rng = np.random.default_rng(0)
    kinds = list(kinds_of_images().values())
    contents = [*kinds, *fuzzed(kinds, 150, rng)]
    samples = []
    for index, content in enumerate(contents):
        path = tmp_path / f'{index}.png'
        path.write_bytes(content)
        samples.append(Sample(index=index, image=str(path), mask=str(path)))
    source = SplitSource(Expectations(num_classes=3), lambda: iter(samples))
    rules = ('SEG001', 'SEG018', 'IMG004', 'DUP001', 'PAIR001')
    report = report_of(
        *(
            group(
                rule, *(finding(rule, file=s.mask, value='7') for s in samples)
            )
            for rule in rules
        )
    )
    monkeypatch.setattr(gallery, '_MAX_PICTURES', 10_000)
    monkeypatch.setattr(gallery, '_MAX_SIDE', 64)
    pictures = make_gallery(report, [source])
    assert len(pictures) == len(rules) * len(samples)
    for picture in pictures:
        assert bool(picture.uri) == bool(picture.width)
        assert picture.alt
        assert picture.uri or picture.alt.startswith('no picture: ')
    shown = [picture for picture in pictures if picture.uri]
    assert len(shown) >= len(kinds) * len(rules)


def box(
    location: str, label: int = 0, name: str = 'cat', **fields
) -> BoxFacts:
    sides = fields.pop('box', (0.0, 0.0, 1.0, 1.0))
    return BoxFacts(
        box=sides, label=label, class_name=name, location=location, **fields
    )


def test_boxes_that_a_finding_is_about():
    boxes = (
        box('instance 0'),
        box('instance 1', box=(1.5, 2.0, 3.0, 4.0)),
        box('', -1, 'dog'),
        box('', 9, 'x'),
    )
    sample = Sample(index=0, image='a.jpg', boxes=boxes)

    def about(**fields) -> list[int]:
        own = wrong_boxes(finding('DET002', **fields), sample)
        return [boxes.index(item) for item in own]

    assert about(key='instance 1', image='a.jpg') == [1]
    related = (Location(key='instance 0'),)
    assert about(key='instance 1', related=related, count=5) == [0, 1]
    assert about(image='a.jpg', value='(1.5, 2, 3, 4)') == [1]
    assert about(value='dog') == [2]
    assert about(value='9') == [3]
    assert about(image='a.jpg') == []
    assert about() == []


@pytest.mark.parametrize('orientation', range(1, 9))
def test_turned_as_exif_says(tmp_path, orientation):
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:10, :20] = 200
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / 'a.png'
    Image.fromarray(pixels).save(path, exif=exif)
    sample = Sample(index=0, image=str(path))
    source = SplitSource(Expectations(), lambda: iter([sample]))
    image, size = SampleFiles(sample, source).image
    assert size == image.shape[1::-1]
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    assert (image == wanted).all()


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
    assert SampleFiles(second, source).boxes() == [(1, 2, 4, 6)]
    assert SampleFiles(first, source).boxes() == [(0, 0, 0, 0)]


GREY = np.full((60, 80, 3), 128, np.uint8)


def painted(*wrong, fine=(), other=(), side=80) -> np.ndarray:
    with mock.patch.object(gallery, '_MAX_SIDE', side):
        return paint_boxes(GREY, (80, 60), wrong, fine, other)


def where(picture: np.ndarray, colour: tuple) -> tuple | None:
    """Box around the pixels of a colour: x1, y1, x2, y2, the last inside."""
    indices = np.argwhere((picture == colour).all(-1))
    if not len(indices):
        return None
    (y1, x1), (y2, x2) = indices.min(0), indices.max(0)
    return x1, y1, x2, y2


def around(picture: np.ndarray, box: tuple) -> None:
    """The marks are at a box, of lines three pixels wide."""
    assert where(picture, WRONG) == pytest.approx(box, abs=2)


def test_a_box_inside():
    picture = painted((20, 10, 60, 40), fine=[(2, 3, 9, 30)], side=80)
    assert picture.shape == (60, 80, 3)
    around(picture, (20, 10, 60, 40))
    assert (picture[14:37, 24:56] == 128).all()
    assert where(picture, FINE) == (2, 3, 9, 30)
    assert (picture[50:, 64:] == 128).all()


def test_reaching_beyond_shows_what_is_outside():
    picture = painted((60, 20, 88, 40), side=240)
    # A quarter of the image on each side, below the box.
    width = picture.shape[1]
    (columns,) = np.nonzero((picture[130] == OUTSIDE).all(-1))
    right = columns[columns > width / 2].min()
    assert right == pytest.approx(width * 100 / 120, abs=2)
    assert right < where(picture, WRONG)[2] < width


def test_any_box_can_be_drawn():
    """Sides of any size, and those that are no numbers."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        sides = rng.normal(30, 30, 8) * 10.0 ** rng.integers(0, 9)
        odd = rng.random(8) < 0.1
        sides[odd] = rng.choice([np.nan, np.inf, -np.inf, 1e308, 0], odd.sum())
        wrong, fine = sides.reshape(2, 4).tolist()
        size = tuple(rng.integers(1, 200, 2).tolist())
        picture = paint_boxes(GREY, size, [wrong], [fine], [fine])
        assert max(picture.shape) <= 480
        assert where(picture, WRONG) is not None, (wrong, size)
