"""The distribution of the output over several rounds, by G test at a stated size and with a stated power.

Ten thousand outputs of three tokens over a vocabulary of three, drawn by the production loop with gamma 2, against
the target's own distribution of the 27 sequences, computed by multiplying. Size 1e-9. The alternative with the
residual left out (the correction drawn from p) lies so far off that its noncentrality is above 200: power beyond 0.999.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from specdec_ref import DraftModelDrafter, NGramDrafter, RandomSource, SpeculativeEngine
from specdec_ref.interfaces import Verdict
from specdec_ref.models.scripted import ScriptedModel
from specdec_ref.verify import RULES, acceptance_probability

SIZE, DRAWS, PROMPT = 1e-9, 10_000, [0, 1]
DISTRIBUTIONS = {0: [0.6, 0.3, 0.1], 1: [0.1, 0.3, 0.6], 2: [0.25, 0.5, 0.25]}
DRAFT_DISTRIBUTIONS = {0: [0.1, 0.3, 0.6], 1: [0.5, 0.4, 0.1], 2: [0.25, 0.5, 0.25]}


def distribution(table):
    """Depends on the last two tokens, so a distribution taken from the wrong row or history shows."""
    return lambda tokens: np.roll(table[tokens[-1]], tokens[-2] if len(tokens) > 1 else 0).tolist()


TARGET, DRAFT = ScriptedModel(distribution(DISTRIBUTIONS), 3), ScriptedModel(distribution(DRAFT_DISTRIBUTIONS), 3)


def expected():
    result = {}
    for sequence in itertools.product(range(3), repeat=3):
        history, p = list(PROMPT), 1.0
        for token in sequence:
            p *= TARGET.distribution(tuple(history))[token]
            history.append(token)
        result[sequence] = p
    return result


def p_value(engine):
    source, counts = RandomSource(11), dict.fromkeys(expected(), 0)
    for _ in range(DRAWS):
        counts[tuple(engine.generate(PROMPT, 3, temperature=1.0, source=source).tokens)] += 1
    want = expected()
    g = 2 * sum(n * math.log(n / (DRAWS * want[s])) for s, n in counts.items() if n)
    return stats.chi2.sf(g, len(want) - 1)


@pytest.mark.parametrize("drafter", [None, NGramDrafter(), DraftModelDrafter(DRAFT)], ids=["plain", "lookup", "model"])
def test_output_follows_the_targets_distribution(drafter):
    assert p_value(SpeculativeEngine(TARGET, drafter, 2)) > SIZE


def without_residual(proposal, p, source):
    for i, x in enumerate(proposal.tokens):
        q = proposal.distribution(i, like=p[i])
        if not source.bernoulli(acceptance_probability(p[i, x].item(), q[x].item())):
            return Verdict(i, source.categorical(p[i]), "corrected")
    return RULES["token"](proposal, p, source)


def test_the_test_has_the_power_to_see_a_missing_residual():
    assert p_value(SpeculativeEngine(TARGET, DraftModelDrafter(DRAFT), 2, rule=without_residual)) < SIZE
