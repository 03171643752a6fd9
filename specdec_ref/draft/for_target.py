"""A trained draft belongs to one target: the check that all of them share."""

from __future__ import annotations

from specdec_ref.interfaces import CausalLM
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.models.llama import Llama


def check_target(target: CausalLM, hidden_size: int, wanted: str | None) -> None:
    """Raises ValueError unless `target` is the reference Llama with these sizes, and with this fingerprint if given."""
    if not isinstance(target, Llama):
        raise ValueError(
            f"a trained draft reads the hidden states of the reference Llama, and the target is a "
            f"{type(target).__name__}: give a model that load_model returns for a Llama"
        )
    if target.config.hidden_size != hidden_size:
        raise ValueError(f"the draft reads states of {hidden_size} numbers, the target has {target.config.hidden_size}")
    if wanted is not None and (found := fingerprint(target)) != wanted:
        raise ValueError(
            f"this draft was trained for a target with fingerprint {wanted[:12]}, this one has {found[:12]}: it would "
            "guess badly. Train one for it with specdec train-draft, or draft by lookup"
        )
