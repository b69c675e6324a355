"""Where repaired files go, and where they must not."""

import pytest

from mmext.checks.labels.fix.fix_labels import (
    check_out,
    common_folder,
)


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
