"""Where an output ends, and what of its text is shown when."""

import itertools
import math
import threading

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.spelling import (
    Knows,
    Pieces,
    Strict,
    byte_level_tokenizer,
    speller,
)
from transformers import TextIteratorStreamer, TextStreamer

from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine

PROMPT = [0, 1]
SCRIPT = [5, 2, 4, 3, 6, 2, 5, 4, 3, 6, 6, 2, 4]
GAMMAS = [0, 1, 2, 3, 5, 8]


def run(script=SCRIPT, gamma=4, vocab=8, wrong=(), prompt=PROMPT, **options):
    model = speller(script, vocab, prompt, share=0.9)
    return SpeculativeEngine(model, Knows(script, prompt, wrong), gamma).generate(prompt, **options)


def watch(engine, prompt, *args, **options):
    """All chunks of a stream, and its Generation."""
    stream = engine.stream(prompt, *args, **options)
    return list(stream), stream.result


# End tokens.


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("i", range(len(SCRIPT)))
def test_eos_inside_a_block_ends_the_output_at_every_offset(i, gamma):
    """Token 7 comes at place i, in the accepted part, as the bonus, or as the correction of a wrong draft."""
    script = [*SCRIPT[:i], 7, *SCRIPT[i:]]
    for wrong in ((), (i,), (i - 1,)):
        result = run(script, gamma, wrong=wrong, max_new_tokens=20, eos_token_id=7)
        assert (result.tokens, result.finish_reason) == (script[: i + 1], "eos")
        assert result.stats.emitted == i + 1


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("eos", [[3, 6], (6, 3), {3, 6, 7}, frozenset([3])])
def test_the_first_of_several_eos_ids_ends_the_output(gamma, eos):
    result = run(gamma=gamma, max_new_tokens=12, eos_token_id=eos)
    assert (result.tokens, result.finish_reason) == (SCRIPT[:4], "eos")


def test_eos_ids_are_the_targets_own_unless_given():
    model = speller(SCRIPT, 8, PROMPT, eos_token_ids=[4])
    engine = SpeculativeEngine(model, Knows(SCRIPT, PROMPT))
    assert engine.generate(PROMPT, 9).tokens == SCRIPT[:3]
    assert engine.generate(PROMPT, 9, eos_token_id=3).tokens == SCRIPT[:4]
    assert engine.generate(PROMPT, 9, eos_token_id=[]).tokens == SCRIPT[:9]
    assert engine.generate(PROMPT, 9, eos_token_id=None).tokens == SCRIPT[:9]


@pytest.mark.parametrize("eos", [8, -1, [3, 8], [3, -1], 1.5, [None], "x", True, [[3]]])
def test_an_eos_that_is_no_token_is_refused(eos):
    with pytest.raises(ValueError, match="eos_token_id"):
        run(max_new_tokens=3, eos_token_id=eos)


def test_eos_in_the_prompt_ends_nothing():
    assert run(prompt=[7, 1, 7], max_new_tokens=5, eos_token_id=7).tokens == SCRIPT[:5]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_an_eos_that_only_the_draft_proposed_ends_nothing(gamma):
    model = speller(SCRIPT, 8, PROMPT)
    for places in itertools.combinations(range(6), 2):
        draft = [7 if i in places else x for i, x in enumerate(SCRIPT)]
        result = SpeculativeEngine(model, Knows(draft, PROMPT), gamma).generate(PROMPT, 10, eos_token_id=7)
        assert (result.tokens, result.finish_reason) == (SCRIPT[:10], "length")


def test_a_sampled_eos_ends_the_output_too():
    model = Strict(lambda tokens: [0.3, 0.3, 0.4], 3)
    for seed in range(30):
        result = SpeculativeEngine(model, DraftModelDrafter(model), 4).generate(
            [0], 30, temperature=1.0, seed=seed, eos_token_id=2
        )
        assert result.finish_reason == "eos" and result.tokens.index(2) == len(result.tokens) - 1


# Budgets.


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("budget", range(12))
def test_the_budget_is_exact(gamma, budget):
    """0, 1, gamma, gamma + 1 and all around them; the strict cache has no room for a token too many."""
    for wrong in ((), (0,), (1,), (2, 5)):
        result = run(gamma=gamma, wrong=wrong, max_new_tokens=budget)
        assert (result.tokens, result.finish_reason) == (SCRIPT[:budget], "length")
        assert result.stats.emitted == budget
        assert result.stats.drafted <= max(0, budget - 1) + gamma * len(wrong)


@pytest.mark.parametrize("budget", [-1, 1.5, None, "3", True])
def test_a_budget_without_meaning_is_refused(budget):
    with pytest.raises(ValueError, match="max_new_tokens"):
        run(max_new_tokens=budget)


def test_at_the_last_token_of_the_budget_eos_and_stop_are_still_named():
    assert run(max_new_tokens=4, eos_token_id=3).finish_reason == "eos"
    assert run(max_new_tokens=5, eos_token_id=3).finish_reason == "eos"
    assert run(max_new_tokens=3, eos_token_id=3).finish_reason == "length"


@pytest.mark.parametrize("used", [4_090, 4_091, 4_092, 4_094, 4_095])
def test_a_context_nearly_full_is_filled_and_no_more(used):
    prompt = [0] * used
    model = speller(SCRIPT, 8, prompt, max_context=4_096)
    for drafter in (Knows(SCRIPT, prompt), NGramDrafter(), DraftModelDrafter(model)):
        result = SpeculativeEngine(model, drafter, 5).generate(prompt, 100)
        assert (result.tokens, result.finish_reason) == (SCRIPT[: 4_096 - used], "length")


def test_a_full_context_is_refused():
    model = speller(SCRIPT, 8, [0], max_context=4)
    with pytest.raises(ValueError, match="no room for a new token"):
        SpeculativeEngine(model).generate([0] * 4, 1)


@pytest.mark.parametrize("gamma", [1, 3, 5])
@pytest.mark.parametrize("draft_context", [1, 2, 3, 5, 6, 9, 40])
def test_behind_the_drafts_context_it_goes_on_without_drafting(draft_context, gamma):
    target = speller(SCRIPT, 8, PROMPT)
    draft = speller(SCRIPT, 8, PROMPT, max_context=draft_context)
    result = SpeculativeEngine(target, DraftModelDrafter(draft), gamma).generate(PROMPT, 12)
    assert result.tokens == SCRIPT[:12]
    assert result.stats.acceptance_rate == (1.0 if result.stats.drafted else 0.0)
    assert (result.stats.drafted > 0) == (draft_context >= len(PROMPT))


# Lookup.


@pytest.mark.parametrize("prompt", [[1, 1, 1], [1], [1, 1], [2, 1, 2, 1]])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_first_lookup_token_is_verified_as_well(prompt, gamma):
    """The prompt asks for a token that the target never gives."""
    model = speller(SCRIPT, 8, prompt)
    assert SpeculativeEngine(model, NGramDrafter(), gamma).generate(prompt, 8).tokens == SCRIPT[:8]


def test_lookup_with_no_eos_configured():
    prompt = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    model = speller([9, 10, 11, 7, 8, 9], 12, prompt)
    result = SpeculativeEngine(model, NGramDrafter(3), 3).generate(prompt, 6, eos_token_id=None)
    assert result.tokens == [9, 10, 11, 7, 8, 9] and result.stats.accepted > 0


# Stop strings.

TOKENS = Pieces([b"", b"a", b"b", b"ab", b"ba", b"bba", b"c", b"ca"])
TEXT = TOKENS.decode(SCRIPT)


def run_text(script=SCRIPT, gamma=4, wrong=(), tokenizer=TOKENS, budget=13, share=0.9, **options):
    model = speller(script, len(tokenizer.pieces), PROMPT, share=share, tokenizer=tokenizer)
    return watch(SpeculativeEngine(model, Knows(script, PROMPT, wrong), gamma), PROMPT, budget, **options)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_stop_string_ends_the_output_at_every_offset_and_across_tokens(gamma):
    """Every substring of the text as a stop string: text is cut before it, ids and log-probabilities behind it."""
    for begin, length in itertools.product(range(len(TEXT)), range(1, 7)):
        stop = TEXT[begin : begin + length]
        cut = TEXT.index(stop)
        n_tokens = next(n for n in range(1, 14) if stop in TOKENS.decode(SCRIPT[:n]))
        chunks, result = run_text(gamma=gamma, wrong=(begin % 5,), stop=stop, logprobs=True)
        assert (result.tokens, result.text, result.finish_reason) == (SCRIPT[:n_tokens], TEXT[:cut], "stop")
        assert "".join(chunk.text for chunk in chunks) == result.text
        assert [t for chunk in chunks for t in chunk.tokens] == result.tokens
        assert len(result.logprobs) == n_tokens == result.stats.emitted


def test_of_several_stop_strings_the_first_completed_one_cuts():
    def text(*stop):
        return run_text(stop=stop)[1].text

    assert TEXT.startswith("bbabbaabc")
    assert text("abc", "ba") == "b"
    assert text("aabc", "abc", "bc") == "bbabb"  # they complete at once: nothing of any of them is shown
    assert text("zzz") == TEXT
    assert text() == TEXT


def test_text_before_the_output_is_not_searched():
    prompt = [1, 2, 6]
    model = speller([6, 1, 6, 2, 6, 1], 8, prompt, tokenizer=TOKENS)
    result = SpeculativeEngine(model).generate(prompt, 6, stop=["abc", "cca"])
    assert (result.text, result.finish_reason) == ("cacbca", "length")


@pytest.mark.parametrize("stop", ["", ["a", ""], [None], [1], [b"a"]])
def test_a_stop_that_is_no_text_is_refused(stop):
    with pytest.raises(ValueError, match="stop is"):
        run_text(stop=stop)


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(ValueError, match="tokenizer"):
        run(max_new_tokens=3, stop="a")


def test_an_eos_whose_text_completes_a_stop_string_is_an_eos_and_the_text_is_cut():
    _, result = run_text([1, 2, 6], stop="bc", eos_token_id=6)
    assert (result.finish_reason, result.tokens, result.text) == ("eos", [1, 2, 6], "a")


def test_special_tokens_have_no_text_and_stop_strings_go_across_them():
    tokenizer = Pieces([b"", b"a", b"b", b"<eos>"], special=(3,))
    _, result = run_text([1, 3, 2, 1, 1], tokenizer=tokenizer, stop="ba", eos_token_id=None)
    assert (result.text, result.tokens) == ("a", [1, 3, 2, 1])
    _, result = run_text([1, 2, 3, 1], tokenizer=tokenizer, eos_token_id=3)
    assert (result.text, result.tokens, result.finish_reason) == ("ab", [1, 2, 3], "eos")


# What a stream shows.

PIECES = [
    b"a",
    b"b",
    b"\xf0",
    b"\x9f",
    b"\x98",
    b"\x80",
    b"a\xf0\x9f",
    b"\x98\x80b",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    b"\n",
]
MANY = Pieces(PIECES)


@given(
    script=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=14),
    stops=st.lists(st.text("ab😀é\n", min_size=1, max_size=4), max_size=3),
    gamma=st.integers(0, 6),
    wrong=st.lists(st.integers(0, 12), max_size=3),
)
@example(script=[0, 2, 3, 4, 5, 1], stops=["😀"], gamma=0, wrong=[])
@example(script=[0, 1, 0, 1, 1, 0], stops=["abb"], gamma=2, wrong=[])
@settings(max_examples=150, deadline=None)
def test_a_stream_never_takes_back_what_it_showed(script, stops, gamma, wrong):
    """No part of a stop string that later completes, no half character; at the end all of it, once."""
    chunks, result = run_text(script, gamma, tuple(wrong), MANY, len(script), stop=stops)
    whole = MANY.decode(result.tokens)
    expected = min([whole.index(s) for s in stops if s in whole], default=len(whole))
    if result.finish_reason == "stop":
        assert not any(s in MANY.decode(result.tokens[:-1]) for s in stops)
        first = min((whole.index(s) + len(s), whole.index(s)) for s in stops if s in whole)
        assert result.text == whole[: first[1]]
    else:
        assert result.text == whole and expected == len(whole)
    shown = ""
    for i, chunk in enumerate(chunks):
        shown += chunk.text
        assert result.text.startswith(shown)
        done = sum(len(c.tokens) for c in chunks[: i + 1])
        so_far = MANY.decode(result.tokens[:done])
        assert so_far.startswith(shown) or i == len(chunks) - 1
    assert shown == result.text


def test_an_emoji_is_shown_when_its_last_byte_has_come():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("a😀é!")
    chunks, result = watch(SpeculativeEngine(speller(ids, 257, [0], tokenizer=tokenizer)), [0], len(ids))
    assert [chunk.text for chunk in chunks] == ["a", "", "", "", "😀", "", "é", "!"]
    assert result.text == "a😀é!"


def test_an_output_that_ends_inside_a_character_says_so_at_the_end_only():
    """Its text is what the tokenizer makes of the ids, with the replacement character, once nothing can follow."""
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("a😀")[:3]
    chunks, result = watch(SpeculativeEngine(speller(ids, 257, [0], tokenizer=tokenizer)), [0], 3)
    assert [chunk.text for chunk in chunks] == ["a", "", "\ufffd"]
    assert result.text == tokenizer.decode(ids)


# transformers' streamers.


class Collects:
    def __init__(self):
        self.values, self.ends = [], 0

    def put(self, value):
        self.values.append(value)

    def end(self):
        self.ends += 1


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_streamer_gets_what_transformers_generate_would_give_it(gamma):
    """The prompt [1, n], then tensors [1] of one token each, on the CPU, then the end, once."""
    streamer = Collects()
    result = run(gamma=gamma, max_new_tokens=9, streamer=streamer)
    prompt, *tokens = streamer.values
    assert prompt.tolist() == [PROMPT] and all(t.shape == (1,) and t.dtype == torch.long for t in tokens)
    assert [t.item() for t in tokens] == result.tokens and streamer.ends == 1


@pytest.mark.parametrize("gamma", [0, 4])
def test_text_streamer_prints_the_text(gamma, capsys):
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("Hello 😀\nwörld, 你好 ") + [256]
    model = speller(ids, 257, PROMPT, tokenizer=tokenizer, eos_token_ids=[256])
    engine = SpeculativeEngine(model, Knows(ids, PROMPT), gamma)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    for _ in range(2):  # the same streamer serves again
        result = engine.generate(PROMPT, 50, streamer=streamer)
        assert result.text == "Hello 😀\nwörld, 你好 " and result.finish_reason == "eos"
        assert capsys.readouterr().out == result.text + "\n"


@pytest.mark.parametrize("gamma", [0, 4])
def test_text_iterator_streamer_from_another_thread(gamma):
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("one two 😀 three")
    model = speller(ids, 257, PROMPT, tokenizer=tokenizer)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=300)
    engine = SpeculativeEngine(model, Knows(ids, PROMPT), gamma)
    thread = threading.Thread(target=engine.generate, args=(PROMPT, len(ids)), kwargs={"streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert "".join(pieces) == "one two 😀 three" and len([p for p in pieces if p]) > 3


# Log-probabilities.


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(
    "options", [{}, dict(temperature=0.5, seed=1, top_k=3), dict(repetition_penalty=1.5, bad_words=[[2]])]
)
def test_logprobs_are_those_of_the_bare_target_whatever_the_options(gamma, options):
    """log softmax of the logits at each emitted token, at temperature 1, recomputed here without a cache."""
    model = Strict(lambda tokens: [(1 + i * tokens[-1] + len(tokens)) % 5 + 1 for i in range(6)], 6)
    engine = SpeculativeEngine(model, NGramDrafter(), gamma)
    result = engine.generate([2, 3, 2, 3], 15, logprobs=True, **options)
    history, expected = [2, 3, 2, 3], []
    for token in result.tokens:
        weights = model.distribution(tuple(history))
        expected.append(math.log(weights[token] / sum(weights)))
        history.append(token)
    assert result.logprobs == pytest.approx(expected, abs=1e-12)
    assert engine.generate([2, 3, 2, 3], 15, **options).logprobs is None


def test_logprobs_of_nothing_are_empty():
    assert run(max_new_tokens=0, logprobs=True).logprobs == []


def test_what_a_stop_cut_off_is_in_no_count():
    """Drafts 0 to 2 are right, number 1 is the end token, number 3 is rejected: two were tested and accepted."""
    stats = run(gamma=4, wrong=(3,), max_new_tokens=12, eos_token_id=2).stats
    assert (stats.rounds, stats.drafted, stats.tested, stats.accepted, stats.corrected, stats.bonus) == (
        1,
        4,
        2,
        2,
        0,
        0,
    )
    assert stats.tested_by_position == stats.accepted_by_position == [1, 1, 0, 0]
    assert stats.origins == ["accepted"] * 2 and stats.acceptance_rate == 1.0 and stats.tokens_per_round == 2.0
