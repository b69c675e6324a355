"""Splits in NYUv2's layout, by folder and by a config."""

import pytest
from helpers.label_sets import clean

from mmext.checks.labels.run import refuse_fix, sources_of
from mmext.checks.labels.sources.folders import splits_of_layout


@pytest.fixture
def data(tmp_path):
    return clean('nyuv2', tmp_path / 'data')


def test_samples_are_those_that_any_folder_has(data):
    (data.root / 'train/depth/0.npy').unlink()
    (data.root / 'train/normal/11.npy').touch()
    train, val = splits_of_layout(data.root, ('train', 'val', 'test'))
    assert (train.expected.split, val.expected.split) == ('train', 'val')
    samples = list(train.samples())
    assert len(samples) == 7
    assert samples[0].depth == str(data.root / 'train/depth/0.npy')
    assert samples[6].mask == str(data.root / 'train/label/11.npy')
    assert list(train.orphans()) == []


def test_missing_folders(data, tmp_path):
    with pytest.raises(NotADirectoryError, match='one of the splits test, go'):
        splits_of_layout(data.root, ['test'])
    (data.root / 'val/depth').rename(tmp_path / 'depth')
    with pytest.raises(FileNotFoundError, match='without depth'):
        splits_of_layout(data.root, ['val'])


def test_folder_in_place_of_a_config(data):
    sources = sources_of(config=str(data.root))
    assert [source.expected.split for source in sources] == ['train', 'val']
    with pytest.raises(ValueError, match=r'the config .* and --masks \.'):
        sources_of(config=str(data.root), masks='.')


def test_generated_samples_have_no_files(tmp_path):
    config = tmp_path / 'config.py'
    dataset = {'type': 'mmext.GeneratedCategoricalDataset', 'num_samples': 2}
    config.write_text(f'train_dataloader = dict(dataset={dataset})\n')
    with pytest.raises(ValueError, match='got GeneratedCategoricalDataset'):
        sources_of(config=str(config))


def test_npy_files_are_refused_by_fix(data, tmp_path):
    sources = sources_of(nyuv2=data.root)
    with pytest.raises(ValueError, match='does not repair npy files'):
        refuse_fix(tmp_path / 'out', sources)
