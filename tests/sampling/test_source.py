import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdec_ref import RandomSource


class Fixed(random.Random):
    """A generator that always says the same."""

    def __init__(self, u: float) -> None:
        super().__init__(0)
        self.u = u

    def random(self) -> float:
        return self.u


def source_saying(u: float) -> RandomSource:
    source = RandomSource(0)
    source._generator = Fixed(u)
    return source


LAST_BEFORE_ONE = 1 - 2**-53


def test_probability_zero_is_rejected_even_at_u_zero():
    assert source_saying(0.0).bernoulli(0.0) is False
    assert source_saying(0.0).bernoulli(1e-300) is True
    assert source_saying(LAST_BEFORE_ONE).bernoulli(1.0) is True


@pytest.mark.parametrize("u", [0.0, 0.3, 0.5, LAST_BEFORE_ONE])
@pytest.mark.parametrize("probs", [[0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0], [0.0, 1 / 3, 1 / 3, 1 / 3]])
def test_an_index_of_probability_zero_is_never_drawn(u, probs):
    index = source_saying(u).categorical(torch.tensor(probs))
    assert probs[index] > 0


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8).filter(lambda p: sum(p) > 0),
    st.floats(0, 1, exclude_max=True),
)
def test_categorical_is_the_inverse_of_the_cumulative_sum(probs, u):
    index = source_saying(u).categorical(torch.tensor(probs, dtype=torch.float64))
    total = sum(probs)
    assert probs[index] > 0
    assert sum(probs[:index]) <= u * total * (1 + 1e-12)
    assert u * total <= sum(probs[: index + 1]) * (1 + 1e-12)


def test_frequencies_follow_the_distribution():
    """Chi-square of 40,000 draws at size 1e-9: a wrong draw of 3% in one entry would show."""
    probs, source = torch.tensor([0.1, 0.0, 0.6, 0.3]), RandomSource(5)
    counts = torch.bincount(torch.tensor([source.categorical(probs) for _ in range(40_000)]), minlength=4)
    assert counts[1] == 0
    keep = [0, 2, 3]
    assert stats.chisquare(counts[keep].numpy(), (probs[keep] * 40_000).numpy(), sum_check=False).pvalue > 1e-9


def test_same_seed_same_draws_other_seed_others():
    def draws(seed):
        source = RandomSource(seed)
        return [source.categorical(torch.full((50,), 0.02)) for _ in range(20)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert draws(None) != draws(None)


@pytest.mark.parametrize("probs", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_a_distribution_without_mass_is_an_error(probs):
    with pytest.raises(ValueError, match="cannot draw"):
        RandomSource(0).categorical(torch.tensor(probs))
