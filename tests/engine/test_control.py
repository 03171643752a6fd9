"""The controller takes what pays: on a scripted clock, without a model's noise."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.tiny_models import tiny_llama

from specdec_ref import Controller, DraftModelDrafter, NGramDrafter, Proposal, SpeculativeEngine, SuffixDrafter
from specdec_ref.arithmetic import measured_curve
from specdec_ref.engine.control import LOSS, RECENT, STALE, TIMES, Acceptance, Times
from specdec_ref.interfaces import Drafter
from specdec_ref.measure import controller
from specdec_ref.proof import MUTANTS, kill
from specdec_ref.proof.exact import TOLERANCE, core_checks

FREE = {n: 1.0 for n in range(1, 17)}
DEAR = {n: float(n) for n in range(1, 17)}
STEEP = {1: 1.0, 2: 1.5, 4: 2.5, 16: 10.0}
TYPICAL = {1: 1.0, 2: 1.15, 4: 1.4, 8: 2.2, 16: 4.0}


class Clock:
    """Time that passes where the script says so."""

    now = 0.0

    def __call__(self):
        return self.now


class Scripted(Drafter):
    """As many tokens as are asked for: copied after a match of some length, or drawn, each in `cost`."""

    def __init__(self, clock, cost=0.0, match=0):
        self.clock, self.cost, self.match, self.draws = clock, cost, match, not match
        self.asked = []

    def begin(self, target, sampling, capacity):
        return self

    def propose(self, tokens, gamma, source):
        self.asked.append(gamma)
        self.clock.now += self.cost * gamma
        return Proposal([1] * gamma, match=self.match)


class Copier(Scripted):
    """What draws nothing."""


def write(chooser, clock, alpha, rounds, curve=TYPICAL, seed=0):
    """Tokens per unit of time, and (drafter, drafted) of each round, where every draft is accepted with `alpha`.

    alpha and curve may be functions of the round and the proposal, or of the round.
    """
    run, chance, tokens, began, plan = chooser.begin(None, None, 0), random.Random(seed), [0], clock.now, []
    for i in range(rounds):
        proposal = run.propose(tokens, 11, None)
        n = len(proposal.tokens)
        clock.now += measured_curve(curve(i) if callable(curve) else curve)(n) * (curve(i)[1] if callable(curve) else 1)
        accepted, likely = 0, alpha(i, proposal) if callable(alpha) else alpha
        while accepted < n and chance.random() < likely:
            accepted += 1
        tokens = [*tokens, *[1] * accepted, 2 if accepted < n else 1]
        plan.append((proposal.drafter, n))
        run.commit(tokens)
    return (len(tokens) - 1) / (clock.now - began), plan


@pytest.mark.parametrize("match", [0, 1, 2, 4])
@pytest.mark.parametrize("cost", [TYPICAL, FREE, STEEP, DEAR], ids=["typical", "free", "steep", "dear"])
@pytest.mark.parametrize("rounds", [128, 2000])
def test_a_hostile_text_takes_at_most_3_percent_more_than_plain_decoding(rounds, cost, match):
    clock = Clock()
    rate, _ = write(Controller(Scripted(clock, 0.0, match), cost, clock=clock), clock, 0.0, rounds, cost)
    assert rate > 0.97


def test_a_hostile_text_with_two_drafters_too():
    clock = Clock()
    both = [Copier(clock, match=1), Scripted(clock, cost=0.2)]
    rate, plan = write(Controller(both, TYPICAL, clock=clock), clock, 0.0, 200)
    assert rate > 0.97
    assert {name for name, _ in plan} == {"", "Scripted", "Copier"}  # it has tried both


def test_a_fixed_number_would_fail_that():
    class Always(Controller):
        def _choose(self, options):
            return next(o for o in options if o.n == 7)

    clock = Clock()
    rate, _ = write(Always(Scripted(clock), TYPICAL, clock=clock), clock, 0.0, 200)
    assert rate < 0.5


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("draft", [0.0, 0.1])
def test_near_the_best_fixed_number(alpha, draft):
    """Against each fixed number in expectation, with the same costs."""
    clock, cost = Clock(), measured_curve(TYPICAL)
    best = max(sum(alpha**i for i in range(g + 1)) / (cost(g) + draft * g) for g in range(12))
    rate, _ = write(Controller(Scripted(clock, draft), TYPICAL, clock=clock), clock, alpha, 3000)
    assert 0.92 * best < rate < 1.05 * best


def test_the_better_drafter_is_taken_also_after_they_change_places():
    clock = Clock()
    both = [Copier(clock, match=3), Scripted(clock, cost=0.1)]

    def likely(i, proposal):
        good = "Copier" if i < 600 else "Scripted"
        return 0.8 if proposal.drafter == good else 0.1

    _, plan = write(Controller(both, TYPICAL, clock=clock), clock, likely, 1400)
    names = [name for name, _ in plan]
    assert names[100:600].count("Copier") > 450 and names[900:].count("Scripted") > 430


def test_a_long_match_is_believed_where_a_short_one_is_not():
    clock = Clock()

    class Varying(Copier):
        def propose(self, tokens, gamma, source):
            self.match = 1 if len(tokens) % 2 else 6
            return super().propose(tokens, gamma, source)

    _, plan = write(
        Controller(Varying(clock, match=1), TYPICAL, clock=clock),
        clock,
        lambda i, proposal: 0.9 if proposal.match > 1 else 0.0,
        600,
    )
    drafted = [n for _, n in plan[100:]]
    assert drafted.count(0) > 100 and sum(n >= 4 for n in drafted) > 100


def test_it_comes_back_when_drafting_pays_again():
    clock = Clock()
    _, plan = write(
        Controller(Scripted(clock), TYPICAL, clock=clock), clock, lambda i, p: 0.9 if i >= 200 else 0.0, 400
    )
    drafted = [n for _, n in plan]
    assert sum(drafted[100:200]) <= 5 and sum(drafted[350:]) > 150


def test_it_follows_the_machine_without_a_pass_of_its_own():
    """Another program takes a core: wide passes become dear. The clock is read, and no forward pass is made."""
    clock = Clock()
    busy = {1: 1.5, 2: 3.0, 4: 6.0, 8: 12.0, 16: 24.0}
    chooser = Controller(Scripted(clock), TYPICAL, clock=clock)
    _, plan = write(chooser, clock, 0.75, 900, lambda i: busy if 300 <= i < 600 else TYPICAL)
    drafted = [n for _, n in plan]
    assert sum(drafted[200:300]) > 250
    assert sum(drafted[400:600]) < 60
    assert sum(drafted[800:]) > 250
    kept = Controller(Scripted(clock), TYPICAL, clock=None)
    _, plan = write(kept, clock, 0.75, 900, lambda i: busy if 300 <= i < 600 else TYPICAL)
    assert sum(n for _, n in plan[400:600]) > 250


def test_what_looks_worse_is_tried_as_rarely_as_its_loss_demands():
    clock = Clock()
    _, plan = write(Controller(Scripted(clock), STEEP, clock=clock), clock, 0.0, 2000, STEEP)
    tried = [i for i, (_, n) in enumerate(plan) if n and i > 100]
    assert tried and len(tried) * (STEEP[2] - 1) <= LOSS * 2000
    assert min(b - a for a, b in pairwise(tried)) >= RECENT


def test_free_passes_draft_all_and_dear_ones_nothing():
    clock = Clock()
    _, plan = write(Controller(Scripted(clock), FREE, clock=clock), clock, 1.0, 50, FREE)
    assert plan[-1] == ("Scripted", 11)
    _, plan = write(Controller(Scripted(clock), DEAR, clock=clock), clock, 0.6, 50, DEAR)
    assert plan[-1] == ("", 0)


def test_a_drafter_that_costs_more_than_it_gives_is_not_asked():
    clock = Clock()
    _, plan = write(Controller(Scripted(clock, cost=2.0), FREE, clock=clock), clock, 0.6, 100, FREE)
    assert [n for _, n in plan[20:]].count(0) > 75


def test_what_draws_is_asked_for_what_was_chosen_and_a_copy_is_cut():
    clock = Clock()
    drawing, copying = Scripted(clock), Copier(clock, match=2)
    for each in (drawing, copying):
        _, plan = write(Controller(each, TYPICAL, clock=clock), clock, 0.6, 80)
        chosen = [n for _, n in plan if n]
        assert max(chosen) < 11
        assert each.asked == (chosen if each is drawing else [11] * 80)


def test_a_drafter_that_has_nothing_to_offer_is_left_for_another():
    class Mute(Scripted):
        def propose(self, tokens, gamma, source):
            return Proposal([])

    clock = Clock()
    _, plan = write(Controller([Mute(clock), Scripted(clock, cost=0.05)], TYPICAL, clock=clock), clock, 0.8, 60)
    assert [name for name, _ in plan[20:]].count("Scripted") > 35


def test_survival_is_by_place_and_counts_tested_drafts_alone():
    seen = Acceptance(4)
    assert list(seen.survival(2)) == pytest.approx([0.5, 0.25])
    for _ in range(200):
        seen.count(4, 2)  # the third is always rejected, so the fourth is never tested
    first, second, third, fourth = seen.survival(4)
    assert first > 0.95 and second > 0.9 and third < 0.1 and fourth < 0.01
    assert seen.tested[3] == 0 and seen.tested[0] == pytest.approx(RECENT, rel=0.01)


def test_times_follow_the_last_passes_and_one_slow_pass_changes_nothing():
    times = Times({1: 1.0, 4: 2.5, 8: 3.0})
    assert times(2) == pytest.approx(1.5) and times(6) == pytest.approx(2.75)
    for seconds in (2.0, 2.0, 90.0, 2.0, 2.0):
        times.observe(1, seconds)
    assert times(1) == pytest.approx(2.0) and times(4) == pytest.approx(5.0)
    for _ in range(TIMES):
        times.observe(4, 7.5)
    assert times(1) == pytest.approx(2.0) and times(4) == pytest.approx(7.5) and times(8) == pytest.approx(9.0)
    for _ in range(STALE):
        times.observe(4, 2.5)
    assert times(1) == pytest.approx(1.0)  # not timed for long


@pytest.mark.parametrize("bad", [{}, {2: 1.0}, {1: 0.0}, {1: 1.0, 2: -1.0}, {0: 1.0, 1: 1.0}])
def test_times_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="times of passes"):
        Controller(NGramDrafter(), bad)


def test_drafting_times_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="for each drafter"):
        Controller(NGramDrafter(), TYPICAL, [0.1, 0.2])
    with pytest.raises(ValueError, match="no drafters"):
        Controller([], TYPICAL)


class TimedModel:
    """A model's forward with a clock: a pass over n tokens takes as the script says."""

    def __init__(self, model, cost):
        self.now = 0.0
        real = model.forward

        def forward(tokens, cache, rows=slice(None)):
            self.now += cost(len(tokens))
            return real(tokens, cache, rows)

        model.forward = forward

    def __call__(self):
        return self.now


def test_measured_times_are_those_of_the_clock():
    model = tiny_llama(1)
    chooser = controller(model, NGramDrafter(), most=7, clock=TimedModel(model, lambda n: 2 + 0.5 * n))
    assert chooser.most == 7 and chooser.times(1) == pytest.approx(2.5) and chooser.times(8) == pytest.approx(6.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_engine_with_it_keeps_greedy_text_and_on_request_a_seeds_text(temperature):
    model = tiny_llama(1)
    drafters = [SuffixDrafter(remember=False), DraftModelDrafter(tiny_llama(2, n_layers=1))]
    engine = SpeculativeEngine(model, controller(model, *drafters, repeatable=True), 11)
    options = {"temperature": temperature, "seed": 3, "eos_token_id": None}
    first, again = (engine.generate([1, 2, 3], 60, **options) for _ in range(2))
    assert first.tokens == again.tokens and first.stats.drafted
    if temperature == 0:
        assert first.tokens == SpeculativeEngine(model).generate([1, 2, 3], 60, **options).tokens


def test_two_generations_at_once_share_the_machine_and_not_the_text():
    clock = Clock()
    chooser = Controller(Scripted(clock), TYPICAL, clock=clock)
    one, two = chooser.begin(None, None, 0), chooser.begin(None, None, 0)
    for _ in range(30):
        one.propose([0], 8, None)
        clock.now += 9.0
        one.commit([0, 2])
    assert two.times(1) == one.times(1) == pytest.approx(9.0)
    assert one.acceptance and not two.acceptance


def controller_checks():
    return [check for check in core_checks() if "controller" in check.name]


def test_it_is_exact_where_both_drafters_are_taken_accepted_and_rejected():
    assert [check.deviation() <= TOLERANCE for check in controller_checks()] == [True, True]


def test_a_draft_cut_after_it_was_drawn_is_noticed():
    mutant = next(m for m in MUTANTS if m.name == "the number chosen by what was drawn")
    assert kill(mutant, exact=controller_checks, statistical=list)
