"""Early exit: the target drafts for itself, with its first layers and its own head (Elhoushi et al. 2024).

No second model and no training are needed, and the weights are in memory already. But a model that was not trained to
be read early says little before its last layers, and the head costs as much as in a whole pass.

Source: LayerSkip (arXiv 2404.16710), which trains the target with early exits; Draft & Verify (arXiv 2309.08168).
"""

from __future__ import annotations

from typing import Any

from specdec_ref.draft.model import DraftModelDrafter
from specdec_ref.interfaces import CausalLM
from specdec_ref.sampling import Sampling


class EarlyExitDrafter(DraftModelDrafter):
    """Drafts with the target's first `n_layers` layers, its last norm and its head.

    Its keys and values are those of the target's own first layers, number for number, and still it keeps a cache of its
    own: a draft runs ahead of the target, and what it writes must not be seen in a cache that other runs may share and
    that has to hold committed tokens alone. That costs n_layers / all of the target's cache and of its prefill.
    Raises ValueError for fewer layers than 1.
    """

    def __init__(self, n_layers: int) -> None:
        if n_layers < 1:
            raise ValueError(f"n_layers is {n_layers}: give 1 or more, and fewer than the target has")
        self.n_layers = n_layers
        self._target: CausalLM | None = None

    def check(self, target: CausalLM) -> None:
        """Raises ValueError for a target that cannot be left early: another class, or one with too few layers."""
        self._take_layers(target)

    def begin(self, target: CausalLM, sampling: Sampling, capacity: int) -> DraftModelDrafter:
        self._take_layers(target)
        return super().begin(target, sampling, capacity)

    def _take_layers(self, target: Any) -> None:
        if self._target is target:
            return
        if not hasattr(target, "first_layers"):
            raise ValueError(
                f"early exit needs a target with first_layers, and {type(target).__name__} has none: give a model that "
                "load_model returns for a Llama, or another drafter"
            )
        super().__init__(target.first_layers(self.n_layers))
        self._target = target
