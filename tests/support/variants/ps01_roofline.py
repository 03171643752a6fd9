"""Solutions of problem set 01, right and wrong."""

from support.harness import Wrong

RIGHT = {
    "the instructor's": {},
    "solved on paper": {
        "work": """
def work(model, n_tokens, batch, context):
    weights, size, kv = model
    new = n_tokens * batch
    moved = weights * size
    moved += kv * batch * (context + n_tokens)
    return [weights * new + weights * new, moved]
""",
        "datasheet": """
def datasheet(row):
    rate = row["tflops"] * 10**12
    if row["with_sparsity"]:
        rate /= 2
    if row["unit"] == "TB/s":
        return rate, row["bandwidth"] * 10**12
    if row["unit"] == "GB/s":
        return rate, row["bandwidth"] * 10**9
    return rate, row["bandwidth"] * 1024**3

def ridge(chip):
    rate, bandwidth = chip
    return rate / bandwidth
""",
        "utilisation": """
import warnings as w
def utilisation(achieved, peak):
    if achieved > peak:
        w.warn("above the peak", UserWarning)
    return achieved / peak
""",
        "pass_time": """
def pass_time(flop, nbytes, chip):
    bound = "compute" if flop / nbytes >= chip.rate / chip.bandwidth else "memory"
    return (flop / chip.rate if bound == "compute" else nbytes / chip.bandwidth), bound
""",
        "tokens_per_second": """
def tokens_per_second(work, model, chip, batch, context):
    flop, nbytes = work(model, 1, batch, context)
    return min(batch * chip.rate / flop, batch * chip.bandwidth / nbytes)
""",
        "verify_cost": """
def verify_cost(work, model, chip, gamma, batch, context):
    f1, b1 = work(model, 1, batch, context)
    fn, bn = work(model, 1 + gamma, batch, context)
    return max(fn / chip.rate, bn / chip.bandwidth) / max(f1 / chip.rate, b1 / chip.bandwidth)
""",
        "compute_bound_batch": """
import math
def compute_bound_batch(work, model, chip, n_tokens, context):
    arithmetic = 2 * model.weights * n_tokens / chip.rate
    cache = model.kv_bytes * (context + n_tokens) / chip.bandwidth
    if arithmetic <= cache:
        return None
    return max(1, math.ceil(model.weights * model.bytes_per_weight / chip.bandwidth / (arithmetic - cache)))
""",
        "counterexample": """
def counterexample():
    return (Chip(rate=1e15, bandwidth=1e12), 2, 1)
""",
        "free_drafts": """
def free_drafts(chip, batch, bytes_per_weight):
    in_flight = chip.rate * bytes_per_weight / (2 * chip.bandwidth * batch)
    if in_flight < 1:
        return 0
    return int(in_flight) - 1
""",
    },
    "arrays and tensors": {
        "work": """
import numpy as np
def work(model, n_tokens, batch, context):
    new = np.full(batch, n_tokens, dtype=np.int64)
    old = np.full(batch, context, dtype=np.int64)
    flop = (2 * model.weights * new).sum(dtype=np.float64)
    return np.array([flop, model.weights * model.bytes_per_weight + ((new + old) * model.kv_bytes).sum()])
""",
        "datasheet": """
import torch
def datasheet(row):
    powers = dict(zip(("TB/s", "GB/s", "GiB/s"), (1e12, 1e9, 2.0**30)))
    rate = row["tflops"] * 1e12 * (0.5 if row["with_sparsity"] else 1)
    return torch.tensor([rate, row["bandwidth"] * powers[row["unit"]]])

def ridge(chip):
    return torch.tensor(chip.rate) / chip.bandwidth
""",
        "utilisation": """
import numpy as np, warnings
def utilisation(achieved, peak):
    share = np.float64(achieved) / np.float64(peak)
    warnings.warn("impossible", RuntimeWarning) if share > 1 else None
    return share
""",
        "pass_time": """
import numpy as np
def pass_time(flop, nbytes, chip):
    times = np.array([flop, nbytes]) / np.array([chip.rate, chip.bandwidth])
    return times.max(), ["compute", "memory"][times.argmax()]
""",
        "tokens_per_second": """
import torch
def tokens_per_second(work, model, chip, batch, context):
    flop, nbytes = work(model, 1, batch, context)
    return batch / torch.maximum(torch.tensor(flop / chip.rate), torch.tensor(nbytes / chip.bandwidth))
""",
        "verify_cost": """
import numpy as np
def verify_cost(work, model, chip, gamma, batch, context):
    passes = np.array([work(model, n, batch, context) for n in (1, gamma + 1)], dtype=float)
    times = (passes / [chip.rate, chip.bandwidth]).max(axis=1)
    return times[1] / times[0]
""",
        "compute_bound_batch": """
import numpy as np
def compute_bound_batch(work, model, chip, n_tokens, context):
    batches = np.arange(1, 10_001)
    flop, nbytes = np.array([work(model, n_tokens, int(b), context) for b in batches]).T
    found = np.flatnonzero(flop / nbytes >= chip.rate / chip.bandwidth)
    return batches[found[0]] if len(found) else None
""",
        "counterexample": """
import numpy as np
def counterexample():
    return np.array([989e12, 3.35e12]), np.int64(3), 0.5
""",
        "free_drafts": """
import numpy as np
def free_drafts(chip, batch, bytes_per_weight):
    return np.maximum(np.floor(chip.rate / chip.bandwidth * bytes_per_weight / 2 / batch) - 1, 0)
""",
    },
    "recursion, fractions and bisection": {
        "work": """
from fractions import Fraction
def work(model, n_tokens, batch, context):
    if batch == 0:
        return 0, model.weights * Fraction(model.bytes_per_weight)
    flop, moved = work(model, n_tokens, batch - 1, context)
    return flop + 2 * n_tokens * model.weights, moved + (context + n_tokens) * model.kv_bytes
""",
        "datasheet": """
from fractions import Fraction
def datasheet(row):
    unit = row["unit"].split("/")[0]
    size = 2**30 if "i" in unit else {"G": 10**9, "T": 10**12}[unit[0]]
    return Chip(Fraction(row["tflops"]) * 10**12 / (1 + row["with_sparsity"]), Fraction(row["bandwidth"]) * size)

def ridge(chip):
    return Fraction(chip.rate) / Fraction(chip.bandwidth)
""",
        "utilisation": """
import warnings

class TooGood(Warning):
    pass

def utilisation(achieved, peak):
    share = achieved / peak
    if share <= 1:
        return share
    warnings.warn(TooGood(f"{share}"))
    return share
""",
        "pass_time": """
def pass_time(flop, nbytes, chip):
    return max((flop / chip.rate, "compute"), (nbytes / chip.bandwidth, "memory"), key=lambda pair: pair[0])
""",
        "tokens_per_second": """
def tokens_per_second(work, model, chip, batch, context):
    flop, nbytes = work(model, 1, batch, context)
    attainable = min(chip.rate, flop / nbytes * chip.bandwidth)
    return batch * attainable / flop
""",
        "verify_cost": """
def verify_cost(work, model, chip, gamma, batch, context):
    def seconds(n):
        flop, nbytes = work(model, n, batch, context)
        return flop / min(chip.rate, chip.bandwidth * flop / nbytes)
    return seconds(gamma + 1) / seconds(1)
""",
        "compute_bound_batch": """
def compute_bound_batch(work, model, chip, n_tokens, context):
    def computes(batch):
        return pass_time(*work(model, n_tokens, batch, context), chip)[1] == "compute"
    low, high = 0, 1
    while not computes(high):
        low, high = high, 2 * high
        if high > 2**40:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if computes(middle):
            high = middle
        else:
            low = middle
    return high
""",
        "counterexample": """
def counterexample():
    for batch in range(1, 500):
        if colleagues_free_drafts(Chip(312e12, 2e12), batch, 2) != free_drafts(Chip(312e12, 2e12), batch, 2):
            return [Chip(312e12, 2e12), batch, 2]

def free_drafts(chip, batch, bytes_per_weight):
    return max(0, chip.rate * bytes_per_weight // (2 * batch * chip.bandwidth) - 1)
""",
        "free_drafts": """
def free_drafts(chip, batch, bytes_per_weight):
    weights = 10**9
    reading = weights * bytes_per_weight / chip.bandwidth
    gamma = 0
    while 2 * weights * batch * (gamma + 2) / chip.rate <= reading:
        gamma += 1
    return gamma
""",
    },
}


def _work(flop="2 * w * n * b", nbytes="w * p + kv * b * (s + n)"):
    return f"""
def work(model, n_tokens, batch, context):
    (w, p, kv), n, b, s = model, n_tokens, batch, context
    return {flop}, {nbytes}
"""


def _sheet(rate="row['tflops'] * 1e12 / (2 if row['with_sparsity'] else 1)", units="1e12, 1e9, 2**30", ridge="a / b"):
    return f"""
def datasheet(row):
    return Chip({rate}, row["bandwidth"] * dict(zip(("TB/s", "GB/s", "GiB/s"), ({units})))[row["unit"]])

def ridge(chip):
    a, b = chip
    return {ridge}
"""


def _warning(condition, share):
    return f"""
import warnings
def utilisation(a, p):
    if {condition}:
        warnings.warn("!")
    return {share}
"""


def _time(seconds, bound="'memory' if m > c else 'compute'"):
    return f"""
def pass_time(flop, nbytes, chip):
    m, c = nbytes / chip.bandwidth, flop / chip.rate
    return {seconds}, {bound}
"""


def _speed(formula):
    return f"""
def tokens_per_second(work, model, chip, batch, context):
    flop, nbytes = work(model, 1, batch, context)
    c, m = flop / chip.rate, nbytes / chip.bandwidth
    return {formula}
"""


def _cost(formula):
    return f"""
def verify_cost(work, model, chip, gamma, batch, context):
    def compute(n, b=batch, s=context):
        return work(model, n, b, s)[0] / chip.rate
    def memory(n, b=batch, s=context):
        return work(model, n, b, s)[1] / chip.bandwidth
    def t(n, b=batch, s=context):
        return max(compute(n, b, s), memory(n, b, s))
    return {formula}
"""


def _batch(condition="flop / chip.rate >= nbytes / chip.bandwidth", batches="range(1, 10_001)", otherwise="None"):
    return f"""
def compute_bound_batch(work, model, chip, n_tokens, context):
    for batch in {batches}:
        flop, nbytes = work(model, n_tokens, batch, context)
        if {condition}:
            return batch
    return {otherwise}
"""


def _paper(formula, setting=""):
    return f"""
import math
def compute_bound_batch(work, model, chip, n_tokens, context):
    ridge = chip.rate / chip.bandwidth
    {setting}
    return {formula}
"""


def _solved(rounded, cached="(context + n_tokens)"):
    return f"""
from math import ceil
def compute_bound_batch(work, model, chip, n_tokens, context):
    arithmetic = 2 * model.weights * n_tokens / chip.rate
    cache = model.kv_bytes * {cached} / chip.bandwidth
    if arithmetic <= cache:
        return None
    return max(1, {rounded}(model.weights * model.bytes_per_weight / chip.bandwidth / (arithmetic - cache)))
"""


_DIVIDED = (
    _batch()
    .replace("n_tokens, batch, context)\n", "1, batch, context)\n")
    .replace("return batch", "return -(-batch // n_tokens)")
)
_SWAPPED = """
def datasheet(row):
    rate = row["tflops"] * 1e12 / (2 if row["with_sparsity"] else 1)
    return Chip(row["bandwidth"] * {"TB/s": 1e12, "GB/s": 1e9, "GiB/s": 2**30}[row["unit"]], rate)

def ridge(chip):
    return chip.rate / chip.bandwidth
"""


def _speed_after(arguments):
    return f"""
def tokens_per_second(work, model, chip, batch, context):
    flop, nbytes = work(model, {arguments})
    return batch / max(flop / chip.rate, nbytes / chip.bandwidth)
"""


AFTER_TIME = ("tokens_per_second", "verify_cost")
COST = ("verify_cost",)
BATCH = ("compute_bound_batch",)


def _free(formula):
    return f"""
def free_drafts(chip, batch, bytes_per_weight):
    ridge = chip.rate / chip.bandwidth
    tokens = ridge * bytes_per_weight / 2
    return {formula}
"""


def _shown(value):
    return f"def counterexample():\n    return {value}\n"


WRONG = [
    Wrong(
        "one FLOP a weight",
        {"work": _work("w * n * b")},
        ("work",),
        "multiplication and one addition",
        parts="decode_of_one prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "FLOP without the batch",
        {"work": _work("2 * w * n")},
        ("work",),
        "each sequence of the batch",
        parts="prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "FLOP of one token a sequence",
        {"work": _work("2 * w * b")},
        ("work",),
        "n_tokens times",
        parts="prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "FLOP from the bytes of weights",
        {"work": _work("2 * w * p * n * b")},
        ("work",),
        "count weights",
        parts="decode_of_one prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "the context computed again",
        {"work": _work("2 * w * b * (s + n)")},
        ("work",),
        "not computed again",
        parts="decode_of_one verify_of_a_batch",
    ),
    Wrong(
        "weights read for each token",
        {"work": _work(nbytes="w * p * n * b + kv * b * (s + n)")},
        ("work",),
        "read once for all tokens",
        parts="prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "weights read for each sequence",
        {"work": _work(nbytes="b * (w * p + kv * (s + n))")},
        ("work",),
        "read once for all sequences",
        parts="prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "one cache for the batch",
        {"work": _work(nbytes="w * p + kv * (s + n)")},
        ("work",),
        "its own cache",
        parts="prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "no caches",
        {"work": _work(nbytes="w * p")},
        ("work",),
        "caches move as well",
        parts="decode_of_one prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "new tokens not written",
        {"work": _work(nbytes="w * p + kv * b * s")},
        ("work",),
        "new tokens are written",
        parts="decode_of_one prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "two bytes always, right for the visible model only",
        {"work": _work(nbytes="2 * w + kv * b * (s + n)")},
        ("work",),
        "bytes_per_weight",
        parts="verify_of_a_batch",
    ),
    Wrong(
        "FLOP and bytes swapped",
        {"work": _work("w * p + kv * b * (s + n)", "2 * w * n * b")},
        ("work",),
        "other way",
        parts="decode_of_one prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "always llama",
        {"work": _work("2 * llama.weights * n * b")},
        ("work",),
        "use the argument `model`",
        parts="decode_of_one prefill_of_prompts verify_of_a_batch",
    ),
    Wrong(
        "chip's fields swapped",
        {"datasheet": _SWAPPED},
        ("datasheet",),
        "other way round",
        parts="binary_row dense_row sparse_row",
    ),
    Wrong(
        "a power written ^",
        {"datasheet": _sheet(units="1e12, 1e9, 2 ^ 30")},
        ("datasheet",),
        "works on bits",
        parts="binary_row",
    ),
    Wrong(
        "2e30", {"datasheet": _sheet(units="1e12, 1e9, 2e30")}, ("datasheet",), "2 times 10\\^30", parts="binary_row"
    ),
    Wrong(
        "always h100",
        {"datasheet": _sheet(ridge="h100.rate / h100.bandwidth")},
        ("datasheet",),
        "argument `chip`",
        parts="where_the_roof_bends",
    ),
    Wrong(
        "sparse taken as dense",
        {"datasheet": _sheet("row['tflops'] * 1e12")},
        ("datasheet",),
        "2:4 sparsity",
        parts="binary_row sparse_row",
    ),
    Wrong(
        "always halved",
        {"datasheet": _sheet("row['tflops'] * 5e11")},
        ("datasheet",),
        "dense already",
        parts="binary_row dense_row",
    ),
    Wrong("GiB as GB", {"datasheet": _sheet(units="1e12, 1e9, 1e9")}, ("datasheet",), "2\\^30", parts="binary_row"),
    Wrong(
        "GB as GiB",
        {"datasheet": _sheet(units="2**40, 2**30, 2**30")},
        ("datasheet",),
        "2\\^40",
        parts="dense_row sparse_row",
    ),
    Wrong(
        "unit ignored",
        {"datasheet": _sheet(units="1e12, 1e12, 1e12")},
        ("datasheet",),
        "you took TB",
        parts="binary_row dense_row sparse_row",
    ),
    Wrong(
        "TFLOP not FLOP",
        {"datasheet": _sheet("row['tflops'] / (1 + row['with_sparsity'])")},
        ("datasheet",),
        "10\\^12",
        parts="binary_row dense_row sparse_row",
    ),
    Wrong(
        "ridge upside down",
        {"datasheet": _sheet(ridge="b / a")},
        ("datasheet",),
        "other way round",
        parts="where_the_roof_bends",
    ),
    Wrong(
        "ridge halved again",
        {"datasheet": _sheet(ridge="a / b / 2")},
        ("datasheet",),
        "dense already",
        parts="where_the_roof_bends",
    ),
    Wrong(
        "the visible rows by heart",
        {
            "datasheet": """
def datasheet(row):
    known = {"H100 SXM": Chip(989.5e12, 3.35e12), "A100 SXM": Chip(312e12, 2.039e12), "TPU v5e": Chip(197e12, 859e9)}
    return known[row["name"]]

def ridge(chip):
    return chip.rate / chip.bandwidth
"""
        },
        ("datasheet",),
        "KeyError",
        parts="binary_row dense_row sparse_row",
    ),
    Wrong(
        "never warns",
        {"utilisation": "def utilisation(a, p):\n    return a / p"},
        ("utilisation",),
        "number is wrong",
        parts="warns_above_one",
    ),
    Wrong(
        "prints",
        {"utilisation": "def utilisation(a, p):\n    if a > p:\n        print('above 1')\n    return a / p"},
        ("utilisation",),
        "what is printed gets lost",
        parts="warns_above_one",
    ),
    Wrong(
        "raises an error",
        {"utilisation": "def utilisation(a, p):\n    if a > p:\n        raise ValueError('above 1')\n    return a / p"},
        ("utilisation",),
        "use warnings.warn",
        parts="warns_above_one",
    ),
    Wrong(
        "cut off at 1",
        {"utilisation": _warning("a > p", "min(1, a / p)")},
        ("utilisation",),
        "cutting the share off",
        parts="warns_above_one",
    ),
    Wrong(
        "warns at 1",
        {"utilisation": _warning("a >= p", "a / p")},
        ("utilisation",),
        "above\\* 1",
        parts="quiet_up_to_one",
    ),
    Wrong(
        "the sum of the times",
        {"pass_time": _time("m + c")},
        ("pass_time", "tokens_per_second", "verify_cost"),
        "not the sum",
        parts="across_ridge arithmetic_takes_longer both_take_equally_long left_of_ridge many memory_takes_longer one right_of_ridge some",
    ),
    Wrong(
        "the shorter time",
        {"pass_time": _time("min(m, c)")},
        ("pass_time", "tokens_per_second", "verify_cost"),
        "longer time counts",
        parts="across_ridge arithmetic_takes_longer left_of_ridge many memory_takes_longer one right_of_ridge some",
    ),
    Wrong(
        "memory always",
        {"pass_time": _time("m", "'memory'")},
        ("pass_time", "tokens_per_second", "verify_cost"),
        "longer time counts, here that of the arithmetic",
        parts="across_ridge arithmetic_takes_longer both_take_equally_long many right_of_ridge",
    ),
    Wrong(
        "bound the wrong way",
        {"pass_time": _time("max(m, c)", "'compute' if m > c else 'memory'")},
        ("pass_time",),
        "takes longer is the bound",
        parts="arithmetic_takes_longer both_take_equally_long memory_takes_longer",
    ),
    Wrong(
        "the ridge of an H100 for every chip",
        {"pass_time": _time("max(m, c)", "'memory' if flop / nbytes < 295 else 'compute'")},
        ("pass_time",),
        "295 is that of an H100",
        parts="arithmetic_takes_longer both_take_equally_long memory_takes_longer",
    ),
    Wrong(
        "memory at a tie",
        {"pass_time": _time("max(m, c)", "'compute' if c > m else 'memory'")},
        ("pass_time",),
        "equally",
        parts="both_take_equally_long",
    ),
    Wrong(
        "upside down",
        {"pass_time": _time("max(1 / m, 1 / c)")},
        ("pass_time", *AFTER_TIME),
        "not the other way round",
        parts="across_ridge arithmetic_takes_longer both_take_equally_long left_of_ridge many memory_takes_longer one right_of_ridge some",
    ),
    Wrong(
        "crossed",
        {"pass_time": _time("max(flop / chip.bandwidth, nbytes / chip.rate)")},
        ("pass_time", *AFTER_TIME),
        "crossed",
        parts="across_ridge arithmetic_takes_longer both_take_equally_long left_of_ridge many memory_takes_longer one some",
    ),
    Wrong(
        "another chip",
        {"pass_time": _time("max(nbytes / 3.35e12, flop / 989e12)")},
        ("pass_time", *AFTER_TIME),
        "h100",
        parts="across_ridge arithmetic_takes_longer both_take_equally_long many memory_takes_longer one some",
    ),
    Wrong(
        "rounded time",
        {"pass_time": _time("round(max(m, c), 3)")},
        ("pass_time", *AFTER_TIME),
        "is it rounded",
        parts="across_ridge arithmetic_takes_longer both_take_equally_long left_of_ridge many memory_takes_longer one right_of_ridge some",
    ),
    Wrong(
        "batch as n_tokens",
        {"tokens_per_second": _speed_after("batch, 1, context")},
        ("tokens_per_second",),
        "n_tokens",
        parts="some",
    ),
    Wrong(
        "no context",
        {"tokens_per_second": _speed_after("1, batch, 0")},
        ("tokens_per_second",),
        "hand `context` on",
        parts="one some",
    ),
    Wrong(
        "seconds a token",
        {"tokens_per_second": _speed("max(c, m) / batch")},
        ("tokens_per_second",),
        "seconds a token",
        parts="many one some",
    ),
    Wrong(
        "steps a second",
        {"tokens_per_second": _speed("1 / max(c, m)")},
        ("tokens_per_second",),
        "steps a second",
        parts="many some",
    ),
    Wrong(
        "memory alone",
        {"tokens_per_second": _speed("batch / m")},
        ("tokens_per_second",),
        "arithmetic takes longer",
        parts="many",
    ),
    Wrong(
        "weights alone",
        {"tokens_per_second": _speed("batch * chip.bandwidth / (model.weights * model.bytes_per_weight)")},
        ("tokens_per_second",),
        "caches have to be read",
        parts="many one some",
    ),
    Wrong(
        "the speed of one, times the batch",
        {
            "tokens_per_second": _speed(
                "batch / max(work(model, 1, 1, context)[0] / chip.rate, work(model, 1, 1, context)[1] / chip.bandwidth)"
            )
        },
        ("tokens_per_second",),
        "batch of 1",
        parts="many some",
    ),
    Wrong(
        "gamma tokens",
        {"verify_cost": _cost("t(gamma) / t(1)")},
        ("verify_cost",),
        "gamma \\+ 1 tokens",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "verification always free",
        {"verify_cost": _cost("1.0")},
        ("verify_cost",),
        "not free",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "every token costs a step",
        {"verify_cost": _cost("gamma + 1")},
        ("verify_cost",),
        "as if each token",
        parts="across_ridge left_of_ridge",
    ),
    Wrong(
        "seconds",
        {"verify_cost": _cost("t(gamma + 1)")},
        ("verify_cost",),
        "not in seconds",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "ratio of FLOP",
        {"verify_cost": _cost("compute(gamma + 1) / compute(1)")},
        ("verify_cost",),
        "ratio of the arith|as if each token",
        parts="across_ridge left_of_ridge",
    ),
    Wrong(
        "ratio of bytes",
        {"verify_cost": _cost("memory(gamma + 1) / memory(1)")},
        ("verify_cost",),
        "ratio of the bytes",
        parts="across_ridge right_of_ridge",
    ),
    Wrong(
        "right for one user only",
        {"verify_cost": _cost("t(gamma + 1, 1) / t(1, 1)")},
        ("verify_cost",),
        "batch of 1",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "drafts as sequences",
        {"verify_cost": _cost("t(1, batch * (gamma + 1)) / t(1)")},
        ("verify_cost",),
        "share its cache",
        parts="left_of_ridge",
    ),
    Wrong(
        "gamma and batch swapped",
        {"verify_cost": _cost("t(batch + 1, gamma) / t(1, gamma)")},
        COST,
        "swapped",
        parts="across_ridge left_of_ridge? right_of_ridge",
    ),
    Wrong(
        "less the plain step",
        {"verify_cost": _cost("t(gamma + 1) / t(1) - 1")},
        COST,
        "subtract",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "times the tokens",
        {"verify_cost": _cost("t(gamma + 1) / t(1) * (gamma + 1)")},
        COST,
        "multiply",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "price of a token",
        {"verify_cost": _cost("t(gamma + 1) / t(1) / (gamma + 1)")},
        COST,
        "whole pass",
        parts="across_ridge left_of_ridge right_of_ridge",
    ),
    Wrong(
        "two decimals",
        {"verify_cost": _cost("round(t(gamma + 1) / t(1), 2)")},
        COST,
        "round",
        parts="across_ridge left_of_ridge",
    ),
    Wrong(
        "drafts in the context",
        {"verify_cost": _cost("t(gamma + 1, s=context + gamma) / t(1)")},
        COST,
        "cached before",
        parts="left_of_ridge",
    ),
    *(
        Wrong(
            f"stops at {limit:,}",
            {BATCH[0]: _batch(batches=f"range(1, {limit})")},
            BATCH,
            "stop too early",
            parts="far_away" + " at_a_tie? short_context? with_caches?" * (limit < 2_000),
        )
        for limit in (500, 1_000, 5_000, 9_000)
    ),
    Wrong(
        "written tokens forgotten",
        {BATCH[0]: _solved("ceil", "context")},
        BATCH,
        "new tokens are written",
        parts="at_a_tie? far_away short_context with_caches",
    ),
    Wrong(
        "one token written",
        {BATCH[0]: _solved("ceil", "(context + 1)")},
        BATCH,
        "new tokens are written",
        parts="far_away short_context? with_caches",
    ),
    Wrong(
        "to the nearest, and 0 as well",
        {BATCH[0]: _solved("round").replace("max(1, ", "(")},
        BATCH,
        "off by one",
        parts="far_away? one_is_enough short_context with_caches",
    ),
    Wrong(
        "to the nearest", {BATCH[0]: _solved("round")}, BATCH, "off by one", parts="far_away? short_context with_caches"
    ),
    Wrong("rounded up, and 1 more at a tie", {BATCH[0]: _solved("1 + int")}, BATCH, "equally long", parts="at_a_tie"),
    Wrong(
        "strictly longer",
        {BATCH[0]: _batch("flop / chip.rate > nbytes / chip.bandwidth")},
        BATCH,
        "equally long",
        parts="at_a_tie",
    ),
    Wrong(
        "a batch for one token, divided",
        {BATCH[0]: _DIVIDED},
        BATCH,
        "share (its|a) cache",
        parts="at_a_tie far_away with_caches",
    ),
    Wrong(
        "ridge as the batch",
        {"compute_bound_batch": _paper("math.ceil(ridge / n_tokens)")},
        ("compute_bound_batch",),
        "bytes_per_weight",
        parts="at_a_tie? far_away never short_context with_caches",
    ),
    Wrong(
        "caches forgotten",
        {"compute_bound_batch": _paper("max(1, math.ceil(ridge * model.bytes_per_weight / 2 / n_tokens))")},
        ("compute_bound_batch",),
        "caches are read",
        parts="at_a_tie far_away never short_context with_caches",
    ),
    Wrong(
        "rounded down",
        {"compute_bound_batch": _batch(batches="range(0, 10_000)").replace("return batch", "return max(1, batch - 1)")},
        ("compute_bound_batch",),
        "off by one",
        parts="at_a_tie far_away short_context with_caches",
    ),
    Wrong(
        "one token for all",
        {"compute_bound_batch": _batch().replace("n_tokens, batch, context)\n", "1, batch, context)\n")},
        ("compute_bound_batch",),
        "tokens of each sequence",
        parts="at_a_tie far_away one_is_enough short_context? with_caches",
    ),
    Wrong(
        "the last batch where there is none",
        {"compute_bound_batch": _batch(otherwise="10_000")},
        ("compute_bound_batch",),
        "larger batch",
        parts="never",
    ),
    Wrong(
        "stops at 64",
        {"compute_bound_batch": _batch(batches="range(1, 65)")},
        ("compute_bound_batch",),
        "stop too early",
        parts="at_a_tie far_away short_context with_caches",
    ),
    Wrong(
        "never stops",
        {"compute_bound_batch": "import itertools\n" + _batch(batches="itertools.count(1)")},
        ("compute_bound_batch",),
        "return None",
        parts="never",
    ),
    Wrong(
        "powers of two",
        {"compute_bound_batch": _batch(batches="(2**i for i in range(14))")},
        ("compute_bound_batch",),
        "stop too early",
        parts="far_away short_context with_caches",
    ),
    Wrong(
        "an input where all is well",
        {"counterexample": _shown("Chip(989e12, 3.35e12), 1, 2")},
        ("counterexample",),
        "batch of 1",
        parts="a_real_counterexample",
    ),
    Wrong(
        "an input where both say 0",
        {"counterexample": _shown("Chip(989e12, 3.35e12), 5000, 2")},
        ("counterexample",),
        "smaller batch",
        parts="a_real_counterexample",
    ),
    Wrong(
        "chip not first",
        {"counterexample": _shown("(2, h100, 2)")},
        ("counterexample",),
        "Chip comes first",
        parts="a_real_counterexample",
    ),
    Wrong(
        "no chip", {"counterexample": _shown("64")}, ("counterexample",), "Three things", parts="a_real_counterexample"
    ),
    Wrong(
        "the given function again",
        {"free_drafts": "free_drafts = colleagues_free_drafts"},
        ("free_drafts",),
        "given function",
        parts="for_some for_too_many in_the_same_time",
    ),
    Wrong(
        "gamma for gamma + 1",
        {"free_drafts": _free("int(tokens / batch)")},
        ("free_drafts",),
        "gamma \\+ 1 tokens",
        parts="for_one for_some for_too_many in_the_same_time",
    ),
    Wrong(
        "below nothing",
        {"free_drafts": _free("int(tokens / batch) - 1")},
        ("free_drafts",),
        "less than nothing",
        parts="for_too_many",
    ),
    Wrong(
        "rounded up",
        {"free_drafts": _free("max(0, -int(-tokens // batch) - 1)")},
        ("free_drafts",),
        "round down",
        parts="for_one for_some for_too_many in_the_same_time",
    ),
    Wrong(
        "not rounded",
        {"free_drafts": _free("max(0, tokens / batch - 1)")},
        ("free_drafts",),
        "round down",
        parts="for_one for_some for_too_many in_the_same_time",
    ),
    Wrong(
        "ridge for tokens",
        {"free_drafts": _free("max(0, int(ridge / batch) - 1)")},
        ("free_drafts",),
        "2 FLOP a token",
        parts="for_one? for_some for_too_many?",
    ),
    Wrong(
        "one FLOP a weight and token",
        {"free_drafts": _free("max(0, int(2 * tokens / batch) - 1)")},
        ("free_drafts",),
        "2 FLOP a token",
        parts="for_one for_some for_too_many in_the_same_time",
    ),
    Wrong(
        "faster only",
        {"free_drafts": _free("max(0, -int(-tokens // batch) - 2)")},
        ("free_drafts",),
        "just as long",
        parts="in_the_same_time",
    ),
    Wrong(
        "right for the visible input only",
        {"free_drafts": _free("294")},
        ("free_drafts",),
        "",
        parts="for_one for_some for_too_many in_the_same_time",
    ),
    Wrong(
        "warns above 1.01",
        {"utilisation": _warning("a > 1.01 * p", "a / p")},
        ("utilisation",),
        "above 1 means",
        parts="warns_above_one",
    ),
    Wrong(
        "warns where two decimals are above 1",
        {"utilisation": _warning("round(a / p, 2) > 1", "a / p")},
        ("utilisation",),
        "above 1 means",
        parts="warns_above_one",
    ),
    Wrong(
        "warns from 0.999 on",
        {"utilisation": _warning("a > 0.999 * p", "a / p")},
        ("utilisation",),
        "above\\* 1",
        parts="quiet_up_to_one",
    ),
    Wrong(
        "share rounded up to 1",
        {"utilisation": _warning("a > p", "round(a / p, 3)")},
        ("utilisation",),
        "round",
        parts="quiet_up_to_one warns_above_one",
    ),
    Wrong(
        "a row is halved",
        {
            "datasheet": _sheet()
            .replace(
                "    return Chip(", "    if row['with_sparsity']:\n        row['tflops'] /= 2\n    return Chip(", 1
            )
            .replace("1e12 / (2 if row['with_sparsity'] else 1)", "1e12")
        },
        ("datasheet",),
        "changed what it was given",
        parts="binary_row sparse_row",
    ),
    Wrong(
        "a row loses its unit",
        {"datasheet": _sheet().replace('row["unit"]', 'row.pop("unit")')},
        ("datasheet",),
        "changed what it was given",
        parts="binary_row dense_row sparse_row",
    ),
    Wrong(
        "the ridge is a hundredth wide",
        {"pass_time": _time("max(m, c)", "'memory' if m > 1.01 * c else 'compute'")},
        ("pass_time",),
        "takes longer is the bound",
        parts="memory_takes_longer",
    ),
    Wrong(
        "compute-bound a hundredth early",
        {BATCH[0]: _batch("flop / chip.rate >= 0.99 * nbytes / chip.bandwidth")},
        BATCH,
        "came out wrong",
        parts="at_a_tie far_away short_context with_caches",
    ),
    Wrong(
        "nearly one more draft",
        {"free_drafts": _free("max(0, int(tokens / batch + 1e-3) - 1)")},
        ("free_drafts",),
        "came out wrong",
        parts="in_the_same_time",
    ),
]
