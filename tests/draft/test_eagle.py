"""The EAGLE drafter: exact whatever its weights are, its cache made of the target's states alone."""

import copy
from dataclasses import replace

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref.cache.dense import DenseCache
from specdec_ref.draft.eagle import EagleDrafter
from specdec_ref.draft.eagle_head import EagleConfig, EagleHead
from specdec_ref.draft.weights import read_draft, write_draft
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.proof import enumerate_distribution, planted
from specdec_ref.proof.goodness import g_test
from specdec_ref.proof.mutant_list import bug
from specdec_ref.sampling import RandomSource

PROMPT = [1, 5, 2, 7, 3]


def random_head(target, tokens, seed=0, scale=0.3) -> EagleHead:
    c = target.config
    torch.manual_seed(seed)
    head = EagleHead(
        EagleConfig(c.hidden_size, 32, c.n_heads, c.n_kv_heads, c.head_dim, c.rms_norm_eps, (0, 1, 2), len(tokens))
    )
    for weight in head.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=scale)
    head.tokens.copy_(torch.tensor(tokens))
    return head.requires_grad_(False)


def note(run, round_, seen):
    seen["accepted"] += round_.verdict.accepted
    seen["rejected"] += round_.verdict.origin == "corrected"
    seen["short"] += len(round_.proposal.tokens) < 3


@pytest.fixture(scope="module")
def target():
    return tiny_llama(1)


@pytest.fixture(scope="module")
def drafter(target):
    return EagleDrafter(random_head(target, [0, 2, 3, 5, 6, 7, 8, 9, 11, 12]))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("stop_below", [0.0, 0.4])
def test_every_output_has_the_targets_probability(rule, stop_below):
    """Every random choice of the production loop is enumerated; the head knows two of the three tokens."""
    target = tiny_llama(3, vocab_size=3)
    drafter = EagleDrafter(random_head(target, [0, 2]), stop_below)
    speculative, plain = SpeculativeEngine(target, drafter, 2, rule), SpeculativeEngine(target)
    seen = {"accepted": 0, "rejected": 0, "short": 0}

    def outputs(engine, look=None):
        return enumerate_distribution(
            lambda source: tuple(engine.generate([1, 2], 3, temperature=1.2, source=source, on_round=look).tokens)
        )

    found = outputs(speculative, lambda run, round_: note(run, round_, seen))
    want = outputs(plain)
    assert max(abs(found.get(x, 0.0) - p) for x, p in want.items()) < 1e-9
    assert seen["accepted"] and seen["rejected"]


def test_greedy_output_is_the_targets(target, drafter):
    want = SpeculativeEngine(target).generate(PROMPT, 40).tokens
    result = SpeculativeEngine(target, drafter, 3).generate(PROMPT, 40)
    assert result.tokens == want and result.stats.drafted


def test_sampled_counts_follow_the_target(target, drafter):
    """The production generator, not the enumeration: the first token of many seeds, in two bins."""
    n, heat = 300, 3.0
    logits = target(torch.tensor(PROMPT), target.new_cache(8), slice(4, None))[0]
    p = torch.softmax(logits / heat, -1)
    best = int(p.argmax())
    engine = SpeculativeEngine(target, drafter, 2)
    hits = sum(engine.generate(PROMPT, 2, temperature=heat, seed=s).tokens[0] == best for s in range(n))
    assert 0.1 < p[best] < 0.9
    assert g_test([hits, n - hits], [p[best].item(), 1 - p[best].item()]).p_value > 1e-6


def test_between_rounds_the_cache_is_what_a_fresh_start_would_give(target, drafter):
    """After each commit: entries of the target's states only, equal to those made from the whole text at once."""
    rounds = 0

    def look(run, round_):
        nonlocal rounds
        own, n = run.drafter, len(run.tokens) - 1
        assert own.cache.length + len(own._new[0]) == n
        cache = target.new_cache(n)
        states = target.forward_pass(torch.tensor(run.tokens[:-1]), cache, slice(0), layers=drafter.layers).features
        fresh = drafter.begin(target, run.sampling, n + 1)
        fresh.commit(run.tokens, states)
        fresh.propose(run.tokens, 1, RandomSource(0))
        for mine, its in ((own.cache.keys, fresh.cache.keys), (own.cache.values, fresh.cache.values)):
            torch.testing.assert_close(mine[:, :, : own.cache.length], its[:, :, : own.cache.length])
        rounds += own.cache.length > 0

    SpeculativeEngine(target, drafter, 4).generate(PROMPT, 30, temperature=1.0, seed=2, on_round=look)
    assert rounds > 3


def test_a_prompt_of_one_token_is_continued(target, drafter):
    assert (
        SpeculativeEngine(target, drafter, 3).generate([4], 20).tokens
        == SpeculativeEngine(target).generate([4], 20).tokens
    )


def test_an_unsure_head_stops_after_the_token_it_has_drawn(target, drafter):
    sure, unsure = drafter, EagleDrafter(drafter.head, stop_below=0.99)
    drafted = {}
    for name, each in (("sure", sure), ("unsure", unsure)):
        lengths = drafted[name] = []
        SpeculativeEngine(target, each, 4).generate(
            PROMPT, 30, temperature=1.5, seed=1, on_round=lambda run, r, to=lengths: to.append(len(r.proposal.tokens))
        )
    assert max(drafted["sure"]) == 4 and min(drafted["unsure"]) >= 0 and 1 in drafted["unsure"]
    assert sum(drafted["unsure"]) / len(drafted["unsure"]) < sum(drafted["sure"]) / len(drafted["sure"])


def test_a_head_is_for_one_target(target):
    head = random_head(target, [0, 1, 2])
    EagleDrafter(head, target=fingerprint(target)).check(target)
    with pytest.raises(ValueError, match="trained for a target"):
        SpeculativeEngine(tiny_llama(2), EagleDrafter(head, target=fingerprint(target)))
    with pytest.raises(ValueError, match="states of 24 numbers"):
        SpeculativeEngine(tiny_llama(2, hidden_size=48, head_dim=12), EagleDrafter(head))
    with pytest.raises(ValueError, match="stop_below"):
        EagleDrafter(head, stop_below=1.0)


def test_a_draft_on_disk_is_the_draft_up_to_half_a_level(tmp_path):
    torch.manual_seed(0)
    tensors = {"fuse.weight": torch.randn(6, 64), "norm.weight": torch.rand(64), "tokens": torch.tensor([3, 9])}
    write_draft(tmp_path / "d.safetensors", tensors, {"kind": "eagle"})
    found, about = read_draft(tmp_path / "d.safetensors")
    assert about == {"kind": "eagle"} and found["tokens"].tolist() == [3, 9]
    assert torch.equal(found["norm.weight"], tensors["norm.weight"])
    largest = tensors["fuse.weight"].unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)
    error = (found["fuse.weight"] - tensors["fuse.weight"]).unflatten(1, (-1, 32)).abs()
    assert (error <= largest / 127 * 0.52).all() and error.max() > 0
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="no trained draft"):
        read_draft(tmp_path / "x.safetensors")


def test_planted_bugs_are_noticed(target, drafter):
    """A q that is not the one drawn from, and a token dropped after drawing, change the distribution."""
    small = tiny_llama(3, vocab_size=4)
    head = random_head(small, [0, 1, 3])
    plain = SpeculativeEngine(small)

    class Permuted(EagleDrafter):
        def _in_target_ids(self, logits):
            return super()._in_target_ids(logits)

        def propose(self, tokens, gamma, source):
            proposal = super().propose(tokens, gamma, source)
            if proposal.probs is None:
                return proposal
            wrong = proposal.probs[:, [1, 0, 2, 3]]
            held = wrong[range(len(wrong)), proposal.tokens]
            return replace(proposal, probs=wrong) if held.all() else proposal

    class Drops(EagleDrafter):
        def propose(self, tokens, gamma, source):
            p = super().propose(tokens, gamma, source)
            unsure = p.probs is not None and len(p.tokens) and p.probs[-1, p.tokens[-1]] < 0.5
            return replace(p, tokens=p.tokens[:-1], probs=p.probs[:-1]) if unsure else p

    def outputs(engine):
        return enumerate_distribution(
            lambda source: tuple(engine.generate([1, 3], 2, temperature=1.2, source=source).tokens)
        )

    want = outputs(plain)
    for wrong in (Permuted(head), Drops(head)):
        found = outputs(SpeculativeEngine(small, wrong, 2))
        assert max(abs(found.get(x, 0.0) - p) for x, p in want.items()) > 1e-3


def expected_drafts(target, head, tokens, n):
    """What the head drafts after `tokens`, without a cache: everything made anew from the text for each token."""
    cache = target.new_cache(len(tokens))
    states = target.forward_pass(torch.tensor(tokens[:-1]), cache, slice(0), layers=head.config.layers).features
    state, ids, c = head.fused(states), list(tokens[1:]), head.config
    for _ in range(n):
        length = len(ids)
        mask = torch.ones(length, length).tril().bool().repeat(c.n_heads // c.n_kv_heads, 1)
        fresh = DenseCache(1, c.n_kv_heads, c.head_dim, length, target.dtype)
        embedded = target.embed.weight[torch.tensor(ids)]
        output = head(state, embedded, target.cos[:length], target.sin[:length], mask, fresh)
        logits = target.head.weight[head.tokens] @ head.norm(output[-1])
        ids.append(int(head.tokens[logits.argmax()]))
        state = torch.cat([state, output[-1:]])
    return ids[-n:] if n else []


def check_drafts(target, drafter):
    head, rounds = copy.deepcopy(drafter.head).double(), []
    SpeculativeEngine(target, drafter, 4).generate(
        PROMPT, 24, on_round=lambda run, r: rounds.append((run.tokens[: -len(r.kept)], r.proposal.tokens))
    )
    for tokens, found in rounds:
        assert found == expected_drafts(target, head, tokens, len(found))
    assert sum(len(found) for _, found in rounds) > 20


def test_drafts_are_the_heads_own_argmax(target, drafter):
    check_drafts(target, drafter)


DRAFTER = "specdec_ref.draft.eagle:EagleDrafter."
MUTANTS = [
    bug("states of other layers", "", DRAFTER + "__init__", ("head.config.layers", "(1, 2, 0)")),
    bug("tokens one place off", "", DRAFTER + "propose", ("tokens[self._known + 1 :]", "tokens[self._known : -1]")),
    bug("map of tokens permuted", "", DRAFTER + "_draw", ("self._ids[guess.best]", "self._ids[guess.best - 1]")),
    bug("cache not truncated", "", DRAFTER + "commit", ("self.cache.truncate(self._known)", "pass")),
    bug(
        "drafts kept in the cache", "", DRAFTER + "commit", ("truncate(self._known)", "truncate(self.cache.length - 1)")
    ),
    bug(
        "not on from its own state",
        "",
        DRAFTER + "propose",
        ("states, ids = guess.state", "states, ids = 0 * guess.state"),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_planted_bugs_change_the_drafts(mutant, target, drafter):
    """Whatever is drafted, the output stays the target's: only the drafts themselves can show these."""
    with planted(mutant), pytest.raises((AssertionError, ValueError, RuntimeError)):
        check_drafts(target, EagleDrafter(drafter.head))
