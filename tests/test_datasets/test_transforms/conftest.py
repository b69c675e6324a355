"""Journals and workers of these tests end with them."""

import tempfile

import pytest
from helpers.loader_workers import shut_down_loaders

from mmext.datasets.transforms import label_problem as label_journal


@pytest.fixture(autouse=True)
def _own_journals(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    yield
    shut_down_loaders()
    label_journal._own.clear()
