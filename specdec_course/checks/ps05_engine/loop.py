"""Problem set 05, part D: the whole loop, with right parts handed in. The production engine says what has to come."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

from specdec_course.checks import Check, guard, wrong
from specdec_course.checks.mistakes import Judge, Mistake
from specdec_course.checks.models import (
    VOCAB,
    WatchedModel,
    contrary,
    random_text,
    script,
    similar,
    text_after,
    tiny_llama,
)
from specdec_course.checks.ps05_engine.answers import IDS, PROBABILITIES, WHOLE, Case, Ids, as_ids
from specdec_course.checks.ps05_engine.parts import TARGET_CACHE, Parts, rule_of
from specdec_course.checks.ps05_engine.rounds import most_drafts
from specdec_ref.draft import DraftModelDrafter
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.proof.enumeration import enumerate_distribution
from specdec_ref.sampling import RandomSource


def _rounds(c: Case) -> list[Ids]:
    """The tokens that each round of the production engine commits, greedily."""
    drafter = DraftModelDrafter(ScriptedModel(c.q, c.vocab, max_context=c.draft_context))
    engine, ends = SpeculativeEngine(ScriptedModel(c.p, c.vocab), drafter, c.gamma), [x for x in c.eos if x < c.vocab]
    n = c.max_new_tokens if c.context is None else min(c.max_new_tokens, c.context - len(c.tokens))
    return [list(chunk.tokens) for chunk in engine.stream(c.tokens, n, eos_token_id=ends)]


def _text(c: Case, until: Callable[[Ids, Ids], bool] = lambda before, block: False) -> Ids:
    """The rounds joined, up to the first after which `until(text before it, its tokens)` is true."""
    text: Ids = []
    for block in _rounds(c):
        before, text = text, text + block
        if until(before, block):
            break
    return text


def _run(generate: Any, c: Case, source: Any = None) -> SimpleNamespace:
    """One call of the learner's `generate` with right parts, and all that could be seen of it."""
    target, model = (
        WatchedModel(c.p, c.vocab, c.context, "target"),
        WatchedModel(c.q, c.vocab, c.draft_context, "draft"),
    )
    parts, prompt, reports, source = Parts(c.T), list(c.tokens), list[Any](), source or RandomSource(1)

    def on_round(tokens: Any, target_cache: Any, draft_cache: Any) -> None:
        reports.append((as_ids(tokens, "on_round's `tokens`"), list(target_cache.held), list(draft_cache.held)))

    options = {"source": source, "temperature": c.T, "eos": c.eos, "on_round": on_round}
    with guard(str(c), passing=RuntimeError):  # what an enumerating source raises
        out = generate(target, model, prompt, c.max_new_tokens, c.gamma, parts, rule_of(source), **options)
    passes = sum(len(held) + len(fed) >= len(c.tokens) for held, fed in target.passes)  # but those over the prompt
    out, prompt = as_ids(out, "What generate returns", str(c)), as_ids(prompt, "The prompt")
    return SimpleNamespace(
        out=out, prompt=prompt, passes=passes, drafting=model.passes, reports=reports, calls=parts.calls
    )


def _any_eos(c: Case, tokens: Ids) -> bool:
    return any(x in c.eos for x in tokens)


def _drafts_eos(c: Case, text: Ids) -> bool:
    return _any_eos(c, text_after(c.q, c.tokens + text, min(c.gamma, c.max_new_tokens - len(text) - 1)))


def _difference(got: Ids, right: Ids) -> str:
    if got == right[: len(got)]:
        return "the text ended too early."
    if right == got[: len(right)]:
        return "the text went on: the budget, target.max_context or the first new EOS ends it."
    return "is a token of a round lost, or a rejected draft committed?"


_GOES_ON = "the text went on after the EOS: it can stand anywhere in a round. Cut what is emitted, and leave the loop."
_TEXT = Judge(
    "The text",
    _text,
    [
        Mistake("the prompt was returned, too: new tokens only.", lambda c: c.tokens + _text(c)),
        Mistake(
            "an EOS in the prompt ends nothing: only new tokens count.",
            lambda c: _text(c, lambda before, block: _any_eos(c, c.tokens + before + block)),
        ),
        Mistake("an EOS in the prompt ends nothing.", lambda c: [] if c.tokens[-1] in c.eos else _text(c)),
        Mistake("the EOS itself belongs to the text.", lambda c: [x for x in _text(c) if x not in c.eos]),
        Mistake(_GOES_ON, lambda c: _text(c._replace(eos=()))),
        Mistake(_GOES_ON, lambda c: _text(c._replace(eos=()), lambda before, block: block[-1] in c.eos)),
        Mistake(
            "an EOS that was drafted and not verified ended the text.",
            lambda c: _text(c, lambda before, block: _drafts_eos(c, before)),
        ),
        Mistake(
            "the budget was overstepped: look at it before each round, also the first.",
            lambda c: _text(c._replace(max_new_tokens=max(1, c.max_new_tokens))),
        ),
        Mistake(
            "the budget was overstepped: a round gives up to gamma + 1 tokens.",
            lambda c: _text(
                c._replace(max_new_tokens=c.max_new_tokens + c.gamma + 1),
                lambda before, block: len(before + block) >= c.max_new_tokens,
            ),
        ),
        Mistake(
            "the draft's context ends the drafting, not the text.",
            lambda c: _text(c if c.draft_context is None else c._replace(context=max(len(c.tokens), c.draft_context))),
        ),
    ],
    replace(IDS, hint=_difference),
    str,
)


def _loop_writes_plain_text(generate: Any, rng: random.Random) -> None:
    scripts = [(p, similar(p, rng)) for p in (script(rng) for _ in range(9))]
    cases = [Case(p, random_text(rng), gamma, q=q, max_new_tokens=14) for gamma, (p, q) in enumerate(scripts)]
    _TEXT(lambda c: _run(generate, c).out, [(c,) for c in cases])


def _drafts_of_three_kinds(rng: random.Random, gammas: Iterable[int]) -> list[Case]:
    """Always right, never right, right now and then."""
    cases = []
    for gamma in gammas:
        p, prompt, n = script(rng), random_text(rng), rng.randint(9, 20)
        cases += [Case(p, prompt, gamma, q=q, max_new_tokens=n) for q in (p, contrary(p), similar(p, rng))]
    return cases


def _count(got: int, right: int) -> str:
    return "are rejected drafts committed?" if got < right else "a round commits all that verify emits."


_UNUSED = Mistake("one token per pass: the drafts are not used.", lambda c: c.max_new_tokens)
_PASSES = Judge("The number of rounds", lambda c: len(_rounds(c)), [_UNUSED], replace(WHOLE, hint=_count), str)


def _loop_needs_as_many_passes(generate: Any, rng: random.Random) -> None:
    cases = _drafts_of_three_kinds(rng, (1, 2, 4, 7))
    _PASSES(lambda c: _run(generate, c).passes, [(c,) for c in cases])


_REPORTED = Judge(
    "The tokens that on_round was given",
    lambda c, before, now: now,
    [
        Mistake("give all committed tokens, the prompt's too.", lambda c, before, now: now[len(c.tokens) :]),
        Mistake("on_round comes when the round's tokens are committed.", lambda c, before, now: before),
    ],
    replace(IDS, hint=lambda *_: "cut what is emitted before it becomes part of the text: nothing follows an EOS."),
    lambda c, before, now: f"{c}; committed before this round: {before}",
)


def _judge_rounds(run: SimpleNamespace, c: Case) -> None:
    """After every round, also the last, both caches hold what a fresh prefill would give."""
    text, rounds = c.tokens, _rounds(c)
    if len(run.reports) != len(rounds):
        mistake = "the last round counts, too: call it before the loop is left, also where an EOS ends the text."
        got = f"{len(run.reports)} calls in {len(rounds)} rounds"
        raise wrong("on_round has to be called once per round.", given=str(c), got=got, mistake=mistake)
    for block, (tokens, target_cache, draft_cache) in zip(rounds, run.reports):
        before, text = text, text + block
        _REPORTED(lambda *_: tokens, [(c, before, text)])  # noqa: B023
        TARGET_CACHE(lambda *_: target_cache, [(text, target_cache)])  # noqa: B023
        # The last draft never went into the draft's cache; where nothing was drafted, it may be far behind.
        drafted = most_drafts(c.gamma, len(before), len(c.tokens) + c.max_new_tokens, c.draft_context)
        least = min(len(text) - 1, len(before) + drafted - 1) if drafted else 0
        if draft_cache != text[:-1][: len(draft_cache)] or len(draft_cache) < least:
            mistake = "it was not rolled back: the draft's cache needs that as the target's does."
            if len(draft_cache) < least:
                mistake = "committed tokens were taken out of the draft's cache, or it is new in each round."
            what, right = "The draft's cache is wrong after a round.", text[:-1][:least]
            raise wrong(what, given=f"{c}; committed are {text}", got=draft_cache, expected=right, mistake=mistake)


def _loop_keeps_both_caches(generate: Any, rng: random.Random) -> None:
    for c in _drafts_of_three_kinds(rng, (1, 2, 3, 5, 8)):
        run, cached = _run(generate, c), Ids()
        _judge_rounds(run, c)
        for held, fed in run.drafting:
            if held == cached[: len(held)] and fed[:1] == cached[len(held) : len(held) + 1]:
                what, got = "The draft model was fed tokens again that its cache held before.", f"{fed}, after {held}"
                mistake = "the draft's cache lives through all rounds: make it once, and only roll it back."
                raise wrong(what, given=str(c), got=got, mistake=mistake)
            cached = [*held, *fed]


def _loop_runs_on_a_real_cache(generate: Any, rng: random.Random) -> None:
    """A target and a draft model with attention; and a target that drafts for itself: every draft has to be kept."""
    for gamma, alone in product((1, 3, 5), (False, True)):
        target, prompt, source, kept, reports = tiny_llama(rng), random_text(rng), RandomSource(1), list[bool](), Ids()
        given = f"models with one layer of attention, prompt {prompt}, max_new_tokens 13, gamma {gamma}"
        options = {"source": source, "on_round": lambda tokens, *caches: reports.append(len(tokens))}  # noqa: B023
        with guard(given):
            model, rule = target if alone else tiny_llama(rng), rule_of(source, kept)
            out = generate(target, model, list(prompt), 13, gamma, Parts(0.0), rule, **options)
        right = SpeculativeEngine(target).generate(prompt, 13).tokens
        Judge("The text", lambda: right, (), IDS, lambda: given)(lambda: out, [()])  # noqa: B023
        if alone and not all(kept):
            mistake = "the draft's cache was not rolled back, or too far."
            raise wrong("The target drafts for itself, and a draft was rejected.", given=given, mistake=mistake)
        if not reports:
            raise wrong("on_round was never called.", given=given, mistake="call it at the end of each round.")


def _loop_keeps_the_budget(generate: Any, rng: random.Random) -> None:
    cases = []
    for gamma in (0, 1, 4):
        p, prompt, budgets = script(rng), random_text(rng), {0, 1, 2, gamma, gamma + 1, gamma + 2, 2 * gamma + 2}
        cases += [(Case(p, prompt, gamma, q=q, max_new_tokens=n),) for n in sorted(budgets) for q in (p, contrary(p))]
    _TEXT(lambda c: _run(generate, c).out, cases)
    _PASSES(lambda c: _run(generate, c).passes, [(c,) for (c,) in cases if c.max_new_tokens == 0])


def _loop_keeps_the_context(generate: Any, rng: random.Random) -> None:
    """A target whose context is nearly full; a draft model with a shorter one, or too short for the prompt, or none."""
    cases = []
    for gamma in (0, 2, 5):
        p, prompt = script(rng), random_text(rng, 6, 9)
        case, n = Case(p, prompt, gamma, q=similar(p, rng), max_new_tokens=14), len(prompt)
        cases += [(case._replace(context=n + free),) for free in (0, 1, 2, gamma + 1, gamma + 3)]
        cases += [(case._replace(draft_context=m),) for m in (n + 3, n + gamma + 6, n, n - 3, 0)]
    _TEXT(lambda c: _run(generate, c).out, cases)


def _loop_trusts_no_draft(generate: Any, rng: random.Random) -> None:
    """The draft proposes an EOS at every other place, and the target never wants it."""
    p, eos = script(rng), rng.choice([(VOCAB,), {VOCAB}, [VOCAB, 50]])

    def target(tokens: tuple[int, ...]) -> list[float]:
        return [*(0.999 * x for x in p(tokens)), 0.001]

    def eager(tokens: tuple[int, ...]) -> list[float]:
        return [0.001 / VOCAB] * VOCAB + [0.999] if len(tokens) % 2 else target(tokens)

    case = Case(target, [], q=eager, max_new_tokens=9, eos=eos, vocab=VOCAB + 1)
    cases = [(case._replace(tokens=random_text(rng), gamma=gamma),) for gamma in (1, 2, 5)]
    _TEXT(lambda c: _run(generate, c).out, cases)


def _loop_stops_at_every_place(generate: Any, rng: random.Random) -> None:
    """Each token of the text is declared EOS in turn, alone and with others; an EOS in the prompt ends nothing."""
    for gamma in (0, 1, 5):
        p, prompt = script(rng, 60), random_text(rng, vocab=60)
        case = Case(p, prompt, gamma, q=p, max_new_tokens=8, vocab=60)
        cases = [case._replace(eos=[prompt[0]]), case._replace(eos=[prompt[-1]])]
        for i, token in enumerate(text_after(p, prompt, 8)):
            several, q = [rng.randrange(60, 90), token, rng.randrange(60, 90)], similar(p, rng, 60) if i % 2 else p
            cases += [case._replace(q=q, eos=eos) for eos in ((token,), several)[i % 2 :]]
        for c in cases:
            run = _run(generate, c)
            _TEXT(lambda _: run.out, [(c,)])  # noqa: B023
            _judge_rounds(run, c)


def _follows(generate: Any, c: Case) -> None:
    """Three tokens over three ids, for every outcome of the source: exactly the target's distribution."""
    engine, given = SpeculativeEngine(ScriptedModel(c.p, c.vocab)), f"{c}, every outcome of the source"

    def plain(T: float) -> dict[Any, float]:
        options: dict[str, Any] = {"temperature": T, "eos_token_id": c.eos}
        return enumerate_distribution(
            lambda source: tuple(engine.generate(c.tokens, c.max_new_tokens, source=source, **options).tokens)
        )

    def learner() -> dict[Any, float]:
        try:
            return enumerate_distribution(lambda source: tuple(_run(generate, c, source).out), max_branches=3000)
        except RuntimeError as error:
            causes = {
                "branches": "more random choices are made than these tokens need: the budget was overstepped.",
                "another choice": "the same choices of `source` gave different texts: something else draws, too.",
            }
            for sign, mistake in causes.items():
                if sign in str(error):
                    raise wrong("The outcomes cannot be counted.", given=given, mistake=mistake) from None
            raise

    hint = "both models need one temperature, and the rule needs draft's distributions."
    if c.eos:
        hint = "every token that was drawn has to be verified, a drafted EOS too: dropping it unseen makes it rare."
    slips = [Mistake("the temperature does not reach the parts.", lambda T=T: plain(T)) for T in (1.0, 0.0)]
    exact = replace(PROBABILITIES, hint=lambda *_: hint)
    Judge("How often which text comes", lambda: plain(c.T), slips, exact, lambda: given)(learner, [()])


def _loop_follows_the_targets_distribution(generate: Any, rng: random.Random) -> None:
    """Sampling, without an EOS and with one, which may be drafted."""
    prompt, T, gamma = random_text(rng, 1, 3, vocab=3), rng.choice([0.5, 0.8, 1.3]), rng.choice([1, 2])
    case = Case(script(rng, 3), prompt, gamma, T=T, q=script(rng, 3), max_new_tokens=3, vocab=3)
    for c in (case, case._replace(eos=(rng.randrange(3),))):
        _follows(generate, c)
    _follows(
        generate,
        Case(same := lambda tokens: [0.5, 0.3, 0.2], [0], 2, T=1.0, q=same, max_new_tokens=3, eos=(2,), vocab=3),
    )


def _loop_takes_any_prompt(generate: Any, rng: random.Random) -> None:
    """A prompt of one token; and the caller's list stays as it was."""
    for gamma, length in product((0, 1, 4), (1, 1, 2, 5)):
        p = script(rng)
        c = Case(p, random_text(rng, length, length), gamma, q=similar(p, rng), max_new_tokens=8)
        run = _run(generate, c)
        _TEXT(lambda _: run.out, [(c,)])  # noqa: B023
        if run.prompt != c.tokens:
            mistake = "`tokens = prompt` is a second name for the same list: copy it."
            raise wrong("generate changed the caller's prompt.", given=str(c), got=run.prompt, mistake=mistake)


def _loop_calls_its_parts(generate: Any, rng: random.Random) -> None:
    case = Case(p := script(rng), random_text(rng), 3, q=p, max_new_tokens=9, eos=(VOCAB,))
    calls = _run(generate, case).calls
    for name in ("draft", "verify", "roll_back", "how_many_drafts", "cut"):
        if not calls[name]:
            mistake = "call the five functions that come in as `parts`, not your own: those here are right."
            raise wrong(f"parts.{name} was never called.", given=str(case), mistake=mistake)


loop = Check(
    "loop",
    [
        _loop_writes_plain_text,
        _loop_needs_as_many_passes,
        _loop_keeps_both_caches,
        _loop_runs_on_a_real_cache,
        _loop_keeps_the_budget,
        _loop_keeps_the_context,
        _loop_trusts_no_draft,
        _loop_stops_at_every_place,
        _loop_follows_the_targets_distribution,
        _loop_takes_any_prompt,
        _loop_calls_its_parts,
    ],
)
