"""Lookup drafting: continue as the text itself continued the last time (prompt lookup, Saxena 2023).

No model, no weights: it pays where the output repeats its input, as in rewriting, summaries and code edits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

from specdec_ref.interfaces import CausalLM, Drafter, Proposal
from specdec_ref.sampling import RandomSource, Sampling

COUNTED = 16  # tokens of a match, where fewer would do for the length of the draft


class NGramDrafter(Drafter):
    """Find the last `max_ngram`..`min_ngram` tokens earlier in the sequence, longest match first.

    What followed the latest such place is proposed; the distribution is one-hot, since nothing is drawn. Each token is
    indexed once, so a generation costs time linear in its length.
    trust: how many tokens are proposed for each token that the two places share before them. A single word that came
        before says little about what follows, a shared sentence a lot. None always proposes what is asked for.
    Raises ValueError unless 1 <= min_ngram <= max_ngram and trust is above 0.
    Source: Saxena 2023 (prompt lookup decoding); length by match as in Oliaro et al. 2024 (arXiv 2411.04975).
    """

    draws = False

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, trust: float | None = 1.0) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"min_ngram {min_ngram}, max_ngram {max_ngram}: need 1 <= min_ngram <= max_ngram")
        if trust is not None and not trust > 0:
            raise ValueError(f"trust is {trust}: give a number above 0, or None to propose what is asked for")
        self.trust = trust
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        self._follower: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its last occurrence
        self._indexed = 0

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> NGramDrafter:
        fresh = copy.copy(self)
        fresh._follower, fresh._indexed = {}, 0
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """What followed the latest match, up to `gamma` tokens; nothing where there is no match."""
        self._index(tokens)
        for n in range(min(self.max_ngram, len(tokens)), self.min_ngram - 1, -1):
            follower = self._follower.get(tuple(tokens[-n:]))
            if follower is not None:
                # A match that reaches into the text's end goes round: what it proposed is read on.
                period = len(tokens) - follower
                enough = max(COUNTED, math.ceil(gamma / (self.trust or 1)))
                shared = self._shared(tokens, follower, n, enough)
                if self.trust is not None:
                    gamma = min(gamma, int(self.trust * shared) or 1)
                return Proposal([tokens[follower + i % period] for i in range(gamma)], match=shared)
        return Proposal([])

    def _shared(self, tokens: Sequence[int], follower: int, known: int, most: int) -> int:
        """How many tokens before `follower` equal the last ones, from `known` on; `most` are enough."""
        shared = known
        while shared < min(most, follower) and tokens[follower - shared - 1] == tokens[-shared - 1]:
            shared += 1
        return shared

    def _index(self, tokens: Sequence[int]) -> None:
        """Enter every n-gram that has a follower by now; committed tokens never change."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for n in range(self.min_ngram, min(self.max_ngram, end) + 1):
                self._follower[tuple(tokens[end - n : end])] = end
        self._indexed = len(tokens)
