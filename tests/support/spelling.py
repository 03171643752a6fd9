"""Models that spell a given text, drafters that know it, and tokenizers without a hub: for tests of stops and text."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_ref.interfaces import Drafter, Proposal
from specdec_ref.models.scripted import ScriptedModel, TokenCache


class Pieces:
    """A tokenizer whose tokens are byte strings that you choose; the ids in `special` have no text."""

    def __init__(self, pieces: list[bytes], special: tuple[int, ...] = ()) -> None:
        self.pieces, self.special = pieces, special

    def decode(self, ids: list[int], skip_special_tokens: bool = False, **_: Any) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in self.special)]
        return b"".join(self.pieces[i] for i in kept).decode("utf-8", errors="replace")

    def get_vocab(self) -> dict[str, int]:
        return {repr(piece): i for i, piece in enumerate(self.pieces)}


class BoundedCache(TokenCache):
    """Refuses more tokens than it was made for, as a preallocated cache does."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.tokens = _Bounded(capacity)


class _Bounded(list[int]):
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def extend(self, items: Any) -> None:
        super().extend(items)
        assert len(self) <= self.capacity, f"{len(self)} tokens in a cache for {self.capacity}"


class Strict(ScriptedModel):
    """A scripted model with the caches of a real one: full is full."""

    def new_cache(self, capacity: int) -> TokenCache:
        assert self.max_context is None or capacity <= self.max_context
        return BoundedCache(capacity)


def speller(script: list[int], vocab_size: int, prompt: list[int], share: float = 1.0, **options: Any) -> Strict:
    """Says `script` after `prompt`, each token with probability `share`; behind its end token 0."""

    def distribution(tokens: tuple[int, ...]) -> list[float]:
        place = len(tokens) - len(prompt)
        right = script[place] if 0 <= place < len(script) else 0
        return [share if i == right else (1 - share) / (vocab_size - 1) for i in range(vocab_size)]

    return Strict(distribution, vocab_size, **options)


class Knows(Drafter):
    """Proposes `script`, from where the output stands; `wrong` gives places at which it errs."""

    def __init__(self, script: list[int], prompt: list[int], wrong: tuple[int, ...] = ()) -> None:
        self.script = [(x + 1) % 2 if i in wrong else x for i, x in enumerate(script)]
        self.start = len(prompt)

    def propose(self, tokens: Any, gamma: int, source: Any) -> Proposal:
        place = len(tokens) - self.start
        return Proposal(self.script[place : place + gamma])


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes as GPT-2 writes them, and an end token with id 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's: a word carries its space, the first space of a text is dropped, unknown characters are bytes."""
    words = ["▁", "▁a", "b", "▁b", "a", ".", "▁the", "\n"]
    vocab = [(token, 0.0) for token in ("<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    """As BERT's: ## continues a word, and punctuation takes back the space before it."""
    pieces = ["[UNK]", "play", "##ing", ".", ",", "'", "s", "##😀", "the", "##s", "n't"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
