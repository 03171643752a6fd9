"""Enumeration ends: a program without a last branch is refused, and the message says what to write instead."""

import pytest

from specdec_ref.proof import enumerate_distribution


def test_a_loop_that_draws_until_a_token_fits_is_refused():
    def program(source):
        while (token := source.categorical([0.5, 0.25, 0.25])) > 0:
            pass
        return token

    with pytest.raises(RuntimeError, match=r"no last branch.* Draw once"):
        enumerate_distribution(program)


def test_a_loop_over_choices_that_are_certain_is_refused():
    def program(source):
        while source.bernoulli(1.0):
            pass

    with pytest.raises(RuntimeError, match="no last branch"):
        enumerate_distribution(program)


def test_many_choices_with_an_end_are_enumerated():
    distribution = enumerate_distribution(lambda source: next((i for i in range(150) if source.bernoulli(0.5)), 150))
    assert distribution[0] == 0.5 and sum(distribution.values()) == 1
