"""Block drafter and Medusa heads: exact whatever their weights are, and planted bugs are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.tiny_models import tiny_llama
from torch.nn import functional as F

from specdec_ref import BlockDrafter, MedusaDrafter, SpeculativeEngine
from specdec_ref.draft.block import BlockConfig, BlockHead
from specdec_ref.draft.medusa import MedusaConfig, MedusaHeads
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.proof import difference, enumerate_distribution

PROMPT = [1, 5, 2, 7, 3]
KINDS = {"block": BlockDrafter, "medusa": MedusaDrafter}


def random_head(kind, target, tokens, seed=0, n_places=4):
    """Weights large enough that each of them matters."""
    c = target.config
    torch.manual_seed(seed)
    if kind == "medusa":
        head = MedusaHeads(MedusaConfig(c.hidden_size, (c.n_layers,), len(tokens), n_places))
    else:
        sizes = (c.hidden_size, 32, c.n_heads, c.n_kv_heads, c.head_dim, c.rms_norm_eps)
        head = BlockHead(BlockConfig(*sizes, (0, 1, 2), len(tokens), n_places, depth=2, path_rank=8, markov_rank=8))
    for weight in head.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.3)
    head.tokens.copy_(torch.tensor(tokens))
    return head.requires_grad_(False)


def outputs(target, drafter=None, rule="token", seen=None, n=3):
    """The exact distribution of `n` tokens; `seen` collects what happened on all branches."""

    def look(run, round_):
        if seen is not None:
            room = n - (len(run.output) - len(round_.kept))
            seen["accepted"] += round_.verdict.accepted
            seen["rejected"] += round_.verdict.origin == "corrected"
            seen["cut"] += len(round_.proposal.tokens) < min(2, room - 1)
            seen["uncut"] += len(round_.proposal.tokens) == 2

    engine = SpeculativeEngine(target, drafter, 2, rule)
    return enumerate_distribution(
        lambda source: tuple(engine.generate([1, 2], n, temperature=1.2, source=source, on_round=look).tokens)
    )


@pytest.fixture(scope="module")
def target():
    return tiny_llama(1)


@pytest.fixture(scope="module")
def drafters(target):
    return {k: KINDS[k](random_head(k, target, [0, 2, 3, 5, 6, 7, 8, 9, 11, 12])) for k in KINDS}


@pytest.fixture(scope="module")
def small():
    """A target of three tokens, and its own distribution of three."""
    target = tiny_llama(3, vocab_size=3)
    return target, outputs(target)


@pytest.mark.parametrize(("kind", "stop_below"), [("block", 0), ("block", 0.35), ("medusa", 0), ("medusa", 0.95)])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_every_output_has_the_targets_probability(kind, rule, stop_below, small):
    """Every random choice of the production loop is enumerated; the head knows two of the three tokens."""
    target, want = small
    seen = dict.fromkeys(("accepted", "rejected", "cut", "uncut"), 0)
    found = outputs(target, KINDS[kind](random_head(kind, target, [0, 2]), stop_below), rule, seen)
    assert difference(found, want) < 1e-9
    assert seen["accepted"] and seen["rejected"] and seen["uncut"] and bool(seen["cut"]) == bool(stop_below)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_is_the_targets(kind, target, drafters):
    for prompt in (PROMPT, [4]):
        result = SpeculativeEngine(target, drafters[kind], 3).generate(prompt, 30)
        assert result.tokens == SpeculativeEngine(target).generate(prompt, 30).tokens and result.stats.drafted


def test_between_rounds_the_cache_is_what_a_fresh_start_would_give(target, drafters):
    """After each commit: keys and values of the target's states alone, equal to those made from the whole text."""
    drafter, rounds = drafters["block"], 0

    def look(run, round_):
        nonlocal rounds
        own, n = run.drafter, len(run.tokens) - 1
        ids = torch.tensor(run.tokens[:-1])
        states = target.forward_pass(ids, target.new_cache(n), slice(0), layers=drafter.layers).features
        fresh = drafter.begin(target, run.sampling, n)
        fresh.commit(run.tokens, states)
        assert own.cache.length == fresh.cache.length == n
        torch.testing.assert_close(own._last, fresh._last)
        for mine, its in ((own.cache.keys, fresh.cache.keys), (own.cache.values, fresh.cache.values)):
            torch.testing.assert_close(mine[:, :, :n], its[:, :, :n])
        rounds += len(round_.proposal.tokens) > 0

    SpeculativeEngine(target, drafter, 4).generate(PROMPT, 30, temperature=1.0, seed=2, on_round=look)
    assert rounds > 3


def test_a_block_may_reach_beyond_the_context(drafters):
    target = tiny_llama(1, max_context=12)
    result = SpeculativeEngine(target, drafters["block"], 4).generate(PROMPT, 30, eos_token_id=None)
    assert result.tokens == SpeculativeEngine(target).generate(PROMPT, 30, eos_token_id=None).tokens
    assert len(result.tokens) == 7


def markov_left_out(proposal, drafter, tokens):
    """q as it would be without the bias by the token before."""
    logits = F.linear(drafter._states(tokens), drafter._rows)
    q = [drafter._sampling.probs(drafter._in_target_ids(row[None])) for row in logits[: len(proposal.tokens)]]
    return replace(proposal, probs=torch.cat(q))


def permuted(proposal, drafter, tokens):
    """q with the draft's tokens numbered the other way round."""
    wrong = proposal.probs.clone()
    wrong[:, drafter.head.tokens] = proposal.probs[:, drafter.head.tokens.flip(0)]
    return replace(proposal, probs=wrong)


def dropped_after_drawing(proposal, drafter, tokens):
    """The last token removed where it turned out improbable."""
    if proposal.probs[-1, proposal.tokens[-1]] >= 0.5:
        return proposal
    return replace(proposal, tokens=proposal.tokens[:-1], probs=proposal.probs[:-1])


def with_bug(drafter, bug):
    class Wrong(type(drafter)):
        def propose(self, tokens, gamma, source):
            proposal = super().propose(tokens, gamma, source)
            return proposal if proposal.probs is None else bug(proposal, self, tokens)

    return Wrong(drafter.head)


@pytest.mark.parametrize(
    ("kind", "bug"),
    [("block", markov_left_out), *((k, b) for k in KINDS for b in (permuted, dropped_after_drawing))],
)
def test_planted_bugs_change_the_distribution(kind, bug, small):
    target, want = small
    drafter = KINDS[kind](random_head(kind, target, [0, 2]))
    assert difference(outputs(target, with_bug(drafter, bug)), want) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_for_one_target(kind, target):
    head = random_head(kind, target, [0, 1, 2])
    KINDS[kind](head, target=fingerprint(target)).check(target)
    with pytest.raises(ValueError, match="trained for a target"):
        SpeculativeEngine(tiny_llama(2), KINDS[kind](head, target=fingerprint(target)))
    with pytest.raises(ValueError, match="states of 24 numbers"):
        SpeculativeEngine(tiny_llama(2, hidden_size=48, head_dim=12), KINDS[kind](head))
    with pytest.raises(ValueError, match="stop_below"):
        KINDS[kind](head, stop_below=1.0)
