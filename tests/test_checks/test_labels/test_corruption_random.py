"""Random errors at random places: each is found there, and nothing else is.

What must be found is written down as an error is planted, by its rule, its
file and its place.
"""

import tempfile
from collections import Counter
from pathlib import Path

from helpers.label_sets import SIZES, DataSet, clean, noise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmext.checks.findings import Finding
from mmext.checks.labels.check import check_sources
from mmext.checks.labels.inputs import sources_of
from mmext.checks.labels.rules.registry import select_rules
from mmext.checks.labels.store import FactStore

HEIGHT, WIDTH = 24, 32
FILES = SIZES['train']
random_examples = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def findings(data: DataSet, *ignore: str) -> list[Finding]:
    """All findings; not those of rules for whole splits."""
    rules = select_rules((), ('CLS', 'DUP', 'SEG007', 'DET011', *ignore))
    sources = sources_of(**data.settings)
    with FactStore(data.root / 'facts.sqlite') as store:
        report = check_sources(sources, store, rules=rules, num_examples=10**6)
    return [each for group in report.groups for each in group.examples]


pixel = st.tuples(st.integers(0, HEIGHT - 1), st.integers(0, WIDTH - 1))
painted = st.dictionaries(pixel, st.integers(3, 254), min_size=1, max_size=9)
broken = st.sampled_from(
    ['empty', 'cut', 'flip', 'resize', 'no image', 'no mask', 'colour']
)
mask_plants = st.dictionaries(
    st.integers(0, FILES - 1),
    st.tuples(st.one_of(painted, broken), st.floats(0.2, 0.9)),
    max_size=FILES - 1,
)


def paint(data: DataSet, index: int, values: dict) -> set[tuple]:
    pixels = data.pixels(index)
    for place, value in values.items():
        pixels[place] = value
    path = data.mask(index)
    Image.fromarray(pixels).save(path)
    wanted = set()
    for value, count in Counter(values.values()).items():
        y, x = min(at for at, each in values.items() if each == value)
        rule = 'SEG006' if value == 254 else 'SEG001'
        wanted.add((rule, str(path), f'y={y}, x={x}', str(value), count))
    return wanted


def break_mask(data: DataSet, index: int, kind: str, where: float) -> tuple:
    path, image = data.mask(index), data.image(index)
    content = path.read_bytes()
    at = int(where * len(content))
    if kind == 'no image':
        image.unlink()
        return 'PAIR007', str(path), '', '', 1
    if kind == 'no mask':
        path.unlink()
        return 'PAIR006', str(image), '', '', 1
    if kind == 'resize':
        noise([index], HEIGHT + 3, WIDTH).save(image)
        return 'PAIR001', str(path), '', f'{WIDTH} x {HEIGHT}', 1
    if kind == 'colour':
        Image.open(path).convert('RGB').save(path)
        return 'SEG010', str(path), '', 'RGB', 1
    if kind == 'empty':
        path.write_bytes(b'')
        return 'SEG016', str(path), '', '', 1
    if kind == 'cut':
        path.write_bytes(content[:at])
        return 'SEG017', str(path), '', '', 1
    # In the data of the chunk of pixels.
    at = content.index(b'IDAT') + 4 + int(where * 20)
    changed = bytes([content[at] ^ 1 << index])
    path.write_bytes(content[:at] + changed + content[at + 1 :])
    return 'SEG018', str(path), '', '', 1


@random_examples
@given(mask_plants)
def test_masks(plants):
    with tempfile.TemporaryDirectory() as folder:
        data = clean('folders', Path(folder, 'data'))
        wanted = set()
        for index, (plant, where) in plants.items():
            if isinstance(plant, dict):
                wanted |= paint(data, index, plant)
            else:
                wanted.add(break_mask(data, index, plant, where))
        found = [
            (each.rule, each.file, each.place, each.value, each.count)
            for each in findings(data)
        ]
        assert set(found) == wanted
        assert len(found) == len(wanted)
