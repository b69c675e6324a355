"""Damaged files: none ends a check, and none that is unusable goes unseen."""

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import numpy as np
import pytest
from helpers.image_bytes import bare_png, photo, png, saved, street
from helpers.label_boxes import coco_records, voc_text
from helpers.label_fuzz import fuzz, plausible_coco, plausible_voc
from PIL import Image

from mmext.checks.findings import select_rules
from mmext.checks.labels import Expectations
from mmext.checks.labels.check import check_sources
from mmext.checks.labels.readers.coco import read_coco
from mmext.checks.labels.readers.decode import DECODER_ERRORS
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.sources import split_of_folders
from mmext.checks.labels.sources.coco import split_of_coco
from mmext.checks.labels.sources.folders import split_of_pairs
from mmext.checks.labels.store import FactStore

CLASSES = ('road', 'car', 'sky')
SIZE = (48, 36)
DETECTION = Expectations(task='detection', num_classes=3, classes=CLASSES)


@pytest.fixture(
    params=[
        500,
        pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.exhaustive]),
    ]
)
def count(request):
    """Damaged files of a kind."""
    return request.param


@pytest.fixture
def random():
    return np.random.default_rng(7)


def check(sources, folder: Path, *, rules=()) -> dict[str, set[str]]:
    """Each file with a finding, and the rules that found it."""
    with FactStore(folder / 'facts.sqlite') as store:
        report = check_sources(
            sources,
            store,
            rules=select_rules(RULES, rules),
            num_examples=10**6,
        )
    results: dict[str, set[str]] = {}
    for group in report.groups:
        for example in group.examples:
            results.setdefault(example.file, set()).add(example.rule)
    return results


def pixels(content: bytes) -> np.ndarray | None:
    """What Pillow decodes, None if it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return np.array(Image.open(io.BytesIO(content)))
    except DECODER_ERRORS:
        return None


def write_folders(folder: Path, masks: list[bytes], images: list[bytes]):
    for name, files, suffix in (
        ('masks', masks, '.png'),
        ('images', images, '.jpg'),
    ):
        (folder / name).mkdir()
        for number, content in enumerate(files):
            path = folder / name / f'{number:04}{suffix}'
            path.write_bytes(content)
    expected = Expectations(num_classes=20)
    return split_of_folders(folder / 'masks', folder / 'images', expected)


def test_masks(tmp_path, random, count):
    masks = [
        png(street(seed, 48, 64, count=6), optimize=bool(seed % 2))
        for seed in range(10)
    ]
    image = saved(Image.fromarray(photo(0, 48, 64)), 'JPEG')
    damaged = [fuzz(masks[n % 10], random) for n in range(count)]
    source = write_folders(tmp_path, damaged, [image] * count)
    findings = check([source], tmp_path, rules=['SEG', 'PAIR'])
    missed = 0
    for number, content in enumerate(damaged):
        decoded, wanted = pixels(content), pixels(masks[number % 10])
        same = decoded is not None and np.array_equal(decoded, wanted)
        path = str(tmp_path / 'masks' / f'{number:04}.png')
        missed += not same and path not in findings
    assert missed == 0
    assert len(findings) > 0.9 * count


def test_images(tmp_path, random, count):
    """JPEG has no checksum: other pixels without a complaint are no miss."""
    images = [
        saved(
            Image.fromarray(photo(seed, 48, 64)),
            'JPEG',
            progressive=bool(seed % 2),
        )
        for seed in range(10)
    ]
    mask = png(street(0, 48, 64, count=6))
    damaged = [fuzz(images[n % 10], random) for n in range(count)]
    source = write_folders(tmp_path, [mask] * count, damaged)
    findings = check([source], tmp_path, rules=['IMG', 'PAIR'])
    missed = []
    for number, content in enumerate(damaged):
        decoded = pixels(content)
        cut = images[number % 10].startswith(content)
        name = f'{number:04}'
        seen = {str(tmp_path / 'images' / f'{name}.jpg')} | {
            str(tmp_path / 'masks' / f'{name}.png')
        }
        # A colour image that became a grey one is one all the same.
        usable = decoded is not None and decoded.shape[:2] == (48, 64)
        if (cut or not usable) and not seen & findings.keys():
            missed.append(number)
    assert missed == []
    assert len(findings) > 0.6 * count


def test_coco(tmp_path, random, count):
    names = [f'{number}.jpg' for number in range(4)]
    good = json.dumps(coco_records(names, CLASSES, SIZE)).encode()
    damaged = [fuzz(good, random) for _ in range(count)]
    sources = []
    for number, content in enumerate(damaged):
        path = tmp_path / f'{number:04}.json'
        path.write_bytes(content)
        expected = msgspec.structs.replace(DETECTION, split=f'test{number}')
        sources.append(split_of_coco(str(path), '', expected))
    findings = check(sources, tmp_path, rules=['COCO', 'DET'])
    missed = [
        number
        for number, content in enumerate(damaged)
        if not plausible_coco(content, CLASSES)
        and str(tmp_path / f'{number:04}.json') not in findings
    ]
    assert missed == []
    assert len(findings) > 0.6 * count
    assert plausible_coco(good, CLASSES)


def test_voc(tmp_path, random, count):
    image = tmp_path / 'image.jpg'
    Image.fromarray(photo(0, *SIZE[::-1])).save(image)
    good = voc_text('image.jpg', 0, CLASSES, SIZE).encode()
    damaged = [fuzz(good, random) for _ in range(count)]
    pairs = []
    for number, content in enumerate(damaged):
        (tmp_path / f'{number:04}').mkdir()
        path = tmp_path / f'{number:04}' / 'image.xml'
        path.write_bytes(content)
        path.with_suffix('.jpg').symlink_to(image)
        pairs.append((str(path.with_suffix('.jpg')), str(path)))
    source = split_of_pairs(pairs, DETECTION)
    findings = check([source], tmp_path, rules=['VOC', 'DET', 'PAIR'])
    missed = [
        number
        for number, content in enumerate(damaged)
        if not plausible_voc(content, 'image.jpg', CLASSES, SIZE)
        and not findings.keys() & set(pairs[number])
    ]
    assert missed == []
    assert len(findings) > 0.6 * count
    assert plausible_voc(good, 'image.jpg', CLASSES, SIZE)


def huge_jpeg() -> bytes:
    content = bytearray(saved(Image.new('RGB', (8, 8)), 'JPEG'))
    at = content.index(b'\xff\xc0')
    content[at + 5 : at + 9] = b'\xff\xff\xff\xff'
    return bytes(content)


def huge_bmp() -> bytes:
    content = bytearray(saved(Image.new('L', (8, 8)), 'BMP'))
    content[18:26] = (100_000).to_bytes(4, 'little') * 2
    return bytes(content)


def huge_tiff() -> bytes:
    """Width and height are the first entries of its directory."""
    content = bytearray(saved(Image.new('L', (8, 8)), 'TIFF'))
    for tag in (256, 257):
        at = content.index(tag.to_bytes(2, 'little'), 8)
        content[at + 2 : at + 4] = (4).to_bytes(2, 'little')
        content[at + 8 : at + 12] = (100_000).to_bytes(4, 'little')
    return bytes(content)


HUGE = {
    'png': bare_png(100_000, 100_000, b'\x00' * 10**6),
    'rgb.png': bare_png(100_000, 100_000, b'\x00' * 10**6, colour=2),
    'jpg': huge_jpeg(),
    'bmp': huge_bmp(),
    'tif': huge_tiff(),
}
MEASURE = """
import resource, sys
from mmext.checks.labels.readers.image import read_image_facts
from mmext.checks.labels.readers.image import read_mask_facts
content = open(sys.argv[1], 'rb').read()
small = open(sys.argv[2], 'rb').read()
for read in (read_image_facts, read_mask_facts):
    assert not read(small).error
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
for read in (read_image_facts, read_mask_facts):
    error = read(content).error
    assert 'refused' in str(error), error
print(peak() - before)
"""


@pytest.mark.parametrize('kind', HUGE)
def test_claims_of_size_take_no_memory(kind, tmp_path, checkout):
    path = tmp_path / f'huge.{kind}'
    path.write_bytes(HUGE[kind])
    (tmp_path / 'small.png').write_bytes(png(street()))
    done = subprocess.run(
        [
            sys.executable,
            '-W',
            'ignore',
            '-c',
            MEASURE,
            str(path),
            str(tmp_path / 'small.png'),
        ],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 100  # MiB


@pytest.mark.parametrize(
    'content',
    [
        '[' * 100_000,
        '[' * 100_000 + ']' * 100_000,
        '{"images": ' + '[' * 100_000,
        '{"a": ' * 100_000 + '1' + '}' * 100_000,
        '{"images": [{"id": %s, "file_name": "a"}]}' % ('9' * 5000),
        '{"images": [], "annotations": [{"id": 1e999}]}',
        '{"images": 1, "annotations": null, "categories": "x"}',
    ],
    ids=lambda text: f'{text[:10]}-{len(text)}',
)
def test_json_that_breaks_parsers(content, tmp_path):
    assert read_coco(content.encode()).errors
    path = tmp_path / 'a.json'
    path.write_text(content)
    source = split_of_coco(str(path), '', DETECTION)
    assert 'COCO001' in check([source], tmp_path)[str(path)]
