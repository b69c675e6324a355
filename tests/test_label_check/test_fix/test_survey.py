"""Folders and classes of splits."""

import numpy as np
from label_data import write_pairs
from PIL import Image

from mmext.label_check import Expectations, Sample
from mmext.label_check.check import check_labels
from mmext.label_check.fix._survey import (
    Survey,
    folder_of,
    label_files,
    other_file,
    survey,
)
from mmext.label_check.sources import SplitSource, split_of_folders
from mmext.label_check.store import FactStore


def test_survey_of_splits(tmp_path):
    for name, label in (('train', 0), ('val', 1)):
        folder = write_pairs(tmp_path / name, number=1) / 'masks'
        mask = np.full((24, 32), label, np.uint8)
        mask[0] = 255
        Image.fromarray(mask).save(folder / '0.png')
    splits = [
        split_of_folders(
            tmp_path / name / 'masks',
            tmp_path / name / 'images',
            Expectations(split=name, num_classes=number),
        )
        for name, number in (('train', 4), ('val', 4))
    ]
    with FactStore(tmp_path / 'facts.sqlite') as store:
        check_labels(splits, store)
        surveys, unseen = survey(splits, store)
        assert [own.seen for own in surveys] == [{0}, {1}]
        assert unseen == [(2, 3), (2, 3)]
        assert surveys[0].labels() == {str(tmp_path / 'train' / 'masks')}
        assert surveys[1].images == {str(tmp_path / 'val' / 'images')}


def test_folder_of():
    assert folder_of('/a.png') == '/'
    assert folder_of('a/b.png') == 'a'


def test_label_files():
    sample = Sample(
        index=0, mask='m.png', annotation='a.xml', annotation_kind='voc'
    )
    assert list(label_files(sample)) == [('mask', 'm.png'), ('voc', 'a.xml')]
    assert list(label_files(Sample(index=0, annotation='a.json'))) == []


def test_other_files():
    sample = Sample(index=0, annotation='notes/a.json')
    for task, path in (('semantic', ''), ('detection', 'notes/a.json')):
        source = SplitSource(Expectations(task=task), lambda: iter([sample]))
        assert other_file(source, sample) == path
    own = Survey()
    own.add(sample, 'notes/a.json')
    assert own.labels() == {'notes'}
