"""Draft and target with different vocabularies: padded, partial, renumbered."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support.tiny_models import tiny_llama
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specdec_ref import DraftModelDrafter, RandomSource, SpeculativeEngine
from specdec_ref.models.scripted import Conditional, ScriptedModel


def words(tokens: Sequence[str], added: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer that numbers `tokens` from 0; `added` follow."""
    model = WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    tokenizer.add_tokens(list(added), special_tokens=True)
    return tokenizer


LETTERS = list("abcdefghijklmnopqrst")


def random_distribution(vocab: int, seed: int) -> Conditional:
    """Distributions that depend on the last token, with entries of 0 among them."""

    def distribution(tokens: tuple[int, ...]) -> list[float]:
        choose = random.Random(1000 * seed + tokens[-1])
        weights = [choose.choice([0, 1, 2, 5]) for _ in range(vocab)]
        weights[choose.randrange(vocab)] += 1
        return [w / sum(weights) for w in weights]

    return distribution


def model(vocab: int, seed: int = 0, tokenizer: Any = None) -> ScriptedModel:
    return ScriptedModel(random_distribution(vocab, seed), vocab, tokenizer=tokenizer)


class Branches(RandomSource):
    """Makes the choices of `path`, then the first possible one each time; remembers all it could have made."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.options, self.weight = path, [], 1.0  # type: ignore[var-annotated]

    def _choose(self, probs: list[float]) -> int:
        possible = [i for i, p in enumerate(probs) if p > 0]
        at = len(self.options)
        chosen = self.path[at] if at < len(self.path) else possible[0]
        self.options.append((chosen, possible))
        self.weight *= probs[chosen]
        return chosen

    def bernoulli(self, p: float) -> bool:
        return bool(self._choose([1 - p, p]))

    def categorical(self, probs: torch.Tensor) -> int:
        return self._choose((probs.double() / probs.double().sum()).tolist())


def runs(
    engine: SpeculativeEngine, prompt: list[int], n: int, **options: Any
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every possible output of `n` tokens with the probability of each way to it."""
    paths: list[list[int]] = [[]]
    while paths:
        path = paths.pop()
        source = Branches(path)
        yield tuple(engine.generate(prompt, n, source=source, **options).tokens), source.weight
        for at in range(len(path), len(source.options)):
            chosen, possible = source.options[at]
            before = [c for c, _ in source.options[:at]]
            paths += [[*before, other] for other in possible if other != chosen]


def distribution_of(
    engine: SpeculativeEngine, prompt: list[int], n: int, **options: Any
) -> dict[tuple[int, ...], float]:
    distribution: dict[tuple[int, ...], float] = {}
    for output, weight in runs(engine, prompt, n, **options):
        distribution[output] = distribution.get(output, 0.0) + weight
    return distribution


def assert_exact(target: ScriptedModel, drafter: DraftModelDrafter, **options: Any) -> None:
    options = {"temperature": 1.0} | options
    found = distribution_of(SpeculativeEngine(target, drafter, 1), [1], 2, **options)
    plain = distribution_of(SpeculativeEngine(target), [1], 2, **options)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert found.keys() == plain.keys()
    for output, p in plain.items():
        assert found[output] == pytest.approx(p, abs=1e-12)


MAP = [3, 9, 1, 0, 7, 5]


@pytest.mark.parametrize(
    ("draft_vocab", "target_vocab", "token_map"),
    [(8, 10, None), (10, 8, None), (6, 10, MAP), (10, 10, [*MAP, 8, 2, 4, 6])],
    ids=["smaller", "larger", "part", "renumbered"],
)
def test_another_vocabulary_leaves_the_distribution_as_it_is(draft_vocab, target_vocab, token_map):
    # The target favours ids that the draft lacks, so both the corrections and the tokens it is fed leave its range.
    drafter = DraftModelDrafter(model(draft_vocab, 1), token_map)
    assert_exact(model(target_vocab, 2), drafter)
    assert_exact(model(target_vocab, 2), drafter, top_k=3, logit_bias={9 % target_vocab: 2.0}, repetition_penalty=1.5)
    assert_exact(model(target_vocab, 2), drafter, typical_p=0.8, min_new_tokens=1)


def test_ids_beyond_the_drafts_vocabulary_stay_reachable():
    target = ScriptedModel(lambda tokens: [0.05] * 8 + [0.3, 0.3], 10)
    draft = ScriptedModel(lambda tokens: [0.125] * 8, 8)
    distribution = distribution_of(SpeculativeEngine(target, DraftModelDrafter(draft), 2), [9], 1, temperature=1.0)
    assert distribution[(8,)] == pytest.approx(0.3) and distribution[(9,)] == pytest.approx(0.3)


def test_a_map_that_is_right_makes_a_draft_that_is_always_right():
    # The draft is the target itself with its ids shuffled: any slip in the map, or in the fed ids, costs a rejection.
    shuffled = list(range(13))
    random.Random(3).shuffle(shuffled)
    target, draft = tiny_llama(1), tiny_llama(1)
    draft.embed.weight.copy_(target.embed.weight[shuffled])
    draft.head.weight.copy_(target.head.weight[shuffled])
    for temperature in (0.0, 1.0):
        engine = SpeculativeEngine(target, DraftModelDrafter(draft, shuffled), 4)
        generation = engine.generate([5, 2, 7], 40, temperature=temperature, seed=1)
        assert generation.stats.accepted == generation.stats.tested > 0
    wrong = [*shuffled[1:], shuffled[0]]
    generation = SpeculativeEngine(target, DraftModelDrafter(draft, wrong), 4).generate([5, 2, 7], 40)
    assert generation.tokens == SpeculativeEngine(target).generate([5, 2, 7], 40).tokens
    assert generation.stats.accepted < generation.stats.tested


def test_a_part_of_the_vocabulary_proposes_only_that_part():
    seen: list[int] = []
    target, draft = tiny_llama(1), tiny_llama(2, vocab_size=6)
    engine = SpeculativeEngine(target, DraftModelDrafter(draft, MAP), 3)
    generation = engine.generate([12, 2], 50, on_round=lambda run, round_: seen.extend(round_.proposal.tokens))
    assert generation.tokens == SpeculativeEngine(target).generate([12, 2], 50).tokens
    assert seen and set(seen) <= set(MAP)
    assert set(generation.tokens) - set(MAP)  # the target went where the draft cannot


@pytest.mark.parametrize(
    ("token_map", "message"),
    [
        ([3, 9, 1], "token_map has 3 entries, the draft 6 tokens"),
        ([3, 9, 1, 0, 7, 10], "names id 10, and the target has 0 to 9"),
        ([3, 9, 1, 0, 7, -1], "names id -1"),
        ([3, 9, 1, 0, 7, 3], "names id 3 twice"),
    ],
)
def test_a_map_that_cannot_be_right_is_refused(token_map, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeEngine(model(10), DraftModelDrafter(model(6), token_map))
    with pytest.raises(ValueError, match=message):
        SpeculativeEngine(model(10), DraftModelDrafter(model(6), torch.tensor(token_map)))


def check(draft: Any, target: Any, draft_size: int = 20, target_size: int = 20, token_map: Any = None) -> None:
    SpeculativeEngine(
        model(target_size, tokenizer=target), DraftModelDrafter(model(draft_size, tokenizer=draft), token_map)
    )


def test_padded_sizes_of_one_tokenizer_run():
    check(words(LETTERS), words(LETTERS), 20, 32)
    check(words(LETTERS), words(LETTERS), 32, 24)
    shared = words(LETTERS)
    check(shared, shared, 22, 31)
    check(None, None, 8, 10)


def test_a_tokenizer_that_only_goes_on_further_runs():
    check(words(LETTERS[:15]), words(LETTERS), 15, 20)
    check(words(LETTERS), words(LETTERS[:15]), 20, 15)


@pytest.mark.parametrize(
    "other",
    [
        [*LETTERS[1:], LETTERS[0]],
        [*LETTERS[:7], LETTERS[8], LETTERS[7], *LETTERS[9:]],
        [*LETTERS[:19], "another"],
        [f"other {i}" for i in range(20)],
    ],
    ids=["shifted", "two swapped", "one other", "all other"],
)
def test_the_same_size_with_other_tokens_is_refused(other):
    for a, b in ((words(LETTERS), words(other)), (words(other), words(LETTERS))):
        with pytest.raises(ValueError, match=r"number their tokens differently \(\d+ of 20, for instance '"):
            check(a, b)


def test_other_sizes_with_other_tokens_are_refused():
    with pytest.raises(ValueError, match="number their tokens differently"):
        check(words(LETTERS[5:]), words(LETTERS), 15, 20)
    with pytest.raises(ValueError, match="number their tokens differently"):
        check(words(["x", *LETTERS]), words(LETTERS), 21, 20)


def test_renamed_special_tokens_are_no_reason_to_refuse():
    check(words(LETTERS, ["<|reserved_2|>"]), words(LETTERS, ["<|finetune_pad|>"]), 21, 21)
    check(words(LETTERS), words(LETTERS, ["<|im_start|>", "<|im_end|>"]), 20, 22)


def test_tokenizers_with_nothing_to_compare_are_refused():
    with pytest.raises(ValueError, match="number their tokens differently"):
        check(words(LETTERS[:1]), words(["z"], LETTERS[:1]), 1, 2)


def test_one_tokenizer_is_enough_where_sizes_agree_or_a_map_says_it():
    check(None, words(LETTERS))
    check(words(LETTERS), None)
    check(None, words(LETTERS), 6, 20, MAP)
    with pytest.raises(ValueError, match=r"draft has 8 tokens, target 20, and not both have a tokenizer.*token_map"):
        check(None, words(LETTERS), 8, 20)


def test_a_map_is_held_against_both_tokenizers():
    part = words([LETTERS[i] for i in MAP])
    check(part, words(LETTERS), 6, 20, MAP)
    with pytest.raises(ValueError, match=r"\(2 of 6, for instance"):
        check(part, words(LETTERS), 6, 20, [9, 3, *MAP[2:]])
    with pytest.raises(ValueError, match="a right token_map"):
        check(part, words(LETTERS), 6, 20)


def test_a_token_map_given_as_a_mapping_is_read_by_its_keys():
    """Iterated over, {own: target} would be the identity, whatever its values."""
    draft = ScriptedModel(lambda tokens: [0.2, 0.3, 0.5], 3)
    as_list = DraftModelDrafter(draft, token_map=[4, 0, 2])
    assert DraftModelDrafter(draft, token_map={2: 2, 0: 4, 1: 0}).token_map == as_list.token_map == [4, 0, 2]
    with pytest.raises(ValueError, match="lacks token 1"):
        DraftModelDrafter(draft, token_map={0: 4, 2: 2})
    with pytest.raises(ValueError, match="has 4 entries"):
        DraftModelDrafter(draft, token_map={0: 4, 1: 0, 2: 2, 3: 1})


@pytest.mark.parametrize("odd", [1.0, 1.7, "1", None])
def test_a_token_map_of_anything_but_whole_numbers_is_refused(odd):
    with pytest.raises(TypeError, match="a token id is a whole number"):
        DraftModelDrafter(ScriptedModel(lambda tokens: [0.2, 0.3, 0.5], 3), token_map=[0, odd, 2])
