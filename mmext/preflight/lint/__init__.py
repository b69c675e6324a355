"""Look for what is wrong in a config; importing this fills the list."""

from . import (
    checkpoints,
    components,
    environment,
    heads,
    hooks,
    ignored,
    keys,
    loaders,
    loops,
    losses,
    pipelines,
    schedules,
)
from .labels import label_findings
from .registry import LINT_RULES, LintRule, describe_lint_rules, lint_rule
from .run_lint import lint_config

__all__ = [
    'LINT_RULES',
    'LintRule',
    'checkpoints',
    'components',
    'describe_lint_rules',
    'environment',
    'heads',
    'hooks',
    'ignored',
    'keys',
    'label_findings',
    'lint_config',
    'lint_rule',
    'loaders',
    'loops',
    'losses',
    'pipelines',
    'schedules',
]
