# %% [markdown]
# # Problem set 02 · Sizing the KV cache
#
# *60 minutes, 20 points. Follows lesson 02. No GPU, no network, no model is loaded.*
#
# By the end you can read a model's config and say what a token costs in memory, whatever kind of attention it has and
# however few bits you keep; add up the caches of layers with and without windows; say what each chip of a
# tensor-parallel server holds; and say how many users fit.
#
# | part | | minutes | points |
# |---|---|---|---|
# | 1 | One token ★ | 15 | 4 + 2 |
# | 2 | Fewer bits ★★ | 10 | 3 |
# | 3 | Windows ★★ | 10 | 3 |
# | 4 | Find the bug: many chips ★★ | 10 | 1 + 2 |
# | 5 | How many fit? ★★ | 8 | 3 |
# | 6 | In words ★★ | 7 | 2 |
#
# Replace each line `raise NotImplementedError(...)` with your code. The cell below it checks your code, with other
# numbers each time, and says what is wrong. Run it as often as you like. Hints open one at a time.

# %% locked="setup"
from specdec_course.checks import ps02_kv_sizing as checks

# Entries of config.json, as the makers of the models publish them.
CONFIGS = {
    "SmolLM2-135M": {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "Llama-2-7B": {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32},
    "Llama-3-70B": {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "Qwen3-4B": {
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "DeepSeek-V3": {
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
}

# %% [markdown]
# ## 1. One token
#
# ★ · *15 minutes · 4 points and 2 points*
#
# **Heads.** A model's `config.json` becomes a dict. These entries matter:
#
# | entry | meaning |
# |---|---|
# | `num_hidden_layers` | layers |
# | `hidden_size` | width of the model |
# | `num_attention_heads` | query heads |
# | `num_key_value_heads` | key/value heads. If the entry is missing, each query head has its own (MHA) |
# | `head_dim` | numbers in one head's key. If it is missing or `None`: hidden size / query heads |
#
# Every layer keeps, for each key/value head, one key and one value of each token.


# %% solve="kv_bytes_per_token"
def kv_bytes_per_token(config, bytes_per_number=2):
    """Bytes that one token leaves in the cache, over all layers.

    config: a dict with the entries above. bytes_per_number: of a number in the cache, 2 in 16 bits.
    """
    ### BEGIN SOLUTION
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_number
    ### END SOLUTION


# %% test="kv_bytes_per_token" points=4
checks.kv_bytes_per_token(kv_bytes_per_token, points=4)

# %% [markdown]
# <details><summary>Hint 1</summary>Take Llama-3-70B and paper first: in lesson 02 it came to 327,680 bytes. Then
# write what you multiplied.
# <details><summary>Hint 2</summary><code>config.get("head_dim")</code> is <code>None</code> both where the entry is
# missing and where it says <code>None</code>.
# </details></details>
#
# **A latent.** With MLA a layer keeps two vectors per token, for *all* heads together: one of `kv_lora_rank` numbers, from
# which keys and values are computed again, and one of `qk_rope_head_dim` numbers, which holds the position. The config
# has other entries too, as you can see above for DeepSeek-V3. In 16 bit:


# %% solve="latent_bytes_per_token"
def latent_bytes_per_token(config):
    """Bytes that one token of a model with MLA leaves in the cache, over all layers, in 16 bits."""
    ### BEGIN SOLUTION
    return config["num_hidden_layers"] * (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * 2
    ### END SOLUTION


# %% test="latent_bytes_per_token" points=2
checks.latent_bytes_per_token(latent_bytes_per_token, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>How many vectors does one layer keep for a token, and how long are they? The
# number of heads is not in the answer.
# </details>
#
# These are the published sizes of five models: 23,040, 524,288, 327,680, 147,456 and 70,272 bytes. **Before you run
# the cell:** Qwen3-4B has 4 billion weights, Llama-3-70B has 70 billion. Which of them leaves more bytes per token, and
# by what factor?

# %% tags=["raises-exception"]
for name, config in CONFIGS.items():
    size = latent_bytes_per_token(config) if "kv_lora_rank" in config else kv_bytes_per_token(config)
    print(
        f"{name:13} {size:8,} bytes per token; 8,192 tokens: {size * 8192 / 1e9:5.2f} GB = {size * 8192 / 2**30:5.2f} GiB"
    )

# %% [markdown]
# ## 2. Fewer bits
#
# ★★ · *10 minutes · 3 points*
#
# A cache may keep its numbers in 8, 4 or 2 bits. Then neighbouring numbers form *groups*, and each group has a scale
# (and often an offset) of its own, which takes `scale_bytes` bytes. Each key and each value of a head is stored on
# its own: it is cut into groups from the front, and no group extends into the next vector. If the length does not
# divide evenly, the last group is shorter, and has a scale like the others.
#
# A vector of 96 numbers in 4 bits, with groups of 64 and 4 bytes per scale:
#
# | | numbers | scale |
# |---|---|---|
# | group 1 | 64 x 4 bits = 32 bytes | 4 bytes |
# | group 2 | 32 x 4 bits = 16 bytes | 4 bytes |
#
# That makes 56 bytes. In 16 bit it would be 192.


# %% solve="quantised_bytes_per_token"
def quantised_bytes_per_token(layers, kv_heads, head_dim, bits, group, scale_bytes):
    """Bytes that one token leaves in a quantised cache, over all layers, scales included.

    bits: of a number. group: numbers that share a scale. scale_bytes: bytes of one group's scale.
    """
    ### BEGIN SOLUTION
    groups = -(-head_dim // group)
    return 2 * layers * kv_heads * (head_dim * bits // 8 + groups * scale_bytes)
    ### END SOLUTION


# %% test="quantised_bytes_per_token" points=3
checks.quantised_bytes_per_token(quantised_bytes_per_token, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary>Write the bytes of one vector first. How many vectors does a token leave?
# <details><summary>Hint 2</summary>The number of groups is a division rounded up: <code>-(-a // b)</code> or
# <code>math.ceil(a / b)</code>.
# </details></details>
#
# How much do scales eat? Llama-3-70B again, from 16 bit down:

# %% tags=["raises-exception"]
plain = kv_bytes_per_token(CONFIGS["Llama-3-70B"])
for bits, group, scale_bytes in ((8, 128, 2), (4, 128, 4), (4, 32, 4), (2, 32, 4)):
    size = quantised_bytes_per_token(80, 8, 128, bits, group, scale_bytes)
    print(f"{bits} bits, groups of {group:3}: 1/{plain / size:.2f} of 16 bit; the bits alone promise 1/{16 / bits:.0f}")

# %% [markdown]
# ## 3. Windows
#
# ★★ · *10 minutes · 3 points*
#
# In some models only some of the layers see the whole text; the others see the last `window` tokens and keep no more.
# Gemma 3 has five layers with a window for each one without. Now add up whole caches. The layers come as a list
# with one entry for each layer: its window, or `None` for a layer that keeps everything.


# %% solve="cache_bytes"
def cache_bytes(windows, layer_bytes, context, batch):
    """Bytes of the caches of `batch` sequences of `context` tokens each.

    windows: a list, for each layer its window in tokens, or None. layer_bytes: bytes that a token leaves in one layer.
    """
    ### BEGIN SOLUTION
    kept = sum(context if window is None else min(context, window) for window in windows)
    return batch * kept * layer_bytes
    ### END SOLUTION


# %% test="cache_bytes" points=3
checks.cache_bytes(cache_bytes, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary>How many tokens does one layer keep of one sequence? Then sum over the layers.
# <details><summary>Hint 2</summary>The text may be shorter than the window.
# </details></details>
#
# Gemma-3-27B has 62 layers, 16 key/value heads of 128 numbers, and a window of 1,024 tokens in five of six layers.
# What do the windows save, for short texts and for long ones?

# %% tags=["raises-exception"]
gemma = [None if (i + 1) % 6 == 0 else 1024 for i in range(62)]
for context in (512, 2048, 8192, 32_768, 131_072):
    with_windows, without = (cache_bytes(w, 2 * 16 * 128 * 2, context, 1) for w in (gemma, [None] * 62))
    print(f"{context:7,} tokens: {with_windows / 1e9:6.2f} GB, without windows {without / 1e9:6.2f} GB")

# %% [markdown]
# ## 4. Find the bug: many chips
#
# ★★ · *10 minutes · 1 point and 2 points*
#
# In a *tensor-parallel* server each chip (a *rank*) computes some of the heads, and keeps the keys and values of those. A
# head is never cut. So there are two cases that work:
#
# - `ranks` divides `kv_heads`: each chip holds `kv_heads / ranks` of them.
# - `kv_heads` divides `ranks`: there are at least as many chips as heads. Each chip holds one head, and where there are
#   more chips than heads, several hold copies of the same one.
#
# If neither divides the other, engines refuse to start.
#
# A colleague wrote this for a spreadsheet on which servers are planned. (16 bit, one token.)


# %% locked="colleague"
def colleagues_rank_bytes(layers, kv_heads, head_dim, ranks):
    """Bytes of keys and values that one token leaves on each of `ranks` tensor-parallel chips, in 16 bits."""
    total = 2 * layers * kv_heads * head_dim * 2
    return total // ranks


print(f"Llama-3-70B on 8 chips: {colleagues_rank_bytes(80, 8, 128, 8):,} bytes on each")

# %% [markdown]
# That number is right. Find an input for which the function is wrong and with which an engine does start. Any will do.


# %% solve="counterexample"
def counterexample():
    """Where colleagues_rank_bytes is wrong: the four numbers (layers, kv_heads, head_dim, ranks)."""
    ### BEGIN SOLUTION
    return 80, 8, 128, 16
    ### END SOLUTION


# %% test="counterexample" points=1
checks.counterexample(counterexample, points=1)

# %% [markdown]
# Now write it as it should be.


# %% solve="rank_bytes"
def rank_bytes(layers, kv_heads, head_dim, ranks):
    """Bytes of keys and values that one token leaves on each of `ranks` tensor-parallel chips, in 16 bits.

    Raises ValueError if neither of kv_heads and ranks divides the other.
    """
    ### BEGIN SOLUTION
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"{kv_heads} key/value heads fit {ranks} ranks neither as shares nor as copies")
    return 2 * layers * max(1, kv_heads // ranks) * head_dim * 2
    ### END SOLUTION


# %% test="rank_bytes" points=2
checks.rank_bytes(rank_bytes, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Work out first how many heads one chip holds, as a whole number. The rest is part
# 1.
# <details><summary>Hint 2</summary>How many heads has a chip if there are 8 heads and 16 chips?
# <details><summary>Hint 3</summary><code>a % b</code> is 0 exactly if b divides a.
# </details></details></details>

# %% [markdown]
# ## 5. How many fit?
#
# ★★ · *8 minutes · 3 points*
#
# Only a share of a chip's memory may be used, here 0.9 of it unless said otherwise. That share has to hold the weights first; the rest of
# it is for the caches of whole sequences. The memory is given as a string with a number, a space and a unit: `"80 GB"`
# (1 GB is $10^9$ bytes) or `"80 GiB"` (1 GiB is $2^{30}$ bytes).


# %% solve="sequences_that_fit"
def sequences_that_fit(memory, weight_bytes, sequence_bytes, usable=0.9):
    """How many whole sequences' caches fit beside the weights; 0 if none does, or if the weights do not.

    memory: such as "80 GB" or "80 GiB". weight_bytes: of the weights. sequence_bytes: of one sequence's cache.
    usable: the share of the memory that weights and caches may take together.
    """
    ### BEGIN SOLUTION
    amount, unit = memory.split()
    room = usable * float(amount) * {"GB": 10**9, "GiB": 2**30}[unit] - weight_bytes
    return max(0, int(room // sequence_bytes))
    ### END SOLUTION


# %% test="sequences_that_fit" points=3
checks.sequences_that_fit(sequences_that_fit, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary><code>"80 GB".split()</code> gives the number (as a text) and the unit.
# <details><summary>Hint 2</summary>What if the weights are larger than the memory? There are no negative users.
# </details></details>
#
# What you built answers the question of lesson 02. Llama-3-70B on H100s, 8,192 tokens each, with weights and heads
# split evenly among the chips. Before you run it: from 8 chips to 16, how many more users fit?

# %% tags=["raises-exception"]
weight_bytes = 2 * 70_553_706_496
for ranks in (2, 4, 8, 16):
    each = rank_bytes(80, 8, 128, ranks) * 8192
    users = sequences_that_fit("80 GB", weight_bytes // ranks, each)
    print(f"{ranks:2} chips: on each {weight_bytes / ranks / 1e9:5.1f} GB of weights", end="")
    print(f" and {each / 1e9:.2f} GB per user, {users:3} users")

# %% [markdown]
# You split the weights evenly. `fit` of `specdec_ref.arithmetic` counts 187 users on 16 chips: there the weights that
# make a head's keys and values are held twice, just as its cache is, and each chip has 0.17 GB less room.

# %% [markdown]
# ## 6. In words
#
# ★★ · *7 minutes · 2 points, marked by hand*
#
# Your service runs Llama-3-70B (8 key/value heads, 16 bit) on 8 chips of 80 GB, tensor-parallel, with chats of 8,192
# tokens. It is full. Your manager offers 8 more chips: "Run it on 16 chips instead of 8, then twice as many users
# fit."
#
# What will really happen to the number of users, and why? What would you do with the 8 new chips instead? Answer in
# three to six sentences, with numbers from above.

# %% [markdown] written="manager" points=2
# <!-- BEGIN SOLUTION -->
# On 16 chips each of the 8 key/value heads is held twice, since a chip needs one whole head at least. So a token
# still takes 40,960 bytes on each chip, as on 8 chips, and a chat 0.34 GB. Only the weights get smaller: 8.8 GB on a
# chip in place of 17.6 GB, so 63 GB in place of 54 GB are left for caches. That makes 188 users for 162: 16% more,
# not twice as many. Better: start a second server of 8 chips beside the first, which makes 2 x 162 = 324 users. Or
# keep the caches in 8 bits, which nearly doubles the users without a single new chip.
#
# **Marking.** 1 point: heads are replicated beyond 8 chips, so the cache of a chip stays as large (half), with the
# effect in numbers or words: little more room, from the weights alone (half). 1 point: a better use with a reason: a
# second replica with 8 chips (twice the users), or fewer bits, or chips that share layers (pipeline parallel). Any
# proposal that lowers the cache bytes a chip and user, or doubles the places for them, counts. Numbers within 5% are
# right; 187 or 188 users are both fine.
# <!-- END SOLUTION -->

# %% [markdown]
# ## What to remember
#
# - Two, for keys and values; layers; *key/value* heads; `head_dim` from the config; bytes. Or a latent, once per layer.
# - Scales take room: 4 bits are not a quarter of 16.
# - A window caps a layer, not the model.
# - A head is never cut: beyond the number of key/value heads, more chips do not shrink the cache of a chip.
# - Only whole sequences count, alongside the weights, and in the same unit as the memory.
