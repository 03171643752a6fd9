"""The loop: draft, verify in one pass, commit, roll back.

Tokens are *drafted* or *committed* (part of the output for good). The last committed token is *pending*: chosen, but
not yet taken in by the target. Between rounds the target's cache holds exactly the committed tokens without the
pending one. So a round feeds the pending token and the drafts, and gets the laws it needs: one for each draft, and
one more behind the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from specdec_ref.draft import Drafter
from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.engine.stats import Stats
from specdec_ref.engine.text import TextStream
from specdec_ref.models.base import CausalLM
from specdec_ref.sampling import RandomSource, Sampling
from specdec_ref.verify import RULES, Proposal, Rule, Verdict

PREFILL_CHUNK = 512  # tokens a prefill pass takes in: bounds the memory of its activations


@dataclass(frozen=True)
class Generation:
    """New token ids, their text, why the output ended ("length", "eos" or "stop"), and the counts."""

    tokens: list[int]
    text: str
    finish_reason: str
    stats: Stats


class Chunk(NamedTuple):
    """What one round committed. `text` holds what no later token can take back; it may lag behind `tokens`."""

    tokens: list[int]
    text: str


class Round(NamedTuple):
    """One round, for those who look inside: the proposal, the rule's verdict, and the tokens that were kept."""

    proposal: Proposal
    verdict: Verdict
    kept: list[int]


@dataclass
class Run:
    """One generation in flight: its tokens (prompt and output), caches and counts."""

    tokens: list[int]
    prompt_length: int
    budget: int
    eos: frozenset[int]
    sampling: Sampling
    source: RandomSource
    cache: Any
    drafter: Drafter
    text: TextStream
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None

    @property
    def output(self) -> list[int]:
        """The new tokens."""
        return self.tokens[self.prompt_length :]


class SpeculativeEngine:
    """Generates with `target`, checking in each pass what `drafter` proposed.

    drafter: None decodes plainly, one token a pass, through the same loop.
    gamma: draft tokens a round, or a function of the `Stats` so far that gives them; 0 is plain decoding.
    rule: name in `specdec_ref.verify.RULES`, or a function of the same form.
    Raises ValueError for a negative gamma, an unknown rule, or a drafter whose tokens are not the target's.
    """

    def __init__(
        self,
        target: CausalLM,
        drafter: Drafter | None = None,
        gamma: int | Callable[[Stats], int] = 5,
        rule: str | Rule = "token",
    ) -> None:
        if isinstance(rule, str) and rule not in RULES:
            raise ValueError(f"no rule {rule!r}: there are {', '.join(RULES)}")
        self.target = target
        self.drafter = drafter if drafter is not None else Drafter()
        self.gamma: int | Callable[[Stats], int] = 0 if drafter is None else gamma
        if not callable(self.gamma):
            _whole("gamma", self.gamma)
        self.rule: Rule = RULES[rule] if isinstance(rule, str) else rule
        self.drafter.check(target)

    def generate(self, prompt: Any, max_new_tokens: int = 128, **options: Any) -> Generation:
        """Generate up to `max_new_tokens` after `prompt` (text, chat messages, or token ids).

        temperature, top_k, top_p: see `specdec_ref.sampling.Sampling`; temperature 0, the default, is greedy.
        seed: makes sampled output repeatable; None draws a new one.
        source: a RandomSource to use instead of a seeded one.
        stop: a string, or several, that end the text; the text is cut before it, `tokens` end with the token that
            completed it.
        eos_token_id: an id, or several, that end the output and stay in it; None switches it off. By default
            those of the target.
        streamer: a transformers streamer (`put`, `end`).
        on_round: called with (`Run`, `Round`) after each round.
        Raises ValueError or TypeError for input that makes no sense; the engine stays usable.
        """
        stream = self.stream(prompt, max_new_tokens, **options)
        while True:
            try:
                next(stream)
            except StopIteration as end:
                return end.value

    def stream(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        source: RandomSource | None = None,
        stop: str | Sequence[str] = (),
        eos_token_id: int | Iterable[int] | str | None = "target",
        streamer: Any = None,
        on_round: Callable[[Run, Round], None] | None = None,
    ) -> Generator[Chunk, None, Generation]:
        """As `generate`, one `Chunk` a round as tokens are committed; returns the `Generation` at the end."""
        run = self._start(
            encode_prompt(prompt, self.target),
            _whole("max_new_tokens", max_new_tokens),
            Sampling(temperature, top_k, top_p),
            source or RandomSource(seed),
            _stop_strings(stop, self.target),
            _eos_ids(eos_token_id, self.target),
        )
        return self._rounds(run, streamer, on_round)

    def _start(
        self,
        ids: list[int],
        budget: int,
        sampling: Sampling,
        source: RandomSource,
        stop: list[str],
        eos: frozenset[int],
    ) -> Run:
        target = self.target
        if target.max_context is not None:
            budget = min(budget, target.max_context - len(ids))
        # The last emitted token is never fed, so prompt and budget bound what any cache has to hold.
        capacity = len(ids) + budget
        return Run(
            tokens=list(ids),
            prompt_length=len(ids),
            budget=budget,
            eos=eos,
            sampling=sampling,
            source=source,
            cache=target.new_cache(capacity),
            drafter=self.drafter.begin(target, sampling, capacity),
            text=TextStream(target.tokenizer, stop),
        )

    def _rounds(
        self, run: Run, streamer: Any, on_round: Callable[[Run, Round], None] | None
    ) -> Generator[Chunk, None, Generation]:
        if streamer is not None:
            streamer.put(torch.tensor([run.tokens]))
        if run.budget == 0:
            run.finish_reason = "length"
        else:
            self._prefill(run)
        while run.finish_reason is None:
            round_ = self._round(run)
            if streamer is not None:
                streamer.put(torch.tensor(round_.kept))
            if on_round is not None:
                on_round(run, round_)
            text = run.text.show(final=run.finish_reason is not None)
            yield Chunk(round_.kept, text)
        if streamer is not None:
            streamer.end()
        return Generation(run.output, run.text.text, run.finish_reason, run.stats)

    @torch.inference_mode()
    def _prefill(self, run: Run) -> None:
        """Take the prompt into the target's cache, but for its last token, which is pending."""
        start = time.perf_counter()
        ids = torch.tensor(run.tokens[:-1], dtype=torch.long, device=self.target.device)
        for chunk in ids.split(PREFILL_CHUNK):
            if len(chunk):
                self.target.forward(chunk, run.cache, slice(0))
        run.stats.prefill_seconds += time.perf_counter() - start

    @torch.inference_mode()
    def _round(self, run: Run) -> Round:
        """Draft, verify, commit, roll back: between one token and gamma + 1 are added to `run`."""
        begin = time.perf_counter()
        # A round adds one token more than it drafts, so the budget bounds the drafts.
        gamma = self.gamma(run.stats) if callable(self.gamma) else self.gamma
        gamma = min(_whole("gamma", gamma), run.budget - len(run.output) - 1)
        proposal = run.drafter.propose(run.tokens, gamma, run.source) if gamma else Proposal([])
        drafted = time.perf_counter()

        new = [run.tokens[-1], *proposal.tokens]
        logits = self.target.forward(torch.tensor(new, device=self.target.device), run.cache)
        p = run.sampling.probs(logits, [*run.tokens, *proposal.tokens])
        verdict = self.rule(proposal, p, run.source)
        verified = time.perf_counter()

        kept = self._commit(run, verdict.emitted(proposal.tokens))
        run.cache.truncate(len(run.tokens) - 1)
        run.drafter.commit(run.tokens)
        run.stats.count(len(proposal.tokens), verdict, len(kept))
        run.stats.draft_seconds += drafted - begin
        run.stats.verify_seconds += verified - drafted
        run.stats.other_seconds += time.perf_counter() - verified
        return Round(proposal, verdict, kept)

    def _commit(self, run: Run, emitted: list[int]) -> list[int]:
        """Append the emitted tokens up to the first that ends the output; returns those kept."""
        for i, token in enumerate(emitted):
            run.tokens.append(token)
            run.text.push(token)
            if token in run.eos:
                run.finish_reason = "eos"
            elif run.text.stopped:
                run.finish_reason = "stop"
            elif len(run.output) == run.budget:
                run.finish_reason = "length"
            if run.finish_reason:
                return emitted[: i + 1]
        return emitted


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}: give a whole number, 0 or more")
    return value


def _stop_strings(stop: str | Sequence[str], target: CausalLM) -> list[str]:
    strings = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(s, str) and s for s in strings):
        raise ValueError(f"stop is {stop!r}: give strings that are not empty")
    if strings and target.tokenizer is None:
        raise ValueError("stop strings need a model with a tokenizer: use eos_token_id for ids")
    return strings


def _eos_ids(eos: int | Iterable[int] | str | None, target: CausalLM) -> frozenset[int]:
    if eos is None:
        return frozenset()
    if isinstance(eos, str):
        if eos != "target":
            raise ValueError(f"eos_token_id is {eos!r}: give an id, several, or None")
        return frozenset(target.eos_token_ids)
    return frozenset([eos] if isinstance(eos, int) else eos)
