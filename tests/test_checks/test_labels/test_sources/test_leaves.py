"""Data sets inside of a config's wrappers, and how their labels are read."""

import pytest
from helpers.toy_ranks import load_tool
from mmdet.datasets import CocoDataset, XMLDataset

from mmext.checks.labels.sources.config import form_of


class OtherCoco(CocoDataset):
    """Reads the file in a way of its own."""

    def parse_data_info(self, raw_data_info):
        return raw_data_info


def test_which_files_are_read():
    assert form_of(XMLDataset(lazy_init=True)) == 'voc'
    assert form_of(OtherCoco(lazy_init=True)) == ''


def test_a_data_set_that_raises_is_named(tmp_path, capsys):
    """By the tool: one line, and no traceback."""
    (tmp_path / 'failing_set.py').write_text(
        'from mmdet.datasets import CocoDataset\n'
        'from mmdet.registry import DATASETS\n\n\n'
        '@DATASETS.register_module(force=True)\n'
        'class FailingSet(CocoDataset):\n'
        '    def load_data_list(self):\n'
        "        return {}['missing']\n"
    )
    annotations = tmp_path / 'a.json'
    annotations.write_text('{"images": [], "annotations": []}')
    dataset = dict(type='FailingSet', ann_file=str(annotations), pipeline=[])
    config = tmp_path / 'config.py'
    config.write_text(
        f'import sys\nsys.path.insert(0, {str(tmp_path)!r})\n'
        "custom_imports = dict(imports=['failing_set'])\n"
        "default_scope = 'mmdet'\n"
        f'train_dataloader = dict(dataset={dataset!r})\n'
    )
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(load_tool('validate_labels').main([str(config)]))
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert "the data set FailingSet raises KeyError: 'missing' (" in printed
    assert 'failing_set.py:8 in load_data_list' in printed
    assert printed.count('\n') == 1
