"""What a check finds, the rules that find it, and the reports of it."""

from . import page, terminal
from .finding import (
    ErrorCatcher,
    Family,
    Finding,
    Location,
    Rule,
    Severity,
    code_location,
    find_rule,
    frames_of,
    new_finding,
    rules_of,
    select_rules,
)
from .json import (
    as_record,
    location_writer,
    sarif_log,
    sarif_result,
    to_json,
    to_json_line,
)

__all__ = [
    'ErrorCatcher',
    'Family',
    'Finding',
    'Location',
    'Rule',
    'Severity',
    'as_record',
    'code_location',
    'find_rule',
    'frames_of',
    'location_writer',
    'new_finding',
    'page',
    'rules_of',
    'sarif_log',
    'sarif_result',
    'select_rules',
    'terminal',
    'to_json',
    'to_json_line',
]
