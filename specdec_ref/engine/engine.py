"""The loop: draft, verify in one pass, commit, roll back.

Tokens are *drafted* or *committed* (part of the output for good). The last committed token is *pending*: chosen, but
not yet fed to the target. Between rounds the target's cache holds exactly the committed tokens without the
pending one. So a round feeds the pending token and the drafts, and gets the distributions it needs: one per draft,
plus one after the last. Drafts may be a tree, several guesses for one place: in the same pass each then sees those
that it continues alone, and of the cache its accepted path stays.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from specdec_ref.cache.paged import PagedCache, PagedKVPool
from specdec_ref.engine.prompt import encode_prompt
from specdec_ref.engine.run import Chunk, Generation, OnRound, Round, Run, RunOptions, Stream, log_probabilities
from specdec_ref.engine.stats import Stats
from specdec_ref.engine.text import TextStream
from specdec_ref.engine.validate import (
    check_drafter,
    check_features,
    check_proposal,
    check_trees,
    check_verdict,
    eos_ids,
    sampling_options,
    stop_strings,
    whole,
)
from specdec_ref.interfaces import CausalLM, Drafter, Pass, Proposal, Rule, Verdict, check_model
from specdec_ref.kernels.masks import tree_mask
from specdec_ref.sampling import RandomSource, SamplingOptions, sample_seed
from specdec_ref.verify import as_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

PREFILL_CHUNK = 512  # tokens a prefill pass takes in: bounds the memory of its activations


class SpeculativeEngine:
    """Generates with `target`, checking in each pass what `drafter` proposed.

    drafter: None decodes plainly, one token per pass, through the same loop.
    gamma: draft tokens per round, or a function of the `Stats` so far that returns them; 0 is plain decoding. Of a
        drafter of trees it is the number of tokens in the tree.
    rule: name in `specdec_ref.verify.RULES`, or a function of the same form. At temperature 0 the lossless rules
        agree, and the target's argmax decides directly.
    pool: where the target's keys and values live; generations share in it what their prompts share. None gives each
        generation memory of its own.
    Raises ValueError for a negative gamma, an unknown rule, a drafter with a different vocabulary, or a pool made for
    another model; TypeError if `target` is not a model or `drafter` not a drafter.
    """

    def __init__(
        self,
        target: CausalLM,
        drafter: Drafter | None = None,
        gamma: int | Callable[[Stats], int] = 5,
        rule: str | Rule = "token",
        pool: PagedKVPool | None = None,
    ) -> None:
        self.rule = as_rule(rule)
        check_model(target)
        self.target = target
        if not callable(gamma):
            gamma = whole("gamma", gamma)
        self.drafter = Drafter() if drafter is None else drafter  # at gamma 0 nothing is asked of it
        self.gamma: int | Callable[[Stats], int] = 0 if drafter is None else gamma
        check_drafter(self.drafter)
        check_features(self.drafter, target)
        self.drafter.check(target)
        if pool is not None:
            pool.check(target)
        self.pool = pool

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        streamer: Any = None,
        on_round: OnRound | None = None,
        **options: Unpack[RunOptions],
    ) -> Generation:
        """Generate up to `max_new_tokens` after `prompt` (text, chat messages, or token ids).

        streamer: a transformers streamer (`put`, `end`). It gets the prompt and each token, so it may show text that
            `stop` later removes; `end` is called even if the generation fails.
        on_round: called with (`Run`, `Round`) after each round.
        options: see `RunOptions`: seed, source, stop, eos_token_id, logprobs, and how to sample: temperature (0, the
            default, is greedy), top_k, top_p, min_p, typical_p, penalties, biases, processors.
        Raises ValueError or TypeError for invalid input, OutOfBlocks where a pool is full; the engine remains usable
        after any error.
        """
        return self.stream(prompt, max_new_tokens, streamer=streamer, on_round=on_round, **options).read()

    def generate_many(
        self,
        prompt: Any,
        n: int,
        max_new_tokens: int = 128,
        *,
        on_round: OnRound | None = None,
        **options: Unpack[RunOptions],
    ) -> list[Generation]:
        """`n` independent samples of one prompt; options as in `generate`. On a pool they share the prompt's blocks.

        With a seed the first sample is what `generate` gives with it. Raises ValueError at temperature 0, where all
        samples would be the same, and for n below 1.
        """
        if whole("n", n) == 0 or options.get("temperature", 0) == 0:
            raise ValueError(f"n is {n}: several samples need a temperature above 0, and n at least 1")
        ids, seed = encode_prompt(prompt, self.target), options.get("seed")
        prefix = self.pool.new_sequence(ids) if self.pool is not None and not self.drafter.layers else None
        samples = []
        try:
            for i in range(n):
                options["seed"] = sample_seed(seed, i)
                run = self.start(ids, max_new_tokens, **options)
                run.prefix = prefix
                samples.append(Stream(self._chunks(run, None, on_round)).read())
        finally:
            if prefix is not None:
                prefix.truncate(0)
        return samples

    def stream(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        streamer: Any = None,
        on_round: OnRound | None = None,
        **options: Unpack[RunOptions],
    ) -> Stream:
        """Like `generate`, but returns a `Stream`: one chunk per round, and the `Generation` as its `result`."""
        return Stream(self._chunks(self.start(prompt, max_new_tokens, **options), streamer, on_round))

    def start(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        seed: int | None = None,
        source: RandomSource | None = None,
        stop: str | Iterable[str] | None = (),
        eos_token_id: int | Iterable[int] | str | None = "target",
        logprobs: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Run:
        """A run for `step` to advance; options as in `RunOptions`. Nothing is computed yet.

        A run that is not stepped to its end must be released with `Run.release`.
        """
        target, ids, budget = self.target, encode_prompt(prompt, self.target), whole("max_new_tokens", max_new_tokens)
        if target.max_context is not None:
            budget = min(budget, target.max_context - len(ids))
        eos = eos_ids(eos_token_id, target)
        bound = sampling_options(sampling, target).bound(len(ids), target.vocab_size, eos)
        return Run(
            tokens=ids,
            prompt_length=len(ids),
            budget=budget,
            eos=eos,
            sampling=bound,
            source=source or RandomSource(None if seed is None else whole("seed", seed)),
            # The last emitted token is never fed, so prompt and budget bound what any cache has to hold.
            drafter=self.drafter.begin(target, bound, len(ids) + budget),
            text=TextStream(target.tokenizer, stop_strings(stop, target)),
            logprobs=[] if logprobs else None,
            stats=Stats(lossless=self.rule.lossless),
            finish_reason=None if budget else "length",
        )

    @torch.inference_mode()
    def step(self, runs: Sequence[Run]) -> list[Round]:
        """One round of each run: draft, verify, commit, roll back. Each gains between one token and gamma + 1.

        A run's first step also prefills its prompt. Each run has a forward pass of its own: they are not batched.
        Raises ValueError for a run that is over.
        """
        for run in runs:
            if run.finish_reason is not None:
                raise ValueError(f"this run is over ({run.finish_reason}): start a new one")
            if run.cache is None:
                self._prefill(run)
        proposals = [self._draft(run) for run in runs]
        passes = [self._forward(run, proposal) for run, proposal in zip(runs, proposals, strict=True)]
        verdicts = [self._verify(*each) for each in zip(runs, proposals, passes, strict=True)]
        return [self._commit(*each) for each in zip(runs, proposals, passes, verdicts, strict=True)]

    def _draft(self, run: Run) -> Proposal:
        """Up to gamma tokens of the run's drafter."""
        with run.stats.time("draft"):
            gamma = whole("gamma", self.gamma(run.stats)) if callable(self.gamma) else self.gamma
            gamma = min(gamma, self._most(run))
            # A drafter gets a copy: one that appends its drafts to the sequence must not write them into the output.
            proposal = run.drafter.propose(list(run.tokens), gamma, run.source) if gamma else Proposal([])
            proposal = check_proposal(proposal, gamma, self.target.vocab_size)
            if proposal.parents is None:
                return proposal
            check_trees(self.target, self.rule)
            return proposal.up_to(run.room - 1)

    def _most(self, run: Run) -> int:
        """The most drafts that a round has use and room for.

        A round adds one token more than it keeps drafts. A tree may hold more drafts than the output has room for, as
        many as the cache was made for; where a pool has no blocks for them, a smaller one has to do.
        """
        chain = run.room - 1
        if not (run.drafter.nodes and chain):
            return chain
        room = run.cache.room if isinstance(run.cache, PagedCache) else run.drafter.nodes + 1
        return max(chain, min(run.drafter.nodes, room - 1))

    def _forward(self, run: Run, proposal: Proposal) -> Pass:
        """The target's pass over the pending token and the drafts: logits `[g + 1, vocab]`."""
        with run.stats.time("verify"):
            parents = None if proposal.parents is None else [-1, *(1 + parent for parent in proposal.parents)]
            return self._pass(run, [run.tokens[-1], *proposal.tokens], parents=parents)

    def _verify(self, run: Run, proposal: Proposal, out: Pass) -> Verdict:
        """Which drafts stay, and the token after them."""
        with run.stats.time("verify"):
            verdict = self.rule.judge(proposal, out.logits, run.tokens, run.sampling, run.source)
            return check_verdict(verdict, proposal, self.target.vocab_size)

    def _commit(self, run: Run, proposal: Proposal, out: Pass, verdict: Verdict) -> Round:
        """Append the surviving tokens to the output, and roll both caches back to them."""
        cache = run.cache
        assert cache is not None  # `step` has prefilled the prompt
        with run.stats.time("other"):
            start = len(run.tokens) - 1  # where the pending token lies in the cache
            committed = run.append(verdict.emitted(proposal.tokens))
            # The rows of the pass that these tokens were drawn from: the pending token's, and those of the kept drafts.
            rows = [0, *(1 + i for i in verdict.indices)][: len(committed)]
            if run.logprobs is not None:
                run.logprobs += log_probabilities(out.logits[rows], committed)
            if verdict.path is None:
                cache.truncate(len(run.tokens) - 1)
            else:  # the path of a tree: other branches lie between
                cache.keep([start + row for row in rows])
            kept = slice(len(rows)) if verdict.path is None else rows  # a slice copies nothing
            self._tell(run, tuple(f[kept] for f in out.features))
            depth = None if proposal.parents is None else proposal.depth
            run.stats.count(len(proposal.tokens), verdict, len(committed), depth)
        return Round(proposal, verdict, committed)

    def _prefill(self, run: Run) -> None:
        """Prefill the target's cache with all of the prompt except its last token, which stays pending."""
        with run.stats.time("prefill"):
            if run.prefix is not None:
                cache: Any = run.prefix
            elif self.pool is not None:
                # A drafter that reads hidden states needs them of every token: blocks of other runs have none.
                cache = self.pool.new_sequence(() if run.drafter.layers else run.tokens)
            else:
                cache = self.target.new_cache(run.prompt_length + run.budget + run.drafter.nodes)
            run.cache = cache
            parts = [
                self._pass(run, part, slice(0)).features
                for start in range(cache.length, run.prompt_length - 1, PREFILL_CHUNK)
                if (part := run.tokens[start : min(start + PREFILL_CHUNK, run.prompt_length - 1)])
            ]
            if self.pool is not None:
                cache.register(run.tokens[:-1])
            if run.prefix is not None:
                run.cache = run.prefix.fork()
            if parts and run.drafter.layers:
                self._tell(run, tuple(torch.cat(layer) for layer in zip(*parts, strict=True)))

    def _pass(
        self, run: Run, tokens: list[int], rows: slice = slice(None), parents: Sequence[int] | None = None
    ) -> Pass:
        """A forward pass of the target over `tokens`, with the hidden states that the run's drafter asked for.

        parents: of a tree, the index of each token's parent among `tokens`; a token's place in the text is its depth.
        """
        device = self.target.device
        ids = torch.tensor(tokens, device=device)
        model: Any = self.target  # `check_features` and `check_trees` have seen to it that it has what is asked for
        if parents is not None:
            mask = tree_mask(parents, device)
            positions = mask.sum(-1) - 1 + run.cache.length  # type: ignore[union-attr]
            return model.forward_pass(ids, run.cache, rows, positions=positions, mask=mask, layers=run.drafter.layers)
        if run.drafter.layers:
            return model.forward_pass(ids, run.cache, rows, layers=run.drafter.layers)
        return Pass(model.forward(ids, run.cache, rows), ())

    def _tell(self, run: Run, features: tuple[torch.Tensor, ...]) -> None:
        """Hand the drafter the committed sequence, and the features of what the target took in if it asked for them."""
        if run.drafter.layers:
            run.drafter.commit(list(run.tokens), features)
        else:
            run.drafter.commit(list(run.tokens))

    def _chunks(self, run: Run, streamer: Any, on_round: OnRound | None) -> Generator[Chunk, None, Generation]:
        with ExitStack() as at_end:  # after an error too: the next call may need the blocks and use the streamer again
            at_end.callback(run.release)
            if streamer is not None:
                at_end.callback(streamer.end)
                streamer.put(torch.tensor([run.tokens]))
            while run.finish_reason is None:
                (round_,) = self.step([run])
                if streamer is not None:
                    for token in round_.kept:
                        streamer.put(torch.tensor([token]))
                if on_round is not None:
                    on_round(run, round_)
                yield Chunk(round_.kept, run.text.show(final=run.finish_reason is not None))
            if isinstance(run.cache, PagedCache):
                run.cache.register(run.tokens[:-1])
        return run.generation()
