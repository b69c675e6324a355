"""Pictures of the examples of a report."""

import base64
import dataclasses
import io

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
from PIL import Image

from mmext.checks.labels import Expectations
from mmext.checks.labels.check import check_labels
from mmext.checks.labels.facts import Sample
from mmext.checks.labels.gallery.painting import OTHER, WRONG
from mmext.checks.labels.gallery.pictures import Picture, make_gallery
from mmext.checks.labels.sources import split_of_folders
from mmext.checks.labels.sources.split_source import SplitSource
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


def checked(tmp_path, *sources, **options) -> list[Picture]:
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_labels(sources, store)
    pictures = make_gallery(report, sources, **options)
    for each in pictures:
        group = report.groups[each.group]
        assert (each.rule, each.severity) == (group.rule, group.severity)
        assert any(
            (each.split, each.file, each.place, each.value, each.message)
            == (own.split, own.file, own.place, own.value, own.message)
            for own in group.examples
        )
    return pictures


def of_rule(pictures: list[Picture], rule: str) -> list[Picture]:
    return [each for each in pictures if each.rule == rule]


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
    found = of_rule(pictures, 'SEG001')
    assert [(each.file[-8:], each.value) for each in found] == [
        ('area.png', '7'),
        ('/one.png', '7'),
        ('area.png', '9'),
    ]
    seven, single, nine = map(shares, found)
    assert seven == pytest.approx((1 / 2, 1 / 8), abs=0.02)
    assert nine == pytest.approx((1 / 8, 1 / 2), abs=0.02)
    # One pixel of 768, enlarged, at its place.
    pixels = pixels_of(found[1]).astype(int)
    wrong = np.abs(pixels - WRONG).max(-1) < 60
    scale = found[1].width // 32
    y, x = np.argwhere(wrong).mean(0) / scale
    assert (y, x) == pytest.approx((3.5, 5.5), abs=0.5)
    assert single[1] == 0
    assert found[1].classes == ('road', 'car', 'sky')
    assert 'value 7' in found[1].alt
    assert found[1].place == 'y=3, x=5'


def test_a_pixel_of_a_large_mask(tmp_path):
    mask = np.zeros((600, 1200), np.uint8)
    mask[599, 1199] = 77
    source = semantic_source(tmp_path, {'a': mask})
    (picture,) = of_rule(checked(tmp_path, source), 'SEG001')
    assert (picture.width, picture.height) == (480, 240)
    pixels = pixels_of(picture).astype(int)
    assert (np.abs(pixels[-3:, -3:] - WRONG).max(-1) < 60).mean() > 0.5


def test_label_maps_alone_and_of_many_bits(tmp_path):
    mask = clean().astype(np.uint16)
    mask[:12] = 300
    source = semantic_source(tmp_path, {'a': mask})
    bare = dataclasses.replace(
        source,
        samples=lambda: (
            type(each)(index=0, mask=each.mask) for each in source.samples()
        ),
    )
    (picture,) = of_rule(checked(tmp_path, bare), 'SEG002')
    assert shares(picture)[0] == pytest.approx(0.5, abs=0.02)
    assert picture.alt.startswith('label map')


def test_two_values_of_a_kind_that_wraps(tmp_path):
    mask = clean().astype(np.uint16)
    mask[:6], mask[6:12] = 300, 301
    source = semantic_source(tmp_path, {'a': mask})
    (picture,) = of_rule(checked(tmp_path, source), 'SEG002')
    assert shares(picture) == pytest.approx((0.25, 0.25), abs=0.02)


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
    assert 'below it its label map' in picture.alt
    pixels = pixels_of(picture)
    lower = pixels[pixels.shape[0] // 2 + 4 :]
    assert (lower == lower[0, 0]).all()
    assert picture.height > picture.width


def test_other_size(tmp_path):
    source = semantic_source(tmp_path, {'a': clean()})
    Image.new('RGB', (30, 90)).save(tmp_path / 'images' / 'a.png')
    pictures = checked(tmp_path, source)
    (picture,) = of_rule(pictures, 'PAIR001')
    assert 'beside it' in picture.alt
    assert max(picture.width, picture.height) <= 480


def test_files_that_cannot_be_read(tmp_path):
    source = semantic_source(tmp_path, {'a': clean(), 'b': clean()})
    (tmp_path / 'masks' / 'a.png').unlink()
    (tmp_path / 'images' / 'b.png').write_bytes(b'')
    pictures = checked(tmp_path, source)
    (missing,) = of_rule(pictures, 'SEG015')
    (empty,) = of_rule(pictures, 'IMG002')
    for each, word in ((missing, 'missing'), (empty, 'empty')):
        assert (each.uri, each.width, each.height) == ('', 0, 0)
        assert each.alt.startswith(f'no picture: {word}')


def test_a_mask_of_an_unreadable_image(tmp_path):
    mask = clean()
    mask[:12] = 7
    source = semantic_source(tmp_path, {'a': mask})
    (tmp_path / 'images' / 'a.png').write_bytes(b'GIF')
    (picture,) = of_rule(checked(tmp_path, source), 'SEG001')
    assert shares(picture)[0] == pytest.approx(0.5, abs=0.02)


def test_boxes(tmp_path):
    boxes = {
        'fine': [(1.0, 1.0, 20.0, 20.0)],
        'flat': [(1.0, 1.0, 20.0, 20.0), (30.0, 30.0, 30.0, 40.0)],
        'far': [(900.0, 0.0, 950.0, 10.0)],
        'nan': [(float('nan'), 0.0, 9.0, 9.0)],
    }
    source = box_source(tmp_path, boxes, annotation='all.json')
    pictures = checked(tmp_path, source)
    assert {each.rule for each in pictures} >= {'DET001', 'DET002', 'DET004'}
    for rule, number in (('DET001', 1), ('DET002', 2), ('DET004', 1)):
        (picture,) = of_rule(pictures, rule)
        assert picture.classes == ('cat',)
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
    half = (pixels.shape[0] - 8) // 2
    assert (pixels[:half] == pixels[-half:]).all()


def test_across_splits(tmp_path):
    sources = [
        semantic_source(tmp_path / name, {'a': clean()}, split=name)
        for name in ('train', 'val')
    ]
    (picture,) = of_rule(checked(tmp_path, *sources), 'DUP002')
    assert 'val' in picture.alt


def test_each_rule_has_its_share():
    groups = [
        group(
            'SEG001',
            *(finding('SEG001', file=f'{n}-{i}.png') for i in range(3)),
            value=str(n),
        )
        for n in range(5)
    ]
    groups.append(group('SEG010', finding('SEG010', file='x.png')))
    groups.append(group('CFG001', finding('CFG001', key='model')))
    report = report_of(*groups)
    asked = []

    def samples():
        for number in range(5):
            for index in range(3):
                asked.append((number, index))
                yield Sample(index=0, mask=f'{number}-{index}.png')
        yield Sample(index=0, mask='x.png')

    source = SplitSource(Expectations(split=''), samples)
    files = [each.file for each in make_gallery(report, [source])]
    ordered = [f'{n}-{i}.png' for n in range(5) for i in range(3)]
    assert files == [*ordered, 'x.png']
    few = [
        each.file for each in make_gallery(report, [source], max_pictures=3)
    ]
    assert few == ['0-0.png', '1-0.png', 'x.png']
    asked.clear()
    assert make_gallery(report, [source], max_pictures=0) == []
    assert asked == []


def test_stops_when_all_are_found(tmp_path):
    mask = clean()
    mask[0] = 7
    source = semantic_source(tmp_path, {'a': mask, 'b': clean()})
    first, _ = source.samples()

    def samples():
        yield first
        raise AssertionError('went on')

    report = report_of(
        group('SEG001', finding('SEG001', file=first.mask, value='7'))
    )
    lazy = dataclasses.replace(source, samples=samples)
    (picture,) = make_gallery(report, [lazy])
    assert picture.uri


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


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'max_pictures': -1}, 'max_pictures must be >= 0, got -1'),
        ({'max_side': 8}, 'max_side must be >= 32, got 8'),
    ],
)
def test_rejects(options, message):
    with pytest.raises(ValueError, match=message):
        make_gallery(report_of(), [], **options)


def test_camvid(shared_path, tmp_path):
    root = shared_path('data/camvid')
    source = split_of_folders(
        root / 'valannot', root / 'val', Expectations(num_classes=11)
    )
    (first, *_) = pictures = of_rule(checked(tmp_path, source), 'SEG001')
    assert len(pictures) == 5
    sample = next(each for each in source.samples() if each.mask == first.file)
    mask = np.asarray(Image.open(sample.mask))
    assert shares(first)[0] == pytest.approx((mask == 11).mean(), abs=0.02)


def test_damaged_files_end_in_an_entry(tmp_path):
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
    pictures = make_gallery(report, [source], max_pictures=10_000, max_side=64)
    assert len(pictures) == len(rules) * len(samples)
    for each in pictures:
        assert bool(each.uri) == bool(each.width)
        assert each.alt
        assert each.uri or each.alt.startswith('no picture: ')
    shown = [each for each in pictures if each.uri]
    assert len(shown) >= len(kinds) * len(rules)
