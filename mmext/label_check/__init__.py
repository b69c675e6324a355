"""Check the labels of a data set against the config that trains on it."""

from .expectations import Expectations, HeadFacts
from .facts import BoxFacts, ImageFacts, MaskFacts, Sample, SampleFacts
from .findings import Finding, Severity

__all__ = [
    'BoxFacts',
    'Expectations',
    'Finding',
    'HeadFacts',
    'ImageFacts',
    'MaskFacts',
    'Sample',
    'SampleFacts',
    'Severity',
]
