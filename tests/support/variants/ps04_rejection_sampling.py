"""Solutions of problem set 04, right and wrong."""

from dataclasses import replace

from support.harness import Wrong

RIGHT = {
    "the instructor's": {},
    "NumPy": {
        "accept": """
def accept(p_x, q_x, u):
    return np.float64(u) * q_x < p_x
""",
        "residual": """
def residual(p, q):
    p, q = np.array(p, dtype=float), np.array(q, dtype=float)
    over = np.maximum(p - q, 0)
    return over / over.sum() if over.any() else p
""",
        "verify": """
def verify(drafts, q, p, source):
    drafts, q, p = np.array(drafts, dtype=int), np.array(q), np.array(p)
    places = np.arange(len(drafts))
    chances = np.minimum(1, p[places, drafts] / q[places, drafts]) if len(drafts) else []
    kept = next((i for i, chance in enumerate(chances) if not source.bernoulli(chance)), len(drafts))
    distribution = p[kept] if kept == len(drafts) else residual(p[kept], q[kept])
    return np.append(drafts[:kept], source.categorical(distribution))
""",
        "top_p": """
def top_p(distribution, mass):
    distribution = np.array(distribution)
    order = np.argsort(-distribution, kind="stable")
    size = np.searchsorted(np.cumsum(distribution[order]), mass) + 1
    kept = np.zeros_like(distribution)
    kept[order[:size]] = distribution[order[:size]]
    return kept / kept.sum()
""",
        "both_sides": """
def propose(q, mass, source):
    q = np.array(top_p(q, mass))
    x = source.categorical(q)
    return np.int64(x), q

def judge(p, x, reported, mass, source):
    return int(verify([x], [reported], [top_p(p, mass), _eye(len(p))], source)[0])

def _eye(n):
    return [1.0] + [0.0] * (n - 1)
""",
        "trusts": """
from scipy import stats

def trusts(sample, distribution):
    n = 36_000
    counts, expected = np.array(sample(n)), n * np.array(distribution)
    if counts[expected == 0].sum():
        return False
    counts, expected = counts[expected > 0], expected[expected > 0]
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return chi2 < stats.chi2.isf(0.0008, len(expected) - 1)
""",
        "witness": """
def witness():
    p, q = np.array([0.1, 0.2, 0.7]), np.array([0.6, 0.1, 0.3])
    # 0.6: token 0, kept with 1/6, else the residual (0, .1, .4) / .5. The other 0.4: p.
    return p, q, 0.6 * (np.array([1, 0, 0]) / 6 + np.array([0, 0.2, 0.8]) * 5 / 6) + 0.4 * p
""",
        "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    for _ in range(gamma):
        q = np.array(draft([*prefix, *drafts]))
        if q.max() < sure:  # decided before the draw
            break
        drafts.append(int(source.categorical(q)))
        distributions.append(q)
    return np.array(drafts, dtype=int), distributions
""",
    },
    "tensors": {
        "accept": """
import torch

def accept(p_x, q_x, u):
    return torch.tensor(u) < torch.tensor(p_x) / torch.tensor(q_x)
""",
        "residual": """
def residual(p, q):
    p, q = torch.as_tensor(p), torch.as_tensor(q)
    over = (p - q).clamp(min=0)
    return p.clone() if over.sum() == 0 else over / over.sum()
""",
        "verify": """
def verify(drafts, q, p, source):
    kept = 0
    while kept < len(drafts):
        x = drafts[kept]
        ratio = torch.as_tensor(p[kept][x]) / torch.as_tensor(q[kept][x])
        if not source.bernoulli(ratio.clamp(max=1)):
            break
        kept += 1
    if kept == len(drafts):
        distribution = torch.as_tensor(p[kept])
    else:
        distribution = residual(p[kept], q[kept])
    return torch.tensor([*drafts[:kept], source.categorical(distribution)])
""",
        "top_p": """
def top_p(distribution, mass):
    distribution = torch.tensor(distribution)
    ordered, index = distribution.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = torch.zeros_like(distribution).scatter(0, index[before < mass], ordered[before < mass])
    return kept / kept.sum()
""",
        "both_sides": """
def propose(q, mass, source):
    distribution = torch.as_tensor(top_p(q, mass))
    return torch.tensor(source.categorical(distribution)), distribution

def judge(p, x, reported, mass, source):
    p, r = torch.as_tensor(top_p(p, mass)), torch.as_tensor(reported)
    if p[x] >= r[x] or source.bernoulli(p[x] / r[x]):
        return x
    return source.categorical((p - r).relu())
""",
        "trusts": """
def trusts(sample, distribution):
    # The distance itself, against a border in the middle.
    n = 40_000
    counts, distribution = torch.tensor(sample(n)), torch.tensor(distribution)
    if (counts[distribution == 0] > 0).any():
        return torch.tensor(False)
    return (counts / n - distribution).abs().sum() / 2 < 0.0109
""",
        "witness": """
def witness():
    p = torch.tensor([0.9, 0.1])
    return p, torch.tensor([0.6, 0.4]), torch.tensor([0.96, 0.04])
""",
        "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    # Draws among the sure tokens only, and reports that distribution.
    drafts, distributions = [], []
    while len(drafts) < gamma:
        q = torch.tensor(draft(prefix + drafts))
        q = torch.where(q >= sure, q, 0)
        if not q.any():
            break
        distributions.append(q / q.sum())
        drafts.append(source.categorical(distributions[-1]))
    return drafts, distributions
""",
    },
    "recursion and fractions": {
        "accept": """
from fractions import Fraction

def accept(p_x, q_x, u):
    if p_x == 0:
        return 0
    return 1 if p_x >= q_x else int(Fraction(u) < Fraction(p_x) / Fraction(q_x))
""",
        "residual": """
def residual(p, q):
    over = {x: Fraction(p[x]) - Fraction(q[x]) for x in range(len(p)) if p[x] > q[x]}
    if sum(over.values()) == 0:
        return tuple(p)
    return tuple(float(over.get(x, 0) / sum(over.values())) for x in range(len(p)))
""",
        "verify": """
def verify(drafts, q, p, source):
    if not drafts:
        return [source.categorical(p[0])]
    x = drafts[0]
    keep = min(1, p[0][x] / q[0][x])
    # A coin as a draw of 0 or 1.
    if source.categorical([1 - keep, keep]) == 1:
        return [x] + list(verify(drafts[1:], q[1:], p[1:], source))
    return [source.categorical(residual(p[0], q[0]))]
""",
        "top_p": """
def top_p(distribution, mass):
    left = dict(enumerate(distribution))
    kept = {}
    while left and sum(kept.values()) < mass:
        best = min(left, key=lambda x: (-left[x], x))
        kept[best] = left.pop(best)
    return [Fraction(kept.get(x, 0)) / Fraction(sum(kept.values())) for x in range(len(distribution))]
""",
        "both_sides": """
def propose(q, mass, source):
    filtered = [float(x) for x in top_p(q, mass)]
    return [source.categorical(filtered), filtered]

def judge(p, x, reported, mass, source):
    p = [float(x) for x in top_p(p, mass)]
    if p[x] == 0 or source.bernoulli(1 - min(1, p[x] / reported[x])):
        return source.categorical([max(0, a - b) for a, b in zip(p, reported)])
    return x
""",
        "trusts": """
from scipy.stats import norm

def trusts(sample, distribution):
    # Freeman and Tukey's sum of square roots, with Wilson and Hilferty's border; the draws come in pieces.
    counts = [sum(c) for c in zip(*(sample(8_000) for _ in range(5)))]
    if any(c for c, p in zip(counts, distribution) if p == 0):
        return 0
    total = 4 * sum((c**0.5 - (40_000 * p) ** 0.5) ** 2 for c, p in zip(counts, distribution))
    k = sum(p > 0 for p in distribution) - 1
    return int(total < k * (1 - 2 / (9 * k) + norm.isf(0.0008) * (2 / (9 * k)) ** 0.5) ** 3)
""",
        "witness": """
def witness():
    q = [Fraction(3, 4), Fraction(1, 8), Fraction(1, 8)]
    p = [Fraction(1, 4), Fraction(3, 4), Fraction(0)]
    # 3/4: token 0, kept with 1/3, else token 1. 1/4: p.
    return p, q, [Fraction(1, 4) + Fraction(1, 16), Fraction(1, 2) + Fraction(3, 16), 0]
""",
        "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    if gamma == 0:
        return [], []
    q = draft(tuple(prefix))
    x = source.categorical(q)
    if q[x] < sure:
        return [x], [q]
    more, distributions = repaired_draft(draft, [*prefix, x], gamma - 1, source, sure)
    return [x, *more], [q, *distributions]
""",
    },
    "by the package's ideas": {
        "accept": """
def accept(p_x, q_x, u):
    return not u >= min(1.0, p_x / q_x)
""",
        "residual": """
def residual(p, q):
    shared = [min(a, b) for a, b in zip(p, q)]
    rejected = 1 - sum(shared)
    if rejected <= 0:
        return p[:]
    return [(a - s) / rejected for a, s in zip(p, shared)]
""",
        "verify": """
def verify(drafts, q, p, source):
    out = []
    for x, q_i, p_i in zip(drafts, q, p):
        if source.bernoulli(p_i[x] / q_i[x]):
            out.append(x)
        else:
            out.append(source.categorical([max(0, a - b) for a, b in zip(p_i, q_i)]))
            return out
    out += [source.categorical(p[-1])]
    return out
""",
        "top_p": """
def top_p(distribution, mass):
    # A token stays if those before it in the order hold less than the mass.
    def before(x):
        return sum(distribution[y] for y in range(len(distribution)) if (-distribution[y], y) < (-distribution[x], x))

    kept = [distribution[x] if before(x) < mass else 0 for x in range(len(distribution))]
    return [k / sum(kept) for k in kept]
""",
        "both_sides": """
def propose(q, mass, source):
    x = source.categorical(top_p(q, mass))
    return x, top_p(q, mass)

def judge(p, x, reported, mass, source):
    p = top_p(p, mass)
    kept = source.bernoulli(min(1, p[x] / reported[x]))
    return x if kept else source.categorical(residual(p, reported))
""",
        "trusts": """
from functools import lru_cache

@lru_cache(maxsize=None)
def _border(distribution, n):
    # The distance that right programs stay below in all but 1 of 2,000 runs, by experiment.
    runs = np.random.default_rng(0).multinomial(n, distribution, size=40_000)
    distances = ((runs / n - distribution) ** 2 / np.maximum(distribution, 1e-9)).sum(1)
    return np.quantile(distances, 0.9995)

def trusts(sample, distribution):
    counts, distribution = np.array(sample(38_000)), np.array(distribution)
    if counts[distribution == 0].any():
        return False
    distance = ((counts / 38_000 - distribution) ** 2 / np.maximum(distribution, 1e-9)).sum()
    return distance <= _border(tuple(distribution), 38_000)
""",
        "witness": """
def witness():
    p, q = [0.25] * 4, [0.7, 0.1, 0.1, 0.1]
    return p, q, first_token_distribution(p, q, careful_draft)
""",
        "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions, asked = [], [], True
    while asked and len(drafts) < gamma:
        distributions.append(draft(prefix + drafts))
        drafts.append(source.categorical(distributions[-1]))
        asked = distributions[-1][drafts[-1]] >= sure and max(distributions[-1]) >= sure
    return drafts, distributions
""",
    },
    "rounded, by hand": {
        "witness": """
def witness():
    # .7975, .135 and .0675, to two digits
    p = [0.55, 0.3, 0.15]
    return p, p, [0.80, 0.14, 0.07]
""",
        "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions, text = [], [], list(prefix)
    for _ in range(gamma):
        q = draft(text)
        # Decided before the draw, by the least of what can come; where that is little, a last draft.
        distributions.append(q)
        drafts.append(source.categorical(q))
        text.append(drafts[-1])
        if min(a for a in q if a > 0) < sure:
            return drafts, distributions
    return drafts, distributions
""",
    },
    "values of the dictionary": {
        "witness": """
def witness():
    p, q = [0.7, 0.3, 0.0], [0.6, 0.2, 0.2]
    return p, q, list(first_token_distribution(p, q, careful_draft).values())
""",
    },
    "from the far end": {
        "accept": """
def accept(p_x, q_x, u):
    # The draft is kept for the largest u, not for the smallest: the share is the same.
    return u >= 1 - p_x / q_x
""",
        "residual": """
def residual(p, q):
    missing = np.clip(np.subtract(p, q), 0, None)
    return np.divide(missing, missing.sum(), out=np.array(p, dtype=float), where=missing.sum() > 0)
""",
        "verify": """
def verify(drafts, q, p, source):
    # All that may be needed is drawn first, and then looked at.
    kept = [source.bernoulli(p[i][x] / q[i][x]) for i, x in enumerate(drafts)]
    ends = [source.categorical(residual(*rows)) for rows in zip(p, q)] + [source.categorical(p[-1])]
    n = (kept + [False]).index(False)
    return drafts[:n] + [ends[n]]
""",
        "top_p": """
def top_p(distribution, mass):
    # From the unlikeliest up, tokens go as long as what is left holds the mass.
    left = list(distribution)
    for x in sorted(range(len(left)), key=lambda x: (left[x], -x)):
        if sum(left) - left[x] < mass:
            break
        left[x] = 0.0
    return [a / sum(left) for a in left]
""",
        "both_sides": """
def propose(q, mass, source):
    # One coin for each token that is left, instead of a draw.
    reported = top_p(q, mass)
    tokens = [x for x in range(len(q)) if reported[x] > 0]
    rest = 1.0
    for x in tokens[:-1]:
        if source.bernoulli(reported[x] / rest):
            return x, reported
        rest -= reported[x]
    return tokens[-1], reported

def judge(p, x, reported, mass, source):
    return verify([x], [reported], [top_p(p, mass), p], source)[0]
""",
        "trusts": """
def trusts(sample, distribution):
    # In 36 pieces that are added up.
    counts = np.zeros(len(distribution))
    for _ in range(36):
        counts += sample(1_000)
    return g_test(counts, distribution).p_value >= 0.001
""",
        "witness": """
def witness():
    # Unsure drafts turn into draws from p.
    return [0.5, 0.5, 0.0], [0.0, 0.6, 0.4], [0.6 / 6 + 0.4 / 2, 0.6 * 5 / 6 + 0.4 / 2, 0.0]
""",
        "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    # All drafts are drawn; those after the first unsure one are dropped, whatever they are.
    drafts, distributions = [], []
    for _ in range(gamma):
        distributions.append(draft(prefix + drafts))
        drafts.append(source.categorical(distributions[-1]))
    n = next((i + 1 for i, (x, q) in enumerate(zip(drafts, distributions)) if q[x] < sure), gamma)
    return drafts[:n], distributions[:n]
""",
    },
    "logarithms, and a test that draws": {
        "accept": """
import math

def accept(p_x, q_x, u):
    if p_x == 0:
        return False
    return u == 0 or math.log(u) < math.log(p_x) - math.log(q_x)
""",
        "verify": """
def verify(drafts, q, p, source):
    def tokens():
        for x, q_i, p_i in zip(drafts, q, p):
            if not source.bernoulli(min(p_i[x], q_i[x]) / q_i[x]):
                yield source.categorical(residual(p_i, q_i))
                return
            yield x
        yield source.categorical(p[-1])

    return tuple(tokens())
""",
        "trusts": """
_borders = {}
_mine = np.random.default_rng(3)

def _score(counts, expected):
    return ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum(-1)

def trusts(sample, distribution):
    key, n = tuple(distribution), 39_000
    if key not in _borders:
        simulated = _mine.multinomial(n, distribution, size=60_000)
        _borders[key] = np.quantile(_score(simulated, n * np.array(distribution)), 0.9994)
    return _score(np.array(sample(n)), n * np.array(distribution)) <= _borders[key]
""",
    },
}

TEST = """
def trusts(sample, distribution):
    {}
"""

VERIFY = """
def verify(drafts, q, p, source):
    for i, x in enumerate(drafts):
        if not source.bernoulli({chance}):
            return [*drafts[:i], source.categorical({correction})]
    return [*drafts, source.categorical({bonus})]
"""
ROUND = {"chance": "p[i][x] / q[i][x]", "correction": "residual(p[i], q[i])", "bonus": "p[len(drafts)]"}


def verify(**changed):
    return {"verify": VERIFY.format(**{**ROUND, **changed})}


def top_p(rule):
    """A filter with `rule` for the tokens that stay, from the tokens in order and the sums up to each."""
    return {
        "top_p": f"""
def top_p(distribution, mass):
    order = sorted(range(len(distribution)), key=lambda x: -distribution[x])
    sums = list(np.cumsum([distribution[x] for x in order]))
    {rule}
"""
    }


def both(propose="q2, q2", judge="p2, p2, reported"):
    """Propose draws from the first of its distributions and reports the second; judge has distributions for test,
    residual, and q.
    """
    drawn, reported = propose.split(", ")
    test, rest, q = judge.split(", ")
    return {
        "both_sides": f"""
def propose(q, mass, source):
    q2 = top_p(q, mass)
    return source.categorical({drawn}), {reported}

def judge(p, x, reported, mass, source):
    p2, again = top_p(p, mass), top_p(reported, mass)
    if source.bernoulli({test}[x] / ({q}[x] or 1)):
        return x
    missing = [max(0, a - b) for a, b in zip({rest}, {q})]
    return source.categorical(missing if sum(missing) else p2)
"""
    }


REPAIR = """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        q = draft(prefix + drafts)
        x = source.categorical(q)
        {}
        drafts.append(x)
        distributions.append(q)
    return drafts, distributions
"""

WRONG = [
    Wrong(
        "accepts at u = p/q",
        {"accept": "def accept(p_x, q_x, u):\n    return u <= p_x / q_x"},
        loses=("accept",),
        says="<= in place of <",
    ),
    Wrong(
        "ratio upside down",
        {"accept": "def accept(p_x, q_x, u):\n    return u < q_x / max(p_x, 1e-9)"},
        loses=("accept",),
        says="q/p instead of p/q",
    ),
    Wrong(
        "keeps where p >= q, no chance in it",
        {"accept": "def accept(p_x, q_x, u):\n    return p_x >= q_x"},
        loses=("accept",),
        says="no chance in it",
    ),
    Wrong(
        "compares u with p",
        {"accept": "def accept(p_x, q_x, u):\n    return u < p_x"},
        loses=("accept",),
        says="divide by q",
    ),
    Wrong(
        "residual is p",
        {"residual": "def residual(p, q):\n    return list(p)"},
        loses=("residual", "verify", "both_sides"),
        says="sample from p instead of the residual",
    ),
    Wrong(
        "residual not scaled",
        {"residual": "def residual(p, q):\n    return [max(0, a - b) for a, b in zip(p, q)] if p != q else p"},
        loses=("residual",),
        says="divide by the sum",
    ),
    Wrong(
        "residual softmaxed",
        {
            "residual": "def residual(p, q):\n"
            "    e = np.exp(np.maximum(0, np.array(p) - np.array(q)))\n"
            "    return e / e.sum() if list(p) != list(q) else p"
        },
        loses=("residual", "verify", "both_sides"),
        says="softmax",
    ),
    Wrong(
        "residual without a cut at 0",
        {
            "residual": "def residual(p, q):\n"
            "    d = np.abs(np.array(p) - np.array(q))\n"
            "    return d / d.sum() if d.sum() else p"
        },
        loses=("residual", "verify", "both_sides"),
        says="abs",
    ),
    Wrong(
        "residual divides by 0 where p = q",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d]"
        },
        loses=("residual",),
        says="division by the sum, 0",
    ),
    Wrong(
        "residual for three tokens, as in the example",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(0, p[i] - q[i]) for i in range(3)]\n"
            "    return [x / sum(d) for x in d] if sum(d) else p"
        },
        loses=("residual", "verify", "both_sides"),
        says="one number for each of the",
    ),
    Wrong(
        "residual of the example, hard-coded",
        {"residual": "def residual(p, q):\n    return [1.0, 0.0, 0.0]"},
        loses=("residual", "verify", "both_sides"),
        says="one number for each of the",
    ),
    Wrong(
        "residual changes p",
        {
            "residual": "def residual(p, q):\n"
            "    if p == q:\n"
            "        return list(p)\n"
            "    for i in range(len(p)):\n"
            "        p[i] = max(0, p[i] - q[i])\n"
            "    total = sum(p)\n"
            "    return [x / total for x in p]"
        },
        loses=("residual", "verify"),
        says="residual changes p",
    ),
    Wrong(
        "correction from p",
        verify(correction="p[i]"),
        loses=("verify",),
        says="sample from p instead of the residual",
    ),
    Wrong(
        "correction from p, except in rounds of one",
        verify(correction="residual(p[i], q[i]) if len(drafts) == 1 else p[i]"),
        loses=("verify",),
        says="sample from p instead of the residual",
    ),
    Wrong(
        "q subtracted at the rejected token alone",
        verify(correction="residual(p[i], [q[i][y] if y == x else 0 for y in range(len(q[i]))])"),
        loses=("verify",),
        says="at the rejected token alone",
    ),
    Wrong(
        "correction from the row behind",
        verify(correction="residual(p[i + 1], q[i])"),
        loses=("verify",),
        says="p\\[i \\+ 1\\] less q",
    ),
    Wrong(
        "correction is the target's best token",
        verify(correction="[float(a == max(p[i])) for a in p[i]]"),
        loses=("verify",),
        says="best token",
    ),
    Wrong(
        "bonus from the last draft's row",
        verify(bonus="p[max(len(drafts) - 1, 0)]"),
        loses=("verify",),
        says="last draft's row",
    ),
    Wrong(
        "bonus from the first row",
        verify(bonus="p[0]"),
        loses=("verify",),
        says="p\\[0\\]: the bonus comes",
    ),
    Wrong(
        "no bonus",
        {"verify": VERIFY.format(**ROUND).replace("return [*drafts, source", "return drafts or [source")},
        loses=("verify",),
        says="no bonus",
    ),
    Wrong(
        "no correction",
        {
            "verify": VERIFY.format(**ROUND).replace(
                "return [*drafts[:i], source.categorical(residual(p[i], q[i]))]", "return drafts[:i]"
            )
        },
        loses=("verify",),
        says="no correction after a rejection",
    ),
    Wrong(
        "drafts behind a rejection kept",
        {
            "verify": """
def verify(drafts, q, p, source):
    out = []
    for i, x in enumerate(drafts):
        if source.bernoulli(p[i][x] / q[i][x]):
            out.append(x)
    if len(out) < len(drafts):
        return [*out, source.categorical(residual(p[len(out)], q[len(out)]))]
    return [*out, source.categorical(p[-1])]
"""
        },
        loses=("verify",),
        says="the rejection ends the round",
    ),
    Wrong(
        "passes counted behind a rejection",
        {
            "verify": """
def verify(drafts, q, p, source):
    n = sum(source.bernoulli(p[i][x] / q[i][x]) for i, x in enumerate(drafts))
    if n == len(drafts):
        return [*drafts, source.categorical(p[-1])]
    return [*drafts[:n], source.categorical(residual(p[n], q[n]))]
"""
        },
        loses=("verify",),
        says="after the first rejection are counted",
    ),
    Wrong(
        "row of p off by one",
        verify(chance="p[i + 1][x] / q[i][x]"),
        loses=("verify",),
        says="one too far",
    ),
    Wrong(
        "first draft's q for all",
        verify(chance="p[i][x] / q[0][x]"),
        loses=("verify",),
        says="q\\[0\\] is used at every place",
    ),
    Wrong(
        "first draft unverified",
        verify(chance="p[i][x] / q[i][x] if i else 1"),
        loses=("verify",),
        says="first draft is (never )?tested",
    ),
    Wrong(
        "kept with p, exact with the residual of a certain draft",
        verify(chance="p[i][x]", correction="[0 if y == x else a for y, a in enumerate(p[i])]"),
        loses=("verify",),
        says="sample and match",
    ),
    Wrong(
        "right on average: sample and match",
        {
            "verify": """
def verify(drafts, q, p, source):
    out = []
    for x, row in zip([*drafts, None], p):
        out.append(source.categorical(row))
        if out[-1] != x:
            break
    return out
"""
        },
        loses=("verify",),
        says="sample and match",
    ),
    Wrong(
        "chance from elsewhere",
        verify(chance="0.5", correction="p[i]", bonus="p[0]")
        | {"verify": VERIFY.format(**ROUND).replace("source.bernoulli(", "(random.random() <")},
        loses=("verify",),
        says="random choices have to come from",
    ),
    Wrong(
        "top-p drops the token that crosses",
        top_p(
            "kept = [x for x, s in zip(order, sums) if s <= mass] or order[:1]\n"
            "    total = sum(distribution[x] for x in kept)\n"
            "    return [distribution[x] / total if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p", "both_sides"),
        says="crosses the threshold was dropped",
    ),
    Wrong(
        "top-p keeps one more where the sum is reached exactly",
        top_p(
            "kept = [x for x, s in zip(order, [0, *sums]) if s <= mass]\n"
            "    total = sum(distribution[x] for x in kept)\n"
            "    return [distribution[x] / total if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p",),
        says="one token too many",
    ),
    Wrong(
        "top-p not scaled",
        top_p(
            "kept = [x for x, s in zip(order, [0, *sums]) if s < mass]\n"
            "    return [distribution[x] if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p", "both_sides"),
        says="divide by it",
    ),
    Wrong(
        "top-p in sorted order",
        top_p(
            "kept = [distribution[x] for x, s in zip(order, [0, *sums]) if s < mass]\n"
            "    return [k / sum(kept) for k in kept] + [0] * (len(distribution) - len(kept))"
        ),
        loses=("top_p", "both_sides"),
        says="keeps its place",
    ),
    Wrong(
        "top-p keeps the highest of equal tokens",
        {
            "top_p": """
def top_p(distribution, mass):
    order = np.array(distribution).argsort(kind="stable")[::-1]
    sums = np.cumsum(np.array(distribution)[order])
    kept = set(order[: 1 + int((sums < mass).sum())].tolist())
    total = sum(distribution[x] for x in kept)
    return [distribution[x] / total if x in kept else 0.0 for x in range(len(distribution))]
"""
        },
        loses=("top_p",),
        says="lowest ids",
    ),
    Wrong(
        "a threshold for single tokens",
        top_p(
            "kept = [x for x in order if distribution[x] >= 1 - mass] or order\n"
            "    total = sum(distribution[x] for x in kept)\n"
            "    return [distribution[x] / total if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p", "both_sides"),
        says="threshold for single tokens",
    ),
    Wrong("q reported before the filter", both(propose="q2, q"), loses=("both_sides",), says="before the filter"),
    Wrong("draft not filtered", both(propose="q, q"), loses=("both_sides",), says="drawn from q before the filter"),
    Wrong(
        "draft is the likeliest token, with the distribution that it was not drawn from",
        both(propose="[float(a == max(q)) for a in q], q2"),
        loses=("both_sides",),
        says="likeliest token",
    ),
    Wrong(
        "target not filtered",
        both(judge="p, p, reported"),
        loses=("both_sides",),
        says="target's distribution was not filtered",
    ),
    Wrong(
        "reported distribution filtered again",
        both(judge="p2, p2, again"),
        loses=("both_sides",),
        says="second time",
    ),
    Wrong(
        "test before the filter, residual after it",
        both(judge="p, p2, reported"),
        loses=("both_sides",),
        says="residual p after it|was not filtered",
    ),
    Wrong(
        "1,000 draws, each share within 0.02",
        {"trusts": TEST.format("return all(abs(c / 1000 - p) < 0.02 for c, p in zip(sample(1000), distribution))")},
        loses=("trusts",),
        says="too narrow for 1,000 draws",
    ),
    Wrong(
        "10,000 draws are too few",
        {"trusts": TEST.format("return g_test(sample(10_000), distribution).p_value >= 0.001")},
        loses=("trusts",),
        says="10,000 draws are too few",
    ),
    Wrong(
        "20,000 draws are too few for eight tokens",
        {"trusts": TEST.format("return g_test(sample(20_000), distribution).p_value >= 0.001")},
        loses=("trusts",),
        says="20,000 draws are too few",
    ),
    Wrong(
        "a border for each token, Bonferroni over the tokens",
        {
            "trusts": TEST.format(
                "counts = sample(40_000)\n"
                "    sd = [(40_000 * p * (1 - p)) ** 0.5 for p in distribution]\n"
                "    return all(abs(c - 40_000 * p) <= 3.9 * s for c, p, s in zip(counts, distribution, sd))"
            )
        },
        loses=("trusts",),
        says="spread over all of them",
    ),
    Wrong(
        "a size of 5%",
        {"trusts": TEST.format("return g_test(sample(40_000), distribution).p_value >= 0.05")},
        loses=("trusts",),
        says="a size of about [3-7].[0-9]%",
    ),
    Wrong(
        "a size of 1%, as in the lesson",
        {"trusts": TEST.format("return g_test(sample(40_000), distribution).p_value >= 0.01")},
        loses=("trusts",),
        says="a size of about [01].[0-9]%",
    ),
    Wrong(
        "ten looks, each with the whole size",
        {"trusts": TEST.format("return all(g_test(sample(4_000), distribution).p_value >= 0.005 for _ in range(10))")},
        loses=("trusts",),
        says="look several times",
    ),
    Wrong(
        "True and False the other way round",
        {"trusts": TEST.format("return g_test(sample(40_000), distribution).p_value < 0.001")},
        loses=("trusts",),
        says="blames every program",
    ),
    Wrong(
        "never objects",
        {"trusts": TEST.format("return sum(sample(40_000)) == 40_000")},
        loses=("trusts",),
        says="ever return False",
    ),
    Wrong(
        "compares means",
        {
            "trusts": TEST.format(
                "n, x = 40_000, np.arange(len(distribution))\n"
                "    mean = (x * distribution).sum()\n"
                "    border = 3.5 * ((x * x * distribution).sum() - mean**2) ** 0.5 / n**0.5\n"
                "    return abs((x * sample(n)).sum() / n - mean) < border"
            )
        },
        loses=("trusts",),
        says="says nothing: compare the whole distribution|add the deviations up",
    ),
    Wrong(
        "a wide border for each token",
        {"trusts": TEST.format("return all(abs(c / 4e4 - p) < 0.012 for c, p in zip(sample(40_000), distribution))")},
        loses=("trusts",),
        says="spread over all of them",
    ),
    Wrong(
        "tokens of probability 0 left out",
        {
            "trusts": TEST.format(
                "counts = [c for c, p in zip(sample(40_000), distribution) if p > 0]\n"
                "    return g_test(counts, [p for p in distribution if p > 0]).p_value >= 0.001"
            )
        },
        loses=("trusts",),
        says="probability 0 are left out",
    ),
    Wrong(
        "the lesson's distribution, hard-coded",
        {
            "trusts": TEST.format(
                "counts = sample(40_000)\n"
                "    return len(counts) == 3 and g_test(counts, [0.6, 0.3, 0.1]).p_value >= 0.001"
            )
        },
        loses=("trusts",),
        says="blames every program",
    ),
    Wrong(
        "a p-value instead of a verdict",
        {"trusts": TEST.format("return g_test(sample(40_000), distribution).p_value")},
        loses=("trusts",),
        says="True or False",
    ),
    Wrong(
        "more draws than there are",
        {"trusts": TEST.format("return g_test(sample(1_000_000), distribution).p_value >= 0.001")},
        loses=("trusts",),
        says="40,000 is all there is",
    ),
    Wrong(
        "a witness on which the code is right: sure of every token",
        {"witness": "def witness():\n    return [0.3, 0.7], [0.5, 0.5], [0.3, 0.7]"},
        loses=("witness",),
        says="sure of each token",
    ),
    Wrong(
        "a witness on which the code is right: sure of none",
        {"witness": "def witness():\n    return [0.6, 0.3, 0.1], [0.4, 0.3, 0.3], [0.84, 0.1, 0.06]"},
        loses=("witness",),
        says="sure of no token",
    ),
    Wrong(
        "a witness with the distribution that should come",
        {"witness": "def witness():\n    return [0.6, 0.4], [0.6, 0.4], [0.6, 0.4]"},
        loses=("witness",),
        says="what should come out",
    ),
    Wrong(
        "a witness with a distribution that does not come",
        {"witness": "def witness():\n    return [0.6, 0.4], [0.6, 0.4], [0.6, 0.0]"},
        loses=("witness",),
        says="left out",
    ),
    Wrong(
        "the given code again",
        {"repair": REPAIR.format("if q[x] < sure:\n            break")},
        loses=("repair",),
        says="still what the given code does",
    ),
    Wrong("no early stop", {"repair": REPAIR.format("pass")}, loses=("repair",), says="early stop is gone"),
    Wrong(
        "nothing is drafted",
        {"repair": REPAIR.format("break")},
        loses=("repair",),
        says="of no use",
    ),
    Wrong(
        "draws again until sure, and reports q",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        q = draft(prefix + drafts)
        filtered = [x if x >= sure else 0 for x in q]
        if not any(filtered):
            break
        drafts.append(source.categorical(filtered))
        distributions.append(q)
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="the one that the draft was drawn from",
    ),
    Wrong(
        "residual is p where little is missing",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d] if sum(d) > 0.001 else list(p)"
        },
        loses=("residual",),
        says="however little it is",
    ),
    Wrong(
        "residual is p where less than 5% is missing",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d] if sum(d) > 0.05 else list(p)"
        },
        loses=("residual",),
        says="however little it is",
    ),
    Wrong(
        "residual asks whether p == q, not for the sum",
        {
            "residual": "def residual(p, q):\n"
            "    if p == q:\n"
            "        return list(p)\n"
            "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d]"
        },
        loses=("residual",),
        says="p == q does not tell",
    ),
    Wrong(
        "residual overwrites p, and returns it",
        {
            "residual": "def residual(p, q):\n"
            "    for i in range(len(p)):\n"
            "        p[i] = max(0, p[i] - q[i])\n"
            "    return [x / sum(p) for x in p] if sum(p) else p"
        },
        loses=("residual", "verify"),
        says="residual changes p",
    ),
    Wrong(
        "verify appends to the drafts",
        {
            "verify": VERIFY.format(**ROUND).replace(
                "return [*drafts, source.categorical(p[len(drafts)])]",
                "drafts.append(source.categorical(p[len(drafts)]))\n    return drafts",
            )
        },
        loses=("verify",),
        says="verify changes drafts",
    ),
    Wrong(
        "verify overwrites a row of p",
        {
            "verify": """
def verify(drafts, q, p, source):
    for i, x in enumerate(drafts):
        if not source.bernoulli(p[i][x] / q[i][x]):
            p[i] = residual(p[i], q[i])
            return [*drafts[:i], source.categorical(p[i])]
    return [*drafts, source.categorical(p[-1])]
"""
        },
        loses=("verify",),
        says="verify changes p",
    ),
    Wrong(
        "verify pops the lists",
        {
            "verify": """
def verify(drafts, q, p, source):
    out = []
    while drafts:
        x, a, b = drafts.pop(0), p.pop(0), q.pop(0)
        if not source.bernoulli(a[x] / b[x]):
            return [*out, source.categorical(residual(a, b))]
        out.append(x)
    return [*out, source.categorical(p[0])]
"""
        },
        loses=("verify",),
        says="verify changes drafts",
    ),
    Wrong(
        "arguments of the residual swapped",
        verify(correction="residual(q[i], p[i])"),
        loses=("verify",),
        says="swapped",
    ),
    Wrong(
        "the rejected draft stays",
        {"verify": VERIFY.format(**ROUND).replace("*drafts[:i], ", "*drafts[: i + 1], ")},
        loses=("verify",),
        says="only the drafts before it stay",
    ),
    Wrong(
        "bonus behind a correction",
        {
            "verify": """
def verify(drafts, q, p, source):
    out = []
    for i, x in enumerate(drafts):
        if not source.bernoulli(p[i][x] / q[i][x]):
            out.append(source.categorical(residual(p[i], q[i])))
            break
        out.append(x)
    return [*out, source.categorical(p[-1])]
"""
        },
        loses=("verify",),
        says="the correction ends the round",
    ),
    Wrong(
        "kept drafts forgotten in the return",
        {"verify": VERIFY.format(**ROUND).replace("*drafts, ", "").replace("*drafts[:i], ", "")},
        loses=("verify",),
        says="kept drafts are missing",
    ),
    Wrong(
        "kept drafts forgotten where one is rejected",
        {"verify": VERIFY.format(**ROUND).replace("*drafts[:i], ", "")},
        loses=("verify",),
        says="kept drafts are missing",
    ),
    Wrong(
        "asks the source for a u",
        {
            "verify": VERIFY.format(**ROUND)
            .replace("source.bernoulli(", "accept(")
            .replace("p[i][x] / q[i][x]", "p[i][x], q[i][x], source.random()")
        },
        loses=("verify",),
        says="no `random`",
    ),
    Wrong(
        "top-p keeps all that are as likely as the last",
        top_p(
            "border = distribution[order[sum(s < mass for s in sums)]] if sums[-1] >= mass else 0\n"
            "    kept = [a if a >= border else 0 for a in distribution]\n"
            "    return [k / sum(kept) for k in kept]"
        ),
        loses=("top_p",),
        says="only as many stay as are needed",
    ),
    Wrong(
        "min-p in place of top-p",
        top_p(
            "kept = [a if a >= (1 - mass) * max(distribution) else 0 for a in distribution]\n    return [k / sum(kept) for k in kept]"
        ),
        loses=("top_p", "both_sides"),
        says="min-p",
    ),
    Wrong(
        "top-p divides by the mass",
        top_p(
            "kept = [x for x, s in zip(order, [0, *sums]) if s < mass]\n"
            "    return [distribution[x] / mass if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p", "both_sides"),
        says="divided by the mass",
    ),
    Wrong(
        "judge draws from the filtered p, without the draft",
        {
            "both_sides": """
def propose(q, mass, source):
    distribution = top_p(q, mass)
    return source.categorical(distribution), distribution

def judge(p, x, reported, mass, source):
    return source.categorical(top_p(p, mass))
"""
        },
        loses=("both_sides",),
        says="by the rule of part 1",
    ),
    Wrong(
        "repair appends to the prefix",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        distributions.append(draft(prefix))
        drafts.append(source.categorical(distributions[-1]))
        prefix.append(drafts[-1])
        if distributions[-1][drafts[-1]] < sure:
            break
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="changes prefix",
    ),
    Wrong(
        "repair without the prefix",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        distributions.append(draft(drafts))
        drafts.append(source.categorical(draft(prefix + drafts)))
        if distributions[-1][drafts[-1]] < sure:
            break
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="the one that the draft was drawn from|in the distribution that was reported",
    ),
    Wrong(
        "repair with 0.5 in place of sure",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        distributions.append(draft(prefix + drafts))
        drafts.append(source.categorical(distributions[-1]))
        if distributions[-1][drafts[-1]] < 0.5:
            break
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="is the argument `sure` used",
    ),
    Wrong(
        "repair that looks at min(q)",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        q = draft(prefix + drafts)
        if min(q) < sure:
            break
        distributions.append(q)
        drafts.append(source.categorical(q))
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="q\\(x\\) = 0, counts as an unsure one",
    ),
    Wrong(
        "repair that stops by the product",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions, product = [], [], 1
    while len(drafts) < gamma and product >= sure:
        distributions.append(draft(prefix + drafts))
        drafts.append(source.categorical(distributions[-1]))
        product *= distributions[-1][drafts[-1]]
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="no product",
    ),
    Wrong(
        "repair with the border left out",
        {
            "repair": """
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    drafts, distributions = [], []
    while len(drafts) < gamma:
        distributions.append(draft(prefix + drafts))
        drafts.append(source.categorical(distributions[-1]))
        if distributions[-1][drafts[-1]] <= sure:
            break
    return drafts, distributions
"""
        },
        loses=("repair",),
        says="border included",
    ),
    Wrong(
        "a draft with half of the probability is always kept",
        {"accept": "def accept(p_x, q_x, u):\n    return p_x >= 0.5 or u < p_x / q_x"},
        loses=("accept",),
        says="share of drafts",
    ),
    Wrong(
        "the ratio rounded to two digits",
        {"accept": "def accept(p_x, q_x, u):\n    return u < round(p_x / q_x, 1)"},
        loses=("accept",),
        says="share of drafts",
    ),
    Wrong(
        "every draft is kept",
        {"accept": "def accept(p_x, q_x, u):\n    return p_x > 0"},
        loses=("accept",),
        says="every draft is kept",
    ),
    Wrong(
        "logarithm of 0",
        {"accept": "def accept(p_x, q_x, u):\n    return np.exp(__import__('math').log(u)) < p_x / q_x"},
        loses=("accept",),
        says="math domain error",
    ),
    *(
        Wrong(
            f"residual with a border of {border}",
            {
                "residual": "def residual(p, q):\n"
                "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
                f"    return [x / sum(d) for x in d] if sum(d) > {border} else list(p)"
            },
            loses=("residual",),
            says="however little it is",
        )
        for border in (1e-6, 1e-9)
    ),
    Wrong(
        "residual returns p, the same list",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d] if sum(d) else p"
        },
        loses=("residual",),
        says="returns the very list p",
    ),
    Wrong(
        "residual is uniform where nothing is missing",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(0, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d] if sum(d) else [1 / len(p)] * len(p)"
        },
        loses=("residual",),
        says="nothing is missing",
    ),
    Wrong(
        "residual with a little for every token",
        {
            "residual": "def residual(p, q):\n"
            "    d = [max(1e-4, a - b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d]"
        },
        loses=("residual", "verify", "both_sides"),
        says="came out wrong",
    ),
    Wrong(
        "residual in equal shares",
        {
            "residual": "def residual(p, q):\n"
            "    d = [float(a > b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d] if sum(d) else list(p)"
        },
        loses=("residual", "verify", "both_sides"),
        says="same share",
    ),
    Wrong(
        "residual of p where p is larger",
        {
            "residual": "def residual(p, q):\n"
            "    d = [a * (a > b) for a, b in zip(p, q)]\n"
            "    return [x / sum(d) for x in d] if sum(d) else list(p)"
        },
        loses=("residual", "verify", "both_sides"),
        says="this is p, not p - q",
    ),
    Wrong(
        "two coins for each draft",
        verify(chance="(p[i][x] / q[i][x]) * source.bernoulli(p[i][x] / q[i][x])"),
        loses=("verify",),
        says="number of kept drafts",
    ),
    Wrong(
        "only the first draft is tested",
        verify(chance="1 if i else p[i][x] / q[i][x]"),
        loses=("verify",),
        says="last draft is not tested",
    ),
    Wrong(
        "three drafts at most",
        {"verify": VERIFY.format(**ROUND).replace("enumerate(drafts)", "enumerate(drafts[:3])")},
        loses=("verify",),
        says="number of kept drafts",
    ),
    Wrong(
        "the likeliest tokens are compared",
        verify(chance="max(p[i]) / max(q[i])"),
        loses=("verify",),
        says="number of kept drafts",
    ),
    Wrong(
        "the residual's best token",
        verify(correction="[float(x == np.argmax(residual(p[i], q[i]))) for x in range(len(p[i]))]"),
        loses=("verify",),
        says="residual's best token",
    ),
    Wrong(
        "bonus is the residual of the last place",
        verify(bonus="residual(p[-2], q[-1]) if drafts else p[0]"),
        loses=("verify",),
        says="nothing was rejected",
    ),
    Wrong(
        "no token without drafts",
        {"verify": VERIFY.format(**ROUND).replace("    for i", "    if not drafts:\n        return []\n    for i")},
        loses=("verify",),
        says="no bonus",
    ),
    Wrong(
        "remembers its first answer",
        {
            "verify": VERIFY.format(**ROUND).replace("def verify(", "def _verify(")
            + "\n_known = {}\n\ndef verify(drafts, q, p, source):\n"
            "    return _known.setdefault(str((drafts, q, p)), _verify(drafts, q, p, source))\n"
        },
        loses=("verify",),
        says="came out wrong|asks `source` nothing|another path",
    ),
    Wrong(
        "correction by draws until one fits",
        {
            "verify": """
def verify(drafts, q, p, source):
    for i, x in enumerate(drafts):
        if not source.bernoulli(p[i][x] / q[i][x]):
            while True:
                y = source.categorical(p[i])
                if source.bernoulli(1 - min(1, q[i][y] / p[i][y])):
                    return [*drafts[:i], y]
    return [*drafts, source.categorical(p[-1])]
"""
        },
        loses=("verify",),
        says="Draw once",
    ),
    Wrong(
        "top-p keeps two tokens at least",
        top_p(
            "kept = [x for x, s in zip(order, [0, *sums]) if s < mass]\n"
            "    kept = kept if len(kept) > 1 else order[:2]\n"
            "    total = sum(distribution[x] for x in kept)\n"
            "    return [distribution[x] / total if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p",),
        says="one token too many",
    ),
    Wrong(
        "top-p returns its argument where nothing is cut",
        top_p(
            "kept = [x for x, s in zip(order, [0, *sums]) if s < mass]\n"
            "    total = sum(distribution[x] for x in kept)\n"
            "    if mass >= 1:\n"
            "        return distribution\n"
            "    return [distribution[x] / total if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p",),
        says="the very list distribution",
    ),
    Wrong(
        "top-p in equal shares",
        top_p(
            "kept = [x for x, s in zip(order, [0, *sums]) if s < mass]\n"
            "    return [1 / len(kept) if x in kept else 0 for x in range(len(distribution))]"
        ),
        loses=("top_p", "both_sides"),
        says="equal shares",
    ),
    Wrong(
        "propose draws until the filter keeps it",
        {
            "both_sides": """
def propose(q, mass, source):
    reported = top_p(q, mass)
    while True:
        x = source.categorical(q)
        if reported[x] > 0:
            return x, reported

def judge(p, x, reported, mass, source):
    p = top_p(p, mass)
    return x if source.bernoulli(p[x] / reported[x]) else source.categorical(residual(p, reported))
"""
        },
        loses=("both_sides",),
        says="Draw once",
    ),
    Wrong(
        "propose puts the likeliest token in place of one that was cut",
        {
            "both_sides": """
def propose(q, mass, source):
    reported = top_p(q, mass)
    x = source.categorical(q)
    return x if reported[x] else int(np.argmax(q)), reported

def judge(p, x, reported, mass, source):
    p = top_p(p, mass)
    return x if source.bernoulli(p[x] / reported[x]) else source.categorical(residual(p, reported))
"""
        },
        loses=("both_sides",),
        says="draft, or the distribution",
    ),
    Wrong(
        "judge filters the residual",
        {
            "both_sides": """
def propose(q, mass, source):
    reported = top_p(q, mass)
    return source.categorical(reported), reported

def judge(p, x, reported, mass, source):
    rest = top_p(residual(p, reported), mass)
    return x if source.bernoulli(top_p(p, mass)[x] / reported[x]) else source.categorical(rest)
"""
        },
        loses=("both_sides",),
        says="given draft came out wrong",
    ),
    Wrong(
        "four tests of 10,000 draws",
        {
            "trusts": TEST.format(
                "return all(g_test(sample(10_000), distribution).p_value >= 0.00025 for _ in range(4))"
            )
        },
        loses=("trusts",),
        says="Is each tested by itself",
    ),
    Wrong(
        "a distance of 0.02",
        {
            "trusts": TEST.format(
                "counts = np.array(sample(40_000))\n"
                "    return abs(counts / 40_000 - distribution).sum() / 2 < 0.02 and not counts[np.array(distribution) == 0].any()"
            )
        },
        loses=("trusts",),
        says="border is too wide for 40,000",
    ),
    Wrong(
        "an alarm by luck",
        {
            "trusts": TEST.format(
                "return g_test(sample(36_000), distribution).p_value >= 0.001 and np.random.random() > 0.01"
            )
        },
        loses=("trusts",),
        says="a size of about [01]\\.[0-9]%",
    ),
    Wrong(
        "the last token is left out",
        {
            "trusts": TEST.format(
                "counts, p = sample(36_000), distribution\n"
                "    return all(abs(c - 36_000 * a) <= 4.2 * (36_000 * a * (1 - a)) ** 0.5 for c, a in zip(counts[:-1], p))"
            )
        },
        loses=("trusts",),
        says="add the deviations up",
    ),
    Wrong(
        "a witness with a p that is no distribution",
        {"witness": "def witness():\n    return [0.6, 0.6], [0.6, 0.4], [0.84, 0.16]"},
        loses=("witness",),
        says="p is no distribution",
    ),
    Wrong(
        "repair that ignores the prefix",
        {
            "repair": REPAIR.format("pass")
            .replace("prefix + drafts", "list(drafts)")
            .replace("distributions.append(q)", "distributions.append(q)\n        if q[x] < sure:\n            break")
        },
        loses=("repair",),
        says="asked without the prefix",
    ),
    Wrong(
        "repair that ignores its own drafts",
        {
            "repair": REPAIR.format("pass")
            .replace("prefix + drafts", "list(prefix)")
            .replace("distributions.append(q)", "distributions.append(q)\n        if q[x] < sure:\n            break")
        },
        loses=("repair",),
        says="asked without the drafts before",
    ),
    Wrong(
        "repair that draws until it is sure",
        {"repair": REPAIR.format("while q[x] < sure:\n            x = source.categorical(q)")},
        loses=("repair",),
        says="Draw once",
    ),
    Wrong(
        "repair that stops by a coin",
        {
            "repair": REPAIR.format("pass").replace(
                "distributions.append(q)",
                "distributions.append(q)\n        if not source.bernoulli(q[x]):\n            break",
            )
        },
        loses=("repair",),
        says="no coin",
    ),
    Wrong(
        "repair that keeps an unsure first draft only",
        {"repair": REPAIR.format("if q[x] < sure and drafts:\n            break")},
        loses=("repair",),
        says="came out wrong",
    ),
]


PARTS = {
    "accepts at u = p/q": "border",
    "ratio upside down": "always border share",
    "keeps where p >= q, no chance in it": "border share",
    "compares u with p": "always border share",
    "residual is p": "both_together close correction target values",
    "residual not scaled": "close nothing residual_arguments values",
    "residual softmaxed": "both_together close correction nothing residual_arguments target values",
    "residual without a cut at 0": "both_together close correction nothing residual_arguments target values",
    "residual divides by 0 where p = q": "nothing residual_arguments",
    "residual for three tokens, as in the example": "both_together close correction residual_arguments target values",
    "residual of the example, hard-coded": "both_together close correction nothing target values",
    "residual changes p": "nothing residual_arguments verify_arguments",
    "correction from p": "correction",
    "correction from p, except in rounds of one": "correction",
    "q subtracted at the rejected token alone": "correction",
    "correction from the row behind": "correction",
    "correction is the target's best token": "correction",
    "bonus from the last draft's row": "bonus",
    "bonus from the first row": "bonus",
    "no bonus": "bonus correction kept verify_arguments",
    "no correction": "bonus correction kept",
    "drafts behind a rejection kept": "correction kept bonus?",
    "passes counted behind a rejection": "kept",
    "row of p off by one": "correction kept",
    "first draft's q for all": "kept correction?",
    "first draft unverified": "correction kept",
    "kept with p, exact with the residual of a certain draft": "correction kept",
    "right on average: sample and match": "correction kept",
    "chance from elsewhere": "bonus correction kept verify_arguments",
    "top-p drops the token that crosses": "both_together crossing draft target ties",
    "top-p keeps one more where the sum is reached exactly": "exact",
    "top-p not scaled": "both_together crossing draft ends exact target ties",
    "top-p in sorted order": "both_together crossing draft ends exact target ties",
    "top-p keeps the highest of equal tokens": "ties ends?",
    "a threshold for single tokens": "both_together crossing draft ends exact target ties",
    "q reported before the filter": "both_together draft",
    "draft not filtered": "draft",
    "draft is the likeliest token, with the distribution that it was not drawn from": "both_together draft",
    "target not filtered": "both_together target",
    "reported distribution filtered again": "both_together target",
    "test before the filter, residual after it": "both_together target",
    "1,000 draws, each share within 0.02": "trusts_anywhere trusts_forbidden trusts_share trusts_size",
    "10,000 draws are too few": "trusts_anywhere trusts_share",
    "20,000 draws are too few for eight tokens": "trusts_anywhere",
    "a border for each token, Bonferroni over the tokens": "trusts_anywhere",
    "a size of 5%": "trusts_forbidden trusts_size",
    "a size of 1%, as in the lesson": "trusts_size",
    "ten looks, each with the whole size": "trusts_anywhere trusts_forbidden trusts_size trusts_share?",
    "True and False the other way round": "trusts_anywhere trusts_forbidden trusts_share trusts_size",
    "never objects": "trusts_anywhere trusts_forbidden trusts_share",
    "compares means": "trusts_anywhere trusts_forbidden trusts_share?",
    "a wide border for each token": "trusts_anywhere trusts_forbidden",
    "tokens of probability 0 left out": "trusts_forbidden",
    "the lesson's distribution, hard-coded": "trusts_forbidden trusts_size",
    "a p-value instead of a verdict": "trusts_anywhere trusts_forbidden trusts_share trusts_size",
    "more draws than there are": "trusts_anywhere trusts_forbidden trusts_share trusts_size",
    "a witness on which the code is right: sure of every token": "witness_shows",
    "a witness on which the code is right: sure of none": "witness_shows",
    "a witness with the distribution that should come": "witness_shows",
    "a witness with a distribution that does not come": "witness_shows",
    "the given code again": "exact",
    "no early stop": "repair_stops",
    "nothing is drafted": "asks repair_drafts",
    "draws again until sure, and reports q": "exact",
    "residual is p where little is missing": "close",
    "residual is p where less than 5% is missing": "close",
    "residual asks whether p == q, not for the sum": "nothing",
    "residual overwrites p, and returns it": "nothing residual_arguments verify_arguments",
    "verify appends to the drafts": "verify_arguments",
    "verify overwrites a row of p": "verify_arguments",
    "verify pops the lists": "verify_arguments",
    "arguments of the residual swapped": "correction",
    "the rejected draft stays": "bonus correction kept",
    "bonus behind a correction": "bonus correction kept",
    "kept drafts forgotten in the return": "bonus correction kept",
    "kept drafts forgotten where one is rejected": "correction kept",
    "asks the source for a u": "bonus correction kept verify_arguments",
    "top-p keeps all that are as likely as the last": "ties ends?",
    "min-p in place of top-p": "both_together crossing exact target ties draft? ends?",
    "top-p divides by the mass": "both_together crossing draft ends target ties",
    "judge draws from the filtered p, without the draft": "target",
    "repair appends to the prefix": "repair_prefix",
    "repair without the prefix": "asks exact",
    "repair with 0.5 in place of sure": "repair_drafts repair_stops",
    "repair that looks at min(q)": "asks repair_drafts",
    "repair that stops by the product": "repair_drafts",
    "repair with the border left out": "repair_drafts",
    "a draft with half of the probability is always kept": "border share",
    "the ratio rounded to two digits": "border share",
    "every draft is kept": "border share",
    "logarithm of 0": "always border",
    "residual with a border of 1e-06": "close",
    "residual with a border of 1e-09": "close",
    "residual returns p, the same list": "residual_arguments",
    "residual is uniform where nothing is missing": "nothing",
    "residual with a little for every token": "both_together close correction nothing target values",
    "residual in equal shares": "both_together close correction target values",
    "residual of p where p is larger": "both_together close correction target values",
    "two coins for each draft": "kept",
    "only the first draft is tested": "correction kept",
    "three drafts at most": "kept",
    "the likeliest tokens are compared": "correction kept",
    "the residual's best token": "correction",
    "bonus is the residual of the last place": "bonus",
    "no token without drafts": "bonus",
    "remembers its first answer": "bonus correction kept",
    "correction by draws until one fits": "bonus correction kept verify_arguments",
    "top-p keeps two tokens at least": "ends exact",
    "top-p returns its argument where nothing is cut": "top_p_argument",
    "top-p in equal shares": "both_together crossing draft ends exact target ties",
    "propose draws until the filter keeps it": "both_together draft",
    "propose puts the likeliest token in place of one that was cut": "both_together draft",
    "judge filters the residual": "both_together target",
    "four tests of 10,000 draws": "trusts_anywhere trusts_share?",
    "a distance of 0.02": "trusts_anywhere trusts_share",
    "an alarm by luck": "trusts_size",
    "the last token is left out": "trusts_anywhere",
    "a witness with a p that is no distribution": "witness_shows",
    "repair that ignores the prefix": "asks",
    "repair that ignores its own drafts": "asks",
    "repair that draws until it is sure": "exact repair_prefix repair_stops",
    "repair that stops by a coin": "repair_drafts repair_stops",
    "repair that keeps an unsure first draft only": "exact",
}
WRONG = [replace(wrong, parts=PARTS[wrong.name]) for wrong in WRONG]
