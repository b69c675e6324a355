"""A source by itself: samples, and no orphans unless told."""

from mmext.label_check.expectations import Expectations
from mmext.label_check.facts import Sample
from mmext.label_check.sources import SplitSource


def test_defaults():
    source = SplitSource(Expectations(), lambda: iter([Sample(index=0)]))
    assert list(source.samples()) == [Sample(index=0)]
    assert list(source.orphans()) == []
    assert source.backend_args is None
