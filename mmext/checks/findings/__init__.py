"""What a check finds, the rules that find it, and the reports of it."""

from . import page, sarif, terminal
from .finding import Finding, Location, Severity
from .json import as_record, to_json, to_json_line
from .places import PlaceRecord, place_writer
from .reference import rule_reference
from .rule import TOOLS, Family, Rule, found, rules_of, select_rules

__all__ = [
    'TOOLS',
    'Family',
    'Finding',
    'Location',
    'PlaceRecord',
    'Rule',
    'Severity',
    'as_record',
    'found',
    'page',
    'place_writer',
    'rule_reference',
    'rules_of',
    'sarif',
    'select_rules',
    'terminal',
    'to_json',
    'to_json_line',
]
