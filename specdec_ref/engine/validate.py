"""Validation of what comes from outside: the user's options, a drafter's proposals, a rule's verdicts."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from specdec_ref.interfaces import CausalLM, Drafter, Proposal, Verdict
from specdec_ref.sampling import Sampling

SAMPLING_OPTIONS = [f.name for f in fields(Sampling)]
OTHER_OPTIONS = ["seed", "source", "stop", "eos_token_id", "logprobs", "streamer", "on_round"]
NAMES_ELSEWHERE = {
    "do_sample": "a temperature above 0 samples, 0 is greedy",
    "max_length": "max_new_tokens counts the output alone",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "n": "generate_many(prompt, n) gives several texts",
    "num_return_sequences": "generate_many(prompt, n)",
    "stop_strings": "stop",
    "eos": "eos_token_id",
    "stop_token_ids": "eos_token_id",
    "bad_words_ids": "bad_words",
    "sequence_bias": "logit_bias",
    "logits_processor": "processors",
    "assistant_model": "SpeculativeEngine(target, DraftModelDrafter(model))",
}
"""What other libraries call an option, and what it is here."""

DISTRIBUTION_TOLERANCE = 1e-4
"""How far a distribution's sum may be from 1: float32 stays well within it, and the output's distribution is off by
less.
"""
DISTRIBUTION_TOLERANCE_16 = 1e-2
"""The same for distributions in 16 bits, which are renormalised, as the drafter did when it sampled."""


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises ValueError unless it is a whole number, 0 or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}: give a whole number, 0 or more")
    return number


def sampling_options(options: Mapping[str, Any], target: CausalLM) -> Sampling:
    """A `Sampling` of the options by name; None leaves one at its default, words in bad_words become ids.

    Raises TypeError for an option that does not exist, ValueError for a value that makes no sense.
    """
    for name in options:
        if name not in SAMPLING_OPTIONS:
            near = difflib.get_close_matches(name, SAMPLING_OPTIONS + OTHER_OPTIONS, 1)
            hint = NAMES_ELSEWHERE.get(name) or (f"did you mean {near[0]}?" if near else "see help(engine.stream)")
            raise TypeError(f"no option {name!r}: {hint}")
    given = {name: value for name, value in options.items() if value is not None or name == "temperature"}
    if "bad_words" in given:
        given["bad_words"] = _bad_words(given["bad_words"], target)
    return Sampling(**given)


def stop_strings(stop: str | Iterable[str] | None, target: CausalLM) -> list[str]:
    """The strings that end the text. Raises ValueError for an empty one, or where no tokenizer makes text."""
    stop = () if stop is None else stop
    strings = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if not all(isinstance(s, str) and s for s in strings):
        raise ValueError(f"stop is {stop!r}: give strings that are not empty")
    if strings and target.tokenizer is None:
        raise ValueError("stop strings need a model with a tokenizer: use eos_token_id for ids")
    return strings


def eos_ids(eos: int | Iterable[int] | torch.Tensor | str | None, target: CausalLM) -> frozenset[int]:
    """The ids that end the output. Raises ValueError for anything that is not an id of the target."""
    if eos is None:
        return frozenset()
    if isinstance(eos, str):
        if eos != "target":
            raise ValueError(f"eos_token_id is {eos!r}: give an id, several, or None")
        return frozenset(target.eos_token_ids)
    if isinstance(eos, torch.Tensor):
        eos = eos.tolist()
    ids = [whole("eos_token_id", i) for i in (eos if isinstance(eos, Iterable) else [eos])]
    outside = [i for i in ids if i >= target.vocab_size]
    if outside:
        raise ValueError(f"eos_token_id {outside[0]} is outside the vocabulary, 0 to {target.vocab_size - 1}")
    return frozenset(ids)


def check_drafter(drafter: Any) -> None:
    """Raises TypeError for what is no `Drafter`."""
    if not isinstance(drafter, Drafter):
        name = type(drafter).__name__
        wrap = f": a model drafts as DraftModelDrafter({name})" if hasattr(drafter, "forward") else ""
        raise TypeError(
            f"{name} is no drafter{wrap}: derive it from specdec_ref.interfaces.Drafter, which needs propose(tokens, "
            "gamma, source) and has a default for the rest"
        )


def check_features(drafter: Drafter, target: CausalLM) -> None:
    """Raises ValueError where a drafter asks for hidden states that the target does not show."""
    if drafter.layers and not hasattr(target, "forward_pass"):
        raise ValueError(
            f"{type(drafter).__name__} reads hidden states of the target, and {type(target).__name__} shows none: give "
            "a model with forward_pass (the reference Llama has it), or another drafter"
        )


def check_trees(target: CausalLM, rule: Any) -> None:
    """Raises ValueError where a tree was proposed that the target or the rule cannot verify."""
    if not hasattr(target, "forward_pass"):
        raise ValueError(
            f"the drafter proposed a tree, and {type(target).__name__} takes no mask in its forward pass: give a model "
            "with forward_pass (load_model returns one), or a drafter of chains"
        )
    if rule.verify_tree is None:
        raise ValueError(
            f"the drafter proposed a tree, and rule {rule.name!r} verifies chains: use rule='token', which verifies "
            "both, or a drafter of chains"
        )


def _check_parents(proposal: Proposal) -> None:
    parents = proposal.parents
    assert parents is not None
    fits = len(parents) == len(proposal.tokens)
    if not (fits and all(parent == -1 or _index(parent, i) for i, parent in enumerate(parents))):
        raise ValueError(
            f"the proposal is a tree of {len(proposal.tokens)} tokens with parents {parents}: each token needs one, -1 "
            "for the last committed token or the index of a token before it"
        )


def check_proposal(proposal: Any, gamma: int, vocab_size: int) -> Proposal:
    """The proposal, distributions in 16 bits normalised, and a tree that is a chain as a chain.

    Raises ValueError or TypeError for what would break output silently.
    gamma: how many tokens were asked for; vocab_size: the target's.
    """
    if not isinstance(proposal, Proposal):
        raise TypeError(f"the drafter returned {type(proposal).__name__}: propose returns a Proposal(tokens, probs)")
    tokens, probs = proposal.tokens, proposal.probs
    if len(tokens) > gamma:
        raise ValueError(f"the drafter proposed {len(tokens)} tokens where {gamma} were asked for: cut before drawing")
    for x in tokens:
        if not _index(x, vocab_size):
            raise ValueError(f"the drafter proposed {x!r}: a token is an int from 0 to {vocab_size - 1}")
    if proposal.parents is not None:
        _check_parents(proposal)
        if list(proposal.parents) == list(range(-1, len(tokens) - 1)):
            proposal = replace(proposal, parents=None)
    if probs is not None and len(tokens):
        if probs.shape[-1] > vocab_size:
            raise ValueError(
                f"the draft's distributions have {probs.shape[-1]} tokens, the target {vocab_size}: crop the logits"
            )
        rounded = probs.dtype in (torch.float16, torch.bfloat16)
        sums, least = probs.sum(-1, dtype=torch.float32), probs.amin().item()
        tolerance = DISTRIBUTION_TOLERANCE_16 if rounded else DISTRIBUTION_TOLERANCE
        if not (((sums - 1).abs() <= tolerance).all() and least >= 0):
            raise ValueError(
                f"the draft's distributions sum to {[round(s, 5) for s in sums.tolist()]}, least entry {least:.3g}: "
                "each has to be a probability distribution, the one its token was drawn from"
            )
        for i, x in enumerate(tokens):
            if x >= probs.shape[-1] or probs[i, x] <= 0:
                raise ValueError(
                    f"drafted token {x} at place {i} has probability 0: report the distribution it was drawn from"
                )
        if rounded:
            return replace(proposal, probs=probs.float() / sums.unsqueeze(-1))
    return proposal


def check_verdict(verdict: Any, proposal: Proposal, vocab_size: int) -> Verdict:
    """The verdict itself. Raises TypeError or ValueError where a rule of the user's own would break the output."""
    drafted = len(proposal.tokens)
    if not isinstance(verdict, Verdict):
        raise TypeError(f"the rule returned {type(verdict).__name__}: a rule returns Verdict(accepted, token, origin)")
    if not _index(verdict.accepted, drafted + 1):
        raise ValueError(f"the rule accepted {verdict.accepted!r} of {drafted} drafts: give an int from 0 to {drafted}")
    if not all(_index(i, drafted) for i in verdict.indices) or list(verdict.indices) != sorted(set(verdict.indices)):
        raise ValueError(f"the rule kept drafts {verdict.indices} of {drafted}: give rising indices below {drafted}")
    if proposal.parents is not None and verdict.accepted:
        path = list(verdict.indices)
        if path != (whole_path := proposal.path(path[-1])):
            raise ValueError(f"the rule kept drafts {path}, which are no path of the tree: give {whole_path}")
    if not _index(verdict.token, vocab_size):
        raise ValueError(f"the rule emitted {verdict.token!r}: a token is an int from 0 to {vocab_size - 1}")
    return verdict


def _index(x: Any, n: int) -> bool:
    """Whether `x` is an int from 0 to n - 1. A tensor is none: it would never be found among the end tokens."""
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < n


def _bad_words(words: Any, target: CausalLM) -> Any:
    """Ids stay; a text becomes its ids, as the first word of a text and after a space."""
    if isinstance(words, str):
        words = [words]
    if not isinstance(words, Iterable):
        return words
    ids: list[Any] = []
    for word in words:
        if not isinstance(word, str):
            ids.append(word)
        elif target.tokenizer is None:
            raise ValueError(f"bad_words has the text {word!r}, and this model no tokenizer: give token ids")
        else:
            ids += [target.tokenizer.encode(s, add_special_tokens=False) for s in (word, " " + word.lstrip())]
    return ids
