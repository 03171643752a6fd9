"""Scenarios say what happens in them, and refuse to prove something that does not."""

import pytest

from specdec_ref.proof.scenario import EVENTS, NothingShown, Scenario


def test_a_scenario_in_which_nothing_is_drafted_proves_nothing():
    with pytest.raises(NothingShown, match="accepted, rejected"):
        Scenario(drafter="lookup", prompt=(0,), budget=2).deviation()


def test_a_roll_back_that_never_happens_is_noticed():
    """The draft's cache is never cut here: a planted bug in its roll-back would pass."""
    with pytest.raises(NothingShown, match="draft rolled back"):
        Scenario(eos=(1,), gamma=3, shows=("draft rolled back",)).broken_invariants()


@pytest.mark.parametrize(
    ("event", "scenario"),
    [
        ("draft rolled back", Scenario(prompt=(0,), budget=4, shows=("draft rolled back", "rolled back"))),
        ("cut", Scenario(eos=(1,), gamma=3, shows=("cut", "eos"))),
        ("bonus", Scenario(drafter="same", budget=3, shows=("bonus", "accepted"))),
        ("plain", Scenario(budget=1, shows=("plain",))),
    ],
)
def test_every_event_can_happen(event, scenario):
    assert event in EVENTS
    assert scenario.broken_invariants() == 0
