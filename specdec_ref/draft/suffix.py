"""Suffix drafting: continue as this text, and the process's earlier answers, mostly continued (Oliaro et al. 2024).

Lookup copies the latest match. Suffix decoding counts: of all the places where the last few tokens stood before, how
many went on with which token? That says what to propose, and how far the guess is worth going.

Source: arXiv 2411.04975. A trie of bounded depth stands here for its suffix tree: shorter, and linear in time too.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence

from specdec_ref.interfaces import CausalLM, Drafter, Features, Proposal
from specdec_ref.sampling import RandomSource, Sampling

DEPTH = 8  # tokens of the longest context that is counted
ROOT, NOBODY = 0, -1


class SuffixCounts:
    """How often each run of up to `depth` tokens was followed by which token.

    A run is a node of a trie, a number. `ends` holds the nodes of the runs that end at the newest token, by length, so
    that a token costs depth + 1 steps however long the text is. Memory is about 1 KB per token.
    """

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        self._node: dict[tuple[int, int], int] = {}  # (node, token) -> the run that is one token longer
        self._seen = [0]  # by node: how often the run came
        self._followed = [0]  # by node: how often a token came after it
        self._likely = [NOBODY]  # by node: the token that came most often, the latest of equals
        self.ends = [ROOT]

    def add(self, token: int) -> None:
        """Count one more token of the text."""
        ends = [ROOT]
        for node in self.ends[: self.depth + 1]:
            longer = self._node.get((node, token))
            if longer is None:
                longer = self._node[node, token] = len(self._seen)
                self._seen.append(0)
                self._followed.append(0)
                self._likely.append(NOBODY)
            self._seen[longer] += 1
            self._followed[node] += 1
            if self._seen[longer] >= self.times(node, self._likely[node]):
                self._likely[node] = token
            ends.append(longer)
        self.ends = ends

    def new_text(self) -> None:
        """What comes next does not follow what came last."""
        self.ends = [ROOT]

    def step(self, ends: Sequence[int], token: int) -> list[int]:
        """The runs that end at `token`, after those in `ends`: as `add`, and nothing is counted."""
        found = [ROOT]
        for node in ends[: self.depth + 1]:
            longer = self._node.get((node, token))
            if longer is None:  # then no longer run that ends here is known either
                break
            found.append(longer)
        return found

    def times(self, node: int, token: int) -> int:
        """How often `token` came after the run."""
        longer = self._node.get((node, token))
        return 0 if longer is None else self._seen[longer]

    def likeliest(self, ends: Sequence[int], match: int) -> tuple[int, int, int]:
        """(token, times, of) after the run of `match` tokens in `ends`: it followed that often, of so many."""
        if match >= len(ends):
            return NOBODY, 0, 0
        node = ends[match]
        return self._likely[node], self.times(node, self._likely[node]), self._followed[node]


class Answers:
    """Earlier answers, the newest `memory` tokens of them, and their counts.

    Where they grow beyond that the older half is forgotten and the rest counted anew, so a token costs the same on
    average however many answers come.
    """

    def __init__(self, memory: int, depth: int) -> None:
        self.memory = memory
        self.tokens = 0
        self.counts = SuffixCounts(depth)
        self._answers: deque[Sequence[int]] = deque()

    def add(self, answer: Sequence[int]) -> None:
        """Take in one answer; of one that is longer than the memory, its end."""
        answer = answer[max(0, len(answer) - self.memory) :]
        self._answers.append(answer)
        self.tokens += len(answer)
        self._count(answer)
        if self.tokens > self.memory:
            while self.tokens > self.memory // 2 and len(self._answers) > 1:
                self.tokens -= len(self._answers.popleft())
            self.counts = SuffixCounts(self.counts.depth)
            for each in self._answers:
                self._count(each)

    def clear(self) -> None:
        """Forget them all."""
        self.tokens, self.counts = 0, SuffixCounts(self.counts.depth)
        self._answers.clear()

    def _count(self, answer: Sequence[int]) -> None:
        self.counts.new_text()
        for token in answer:
            self.counts.add(token)


class SuffixDrafter(Drafter):
    """Finds the longest run of last tokens that came before, here or in an earlier answer, and continues it.

    Each further token is the one that followed most often. The distributions are one-hot, since nothing is drawn, and
    where to stop depends on committed tokens alone, so the output keeps the target's distribution.

    What is remembered of earlier answers changes *which* tokens are proposed. Greedy text stays the same to the token.
    Sampled text keeps its distribution, but for one seed it may differ from one call to the next, because other drafts
    lead to other random choices: where a seed has to give the same text again, take `remember=False`, or call `clear`
    before each generation.

    memory: how many tokens of earlier answers are kept, about 1 KB each. All generations with one drafter share them.
    remember: whether answers are kept as they are written; otherwise only those that `learn` is given.
    trust: how many tokens are proposed for each token of the match, as in `NGramDrafter`. None, or a match as long as
        the longest that is counted, always proposes what is asked for.
    least: tokens are proposed while the estimated probability that the target writes all of them is at least this. The
        estimate multiplies, place by place, the share of earlier places that went on so.
    Raises ValueError for a negative memory, a trust that is not above 0 or a `least` outside 0..1.
    """

    draws = False

    def __init__(
        self,
        memory: int = 8192,
        trust: float | None = 1.0,
        least: float = 0.25,
        depth: int = DEPTH,
        remember: bool = True,
    ) -> None:
        if trust is not None and not trust > 0:
            raise ValueError(f"trust is {trust}: give a number above 0, or None to propose what is asked for")
        if memory < 0 or depth < 1 or not 0 <= least <= 1:
            raise ValueError(
                f"memory {memory}, depth {depth}, least {least}: need a memory of 0 tokens or more, a depth of 1 or "
                "more, and a probability"
            )
        self.trust, self.least, self.remember = trust, least, remember
        self.answers = Answers(memory, depth)
        self._text = SuffixCounts(depth)
        self._taken = 0  # tokens of the sequence that are counted
        self._prompt: int | None = None  # tokens before the answer; None before the first round
        self._newest: Sequence[int] = ()

    def learn(self, answer: Sequence[int]) -> None:
        """Take in an answer that was written before."""
        self.answers.add(answer)

    def clear(self) -> None:
        """Forget all earlier answers."""
        self.answers.clear()

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> SuffixDrafter:
        fresh = copy.copy(self)  # with the same `answers`
        fresh._text = SuffixCounts(self._text.depth)
        fresh._taken, fresh._prompt, fresh._newest = 0, None, ()
        return fresh

    def propose(self, tokens: Sequence[int], gamma: int, source: RandomSource) -> Proposal:
        """The most frequent continuation, up to `gamma` tokens; nothing where the last token is new."""
        if self._prompt is None:
            self._prompt = len(tokens)
        for token in tokens[self._taken :]:
            self._text.add(token)
        self._taken = len(tokens)
        here, there = self._text.ends, self._found_in_answers(tokens)
        drafted: list[int] = []
        first, survival = 0, 1.0
        while len(drafted) < gamma:
            match, token, share = self._likeliest(here, there)
            survival *= share
            if not match or survival < self.least:
                break
            if not drafted:
                first = match
                if self.trust is not None and match < self._text.depth:
                    gamma = min(gamma, int(self.trust * match) or 1)
            drafted.append(token)
            here, there = self._text.step(here, token), self.answers.counts.step(there, token)
        return Proposal(drafted, match=first)

    def commit(self, tokens: Sequence[int], features: Features | None = None) -> None:
        if self._prompt is None:  # the first round drafted nothing, so it gave one token
            self._prompt = len(tokens) - 1
        self._newest = tokens

    def end(self) -> None:
        """Remember the answer."""
        if self.remember and self._newest:
            self.learn(self._newest[self._prompt :])
        self._newest = ()

    def _found_in_answers(self, tokens: Sequence[int]) -> list[int]:
        ends = [ROOT]
        for token in tokens[-self._text.depth :]:
            ends = self.answers.counts.step(ends, token)
        return ends

    def _likeliest(self, here: Sequence[int], there: Sequence[int]) -> tuple[int, int, float]:
        """(match, token, share): after the longest run known here or there; of equal ones the text's own, unless the
        answers saw the token more often. A match of 0 tokens is none."""
        for match in range(min(self._text.depth, max(len(here), len(there)) - 1), 0, -1):
            token, times, of = self._text.likeliest(here, match)
            other, other_times, other_of = self.answers.counts.likeliest(there, match)
            if other_times > times:
                token, times, of = other, other_times, other_of
            if times:
                return match, token, times / of
        return 0, NOBODY, 0.0
