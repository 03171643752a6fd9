"""Exactness, proved: by enumeration, by tests with power, and by bugs that have to be found."""

from specdec_ref.proof.enumeration import (
    Branch,
    EnumeratingSource,
    ReplaySource,
    enumerate_branches,
    enumerate_distribution,
)
from specdec_ref.proof.goodness import draws_needed, g_test, holm, mixture, power
from specdec_ref.proof.mutants import MUTANTS, Mutant, kill, planted, report
from specdec_ref.proof.rational import (
    completed_distribution,
    emitted_distribution,
    fractions,
    identity,
    one_step_proof,
    round_distribution,
)
from specdec_ref.proof.reference import autoregressive_distribution, difference, total_variation
from specdec_ref.proof.scenario import Scenario
from specdec_ref.proof.statistical import run_suite
from specdec_ref.proof.tree_mutants import TREE_MUTANTS
from specdec_ref.proof.trees import tree_checks

__all__ = [
    "MUTANTS",
    "TREE_MUTANTS",
    "Branch",
    "EnumeratingSource",
    "Mutant",
    "ReplaySource",
    "Scenario",
    "autoregressive_distribution",
    "completed_distribution",
    "difference",
    "draws_needed",
    "emitted_distribution",
    "enumerate_branches",
    "enumerate_distribution",
    "fractions",
    "g_test",
    "holm",
    "identity",
    "kill",
    "mixture",
    "one_step_proof",
    "planted",
    "power",
    "report",
    "round_distribution",
    "run_suite",
    "total_variation",
    "tree_checks",
]
