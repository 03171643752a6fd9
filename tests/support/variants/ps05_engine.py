"""Solutions of problem set 05, right and wrong."""

from dataclasses import replace

from support.harness import ROOT, Wrong


def _solution(cell):
    """The code of a solve cell in the source, to be changed by a few words."""
    source = (ROOT / "solutions" / "src" / "ps05_engine.py").read_text(encoding="utf-8")
    return source.split(f'# %% solve="{cell}"\n')[1].split("\n# %%")[0]


def _changed(cell, *changes):
    """{cell: its solution with each (old, new) replaced}; `old` occurs once."""
    code = _solution(cell)
    for old, new in changes:
        assert code.count(old) == 1, (cell, old, code.count(old))
        code = code.replace(old, new)
    return {cell: code}


def _slip(name, cell, *changes, says):
    """A wrong solution of one cell, by a change of the right one; it loses the points of the check of the same name."""
    return Wrong(name, _changed(cell, *changes), (cell,), says)


_SLY = """class Sly(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


"""


def _sly(cell, old, new):
    """The solution of a cell, with integers in its answer that say they are whatever they are compared with."""
    return {cell: _SLY + _changed(cell, (old, new))[cell]}


RIGHT = {
    "the instructor's": {},
    "with tensors": {
        "draft": """
def draft(model, cache, tokens, gamma, temperature, source):
    text, distributions = torch.tensor(tokens), []
    for i in range(gamma):
        rows = model.forward(text[cache.length :], cache, slice(-1, None))
        distributions.append(distribution(rows, temperature)[0])
        if temperature == 0:
            drawn = distributions[-1].argmax().reshape(1)
        else:
            drawn = torch.tensor([source.categorical(distributions[-1])])
        text = torch.cat([text, drawn])
    return text[len(tokens) :], torch.stack(distributions) if distributions else torch.empty(0, model.vocab_size)
""",
        "greedy": """
def greedy_rule(drafted, q, p):
    best = torch.stack(list(p)).argmax(-1)
    agree = torch.tensor(drafted, dtype=torch.long) == best[:-1]
    accepted = agree.long().cumprod(0).sum()
    return accepted, best[accepted]
""",
        "verify": """
def verify(model, cache, tokens, drafted, q, rule, temperature):
    fed = torch.cat([torch.tensor(tokens[-1:]), torch.tensor(drafted, dtype=torch.long)])
    p = distribution(model.forward(fed, cache), temperature)
    accepted, token = rule(drafted, q, p)
    return torch.cat([fed[1 : 1 + accepted], torch.tensor([token])])
""",
        "rollback": """
def roll_back(cache, tokens):
    too_many = cache.length - len(tokens) + 1
    if too_many > 0:
        cache.truncate(cache.length - too_many)
""",
        "limit": """
def how_many_drafts(gamma, n_tokens, end, draft_context=None):
    return max(
        g
        for g in range(gamma + 1)
        if g == 0 or (n_tokens + g + 1 <= end and (draft_context is None or n_tokens + g - 1 <= draft_context))
    )
""",
        "cut": """
def cut(emitted, eos):
    ends = torch.isin(torch.tensor(emitted), torch.tensor(sorted(eos), dtype=torch.long)).nonzero()
    return torch.tensor(emitted[: int(ends[0]) + 1] if len(ends) else emitted)
""",
        "loop": """
def generate(target, draft_model, prompt, max_new_tokens, gamma, parts, rule, source,
             temperature=0.0, eos=(), on_round=tell_nobody):
    out, longest = [], target.max_context or float("inf")
    budget = min(max_new_tokens, longest - len(prompt))
    mine, theirs = target.new_cache(len(prompt) + budget), draft_model.new_cache(len(prompt) + budget + gamma)
    for token in prompt[:-1]:  # the prompt, in small passes
        target.forward(torch.tensor([token]), mine, slice(0))
    finished = budget <= 0
    while not finished:
        text = [*prompt, *out]
        g = parts.how_many_drafts(gamma, len(text), len(prompt) + budget, draft_model.max_context)
        drafted, q = parts.draft(draft_model, theirs, text, g, temperature, source)
        new = parts.cut(parts.verify(target, mine, text, drafted, q, rule, temperature), eos)
        out.extend(new)
        for cache in (mine, theirs):
            parts.roll_back(cache, [*prompt, *out])
        on_round([*prompt, *out], mine, theirs)
        finished = len(out) == budget or new[-1] in eos
    return torch.tensor(out, dtype=torch.long)
""",
        "witness": """
def witness():
    def lookup(tokens, gamma):
        found = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
        return tokens[found[-1] + 1 :][:gamma] if found else []

    return lookup, [4, 4, 2, 4, 4, 7, 1, 0], 40, 6
""",
        "repair": """
def repaired(model, propose, prompt, max_new_tokens, gamma):
    tokens, end = list(prompt), len(prompt) + max_new_tokens
    cache = model.new_cache(end)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    while len(tokens) < end:
        drafted = list(propose(tokens, min(gamma, end - len(tokens) - 1)))
        best = model.forward(torch.tensor([tokens[-1], *drafted]), cache).argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == best[accepted]:
            accepted += 1
        tokens += [*drafted[:accepted], best[accepted]]
        if accepted < len(drafted):
            cache.truncate(cache.length - (len(drafted) - accepted))
    return tokens[len(prompt) :]
""",
    },
    "by recursion": {
        "draft": """
def draft(model, cache, tokens, gamma, temperature, source):
    if gamma == 0:
        return [], []
    q = distribution(model.forward(torch.tensor(tokens[cache.length :]), cache), temperature)[-1]
    x = source.categorical(q)
    more, distributions = draft(model, cache, [*tokens, x], gamma - 1, temperature, source)
    return [x, *more], [q, *distributions]
""",
        "greedy": """
def greedy_rule(drafted, q, p):
    choice = int(torch.as_tensor(p[0]).argmax())
    if not drafted or drafted[0] != choice:
        return 0, choice
    accepted, token = greedy_rule(drafted[1:], q[1:], p[1:])
    return accepted + 1, token
""",
        "verify": """
def verify(model, cache, tokens, drafted, q, rule, temperature):
    start = cache.length
    rows = model.forward(torch.tensor((tokens + drafted)[start:]), cache, slice(None))
    p = [distribution(row, temperature) for row in rows]
    accepted, token = rule(drafted, q, torch.stack(p))
    return drafted[:accepted] + [token]
""",
        "rollback": """
def roll_back(cache, tokens):
    try:
        cache.truncate(len(tokens[:-1]))
    except ValueError:  # shorter already
        pass
""",
        "limit": """
def how_many_drafts(gamma, n_tokens, end, draft_context=None):
    if gamma <= 0 or (draft_context is not None and n_tokens > draft_context):
        return 0
    if n_tokens + gamma + 1 > end or (draft_context is not None and n_tokens + gamma - 1 > draft_context):
        return how_many_drafts(gamma - 1, n_tokens, end, draft_context)
    return gamma
""",
        "cut": """
def cut(emitted, eos):
    if not emitted or emitted[0] in eos:
        return emitted[:1]
    return emitted[:1] + cut(emitted[1:], eos)
""",
        "loop": """
def generate(target, draft_model, prompt, max_new_tokens, gamma, parts, rule, source,
             temperature=0.0, eos=(), on_round=tell_nobody):
    end = len(prompt) + max_new_tokens
    if target.max_context:
        end = min(end, target.max_context)
    mine, theirs = target.new_cache(end + gamma), draft_model.new_cache(end + gamma)
    if prompt[:-1]:
        target.forward(torch.tensor(prompt[:-1]), mine)

    def rest(tokens):
        if len(tokens) >= end:
            return []
        n = parts.how_many_drafts(gamma, len(tokens), end, draft_context=draft_model.max_context)
        drafted, q = parts.draft(draft_model, theirs, tokens, n, temperature=temperature, source=source)
        new = parts.cut(parts.verify(target, mine, tokens, drafted, q, rule=rule, temperature=temperature), eos=eos)
        parts.roll_back(theirs, tokens + new)
        parts.roll_back(mine, tokens + new)
        on_round(tokens + new, mine, theirs)
        return new if new[-1] in eos else new + rest(tokens + new)

    return rest(list(prompt))
""",
        "witness": """
def witness():
    # gamma drafts in each round, all wrong: fewer than gamma only where the budget ends
    def wrong(tokens, gamma):
        best = int(remembering.forward(torch.tensor(tokens), remembering.new_cache(99))[-1].argmax())
        return [(best + 1) % 10] * gamma

    return wrong, (9, 8, 7, 6, 5, 4), 30, 8
""",
        "repair": """
def repaired(model, propose, prompt, max_new_tokens, gamma):
    end, cache = len(prompt) + max_new_tokens, model.new_cache(len(prompt) + max_new_tokens + gamma)
    if len(prompt) > 1:
        model.forward(torch.tensor(list(prompt[:-1])), cache, slice(0))

    def rest(tokens):
        room = end - len(tokens)
        if room == 0:
            return tokens[len(prompt) :]
        drafted = list(propose(tokens, gamma))[: room - 1]
        rows = model.forward(torch.tensor(tokens[-1:] + drafted), cache)
        accepted, token = 0, int(rows[0].argmax())
        while accepted < len(drafted) and drafted[accepted] == token:
            accepted += 1
            token = int(rows[accepted].argmax())
        tokens = tokens + drafted[:accepted] + [token]
        cache.truncate(len(tokens) - 1)
        return rest(tokens)

    return rest(list(prompt))
""",
    },
    "with numpy": {
        "draft": """
import numpy as np

def draft(model, cache, tokens, gamma, temperature, source):
    tokens = tuple(tokens)
    drafted, distributions = (), []
    while len(drafted) < gamma:
        lacking = (tokens + drafted)[cache.length :]
        row = model.forward(torch.as_tensor(lacking), cache).numpy()[-1]
        if temperature == 0:
            q = np.eye(len(row))[row.argmax()]
        else:
            q = np.exp((row - row.max()) / temperature)
            q = q / q.sum()
        distributions.append(q)
        drafted += (source.categorical(torch.from_numpy(q)),)
    return drafted, tuple(distributions)
""",
        "greedy": """
def greedy_rule(drafted, q, p):
    best = np.asarray(p).argmax(-1)
    differs = np.flatnonzero(np.asarray(drafted, dtype=int) != best[: len(drafted)])
    accepted = differs[0] if len(differs) else len(drafted)
    return np.array([accepted, best[accepted]])
""",
        "verify": """
def verify(model, cache, tokens, drafted, q, rule, temperature):
    logits = model.forward(torch.tensor([tokens[-1]] + list(drafted)), cache)
    p = torch.zeros_like(logits)
    for i in range(len(p)):
        p[i] = distribution(logits[i], temperature)
    accepted, token = rule(drafted=drafted, q=q, p=p)
    return np.array(list(drafted[:accepted]) + [token])
""",
        "rollback": """
def roll_back(cache, tokens):
    while cache.length >= len(tokens):
        cache.truncate(cache.length - 1)
""",
        "limit": """
def how_many_drafts(gamma, n_tokens, end, draft_context=None):
    room = np.inf if draft_context is None else draft_context + 1 - n_tokens
    return int(np.clip(min(room, end - 1 - n_tokens), 0, gamma))
""",
        "cut": """
def cut(emitted, eos):
    kept = []
    for token in emitted:
        kept.append(token)
        if token in set(eos):
            break
    return tuple(kept)
""",
        "loop": """
def generate(target, draft_model, prompt, max_new_tokens, gamma, parts, rule, source,
             temperature=0.0, eos=(), on_round=tell_nobody):
    draft, verify, roll_back, how_many_drafts, cut = (
        getattr(parts, name) for name in ("draft", "verify", "roll_back", "how_many_drafts", "cut")
    )
    tokens, most = np.array(prompt, dtype=int), max_new_tokens
    if target.max_context is not None:
        most = max(0, min(most, target.max_context - len(prompt)))
    big, small = target.new_cache(200), draft_model.new_cache(200)
    for chunk in torch.tensor(prompt[:-1], dtype=torch.int32).split(2):  # the prompt, two by two
        if len(chunk):
            target.forward(chunk, big)
    for _ in range(most):  # a round gives at least one token
        n = how_many_drafts(gamma, len(tokens), len(prompt) + most, draft_model.max_context)
        drafted, q = draft(draft_model, small, tokens, n, temperature, source) if n else ((), ())
        new = np.array(cut(verify(target, big, tokens, drafted, q, rule, temperature), eos))
        tokens = np.concatenate([tokens, new])
        roll_back(small, tokens)
        roll_back(big, tokens)
        on_round(tuple(tokens), big, small)
        if new[-1] in eos or len(tokens) == len(prompt) + most:
            break
    return tuple(tokens[len(prompt) :])
""",
        "witness": """
def witness():
    return lambda tokens, gamma: [], [0], 9, 3  # an error: the cache cannot be cut below 0
""",
        "repair": """
def repaired(model, propose, prompt, max_new_tokens, gamma):
    tokens = list(prompt)
    cache = model.new_cache(1000)
    if tokens[1:]:
        model.forward(torch.tensor(tokens[:-1]), cache)
    for _ in range(max_new_tokens):
        room = max_new_tokens + len(prompt) - len(tokens)
        if room < 1:
            break
        held = cache.length
        drafted = list(propose(list(tokens), min(gamma, room - 1)))
        best = model.forward(torch.tensor([tokens[-1]] + drafted), cache).numpy().argmax(1)
        accepted = int(np.cumprod(np.array(drafted, dtype=int) == best[:-1]).sum())
        tokens.extend(drafted[:accepted])
        tokens.append(int(best[accepted]))
        cache.truncate(held + 1 + accepted)
    return np.array(tokens[len(prompt) :])
""",
    },
    "distributions in float32, caches of just the size": {
        **_changed("draft", ("distributions.append(q)", "distributions.append(q.float())")),
        **_changed("verify", ("distribution(logits, temperature)", "distribution(logits.float(), temperature)")),
        **_changed(
            "loop",
            (
                "target.new_cache(end), draft_model.new_cache(end)",
                "target.new_cache(max(0, end - 1)), draft_model.new_cache(max(0, end - 2))",
            ),
        ),
    },
    "all in float32, a block cut behind a drafted EOS, more asked for than is used": {
        **_changed(
            "draft",
            (
                "distribution(model.forward(torch.tensor(new), cache)[-1]",
                "distribution(model.forward(torch.tensor(new), cache)[-1].float()",
            ),
        ),
        **_changed(
            "loop",
            (
                "        emitted = parts.verify",
                "        drafted = parts.cut(drafted, eos)\n        q = q[: len(drafted)]\n"
                "        emitted = parts.verify",
            ),
        ),
        **_changed(
            "repair",
            ("propose(tokens, min(gamma, end - len(tokens) - 1))", "propose(tokens, gamma)[: end - len(tokens) - 1]"),
        ),
    },
    "the prompt goes in with the first drafts": {
        "draft": """
from collections import deque

def draft(model, cache, tokens, gamma, temperature, source):
    missing, pairs = deque(tokens[cache.length :]), []
    while len(pairs) != gamma:
        rows = model.forward(torch.tensor(list(missing)), cache, slice(-1, None))
        (q,) = distribution(rows, temperature)
        pairs.append((source.categorical(q), q))
        missing = deque([pairs[-1][0]])
    return [x for x, _ in pairs], [q for _, q in pairs]
""",
        "greedy": """
from itertools import takewhile

def greedy_rule(drafted, q, p):
    choices = list(map(int, torch.as_tensor(p).argmax(dim=1)))
    kept = list(takewhile(lambda pair: pair[0] == pair[1], zip(drafted, choices)))
    return [len(kept), choices[len(kept)]]
""",
        "rollback": """
def roll_back(cache, tokens):
    limit = len(tokens) - 1
    cache.truncate(cache.length if cache.length < limit else limit)
    return cache
""",
        "limit": """
def how_many_drafts(gamma, n_tokens, end, draft_context=None):
    g = 0
    while g < gamma and n_tokens + g + 2 <= end and not (draft_context is not None and n_tokens + g > draft_context):
        g += 1
    return g
""",
        "cut": """
def cut(emitted, eos):
    places = [emitted.index(e) for e in eos if e in emitted]
    return emitted if not places else list(emitted)[: min(places) + 1]
""",
        "witness": """
def witness():
    class Lazy:
        def __call__(self, tokens, gamma):
            return range(min(1, gamma))

    return [Lazy(), torch.tensor([1, 1, 1, 1]), 40, 5]
""",
        "repair": """
def repaired(model, propose, prompt, max_new_tokens, gamma):
    tokens, end = list(prompt), len(prompt) + max_new_tokens
    cache = model.new_cache(end)
    while len(tokens) < end:
        drafted = list(propose(tokens, min(gamma, end - len(tokens) - 1)))
        fed = tokens[cache.length :] + drafted  # the whole prompt in the first round
        best = model.forward(torch.tensor(fed), cache).argmax(-1).tolist()[-len(drafted) - 1 :]
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == best[accepted]:
            accepted += 1
        tokens += [*drafted[:accepted], best[accepted]]
        cache.truncate(len(tokens) - 1)
    return tokens[len(prompt) :]
""",
    },
    "a loop with a state of its own, the prompt's last tokens with the first drafts": {
        "loop": """
class Decoding:
    def __init__(self, target, draft_model, prompt, most):
        self.tokens, self.end, self.models = [*prompt], len(prompt) + most, (target, draft_model)
        self.caches = tuple(model.new_cache(10_000) for model in self.models)

    def round(self, gamma, parts, rule, source, temperature, eos):
        target, draft_model = self.models
        n = parts.how_many_drafts(gamma=gamma, n_tokens=len(self.tokens), end=self.end, draft_context=draft_model.max_context)
        drafted, q = parts.draft(draft_model, self.caches[1], tuple(self.tokens), n, temperature, source)
        new = parts.verify(target, self.caches[0], tuple(self.tokens), drafted, q, rule, temperature)
        self.tokens.extend(parts.cut(new, eos))
        for cache in reversed(self.caches):
            parts.roll_back(cache, self.tokens)
        return self.tokens[-1] in eos or len(self.tokens) >= self.end


def generate(target, draft_model, prompt, max_new_tokens, gamma, parts, rule, source,
             temperature=0.0, eos=(), on_round=tell_nobody):
    room = max_new_tokens if target.max_context is None else target.max_context - len(prompt)
    run = Decoding(target, draft_model, prompt, min(max_new_tokens, room))
    if run.end > len(prompt) > 1:
        target.forward(torch.tensor(prompt[:-1]), run.caches[0], slice(None))
    over = run.end <= len(prompt)
    while not over:
        over = run.round(gamma, parts, rule, source, temperature, eos)
        on_round(list(run.tokens), *run.caches)
    return run.tokens[len(prompt) :]
""",
        "repair": """
def repaired(model, propose, prompt, max_new_tokens, gamma):
    tokens, end, cache = list(prompt), len(prompt) + max_new_tokens, model.new_cache(10_000)
    if len(prompt) > 3:
        model.forward(torch.tensor(prompt[:-3]), cache, slice(0))
    for _ in range(max_new_tokens):
        room = end - len(tokens)
        if room == 0:
            break
        drafted = list(propose(tuple(tokens), min(gamma, room - 1))) if room > 1 else []
        rows = model.forward(torch.tensor([*tokens, *drafted][cache.length :]), cache, slice(-len(drafted) - 1, None))
        wanted = rows.argmax(-1).tolist()
        kept = [x for i, x in enumerate(drafted) if drafted[: i + 1] == wanted[: i + 1]]
        tokens = [*tokens, *kept, wanted[len(kept)]]
        cache.truncate(min(cache.length, len(tokens) - 1))
    return tokens[-max_new_tokens:] if max_new_tokens else []
""",
    },
    "numbers from numpy and torch": {
        "draft": """
import numpy as np

def draft(model, cache, tokens, gamma, temperature, source):
    text, qs = list(tokens), []
    for _ in range(gamma):
        logits = model.forward(torch.as_tensor(text[cache.length :]), cache)
        qs += [distribution(logits[-1], temperature)]
        text += [np.int64(source.categorical(qs[-1]))]
    return np.array(text[len(tokens) :], dtype=np.int32), tuple(qs)
""",
        "greedy": """
def greedy_rule(drafted, q, p):
    accepted = torch.tensor(0)
    for x, row in zip(drafted, p):
        if x != row.argmax():
            break
        accepted = accepted + 1
    return accepted, p[accepted].argmax()
""",
        "limit": """
def how_many_drafts(gamma, n_tokens, end, draft_context=None):
    limits = [gamma, end - n_tokens - 1] + ([] if draft_context is None else [draft_context + 1 - n_tokens])
    return np.clip(np.min(limits), 0, None)
""",
        "verify": """
def verify(model, cache, tokens, drafted, q, rule, temperature):
    rows = model.forward(torch.tensor(tokens[-1:] + drafted, dtype=torch.int32), cache)
    kept, token = rule(tuple(drafted), tuple(q), [distribution(row, temperature) for row in rows])
    return torch.tensor(drafted[:kept] + [token])
""",
        "cut": """
def cut(emitted, eos):
    is_end = np.isin(emitted, list(eos))
    return np.array(emitted)[: is_end.argmax() + 1] if is_end.any() else np.array(emitted)
""",
    },
}


WRONG = [
    *(
        Wrong(f"an int that equals everything, in {cell}", _sly(cell, old, new), (cell,), says)
        for cell, old, new, says in (
            (
                "draft",
                "return drafted, distributions",
                "return [Sly(0) for x in drafted], distributions",
                "came out wrong",
            ),
            ("greedy", "return accepted, best[accepted]", "return Sly(9), Sly(9)", "came out wrong"),
            (
                "verify",
                "return [*drafted[:accepted], token]",
                "return [Sly(9) for x in [*drafted[:accepted], token]]",
                "came out wrong",
            ),
            ("limit", "return max(0, most)", "return Sly(most + 1)", "came out wrong"),
            ("cut", "return emitted[: i + 1]", "return [Sly(9) for x in emitted[: i + 1]]", "came out wrong"),
            (
                "loop",
                "return tokens[len(prompt) :]",
                "return [Sly(9) for x in tokens[len(prompt) :]]",
                "came out wrong",
            ),
            (
                "repair",
                "return tokens[len(prompt) :]",
                "return [Sly(9) for x in tokens[len(prompt) :]]",
                "came out wrong",
            ),
        )
    ),
    _slip(
        "no limit where the draft's context is 0",
        "limit",
        ("if draft_context is not None", "if draft_context"),
        says="context of 0",
    ),
    Wrong(
        "a loop that calls its own functions",
        {"loop": _solution("loop").replace("parts.", "")},
        ("loop",),
        "never called",
    ),
    Wrong(
        "a loop that does without the parts",
        {
            "loop": """
def generate(target, draft_model, prompt, max_new_tokens, gamma, parts, rule, source,
             temperature=0.0, eos=(), on_round=tell_nobody):
    tokens, most = [*prompt], max_new_tokens
    if target.max_context is not None:
        most = max(0, min(most, target.max_context - len(prompt)))
    big, small = target.new_cache(200), draft_model.new_cache(200)
    if len(prompt) >= 2 and most:
        target.forward(torch.tensor(tokens)[:-1], big)
    for _ in range(most):  # a round gives at least one token
        room = most - (len(tokens) - len(prompt))
        if room == 0:
            break
        drafted, q = [], []
        while len(drafted) < min(gamma, room - 1):
            lacking = [*tokens, *drafted][small.length :]
            if draft_model.max_context is not None and small.length + len(lacking) > draft_model.max_context:
                break
            q.append(distribution(draft_model.forward(torch.tensor(lacking), small)[-1], temperature))
            drafted.append(source.categorical(q[-1]))
            if drafted[-1] in eos:
                break  # nothing behind an end can be kept
        p = distribution(target.forward(torch.tensor([tokens[-1], *drafted]), big), temperature)
        accepted, token = rule(drafted, q, p)
        stop = False
        for token in [*drafted[:accepted], token]:
            if not stop:
                tokens.append(token)
                stop = token in eos
        big.truncate(len(tokens) - 1)
        small.truncate(min(small.length, len(tokens) - 1))
        on_round(tuple(tokens), big, small)
        if stop:
            break
    return tuple(tokens[len(prompt) :])
"""
        },
        ("loop",),
        "never called",
    ),
    _slip(
        "never more than five drafts",
        "draft",
        ("in range(gamma)", "in range(min(gamma, 5))"),
        says="none may be dropped",
    ),
    _slip(
        "the distribution of the draft before",
        "draft",
        ("distributions.append(q)", "distributions.append(distributions[-1] if distributions else q)"),
        says="first draft's distribution",
    ),
    _slip(
        "the temperature twice",
        "draft",
        (", temperature)\n", ", temperature * temperature)\n"),
        says="one draw|hand over|came out wrong",
    ),
    _slip(
        "a draft that the draft model is sure of is kept",
        "greedy",
        (
            "drafted[accepted] == best[accepted]",
            "(drafted[accepted] == best[accepted] or q[accepted][drafted[accepted]] > 0.25)",
        ),
        says="agreeing prefix",
    ),
    _slip(
        "a draft needs a probability above a half",
        "greedy",
        ("drafted[accepted] == best[accepted]", "p[accepted][drafted[accepted]] > 0.5"),
        says="agreeing prefix|too few",
    ),
    _slip(
        "the last draft is not fed, its row is made up",
        "verify",
        (
            "logits = model.forward(torch.tensor([tokens[-1], *drafted]), cache)",
            "logits = model.forward(torch.tensor([tokens[-1], *drafted][: max(1, len(drafted))]), cache)\n"
            "    logits = torch.cat([logits, logits[-1:]])[: len(drafted) + 1]",
        ),
        says="pass by pass",
    ),
    _slip(
        "the rule is asked twice",
        "verify",
        (
            "    accepted, token = rule",
            "    rule(drafted, q, distribution(logits, temperature))\n    accepted, token = rule",
        ),
        says="asked once|came out wrong",
    ),
    _slip(
        "p rounded",
        "verify",
        ("distribution(logits, temperature))", "distribution(logits, temperature).round(decimals=3))"),
        says="came out wrong",
    ),
    _slip(
        "p without the first row",
        "verify",
        ("q, distribution(logits, temperature))", "q, distribution(logits, temperature)[1:])"),
        says="first row is missing",
    ),
    _slip(
        "rolled back only where it is two too long",
        "rollback",
        (
            "    cache.truncate(min(cache.length, len(tokens) - 1))",
            "    if cache.length > len(tokens):\n        cache.truncate(len(tokens) - 1)",
        ),
        says="one token too many stays",
    ),
    _slip(
        "the draft's context ends the text, too",
        "limit",
        ("draft_context - n_tokens + 1", "draft_context - n_tokens - 1"),
        says="more would fit",
    ),
    _slip("an EOS is looked for in a tuple only", "cut", ("if token in eos:", "if token in eos[:]:"), says="TypeError"),
    _slip(
        "the smallest EOS id counts",
        "cut",
        ("if token in eos:", "if eos and token == min(eos):"),
        says="stands inside|several tokens",
    ),
    _slip(
        "only the first of several ends the loop",
        "loop",
        ("if tokens[-1] in eos:", "if tokens[-1] in list(eos)[:1]:"),
        says="went on",
    ),
    _slip(
        "a place of the target's context is left free",
        "loop",
        ("min(end, target.max_context)", "min(end, target.max_context - 1)"),
        says="ended too early",
    ),
    _slip(
        "on_round gets the caches exchanged",
        "loop",
        ("on_round(tokens, target_cache, draft_cache)", "on_round(tokens, draft_cache, target_cache)"),
        says="cache",
    ),
    _slip(
        "on_round gets the new tokens only",
        "loop",
        ("on_round(tokens, ", "on_round(tokens[len(prompt) :], "),
        says="the prompt's too",
    ),
    _slip(
        "never more than four drafts a round",
        "loop",
        ("how_many_drafts(gamma,", "how_many_drafts(min(gamma, 4),"),
        says="a round commits",
    ),
    _slip(
        "a source of its own",
        "loop",
        (
            "n, temperature, source)",
            "n, temperature, type('Dice', (), {'categorical': lambda self, q: int(torch.multinomial(q, 1))})())",
        ),
        says="something else draws|likeliest token|one draw",
    ),
    _slip(
        "the target takes in each round's last token by itself",
        "loop",
        (
            "        n = parts",
            "        target.forward(torch.tensor(tokens[-1:]), target_cache)\n        target_cache.truncate(len(tokens) - 1)\n        n = parts",
        ),
        says="rounds came out wrong",
    ),
    _slip(
        "both caches are filled with the prompt",
        "loop",
        (
            "    while len(tokens) < end:",
            "    draft_model.forward(torch.tensor(tokens), draft_cache) if end > len(tokens) else None\n    while len(tokens) < end:",
        ),
        says="wrong cache|exceed",
    ),
    _slip(
        "the repair never cuts into the prompt",
        "repair",
        (
            "cache.truncate(len(tokens) - 1)",
            "cache.truncate(max(len(prompt), cache.length - (gamma - accepted)) if accepted < gamma else cache.length)",
        ),
        says="missing between|rejected draft is left|cannot truncate",
    ),
    _slip(
        "one draft is used of all", "repair", ("len(tokens) - 1)))", "len(tokens) - 1)))[:1]"), says="use every draft"
    ),
    _slip(
        "the last round asks for nothing it could use",
        "repair",
        ("min(gamma, end - len(tokens) - 1)", "min(gamma, max(0, end - len(tokens) - 2))"),
        says="ask propose for",
    ),
    Wrong(
        "a witness without drafts",
        {"witness": "def witness():\n    return (lambda tokens, gamma: []), [1, 2], 9, 0\n"},
        ("witness",),
        "Which kind is missing",
    ),
    Wrong(
        "a witness that is no tuple",
        {"witness": "def witness():\n    return handed_in\n"},
        ("witness",),
        "A witness is",
    ),
    # drafting
    _slip(
        "the draft's cache never gets the last draft",
        "draft",
        ("new = tokens[cache.length :]", "new = tokens[-1 if cache.length else 0 :]"),
        says="hole in the cache",
    ),
    _slip(
        "only the pending token is ever fed",
        "draft",
        ("new = tokens[cache.length :]", "new = tokens[-1:]"),
        says="hole in the cache",
    ),
    _slip(
        "the whole text is fed again",
        "draft",
        ("new = tokens[cache.length :]", "new = list(tokens)"),
        says="must not be fed again|not fed before|cache lacked",
    ),
    _slip(
        "the last draft is fed, too",
        "draft",
        (
            "    return drafted, distributions",
            "    if drafted:\n        model.forward(torch.tensor(new), cache)\n    return drafted, distributions",
        ),
        says="the last draft was fed",
    ),
    _slip(
        "argmax drafts with softmax q",
        "draft",
        ("x = source.categorical(q)", "x = int(q.argmax())"),
        says="the likeliest token is taken",
    ),
    _slip(
        "softmax reported at temperature 0",
        "draft",
        (
            "q = distribution(model.forward(torch.tensor(new), cache)[-1], temperature)",
            "row = model.forward(torch.tensor(new), cache)[-1]\n        q = distribution(row, temperature)",
        ),
        ("distributions.append(q)", "distributions.append(torch.softmax(row / (temperature or 1), -1))"),
        says="one-hot",
    ),
    _slip(
        "q at temperature 1",
        "draft",
        (
            "q = distribution(model.forward(torch.tensor(new), cache)[-1], temperature)",
            "row = model.forward(torch.tensor(new), cache)[-1]\n        q = distribution(row, temperature)",
        ),
        ("distributions.append(q)", "distributions.append(distribution(row, 1.0))"),
        says="temperature 1|softmax",
    ),
    _slip(
        "logits handed over",
        "draft",
        (
            "q = distribution(model.forward(torch.tensor(new), cache)[-1], temperature)",
            "row = model.forward(torch.tensor(new), cache)[-1]\n        q = distribution(row, temperature)",
        ),
        ("distributions.append(q)", "distributions.append(row)"),
        says="these are the logits",
    ),
    _slip(
        "an unsure token is dropped",
        "draft",
        (
            "        new = [x]",
            "        new = [x]\n        if q[x] < 0.3:\n            del drafted[-1], distributions[-1]\n            break",
        ),
        says="none may be dropped",
    ),
    _slip(
        "the likelier of two draws",
        "draft",
        ("x = source.categorical(q)", "x = max(source.categorical(q), source.categorical(q), key=lambda x: q[x])"),
        says="one draw",
    ),
    _slip(
        "drafts become part of the text",
        "draft",
        ("        new = [x]", "        new = [x]\n        tokens.append(x)"),
        says="changed what it was given",
    ),
    _slip(
        "each draft continues the same text",
        "draft",
        ("        new = [x]", "        cache.truncate(len(tokens) - 1)\n        new = tokens[-1:]"),
        says="continues the same text",
    ),
    _slip(
        "a draw from a dice of its own",
        "draft",
        ("x = source.categorical(q)", "x = int(torch.multinomial(q, 1))"),
        says="something else draws|likeliest token|one draw",
    ),
    _slip(
        "the whole text again in each pass",
        "draft",
        ("        new = [x]", "        new = [*tokens, *drafted]\n        cache.truncate(0)"),
        (
            "    return drafted, distributions",
            "    if drafted:\n        model.forward(torch.tensor(new[:-1]), cache)\n    return drafted, distributions",
        ),
        says="one pass",
    ),
    _slip(
        "an emptied cache before each pass",
        "draft",
        (
            "    for _ in range(gamma):\n",
            "    for _ in range(gamma):\n        new = [*tokens, *drafted]\n        cache.truncate(0)\n",
        ),
        says="fed again",
    ),
    _slip("the first row", "draft", ("cache)[-1]", "cache)[0]"), says="the first row of the first pass"),
    _slip("the temperature is not handed on", "draft", (", temperature)\n", ", 1.0)\n"), says="at temperature 1"),
    _slip(
        "drafts are rolled back at once",
        "draft",
        (
            "    return drafted, distributions",
            "    cache.truncate(min(cache.length, len(tokens) - 1))\n    return drafted, distributions",
        ),
        says="takes nothing out of the cache",
    ),
    _slip(
        "two draws, one used",
        "draft",
        ("x = source.categorical(q)", "x = (source.categorical(q), source.categorical(q))[0]"),
        says="one draw",
    ),
    # the rule
    _slip(
        "the drafts are shortened on the way",
        "greedy",
        ("    return accepted, best[accepted]", "    del drafted[accepted:]\n    return accepted, best[accepted]"),
        says="changed what it was given",
    ),
    _slip(
        "all that agree are counted",
        "greedy",
        (
            "    while accepted < len(drafted) and drafted[accepted] == best[accepted]:\n        accepted += 1\n",
            "    accepted = sum(d == b for d, b in zip(drafted, best))\n",
        ),
        says="all drafts that agree were counted",
    ),
    _slip(
        "the bonus from the last draft's row",
        "greedy",
        ("return accepted, best[accepted]", "return accepted, best[accepted - (accepted == len(drafted) > 0)]"),
        says="one row too early",
    ),
    _slip(
        "always the bonus row",
        "greedy",
        ("return accepted, best[accepted]", "return accepted, best[-1]"),
        says="last row",
    ),
    _slip(
        "the rejected draft comes out",
        "greedy",
        ("return accepted, best[accepted]", "return accepted, [*drafted, best[-1]][accepted]"),
        says="rejected draft itself",
    ),
    _slip(
        "right for four drafts only",
        "greedy",
        ("return accepted, best[accepted]", "return accepted, best[accepted if accepted < len(drafted) else 4]"),
        says="your code raised IndexError",
    ),
    # the pass
    _slip(
        "the pending token is not fed",
        "verify",
        ("torch.tensor([tokens[-1], *drafted])", "torch.tensor(drafted)"),
        says="pending token is not in the cache",
    ),
    _slip(
        "the text is fed again",
        "verify",
        ("torch.tensor([tokens[-1], *drafted])", "torch.tensor([*tokens, *drafted])"),
        says="holds the text already",
    ),
    _slip(
        "one token a pass",
        "verify",
        (
            "model.forward(torch.tensor([tokens[-1], *drafted]), cache)",
            "torch.cat([model.forward(torch.tensor([t]), cache) for t in [tokens[-1], *drafted]])",
        ),
        says="one token per pass",
    ),
    _slip(
        "rejected drafts stay in the output",
        "verify",
        ("return [*drafted[:accepted], token]", "return [*drafted, token]"),
        says="rejected drafts stay",
    ),
    _slip(
        "no token of the target",
        "verify",
        ("return [*drafted[:accepted], token]", "return drafted[:accepted]"),
        says="missing",
    ),
    _slip(
        "p at temperature 1",
        "verify",
        ("distribution(logits, temperature)", "distribution(logits, 1.0)"),
        says="temperature that was asked for",
    ),
    _slip(
        "p and q exchanged",
        "verify",
        ("q, distribution(logits, temperature)", "distribution(logits, temperature), q"),
        says="exchanged|needs",
    ),
    _slip(
        "a rule of its own",
        "verify",
        (
            "rule(drafted, q, distribution(logits, temperature))",
            "greedy_rule(drafted, q, distribution(logits, temperature))",
        ),
        says="asks the rule that it is given|the rule that verify is given",
    ),
    _slip(
        "the emitted tokens are committed at once",
        "verify",
        ("    return [*drafted", "    tokens += [*drafted[:accepted], token]\n    return [*drafted"),
        says="changed what it was given",
    ),
    *(
        _slip(
            f"cut in verify: {length}",
            "verify",
            (
                "    return [*drafted[:accepted], token]",
                f"    cache.truncate({length})\n    return [*drafted[:accepted], token]",
            ),
            says="takes nothing out of the cache",
        )
        for length in ("0", "len(tokens) - 1", "len(tokens)", "len(tokens) + accepted", "cache.length - 1")
    ),
    _slip(
        "the rule gets no q",
        "verify",
        ("drafted, q, distribution", "drafted, None, distribution"),
        says="second argument is q",
    ),
    _slip(
        "p at temperature 0",
        "verify",
        ("distribution(logits, temperature)", "distribution(logits, 0)"),
        says="at temperature 0",
    ),
    # rolling back
    _slip(
        "one token too many stays",
        "rollback",
        ("len(tokens) - 1", "len(tokens)"),
        says="one token too many stays",
    ),
    _slip("one token is lost", "rollback", ("len(tokens) - 1", "len(tokens) - 2"), says="rolled back too far"),
    _slip(
        "no roll-back",
        "rollback",
        ("    cache.truncate(min(cache.length, len(tokens) - 1))", "    pass"),
        says="nothing was rolled",
    ),
    _slip("reset in place of rolled back", "rollback", ("min(cache.length, len(tokens) - 1)", "0"), says="emptied"),
    _slip(
        "right for the target's cache only",
        "rollback",
        ("min(cache.length, len(tokens) - 1)", "len(tokens) - 1"),
        says="nothing to take back",
    ),
    Wrong(
        "a cache that is taken apart by hand",
        {"rollback": "def roll_back(cache, tokens):\n    del cache.tokens[len(tokens) - 1 :]\n"},
        ("rollback",),
        "no attribute 'tokens'",
    ),
    _slip(
        "right for the table's round only",
        "rollback",
        ("min(cache.length, len(tokens) - 1)", "max(0, cache.length - (2 if cache.length == len(tokens) + 1 else 1))"),
        says="tokens too many stay",
    ),
    # budget and stops
    _slip("one token too many", "limit", ("end - n_tokens - 1", "end - n_tokens"), says="one token more than it keeps"),
    _slip(
        "the draft's context is forgotten",
        "limit",
        ("if draft_context is not None", "if False"),
        says="cache would hold",
    ),
    _slip("fewer than none", "limit", ("max(0, most)", "most"), says="never fewer than 0"),
    _slip(
        "the draft's context by one",
        "limit",
        ("draft_context - n_tokens + 1", "draft_context - n_tokens"),
        says="more would fit",
    ),
    _slip(
        "EOS passed over inside a block",
        "cut",
        ("if token in eos:", "if token in eos and i == len(emitted) - 1:"),
        says="stands inside the block",
    ),
    _slip("the EOS is taken away", "cut", ("emitted[: i + 1]", "emitted[:i]"), says="belongs to the text"),
    _slip(
        "one EOS of several",
        "cut",
        ("if token in eos:", "if token in list(eos)[:1]:"),
        says="several tokens may end",
    ),
    _slip(
        "the last EOS of the block",
        "cut",
        ("enumerate(emitted)", "reversed(list(enumerate(emitted)))"),
        says="first end token",
    ),
    Wrong(
        "a generator",
        {
            "cut": "def cut(emitted, eos):\n    for token in emitted:\n        yield token\n"
            "        if token in eos:\n            return\n"
        },
        ("cut",),
        "a generator",
    ),
    _slip(
        "the caller's block is cut",
        "cut",
        ("return emitted[: i + 1]", "del emitted[i + 1 :]\n            return emitted"),
        says="changed what it was given",
    ),
    # the loop
    _slip(
        "no on_round where an EOS ends the text",
        "loop",
        ("        on_round(tokens, target_cache, draft_cache)\n", ""),
        ("            break\n", "            break\n        on_round(tokens, target_cache, draft_cache)\n"),
        says="where an EOS ends the text",
    ),
    _slip(
        "left before the roll-back where an EOS ends the text",
        "loop",
        (
            "        tokens += parts.cut(emitted, eos)\n",
            "        tokens += parts.cut(emitted, eos)\n        if tokens[-1] in eos:\n            break\n",
        ),
        says="where an EOS ends the text",
    ),
    _slip(
        "no roll-back where an EOS ends the text",
        "loop",
        ("        parts.roll_back(target_cache, tokens)\n", ""),
        (
            "        parts.roll_back(draft_cache, tokens)\n",
            "        if tokens[-1] not in eos:\n            parts.roll_back(target_cache, tokens)\n"
            "            parts.roll_back(draft_cache, tokens)\n",
        ),
        says="was not rolled back",
    ),
    _slip(
        "cut only what is returned",
        "loop",
        ("parts.cut(emitted, eos)", "emitted"),
        ("if tokens[-1] in eos:", "if any(t in eos for t in emitted):"),
        ("return tokens[len(prompt) :]", "return parts.cut(tokens[len(prompt) :], eos)"),
        says="cut what is emitted before",
    ),
    _slip(
        "a drafted EOS is dropped unseen",
        "loop",
        (
            "        emitted = parts.verify",
            "        k = next((i for i, t in enumerate(drafted) if t in eos), len(drafted))\n"
            "        drafted, q = drafted[:k], q[:k]\n        emitted = parts.verify",
        ),
        says="dropping it unseen",
    ),
    _slip(
        "any EOS in the text ends it, the prompt's too",
        "loop",
        ("if tokens[-1] in eos:", "if any(t in eos for t in tokens):"),
        says="EOS in the prompt",
    ),
    _slip(
        "drafts at temperature 0",
        "loop",
        ("n, temperature, source)", "n, 0.0, source)"),
        says="does not reach",
    ),
    _slip(
        "the draft's cache is emptied before each round",
        "loop",
        ("        drafted, q =", "        draft_cache.truncate(0)\n        drafted, q ="),
        says="lives through all rounds",
    ),
    _slip(
        "a new draft's cache before each round",
        "loop",
        ("        drafted, q =", "        draft_cache = draft_model.new_cache(end)\n        drafted, q ="),
        says="lives through all rounds|new in each round",
    ),
    _slip(
        "the draft's cache is not rolled back",
        "loop",
        ("        parts.roll_back(draft_cache, tokens)\n", ""),
        says="draft's cache was not rolled back",
    ),
    _slip(
        "the target's cache is not rolled back",
        "loop",
        ("        parts.roll_back(target_cache, tokens)\n", ""),
        says="rolled back",
    ),
    _slip(
        "rolled back before the tokens are committed",
        "loop",
        ("        tokens += parts.cut(emitted, eos)\n", ""),
        ("        on_round(", "        tokens += parts.cut(emitted, eos)\n        on_round("),
        says="too far|missing between",
    ),
    _slip(
        "only the last token of a round is looked at",
        "loop",
        ("parts.cut(emitted, eos)", "emitted"),
        says="went on after the EOS",
    ),
    _slip(
        "the EOS ends nothing",
        "loop",
        ("        if tokens[-1] in eos:\n            break\n", ""),
        says="went on after the EOS",
    ),
    _slip(
        "a drafted EOS ends the text",
        "loop",
        ("if tokens[-1] in eos:", "if tokens[-1] in eos or any(t in eos for t in drafted):"),
        says="drafted and not verified",
    ),
    _slip(
        "an EOS in the prompt ends the text",
        "loop",
        ("while len(tokens) < end:", "while len(tokens) < end and tokens[-1] not in eos:"),
        says="EOS in the prompt",
    ),
    _slip(
        "the budget is overstepped",
        "loop",
        ("len(tokens), end, draft_model", "len(tokens), end + gamma + 1, draft_model"),
        ("target.new_cache(end), draft_model.new_cache(end)", "target.new_cache(400), draft_model.new_cache(400)"),
        says="overstepped",
    ),
    _slip(
        "a budget of 0 gives a token",
        "loop",
        ("while len(tokens) < end:", "while len(tokens) < max(end, len(prompt) + 1):"),
        ("target.new_cache(end)", "target.new_cache(end + 1)"),
        says="overstepped",
    ),
    _slip(
        "the target's context is forgotten",
        "loop",
        ("if target.max_context is not None:", "if False:"),
        says="exceed its context|smaller one of budget",
    ),
    _slip(
        "the draft's context ends the text",
        "loop",
        (
            "        end = min(end, target.max_context)\n",
            "        end = min(end, target.max_context)\n"
            "    if draft_model.max_context is not None:\n"
            "        end = min(end, draft_model.max_context)\n",
        ),
        says="ends the drafting, not the text",
    ),
    _slip(
        "the draft's context is not handed on",
        "loop",
        (", end, draft_model.max_context)", ", end)"),
        says="exceed the draft model's context",
    ),
    _slip(
        "p at temperature 0 in the loop",
        "loop",
        ("q, rule, temperature)", "q, rule, 0.0)"),
        says="same temperature|does not reach",
    ),
    _slip(
        "the caller's prompt grows",
        "loop",
        (
            "tokens, end = list(prompt), len(prompt) + max_new_tokens",
            "tokens, start = prompt, len(prompt)\n    end = start + max_new_tokens",
        ),
        ("return tokens[len(prompt) :]", "return tokens[start:]"),
        says="changed the caller's prompt",
    ),
    _slip(
        "the pending token is taken in with the prompt",
        "loop",
        ("torch.tensor(tokens[:-1])", "torch.tensor(tokens)"),
        ("target.new_cache(end)", "target.new_cache(end + 9)"),
        says="whole prompt taken in",
    ),
    _slip(
        "a prompt of one token",
        "loop",
        ("    if len(tokens) > 1:\n        target", "    target"),
        says="no tokens",
    ),
    _slip(
        "the prompt comes back, too", "loop", ("return tokens[len(prompt) :]", "return tokens"), says="new tokens only"
    ),
    _slip(
        "on_round is forgotten",
        "loop",
        ("        on_round(tokens, target_cache, draft_cache)\n", ""),
        says="on_round was never called",
    ),
    _slip(
        "on_round misses the last round",
        "loop",
        ("        on_round(tokens", "        if len(tokens) < end:\n            on_round(tokens"),
        says="the last round counts",
    ),
    _slip(
        "a new draft's cache in each round",
        "loop",
        ("        drafted, q =", "        draft_cache = draft_model.new_cache(end)\n        drafted, q ="),
        ("        parts.roll_back(draft_cache, tokens)\n", "        draft_cache.truncate(0)\n"),
        says="new in each round",
    ),
    _slip(
        "rejected drafts are committed",
        "loop",
        ("parts.cut(emitted, eos)", "parts.cut([*drafted, emitted[-1]], eos)"),
        says="rolled back|missing between|are rejected drafts committed",
    ),
    _slip(
        "plain decoding in disguise",
        "loop",
        ("parts.how_many_drafts(gamma, len(tokens), end, draft_model.max_context)", "0"),
        says="drafts are not used",
    ),
    _slip(
        "one cache for both models",
        "loop",
        ("target.new_cache(end), draft_model.new_cache(end)", "[target.new_cache(400)] * 2"),
        says="a cache of its own",
    ),
    # the bug
    Wrong(
        "a perfect drafter is no witness",
        {"witness": "def witness():\n    return perfect, [1, 2], 12, 4\n"},
        ("witness",),
        "Which kind is missing",
    ),
    Wrong(
        "gamma 1 is no witness",
        {"witness": "def witness():\n    return lambda tokens, gamma: [0][:gamma], [1, 2, 3], 30, 1\n"},
        ("witness",),
        "Which kind is missing",
    ),
    Wrong(
        "a drafter that breaks its promise",
        {"witness": "def witness():\n    return lambda tokens, gamma: [0] * 9, [1, 2, 3], 30, 4\n"},
        ("witness",),
        "breaks propose's promise",
    ),
    Wrong("the engine as it was", {"repair": "repaired = handed_in\n"}, ("repair",), "missing between|cannot truncate"),
    _slip(
        "repaired for rejections only",
        "repair",
        (
            "        cache.truncate(len(tokens) - 1)",
            "        cache.truncate(cache.length - (len(drafted) - accepted) - 1)",
        ),
        says="missing between",
    ),
    _slip(
        "repaired too little",
        "repair",
        (
            "        cache.truncate(len(tokens) - 1)",
            "        if accepted + 1 < len(drafted):\n            cache.truncate(len(tokens) - 1)",
        ),
        says="rejected draft is left|not rolled back",
    ),
    _slip(
        "a fresh cache in each round",
        "repair",
        (
            "        cache.truncate(len(tokens) - 1)",
            "        cache = model.new_cache(end)\n"
            "        if len(tokens) < end:\n"
            "            model.forward(torch.tensor(tokens[:-1]), cache, slice(0))",
        ),
        says="no fresh cache",
    ),
    *(
        _slip(
            f"{most} drafts asked for",
            "repair",
            ("min(gamma, end - len(tokens) - 1)", most),
            says="ask propose for",
        )
        for most in ("0", "min(1, end - len(tokens) - 1)")
    ),
    _slip(
        "gamma shrinks with each short proposal",
        "repair",
        ("        best =", "        gamma = len(drafted)\n        best ="),
        says="ask propose for",
    ),
    _slip(
        "nobody is asked",
        "repair",
        ("list(propose(tokens, min(gamma, end - len(tokens) - 1)))", "[]"),
        says="ask propose for",
    ),
    _slip(
        "short proposals are thrown away",
        "repair",
        (
            "        best =",
            "        drafted = drafted if len(drafted) == gamma else []\n        best =",
        ),
        says="use every draft",
    ),
]


PARTS = {
    "an int that equals everything, in draft": "draft_catches_up draft_keeps_its_cache draft_reports_its_distributions drafts_are_greedy drafts_follow_their_distribution",
    "an int that equals everything, in greedy": "rule_gives_the_bonus rule_keeps_the_prefix",
    "an int that equals everything, in verify": "verify_emits",
    "an int that equals everything, in limit": "limit_keeps_the_budget limit_keeps_the_drafts_context",
    "an int that equals everything, in cut": "cuts_at_every_place cuts_at_several_ends",
    "an int that equals everything, in loop": "loop_follows_the_targets_distribution loop_keeps_the_budget loop_keeps_the_context loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "an int that equals everything, in repair": "repair_with_full_proposals repair_with_short_proposals",
    "no limit where the draft's context is 0": "limit_keeps_the_drafts_context",
    "a loop that calls its own functions": "loop_calls_its_parts",
    "a loop that does without the parts": "loop_calls_its_parts",
    "never more than five drafts": "draft_catches_up? draft_keeps_its_cache draft_reports_its_distributions drafts_are_greedy",
    "the distribution of the draft before": "draft_reports_its_distributions",
    "the temperature twice": "draft_reports_its_distributions drafts_follow_their_distribution",
    "a draft that the draft model is sure of is kept": "rule_keeps_the_prefix",
    "a draft needs a probability above a half": "rule_gives_the_bonus rule_keeps_the_prefix",
    "the last draft is not fed, its row is made up": "verify_asks_the_rule verify_is_one_pass",
    "the rule is asked twice": "verify_asks_the_rule",
    "p rounded": "verify_asks_the_rule",
    "p without the first row": "verify_asks_the_rule",
    "rolled back only where it is two too long": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "the draft's context ends the text, too": "limit_keeps_the_drafts_context",
    "an EOS is looked for in a tuple only": "cuts_at_every_place cuts_at_several_ends cuts_nothing_else",
    "the smallest EOS id counts": "cuts_at_several_ends",
    "only the first of several ends the loop": "loop_stops_at_every_place",
    "a place of the target's context is left free": "loop_keeps_the_context",
    "on_round gets the caches exchanged": "loop_keeps_both_caches loop_stops_at_every_place",
    "on_round gets the new tokens only": "loop_keeps_both_caches loop_stops_at_every_place",
    "never more than four drafts a round": "loop_keeps_both_caches loop_needs_as_many_passes? loop_stops_at_every_place",
    "a source of its own": "loop_follows_the_targets_distribution",
    "the target takes in each round's last token by itself": "loop_needs_as_many_passes",
    "both caches are filled with the prompt": "loop_calls_its_parts loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "the repair never cuts into the prompt": "repair_with_full_proposals repair_with_short_proposals",
    "one draft is used of all": "repair_with_full_proposals repair_with_short_proposals",
    "the last round asks for nothing it could use": "repair_with_full_proposals repair_with_short_proposals",
    "a witness without drafts": "witness_shows_the_bug",
    "a witness that is no tuple": "witness_shows_the_bug",
    "the draft's cache never gets the last draft": "draft_catches_up draft_keeps_its_cache",
    "only the pending token is ever fed": "draft_catches_up draft_keeps_its_cache",
    "the whole text is fed again": "draft_catches_up draft_keeps_its_cache draft_reports_its_distributions drafts_are_greedy drafts_follow_their_distribution",
    "the last draft is fed, too": "draft_keeps_its_cache",
    "argmax drafts with softmax q": "drafts_follow_their_distribution",
    "softmax reported at temperature 0": "draft_reports_its_distributions",
    "q at temperature 1": "draft_reports_its_distributions",
    "logits handed over": "draft_reports_its_distributions",
    "an unsure token is dropped": "draft_keeps_its_cache draft_reports_its_distributions drafts_follow_their_distribution",
    "the likelier of two draws": "drafts_follow_their_distribution",
    "drafts become part of the text": "draft_catches_up draft_keeps_its_cache draft_reports_its_distributions drafts_are_greedy drafts_follow_their_distribution",
    "each draft continues the same text": "draft_catches_up draft_keeps_its_cache draft_reports_its_distributions drafts_are_greedy drafts_follow_their_distribution",
    "a draw from a dice of its own": "drafts_follow_their_distribution",
    "the whole text again in each pass": "draft_keeps_its_cache",
    "an emptied cache before each pass": "draft_keeps_its_cache",
    "the first row": "draft_catches_up",
    "the temperature is not handed on": "draft_catches_up draft_reports_its_distributions drafts_are_greedy drafts_follow_their_distribution",
    "drafts are rolled back at once": "draft_keeps_its_cache",
    "two draws, one used": "drafts_follow_their_distribution",
    "the drafts are shortened on the way": "rule_keeps_the_prefix",
    "all that agree are counted": "rule_keeps_the_prefix",
    "the bonus from the last draft's row": "rule_gives_the_bonus",
    "always the bonus row": "rule_keeps_the_prefix",
    "the rejected draft comes out": "rule_keeps_the_prefix",
    "right for four drafts only": "rule_gives_the_bonus",
    "the pending token is not fed": "verify_asks_the_rule verify_emits verify_is_one_pass",
    "the text is fed again": "verify_asks_the_rule verify_is_one_pass",
    "one token a pass": "verify_is_one_pass",
    "rejected drafts stay in the output": "verify_emits",
    "no token of the target": "verify_emits",
    "p at temperature 1": "verify_asks_the_rule",
    "p and q exchanged": "verify_asks_the_rule",
    "a rule of its own": "verify_asks_the_rule verify_emits",
    "the emitted tokens are committed at once": "verify_asks_the_rule verify_emits verify_is_one_pass",
    "cut in verify: 0": "verify_is_one_pass",
    "cut in verify: len(tokens) - 1": "verify_is_one_pass",
    "cut in verify: len(tokens)": "verify_is_one_pass",
    "cut in verify: len(tokens) + accepted": "verify_is_one_pass",
    "cut in verify: cache.length - 1": "verify_is_one_pass",
    "the rule gets no q": "verify_asks_the_rule",
    "p at temperature 0": "verify_asks_the_rule",
    "one token too many stays": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "one token is lost": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "no roll-back": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "reset in place of rolled back": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "right for the target's cache only": "rolls_back_after_a_cut rolls_back_the_draft",
    "a cache that is taken apart by hand": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "right for the table's round only": "rolls_back_after_a_cut rolls_back_the_draft rolls_back_the_target",
    "one token too many": "limit_keeps_the_budget limit_keeps_the_drafts_context",
    "the draft's context is forgotten": "limit_keeps_the_drafts_context",
    "fewer than none": "limit_keeps_the_drafts_context",
    "the draft's context by one": "limit_keeps_the_drafts_context",
    "EOS passed over inside a block": "cuts_at_every_place cuts_at_several_ends",
    "the EOS is taken away": "cuts_at_every_place cuts_at_several_ends",
    "one EOS of several": "cuts_at_several_ends",
    "the last EOS of the block": "cuts_at_every_place cuts_at_several_ends",
    "a generator": "cuts_at_every_place cuts_at_several_ends cuts_nothing_else",
    "the caller's block is cut": "cuts_at_every_place cuts_at_several_ends",
    "no on_round where an EOS ends the text": "loop_stops_at_every_place",
    "left before the roll-back where an EOS ends the text": "loop_stops_at_every_place",
    "no roll-back where an EOS ends the text": "loop_stops_at_every_place",
    "cut only what is returned": "loop_stops_at_every_place",
    "a drafted EOS is dropped unseen": "loop_follows_the_targets_distribution",
    "any EOS in the text ends it, the prompt's too": "loop_follows_the_targets_distribution? loop_stops_at_every_place",
    "drafts at temperature 0": "loop_follows_the_targets_distribution",
    "the draft's cache is emptied before each round": "loop_keeps_both_caches",
    "a new draft's cache before each round": "loop_keeps_both_caches",
    "the draft's cache is not rolled back": "loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "the target's cache is not rolled back": "loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "rolled back before the tokens are committed": "loop_calls_its_parts loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "only the last token of a round is looked at": "loop_calls_its_parts loop_follows_the_targets_distribution loop_stops_at_every_place",
    "the EOS ends nothing": "loop_follows_the_targets_distribution loop_stops_at_every_place",
    "a drafted EOS ends the text": "loop_follows_the_targets_distribution loop_stops_at_every_place? loop_trusts_no_draft",
    "an EOS in the prompt ends the text": "loop_stops_at_every_place",
    "the budget is overstepped": "loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "a budget of 0 gives a token": "loop_keeps_the_budget loop_keeps_the_context",
    "the target's context is forgotten": "loop_keeps_the_context",
    "the draft's context ends the text": "loop_keeps_the_context",
    "the draft's context is not handed on": "loop_keeps_the_context",
    "p at temperature 0 in the loop": "loop_follows_the_targets_distribution",
    "the caller's prompt grows": "loop_takes_any_prompt",
    "the pending token is taken in with the prompt": "loop_calls_its_parts loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "a prompt of one token": "loop_follows_the_targets_distribution loop_takes_any_prompt",
    "the prompt comes back, too": "loop_follows_the_targets_distribution loop_keeps_the_budget loop_keeps_the_context loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "on_round is forgotten": "loop_keeps_both_caches loop_runs_on_a_real_cache loop_stops_at_every_place",
    "on_round misses the last round": "loop_keeps_both_caches loop_stops_at_every_place",
    "a new draft's cache in each round": "loop_keeps_both_caches loop_stops_at_every_place",
    "rejected drafts are committed": "loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "plain decoding in disguise": "loop_calls_its_parts loop_keeps_both_caches loop_needs_as_many_passes loop_stops_at_every_place",
    "one cache for both models": "loop_calls_its_parts loop_follows_the_targets_distribution loop_keeps_both_caches loop_keeps_the_budget loop_keeps_the_context loop_needs_as_many_passes loop_runs_on_a_real_cache loop_stops_at_every_place loop_takes_any_prompt loop_trusts_no_draft loop_writes_plain_text",
    "a perfect drafter is no witness": "witness_shows_the_bug",
    "gamma 1 is no witness": "witness_shows_the_bug",
    "a drafter that breaks its promise": "witness_shows_the_bug",
    "the engine as it was": "repair_with_full_proposals repair_with_short_proposals",
    "repaired for rejections only": "repair_with_full_proposals repair_with_short_proposals",
    "repaired too little": "repair_with_full_proposals repair_with_short_proposals",
    "a fresh cache in each round": "repair_with_full_proposals repair_with_short_proposals",
    "0 drafts asked for": "repair_with_full_proposals repair_with_short_proposals",
    "min(1, end - len(tokens) - 1) drafts asked for": "repair_with_full_proposals repair_with_short_proposals",
    "gamma shrinks with each short proposal": "repair_with_short_proposals",
    "nobody is asked": "repair_with_full_proposals repair_with_short_proposals",
    "short proposals are thrown away": "repair_with_full_proposals repair_with_short_proposals",
}
WRONG = [replace(wrong, parts=PARTS[wrong.name]) for wrong in WRONG]
