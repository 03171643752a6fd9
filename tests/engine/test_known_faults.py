"""Faults that users of such engines have reported, each as a test with the numbers it was reported with, and siblings.

What other files test already is not repeated here.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
import transformers
from support.hf_models import VOCAB, build
from support.spelling import Knows, Pieces, byte_level_tokenizer, speller
from support.tiny_models import tiny_llama

from specdec_ref import DraftModelDrafter, NGramDrafter, Proposal, RandomSource, SpeculativeEngine
from specdec_ref.cache.paged import PagedKVPool
from specdec_ref.interfaces import Drafter, Verdict
from specdec_ref.models.huggingface import HuggingFaceModel
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.proof import enumerate_distribution
from specdec_ref.verify import RULES

P, Q = [0.6, 0.2, 0.1, 0.1], [0.7, 0.2, 0.05, 0.05]
PROMPT = [3, 1, 4]
TARGET, DRAFT = tiny_llama(1), tiny_llama(2, n_layers=1)
PLAIN = SpeculativeEngine(TARGET).generate(PROMPT, 20).tokens


def always(distribution, vocab=None):
    """A model without a memory."""
    return ScriptedModel(lambda tokens: distribution, vocab or len(distribution))


def first_token(engine, **options):
    """Distribution of the first token, by enumeration of the production loop; two are asked for, so that one can be
    drafted.
    """
    options = {"temperature": 1.0} | options
    return enumerate_distribution(lambda source: engine.generate([0], 2, source=source, **options).tokens[0])


def assert_distribution(found, expected, abs=1e-12):
    assert [found.get(i, 0.0) for i in range(len(expected))] == pytest.approx(list(expected), abs=abs)


class Proposes(Drafter):
    """Always the same tokens, with these distributions."""

    def __init__(self, tokens, probs=None):
        self.tokens, self.probs = tokens, probs

    def propose(self, tokens, gamma, source):
        n = min(gamma, len(self.tokens))
        return Proposal(self.tokens[:n], None if self.probs is None else self.probs[:n])


# The distribution of the output.


@pytest.mark.parametrize("rule", ["token", "block"])
def test_an_argmax_drafted_and_the_softmax_tested(rule):
    """q = [.8, .2], p = [.6, .4] emits [.75, .25]: the fault is real, and seen by enumeration."""
    target = always([0.6, 0.4])
    fault = Proposes([0], torch.tensor([[0.8, 0.2]], dtype=torch.float64))
    assert_distribution(first_token(SpeculativeEngine(target, fault, rule=rule)), [0.75, 0.25])
    one_hot = Proposes([0], torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    for right in (Proposes([0]), one_hot, Proposes([1])):
        assert_distribution(first_token(SpeculativeEngine(target, right, rule=rule)), [0.6, 0.4])


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    ("p", "q", "corrections", "acceptance"),
    [([0.5, 0.3, 0.2], [0.6, 0.1, 0.3], [0, 1, 0], 0.8), (P, Q, [0, 0, 0.5, 0.5], 0.9)],
)
def test_a_residual_restricted_to_the_rejected_token(rule, p, q, corrections, acceptance):
    """Through the whole engine: what follows a rejection, and how often there is none."""
    engine = SpeculativeEngine(always(p), DraftModelDrafter(always(q)), 1, rule)

    def first_round(source):
        rounds = []
        engine.generate([0], 2, temperature=1.0, source=source, on_round=lambda run, round_: rounds.append(round_))
        return rounds[0].verdict.accepted, rounds[0].kept[0]

    distribution = enumerate_distribution(first_round)
    assert sum(weight for (accepted, _), weight in distribution.items() if accepted) == pytest.approx(
        acceptance, abs=1e-12
    )
    found = {token: weight / (1 - acceptance) for (accepted, token), weight in distribution.items() if not accepted}
    assert_distribution(found, corrections)


class Constant(random.Random):
    def __init__(self, u):
        super().__init__(0)
        self.u = u

    def random(self):
        return self.u


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_a_uniform_fixed_at_either_end_emits_nothing_impossible(rule, u):
    source = RandomSource(0)
    source._generator = Constant(u)
    target = always([0.0, 0.5, 0.0, 0.5, 0.0])
    for drafter in (Proposes([0, 2, 4]), Proposes([1, 0, 3]), DraftModelDrafter(always([0.6, 0.1, 0.1, 0.1, 0.1]))):
        tokens = SpeculativeEngine(target, drafter, 3, rule).generate([0], 9, temperature=1.0, source=source).tokens
        assert set(tokens) <= {1, 3}


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_ratio_at_temperature_one_whatever_was_asked(rule, temperature):
    """The emitted distribution is softmax(logits / T), and what is accepted follows from p and q at that T."""
    p, q = (torch.tensor(distribution, dtype=torch.float64) ** (1 / temperature) for distribution in (P, Q))
    p, q = p / p.sum(), q / q.sum()
    engine, kept = SpeculativeEngine(always(P), DraftModelDrafter(always(Q)), 1, rule), []

    def run(source):
        kept.clear()
        note = lambda run, round_: kept.append(round_.verdict.accepted)  # noqa: E731
        first = engine.generate([0], 2, temperature=temperature, source=source, on_round=note).tokens[0]
        return first, kept[0]

    distribution = enumerate_distribution(run)
    assert_distribution(
        {x: distribution.get((x, 0), 0.0) + distribution.get((x, 1), 0.0) for x in range(4)}, p.tolist()
    )
    accepted = sum(weight for (_, n), weight in distribution.items() if n)
    assert accepted == pytest.approx(RULES[rule].expected_acceptance(p, q), abs=1e-12)


def test_top_p_drops_the_token_that_crosses_on_p_and_on_q():
    """[.5, .35, .1, .05] at .9 keeps 3, in the distribution that is emitted, in the draft's distribution, and in what
    is drafted.
    """
    distribution, distributions, drafted = [0.5, 0.35, 0.1, 0.05], [], set()

    def note(run, round_):
        distributions.extend(round_.proposal.probs if round_.proposal.tokens else [])
        drafted.update(round_.proposal.tokens)

    expected = [x / 0.95 for x in distribution[:3]] + [0.0]
    engine = SpeculativeEngine(always(distribution), DraftModelDrafter(always(distribution)), 1)
    assert_distribution(first_token(engine, top_p=0.9, on_round=note), expected)
    assert drafted == {0, 1, 2} and all(q.tolist() == pytest.approx(expected) for q in distributions)


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_drafts_distribution_that_never_reaches_the_rule(rule):
    """Spied: the rule is handed the very distribution that the draft drew from, and P(accepted) is the formula's."""
    asked, expected = [], torch.tensor(Q, dtype=torch.float64)

    def spy(proposal, p, source):
        asked.append(proposal)
        return RULES[rule](proposal, p, source)

    drafter = DraftModelDrafter(always(Q))
    distribution = enumerate_distribution(
        lambda source: (
            SpeculativeEngine(always(P), drafter, 1, spy)
            .generate([0], 2, temperature=1.0, source=source)
            .stats.accepted
        )
    )
    known = {"token": 0.90, "block": 0.90, "match": 0.47}[rule]
    assert distribution[1] == pytest.approx(known, abs=1e-12)
    drafts = [proposal for proposal in asked if proposal.tokens]
    assert drafts and all(torch.allclose(proposal.probs[0], expected, atol=1e-15) for proposal in drafts)


def test_samples_that_share_their_draws():
    """Three samples at once: every one has the distribution of a single one, and their joint distribution is the
    product.
    """
    engine = SpeculativeEngine(always([0.6, 0.4]), DraftModelDrafter(always([0.1, 0.9])), 1)

    def run(source):
        return tuple(
            g.tokens[0] for g in engine.generate_many([0], 3, 2, temperature=1.0, source=source, eos_token_id=1)
        )

    distribution = enumerate_distribution(run)
    for row in itertools.product(range(2), repeat=3):
        assert distribution[row] == pytest.approx(math.prod([0.6, 0.4][x] for x in row), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_drafts_distribution_in_16_bits_that_does_not_sum_to_one(dtype, rule):
    """Whoever draws from such a distribution normalises it, so the distribution that is tested has to be normalised
    as well.
    """
    p = [0.1, 0.5, 0.4 / 3, 0.4 / 3, 0.4 / 3]
    q = torch.softmax(torch.tensor([1.3, -3.7, -0.1, 0.2, -0.7], dtype=dtype), -1)
    off = abs(q.sum(dtype=torch.float64).item() - 1)
    assert off > 1e-4, "otherwise there is nothing to see"

    class Half(Drafter):
        def propose(self, tokens, gamma, source):
            return Proposal([source.categorical(q)], q[None])

    assert_distribution(first_token(SpeculativeEngine(always(p), Half(), rule=rule)), p, abs=1e-6)


def test_a_distribution_that_is_slightly_wrong_is_refused():
    q = torch.tensor([[0.5, 0.4995]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"sum to \[0.9995\]"):
        SpeculativeEngine(always([0.5, 0.5]), Proposes([0], q)).generate([0], 3, temperature=1.0)


# Cache and rollback.


def dense(tokens):
    return TARGET, TARGET.new_cache(40)


def paged(tokens):
    return TARGET, PagedKVPool(TARGET, 20, 4).new_sequence()


def adapted(family):
    def make(tokens):
        model = HuggingFaceModel(build(family))
        return model, model.new_cache(40)

    return make


CACHES = {
    "dense": dense,
    "paged": paged,
    "gpt2": adapted("gpt2"),
    "sliding window": adapted("mistral, window"),
    "one key head": lambda tokens: ((m := tiny_llama(4, n_kv_heads=1)), m.new_cache(40)),
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("keep", [0, 1, 7, 8, 11])
def test_a_crop_that_keeps_everything_or_crops_the_wrong_axis(kind, keep):
    """0 kept is nothing kept, not `[:-0]`; what follows a crop is what follows a prefill of what was kept."""
    model, cache = CACHES[kind]([])
    tokens, after = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], torch.tensor([8, 9])
    model.forward(torch.tensor(tokens), cache)
    cache.truncate(keep)
    assert cache.length == keep
    fresh = model.new_cache(40)
    if keep:
        model.forward(torch.tensor(tokens[:keep]), fresh, slice(0))
    for _ in range(2):  # and again: a cache that was reset instead would have lost its length
        torch.testing.assert_close(model.forward(after, cache), model.forward(after, fresh), rtol=1e-9, atol=1e-9)
        cache.truncate(keep)
        fresh.truncate(keep)


class WritesIn(Drafter):
    """Writes its drafts into the list that it was handed, as a loop over tokens does without a thought."""

    def propose(self, tokens, gamma, source):
        for _ in range(gamma):
            tokens.append((tokens[-1] * 5 + 1) % 13)
        return Proposal(tokens[-gamma:])

    def commit(self, tokens):
        tokens.clear()


@pytest.mark.parametrize(
    "drafter",
    [WritesIn(), NGramDrafter(), DraftModelDrafter(DRAFT), DraftModelDrafter(TARGET), Proposes([4, 4, 4])],
    ids=["writes into its argument", "lookup", "model", "itself", "constant"],
)
def test_rejected_tokens_that_stay_in_the_token_buffer(drafter):
    """After each round the buffer is the prompt and what was emitted; no round adds more than it drafted plus one."""
    for gamma, temperature in itertools.product((1, 3, 6), (0.0, 1.0)):
        engine, emitted = SpeculativeEngine(TARGET, drafter, gamma), []

        def note(run, round_, emitted=emitted):
            emitted += round_.kept
            assert run.tokens == PROMPT + emitted
            assert len(round_.kept) == round_.verdict.accepted + 1 <= len(round_.proposal.tokens) + 1

        result = engine.generate(PROMPT, 20, temperature=temperature, seed=2, on_round=note)
        assert result.tokens == emitted and (temperature or emitted == PLAIN)


@pytest.mark.parametrize("gamma", [1, 4])
def test_a_drafter_shared_by_two_engines_and_by_streams_in_flight(gamma):
    """A cache or an index that belonged to the drafter, and not to a generation, would be rolled back by another."""
    for drafter in (DraftModelDrafter(DRAFT), NGramDrafter()):
        engines = [SpeculativeEngine(TARGET, drafter, gamma), SpeculativeEngine(tiny_llama(5), drafter, gamma)]
        calls = [([1, 2, 1], 15), ([4, 5, 4, 5], 11)]
        alone = [engine.generate(*call).tokens for engine, call in zip(engines, calls, strict=True)]
        together = [[], []]
        streams = [engine.stream(*call) for engine, call in zip(engines, calls, strict=True)]
        for chunks in itertools.zip_longest(*streams):
            for tokens, chunk in zip(together, chunks, strict=True):
                tokens += chunk.tokens if chunk else []
        assert together == alone


@pytest.mark.parametrize("where", ["on_round", "gamma", "processor"])
def test_a_generation_inside_a_generation(where):
    def inside(*arguments):
        engine.generate([7, 8], 3)
        return arguments[-1]

    engine = SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), 3)
    outer = SpeculativeEngine(TARGET, engine.drafter, (lambda stats: inside(3)) if where == "gamma" else 3)
    options = {"on_round": {"on_round": inside}, "processor": {"processors": [inside]}, "gamma": {}}[where]
    assert outer.generate(PROMPT, 20, **options).tokens == PLAIN


# Stopping.


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_on_behind_an_end_token(temperature):
    """Whatever follows it is never kept: the draft model is not asked, nor a processor that knows no such context."""

    def knows_no_end(ids, scores):
        assert 2 not in ids[0, 1:].tolist()
        return scores

    target, draft = always([0.2, 0.3, 0.5]), always([0.1, 0.1, 0.8])
    for seed in range(20):
        proposals = []
        SpeculativeEngine(target, DraftModelDrafter(draft), 6).generate(
            [2],
            12,
            temperature=temperature,
            seed=seed,
            eos_token_id=2,
            min_new_tokens=3,
            processors=[knows_no_end],
            on_round=lambda run, round_, seen=proposals: seen.append(round_.proposal.tokens),
        )
        assert all(2 not in tokens[:-1] for tokens in proposals)


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_block_that_ends_where_the_draft_drew_an_end_token_keeps_the_distribution(rule):
    """Its length depends on what was drawn; the draft often ends, the target seldom, and the other way round."""
    for p, q in (([0.5, 0.4, 0.1], [0.2, 0.1, 0.7]), ([0.2, 0.1, 0.7], [0.5, 0.4, 0.1])):
        target, draft = always(p), always(q)

        def distribution_of(engine):
            return enumerate_distribution(
                lambda source: tuple(engine.generate([0], 3, source=source, temperature=1.0, eos_token_id=2).tokens)
            )

        found, expected = (
            distribution_of(SpeculativeEngine(target, DraftModelDrafter(draft), 2, rule)),
            distribution_of(SpeculativeEngine(target)),
        )
        assert found.keys() == expected.keys()
        assert all(found[x] == pytest.approx(expected[x], abs=1e-12) for x in expected)


@pytest.mark.parametrize("gamma", [0, 1, 4, 9])
def test_a_draft_that_wants_to_end_all_the_time(gamma):
    """Its end tokens are rejected, one a round, and end nothing."""
    target, draft = always([0.6, 0.3, 0.1]), always([0.1, 0.2, 0.7])
    result = SpeculativeEngine(target, DraftModelDrafter(draft), gamma).generate([0], 9, eos_token_id=2)
    assert (result.tokens, result.finish_reason) == ([0] * 9, "length")


SPECIAL = byte_level_tokenizer()
SPECIAL.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
SPECIAL.add_tokens(["<tool>"])


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("logprobs", [True, False])
def test_a_stop_string_that_is_a_special_token_is_passed_over(gamma, logprobs):
    """Special tokens have no text in which it could be found. The text is what came before; ids and counts agree."""
    ids = SPECIAL.encode("hi é<|end|>more<tool>x")
    model = speller(ids, len(SPECIAL), [0], tokenizer=SPECIAL)
    for stop, text in (("<|end|>", "hi é"), (["zz", "<|end|>"], "hi é"), ("<tool>", "hi émore")):
        stream = SpeculativeEngine(model, Knows(ids, [0]), gamma).stream([0], len(ids), stop=stop, logprobs=logprobs)
        shown = [chunk.text for chunk in stream]
        result = stream.result
        last = SPECIAL.convert_tokens_to_ids("<|end|>" if text == "hi é" else "<tool>")
        assert (result.text, result.finish_reason) == (text, "stop") and "".join(shown) == text
        assert result.tokens == ids[: ids.index(last) + 1] and result.stats.emitted == len(result.tokens)
        assert not logprobs or len(result.logprobs) == len(result.tokens)
    whole = SpeculativeEngine(model, Knows(ids, [0]), gamma).generate([0], len(ids), stop="end")
    assert (whole.text, whole.finish_reason) == ("hi émore<tool>x", "length")


@pytest.mark.parametrize("gamma", [0, 2, 5, 20])
def test_a_stop_string_that_is_the_whole_output(gamma):
    """It completes with the last token of the budget: nothing is shown, and the reason is the stop."""
    tokenizer = Pieces([b"", b"a", b"b", b"ab"])
    script = [1, 2, 3, 3]
    model = speller(script, 4, [0], tokenizer=tokenizer)
    engine = SpeculativeEngine(model, Knows(script, [0]), gamma)
    result = engine.generate([0], 4, stop="ababab")
    assert (result.text, result.tokens, result.finish_reason) == ("", script, "stop")
    almost = engine.generate([0], 4, stop="abababa")
    assert (almost.text, almost.tokens, almost.finish_reason) == ("ababab", script, "length")


@pytest.mark.parametrize("drafter", [None, NGramDrafter(), DraftModelDrafter(DRAFT), DraftModelDrafter(TARGET)])
def test_a_budget_of_one_and_a_prompt_that_leaves_room_for_one(drafter):
    engine = SpeculativeEngine(TARGET, drafter, 8)
    assert engine.generate(PROMPT, 1, eos_token_id=PLAIN[0]).finish_reason == "eos"
    assert engine.generate(PROMPT, 1).tokens == PLAIN[:1]
    full = engine.generate([1] * 95, 20)
    assert (len(full.tokens), full.finish_reason, full.stats.drafted) == (1, "length", 0)
    assert engine.generate(PROMPT, 20, min_new_tokens=50, eos_token_id=PLAIN[0]).finish_reason == "length"


def test_a_gamma_far_beyond_the_budget_and_the_context():
    for gamma in (21, 500):
        result = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), gamma).generate(PROMPT, 20)
        assert (result.tokens, result.stats.rounds, result.stats.drafted) == (PLAIN, 1, 19)


@pytest.mark.parametrize("eos", [np.int64(PLAIN[4]), torch.tensor(PLAIN[4]), torch.tensor([PLAIN[4]])])
def test_an_end_token_that_is_no_python_int(eos):
    """An id that compares equal but hashes otherwise would never be found."""
    result = SpeculativeEngine(TARGET, NGramDrafter(), 3).generate(PROMPT, 20, eos_token_id=eos)
    assert result.tokens == PLAIN[: PLAIN.index(PLAIN[4]) + 1] and result.finish_reason == "eos"


def test_a_rule_that_emits_a_tensor_passes_over_the_end_token():
    """A tensor of an id is no id: it would never be found among the end tokens."""

    def rule(proposal, p, source):
        return Verdict(0, p[0].argmax(), "bonus" if not proposal.tokens else "corrected")

    with pytest.raises(ValueError, match=r"emitted tensor\(1\): a token is an int from 0 to 1"):
        SpeculativeEngine(always([0.2, 0.8]), NGramDrafter(), rule=rule).generate([0], 5, eos_token_id=1)


@pytest.mark.parametrize(
    ("verdict", "error", "match"),
    [
        ((0, 1), TypeError, "returned tuple: a rule returns Verdict"),
        (Verdict(2, 1, "bonus"), ValueError, "accepted 2 of 1 drafts: give an int from 0 to 1"),
        (Verdict(-1, 1, "corrected"), ValueError, "accepted -1"),
        (Verdict(True, 1, "bonus"), ValueError, "accepted True"),
        (Verdict(0, 2, "corrected"), ValueError, "emitted 2: a token is an int from 0 to 1"),
        (Verdict(0, -1, "corrected"), ValueError, "emitted -1"),
    ],
)
def test_a_rule_of_the_users_own_that_returns_junk(verdict, error, match):
    engine = SpeculativeEngine(always([0.2, 0.8]), Proposes([1]), 3, lambda proposal, p, source: verdict)
    with pytest.raises(error, match=match):
        engine.generate([0], 5)


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_a_processor_that_writes_into_the_ids_of_a_block(gamma):
    """Penalties of the rows behind it would be those of another context."""

    def writes(ids, scores):
        ids[:] = 0
        return scores

    options = {"repetition_penalty": 1.8, "frequency_penalty": 0.9, "processors": [writes]}
    plain = SpeculativeEngine(TARGET).generate(PROMPT, 20, **options)
    for drafter in (DraftModelDrafter(TARGET), DraftModelDrafter(DRAFT), NGramDrafter()):
        assert SpeculativeEngine(TARGET, drafter, gamma).generate(PROMPT, 20, **options).tokens == plain.tokens


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_penalties_that_count_what_was_rejected(gamma):
    """Spied: at each place of the output the distribution is that of the plain run, whatever was rejected before."""
    options = {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.8, "presence_penalty": 0.3}

    def distributions(drafter, gamma, script):
        seen = {}

        def rule(proposal, p, source):
            for i in range(len(proposal.tokens) + 1):
                wanted = script[len(seen)]
                seen[len(seen)] = p[i]
                if len(seen) == len(script) or i == len(proposal.tokens) or proposal.tokens[i] != wanted:
                    break
            return Verdict(i, wanted, "bonus" if i == len(proposal.tokens) else "corrected")

        SpeculativeEngine(TARGET, drafter, gamma, rule).generate(PROMPT, len(script), **options)
        return torch.stack(list(seen.values()))

    script = [4, 4, 1, 4, 1, 1, 12, 0, 4, 4, 1, 12]
    plain = distributions(None, 0, script)
    for drafter in (Proposes([4] * 6), Knows(script, PROMPT, wrong=(2, 5, 6)), NGramDrafter()):
        torch.testing.assert_close(distributions(drafter, gamma, script), plain, rtol=1e-9, atol=1e-12)


# Vocabularies.


class Wide(ScriptedModel):
    """A large vocabulary: nearly all mass on a few ids."""

    def __init__(self, vocab, heads):
        super().__init__(lambda tokens: [], vocab)
        self.row = torch.full((vocab,), 0.1 / (vocab - len(heads)), dtype=torch.float64)
        for i, p in heads.items():
            self.row[i] = 0.9 * p
        self.row = (self.row / self.row.sum()).log()

    def forward(self, tokens, cache, rows=slice(None)):
        cache.tokens.extend(tokens.tolist())
        return self.row.expand(len(range(len(tokens))[rows]), -1)


@pytest.mark.parametrize(("draft_size", "target_size"), [(151_936, 152_064), (152_064, 151_936)])
def test_padded_sizes_of_one_tokenizer(draft_size, target_size):
    """151,936 and 152,064, both ways round: it runs, and the ids that only the target has stay reachable."""
    last = target_size - 1
    target = Wide(target_size, {5: 0.3, last: 0.7})
    draft = Wide(draft_size, {5: 0.5, draft_size - 1: 0.5})
    engine = SpeculativeEngine(target, DraftModelDrafter(draft), 2)
    assert engine.generate([1], 6).tokens == [last] * 6
    proposals = []

    def note(run, round_):
        if round_.proposal.tokens:
            proposals.extend(round_.proposal.tokens)
            q = round_.proposal.distribution(0, like=target.row)
            assert q.shape == (target_size,)
            assert not q[draft_size:].any() and q[5] == round_.proposal.probs[0, 5]

    sampled = engine.generate([1], 40, temperature=1.0, seed=3, on_round=note)
    assert 5 in sampled.tokens and last in sampled.tokens
    assert max(proposals) < min(draft_size, target_size)


# Statistics of the engine.


def test_rates_under_a_gamma_that_changes():
    """Accepted over what was really drafted, not over gamma times rounds."""
    gammas, rounds = [0, 5, 2, 7, 1], []
    engine = SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), lambda stats: gammas[stats.rounds % 5])
    for prompt in (PROMPT, [1, 1, 1], [7]):
        rounds.clear()
        stats = engine.generate(
            prompt, 30, temperature=1.0, seed=1, on_round=lambda run, round_: rounds.append(round_)
        ).stats
        drafted = sum(len(r.proposal.tokens) for r in rounds)
        accepted = sum(r.verdict.accepted for r in rounds)
        assert (stats.drafted, stats.accepted) == (drafted, accepted) and drafted < sum(gammas) * len(rounds) / 5
        assert stats.accepted_per_drafted == accepted / drafted
        assert stats.drafted > stats.tested >= stats.accepted > 0


def test_the_acceptance_length_with_and_without_the_targets_own_token():
    """Two names for two numbers, each an average over all rounds, the last and shorter one too."""
    stats = SpeculativeEngine(TARGET, DraftModelDrafter(TARGET), 5).generate(PROMPT, 15).stats
    assert stats.rounds == 3 and stats.origins.count("accepted") == 12
    assert (stats.accepted / stats.rounds, stats.tokens_per_round) == (4.0, 5.0)
    nothing = SpeculativeEngine(TARGET).generate(PROMPT, 0).stats
    assert (nothing.rounds, nothing.tokens_per_round) == (0, 0.0)


# Forms of input that a user of transformers brings along.


def test_a_bare_transformers_model_is_told_how_it_becomes_one_of_ours():
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=1, n_positions=16)
    bare = transformers.GPT2LMHeadModel(config)
    for make in (
        lambda: SpeculativeEngine(bare),
        lambda: SpeculativeEngine(TARGET, DraftModelDrafter(bare)),
        lambda: SpeculativeEngine("smollm2-135m"),
        lambda: SpeculativeEngine(None),
    ):
        with pytest.raises(TypeError, match=r"load_model\(name\) returns, or HuggingFaceModel\(model, tokenizer\)"):
            make()


def test_what_a_tokenizer_returns_is_a_prompt():
    prompt = SPECIAL.encode("abc")
    script = SPECIAL.encode(" and so on")
    model = speller(script, len(SPECIAL), prompt, tokenizer=SPECIAL)
    engine = SpeculativeEngine(model, Knows(script, prompt))
    forms = ["abc", SPECIAL("abc"), SPECIAL("abc", return_tensors="pt"), SPECIAL("abc", return_tensors="np")]
    forms += [np.array([prompt]), list(torch.tensor(prompt)), [np.int32(i) for i in prompt]]
    for form in forms:
        assert engine.generate(form, 7).text == " and so"
    with pytest.raises(ValueError, match="one prompt at a time"):
        engine.generate(SPECIAL(["abc", "abd"], return_tensors="pt"), 7)
    with pytest.raises(TypeError, match="a list of chat messages"):
        engine.generate({"role": "user", "content": "abc"}, 7)


@pytest.mark.parametrize("text", ["", "abc"])
def test_text_for_a_model_without_a_tokenizer_is_refused(text):
    with pytest.raises(ValueError, match="no tokenizer"):
        SpeculativeEngine(TARGET).generate(text, 3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Proposal([True]), "proposed True: a token is an int"),
        (lambda: Proposal([np.int64(1)]), r"proposed np.int64\(1\)"),
        (lambda: Proposal([1], np.full((1, 13), 1 / 13)), "probs is of type ndarray: give a tensor"),
        (lambda: Proposal([1], [[1 / 13] * 13]), "probs is of type list"),
    ],
)
def test_a_drafter_that_hands_over_no_ints_or_no_tensor(make, match):
    class Says(Drafter):
        def propose(self, tokens, gamma, source):
            return make()

    with pytest.raises((ValueError, TypeError), match=match):
        SpeculativeEngine(TARGET, Says(), 3).generate(PROMPT, 5)
