"""Why greedy outputs of two arms differ: the model itself examines each first difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specdec_ref.bench.arms import OURS, Sample
from specdec_ref.interfaces import CausalLM
from specdec_ref.measure.neartie import compare_greedy

REFERENCE = {
    "q4": "q4 plain",
    "q4a8": "q4a8 plain",
    "bf16": "bf16 plain",
    "transformers": "bf16 plain",
    "openvino": "q4 plain",
    "llamacpp": "q4 plain",
}
"""For each worker the arm whose tokens it should write, rounding aside: the same weights, decoded plainly."""


def differences(
    samples: Mapping[str, Mapping[str, Sequence[Sample]]],
    workers: Mapping[str, str],
    ids: Mapping[str, list[int]],
    models: Mapping[str, CausalLM],
) -> list[dict[str, Any]]:
    """Every prompt on which an arm wrote different tokens from its reference, and what `compare_greedy` says about it.

    workers: arm -> worker. models: those of `arms.OURS` that took part, the models that compute the logits again.
    Libraries differ in more than the order of sums (where they round, whether activations are quantised): between
    libraries, an "error" means no more than that the flip is larger than our own rounding. An arm whose repeats differ
    among themselves is entered with kind "not repeatable".
    """
    found = []
    for arm, by in samples.items():
        reference = REFERENCE[workers[arm]]
        model = models.get(reference.split()[0])
        for prompt, repeats in by.items():
            if len({tuple(s.tokens) for s in repeats}) > 1:
                found.append({"arm": arm, "prompt": prompt, "kind": "not repeatable"})
            if reference not in samples or model is None or arm == reference:
                continue
            ours, theirs = samples[reference][prompt][0].tokens, repeats[0].tokens
            if ours != theirs:
                found.append({"arm": arm, "prompt": prompt, **asdict(compare_greedy(ours, theirs, model, ids[prompt]))})
    return found


def unexplained(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The differences within our own engine that rounding does not explain, in words: faults."""
    return [
        f"{d['arm']} on {d['prompt']}: token {d.get('position')} differs by more than rounding"
        for d in found
        if d["arm"].split()[0] in OURS and d["kind"] in ("error", "not repeatable")
    ]
