"""All that a proof says about a config."""

from ..findings import PreflightFinding
from ..sync_cures import SyncSettings
from ._optimizer_findings import optimizer_findings
from ._step_findings import step_findings
from ._sync_findings import sync_findings
from .config_options import ConfigOptions
from .facts import Proof
from .judging import Judgements

__all__ = ['proof_findings']


def proof_findings(
    proof: Proof,
    current: SyncSettings,
) -> list[PreflightFinding]:
    """Judge what was seen.

    Args:
        proof: What was seen.
        current: The settings in use.

    Returns:
        The findings, the worst first.

    Examples:
        >>> from mmext.preflight import Firing, StepUsage
        >>> from mmext.preflight.proof import StepProof
        >>> usage = StepUsage(('a',), (Firing('a', 0),), frozenset('a'))
        >>> proof = Proof({'normal': (StepProof('normal', 0, usage),)})
        >>> proof_findings(proof, SyncSettings())
        []
        >>> found = proof_findings(proof, SyncSettings(True))
        >>> found[0].rule, found[0].options
        ('DDP005', {'find_unused_parameters': False})
    """
    options = proof.config or ConfigOptions.of_settings(current)
    table = Judgements(proof, current)
    found = [
        *step_findings(proof),
        *sync_findings(proof, current, table, options),
        *optimizer_findings(proof),
    ]
    return sorted(found, key=lambda finding: -finding.severity)
