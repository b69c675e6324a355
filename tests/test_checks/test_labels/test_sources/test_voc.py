"""Folders of XML files."""

import pytest
from helpers.label_sets import clean
from helpers.toy_ranks import load_tool

from mmext.checks.labels.facts import Orphan
from mmext.checks.labels.sources.folders import splits_of_voc

XML = (
    '<annotation><filename>{name}.jpg</filename><object><name>{cls}</name>'
    '<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>'
    '</bndbox></object></annotation>'
)


def write(folder, lists=None):
    for part in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (folder / part).mkdir(parents=True)
    for name, cls in (('a', 'dog'), ('b', 'cat'), ('c', 'dog')):
        text = XML.format(name=name, cls=cls)
        (folder / 'Annotations' / f'{name}.xml').write_text(text)
        (folder / 'JPEGImages' / f'{name}.jpeg').touch()
    for split, names in (lists or {}).items():
        path = folder / 'ImageSets/Main' / f'{split}.txt'
        path.write_text('\n'.join(names) + '\n')
    return folder


def test_lists(tmp_path):
    root = write(tmp_path, {'train': ['a'], 'val': ['b'], 'test': ['x']})
    train, val = splits_of_voc(root, ('train', 'val'))
    assert (train.expected.split, val.expected.split) == ('train', 'val')
    (sample,) = val.samples()
    assert sample.image == str(root / 'JPEGImages/b.jpeg')
    assert sample.annotation == str(root / 'Annotations/b.xml')
    assert sample.annotation_kind == 'voc'
    # No list names c; what another list names is no orphan.
    assert list(train.orphans()) == [
        Orphan(
            split='train',
            path=str(root / 'Annotations/c.xml'),
            kind='annotation',
        ),
        Orphan(
            split='train', path=str(root / 'JPEGImages/c.jpeg'), kind='image'
        ),
    ]
    assert list(val.orphans()) == []


def test_rejects(tmp_path):
    with pytest.raises(FileNotFoundError, match='voc must hold XML files'):
        splits_of_voc(tmp_path, ['train'])
    with pytest.raises(NotADirectoryError, match='images must be'):
        splits_of_voc(tmp_path, ['train'], images=tmp_path / 'none')


def test_lines_of_lists_are_whole_names_as_for_the_loader(tmp_path):
    """'b 1' is a class's list; XMLDataset looks for the file 'b 1.xml'."""
    root = write(tmp_path, {'train': ['my a', 'b 1'], 'cat_train': ['c -1']})
    for part, old in (('Annotations', 'a.xml'), ('JPEGImages', 'a.jpeg')):
        (root / part / old).rename(root / part / f'my {old}')
    (source,) = splits_of_voc(root, ['train'])
    mine, other = source.samples()
    assert mine.annotation == str(root / 'Annotations/my a.xml')
    assert other.annotation == str(root / 'Annotations/b 1.xml')
    assert [orphan.path for orphan in source.orphans()] == []


def test_a_list_that_is_not_utf8_is_named(tmp_path, capsys):
    root = write(tmp_path, {'train': ['a']})
    path = root / 'ImageSets' / 'Main' / 'train.txt'
    path.write_bytes('ä\n'.encode('latin-1'))
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(
            load_tool('validate_labels').main(['--voc', str(root)])
        )
    assert stopped.value.code == 2
    assert f'{path} must be text in UTF-8' in capsys.readouterr().err
    data = clean('voc', tmp_path / 'data')
    path = data.root / 'ImageSets' / 'Main' / 'train.txt'
    path.write_bytes('ä\n'.encode('latin-1'))
    code, report = data.check()
    assert code == 1
    assert f'{path} must be text in UTF-8' in report.groups[0].message


def test_folders_above_that_of_the_lists(tmp_path, capsys):
    """By the tool: the pictures are found, and two years are refused."""
    kit = tmp_path / 'VOCdevkit'
    data = clean('voc_bare', kit / 'VOC2012')
    for root in (kit, tmp_path):
        code, report = data.check(voc=root)
        assert (code, report.groups) == (0, ())
        assert report.splits[0].num_samples == 6
    clean('voc_bare', kit / 'VOC2007')
    with pytest.raises(SystemExit) as stopped:
        data.check(voc=tmp_path)
    assert stopped.value.code == 2
    assert 'one folder with ImageSets, got' in capsys.readouterr().err
