"""What speculation gives a pair of models on a set of prompts: acceptance, costs, speedup measured and predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_ref.arithmetic import best_gamma
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.interfaces import CausalLM, Drafter
from specdec_ref.measure.passes import pass_seconds, relative_cost
from specdec_ref.measure.race import Race, race


@dataclass
class Tryout:
    """The measurements of one pair on one machine.

    gamma: most draft tokens per round in the measured runs.
    rounds, emitted: target passes and tokens of all prompts.
    tested, accepted: by position in the draft, over all rounds of all prompts.
    verify_cost: T_target(n) / T_target(1) by n.
    draft_cost: c, one draft step over one plain target step.
    races: plain against speculative, one per prompt.
    """

    gamma: int
    rounds: int = 0
    emitted: int = 0
    tested: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    verify_cost: dict[int, float] = field(default_factory=dict)
    draft_cost: float = 0.0
    races: list[Race] = field(default_factory=list)

    @property
    def alpha(self) -> float:
        """Accepted over tested: an estimate of Leviathan's alpha; 0 where nothing was tested."""
        return sum(self.accepted) / sum(self.tested) if sum(self.tested) else 0.0

    def alpha_interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of alpha, as if tests were independent (they are not quite; read it as a lower bound
        on the uncertainty)."""
        from scipy.stats import binomtest

        if not sum(self.tested):
            return 0.0, 1.0
        interval = binomtest(sum(self.accepted), sum(self.tested)).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)

    def predicted(self, gamma: int) -> float:
        """Speedup of decoding at this gamma, 1 up to the measured one, from what was counted and timed.

        Tokens per round: 1 + sum over i <= gamma of P(draft i accepted), each estimated by its count over all rounds,
        so acceptances need not be independent. Cost of a round: gamma c + v(gamma) in the share of rounds that
        drafted, one plain pass in the others. Raises ValueError for a gamma that was not measured.
        """
        if not 1 <= gamma <= self.gamma:
            raise ValueError(f"gamma is {gamma}: only 1 to {self.gamma} were measured")
        if not self.rounds:
            return 1.0
        drafting = self.tested[0] / self.rounds if self.tested else 0.0
        tokens = 1 + sum(self.accepted[:gamma]) / self.rounds
        cost = drafting * (gamma * self.draft_cost + self.verify_cost[gamma + 1]) + 1 - drafting
        return tokens / cost

    @property
    def best(self) -> tuple[int, float]:
        """(gamma, predicted speedup) of the best gamma up to the measured one; (0, 1.0) where none gains."""
        return best_gamma(self.predicted, self.gamma)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per target pass; 0 where there was none."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def measured(self) -> float:
        """Geometric mean over prompts of the median ratio plain over speculative, prompt passes included."""
        return math.exp(statistics.mean(math.log(r.total_ratio) for r in self.races))

    @property
    def measured_range(self) -> tuple[float, float]:
        """The smallest and the largest median ratio of a prompt."""
        ratios = [r.total_ratio for r in self.races]
        return min(ratios), max(ratios)

    def verdict(self) -> str:
        """What these numbers say, in a sentence or two."""
        low, high = self.measured_range
        gamma, gain = self.best
        now = f"at gamma {self.gamma} measured {self.measured:.2f}x ({low:.2f} to {high:.2f} by prompt)"
        if low > 1:
            now = f"speculation pays on every prompt here: {now}"
        elif high < 1:
            now = f"speculation loses on every prompt here: {now}"
        else:
            now = f"it depends on the prompt: {now}"
        if gamma == 0:
            return f"{now}. No gamma is predicted to gain: look for a cheaper draft, or one that agrees more often."
        return f"{now}. The best gamma is predicted to be {gamma}, with {gain:.2f}x."


def try_pair(
    target: CausalLM,
    drafter: Drafter,
    prompts: Sequence[Any],
    *,
    gamma: int = 8,
    max_new_tokens: int = 48,
    repeats: int = 2,
    report: Callable[[str], None] = lambda what: None,
    **options: Any,
) -> Tryout:
    """Measure a pair: first the curve of passes, then each prompt, plainly and speculatively in turns.

    options: sampling options of `SpeculativeEngine.generate`. report: called with what is being done, in words.
    gamma and the timed passes are cut to the target's context, as the engine cuts its rounds.
    Raises ValueError for no prompts, or what the engine raises for a prompt or a pair that makes no sense.
    """
    if not prompts:
        raise ValueError("no prompts: give at least one")
    if gamma < 1:
        raise ValueError(f"gamma is {gamma}: give 1 or more, the largest to be tried")
    if target.max_context is not None:
        gamma = max(1, min(gamma, target.max_context - 1))  # the engine drafts no more either
    plain, speculative = SpeculativeEngine(target), SpeculativeEngine(target, drafter, gamma)
    result = Tryout(gamma)
    longest = max(len(encode_prompt(p, target)) for p in prompts)
    report("timing passes of the target")
    seconds = pass_seconds(target, range(1, gamma + 2), context=longest)
    result.verify_cost = relative_cost(seconds)
    if isinstance(drafter, DraftModelDrafter):
        report("timing passes of the draft")
        one = statistics.median(pass_seconds(drafter.model, (1,), context=longest)[1])
        result.draft_cost = one / statistics.median(seconds[1])
    for i, prompt in enumerate(prompts):
        report(f"prompt {i + 1} of {len(prompts)}")
        both = race(
            lambda prompt=prompt: plain.generate(prompt, max_new_tokens, **options),  # type: ignore[misc]
            lambda prompt=prompt: speculative.generate(prompt, max_new_tokens, **options),  # type: ignore[misc]
            repeats,
        )
        result.races.append(both)
        stats = both.second.stats
        result.tested = _add(result.tested, stats.tested_by_position)
        result.accepted = _add(result.accepted, stats.accepted_by_position)
        result.emitted += stats.emitted
        result.rounds += stats.rounds
    return result


def _add(a: list[int], b: list[int]) -> list[int]:
    size = max(len(a), len(b))
    return [sum(x) for x in zip(a + [0] * (size - len(a)), b + [0] * (size - len(b)), strict=True)]
