"""Tokens to text, piece by piece: never a partial character, nor text that a stop string would later remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_ref.interfaces import Origin

INCOMPLETE = "\ufffd"  # how a tokenizer shows the first bytes of an unfinished character
CHARACTER = 4  # bytes of the longest character, so at most as many tokens
PENDING = 2 * CHARACTER  # tokens whose text is decoded again and again because it may not be finished


class TextStream:
    """Collects tokens; knows the text so far, how much of it may be shown, and whether a stop string has come.

    The text is what the tokenizer decodes all tokens to, without special tokens and without cleaning up spaces (which
    transformers up to version 4 does for some tokenizers, at the cost of characters that belong to the text).
    tokenizer: a transformers tokenizer, or None, then all text is "".
    stop: strings that end the text; it is cut before the one that completes first. Special tokens have no text, but a
        stop string that is a special token's own string ends the text where that token comes.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._added = getattr(tokenizer, "added_tokens_decoder", {})
        self._stop_ids = {i for i, token in self._added.items() if token.special and str(token) in stop}
        self._tokens: list[int] = []
        # Text of tokens[:done] is finished. Decoding begins one piece earlier, at start, because a token's text
        # can depend on the text before it.
        self._finished = ""
        self._start = self._done = 0
        self._shown = 0

    def push(self, token: int) -> None:
        """Take in one token; afterwards `stopped` says whether it completed a stop string."""
        if self._tokenizer is None:
            return
        self.stopped |= token in self._stop_ids
        if token in self._added and not self._decode([token]):
            return  # a special token
        self._tokens.append(token)
        piece = self._new_piece()
        searched = len(self.text)
        if piece.endswith(INCOMPLETE):
            if len(self._tokens) - self._done > PENDING:
                piece = self._finish_some(piece)
            self.text = self._finished + piece.rstrip(INCOMPLETE)
        elif piece:
            self.text = self._finished = self._finished + piece
            self._start, self._done = self._done, len(self._tokens)
        self._cut_at_stop(max(0, searched - self._longest + 1))

    def show(self, final: bool = False) -> str:
        """Text that was not shown yet and can no longer be taken back; with `final` all the rest."""
        if final and self._tokenizer is not None and not self.stopped:
            self.text = self._finished + self._new_piece()
        end = len(self.text)
        if not (final or self.stopped):
            end -= self._held_back()
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _new_piece(self) -> str:
        """Text of the tokens after the finished ones."""
        old, new = self._tokens[self._start : self._done], self._tokens[self._start :]
        return self._decode(new)[len(self._decode(old)) :]

    def _finish_some(self, piece: str) -> str:
        """Count the older ones of many tokens that never complete a character as finished; the rest of their text.

        What comes can only complete the last few. The cut must not lie within a character: it does not where both
        sides, decoded on their own, give the text of the whole.
        """
        whole = self._decode(self._tokens[self._start :])
        for cut in range(len(self._tokens) - CHARACTER, self._done, -1):
            before = self._decode(self._tokens[self._start : cut])
            if before + self._decode(self._tokens[cut:]) == whole:
                self._finished += before[len(whole) - len(piece) :]
                self._start, self._done = self._done, cut
                return whole[len(before) :]
        return piece

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _cut_at_stop(self, begin: int) -> None:
        found = [(at + len(s), at) for s in self._stop if (at := self.text.find(s, begin)) >= 0]
        if found:
            self.text = self.text[: min(found)[1]]
            self.stopped = True

    def _held_back(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for n in range(min(self._longest - 1, len(self.text)), 0, -1):
            if any(s.startswith(self.text[-n:]) for s in self._stop):
                return n
        return 0


def pieces(tokens: Sequence[int], origins: Sequence[Origin], tokenizer: Any) -> list[tuple[str, Origin]]:
    """(text, origin) for each token; a token that only begins a character has its text with the next one."""
    text = TextStream(tokenizer)
    result = []
    for token, origin in zip(tokens, origins, strict=True):
        text.push(token)
        result.append((text.show(), origin))
    rest = text.show(final=True)
    return [*result[:-1], (result[-1][0] + rest, result[-1][1])] if result else []
