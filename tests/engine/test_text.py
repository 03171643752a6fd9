"""Text from tokens, piece by piece: the text of the whole, whatever the tokens are, and the same work for each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.spelling import byte_fallback_tokenizer, byte_level_tokenizer, word_piece_tokenizer
from tokenizers import AddedToken

from specdec_ref.engine.text import TextStream

TOKENIZERS = [byte_level_tokenizer(), byte_fallback_tokenizer(), word_piece_tokenizer()]


class Counting:
    """A tokenizer that notes how many tokens it was ever given at once, and in all."""

    def __init__(self, tokenizer):
        self._tokenizer, self.longest, self.total = tokenizer, 0, 0
        self.added_tokens_decoder = tokenizer.added_tokens_decoder

    def decode(self, ids, **options):
        self.longest, self.total = max(self.longest, len(ids)), self.total + len(ids)
        return self._tokenizer.decode(ids, **options)


def streamed(tokenizer, ids):
    """The text as it was shown, which is also the stream's own."""
    stream, shown = TextStream(tokenizer), ""
    for i, token in enumerate(ids):
        stream.push(token)
        shown += stream.show(final=i == len(ids) - 1)
    assert shown == stream.text
    return shown


def whole(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte level", "byte fallback", "word pieces"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_text_piece_by_piece_is_the_text_of_the_whole(tokenizer, data):
    """Where a token's text depends on the one before it (leading spaces, continued words, special tokens) as well.

    A broken character takes back the good one before it where bytes are the fallback; no stream can follow that, so
    there it only has to agree with itself.
    """
    pieces = [[i] for i in range(len(tokenizer)) if not tokenizer.convert_ids_to_tokens(i).startswith("<0x")]
    for character in "" if tokenizer is TOKENIZERS[2] else "😀é\n":
        pieces += [tokenizer.encode(character, add_special_tokens=False)] * 20
    ids = [i for piece in data.draw(st.lists(st.sampled_from(pieces), max_size=8)) for i in piece]
    ids = ids[: len(ids) - data.draw(st.integers(0, 3))]
    shown, want = streamed(tokenizer, ids), whole(tokenizer, ids)
    assert shown == want or (tokenizer is TOKENIZERS[1] and "\ufffd" in want and "\ufffd" in shown)


BYTES = byte_level_tokenizer()
BYTES.add_special_tokens({"additional_special_tokens": ["<pad>"]})
BYTES.add_tokens([AddedToken("<think>", special=False, normalized=False)])


def byte_ids(data):
    """Tokens of these bytes."""
    tokens = BYTES.backend_tokenizer.model
    return [tokens.token_to_id(c) for c in _alphabet(data)]


def _alphabet(data):
    """GPT-2's characters for bytes: printable ones stand for themselves, the rest are numbered from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return "".join(chr(b) if b in printable else chr(256 + others.index(b)) for b in data)


SPECIAL = [BYTES.convert_tokens_to_ids("<pad>"), BYTES.convert_tokens_to_ids("<eos>")]
THINK = BYTES.convert_tokens_to_ids("<think>")


def test_bytes_are_spelled_as_the_tokenizer_does():
    assert whole(BYTES, byte_ids("aé😀\n".encode())) == "aé😀\n"


@given(
    st.lists(st.sampled_from([*byte_ids(b"\xe2\x82\xac\xf0\x9f\x98\x80\xff\xc3\xa9A "), *SPECIAL, THINK]), max_size=80)
)
@settings(max_examples=600, deadline=None)
def test_any_bytes_give_the_text_of_the_whole(ids):
    """Whole characters, broken ones, stray bytes and special tokens, in any order."""
    tokenizer = Counting(BYTES)
    assert streamed(tokenizer, ids) == whole(BYTES, ids)
    assert tokenizer.longest <= 24


@pytest.mark.parametrize(
    "ids",
    [
        byte_ids(b"\x80"),
        byte_ids(b"\xe2"),
        byte_ids(b"\xf0\x9f\x98"),
        byte_ids(b"\xff"),
        SPECIAL,
        [*byte_ids(b"\xe2"), *SPECIAL],
        [*byte_ids(b"a\xf0"), *SPECIAL],
    ],
    ids=["a stray byte", "a first byte", "three quarters", "no byte of any", "special", "mixed", "mixed with text"],
)
def test_text_that_never_completes_costs_the_same_for_each_token(ids):
    tokenizer, ids = Counting(BYTES), (ids * 2000)[:2000]
    assert streamed(tokenizer, ids) == whole(BYTES, ids)
    assert tokenizer.longest <= 24 and tokenizer.total < 100 * len(ids)


@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer, word_piece_tokenizer])
def test_no_letter_is_lost_where_a_tokenizer_would_clean_up_spaces(make):
    """transformers 4 turns " 'e" into "'e" and " n't" into "n't" for all tokenizers, transformers 5 on request."""
    tokenizer = make()
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    if make is byte_level_tokenizer:
        ids = byte_ids(b"use 'ello 'orld . I do n't , 's 'm 're ' x ' !")
    else:
        words = (
            ["▁", "▁a", "b", ".", "▁the", "\n"] if make is byte_fallback_tokenizer else ["the", "'", "s", ".", "n't"]
        )
        ids = [tokenizer.convert_tokens_to_ids(word) for word in words * 3]
    want = whole(tokenizer, ids)
    assert streamed(tokenizer, ids) == want
    assert make is not byte_level_tokenizer or want == "use 'ello 'orld . I do n't , 's 'm 're ' x ' !"
