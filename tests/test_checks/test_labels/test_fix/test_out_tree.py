"""Where repaired files go, and where they must not."""

import pytest

from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import Sample
from mmext.checks.labels.fix.out_tree import (
    check_out,
    common_folder,
    write_lists,
)
from mmext.checks.labels.sources.split_source import SplitSource


def test_common_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert common_folder([]) == ''
    assert common_folder(['a/b']) == str(tmp_path / 'a' / 'b')
    folders = ['a/b/../c', str(tmp_path / 'a' / 'c' / 'd'), './a/cd']
    assert common_folder(folders) == str(tmp_path / 'a')


def test_common_folder_of_urls():
    folders = ['s3://data/a/train', 's3://data/a/val']
    assert common_folder(folders) == 's3://data/a'
    for other in ('.', 'http://data/a'):
        with pytest.raises(ValueError, match='have a folder in common'):
            common_folder([*folders, other])


def test_check_out(tmp_path):
    data = tmp_path / 'data' / 'masks'
    data.mkdir(parents=True)
    check_out(tmp_path / 'out', [str(data), 's3://data'])
    check_out(data.parent / 'out', [str(data)])
    for bad in (data, data / 'out', tmp_path / 'data' / 'masks' / 'a' / 'b'):
        with pytest.raises(ValueError, match='apart from the data'):
            check_out(bad, [str(data)])
    link = tmp_path / 'link'
    link.symlink_to(data)
    with pytest.raises(ValueError, match='apart from the data'):
        check_out(link / 'out', [str(data)])
    for full in (tmp_path, data.parent):
        with pytest.raises(FileExistsError, match='an empty one'):
            check_out(full, [])
    (tmp_path / 'file').write_text('')
    with pytest.raises(FileExistsError, match='an empty one'):
        check_out(tmp_path / 'file', [])
    with pytest.raises(ValueError, match='apart from the data'):
        check_out(tmp_path / 'above', [str(tmp_path / 'above' / 'masks')])


SAMPLES = [
    Sample(index=i, image=f'data/img/{name}.jpg', mask=f'data/ann/{name}.png')
    for i, name in enumerate(['a/0', 'a/1', 'b/2'])
]
FOLDERS = {
    'image': ['data/img/a', 'data/img/b'],
    'mask': ['data/ann/a', 'data/ann/b'],
}


def source(list_file: str = '', split: str = 'train') -> SplitSource:
    return SplitSource(
        Expectations(split=split), lambda: iter(SAMPLES), list_file=list_file
    )


def test_names_without_a_list(tmp_path):
    listed = write_lists(tmp_path, source(), SAMPLES[1:], FOLDERS)
    assert (listed.excluded, listed.include_file) == (2, '')
    text = (tmp_path / listed.exclude_file).read_text()
    assert text == 'a/1\nb/2\n'


def test_lines_of_the_list(tmp_path):
    path = tmp_path / 'train.txt'
    path.write_text('a/0\n a/1 1\nb/2\n')
    out = tmp_path / 'out'
    out.mkdir()
    listed = write_lists(out, source(str(path)), SAMPLES[1:2], FOLDERS)
    assert (out / 'exclude_train.txt').read_text() == ' a/1 1\n'
    assert (out / 'include_train.txt').read_text() == 'a/0\nb/2\n'
    assert listed.include_file == 'include_train.txt'


@pytest.mark.parametrize('text', ['a/0\n', 'a/0\na/x\nb/2\n'])
def test_a_list_of_other_samples_is_not_used(tmp_path, text):
    path = tmp_path / 'train.txt'
    path.write_text(text)
    listed = write_lists(tmp_path, source(str(path)), SAMPLES[:1], FOLDERS)
    assert listed.include_file == ''
    assert (tmp_path / 'exclude_train.txt').read_text() == 'a/0\n'
