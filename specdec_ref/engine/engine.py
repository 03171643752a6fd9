"""The loop: draft, verify in one pass, commit, roll back.

Tokens are *drafted* or *committed* (part of the output for good). The last committed token is *pending*: chosen, but
not yet taken in by the target. Between rounds the target's cache holds exactly the committed tokens without the
pending one. So a round feeds the pending token and the drafts, and gets the distributions it needs: one for each
draft, and one more behind the last.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from specdec_ref.cache.paged import PagedCache, PagedKVPool
from specdec_ref.engine.checks import (
    check_drafter,
    check_proposal,
    check_verdict,
    eos_ids,
    sampling_options,
    stop_strings,
    whole,
)
from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.engine.stats import Stats
from specdec_ref.engine.text import TextStream
from specdec_ref.interfaces import CausalLM, Drafter, Proposal, Rule, Verdict, check_model
from specdec_ref.sampling import RandomSource, Sampling, sample_seed
from specdec_ref.verify import RULES
from specdec_ref.verify.greedy import verify_argmax

PREFILL_CHUNK = 512  # tokens a prefill pass takes in: bounds the memory of its activations


@dataclass(frozen=True)
class Generation:
    """New token ids, their text, why the output ended ("length", "eos" or "stop"), and the counts.

    logprobs: where asked for, log p of each token under the target as it is: softmax of its logits, before
        temperature, filters and penalties. So runs with different options compare, and greedy ones say something.
    """

    tokens: list[int]
    text: str
    finish_reason: str
    stats: Stats
    logprobs: list[float] | None = None


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
    """One generation in flight: its tokens (prompt and output), caches and counts.

    cache: the target's; None before the prompt is taken in, so that a stream nobody reads holds no memory.
    logprobs: one for each new token, None where nobody asked.
    by_argmax: the argmax of each row decides, so that no distribution over the vocabulary is needed.
    """

    tokens: list[int]
    prompt_length: int
    budget: int
    eos: frozenset[int]
    sampling: Sampling
    source: RandomSource
    drafter: Drafter
    text: TextStream
    cache: Any = None
    logprobs: list[float] | None = None
    by_argmax: bool = False
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None

    @property
    def output(self) -> list[int]:
        """The new tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many more tokens the budget allows."""
        return self.prompt_length + self.budget - len(self.tokens)


class SpeculativeEngine:
    """Generates with `target`, checking in each pass what `drafter` proposed.

    drafter: None decodes plainly, one token a pass, through the same loop. Any object with `propose` and `commit`
        will do, see `specdec_ref.interfaces.Drafter`; one without `begin` is copied (shallowly) for each generation.
    gamma: draft tokens a round, or a function of the `Stats` so far that gives them; 0 is plain decoding.
    rule: name in `specdec_ref.verify.RULES`, or a function of the same form.
    cache: a pool for the target's keys and values; generations share in it what their prompts share. None gives each
        generation memory of its own.
    Raises ValueError for a negative gamma, an unknown rule, a drafter whose tokens are not the target's, or a pool of
    another model; TypeError for a target that is no model, or something that cannot draft.
    """

    def __init__(
        self,
        target: CausalLM,
        drafter: Drafter | None = None,
        gamma: int | Callable[[Stats], int] = 5,
        rule: str | Rule = "token",
        cache: PagedKVPool | None = None,
    ) -> None:
        if isinstance(rule, str) and rule not in RULES:
            raise ValueError(f"no rule {rule!r}: there are {', '.join(RULES)}")
        check_model(target)
        self.target = target
        if not callable(gamma):
            gamma = whole("gamma", gamma)
        self.drafter = drafter if drafter is not None else Drafter()
        self.gamma: int | Callable[[Stats], int] = gamma if drafter is not None else 0
        self.rule: Rule = RULES[rule] if isinstance(rule, str) else rule
        check_drafter(self.drafter)
        if hasattr(self.drafter, "check"):
            self.drafter.check(target)
        if cache is not None:
            cache.check(target)
        self.pool = cache
        self._prompt: PagedCache | None = None  # where several samples go on from

    @overload
    def generate(
        self, prompt: Any, max_new_tokens: int = ..., *, n: int, seed: int | None = ..., **options: Any
    ) -> Generation | list[Generation]: ...

    @overload
    def generate(self, prompt: Any, max_new_tokens: int = ..., **options: Any) -> Generation: ...

    def generate(
        self, prompt: Any, max_new_tokens: int = 128, *, n: int = 1, seed: int | None = None, **options: Any
    ) -> Generation | list[Generation]:
        """Generate up to `max_new_tokens` after `prompt` (text, chat messages, or token ids).

        temperature, top_k, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty,
        logit_bias, bad_words, min_new_tokens, processors: see `specdec_ref.sampling.Sampling`; temperature 0, the
            default, is greedy. Here bad_words may be texts too.
        seed: makes sampled output repeatable; None draws a new one.
        source: a RandomSource to use instead of a seeded one.
        n: above 1, a list of that many independent samples. With a seed the first is what n=1 gives.
        stop: a string, or several, that end the text; the text is cut before it, `tokens` end with the token that
            completed it.
        eos_token_id: an id, or several, that end the output and stay in it; None switches it off. By default
            those of the target.
        logprobs: True fills `Generation.logprobs`.
        streamer: a transformers streamer (`put`, `end`). It gets the prompt and each token, so it may show text
            that `stop` cuts; `end` comes also where the generation breaks off.
        on_round: called with (`Run`, `Round`) after each round.
        Raises ValueError or TypeError for input that makes no sense, OutOfBlocks where a pool is full; the engine
        stays usable, after any error.
        """
        if whole("n", n) == 1:
            return _drain(self.stream(prompt, max_new_tokens, seed=seed, **options))
        if n == 0 or options.get("temperature", 0) == 0 or options.get("streamer") is not None:
            raise ValueError(f"n is {n}: several samples need a temperature above 0, and no streamer can show them")
        ids = encode_prompt(prompt, self.target)
        engine = copy.copy(self)
        engine._prompt = self.pool.new_sequence(ids) if self.pool is not None else None
        try:
            return [_drain(engine.stream(ids, max_new_tokens, seed=sample_seed(seed, i), **options)) for i in range(n)]
        finally:
            if engine._prompt is not None:
                engine._prompt.truncate(0)

    def stream(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        seed: int | None = None,
        source: RandomSource | None = None,
        stop: str | Sequence[str] = (),
        eos_token_id: int | Iterable[int] | str | None = "target",
        logprobs: bool = False,
        streamer: Any = None,
        on_round: Callable[[Run, Round], None] | None = None,
        **sampling: Any,
    ) -> Generator[Chunk, None, Generation]:
        """As `generate`, one `Chunk` a round as tokens are committed; returns the `Generation` at the end."""
        target, ids, budget = self.target, encode_prompt(prompt, self.target), whole("max_new_tokens", max_new_tokens)
        if target.max_context is not None:
            budget = min(budget, target.max_context - len(ids))
        # The last emitted token is never fed, so prompt and budget bound what any cache has to hold.
        capacity = len(ids) + budget
        eos = eos_ids(eos_token_id, target)
        options = sampling_options(sampling, target).bound(len(ids), target.vocab_size, eos)
        text = TextStream(target.tokenizer, stop_strings(stop, target))
        source = source or RandomSource(None if seed is None else whole("seed", seed))
        begin = getattr(self.drafter, "begin", None)
        run = Run(
            tokens=ids,
            prompt_length=len(ids),
            budget=budget,
            eos=eos,
            sampling=options,
            source=source,
            drafter=begin(target, options, capacity) if begin else copy.copy(self.drafter),
            text=text,
            logprobs=[] if logprobs else None,
            by_argmax=options.greedy and not options.reads_context and getattr(self.rule, "greedy_by_argmax", False),
            stats=Stats(lossless=getattr(self.rule, "lossless", None)),
        )
        return self._rounds(run, streamer, on_round)

    def _rounds(
        self, run: Run, streamer: Any, on_round: Callable[[Run, Round], None] | None
    ) -> Generator[Chunk, None, Generation]:
        with ExitStack() as at_end:  # after an error too: the next call may need the blocks and use the streamer again
            at_end.callback(_release, run)
            if streamer is not None:
                at_end.callback(streamer.end)
                streamer.put(torch.tensor([run.tokens]))
            if run.budget == 0:
                run.finish_reason = "length"
            else:
                self._prefill(run)
            while run.finish_reason is None:
                round_ = self._round(run)
                if streamer is not None:
                    for token in round_.kept:
                        streamer.put(torch.tensor([token]))
                if on_round is not None:
                    on_round(run, round_)
                text = run.text.show(final=run.finish_reason is not None)
                yield Chunk(round_.kept, text)
            if self.pool is not None and run.cache is not None:
                run.cache.register(run.tokens[:-1])
        return Generation(run.output, run.text.text, run.finish_reason, run.stats, run.logprobs)

    @torch.inference_mode()
    def _prefill(self, run: Run) -> None:
        """Take the prompt into the target's cache, but for its last token, which is pending."""
        start = time.perf_counter()
        if self._prompt is not None:
            run.cache = self._prompt
        elif self.pool is not None:
            run.cache = self.pool.new_sequence(run.tokens)
        else:
            run.cache = self.target.new_cache(run.prompt_length + run.budget)
        ids = torch.tensor(run.tokens[run.cache.length : -1], dtype=torch.long, device=self.target.device)
        for chunk in ids.split(PREFILL_CHUNK):
            if len(chunk):
                self.target.forward(chunk, run.cache, slice(0))
        if self.pool is not None:
            run.cache.register(run.tokens[:-1])
        if self._prompt is not None:
            run.cache = self._prompt.fork()
        run.stats.prefill_seconds += time.perf_counter() - start

    @torch.inference_mode()
    def _round(self, run: Run) -> Round:
        """Draft, verify, commit, roll back: between one token and gamma + 1 are added to `run`."""
        begin = time.perf_counter()
        # A round adds one token more than it drafts, so the budget bounds the drafts.
        gamma = whole("gamma", self.gamma(run.stats)) if callable(self.gamma) else self.gamma
        gamma = min(gamma, run.room - 1)
        # A drafter gets copies: one that appends its drafts to the sequence must not write them into the output.
        proposal = run.drafter.propose(list(run.tokens), gamma, run.source) if gamma else Proposal([])
        proposal = check_proposal(proposal, gamma, self.target.vocab_size)
        drafted = time.perf_counter()

        new = [run.tokens[-1], *proposal.tokens]
        logits = self.target.forward(torch.tensor(new, device=self.target.device), run.cache)
        if run.by_argmax:
            verdict = verify_argmax(proposal, run.sampling.argmax(logits))
        else:
            p = run.sampling.probs(logits, [*run.tokens, *proposal.tokens])
            verdict = check_verdict(self.rule(proposal, p, run.source), len(proposal.tokens), self.target.vocab_size)
        verified = time.perf_counter()

        kept = self._commit(run, verdict.emitted(proposal.tokens))
        if run.logprobs is not None:
            run.logprobs += log_probabilities(logits, kept)
        run.cache.truncate(len(run.tokens) - 1)
        run.drafter.commit(list(run.tokens))
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
            elif run.room == 0:
                run.finish_reason = "length"
            if run.finish_reason:
                return emitted[: i + 1]
        return emitted


def _release(run: Run) -> None:
    """Empty the caches of a run that is over or broke off: blocks of a pool are free again."""
    if run.cache is not None:
        run.cache.truncate(0)
    if hasattr(run.drafter, "end"):
        run.drafter.end()


def log_probabilities(logits: Tensor, tokens: list[int]) -> list[float]:
    """log softmax(logits_i)[token i] for each of `tokens`; `logits` has a row `[vocab]` for each, or more."""
    rows = logits[: len(tokens)]
    log_p = torch.log_softmax(rows if rows.dtype == torch.float64 else rows.float(), -1)
    return log_p[range(len(tokens)), tokens].tolist()


def _drain(stream: Generator[Chunk, None, Generation]) -> Generation:
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return end.value
