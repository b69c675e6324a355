"""Prove on one CPU what many processes will do with a model."""

from .config_options import ConfigOptions
from .facts import (
    Crash,
    GraphCost,
    KeptGraph,
    LossTerm,
    NormUse,
    OptimizerFacts,
    Proof,
    StepProof,
)
from .proof_findings import proof_findings
from .prover import prove
from .verdicts import Verdict, Verdicts, verdict_table
from .world import WorldResult, run_world, run_world_config

__all__ = [
    'ConfigOptions',
    'Crash',
    'GraphCost',
    'KeptGraph',
    'LossTerm',
    'NormUse',
    'OptimizerFacts',
    'Proof',
    'StepProof',
    'Verdict',
    'Verdicts',
    'WorldResult',
    'proof_findings',
    'prove',
    'run_world',
    'run_world_config',
    'verdict_table',
]
