"""Findings of a preflight."""

import msgspec

from mmext.preflight.findings import DELETE, PreflightFinding, Severity


def test_round_trip():
    finding = PreflightFinding(
        rule='DDP001',
        severity=Severity.ERROR,
        message='unused',
        remedy='use it',
        names=('a', 'b'),
        options={'model.with_cp': DELETE},
    )
    packed = msgspec.json.encode(finding)
    assert msgspec.json.decode(packed, type=PreflightFinding) == finding
    # What is not known takes no room.
    assert b'"file"' not in packed
