"""Each sampling option against transformers' own class, and the whole chain against transformers' own order.

Distributions in float64 are compared; a fault in a single option, in a row's context or in the order shows in each
test.
"""

import itertools
import math

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as hf

from specdec_ref import DraftModelDrafter, NGramDrafter, RandomSource, SpeculativeEngine
from specdec_ref.interfaces import Drafter, Proposal
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.sampling import Sampling, sample_seed

VOCAB, EOS = 23, (3, 7)
CONTEXT = [4, 4, 9, 1, 4, 22, 7, 9, 11, 4, 9, 9]
PROMPT_LENGTH = 5


def rows(n=4, seed=0, vocab=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, vocab, generator=generator, dtype=torch.float64) * 3


def bound(**options):
    return Sampling(**options).bound(PROMPT_LENGTH, VOCAB, EOS)


def hf_distribution(processors, logits, tokens=CONTEXT, temperature=1.0):
    """Row by row: transformers' processors, given as plain decoding would call them, then the softmax."""
    distributions = []
    for i, row in enumerate(logits):
        context = torch.tensor([tokens[: len(tokens) - (len(logits) - 1) + i]])
        scores = row[None].clone()
        for processor in processors:
            scores = processor(context, scores)
        distributions.append(torch.softmax(scores, -1)[0])
    return torch.stack(distributions)


BIAS = {1: 2.5, 4: -3.0, (9, 9): 4.0, (4, 9): -2.0, (7, 9, 11): 1.5, (2, 2): 9.0}
BAD = [[4], [9, 9], [11, 4, 9, 1], [22, 7], [3]]
SAME_AS = {
    "temperature": (dict(temperature=0.7), [hf.TemperatureLogitsWarper(0.7)]),
    "hot": (dict(temperature=1.5), [hf.TemperatureLogitsWarper(1.5)]),
    "top_k": (dict(top_k=5), [hf.TopKLogitsWarper(5)]),
    "top_k beyond the vocabulary": (dict(top_k=99), [hf.TopKLogitsWarper(99)]),
    "top_p": (dict(top_p=0.8), [hf.TopPLogitsWarper(0.8)]),
    "small top_p keeps one": (dict(top_p=1e-9), [hf.TopPLogitsWarper(1e-9)]),
    "min_p": (dict(min_p=0.07), [hf.MinPLogitsWarper(0.07)]),
    "min_p of one": (dict(min_p=1.0), [hf.MinPLogitsWarper(1.0)]),
    "typical_p": (dict(typical_p=0.6), [hf.TypicalLogitsWarper(0.6)]),
    "typical_p, small": (dict(typical_p=0.05), [hf.TypicalLogitsWarper(0.05)]),
    "repetition_penalty": (dict(repetition_penalty=1.7), [hf.RepetitionPenaltyLogitsProcessor(1.7)]),
    "repetition_penalty below one": (dict(repetition_penalty=0.6), [hf.RepetitionPenaltyLogitsProcessor(0.6)]),
    "logit_bias": (
        dict(logit_bias=BIAS),
        [hf.SequenceBiasLogitsProcessor({k if isinstance(k, tuple) else (k,): v for k, v in BIAS.items()})],
    ),
    "bad_words": (dict(bad_words=BAD), [hf.NoBadWordsLogitsProcessor(BAD, list(EOS))]),
    "min_new_tokens": (
        dict(min_new_tokens=6),
        [hf.MinNewTokensLengthLogitsProcessor(PROMPT_LENGTH, 6, list(EOS))],
    ),
    "processors": (
        dict(
            processors=LogitsProcessorList([hf.NoRepeatNGramLogitsProcessor(2), hf.SuppressTokensLogitsProcessor([1])])
        ),
        [hf.NoRepeatNGramLogitsProcessor(2), hf.SuppressTokensLogitsProcessor([1])],
    ),
}


@pytest.mark.parametrize("name", SAME_AS)
@pytest.mark.parametrize("seed", range(3))
def test_each_option_gives_the_distribution_of_transformers_own_class(name, seed):
    options, processors = SAME_AS[name]
    logits = rows(seed=seed)
    sampling = bound(**{"temperature": 1.0, **options})
    ours = torch.cat([sampling.probs(logits[i : i + 1], CONTEXT[: len(CONTEXT) - 3 + i]) for i in range(4)])
    assert torch.allclose(ours, hf_distribution(processors, logits), rtol=1e-12, atol=1e-15)
    if name != "top_k beyond the vocabulary":
        assert not torch.allclose(ours, torch.softmax(logits, -1))


@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.4, 1.0, 1.8]),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0.2, 0.99),
    min_p=st.none() | st.floats(0.001, 0.5),
    typical_p=st.none() | st.floats(0.1, 0.99),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.4]),
    bias=st.sampled_from([None, BIAS]),
    bad=st.sampled_from([None, BAD]),
    min_new_tokens=st.none() | st.integers(0, 9),
    custom=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_together_they_apply_in_transformers_order(
    seed, temperature, top_k, top_p, min_p, typical_p, repetition_penalty, bias, bad, min_new_tokens, custom
):
    logits, n = rows(seed=seed), 4
    own = [hf.NoRepeatNGramLogitsProcessor(2), lambda ids, scores: scores * 0.9 + 0.01 * ids[:, -1:]] if custom else []
    config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        sequence_bias={k if isinstance(k, tuple) else (k,): v for k, v in bias.items()} if bias else None,
        bad_words_ids=bad,
        min_new_tokens=min_new_tokens,
        eos_token_id=list(EOS),
    )
    config._eos_token_tensor = torch.tensor(EOS)
    theirs = HFModel()._get_logits_processor(config, PROMPT_LENGTH, logits_processor=LogitsProcessorList(own))
    ours = bound(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        logit_bias=bias or {},
        bad_words=bad or [],
        min_new_tokens=min_new_tokens or 0,
        processors=own,
    )
    tokens = [t for t in CONTEXT if t not in EOS]  # transformers never goes on behind an end token
    expected = hf_distribution(theirs, logits, tokens)
    distribution = ours.probs(logits, tokens)
    reached = next(
        (i + 1 for i in range(n - 1) if expected[i, tokens[len(tokens) - n + 1 + i]] == 0), n
    )  # behind a forbidden draft nothing is kept, so its rows may be anything
    assert torch.allclose(distribution[:reached], expected[:reached], rtol=1e-9, atol=1e-13)


class HFModel(transformers.GenerationMixin):
    """Just enough of a model for transformers to build its list of processors."""

    config = transformers.LlamaConfig(vocab_size=VOCAB)


# Presence and frequency penalties: the OpenAI API's formula, which transformers does not have.


def test_presence_and_frequency_count_the_output_and_never_the_prompt():
    logits = rows()
    distribution = bound(temperature=1.0, presence_penalty=0.8, frequency_penalty=0.3).probs(logits, CONTEXT)
    for i, row in enumerate(logits):
        output = CONTEXT[PROMPT_LENGTH : len(CONTEXT) - 3 + i]
        expected = [mu - output.count(j) * 0.3 - (output.count(j) > 0) * 0.8 for j, mu in enumerate(row.tolist())]
        assert torch.allclose(distribution[i], torch.tensor(expected, dtype=torch.float64).softmax(-1), rtol=1e-12)


def test_presence_and_frequency_come_right_after_the_repetition_penalty():
    """As in vLLM: dividing first and subtracting then, not the other way round."""
    logits = rows(1)
    distribution = bound(temperature=1.0, repetition_penalty=2.0, presence_penalty=1.0).probs(logits, CONTEXT)
    row = hf.RepetitionPenaltyLogitsProcessor(2.0)(torch.tensor([CONTEXT]), logits.clone())
    for token in set(CONTEXT[PROMPT_LENGTH:]):
        row[0, token] -= 1.0
    assert torch.allclose(distribution, row.softmax(-1))


# Blocks: row by row as plain decoding would.

HISTORY = dict(
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=-0.7,
    logit_bias=BIAS,
    bad_words=[[9, 4], [1]],
    min_new_tokens=6,
)


def test_penalties_over_a_block_count_each_token_once_and_no_draft_ahead():
    """Logits of a block equal those of single rows in their own contexts."""
    sampling, logits = bound(temperature=1.0, **HISTORY), rows()
    block = sampling.probs(logits, [*CONTEXT[:-3], 5, 6, 5])
    for i in range(4):
        single = sampling.probs(logits[i : i + 1], [*CONTEXT[:-3], 5, 6, 5][: len(CONTEXT) - 3 + i])
        assert torch.equal(block[i], single[0])


def test_probs_changes_neither_logits_nor_tokens():
    logits, tokens = rows(), list(CONTEXT)

    def grabs(ids, scores):
        scores[:] = 0
        ids[:] = 0
        return scores

    before = logits.clone()
    bound(**HISTORY, processors=[grabs]).probs(logits, tokens)
    assert torch.equal(logits, before) and tokens == CONTEXT


@pytest.mark.parametrize("min_new_tokens", range(6))
@pytest.mark.parametrize("gamma", [0, 1, 2, 4])
def test_min_new_tokens_masks_eos_on_the_right_row_of_a_block(min_new_tokens, gamma):
    """The end token is the likeliest everywhere: it comes as soon as it may, at every offset in a block."""
    model = ScriptedModel(lambda tokens: [0.1, 0.2, 0.0, 0.7] if len(tokens) % 2 else [0.2, 0.1, 0.0, 0.7], 4, [3])
    engine = SpeculativeEngine(model, NGramDrafter(), gamma)
    result = engine.generate([0, 1, 0, 1], 8, min_new_tokens=min_new_tokens)
    assert result.finish_reason == "eos" and len(result.tokens) == min_new_tokens + 1
    assert 3 not in result.tokens[:-1]


def test_min_new_tokens_holds_for_every_eos_id():
    model = ScriptedModel(lambda tokens: [0.1, 0.2, 0.3, 0.4], 4, [2, 3])
    assert SpeculativeEngine(model).generate([0], 4, min_new_tokens=2).tokens == [1, 1, 3]
    assert SpeculativeEngine(model).generate([0], 4, min_new_tokens=2, eos_token_id=[3]).tokens == [2, 2, 3]
    assert SpeculativeEngine(model).generate([0], 4, min_new_tokens=2, eos_token_id=None).tokens == [3] * 4


# Faults that other engines had with a distribution.


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
def test_temperature_reaches_the_distribution(temperature):
    logits = rows(3)
    assert torch.allclose(Sampling(temperature).probs(logits), torch.softmax(logits / temperature, -1))


@pytest.mark.parametrize("temperature", [-1.0, -0.0001, math.nan, math.inf, 1e-300, 1e300, "1", None, [1.0]])
def test_a_temperature_without_meaning_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        Sampling(temperature)
    with pytest.raises(ValueError, match="temperature"):
        SpeculativeEngine(ScriptedModel(lambda t: [0.5, 0.5], 2)).generate([0], 2, temperature=temperature)


@pytest.mark.parametrize("options", [{"logit_bias": {VOCAB: 1.0}}, {"bad_words": [[2, VOCAB]]}])
def test_the_first_id_after_the_vocabulary_is_outside(options):
    inside = {"logit_bias": {VOCAB - 1: 1.0}, "bad_words": [[2, VOCAB - 1]]}
    Sampling(**{name: inside[name] for name in options}).bound(0, VOCAB, ())
    with pytest.raises(ValueError, match=f"names token {VOCAB}: the vocabulary has ids 0 to {VOCAB - 1}"):
        Sampling(**options).bound(0, VOCAB, ())


@pytest.mark.parametrize("mass, stay", [(0.25, [1]), (0.26, [0, 1]), (0.75, [0, 1]), (0.76, [0, 1, 2, 3])])
def test_typical_tokens_are_enough_where_they_hold_the_mass_exactly(mass, stay):
    """The entropy is 1.75 bits, so the surprises 2, 1, 3 and 3 bits lie nearest in this order."""
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    assert Sampling(1.0, typical_p=mass).probs(logits)[0].nonzero().flatten().tolist() == stay


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_extreme_temperatures_leave_a_distribution(temperature, dtype):
    logits = torch.tensor([[80.0, 1.0, -90.0, -math.inf]], dtype=dtype)
    p = Sampling(temperature, top_p=0.9, min_p=0.01, typical_p=0.9).probs(logits)
    assert torch.isfinite(p).all() and p.sum() == pytest.approx(1) and p[0, 3] == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.2}, {"top_k": 2}, {"top_p": 0.5}])
def test_a_row_of_nan_is_an_error_and_no_token(temperature, bad, dtype, options):
    for whole_row in (False, True):
        logits = rows(3).to(dtype)
        logits[1, slice(None) if whole_row else 5] = bad
        with pytest.raises(ValueError, match="NaN or infinity in 1 of 3 rows"):
            bound(temperature=temperature, **options).probs(logits, CONTEXT)
    with pytest.raises(ValueError, match="NaN or infinity"):
        bound(temperature=temperature, **options).probs(torch.full((1, VOCAB), -math.inf), CONTEXT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_tie_goes_to_the_lowest_index(dtype):
    for a, b in itertools.combinations(range(0, 49_152, 7_001), 2):
        logits = torch.zeros(2, 49_152, dtype=dtype)
        logits[:, [a, b]] = 3.0
        assert Sampling().probs(logits).argmax(-1).tolist() == [a, a]
        assert bound(repetition_penalty=1.1).probs(logits, CONTEXT).argmax(-1).tolist() == [a, a]
        assert Sampling(1.0, top_p=1e-6).probs(logits).argmax(-1).tolist() == [a, a]


def test_a_tie_goes_to_the_lowest_index_in_every_way_of_decoding():
    model = ScriptedModel(lambda tokens: [0.1, 0.4, 0.1, 0.4], 4)
    for drafter in (None, NGramDrafter(), DraftModelDrafter(model)):
        for prompt in ([3, 3, 3], [1, 1, 1]):
            assert SpeculativeEngine(model, drafter).generate(prompt, 6).tokens == [1] * 6


def test_top_p_keeps_the_token_that_crosses_the_border():
    p = torch.tensor([[0.05, 0.5, 0.1, 0.35]])
    assert (Sampling(1.0, top_p=0.9).probs(p.log()) > 0).tolist() == [[False, True, True, True]]
    assert (Sampling(1.0, top_p=0.85 - 1e-6).probs(p.log()) > 0).tolist() == [[False, True, False, True]]
    assert torch.allclose(Sampling(1.0, top_p=0.9).probs(p.log())[0, 1], torch.tensor(0.5 / 0.95))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_on_a_large_vocabulary_is_the_smallest_set(dtype):
    """The head of the distribution is looked at first; wide distributions, ties and narrow ones give what a full sort
    gives.
    """
    generator = torch.Generator().manual_seed(5)
    for scale, quantum in ((0.0, 1), (0.2, 1), (1.0, 0.5), (3.0, 0.125), (6.0, 1e-3)):
        logits = (torch.randn(3, 20_000, generator=generator, dtype=dtype) * scale / quantum).round() * quantum
        kept = Sampling(1.0, top_p=0.9).probs(logits) > 0
        p = torch.softmax(logits.double(), -1)
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        for row in range(3):
            size = int(kept[row].sum())
            assert (
                abs(size - int((ordered[row].cumsum(-1) < 0.9 - 1e-6).sum()) - 1) <= 1 + 1e-5 / ordered[row, size - 1]
            )
            assert set(index[row, :size].tolist()) == set(kept[row].nonzero()[:, 0].tolist())


# The draft may see a smaller vocabulary.


def test_every_option_works_on_a_draft_with_a_smaller_vocabulary():
    """Its distribution is that of the target's options, restricted: ids it does not have are no error and change
    nothing.
    """
    logits, small = rows(), 12
    wide = torch.cat([logits[:, :small], torch.full((4, VOCAB - small), -math.inf, dtype=torch.float64)], -1)
    processors = [
        hf.SequenceBiasLogitsProcessor({(20,): 2.0, (2,): 1.0}),
        lambda ids, scores: scores + torch.arange(VOCAB),
    ]
    sampling = bound(temperature=1.0, processors=processors, **HISTORY)
    tokens = [4, 4, 9, 0, 4, 22, 22, 9, 11, 4]
    assert torch.allclose(sampling.probs(logits[:, :small], tokens), sampling.probs(wide, tokens)[:, :small])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_all_that_the_draft_knows_is_forbidden_it_only_does_not_draft(temperature):
    draft, target = ScriptedModel(lambda t: [0.5, 0.5], 2), ScriptedModel(lambda t: [0.3, 0.3, 0.4], 3)
    draft.tokenizer = target.tokenizer = Words()
    result = SpeculativeEngine(target, DraftModelDrafter(draft)).generate(
        [0], 6, temperature=temperature, bad_words=[[0], [1]]
    )
    assert result.tokens == [2] * 6 and result.stats.drafted == 0


class Words:
    def get_vocab(self):
        return {"a": 0, "b": 1}

    def decode(self, ids, **_):
        return "".join("abc"[i] for i in ids)


# Dead ends and processors of the user's own.


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_token_is_an_error_that_says_so(temperature):
    engine = SpeculativeEngine(ScriptedModel(lambda t: [0.5, 0.5], 2), NGramDrafter())
    with pytest.raises(ValueError, match=r"forbidden.*bad_words"):
        engine.generate([0, 0], 4, temperature=temperature, bad_words=[[0], [1]])
    assert engine.generate([0, 0], 4).tokens == [0] * 4


class Proposes(Drafter):
    """Always the same tokens."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def propose(self, tokens, gamma, source):
        return Proposal(list(self.tokens[:gamma]))


def test_a_dead_end_behind_a_rejected_draft_is_no_error():
    """Plain decoding never comes to a context behind token 1, so speculation must not fail there either."""
    model = ScriptedModel(lambda t: [0.6, 0.4], 2)
    options = dict(bad_words=[[1, 0], [1, 1]])
    for drafter in (None, Proposes(1, 1, 1), Proposes(0, 1, 0)):
        assert SpeculativeEngine(model, drafter).generate([0], 5, **options).tokens == [0] * 5


def test_a_processor_never_sees_a_context_that_it_forbade():
    """A grammar need not know what to do behind a token that it excludes, whatever was drafted."""

    def alternates(ids, scores):
        parity = (ids[0].diff() % 2 == 1).all() if ids.shape[1] > 1 else True
        assert parity, f"the grammar was broken: {ids.tolist()}"
        scores = scores.clone()
        scores[0, ids[0, -1] % 2 :: 2] = -math.inf
        return scores

    model = ScriptedModel(lambda t: [0.1, 0.2, 0.3, 0.4], 4)
    expected = SpeculativeEngine(model).generate([0], 6, processors=[alternates]).tokens
    assert expected == [3, 2, 3, 2, 3, 2]
    for draft in itertools.product(range(4), repeat=2):
        assert SpeculativeEngine(model, Proposes(*draft)).generate([0], 6, processors=[alternates]).tokens == expected


@pytest.mark.parametrize(
    "returned, match",
    [
        (None, "returned NoneType"),
        (torch.zeros(4), r"returned \[4\].*shape \[1, 4\]"),
        (torch.full((1, 4), math.nan), "processors or logit_bias made logits with NaN"),
        (torch.full((1, 4), math.inf), "processors or logit_bias made logits with NaN"),
    ],
)
def test_a_processor_that_returns_junk_is_named(returned, match):
    engine = SpeculativeEngine(ScriptedModel(lambda t: [0.25] * 4, 4))
    with pytest.raises(ValueError, match=match):
        engine.generate([0], 4, processors=[lambda ids, scores: returned])


# Wrong input.


@pytest.mark.parametrize(
    "options",
    [
        dict(top_k=-1), dict(top_k=2.5), dict(top_k=True), dict(top_p=0.0), dict(top_p=1.1), dict(top_p=math.nan),
        dict(min_p=-0.1), dict(min_p=1.5), dict(typical_p=0.0), dict(typical_p=2), dict(repetition_penalty=0),
        dict(repetition_penalty=-1.0), dict(repetition_penalty=math.nan), dict(presence_penalty=math.inf),
        dict(frequency_penalty="1"), dict(min_new_tokens=-1), dict(min_new_tokens=1.5), dict(bad_words=[[]]),
        dict(bad_words=[3]), dict(bad_words=5), dict(bad_words=[[-1]]), dict(bad_words=[[1.5]]), dict(logit_bias=[1]),
        dict(logit_bias={1: math.nan}), dict(logit_bias={1: math.inf}), dict(logit_bias={(): 1.0}),
        dict(logit_bias={"a": 1.0}), dict(logit_bias={-1: 1.0}), dict(processors=[3]), dict(processors=3),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_without_meaning_is_refused_by_its_name(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name} is .*: give "):
        Sampling(**options)
    with pytest.raises(ValueError, match=f"^{name} is .*: give "):
        SpeculativeEngine(ScriptedModel(lambda t: [0.5, 0.5], 2)).generate([0], 1, **options)


@pytest.mark.parametrize(
    "options", [dict(bad_words=[[9, 1]]), dict(logit_bias={9: 1.0}), dict(logit_bias={(1, 9): 1.0})]
)
def test_ids_outside_the_vocabulary_are_refused(options):
    with pytest.raises(ValueError, match="token 9: the vocabulary has ids 0 to 3"):
        SpeculativeEngine(ScriptedModel(lambda t: [0.25] * 4, 4)).generate([0], 1, **options)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("do_sample", "temperature"), ("temprature", "did you mean temperature"), ("num_return_sequences", "n"),
        ("bad_words_ids", "bad_words"), ("stop_strings", "stop"), ("max_length", "max_new_tokens"),
        ("eos", "eos_token_id"), ("prompt_length", ""), ("xyzzy", "help"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_refused_with_the_name_meant(name, hint):
    with pytest.raises(TypeError, match=f"no option '{name}'.*{hint}"):
        SpeculativeEngine(ScriptedModel(lambda t: [0.5, 0.5], 2)).generate([0], 1, **{name: 3})


def test_none_leaves_an_option_off():
    names = (
        "top_k top_p min_p typical_p logit_bias repetition_penalty presence_penalty bad_words min_new_tokens processors"
    )
    model = ScriptedModel(lambda t: [0.25, 0.75], 2)
    assert SpeculativeEngine(model).generate([0], 2, **dict.fromkeys(names.split())).tokens == [1, 1]


# Seeds and samples.


def coin(tokens):
    return [0.3, 0.3, 0.4]


@pytest.mark.parametrize("gamma", [0, 3])
def test_same_seed_same_text_another_seed_another_text(gamma):
    engine = SpeculativeEngine(ScriptedModel(coin, 3), NGramDrafter(), gamma)

    def sample(seed):
        return engine.generate([0], 40, temperature=1.0, seed=seed).tokens

    assert sample(5) == sample(5)
    assert len({tuple(sample(seed)) for seed in range(20)}) == 20
    assert sample(None) != sample(None)


def test_n_samples_are_independent_repeatable_and_begin_with_the_single_one():
    engine = SpeculativeEngine(ScriptedModel(coin, 3), NGramDrafter(), 3)
    single = engine.generate([0], 40, temperature=1.0, seed=5)
    several = engine.generate_many([0], 4, 40, temperature=1.0, seed=5)
    assert several[0].tokens == single.tokens
    assert len({tuple(g.tokens) for g in several}) == 4
    assert [g.tokens for g in engine.generate_many([0], 4, 40, temperature=1.0, seed=5)] == [g.tokens for g in several]
    assert [g.tokens for g in engine.generate_many([0], 2, 40, temperature=1.0, seed=5)] == [
        g.tokens for g in several[:2]
    ]
    neighbours = engine.generate_many([0], 4, 40, temperature=1.0, seed=6)
    assert not {tuple(g.tokens) for g in several} & {tuple(g.tokens) for g in neighbours}
    assert len({sample_seed(seed, i) for seed in range(50) for i in range(50)}) == 2500


def test_n_samples_draw_one_after_the_other_from_a_given_source():
    engine, source = SpeculativeEngine(ScriptedModel(coin, 3)), RandomSource(5)
    one_by_one = [engine.generate([0], 9, temperature=1.0, source=source).tokens for _ in range(3)]
    together = engine.generate_many([0], 3, 9, temperature=1.0, source=RandomSource(5))
    assert [g.tokens for g in together] == one_by_one


@pytest.mark.parametrize(
    "options",
    [dict(n=0, temperature=1), dict(n=2), dict(n=-1), dict(n=1.5, temperature=1)],
)
def test_n_without_meaning_is_refused(options):
    with pytest.raises(ValueError, match=r"^n is"):
        SpeculativeEngine(ScriptedModel(coin, 3)).generate_many([0], max_new_tokens=2, **options)


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match=r"^seed is"):
        SpeculativeEngine(ScriptedModel(coin, 3)).generate([0], 2, seed=seed)


def test_greedy_asks_for_the_argmax_and_not_for_a_ratio():
    """q(a) = .2 and p(a) = .3 would pass p/q, but p(b) = .5 is what greedy decoding gives."""
    model = ScriptedModel(lambda t: [0.3, 0.5, 0.2], 3)

    class Sampled(Drafter):
        def propose(self, tokens, gamma, source):
            return Proposal([0] * gamma, torch.tensor([[0.2, 0.3, 0.5]] * gamma))

    assert SpeculativeEngine(model, Sampled(), 3).generate([0], 6).tokens == [1] * 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_argmax_is_what_probs_puts_its_mass_on(dtype):
    """The first of equals; float64 is not rounded on the way; what is not finite is refused."""
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, [7, 40, 200]] = 9.0
    logits[1, 30], logits[1, 20] = 9 + 1e-12, 9.0
    assert Sampling().argmax(logits) == Sampling().probs(logits).argmax(-1).tolist()
    assert Sampling().argmax(logits)[0] == 7
    for odd in (math.nan, math.inf):
        broken = logits.clone()
        broken[3, 5] = odd
        with pytest.raises(ValueError, match="NaN or infinity in 1 of 6 rows"):
            Sampling().argmax(broken)
    with pytest.raises(ValueError, match="NaN or infinity"):
        Sampling().argmax(torch.full_like(logits, -math.inf))
