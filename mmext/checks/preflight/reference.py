"""The rules of both tools as a page of the documentation."""

from ..findings import Rule, rules_of

_HEAD = """# Rules

What the two tools look for, with the ids that stand in their reports. Ids are
stable. A finding may be milder than its rule, and may have a better remedy
that knows the data set; `--fix` does what *fix* says where the facts allow
it. This page is made by `python tools/preflight.py --list-rules markdown`.

Rules look at:

- *sample*: a sample: image, label map or boxes
- *coco*: an annotation file in COCO's format
- *orphan*: a file that no sample has
- *split*: a split as a whole
- *run*: all splits, and the config
- *config*: the config
- *part*: a part of what is built or checked
- *step*: training steps of the dry run
- *ranks*: several processes
"""
_TABLE = """
### {letters}: {title}

| rule | severity | looks at | what is wrong | remedy | fix |
|---|---|---|---|---|---|
"""
_TOOLS = {
    'label_check': 'tools/validate_labels.py',
    'preflight': 'tools/preflight.py',
}


def _row(rule: Rule) -> str:
    severity = rule.severity.name.lower()
    cells = [rule.id, severity, rule.scope, rule.title, rule.remedy, rule.fix]
    text = ' | '.join(cell.replace('|', r'\|') for cell in cells)
    return f'| {text} |\n'.replace('<', r'\<').replace('*', r'\*')


def rule_reference() -> str:
    """Markdown of all rules that are registered, by tool and family."""
    parts = [_HEAD]
    for tool, command in _TOOLS.items():
        parts.append(f'\n## {command}\n')
        families: dict[str, list[Rule]] = {}
        for rule in rules_of(tool).values():
            families.setdefault(rule.family.letters, []).append(rule)
        for letters, rules in families.items():
            title = rules[0].family.title
            parts.append(_TABLE.format(letters=letters, title=title))
            parts += map(_row, rules)
    return ''.join(parts)
