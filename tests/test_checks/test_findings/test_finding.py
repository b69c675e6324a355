"""Findings as data: order of severities, JSON and back."""

import msgspec

from mmext.checks.findings.finding import Finding, Location, Severity


def test_severities_are_in_order():
    assert Severity.INFO < Severity.WARNING < Severity.ERROR


def test_round_trip():
    finding = Finding(
        rule='SEG001',
        severity=Severity.ERROR,
        message='value 11 is no class',
        remedy='set ignore_index=11',
        location=Location(file='<script>.png', pixel=(3, 5)),
        value='11',
        count=7,
    )
    content = msgspec.json.encode(finding)
    assert msgspec.json.decode(content, type=Finding) == finding
    assert b'"split"' not in content
