"""Uniforms whose values stay open: each comparison is a choice, and what is known of a uniform stays known."""

import pytest
import torch

from specdec_ref.proof import EnumeratingSource, ReplaySource, enumerate_distribution
from specdec_ref.sampling import RandomSource
from specdec_ref.verify import batch


def test_a_comparison_is_true_with_the_probability_of_its_threshold():
    found = enumerate_distribution(lambda source: bool(source.uniforms(1)[0] < 0.3))
    assert found == {False: pytest.approx(0.7), True: pytest.approx(0.3)}


def test_what_one_comparison_says_the_next_one_keeps_to():
    def program(source):
        u = source.uniforms(2)
        return bool(u[0] < 0.5), bool(u[0] < 0.25), bool(u[0] >= 0.75), bool(u[0] < 0.5), bool(u[1] < 0.5)

    found = enumerate_distribution(program)
    assert sum(found.values()) == pytest.approx(1)
    assert all(a == d and (a or not b) and not (a and c) for a, b, c, d, _ in found)
    quarter = {key[:3]: 0.0 for key in found}
    for key, p in found.items():
        quarter[key[:3]] += p
    assert all(p == pytest.approx(0.25) for p in quarter.values()) and len(quarter) == 4


def test_a_draw_by_them_follows_the_weights():
    weights = torch.tensor([[1.0, 0.0, 2.0, 1.0, 0.0]])
    found = enumerate_distribution(lambda source: int(batch.draw(weights, source.uniforms(1))))
    assert found == {0: pytest.approx(0.25), 2: pytest.approx(0.5), 3: pytest.approx(0.25)}


def test_anything_but_a_comparison_is_refused():
    u = EnumeratingSource().uniforms(3)
    for use in (lambda: u + 1, lambda: u.sum(), lambda: torch.sqrt(u), lambda: u.item()):
        with pytest.raises(TypeError, match=r"only be compared|unsupported operand"):
            use()


def test_a_real_source_gives_uniforms_from_its_own_generator():
    a, b = RandomSource(3), RandomSource(3)
    got = a.uniforms(4)
    assert got.dtype == torch.float64 and ((got >= 0) & (got < 1)).all()
    assert got.tolist() == [b.uniforms(1).item() for _ in range(4)]


@pytest.mark.parametrize("name", ["token", "block"])
def test_at_u_equal_0_and_just_below_1_a_batched_rule_answers_as_the_plain_one(name):
    from specdec_ref import Proposal
    from specdec_ref.verify import RULES

    p = torch.tensor([[0.0, 0.5, 0.5], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.4, 0.4], [0.6, 0.2, 0.2]], dtype=torch.float64)
    for tokens in ([0, 0], [1, 0], [2, 2]):
        for coin in (0.0, 1 - 2**-53):
            for last in (0.0, 1 - 2**-53):
                proposal = Proposal(tokens, q)
                plain = RULES[name](proposal, p, ReplaySource([coin] * 2, [last]))
                batched = RULES[f"{name}-batched"](proposal, p, ReplaySource([coin] * 2, [last]))
                assert (plain.accepted, plain.token, plain.origin) == (batched.accepted, batched.token, batched.origin)
                assert p[plain.accepted, plain.token] > 0
