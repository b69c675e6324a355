"""What a proof says about the optimizer."""

from collections.abc import Iterator

from ..findings import PreflightFinding, Severity
from ._name_groups import count_of, in_words
from .facts import OptimizerFacts, Proof

__all__ = ['optimizer_findings']

_KEYS = 'optim_wrapper.paramwise_cfg.custom_keys'


def optimizer_findings(proof: Proof) -> Iterator[PreflightFinding]:
    """Findings about groups of parameters.

    Args:
        proof: What was seen.

    Yields:
        The findings.
    """
    facts = proof.optimizer
    if facts is None:
        return
    everything = [name for usage in proof.usages() for name in usage.names]
    if facts.missing:
        yield PreflightFinding(
            rule='OPT001',
            severity=Severity.ERROR,
            message='in no group of the optimizer, so never changed: '
            f'{count_of(facts.missing, "trainable parameter")} in '
            f'{in_words(facts.missing, everything)}',
            remedy='build the optimizer after the last parameter was made '
            'and unfrozen, or freeze them with requires_grad_(False)',
            names=facts.missing,
        )
    if facts.frozen:
        yield PreflightFinding(
            rule='OPT002',
            severity=Severity.INFO,
            message='in the optimizer, but frozen (requires_grad=False): '
            f'{count_of(facts.frozen)}',
            remedy='none is needed, as long as nothing unfreezes them',
            names=facts.frozen,
        )
    if facts.rate_zero:
        yield PreflightFinding(
            rule='OPT003',
            severity=Severity.WARNING,
            message='with a learning rate of 0 (lr_mult=0): '
            f'{count_of(facts.rate_zero, "trainable parameter")} in '
            f'{in_words(facts.rate_zero, everything)}; gradients are '
            'computed and averaged for nothing',
            remedy='freeze them with requires_grad_(False) or '
            'frozen_stages, which also saves the memory',
            key=_KEYS,
            names=facts.rate_zero,
        )
    yield from _custom_keys(facts)


def _custom_keys(facts: OptimizerFacts) -> Iterator[PreflightFinding]:
    for key, near in facts.unmatched.items():
        hint = f'; the nearest real name is {near!r}' if near else ''
        yield PreflightFinding(
            rule='OPT004',
            severity=Severity.WARNING,
            message=f'custom_keys {key!r} is in the name of no parameter, so '
            f'it does nothing{hint}',
            remedy=f'write {near!r}' if near else 'correct or remove it',
            key=f'{_KEYS}.{key}' if '.' not in key else _KEYS,
            names=(key,),
        )
    for key in facts.shadowed:
        yield PreflightFinding(
            rule='OPT005',
            severity=Severity.INFO,
            message=f'custom_keys {key!r} does nothing: for every parameter '
            'that it fits, a longer key, or one before it in the alphabet, '
            'is used instead',
            remedy='remove it, or write it into the longer key',
            key=f'{_KEYS}.{key}' if '.' not in key else _KEYS,
            names=(key,),
        )
