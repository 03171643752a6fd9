"""Losses, walks and anchors against numbers that can be checked by hand."""

import math
from random import Random

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref.arithmetic.speedup import expected_tokens
from specdec_ref.train.batches import Teacher, frequent_tokens, order, usable
from specdec_ref.train.evaluate import walk
from specdec_ref.train.losses import acceptance, blend_at, draft_loss, place_weights
from specdec_ref.train.shards import Example


def example(ids, n_prompt=2, kind="chat") -> Example:
    return Example(f"{kind}-0", kind, "train", 0.0, n_prompt, list(ids))


def test_the_loss_is_kl_at_first_and_minus_log_alpha_in_the_end():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    kl = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert acceptance(p, q).item() == pytest.approx(0.75)
    assert draft_loss(q.log(), p, 0.0).item() == pytest.approx(kl, abs=1e-6)
    assert draft_loss(q.log() + 3, p, 1.0).item() == pytest.approx(-math.log(0.75), abs=1e-6)
    assert draft_loss(q.log(), p, 0.5).item() == pytest.approx((kl - math.log(0.75)) / 2, abs=1e-6)
    assert draft_loss(p.log(), p, 0.3).item() == pytest.approx(0, abs=1e-6)
    assert draft_loss(torch.tensor([40.0, 0.0]), torch.tensor([1.0, 0.0]), 0.0).item() == pytest.approx(0, abs=1e-6)


def test_the_blend_rises_between_its_two_shares():
    assert [blend_at(x, 0.5, 0.75) for x in (0, 0.5, 0.625, 0.75, 1)] == [0, 0, 0.5, 1, 1]
    assert place_weights(3, 2.0).tolist() == pytest.approx([1, math.exp(-0.5), math.exp(-1)])


def test_rounds_are_walked_not_averaged():
    """Tokens 0..5; where a round begins decides how far it gets."""
    kept = torch.tensor([[1.0, 0], [1, 1], [0, 0], [1, 0], [0, 0], [0, 0]])
    rounds, reached, good = walk(kept)
    # 0: one kept -> 2: none -> 3: one kept -> 5: none, the end
    assert rounds == 4 and reached.tolist() == [4, 2] and good.tolist() == [2, 0]


def test_a_walk_over_probabilities_is_the_known_formula_for_a_constant_rate():
    n, alpha, gamma = 4_000, 0.6, 3
    rounds, reached, good = walk(torch.full((n, gamma), alpha))
    assert n / rounds == pytest.approx(expected_tokens(alpha, gamma), rel=1e-3)
    assert (good / reached).tolist() == pytest.approx([alpha] * gamma, rel=1e-3)


def test_a_walk_is_the_mean_of_walks_that_are_drawn():
    rng, n, gamma = Random(1), 30, 3
    kept = torch.tensor([[rng.random() for _ in range(gamma)] for _ in range(n)])
    expected, drawn = walk(kept)[0], 0
    for _ in range(3_000):
        j = 0
        while j < n:
            k = 0
            while k < gamma and rng.random() < kept[j, k]:
                k += 1
            j += k + 1
            drawn += 1
    assert drawn / 3_000 == pytest.approx(expected, rel=0.01)


def test_the_first_anchor_has_the_prompts_last_token_pending():
    model = tiny_llama(1)
    batch = Teacher(model, (1,)).batch([example([1, 2, 3, 4, 5, 6, 7], 3), example([1, 2, 3, 4], 2)])
    assert batch.anchors.tolist() == [[1, 2, 3, 4], [0, 1, 0, 0]]
    assert batch.valid.tolist() == [[True] * 4, [True, True, False, False]]
    at, exists = batch.places(2)
    assert batch.tokens(at)[0, :, 0].tolist() == [4, 5, 6, 7]  # place 1 of the first anchor: the answer's first token
    assert exists[0].tolist() == [[True, True]] * 3 + [[True, False]]
    assert exists[1].tolist() == [[True, True], [True, False], [False, False], [False, False]]


def test_the_states_are_those_of_a_pass_over_the_text():
    model, ids = tiny_llama(1), [1, 2, 3, 4, 5, 6, 7]
    teacher = Teacher(model, (1,))
    batch = teacher.batch([example(ids, 3), example([1, 2, 3, 4], 2)])
    out = model.forward_pass(torch.tensor(ids), model.new_cache(7), layers=(1, 2))
    torch.testing.assert_close(batch.states[0][0, :6], out.features[0][:6].float())
    torch.testing.assert_close(teacher.logits(batch.last[0, :6]), model.head(batch.last[0, :6].double()))
    want = out.logits.log_softmax(-1)[range(2, 6), ids[3:]].float()
    torch.testing.assert_close(teacher.log_probs_of_text(batch, 1.0)[0, 2:6], want, rtol=1e-4, atol=1e-4)


def test_an_epoch_has_every_example_once_and_lengths_together():
    examples = [example([1] * (3 + i % 17)) for i in range(101)]
    batches = list(order(examples, 4, 0, 0))
    assert sorted(len(e.ids) for b in batches for e in b) == sorted(len(e.ids) for e in examples)
    assert list(order(examples, 4, 0, 0)) == batches != list(order(examples, 4, 0, 1))
    assert sum(len({len(e.ids) for e in b}) <= 2 for b in batches) > 20


def test_frequent_tokens_are_counted_and_filled_up_by_id():
    tokens = frequent_tokens([example([7, 7, 9, 7, 9, 8])], 20, 5, always=[19])
    assert tokens.tolist() == [0, 7, 8, 9, 19] or tokens.tolist() == [7, 8, 9, 0, 19]
    assert len(usable([example([1, 2, 3]), example([1, 2, 3, 4]), example([1] * 50)], 20)) == 1
