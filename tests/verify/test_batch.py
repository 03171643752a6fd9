"""The batched rules: on the same uniforms they answer as the plain ones."""

from __future__ import annotations

import pytest
import torch

from specdec_ref.interfaces import Proposal
from specdec_ref.proof import ReplaySource
from specdec_ref.verify import verify_block, verify_tokenwise
from specdec_ref.verify.batch import draw, verify_block_batch, verify_tokenwise_batch

BATCHED = [(verify_tokenwise, verify_tokenwise_batch), (verify_block, verify_block_batch)]


def plain(rule, tokens, q, p, keep, last):
    """The plain rule, row by row. The block rule asks from the last place to the first."""
    answers = []
    for b in range(len(tokens)):
        coins = keep[b].tolist()
        source = ReplaySource(coins if rule is verify_tokenwise else coins[::-1], [last[b].item()])
        verdict = rule(Proposal(tokens[b].tolist(), q[b]), p[b], source)
        answers.append((verdict.accepted, verdict.token))
    return answers


@pytest.mark.parametrize(("rule", "batched"), BATCHED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("g", "vocab"), [(1, 2), (3, 4), (6, 50)])
def test_same_uniforms_same_verdicts(rule, batched, dtype, g, vocab):
    generator = torch.Generator().manual_seed(g * vocab)
    rows = 300
    p = torch.softmax(2 * torch.randn(rows, g + 1, vocab, generator=generator), -1).to(dtype)
    q = torch.softmax(2 * torch.randn(rows, g, vocab, generator=generator), -1).to(dtype)
    q[:50] = p[:50, :g]
    tokens = torch.multinomial(q.reshape(-1, vocab), 1, generator=generator).reshape(rows, g)
    keep, last = torch.rand(rows, g, generator=generator), torch.rand(rows, generator=generator)
    keep[50:60], last[50:60] = 0.0, 0.0
    accepted, token = batched(tokens, q, p, keep.double(), last.double())
    expected = plain(rule, tokens, q, p, keep.double(), last.double())
    assert list(zip(accepted.tolist(), token.tolist(), strict=True)) == expected
    assert {0, 1, g} <= {a for a, _ in expected}


@pytest.mark.parametrize(("rule", "batched"), BATCHED)
def test_zero_probability_at_zero_uniform(rule, batched):
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    zero = torch.zeros(1, 1).double()
    accepted, token = batched(torch.tensor([[0]]), q, p, zero, zero[0])
    assert (accepted.tolist(), token.tolist()) == ([0], [1])


def test_draw_stays_inside_the_support():
    weights = torch.tensor([[0.0, 0.3, 0.7, 0.0]], dtype=torch.float64).expand(3, 4)
    u = torch.tensor([0.0, 1 - 2**-53, 0.3 - 1e-9], dtype=torch.float64)
    assert draw(weights, u).tolist() == [1, 2, 1]


def test_no_value_leaves_the_device():
    """The meta device has no values: an operation that needs one on the host raises."""
    meta = torch.device("meta")
    tokens = torch.zeros(5, 3, dtype=torch.long, device=meta)
    q, p = torch.zeros(5, 3, 7, device=meta), torch.zeros(5, 4, 7, device=meta)
    for _, batched in BATCHED:
        accepted, token = batched(tokens, q, p, torch.zeros(5, 3, device=meta), torch.zeros(5, device=meta))
        assert accepted.shape == token.shape == (5,)


def test_the_batched_ratio_is_computed_in_float64_as_the_plain_one():
    """Between the ratio in 32 and in 64 bits lies a uniform on which a rule that rounds answers differently."""
    seen = 0
    for k in range(1, 40):
        p = torch.tensor([[k / 97, 1 - k / 97], [0.5, 0.5]])
        q = torch.tensor([[k / 41, 1 - k / 41]])
        exact, rounded = (p[0, 0].double() / q[0, 0].double()).item(), (p[0, 0] / q[0, 0]).double().item()
        if exact == rounded:
            continue
        u, seen = (exact + rounded) / 2, seen + 1
        plain = verify_tokenwise(Proposal([0], q), p, ReplaySource([u], [0.1])).accepted
        keep, last = torch.tensor([[u]], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64)
        assert verify_tokenwise_batch(torch.tensor([[0]]), q[None], p[None], keep, last)[0].item() == plain
    assert seen > 10
