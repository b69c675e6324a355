"""Pascal VOC files: what they say, what is wrong, what is refused."""

import pytest

from mmext.checks.labels.readers.boxes import read_voc

PLAIN = b"""<?xml version="1.0"?>
<annotation>
  <filename>a.jpg</filename>
  <size><width>640</width><height>480</height><depth>3</depth></size>
  <object>
    <name>RBC</name><difficult>0</difficult>
    <bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>30</xmax><ymax>40</ymax>
    </bndbox>
  </object>
  <object>
    <name>WBC </name><difficult>1</difficult>
    <bndbox><ymin>6</ymin><xmin>5</xmin><ymax>6</ymax><xmax>-5</xmax></bndbox>
  </object>
</annotation>
"""


# What is written, and what it takes the place of.
WRITTEN = [
    ('0</difficult>', '</difficult>'),
    ('0</difficult>', ' </difficult>'),
    ('0</difficult>', '2</difficult>'),
    ('0</difficult>', '0.0</difficult>'),
    ('0</difficult>', 'Unspecified</difficult>'),
    ('<difficult>0</difficult>', ''),
    ('640</width>', '</width>'),
    ('<width>640</width>', ''),
    ('640</width>', '640.0</width>'),
    ('640</width>', ' 640 </width>'),
    ('640</width>', '0</width>'),
    ('<name>RBC</name>', ''),
    ('<name>RBC</name>', '<name/>'),
    ('<name>RBC</name>', '<name>RBC </name>'),
    ('2.5', '64.0'),
    ('2.5', '1,5'),
    ('2.5', ''),
    ('<ymin>2.5</ymin>', ''),
]


@pytest.mark.parametrize(('old', 'new'), WRITTEN)
def test_it_fails_where_the_loader_of_mmdetection_does(old, new, tmp_path):
    datasets = pytest.importorskip('mmdet.datasets')
    text = PLAIN.decode()
    assert old in text
    # Only objects of a class are read by the loader.
    text = text.replace(old, new, 1).replace('WBC ', 'RBC')
    (tmp_path / 'Annotations').mkdir()
    (tmp_path / 'Annotations' / 'a.xml').write_text(text)
    (tmp_path / 'list.txt').write_text('a')
    file = read_voc(text.encode())

    def load() -> list[dict]:
        return datasets.XMLDataset(
            data_root=str(tmp_path),
            ann_file='list.txt',
            data_prefix={'sub_data_root': ''},
            metainfo={'classes': ('RBC',)},
            pipeline=[],
            serialize_data=False,
        ).data_list

    if 'fails' in (str(file.error) if file.error else ''):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            load()
        return
    (info,) = load()
    assert (info['width'], info['height']) == (file.width, file.height)
    boxes = [box for box in file.boxes if box.class_name == 'RBC']
    assert [box['ignore_flag'] for box in info['instances']] == [
        int(box.ignored) for box in boxes
    ]
    dropped = len(file.boxes) - len(boxes)
    assert bool(dropped) == ('<name>' in old)


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16'])
def test_doctype_is_refused(encoding):
    lol = ''.join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))
    text = (
        f'<?xml version="1.0" encoding="{encoding}"?>'
        f'<!DOCTYPE bomb [<!ENTITY l0 "lol">{lol}]>'
        '<annotation><filename>&l9;</filename></annotation>'
    )
    assert read_voc(text.encode(encoding)).error.text == (
        'malformed XML: <!ENTITY l0> is refused: it may grow, or be a file'
    )


@pytest.mark.parametrize('doctype', ['annotation', 'a SYSTEM "a.dtd"'])
def test_a_doctype_without_entities_is_read(doctype):
    doctype = f'?><!DOCTYPE {doctype}>'.encode()
    assert read_voc(PLAIN.replace(b'?>', doctype)) == read_voc(PLAIN)
