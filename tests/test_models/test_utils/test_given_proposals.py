"""Proposals of the data are handed on, and missed where they lack."""

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmext.models.utils.given_proposals import given_proposals


def make_sample(count: int) -> DetDataSample:
    sample = DetDataSample()
    sample.proposals = InstanceData(bboxes=torch.rand(count, 4))
    return sample


def test_takes_those_of_each_sample():
    samples = [make_sample(3), make_sample(0)]
    found = given_proposals(samples)
    assert all(a is b.proposals for a, b in zip(found, samples))
    assert [len(proposals.bboxes) for proposals in found] == [3, 0]
    assert given_proposals([]) == []


def test_rejects_a_sample_without():
    with pytest.raises(
        ValueError,
        match=r'must carry proposals .*got none in sample 1; give model\.rpn',
    ):
        given_proposals([make_sample(2), DetDataSample()])
