"""Choosing who drafts and how many tokens, round by round, by expected tokens per second.

A round of n drafts gives 1 + s_1 + ... + s_n tokens, where s_i, the survival probability, is the probability that the
first i drafts are all accepted. It takes the time of drafting n tokens and of a target pass over n + 1. Times and
acceptance are measured as the text is written, so the choice follows the machine and the text; plain decoding is the
choice n = 0. It depends on earlier rounds and on committed tokens alone, never on what is drawn in the round, so the
output keeps the target's distribution.

Sources: Leviathan et al. 2023, equation 1; survival probabilities as in vLLM's adaptive verification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from specdec_ref.arithmetic import measured_curve
from specdec_ref.draft.combined import Several, named
from specdec_ref.interfaces import CausalLM, Drafter, Features, Proposal
from specdec_ref.sampling import RandomSource, Sampling

RECENT = 24  # rounds after which what was seen counts by a third, and an option that was not taken may be tried again
PRIOR, PRIOR_TOKENS = 0.5, 2.0  # before anything is seen: as if that share of so many drafts had been accepted
LOSS = 0.01  # share of the time that may be spent on trying what looks worse
TIMES, ENOUGH = 5, 3  # last times whose median counts, and how few will do: one slow pass is no slow machine
STALE = 4 * RECENT  # rounds after which a time says nothing: an option left out is tried that often and more


class Acceptance:
    """Running estimate of how many drafts of one kind are accepted, place by place."""

    def __init__(self, most: int, prior: float = PRIOR) -> None:
        self.prior = prior
        self.tested, self.accepted = [0.0] * most, [0.0] * most

    def count(self, drafted: int, accepted: int) -> None:
        """Enter a round. What came before counts a little less from now on."""
        for i in range(min(drafted, accepted + 1)):  # after a rejection nothing is tested
            self.tested[i] = self.tested[i] * (1 - 1 / RECENT) + 1
            self.accepted[i] = self.accepted[i] * (1 - 1 / RECENT) + (i < accepted)

    def doubt(self) -> None:
        """What was seen is old: it counts a little less, so that what is tried now and then is seen."""
        self.tested, self.accepted = [0.9 * x for x in self.tested], [0.9 * x for x in self.accepted]

    def survival(self, n: int) -> Iterator[float]:
        """s_1..s_n. A place that was seldom tested is taken to be like the one before it."""
        product, likely = 1.0, self.prior
        for tested, accepted in zip(self.tested[:n], self.accepted[:n], strict=True):
            likely = (accepted + likely * PRIOR_TOKENS) / (tested + PRIOR_TOKENS)
            product *= likely
            yield product


class Times:
    """T(n), the time of a target pass over n tokens: a curve measured beforehand, kept up to date by the rounds' own.

    seconds: T(n) by n, n = 1 among them. A size that was not timed lately is taken to have become slower or faster as
    the nearest one has that was.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        curve = measured_curve(seconds)
        self.before = [curve(n) * seconds[1] for n in range(max(seconds))]  # T(1), T(2), ...
        self.now = list(self.before)
        self._timed: dict[int, tuple[int, list[float]]] = {}  # by n: the last round, and the last T(n) / before
        self._rounds = 0

    def observe(self, n: int, seconds: float) -> None:
        """A pass over n tokens has just taken so long."""
        self._rounds += 1
        _, ratios = self._timed.get(n, (0, []))
        self._timed[n] = self._rounds, [*ratios, seconds / self.before[n - 1]][-TIMES:]
        self._timed = {n: (last, r) for n, (last, r) in self._timed.items() if self._rounds - last < STALE}
        slower = {n: median(r) for n, (_, r) in self._timed.items() if len(r) >= ENOUGH}
        if slower:
            self.now = [t * slower[min(slower, key=lambda m: abs(m - n))] for n, t in enumerate(self.before, 1)]

    def __call__(self, n: int) -> float:
        return self.now[n - 1]


class Option(NamedTuple):
    """Who drafts (None: nobody), in which kind of match, how many tokens, and what a round of it gives and takes."""

    who: int | None
    match: int
    n: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds


class Controller(Several):
    """Takes the drafter and the number of tokens that promise the most tokens per second, or drafts nothing.

    drafters: one or several. Of one that draws nothing, such as lookup, the proposal is looked at first: acceptance is
        counted by the length of its match, and it may be cut. Any other is asked for the number that was chosen, and
        may stop before by its own confidence.
    seconds: T(n), the time of a target pass over n tokens, by n; `specdec_ref.measure.controller` measures it. Between
        measured sizes it is interpolated, and beyond the largest nothing is drafted.
    draft_seconds: the time to draft one token, for each drafter; 0 where not given.
    clock: times passes and drafts while the text is written, which costs no pass of its own: what the machine has
        become is known after a few rounds. None keeps the times as given, in any unit. Timing changes neither greedy
        text nor the distribution of sampled text, but a seed gives the same sampled text again only without it.

    What looks worse is tried now and then, as rarely as keeps the loss below 1%. What was learned of the text is
    forgotten with each generation, what was learned of the machine is kept. The engine's gamma is the largest number of
    drafts. Raises ValueError for times that make no sense.
    """

    def __init__(
        self,
        drafters: Drafter | Sequence[Drafter],
        seconds: Mapping[int, float],
        draft_seconds: Sequence[float] = (),
        clock: Callable[[], float] | None = time.perf_counter,
    ) -> None:
        super().__init__([drafters] if isinstance(drafters, Drafter) else drafters)
        if draft_seconds and (len(draft_seconds) != len(self.drafters) or min(draft_seconds) < 0):
            raise ValueError(f"draft_seconds is {draft_seconds}: give a time, 0 or more, for each drafter")
        self.times, self.most, self._clock = Times(seconds), max(seconds) - 1, clock
        self._drafting = [[each] for each in draft_seconds or [0.0] * len(self.drafters)]  # the last times for a token
        self._forget()

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> Drafter:
        fresh = super().begin(target, sampling, capacity)
        assert isinstance(fresh, Controller)
        fresh._forget()
        return fresh

    def _forget(self) -> None:
        self.acceptance: dict[tuple[int, int], Acceptance] = {}  # by drafter and match
        self._used: dict[int | None, int] = {}  # by drafter: the round in which it was last asked
        self._round, self._to_spend = 0, 0.0  # rounds of this text; time that may still be lost on trying
        self._open: tuple[Option, Proposal, int, float] | None = None  # the round that is being verified

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """The chosen drafter's proposal, with its name; an empty one where drafting would lose."""
        gamma = min(gamma, self.most)
        copies = {i: d.propose(tokens, gamma, source) for i, d in enumerate(self.drafters) if not d.draws}
        option = self._choose(list(self._options(gamma, copies)))
        began = self._now()
        if option.who is None:
            proposal = Proposal([])
        elif (copied := copies.get(option.who)) is not None:
            proposal = named(replace(copied, tokens=copied.tokens[: option.n]), self.drafters[option.who])
        else:
            drafter = self.drafters[option.who]
            proposal = named(drafter.propose(tokens, option.n, source), drafter)
            if proposal.tokens and self._clock is not None:
                recent = self._drafting[option.who]
                recent.append((self._now() - began) / len(proposal.tokens))
                del recent[:-TIMES]
        self._open = option, proposal, len(tokens), self._now()
        return proposal

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        """Count what was accepted and how long it took, then tell all drafters."""
        if self._open is not None:
            (who, match, *_), proposal, start, began = self._open
            drafted, new = proposal.tokens, tokens[start:]
            if self._clock is not None:
                self.times.observe(len(drafted) + 1, self._now() - began)
            self._to_spend += LOSS * self.times(len(drafted) + 1)
            if who is not None:
                accepted = 0
                while accepted < min(len(drafted), len(new) - 1) and drafted[accepted] == new[accepted]:
                    accepted += 1
                # A drafter that had nothing to offer counts as rejected, or it would be asked for ever.
                self.acceptance[who, match].count(max(1, len(drafted)), accepted)
            self._open = None
        super().commit(tokens, features)

    def _options(self, gamma: int, copies: Mapping[int, Proposal]) -> Iterator[Option]:
        """Every choice there is, plain decoding first."""
        yield Option(None, 0, 0, 1.0, self.times(1))
        for i in range(len(self.drafters)):
            most = len(copies[i].tokens) if i in copies else gamma
            match = min(copies[i].match, 8) if i in copies else 0
            if (i, match) not in self.acceptance:  # the longer the match, the likelier it goes on
                self.acceptance[i, match] = Acceptance(self.most, match / (match + 2) if match else PRIOR)
            tokens, each = 1.0, median(self._drafting[i])
            for n, survival in enumerate(self.acceptance[i, match].survival(most), 1):
                tokens += survival
                yield Option(i, match, n, tokens, n * each + self.times(n + 1))

    def _choose(self, options: Sequence[Option]) -> Option:
        """The best; or, where enough time was put by, the option that was left out longest, with at most one draft."""
        self._round += 1
        best = max(options, key=lambda option: option.rate)
        idle = [o for o in options if o.n <= 1 and o.who != best.who and self._idle(o) >= RECENT]
        if idle:
            tried = max(idle, key=self._idle)
            loss = tried.seconds - 1 / best.rate  # if it gives one token, as it does at least
            if loss <= self._to_spend:
                self._to_spend -= max(loss, 0.0)
                best = tried
                if best.who is not None:
                    self.acceptance[best.who, best.match].doubt()
        self._used[best.who] = self._round
        return best

    def _idle(self, option: Option) -> int:
        return self._round - self._used.get(option.who, 0)

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock()
