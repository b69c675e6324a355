"""The rules of both tools as a page of the documentation."""

from collections.abc import Iterable

from .rule import SCOPES, TOOLS, Rule, rules_of

_HEAD = """# Rules

What the two tools look for, with the ids that stand in their reports. Ids are
stable. A finding may be milder than its rule, and may have a better remedy
that knows the data set; `--fix` does what *fix* says where the facts allow
it. This page is made by `python tools/preflight.py --list-rules markdown`.

Rules look at:

"""


def _cell(text: str) -> str:
    return text.replace('|', r'\|').replace('<', r'\<').replace('*', r'\*')


def _rows(rules: Iterable[Rule]) -> str:
    lines = [
        '| rule | severity | looks at | what is wrong | remedy | fix |',
        '|---|---|---|---|---|---|',
    ]
    for rule in rules:
        severity = rule.severity.name.lower()
        cells = (rule.id, severity, rule.scope, rule.title, rule.remedy)
        lines.append(f'| {" | ".join(map(_cell, (*cells, rule.fix)))} |')
    return '\n'.join(lines)


def rule_reference() -> str:
    """Markdown of all rules that are registered, by tool and family."""
    scopes = (f'- *{name}*: {text}\n' for name, text in SCOPES.items())
    parts = [_HEAD, *scopes]
    for tool, command in TOOLS.items():
        parts.append(f'\n## {command}\n')
        families: dict[str, list[Rule]] = {}
        for rule in rules_of(tool).values():
            families.setdefault(rule.family.letters, []).append(rule)
        for letters, rules in families.items():
            title = rules[0].family.title
            parts.append(f'\n### {letters}: {title}\n\n{_rows(rules)}\n')
    return ''.join(parts)
