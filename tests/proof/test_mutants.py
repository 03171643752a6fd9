"""Every planted bug dies, and the code is as before afterwards."""

from __future__ import annotations

import math

import pytest

from specdec_ref.proof import MUTANTS, Mutant, difference, kill, planted, report
from specdec_ref.proof.exact import Check, core_checks
from specdec_ref.proof.mutant_list import Edit
from specdec_ref.proof.mutants import find
from specdec_ref.proof.statistical import generator_checks

GENERATOR = ["shared uniform", "one uniform for all coins", "re-seeded in the loop", "seed ignored"]


def by_name(name):
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_there_are_many_and_each_says_what_it_is():
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.wrong and mutant.diff() for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_dies(mutant):
    assert kill(mutant, statistical=generator_checks), f"nothing notices that {mutant.wrong}\n{mutant.diff()}"


@pytest.mark.parametrize("name", GENERATOR)
def test_faults_of_the_generator_die_by_the_statistics_alone(name):
    found = kill(by_name(name), exact=list, statistical=generator_checks)
    assert found and found.suite == "statistical"


def test_a_harmless_edit_lives():
    """The suites blame nothing that does not change what the code does."""
    edit = Edit(
        "specdec_ref.verify.tokenwise:residual_distribution", (("mass = residual.sum()", "mass = residual.sum(-1)"),)
    )
    harmless = Mutant("harmless", "nothing", (edit,))
    assert kill(harmless, statistical=generator_checks) is None


def test_the_code_is_restored_also_after_an_error():
    mutant = by_name("shared uniform")
    functions = [find(edit.function) for edit in mutant.edits]
    before = [f.__code__ for f in functions]
    with pytest.raises(KeyError), planted(mutant):
        assert [f.__code__ for f in functions] != before
        raise KeyError
    assert [f.__code__ for f in functions] == before


@pytest.mark.parametrize(("old", "times"), [("no such line", 0), ("residual", 4)])
def test_an_edit_that_does_not_fit_is_refused(old, times):
    edit = Edit("specdec_ref.verify.tokenwise:residual_distribution", ((old, "x"),))
    with pytest.raises(ValueError, match=f"{times} times"), planted(Mutant("misfit", "", (edit,))):
        pass


def test_report_says_by_which():
    table = report([by_name("residual with q = 0"), by_name("<= at u = 0")])
    assert "| residual with q = 0 | exact | distribution: token, model |" in table
    assert "| <= at u = 0 | exact | generator at u = 0" in table


def test_core_checks_have_names_of_their_own():
    names = [check.name for check in core_checks()]
    assert len(set(names)) == len(names)


def test_a_check_that_gives_nan_is_no_pass():
    nothing = Mutant("nothing", "", ())
    assert kill(nothing, exact=lambda: [Check("NaN", lambda: math.nan)], statistical=list)
    assert kill(nothing, exact=lambda: [Check("zero", lambda: 0.0)], statistical=list) is None
    assert math.isnan(difference({"a": math.nan, "b": 1.0}, {"a": 0.0, "b": 1.0}))
