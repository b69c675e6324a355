"""Records change; all other bytes of the file stay."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mmext.checks.labels.fix.json_records import JsonRecords

PRETTY = b"""{
  "info": {"a]": "x, \\"y\\" ["},
  "images": [
    {"id": 1, "size": 1.50},
    {"id": 2, "name": "NaN, [Infinity]"}
  ],
  "none": [],
  "annotations": [ {"id":7,"box":[NaN, -Infinity,1e2]} ,
                   {"id": 8}, {"id": 9} ],
  "extra": 17
}
"""
KEYS = ['images', 'annotations', 'none']


def test_nothing_done_is_nothing_changed():
    assert JsonRecords(PRETTY, KEYS).render() == PRETTY


def test_edits():
    records = JsonRecords(PRETTY, KEYS)
    assert records.get('images', 1)['name'] == 'NaN, [Infinity]'
    assert str(records.get('annotations', 0)['box']) == '[nan, -inf, 100.0]'
    records.replace('images', 1, {'id': 3})
    records.remove('annotations', 0)
    records.add_field('annotations', 2, 'crowd', 0)
    assert records.get('annotations', 2) == {'id': 9, 'crowd': 0}
    assert records.edited('images', 1)
    assert not records.edited('images', 0)
    expected = PRETTY.replace(
        b'{"id": 2, "name": "NaN, [Infinity]"}', b'{"id": 3}'
    ).replace(
        b"""{"id":7,"box":[NaN, -Infinity,1e2]} ,
                   {"id": 8}, {"id": 9} ]""",
        b"""{"id": 8}, {"id": 9, "crowd": 0} ]""",
    )
    assert records.render() == expected


def test_all_removed():
    records = JsonRecords(PRETTY, KEYS)
    for index in range(3):
        records.remove('annotations', index)
    for index in range(2):
        records.remove('images', index)
    left = json.loads(records.render())
    assert left['annotations'] == [] == left['images']
    assert left['extra'] == 17


def test_texts_beyond_ascii():
    content = '{"images": [{"n": "ü"}, {"n": "é"}]}'.encode()
    records = JsonRecords(content, KEYS)
    records.replace('images', 0, {'n': 'ö'})
    assert records.render() == '{"images": [{"n": "ö"}, {"n": "é"}]}'.encode()


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'[1]',
        b'{"images": [',
        b'{"images": 3}',
        b'{"images": [], "images": []}',
        b'{"a": 1, "images": [], "a": 2}',
        b'\xef\xbb\xbf{"images": []}',
    ],
)
def test_rejects_other_files(content):
    with pytest.raises(ValueError, match=r'twice|JSON|truncated|array|object'):
        JsonRecords(content, KEYS)


values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=3)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS), st.lists(objects, max_size=4)),
    objects,
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.data(),
)
def test_like_an_edit_of_the_decoded_file(arrays, more, indent, ascii, data):
    root = {**{f'x{k}': v for k, v in more.items()}, **arrays}
    content = json.dumps(root, indent=indent, ensure_ascii=ascii).encode(
        errors='surrogatepass' if ascii else 'replace'
    )
    root = json.loads(content)
    records = JsonRecords(content, KEYS)
    for key in arrays:
        kept = []
        for index, record in enumerate(root[key]):
            what = data.draw(st.sampled_from(['keep', 'remove', 'new', 'add']))
            if what == 'remove':
                records.remove(key, index)
                continue
            if what == 'new':
                record = {'new': record}
                records.replace(key, index, record)
            if what == 'add' and record:
                record = record | {'added field': 5}
                records.add_field(key, index, 'added field', 5)
            kept.append(record)
        root[key] = kept
    assert json.dumps(json.loads(records.render())) == json.dumps(root)
