"""Files of a split, one after the other."""

import numpy as np
import pytest
from label_data import write_pairs
from PIL import Image

from mmext.label_check import Expectations
from mmext.label_check.check import check_labels
from mmext.label_check.facts import Orphan
from mmext.label_check.fix._split_fixer import NewFiles, SplitFixer
from mmext.label_check.fix.change_log import Change, ChangeLog, FixedFile, Left
from mmext.label_check.rules import RULES
from mmext.label_check.sources import SplitSource, split_of_folders
from mmext.label_check.store import FactStore


@pytest.fixture
def files(tmp_path):
    (tmp_path / 'tree').mkdir()
    with ChangeLog(tmp_path / 'log') as log:
        yield NewFiles(tmp_path / 'tree', str(tmp_path / 'data'), log)


def test_put(files, tmp_path):
    path = str(tmp_path / 'data' / 'a' / '1.png')
    change = Change(rule='SEG011')
    left = Left(rule='SEG001', reason='why')
    new = FixedFile(content=b'new', changes=(change,), left=(left,))
    assert files.put('train', path, b'old', new) == b'new'
    assert (files.tree / 'a' / '1.png').read_bytes() == b'new'
    assert files.put('val', path, b'old', new) == b'new'
    assert [each.split for each in files.left] == ['train', 'val']
    other = FixedFile(content=b'old')
    assert files.put('test', path, b'old', other) == b'new'
    assert 'in another way' in files.left[-1].reason
    assert (files.num_files, files.num_fixed) == (1, 1)
    assert files.log.by_rule == {'SEG011': 1}


def test_split(files, tmp_path):
    folder = write_pairs(tmp_path / 'data')
    palette = Image.fromarray(np.array(Image.open(folder / 'masks' / '1.png')))
    palette.putpalette([1, 2, 3] * 256)
    palette.save(folder / 'masks' / '1.png')
    (folder / 'masks' / '2.png').write_bytes(b'')
    (folder / 'lonely.png').write_bytes(b'anything')
    expected = Expectations(num_classes=3, loader_backend='cv2')
    bare = split_of_folders(folder / 'masks', folder / 'images', expected)
    orphans = [
        Orphan(split='train', path=str(folder / 'lonely.png'), kind='mask'),
        Orphan(split='train', path=str(folder / 'image.png'), kind='image'),
    ]
    source = SplitSource(expected, bare.samples, orphans=lambda: iter(orphans))
    fixer = SplitFixer(source, files, tuple(RULES.values()))
    with FactStore(tmp_path / 'facts.sqlite') as store:
        check_labels([source], store)
        fixer.fix(store)
    assert (files.num_files, files.num_fixed) == (7, 1)
    assert files.log.by_rule == {'SEG011': 1}
    assert [each.index for each in fixer.excluded] == [2]
    assert {each.rule for each in files.left} == {'SEG016', 'PAIR009'}
    assert (files.tree / 'lonely.png').read_bytes() == b'anything'
    assert not (files.tree / 'image.png').exists()
