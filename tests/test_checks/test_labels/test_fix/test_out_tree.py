"""Where repaired files go, and where they must not."""

import pytest

from mmext.checks.labels.fix.fix_labels import check_out


def test_check_out(tmp_path):
    data = tmp_path / 'data' / 'masks'
    data.mkdir(parents=True)
    check_out(tmp_path / 'out', [str(data)])
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
