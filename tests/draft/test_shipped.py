"""Trained drafts in the package: files that can be read, cards that say what they are, a target that they fit."""

import json

import pytest

from specdec_ref import load_model
from specdec_ref.draft.eagle import EagleDrafter
from specdec_ref.draft.shipped import FOLDER, shipped_draft, shipped_kinds
from specdec_ref.draft.weights import read_draft
from specdec_ref.engine import SpeculativeEngine

MOST_BYTES = 40_000_000


def test_a_kind_that_is_not_shipped_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"no draft of kind 'psychic'.*eagle.*specdec train-draft"):
        shipped_draft("psychic")


def test_all_drafts_together_stay_small():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("kind", shipped_kinds())
def test_the_card_says_what_the_report_says(kind):
    folder = shipped_draft(kind).parent
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    about = read_draft(shipped_draft(kind))[1]
    assert about == report["about"] and about["kind"] == kind
    for text in (
        about["target"],
        report["date"],
        report["machine"],
        f"{report['answer_tokens']:,}",
        "Apache-2.0",
        "NOTICE",
    ):
        assert text in card
    for figures in report["tokens_per_round"].values():
        assert "| **mean** |" in card and f"{figures['mean']:.2f}" in card


@pytest.mark.model
def test_the_shipped_head_pays_for_itself_and_changes_nothing():
    """Greedy text is the target's own, in fewer rounds."""
    model = load_model()
    prompt = [{"role": "user", "content": "Write a short letter to a friend about a walk in the mountains."}]
    plain = SpeculativeEngine(model).generate(prompt, 48)
    drafted = SpeculativeEngine(model, EagleDrafter.read(), gamma=3).generate(prompt, 48)
    assert drafted.tokens == plain.tokens
    assert len(drafted.tokens) / drafted.stats.rounds > 1.3
