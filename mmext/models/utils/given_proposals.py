"""Proposals that come with the data instead of from an RPN."""

from collections.abc import Sequence

from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

__all__ = ['given_proposals']


def given_proposals(samples: Sequence[DetDataSample]) -> list[InstanceData]:
    """Take the proposals out of the samples.

    Args:
        samples: Samples with ``proposals``, whose ``bboxes`` are ``(R, 4)``
            xyxy in pixels.

    Returns:
        One entry per sample.

    Raises:
        ValueError: If a sample has none.
    """
    for i, sample in enumerate(samples):
        if 'proposals' not in sample:
            raise ValueError(
                'data_samples must carry proposals for a roi_head without '
                f'rpn_head, got none in sample {i}; give model.rpn_head or '
                'load proposals in the pipeline'
            )
    return [sample.proposals for sample in samples]
