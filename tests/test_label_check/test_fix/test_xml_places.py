"""Elements are where the bytes say."""

import pytest

from mmext.label_check.fix._xml_places import XmlEdit, find_elements

TEXT = """<?xml version="1.0" encoding="utf-8"?>
<!-- <object> -->
<a>
  <b c="x > y" d='"'>ä 1</b>
  <object><n>1</n><![CDATA[</object>]]></object>
  <object/>
  <e /></a>
<!-- end -->
""".encode()


def test_elements():
    root = find_elements(TEXT)
    assert root.path == 'a'
    assert TEXT[root.begin :].startswith(b'<a>')
    assert TEXT[: root.end].endswith(b'</a>')
    inner = root.find('b').inner
    assert TEXT[slice(*inner)].decode() == 'ä 1' == root.find('b').text
    assert [each.path for each in root.children] == [
        'a/b',
        'a/object',
        'a/object',
        'a/e',
    ]
    assert root.find('object/n').text == '1'
    assert root.find('object/m') is None
    first, second = root.children[1:3]
    assert TEXT[first.begin : first.end].endswith(b']]></object>')
    assert TEXT[second.begin : second.end] == b'<object/>'


def test_edits():
    root = find_elements(TEXT)
    edit = XmlEdit(TEXT)
    edit.set_text(root.find('b'), '2')
    edit.set_text(root.find('e'), '3')
    edit.set_text(root.find('object/n'), '4')
    edit.remove(root.children[1])
    expected = (
        TEXT.decode()
        .replace('ä 1', '2')
        .replace('<e />', '<e>3</e>')
        .replace('\n  <object><n>1</n><![CDATA[</object>]]></object>', '')
    )
    assert edit.render().decode() == expected
    assert XmlEdit(TEXT).render() == TEXT


def test_other_encodings():
    latin = '<?xml version="1.0" encoding="latin-1"?><a>ä<b>1</b></a>'
    content = latin.encode('latin-1')
    edit = XmlEdit(content)
    edit.set_text(find_elements(content).find('b'), '2')
    assert edit.render() == content.replace(b'1</b>', b'2</b>')
    with pytest.raises(ValueError, match='more than a byte'):
        find_elements('<a/>'.encode('utf-16'))


@pytest.mark.parametrize('content', [b'', b'<a>', b'<a/><b/>', b'text'])
def test_rejects_what_is_no_xml(content):
    with pytest.raises(ValueError, match='malformed XML'):
        find_elements(content)
