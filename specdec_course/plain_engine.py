"""The engine of lesson 05 in one listing, greedy and sampling: draft, verify in one pass, accept, roll back, stop."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated, override"
# It is read as a lesson's code is: short names, no types. `suspects` changes one line of it at a time.

import torch


def prefill(model, tokens, capacity):
    """A cache that holds all of `tokens` but the last one."""
    cache = model.new_cache(capacity)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    return cache


def accept_prefix(drafted, best):
    """How many drafts stay: those before the first that differs from the target's choice."""
    accepted = 0
    for draft, choice in zip(drafted, best):
        if draft != choice:
            break
        accepted += 1
    return accepted


def roll_back(cache, tokens):
    """After this the cache holds every committed token but the pending one."""
    cache.truncate(len(tokens) - 1)


def limit(gamma, room):
    """How many tokens to draft when `room` more may be emitted."""
    return min(gamma, room - 1)


def cut(emitted, eos):
    """The emitted tokens up to the first that ends the text, and that one too."""
    for i, token in enumerate(emitted):
        if token in eos:
            return emitted[: i + 1]
    return emitted


def generate(model, propose, prompt, max_new_tokens, gamma=4, eos=(), watch=lambda cache, tokens: None):
    """New tokens, and (drafted, accepted) of each round."""
    tokens, rounds, end = list(prompt), [], len(prompt) + max_new_tokens
    cache = prefill(model, tokens, capacity=end)
    while len(tokens) < end and not (rounds and tokens[-1] in eos):
        drafted = propose(tokens, limit(gamma, end - len(tokens)))
        logits = model.forward(torch.tensor([tokens[-1], *drafted]), cache)
        best = logits.argmax(-1).tolist()
        accepted = accept_prefix(drafted, best)
        emitted = [*drafted[:accepted], best[accepted]]
        tokens += cut(emitted, eos)
        roll_back(cache, tokens)
        rounds.append((len(drafted), accepted))
        watch(cache, tokens)
    return tokens[len(prompt) :], rounds


def missing(tokens, held):
    """The committed tokens that the draft's cache lacks; it holds the first `held` of them."""
    return tokens[held:]


class DraftModel:
    """Drafts greedily with a model that has a cache of its own."""

    def __init__(self, model, capacity):
        self.model, self.cache = model, model.new_cache(capacity)

    def __call__(self, tokens, gamma):
        self.cache.truncate(min(self.cache.length, len(tokens) - 1))
        drafted, new = [], missing(tokens, self.cache.length)
        for _ in range(gamma):
            logits = self.model.forward(torch.tensor(new), self.cache, slice(len(new) - 1, None))
            new = [int(logits[0].argmax())]
            drafted += new
        return drafted


def distribution(logits, temperature):
    """Probabilities at a temperature above 0."""
    return torch.softmax(logits / temperature, -1)


def residual(p, q):
    """max(0, p - q); p itself where rounding leaves nothing of that."""
    left = (p - q).clamp(min=0)
    return left if left.sum() > 0 else p


def verify_tokenwise(drafted, q, p, source):
    """How many drafts stay, and the target's token after them. p has one row more than there are drafts."""
    for i, x in enumerate(drafted):
        if not source.bernoulli(min(1.0, float(p[i][x] / q[i][x]))):
            return i, source.categorical(residual(p[i], q[i]))
    return len(drafted), source.categorical(p[len(drafted)])


def sample(model, propose, prompt, max_new_tokens, source, temperature, gamma=4, eos=()):
    """New tokens, drawn, and (drafted, accepted) of each round."""
    tokens, rounds, end = list(prompt), [], len(prompt) + max_new_tokens
    cache = prefill(model, tokens, capacity=end)
    while len(tokens) < end and not (rounds and tokens[-1] in eos):
        drafted, q = propose(tokens, limit(gamma, end - len(tokens)), source)
        p = distribution(model.forward(torch.tensor([tokens[-1], *drafted]), cache), temperature)
        accepted, token = verify_tokenwise(drafted, q, p, source)
        tokens += cut([*drafted[:accepted], token], eos)
        roll_back(cache, tokens)
        rounds.append((len(drafted), accepted))
    return tokens[len(prompt) :], rounds


class SamplingDraft(DraftModel):
    """Drafts by drawing; hands over the distribution that each token was drawn from."""

    def __init__(self, model, capacity, temperature):
        super().__init__(model, capacity)
        self.temperature = temperature

    def __call__(self, tokens, gamma, source):
        self.cache.truncate(min(self.cache.length, len(tokens) - 1))
        drafted, distributions, new = [], [], missing(tokens, self.cache.length)
        for _ in range(gamma):
            logits = self.model.forward(torch.tensor(new), self.cache, slice(len(new) - 1, None))
            distributions.append(distribution(logits[0], self.temperature))
            new = [source.categorical(distributions[-1])]
            drafted += new
        return drafted, distributions
