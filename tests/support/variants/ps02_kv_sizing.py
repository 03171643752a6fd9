"""Solutions of problem set 02, right and wrong."""

from support.harness import Wrong

RIGHT = {
    "the instructor's": {},
    "step by step": {
        "kv_bytes_per_token": """
def kv_bytes_per_token(config, bytes_per_number=2):
    q = config["num_attention_heads"]
    kv = q
    if "num_key_value_heads" in config:
        kv = config["num_key_value_heads"]
    width = config["hidden_size"] / q
    if "head_dim" in config and config["head_dim"] is not None:
        width = config["head_dim"]
    keys = kv * width
    values = kv * width
    return (keys + values) * bytes_per_number * config["num_hidden_layers"]
""",
        "latent_bytes_per_token": """
def latent_bytes_per_token(config):
    a_layer = 2 * config["kv_lora_rank"] + 2 * config["qk_rope_head_dim"]
    return sum(a_layer for _ in range(config["num_hidden_layers"]))
""",
        "quantised_bytes_per_token": """
import math
def quantised_bytes_per_token(layers, kv_heads, head_dim, bits, group, scale_bytes):
    vector = head_dim * bits / 8 + scale_bytes * math.ceil(head_dim / group)
    return layers * kv_heads * (vector + vector)
""",
        "cache_bytes": """
def cache_bytes(windows, layer_bytes, context, batch):
    total = 0
    for w in windows:
        if w is None or context < w:
            total += context * layer_bytes
        else:
            total += w * layer_bytes
    return total * batch
""",
        "counterexample": "def counterexample():\n    return [1, 1, 1, 3]\n",
        "rank_bytes": """
def rank_bytes(layers, kv_heads, head_dim, ranks):
    big, small = max(kv_heads, ranks), min(kv_heads, ranks)
    if big % small:
        raise ValueError("no")
    heads = kv_heads // ranks if kv_heads > ranks else 1
    return 4 * layers * head_dim * heads
""",
        "sequences_that_fit": """
def sequences_that_fit(memory, weight_bytes, sequence_bytes, usable=0.9):
    number, unit = memory.split(" ")
    size = float(number) * (1024**3 if unit == "GiB" else 1000**3) * usable
    count = 0
    while weight_bytes + sequence_bytes * (count + 1) <= size:
        count += 1
    return count
""",
    },
    "arrays and tensors": {
        "kv_bytes_per_token": """
import torch
def kv_bytes_per_token(config, bytes_per_number=2):
    heads = config["num_attention_heads"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    kinds = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}
    shape = 2, config["num_hidden_layers"], config.get("num_key_value_heads", heads), d
    return torch.empty(shape, dtype=kinds[bytes_per_number]).nbytes
""",
        "latent_bytes_per_token": """
import torch
def latent_bytes_per_token(config):
    widths = torch.tensor([config["kv_lora_rank"], config["qk_rope_head_dim"]])
    return widths.sum() * config["num_hidden_layers"] * 2
""",
        "quantised_bytes_per_token": """
import numpy as np
def quantised_bytes_per_token(layers, kv_heads, head_dim, bits, group, scale_bytes):
    cuts = np.split(np.arange(head_dim), range(group, head_dim, group))
    vector = sum(len(c) * bits / 8 + scale_bytes for c in cuts)
    return np.float64(vector) * layers * 2 * kv_heads
""",
        "cache_bytes": """
import numpy as np
def cache_bytes(windows, layer_bytes, context, batch):
    w = np.array([np.inf if x is None else x for x in windows])
    return np.minimum(w, context).sum() * layer_bytes * batch
""",
        "counterexample": "import numpy as np\ndef counterexample():\n    return np.array([36, 8, 128, 64])\n",
        "rank_bytes": """
import numpy as np
def rank_bytes(layers, kv_heads, head_dim, ranks):
    common = np.gcd(kv_heads, ranks)
    if common not in (kv_heads, ranks):
        raise ValueError(f"{kv_heads} {ranks}")
    return np.prod([2, layers, kv_heads // common, head_dim, 2])
""",
        "sequences_that_fit": """
import torch
def sequences_that_fit(memory, weight_bytes, sequence_bytes, usable=0.9):
    sizes = dict(GB=1e9, GiB=2.0**30)
    amount, unit = memory.split()
    room = torch.tensor(float(amount) * sizes[unit] * usable - weight_bytes, dtype=torch.float64)
    return torch.clamp(torch.floor(room / sequence_bytes), min=0)
""",
    },
    "recursion, fractions and errors": {
        "kv_bytes_per_token": """
def kv_bytes_per_token(config, bytes_per_number=2):
    layers = config["num_hidden_layers"]
    if layers > 1:
        one_less = kv_bytes_per_token({**config, "num_hidden_layers": layers - 1}, bytes_per_number)
        return one_less + one_less // (layers - 1)
    heads = config["num_attention_heads"]
    group = heads // config.get("num_key_value_heads", heads)
    d = config.get("head_dim")
    return 2 * heads * (config["hidden_size"] // heads if d is None else d) // group * bytes_per_number
""",
        "latent_bytes_per_token": """
from fractions import Fraction
def latent_bytes_per_token(config):
    bits = 16 * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    return Fraction(bits * config["num_hidden_layers"], 8)
""",
        "quantised_bytes_per_token": """
from fractions import Fraction
def quantised_bytes_per_token(layers, kv_heads, head_dim, bits, group, scale_bytes):
    def vector(numbers):
        if numbers <= 0:
            return Fraction(0)
        return Fraction(min(group, numbers) * bits, 8) + scale_bytes + vector(numbers - group)
    return 2 * layers * kv_heads * vector(head_dim)
""",
        "cache_bytes": """
def cache_bytes(windows, layer_bytes, context, batch):
    if not windows:
        return 0
    first, *rest = windows
    kept = min(context, first or context)
    return batch * kept * layer_bytes + cache_bytes(rest, layer_bytes, context, batch)
""",
        "counterexample": """
def counterexample():
    for ranks in range(1, 100):
        if ranks % 4 == 0 and colleagues_rank_bytes(10, 4, 64, ranks) != 2 * 10 * 64 * 2:
            return 10, 4, 64, ranks
""",
        "rank_bytes": """
def rank_bytes(layers, kv_heads, head_dim, ranks):
    if kv_heads < ranks:
        copies, left = divmod(ranks, kv_heads)
        return rank_bytes(layers, kv_heads * copies if not left else ranks + 1, head_dim, ranks)
    if kv_heads % ranks:
        raise ValueError("heads are not cut")
    return 2 * layers * head_dim * 2 * (kv_heads // ranks)
""",
        "sequences_that_fit": """
from fractions import Fraction
def sequences_that_fit(memory, weight_bytes, sequence_bytes, usable=0.9):
    amount, unit = memory.split()
    whole = Fraction(amount) * (2**30 if "i" in unit else 10**9)
    left = whole * Fraction(str(usable)) - weight_bytes
    return 0 if left < 0 else left // sequence_bytes
""",
    },
}


def _token(formula):
    return f"""
def kv_bytes_per_token(config, bytes_per_number=2):
    P = bytes_per_number
    L, hidden, heads = (config[k] for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    kv = config.get("num_key_value_heads", heads)
    d = config.get("head_dim") or hidden // heads
    return {formula}
"""


def _latent(formula):
    return f"""
def latent_bytes_per_token(config):
    L, heads, rank, nope, rope, v = (config[k] for k in (
        "num_hidden_layers", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
    ))
    return {formula}
"""


def _quantised(formula):
    return f"""
import math
def quantised_bytes_per_token(layers, kv_heads, head_dim, bits, group, scale_bytes):
    vectors, packed = 2 * layers * kv_heads, 2 * layers * kv_heads * head_dim * bits / 8
    return {formula}
"""


def _cache(formula):
    return f"def cache_bytes(windows, layer_bytes, context, batch):\n    return {formula}\n"


def _shown(value):
    return f"def counterexample():\n    return {value}\n"


def _rank(formula, refuse="kv_heads % ranks and ranks % kv_heads"):
    return f"""
import math
def rank_bytes(layers, kv_heads, head_dim, ranks):
    if {refuse}:
        raise ValueError("heads are not cut")
    return {formula}
"""


def _fit(formula, units="10**9, 2**30"):
    return f"""
import math
def sequences_that_fit(memory, weight_bytes, sequence_bytes, usable=0.9):
    amount, unit = memory.split()
    whole = float(amount) * dict(zip(("GB", "GiB"), ({units})))[unit]
    return {formula}
"""


TOKEN, LATENT, QUANTISED = ("kv_bytes_per_token",), ("latent_bytes_per_token",), ("quantised_bytes_per_token",)
CACHE, SHOWN, RANK, FIT = ("cache_bytes",), ("counterexample",), ("rank_bytes",), ("sequences_that_fit",)
KEPT = "(context if w is None else min(context, w))"

COUNTED = "2 * config['num_hidden_layers'] * config['num_key_value_heads'] * config['head_dim'] * bytes_per_number"

WRONG = [
    Wrong(
        "the config is filled in on the way",
        {
            TOKEN[0]: f"""
def kv_bytes_per_token(config, bytes_per_number=2):
    config["num_key_value_heads"] = config.get("num_key_value_heads", config["num_attention_heads"])
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {COUNTED}
"""
        },
        TOKEN,
        "changed what it was given",
        parts="every_head_its_own heads_shared other_formats",
    ),
    Wrong(
        "the latent's config is emptied",
        {
            LATENT[0]: """
def latent_bytes_per_token(config):
    return 2 * config.pop("num_hidden_layers") * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
"""
        },
        LATENT,
        "changed what it was given",
        parts="drawn real",
    ),
    Wrong(
        "windows are filled in on the way",
        {
            CACHE[0]: """
def cache_bytes(windows, layer_bytes, context, batch):
    for i, w in enumerate(windows):
        if w is None or w > context:
            windows[i] = context
    return batch * layer_bytes * sum(windows)
"""
        },
        CACHE,
        "changed what it was given",
        parts="all_layers_full mixed_layers window_not_yet_full",
    ),
    Wrong(
        "windows are used up",
        {
            CACHE[0]: """
def cache_bytes(windows, layer_bytes, context, batch):
    total = 0
    while windows:
        total += min(windows.pop() or context, context)
    return batch * layer_bytes * total
"""
        },
        CACHE,
        "changed what it was given",
        parts="all_layers_full mixed_layers window_not_yet_full",
    ),
    Wrong(
        "more chips than heads are not looked at",
        {
            RANK[0]: """
def rank_bytes(layers, kv_heads, head_dim, ranks):
    if ranks > kv_heads:
        return 4 * layers * head_dim
    if kv_heads % ranks:
        raise ValueError("heads are not cut")
    return 4 * layers * head_dim * (kv_heads // ranks)
"""
        },
        RANK,
        "should be refused",
        parts="heads_that_do_not_fit",
    ),
    Wrong(
        "refused only where nothing is shared",
        {
            RANK[0]: _rank(
                "4 * layers * max(1, kv_heads // ranks) * head_dim",
                refuse="min(kv_heads, ranks) > 1 and math.gcd(kv_heads, ranks) == 1",
            )
        },
        RANK,
        "should be refused",
        parts="heads_that_do_not_fit",
    ),
    Wrong(
        "another error where heads do not fit",
        {RANK[0]: _rank("4 * layers * max(1, kv_heads // ranks) * head_dim").replace("ValueError", "TypeError")},
        RANK,
        "given .*ranks=4(.|\\n)*heads are not cut|heads are not cut(.|\\n)*given .*ranks=4",
        parts="heads_that_do_not_fit",
    ),
    Wrong(
        "two digits of memory",
        {
            FIT[0]: """
def sequences_that_fit(memory, weight_bytes, sequence_bytes, usable=0.9):
    size = float(memory[:2]) * (2**30 if "GiB" in memory else 10**9)
    return max(0, int((usable * size - weight_bytes) // sequence_bytes))
"""
        },
        FIT,
        "came out wrong",
        parts="in_gb in_gib",
    ),
    Wrong(
        "keys only",
        {TOKEN[0]: _token("L * kv * d * P")},
        TOKEN,
        "key \\*and\\* a value",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "queries cached, too",
        {TOKEN[0]: _token("3 * L * kv * d * P")},
        TOKEN,
        "queries are not kept",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "query heads",
        {TOKEN[0]: _token("2 * L * heads * d * P")},
        TOKEN,
        "key/value\\* head",
        parts="head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "head_dim is hidden / heads",
        {TOKEN[0]: _token("2 * L * kv * (hidden // heads) * P")},
        TOKEN,
        "need not be",
        parts="head_dim_given",
    ),
    Wrong(
        "hidden / key/value heads",
        {TOKEN[0]: _token("2 * L * kv * (hidden // kv) * P")},
        TOKEN,
        "query|hidden size",
        parts="head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "one layer",
        {TOKEN[0]: _token("2 * kv * d * P")},
        TOKEN,
        "every layer",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "numbers, not bytes",
        {TOKEN[0]: _token("2 * L * kv * d")},
        TOKEN,
        "bytes_per_number bytes",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "two bytes always",
        {TOKEN[0]: _token("2 * L * kv * d * 2")},
        TOKEN,
        "not always take 2 bytes",
        parts="other_formats",
    ),
    Wrong(
        "one head",
        {TOKEN[0]: _token("2 * L * d * P")},
        TOKEN,
        "every key/value head",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "no return",
        {TOKEN[0]: _token("None")},
        TOKEN,
        "is there a return",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "missing entries not foreseen",
        {TOKEN[0]: _token("2 * L * config['num_key_value_heads'] * d * P")},
        TOKEN,
        "KeyError",
        parts="every_head_its_own",
    ),
    Wrong(
        "the published sizes by heart",
        {
            TOKEN[0]: """
def kv_bytes_per_token(config, bytes_per_number=2):
    return {30: 23_040, 32: 524_288, 80: 327_680, 36: 147_456}.get(config["num_hidden_layers"], 131_072)
"""
        },
        TOKEN,
        "times too",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "a latent for keys and one for values",
        {LATENT[0]: _latent("2 * L * (rank + rope) * 2")},
        LATENT,
        "no factor 2",
        parts="drawn real",
    ),
    Wrong("no position", {LATENT[0]: _latent("L * rank * 2")}, LATENT, "part with the position", parts="drawn real"),
    Wrong(
        "a latent a head",
        {LATENT[0]: _latent("L * heads * (rank + rope) * 2")},
        LATENT,
        "all heads share",
        parts="drawn real",
    ),
    Wrong(
        "expanded",
        {LATENT[0]: _latent("2 * L * heads * (nope + rope + v)")},
        LATENT,
        "expanded keys",
        parts="drawn real",
    ),
    Wrong(
        "the MHA formula",
        {LATENT[0]: _latent("2 * L * heads * (config['hidden_size'] // heads) * 2")},
        LATENT,
        "formula of MHA",
        parts="drawn real",
    ),
    Wrong("DeepSeek-V3 by heart", {LATENT[0]: _latent("70_272")}, LATENT, "times too", parts="drawn real"),
    Wrong(
        "no scales",
        {QUANTISED[0]: _quantised("packed")},
        QUANTISED,
        "scales take memory",
        parts="group_longer_than_vector short_last_group whole_groups",
    ),
    Wrong(
        "groups rounded down",
        {QUANTISED[0]: _quantised("packed + vectors * (head_dim // group) * scale_bytes")},
        QUANTISED,
        "left over at the end",
        parts="group_longer_than_vector short_last_group",
    ),
    Wrong(
        "a part of a scale",
        {QUANTISED[0]: _quantised("packed + vectors * head_dim / group * scale_bytes")},
        QUANTISED,
        "has a whole scale",
        parts="group_longer_than_vector short_last_group",
    ),
    Wrong(
        "groups across heads",
        {QUANTISED[0]: _quantised("packed + 2 * layers * math.ceil(kv_heads * head_dim / group) * scale_bytes")},
        QUANTISED,
        "reach over|nothing of the next vector",
        parts="group_longer_than_vector short_last_group",
    ),
    Wrong(
        "the last group filled up",
        {
            QUANTISED[0]: _quantised(
                "vectors * math.ceil(head_dim / group) * (group * bits / 8 + scale_bytes)",
            )
        },
        QUANTISED,
        "not filled up",
        parts="group_longer_than_vector short_last_group",
    ),
    Wrong(
        "a scale a vector",
        {QUANTISED[0]: _quantised("packed + vectors * scale_bytes")},
        QUANTISED,
        "several groups",
        parts="short_last_group whole_groups",
    ),
    Wrong(
        "bits for bytes",
        {QUANTISED[0]: _quantised("8 * packed + vectors * math.ceil(head_dim / group) * scale_bytes")},
        QUANTISED,
        "times too large",
        parts="group_longer_than_vector short_last_group whole_groups",
    ),
    Wrong(
        "windows ignored",
        {CACHE[0]: _cache("len(windows) * layer_bytes * context * batch")},
        CACHE,
        "not all",
        parts="mixed_layers",
    ),
    Wrong(
        "a window everywhere",
        {
            CACHE[0]: _cache(
                "batch * layer_bytes * len(windows) * min([context, *(w for w in windows if w is not None)])"
            )
        },
        CACHE,
        "have no window",
        parts="mixed_layers",
    ),
    Wrong(
        "full windows always",
        {CACHE[0]: _cache("batch * layer_bytes * sum(context if w is None else w for w in windows)")},
        CACHE,
        "longer than the context",
        parts="window_not_yet_full",
    ),
    Wrong(
        "the larger of both",
        {CACHE[0]: _cache("batch * layer_bytes * sum(max(context, w or 0) for w in windows)")},
        CACHE,
        "smaller of the two",
        parts="mixed_layers window_not_yet_full",
    ),
    Wrong(
        "None is nothing",
        {CACHE[0]: _cache("batch * layer_bytes * sum(min(context, w or 0) for w in windows)")},
        CACHE,
        "keep keys and values, too",
        parts="all_layers_full mixed_layers window_not_yet_full",
    ),
    Wrong(
        "one cache for all",
        {CACHE[0]: _cache(f"layer_bytes * sum({KEPT} for w in windows)")},
        CACHE,
        "its own cache",
        parts="all_layers_full mixed_layers window_not_yet_full",
    ),
    Wrong(
        "no head is cut there",
        {SHOWN[0]: _shown("80, 8, 128, 4")},
        SHOWN,
        "too few heads",
        parts="a_real_counterexample",
    ),
    Wrong(
        "no engine runs it",
        {SHOWN[0]: _shown("80, 8, 128, 3")},
        SHOWN,
        "divide the other",
        parts="a_real_counterexample",
    ),
    Wrong(
        "three numbers", {SHOWN[0]: _shown("80, 8, 16")}, SHOWN, "4 numbers are wanted", parts="a_real_counterexample"
    ),
    Wrong(
        "the given function again",
        {RANK[0]: "rank_bytes = colleagues_rank_bytes"},
        RANK,
        "head is not cut",
        parts="heads_copied heads_that_do_not_fit",
    ),
    Wrong(
        "no head at all",
        {RANK[0]: _rank("2 * layers * (kv_heads // ranks) * head_dim * 2")},
        RANK,
        "copy of one",
        parts="heads_copied",
    ),
    Wrong(
        "a fraction of a head",
        {RANK[0]: _rank("2 * layers * (kv_heads / ranks) * head_dim * 2")},
        RANK,
        "not cut",
        parts="heads_copied",
    ),
    Wrong(
        "all copies on one chip",
        {RANK[0]: _rank("2 * layers * max(kv_heads // ranks, ranks // kv_heads) * head_dim * 2")},
        RANK,
        "one copy of a head",
        parts="heads_copied",
    ),
    Wrong(
        "nothing refused",
        {RANK[0]: _rank("2 * layers * max(1, kv_heads // ranks) * head_dim * 2", refuse="False")},
        RANK,
        "should be refused",
        parts="heads_that_do_not_fit",
    ),
    Wrong(
        "rounded up where it should refuse",
        {RANK[0]: _rank("2 * layers * math.ceil(kv_heads / ranks) * head_dim * 2", refuse="False")},
        RANK,
        "should be refused",
        parts="heads_that_do_not_fit",
    ),
    Wrong(
        "copies refused",
        {RANK[0]: _rank("2 * layers * (kv_heads // ranks) * head_dim * 2", refuse="kv_heads % ranks")},
        RANK,
        "ValueError",
        parts="heads_copied",
    ),
    Wrong(
        "GiB as GB",
        {FIT[0]: _fit("max(0, int((usable * whole - weight_bytes) // sequence_bytes))", "10**9, 10**9")},
        FIT,
        "a GiB 2",
        parts="in_gib",
    ),
    Wrong(
        "GB as GiB",
        {FIT[0]: _fit("max(0, int((usable * whole - weight_bytes) // sequence_bytes))", "2**30, 2**30")},
        FIT,
        "a GiB 2",
        parts="in_gb none_fit to_the_byte",
    ),
    Wrong(
        "all of the memory",
        {FIT[0]: _fit("max(0, int((whole - weight_bytes) // sequence_bytes))")},
        FIT,
        "share",
        parts="in_gb in_gib none_fit",
    ),
    Wrong(
        "weights forgotten",
        {FIT[0]: _fit("int(usable * whole // sequence_bytes)")},
        FIT,
        "weights take memory",
        parts="in_gb in_gib none_fit to_the_byte",
    ),
    Wrong(
        "the share of what is left",
        {FIT[0]: _fit("max(0, int(usable * (whole - weight_bytes) // sequence_bytes))")},
        FIT,
        "not of what weights leave",
        parts="in_gb in_gib none_fit",
    ),
    Wrong(
        "0.9 always",
        {FIT[0]: _fit("max(0, int((0.9 * whole - weight_bytes) // sequence_bytes))")},
        FIT,
        "not always 0.9",
        parts="in_gb in_gib to_the_byte",
    ),
    Wrong(
        "negative users",
        {FIT[0]: _fit("int((usable * whole - weight_bytes) // sequence_bytes)")},
        FIT,
        "less than nothing",
        parts="none_fit",
    ),
    Wrong(
        "rounded up",
        {FIT[0]: _fit("max(0, math.ceil((usable * whole - weight_bytes) / sequence_bytes))")},
        FIT,
        "round down",
        parts="in_gb in_gib none_fit to_the_byte",
    ),
    Wrong(
        "to the nearest",
        {FIT[0]: _fit("max(0, round((usable * whole - weight_bytes) / sequence_bytes))")},
        FIT,
        "round down",
        parts="in_gb in_gib none_fit to_the_byte",
    ),
    Wrong(
        "not rounded",
        {FIT[0]: _fit("max(0, (usable * whole - weight_bytes) / sequence_bytes)")},
        FIT,
        "round down",
        parts="in_gb in_gib none_fit to_the_byte",
    ),
    Wrong(
        "a little is kept free",
        {FIT[0]: _fit("max(0, int((usable * whole - weight_bytes - 1) // sequence_bytes))")},
        FIT,
        "fits exactly",
        parts="to_the_byte",
    ),
    Wrong(
        "one byte more",
        {TOKEN[0]: _token("2 * L * kv * d * P + 1")},
        TOKEN,
        "nearly: too large by 1",
        parts="every_head_its_own head_dim_given heads_shared other_formats",
    ),
    Wrong(
        "a byte for each sequence",
        {CACHE[0]: _cache(f"batch * (layer_bytes * sum({KEPT} for w in windows) + 1)")},
        CACHE,
        "nearly",
        parts="all_layers_full mixed_layers window_not_yet_full",
    ),
    Wrong(
        "one token less in a window",
        {CACHE[0]: _cache("batch * layer_bytes * sum(context if w is None else min(context, w - 1) for w in windows)")},
        CACHE,
        "last `window` tokens",
        parts="mixed_layers window_not_yet_full",
    ),
    Wrong(
        "a byte too many in a head",
        {RANK[0]: _rank("2 * layers * max(1, kv_heads // ranks) * head_dim * 2 + 1")},
        RANK,
        "nearly",
        parts="heads_copied heads_dealt_out",
    ),
    Wrong(
        "whole gigabytes",
        {
            FIT[0]: _fit("max(0, int((usable * whole - weight_bytes) // sequence_bytes))").replace(
                "float(amount)", "int(float(amount))"
            )
        },
        FIT,
        "need not be whole",
        parts="in_gb in_gib",
    ),
    Wrong(
        "nearly one more",
        {FIT[0]: _fit("max(0, int((usable * whole - weight_bytes) / sequence_bytes + 1e-3))")},
        FIT,
        "came out wrong",
        parts="to_the_byte",
    ),
    Wrong(
        "a share of 0.95 is 0.9",
        {FIT[0]: _fit("max(0, int((min(usable, 0.9) * whole - weight_bytes) // sequence_bytes))")},
        FIT,
        "came out wrong",
        parts="in_gib to_the_byte",
    ),
]
