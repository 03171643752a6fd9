"""Trees, enumerated through the production loop; and every bug planted into them dies."""

from __future__ import annotations

import pytest

from specdec_ref.proof import kill
from specdec_ref.proof.exact import TOLERANCE
from specdec_ref.proof.tree_mutants import TREE_MUTANTS
from specdec_ref.proof.trees import SCENARIOS, llama_deviation, rejected_though_equal, tree_checks


@pytest.mark.parametrize("name", SCENARIOS)
def test_whole_outputs_follow_the_targets_distribution(name):
    assert SCENARIOS[name].deviation() <= TOLERANCE


@pytest.mark.parametrize("name", ["comb, best", "deep, best, eos", "bush, distinct", "dynamic"])
def test_caches_counts_and_length_on_every_branch(name):
    assert SCENARIOS[name].broken_invariants() == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("paged", [False, True], ids=["dense", "paged"])
def test_on_a_llama_both_caches_are_a_fresh_prefills_after_every_round(paged, temperature):
    assert llama_deviation(paged, temperature) <= TOLERANCE


def test_the_first_guess_of_the_target_itself_is_always_kept():
    assert rejected_though_equal() <= TOLERANCE


@pytest.mark.parametrize("mutant", TREE_MUTANTS, ids=str)
def test_mutant_dies(mutant):
    assert kill(mutant, exact=tree_checks, statistical=list), f"nothing notices that {mutant.wrong}\n{mutant.diff()}"
