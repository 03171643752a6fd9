"""Problem set 05, part D: the whole loop, with right parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.engine_models import (
    CLOSE,
    RIGHT,
    VOCAB,
    TinyModel,
    WatchedCache,
    WatchedModel,
    contrary_distribution,
    greedy_text,
    ids,
    random_distribution,
    right_greedy_rule,
    right_sampling_rule,
    rounds_of,
    similar_distribution,
    some_text,
    tempered,
)
from specdec_ref.models.scripted import Conditional
from specdec_ref.proof.enumeration import enumerate_distribution
from specdec_ref.sampling import RandomSource


class Run:
    """One call of the learner's `generate` with right parts, and what could be seen of it."""

    def __init__(
        self,
        generate: Any,
        p: Conditional,
        q: Conditional,
        prompt: Sequence[int],
        n: int,
        gamma: int,
        *,
        eos: Any = (),
        context: int | None = None,
        draft_context: int | None = None,
        must_tell: bool = False,
    ) -> None:
        vocab = len(p(tuple(prompt)))
        self.target = WatchedModel(p, vocab, max_context=context, name="target")
        self.draft = WatchedModel(q, vocab, max_context=draft_context, name="draft model")
        self.p, self.prompt, self.n, self.gamma = p, list(prompt), n, gamma
        self.rounds: list[tuple[list[int], list[int], list[int]]] = []  # tokens, target's cache, draft's cache

        def on_round(tokens: Any, target_cache: Any, draft_cache: Any) -> None:
            if target_cache is draft_cache:
                raise wrong("on_round was given the same cache twice.", mistake="each model needs a cache of its own")
            held = [list(c.held) if isinstance(c, WatchedCache) else [] for c in (target_cache, draft_cache)]
            self.rounds.append((ids(tokens, "on_round's `tokens`"), *held))  # type: ignore[arg-type]

        given = list(prompt)
        told = {"source": RandomSource(1), "temperature": 0.0, "eos": eos, "on_round": on_round}
        self.given = f"prompt {self.prompt}, max_new_tokens {n}, gamma {gamma}" + (f", eos {eos}" if eos else "")
        with guard(self.given):
            try:
                out = generate(self.target, self.draft, given, n, gamma, RIGHT, right_greedy_rule, **told)
            except ValueError as error:
                if not ("new tokens exceed" in str(error) and self.diagnosis()):
                    raise
                raise wrong(f"A pass was refused: {error}", given=self.given, mistake=self.diagnosis()) from None
        self.kept_prompt = given == self.prompt
        self.out = ids(out, "What generate returns")
        if must_tell and not self.rounds:
            raise wrong("on_round was never called.", given=self.given, mistake="call it at the end of each round")

    @property
    def verifying(self) -> list[tuple[list[int], list[int]]]:
        """The target's passes but those that took in the prompt."""
        return [(held, fed) for held, fed in self.target.passes if len(held) + len(fed) >= len(self.prompt)]

    def expect(self, expected: Sequence[int], what: str, mistake: str = "") -> None:
        """Raises where the output is another one, with what the passes tell about it."""
        if self.out == list(expected):
            return
        if self.out == [*self.prompt, *expected]:
            mistake = "the prompt was returned, too: new tokens only"
        elif not mistake and len(self.out) > self.n:
            mistake = "the budget was overstepped"
        raise wrong(what, given=self.given, got=self.out, expected=list(expected), mistake=mistake or self.diagnosis())

    def diagnosis(self) -> str:
        """What the target read, where it is not the beginning of the right text."""
        right = [*self.prompt, *greedy_text(self.p, self.prompt, 2 * self.n + 10)]
        for held, fed in self.verifying:
            read = [*held, fed[0]]
            if read == right[: len(read)]:
                continue
            if held == right[: len(held)] and fed[0] == right[len(held) - 1]:
                return f"the target was fed the pending token, {fed[0]}, though its cache held it already"
            if held != right[: len(held)]:
                return f"the target's cache held {held}; the text is {right[: len(held)]}. Was it rolled back?"
            return (
                f"the target was fed {fed[0]} behind {held}, where {right[len(held)]} comes: a token is missing between"
            )
        return ""


def loop_writes_plain_text(generate: Any, rng: random.Random) -> None:
    """For every gamma, a draft that is right now and then: the text of plain greedy decoding."""
    for gamma in range(9):
        p = random_distribution(rng)
        run = Run(generate, p, similar_distribution(p, rng), some_text(rng), 14, gamma)
        run.expect(greedy_text(p, run.prompt, 14), "The text is not that of plain greedy decoding.")


def loop_needs_as_many_passes(generate: Any, rng: random.Random) -> None:
    """A draft that is always right, never right, now and then: passes of the target, from the distributions alone."""
    for gamma in (1, 2, 3, 4, 6, 8):
        p, prompt, n = random_distribution(rng), some_text(rng), rng.randint(9, 20)
        drafts = {
            "always right": p,
            "never right": contrary_distribution(p),
            "right now and then": similar_distribution(p, rng),
        }
        for name, q in drafts.items():
            run = Run(generate, p, q, prompt, n, gamma)
            expected = rounds_of(p, q, prompt, len(prompt) + n, gamma)
            got, mistake = len(run.verifying), ""
            if got == len(expected):
                continue
            if got > len(expected):
                mistake = run.diagnosis() or "a round commits all that verify emits; the next one starts behind it"
                if got == n:
                    mistake = run.diagnosis() or "one token a pass: the drafts are not used"
            elif name == "never right":
                mistake = "each round gives one token here: are rejected drafts committed?"
            raise wrong(
                f"The number of target passes is another one; the draft is {name}.",
                given=run.given,
                got=f"{got} passes behind the prompt",
                expected=f"{len(expected)}; (drafted, kept) of each round: {expected}",
                mistake=mistake,
            )


def _look_at_rounds(run: Run, q: Conditional, text: Sequence[int]) -> None:
    """After every round both caches hold what a fresh prefill would give, also after the last.

    text: the prompt and all new tokens, as far as they go.
    """
    rounds, tokens = rounds_of(run.p, q, run.prompt, len(run.prompt) + run.n, run.gamma), list(run.prompt)
    for i, (told, target_cache, draft_cache) in enumerate(run.rounds):
        drafted, accepted = rounds[i] if i < len(rounds) else (0, 0)
        before, tokens = tokens, list(text[: len(tokens) + accepted + 1])
        given = f"{run.given}; round {i + 1}: {accepted} of {drafted} drafts kept"
        if told != tokens:
            mistake = ""
            if told == tokens[len(run.prompt) :]:
                mistake = "give all committed tokens, the prompt's too"
            elif told == before:
                mistake = "on_round comes when the round's tokens are committed"
            elif told[: len(tokens)] == tokens:
                mistake = "tokens behind the EOS were committed: cut what is emitted before it becomes part of the text"
            raise wrong("on_round was told other tokens.", given=given, got=told, expected=tokens, mistake=mistake)
        right = tokens[:-1]
        if target_cache != right:
            mistake = "the target's cache was not rolled back to all committed tokens but the pending one"
            if draft_cache == right and q is not run.p:
                mistake += " (are the two caches in the wrong order?)"
            elif len(target_cache) < len(right):
                mistake = "the target's cache was rolled back too far: roll back when the tokens are committed"
            raise wrong(
                "The target's cache is wrong after a round.",
                given=given,
                got=target_cache,
                expected=right,
                mistake=mistake,
            )
        # The last draft never went into the draft's cache; where nothing was drafted, it may be far behind.
        least = min(len(right), len(before) + drafted - 1) if drafted else 0
        if draft_cache != right[: len(draft_cache)] or len(draft_cache) < least:
            mistake = "the draft's cache was not rolled back: it needs it as the target's does"
            if len(draft_cache) < least:
                mistake = "committed tokens were taken out of the draft's cache, or it is new in each round"
            raise wrong(
                "The draft's cache is wrong after a round.",
                given=given,
                got=draft_cache,
                expected=right[:least],
                mistake=mistake,
            )
    if len(run.rounds) != len(run.verifying):
        raise wrong(
            "on_round comes once a round.",
            given=run.given,
            got=f"{len(run.rounds)} calls in {len(run.verifying)} rounds",
            mistake="the last round counts, too: call it before the loop is left, also where an EOS ends the text",
        )


def _look_for_tokens_fed_twice(run: Run) -> None:
    """A pass of the draft model begins behind what is right of the cache, not with tokens that were in it."""
    cached: list[int] = []
    for held, fed in run.draft.passes:
        if held == cached[: len(held)] and fed[:1] == cached[len(held) : len(held) + 1]:
            raise wrong(
                "The draft model was fed tokens again that its cache held before.",
                given=run.given,
                got=f"a pass over {fed}, behind {held}",
                expected=f"the cache as it was rolled back, with the text's beginning out of {cached}",
                mistake="the draft's cache lives through all rounds: make it once, and only roll it back",
            )
        cached = [*held, *fed]


def loop_keeps_both_caches(generate: Any, rng: random.Random) -> None:
    """After every round both caches hold what a fresh prefill would give; on_round is told, nothing is fed twice."""
    for gamma in range(1, 9):
        p, prompt, n = random_distribution(rng), some_text(rng), 16
        for q in (p, contrary_distribution(p), similar_distribution(p, rng)):
            run = Run(generate, p, q, prompt, n, gamma, must_tell=True)
            _look_at_rounds(run, q, [*prompt, *greedy_text(p, prompt, n)])
            _look_for_tokens_fed_twice(run)


def loop_runs_on_a_real_cache(generate: Any, rng: random.Random) -> None:
    """One layer of attention in float64: plain text, and after each round both caches answer as freshly filled ones."""
    for gamma in (1, 3, 5):
        _run_tiny(generate, rng, gamma)


def _run_tiny(generate: Any, rng: random.Random, gamma: int) -> None:
    target = TinyModel(rng, name="target")
    model = TinyModel(rng, name="draft model", like=target)
    prompt, n, lengths = some_text(rng), 12, []
    given = f"a model with one layer of attention, prompt {prompt}, max_new_tokens {n}, gamma {gamma}"

    def on_round(tokens: Any, target_cache: Any, draft_cache: Any) -> None:
        text = ids(tokens, "on_round's `tokens`")
        lengths.append(len(text))
        for one, cache in ((target, target_cache), (model, draft_cache)):
            length = cache.length
            if length >= len(text):
                what = f"The cache of the {one.name} is too long: it holds {length} tokens, {len(text)} are committed."
                raise wrong(what, given=given, mistake="it was not rolled back")
            new = torch.tensor(text[length:])
            here = one.forward(new, cache.copy(len(new)))[-1]
            off = (here - one.next_logits(text)).abs().max().item()
            if off > CLOSE:
                what = f"The cache of the {one.name} does not answer as a freshly filled one."
                differ = f"logits that differ by {off:.3g}"
                raise wrong(what, given=given, got=differ, mistake="it was not rolled back, or too far")

    told = {"source": RandomSource(1), "on_round": on_round}
    with guard(given):
        out = generate(target, model, list(prompt), n, gamma, RIGHT, right_greedy_rule, **told)
    got = ids(out, "What generate returns")
    expected: list[int] = []
    while len(expected) < n:
        expected.append(int(target.next_logits([*prompt, *expected]).argmax()))
    if got != expected:
        raise wrong("The text is not that of plain greedy decoding.", given=given, got=got, expected=expected)
    if not lengths:
        raise wrong("on_round was never called.", given=given, mistake="call it at the end of each round")


def loop_keeps_the_budget(generate: Any, rng: random.Random) -> None:
    """Budgets around 0 and gamma, with a draft that is always right and one that never is."""
    for gamma in (0, 1, 3, 4, 6):
        p, prompt = random_distribution(rng), some_text(rng)
        for n in sorted({0, 1, 2, gamma, gamma + 1, gamma + 2, 2 * gamma + 2}):
            for q in (p, contrary_distribution(p)):
                run = Run(generate, p, q, prompt, n, gamma)
                got, mistake = len(run.out), ""
                if got == n + 1 or (n == 0 and got):
                    mistake = "the budget was overstepped: look at it before each round, also the first"
                elif got > n:
                    mistake = "the budget was overstepped: a round gives up to gamma + 1 tokens"
                elif got < n:
                    mistake = "the text ended before the budget was used up"
                run.expect(greedy_text(p, prompt, n), f"max_new_tokens is {n}; {got} came.", mistake)
                if n == 0 and run.verifying:
                    raise wrong("No token was asked for, and yet there was a round.", given=run.given)


def loop_keeps_the_context(generate: Any, rng: random.Random) -> None:
    """A target whose context is nearly full, and a draft model with a shorter one, or too short for the prompt."""
    for gamma in (0, 2, 5):
        p, prompt = random_distribution(rng), some_text(rng, 6, 9)
        q = similar_distribution(p, rng, agree=0.8)
        for free in (0, 1, 2, gamma + 1, gamma + 3):
            run = Run(generate, p, q, prompt, 40, gamma, context=len(prompt) + free)
            what = f"The target's context has place for {free} more tokens."
            got, mistake = len(run.out), ""
            if got > free:
                mistake = "the end is the smaller one of budget and target.max_context"
            run.expect(greedy_text(p, prompt, free), what, mistake)
        for draft_context in (len(prompt) + 3, len(prompt) + gamma + 6, len(prompt), len(prompt) - 3):
            run = Run(generate, p, q, prompt, 14, gamma, draft_context=draft_context)
            what = (
                f"The draft model's context is {draft_context}, the target's has no limit: it goes on without drafts."
            )
            got, mistake = len(run.out), ""
            if got < 14:
                mistake = "the draft's context ends the drafting, not the text"
            run.expect(greedy_text(p, prompt, 14), what, mistake)


def loop_stops_at_every_place(generate: Any, rng: random.Random) -> None:
    """Each token of the text is declared EOS in turn, alone and with others; an EOS in the prompt ends nothing."""
    for gamma in (0, 1, 4, 7):
        p = random_distribution(rng, 60)
        prompt = some_text(rng, vocab=60)
        n = 11
        text = greedy_text(p, prompt, n)
        for i in range(n):
            q, (other, another) = (similar_distribution(p, rng, 60) if i % 2 else p), rng.sample(range(60, 90), 2)
            for eos in ((text[i],), [other, text[i], another])[i % 2 :]:
                end = text.index(text[i]) + 1
                run = Run(generate, p, q, prompt, n, gamma, eos=eos)
                got, mistake = len(run.out), ""
                if got < end and any(t in eos for t in prompt):
                    mistake = "an EOS in the prompt ends nothing: only new tokens count"
                elif run.out == text[: end - 1]:
                    mistake = "the EOS itself belongs to the text"
                elif got > end and run.out == text[:got]:
                    mistake = "the text went on behind the EOS: cut what is emitted, and leave the loop"
                run.expect(text[:end], f"Token {end} of the text is EOS.", mistake)
                _look_at_rounds(run, q, [*prompt, *text[:end]])
        for at in (-1, 0):
            ends = [prompt[at]]
            stop = next((i + 1 for i, t in enumerate(text) if t in ends), n)
            run = Run(generate, p, p, prompt, n, gamma, eos=ends)
            mistake = "an EOS in the prompt ends nothing: only new tokens count" if len(run.out) < stop else ""
            run.expect(text[:stop], "An EOS stands in the prompt.", mistake)


def loop_trusts_no_draft(generate: Any, rng: random.Random) -> None:
    """The draft proposes an EOS all the time, and the target never wants it."""
    for gamma in (1, 2, 5):
        p, prompt, n = random_distribution(rng), some_text(rng), 9
        text = greedy_text(p, prompt, n)
        never = VOCAB  # an id beyond the target's choices

        def wide(tokens: tuple[int, ...], p: Conditional = p) -> list[float]:
            return [*(x * 0.999 for x in p(tokens)), 0.001]

        def eager(tokens: tuple[int, ...], p: Conditional = p) -> list[float]:
            if len(tokens) % 2:
                return [0.001 / VOCAB] * VOCAB + [0.999]
            return wide(tokens, p)

        eos = rng.choice([(never,), {never}, [never, 50]])
        run = Run(generate, wide, eager, prompt, n, gamma, eos=eos)
        mistake = "an EOS that was drafted and not verified ended the text" if len(run.out) < n else ""
        run.expect(
            text, f"The draft proposes the EOS {never} at every other place, and the target never wants it.", mistake
        )


def _parts_at(T: float) -> Any:
    """Right parts that look at the temperature that they are given."""

    def look(name: str, temperature: Any) -> None:
        if temperature != T:
            raise wrong(
                f"parts.{name} was given another temperature than generate.",
                got=repr(temperature),
                expected=f"{T:g}",
                mistake="the temperature does not reach the parts: both models need the same temperature",
            )

    def draft(model: Any, cache: Any, tokens: Any, gamma: Any, temperature: Any, source: Any) -> Any:
        look("draft", temperature)
        return RIGHT.draft(model, cache, tokens, gamma, temperature, source)

    def verify(model: Any, cache: Any, tokens: Any, drafted: Any, q: Any, rule: Any, temperature: Any) -> Any:
        look("verify", temperature)
        return RIGHT.verify(model, cache, tokens, drafted, q, rule, temperature)

    return SimpleNamespace(**{**vars(RIGHT), "draft": draft, "verify": verify})


def _follows(
    generate: Any,
    p: Conditional,
    q: Conditional,
    prompt: Sequence[int],
    gamma: int,
    T: float,
    eos: Sequence[int],
    n: int = 3,
) -> None:
    """Three tokens over three ids, for every way that chance can fall: exactly the target's distribution."""
    given = f"prompt {list(prompt)}, {n} tokens, gamma {gamma}, eos {tuple(eos)}, every outcome of the source"

    def text_distribution(at: float) -> dict[tuple[int, ...], float]:
        distributions: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(n):
            ended = {t: w for t, w in distributions.items() if t[-1:] and t[-1] in eos}
            going = {t: w for t, w in distributions.items() if t not in ended}
            distributions = ended | {
                (*t, x): w * tempered(p, [*prompt, *t], at)[x] for t, w in going.items() for x in range(3)
            }
        return distributions

    def program(source: Any) -> tuple[int, ...]:
        target, model = WatchedModel(p, 3, name="target"), WatchedModel(q, 3, name="draft model")
        told = {"temperature": T, "source": source, "eos": tuple(eos)}
        with guard(given, passing=RuntimeError):  # what an enumerating source raises
            out = generate(target, model, list(prompt), n, gamma, _parts_at(T), right_sampling_rule(source), **told)
        return tuple(ids(out, "What generate returns"))

    try:
        got = enumerate_distribution(program, max_branches=3000)
    except RuntimeError as error:
        if "branches" in str(error):
            what = "Three tokens were asked for, and far more random choices were made than they need."
            raise wrong(what, given=given, mistake="the budget is overstepped") from None
        raise wrong("The same choices of `source` gave different texts: some chance comes from elsewhere.") from None
    expected = text_distribution(T)
    off = max((abs(got.get(k, 0) - expected.get(k, 0)), k) for k in {*expected, *got})
    if off[0] > CLOSE:
        mistake = "if greedy text is right: both models need one temperature, and the rule needs draft's distributions"
        if any(len(text) != n and text[-1:] and text[-1] not in eos for text in got):
            mistake = "texts have other lengths than max_new_tokens"
        elif max(abs(got.get(k, 0) - v) for k, v in text_distribution(1.0).items()) <= CLOSE:
            mistake = "this is the distribution at temperature 1: the temperature does not reach the parts"
        elif len(got) == 1:
            mistake = "always the same text: the temperature does not reach the parts"
        elif eos:
            mistake = (
                "every token that was drawn has to be verified, a drafted EOS too: dropping it unseen makes it rare"
            )
        raise wrong(
            f"Sampled text does not follow the target's distribution (temperature {T:g}): see the text {list(off[1])}.",
            given=given,
            got=f"probability {got.get(off[1], 0):.4f}",
            expected=f"probability {expected.get(off[1], 0):.4f}",
            mistake=mistake,
        )


def loop_follows_the_targets_distribution(generate: Any, rng: random.Random) -> None:
    """Sampling, without an EOS and with one, which may be drafted."""
    T, p, prompt = rng.choice([0.5, 0.8, 1.3]), random_distribution(rng, 3), some_text(rng, 1, 3, vocab=3)
    q, gamma = random_distribution(rng, 3), rng.choice([1, 2, 3])
    _follows(generate, p, q, prompt, gamma, T, ())
    _follows(generate, p, q, prompt, gamma, T, (rng.randrange(3),))
    same: Conditional = lambda tokens: [0.5, 0.3, 0.2]  # noqa: E731
    _follows(generate, same, same, [0], 2, 1.0, (2,))


def loop_takes_any_prompt(generate: Any, rng: random.Random) -> None:
    """A prompt of one token; and the caller's list stays as it was."""
    for gamma in (0, 1, 4):
        for length in (1, 1, 2, 5):
            p, prompt = random_distribution(rng), some_text(rng, length, length)
            run = Run(generate, p, similar_distribution(p, rng), prompt, 8, gamma)
            run.expect(greedy_text(p, prompt, 8), f"A prompt of {length} token{'s' * (length > 1)}.")
            if not run.kept_prompt:
                raise wrong(
                    "generate changed the caller's prompt.",
                    given=run.given,
                    mistake="`tokens = prompt` is a second name for the same list: copy it",
                )


loop = Check(
    "loop",
    [
        loop_writes_plain_text,
        loop_needs_as_many_passes,
        loop_keeps_both_caches,
        loop_runs_on_a_real_cache,
        loop_keeps_the_budget,
        loop_keeps_the_context,
        loop_trusts_no_draft,
        loop_stops_at_every_place,
        loop_follows_the_targets_distribution,
        loop_takes_any_prompt,
    ],
)
