"""The exact suite for trees: the production loop, enumerated, and both caches of a real Llama after every round."""

from __future__ import annotations

import copy

import torch

from specdec_ref.cache.paged import PagedKVPool
from specdec_ref.draft.tree import TreeDrafter
from specdec_ref.engine import Round, Run, SpeculativeEngine
from specdec_ref.interfaces import KVCache
from specdec_ref.models.llama import Llama, LlamaConfig
from specdec_ref.proof.enumeration import enumerate_branches
from specdec_ref.proof.exact import Check
from specdec_ref.proof.scenario import OPTIONS, SHAPES, NothingShown, Scenario, events

SHOWN = ("accepted", "rejected", "second guess", "moved")

SCENARIOS: dict[str, Scenario] = {
    "two, distinct": Scenario("token", "two, distinct", budget=2, shows=SHOWN),
    "two, independent": Scenario("token", "two, independent", budget=2, shows=SHOWN),
    "three, distinct": Scenario("token", "three, distinct", vocab=4, gamma=3, budget=2, shows=SHOWN),
    "comb, best": Scenario("token", "comb, best", gamma=5, shows=(*SHOWN, "deep", "bonus")),
    "comb, best, matched": Scenario("match", "comb, best", gamma=5, shows=(*SHOWN, "deep", "bonus")),
    "bush, distinct": Scenario("token", "bush, distinct", vocab=2, gamma=5, prompt=(1,), shows=(*SHOWN, "deep")),
    "comb, independent": Scenario("token", "comb, independent", vocab=2, gamma=5, prompt=(0,), shows=(*SHOWN, "deep")),
    "bush, best, top-p": Scenario(
        "token", "bush, best", OPTIONS["top-p"], gamma=5, prompt=(1,), shows=("accepted", "rejected")
    ),
    "bush, best, greedy": Scenario(
        "token", "bush, best", OPTIONS["greedy"], gamma=5, prompt=(1,), budget=5, shows=("accepted",)
    ),
    "bush, best, frequency": Scenario("token", "bush, best", OPTIONS["frequency"], gamma=5, prompt=(1,), shows=SHOWN),
    "bush, best, bad words": Scenario(
        "token", "bush, best", OPTIONS["bad words"], gamma=5, prompt=(1,), shows=("accepted",)
    ),
    "deep, best, eos": Scenario("token", "deep, best", gamma=5, prompt=(1,), eos=(1,), shows=(*SHOWN, "eos", "cut")),
    "deep, best": Scenario(
        "token", "deep, best", gamma=5, prompt=(1,), budget=4, shows=(*SHOWN, "deep", "draft moved")
    ),
    "dynamic": Scenario("token", "dynamic", gamma=5, prompt=(1,), shows=(*SHOWN, "deep")),
}
"""Shapes, ways to find guesses and options, each with what has to happen on some branch."""


def tiny_llama(seed: int, n_layers: int = 2) -> Llama:
    """Random weights in float64, so that its distributions are neither flat nor one-hot."""
    generator = torch.Generator().manual_seed(seed)
    model = Llama(LlamaConfig(13, 24, 40, n_layers, 4, 2, 6, 96, 10_000.0, 1e-5, False), torch.float64).eval()
    for name, weight in model.named_parameters():
        if "norm" not in name:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(noise * (0.4 if "layers" in name else 1.0))
    return model


def off_a_prefill(model: Llama, cache: KVCache, tokens: list[int]) -> float:
    """The largest difference between what a cache holds and what a prefill of these tokens gives."""
    fresh = model.new_cache(max(1, cache.length))
    model.forward(torch.tensor(tokens[: cache.length], dtype=torch.long), fresh, slice(0))
    held = cache.gather() if hasattr(cache, "gather") else (cache.keys, cache.values)  # type: ignore[attr-defined]
    both = zip(held, (fresh.keys, fresh.values), strict=True)  # type: ignore[attr-defined]
    return max(float((a[:, :, : cache.length] - b).abs().max()) for a, b in both)


def llama_deviation(paged: bool, temperature: float) -> float:
    """How far both caches of a Llama and its noisy copy are from a prefill's, and, greedy, the output from plain's.

    Raises NothingShown where no round moves a path in either cache.
    """
    target = tiny_llama(1)
    draft = copy.deepcopy(target)
    noise = torch.Generator().manual_seed(2)
    for weight in draft.layers.parameters():
        weight.add_(0.1 * torch.randn(weight.shape, generator=noise, dtype=torch.float64))
    pools = [PagedKVPool(model, 40, 4) if paged else None for model in (target, draft)]
    drafter = TreeDrafter(draft, SHAPES["deep"] + [(1, 1), (2,)], pool=pools[1])
    engine, off, happened = SpeculativeEngine(target, drafter, 7, pool=pools[0]), [0.0], set[str]()

    def look(run: Run, round_: Round) -> None:
        assert run.cache is not None and isinstance(run.drafter, TreeDrafter)
        happened.update(events(run, round_))
        off.append(off_a_prefill(target, run.cache, run.tokens))
        off.append(float(run.cache.length != len(run.tokens) - 1))
        off.append(off_a_prefill(draft, run.drafter.cache, run.tokens))
        lacks = len(run.tokens) - 1 - run.drafter.cache.length
        if round_.proposal.tokens:  # where nothing was drafted the draft took nothing in
            off.append(float(lacks > (round_.verdict.origin == "bonus") or lacks < 0))

    out = engine.generate([3, 1, 4], 30, temperature=temperature, seed=1, on_round=look, eos_token_id=None)
    if temperature == 0:
        plain = SpeculativeEngine(target).generate([3, 1, 4], 30, eos_token_id=None)
        off.append(float(out.tokens != plain.tokens))
    if missing := {"moved", "draft moved", "deep"} - happened:
        raise NothingShown(f"in no round does this happen: {', '.join(sorted(missing))}")
    return max(off)


def rejected_though_equal() -> float:
    """Expected number of corrections where draft and target are one model: 0, since the first guess is always kept."""
    scenario, total = Scenario("token", "two of its own", budget=2), 0.0
    engine = scenario.engine()
    for branch in enumerate_branches(lambda source: scenario.generate(engine, source).stats.corrected):
        total += branch.probability * branch.outcome
    return total


def tree_checks() -> list[Check]:
    """The checks that bugs planted into trees have to be found by, the fastest first."""
    checks = [Check(f"tree: {name}", scenario.deviation) for name, scenario in SCENARIOS.items()]
    llamas = [
        Check(
            f"tree on a Llama: {'paged' if paged else 'dense'} caches, temperature {temperature}",
            lambda paged=paged, temperature=temperature: llama_deviation(paged, temperature),  # type: ignore[misc]
        )
        for paged in (False, True)
        for temperature in (0.0, 1.0)
    ]
    deep = Check("tree: caches and counts", SCENARIOS["deep, best"].broken_invariants)
    equal = Check("tree: draft = target, nothing rejected", rejected_though_equal)
    return [equal, *checks[:5], llamas[0], *checks[5:], *llamas[1:], deep]
