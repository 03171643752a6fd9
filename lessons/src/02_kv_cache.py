# %% [markdown]
# # 02 · The KV cache
#
# *65 minutes. You need lesson 01. No GPU.*
#
# By the end you can derive the size of any model's key-value cache, for MHA, GQA, MQA and MLA; show what the cache saves in
# work and in time; and say how many users fit on a machine.

# %% [markdown]
# ## A question first
#
# Llama-3-70B serves chats of 8,192 tokens each. How many gigabytes does the cache of *one* chat take, in 16-bit precision? And how
# many such chats can a server with eight H100s (80 GB each) hold at a time, alongside the weights?

# %%
my_guess_gb = None
my_guess_chats = None

# %% [markdown]
# ## 1. What is kept, and why that is allowed
#
# Each token's *query* is compared with the *keys* of all tokens up to it, and collects their *values*. Attention is
# **causal**: nothing that comes later changes a token's key or value. So both can be kept. They are all that later tokens
# need of it. A query is used once, when its token is new, and then never again: hence *KV* cache, not QKV.

# %%
import specdec_course as course

course.show(
    course.cache_figure(),
    alt="Left: a triangle. Each query meets the keys of its own and of earlier tokens, none of the future; the new token's "
    "query is one full row. Right: the cache, tokens by layers, one key and one value in each cell; the new token adds one "
    "column, and the older columns stay as they are.",
)

# %% [markdown]
# In one layer that is easy to believe: a key is its token's vector times a matrix. But you may ask: *from the second
# layer on, a token's vector has collected values from other tokens. Does its key not depend on them?* It does, on
# the **earlier** ones. Let us look, in a real model: we change one word and see which cached keys move.

# %%
import torch

from specdec_ref import load_model

torch.set_num_threads(1)  # timings below use the clock of this one thread, as in lesson 01
model = load_model(weights="full")
text = model.tokenizer.encode("The quick brown fox jumps over the lazy dog and runs into the deep dark forest")
place = 4
changes = torch.tensor(course.changed_keys(model, text, place, other=text[8]))  # [layer, token]

assert changes[:, :place].max() < 1e-3, "no key before the changed token may move, in any layer"
assert changes[0, place + 1 :].max() < 1e-3 < changes[-1, place:].min(), "later keys move, but not in the first layer"
course.show(
    course.changed_figure(changes.tolist(), [model.tokenizer.decode([t]).strip() for t in text]),
    alt=f"How far each cached key moves when token {place + 1} changes, by token and layer. Tokens before it: not at all, in "
    "any layer. The token itself: in every layer. Tokens after it: not in the first layer, and by up to "
    f"{100 * changes[1:, place + 1 :].max():.0f}% of their length in later ones.",
)

# %% [markdown]
# Left of the change everything stays white, in all 30 layers: the past does not know the future. Right of it keys move,
# from the second layer on. So a cache can be extended without touching what it holds, but a changed word in
# the middle costs everything after it.
#
# **Your turn.** Here is one head without a cache. Write the step with one.

# %%
torch.manual_seed(0)
n, d = 10, 16
x = torch.randn(n, d, dtype=torch.float64)  # ten tokens, as the layer sees them
W_q, W_k, W_v = torch.randn(3, d, d, dtype=torch.float64) / d**0.5


def attend(q, K, V):
    """What the query q [d] collects: keys K [n, d] say how much of each value in V [n, d]."""
    return torch.softmax(K @ q / len(q) ** 0.5, 0) @ V


without = attend(x[-1] @ W_q, x @ W_k, x @ W_v)  # all keys and values, computed again


# %%
def step(q, k, v, K, V):
    """One new token in one head: what its query q collects, and the cache with its key and value added.

    q, k, v: [d]. K, V: [n, d], those of the tokens before it. Returns the output [d], and K and V, [n + 1, d] each.
    """
    raise NotImplementedError("torch.cat([K, k[None]]) adds a row")


step = course.blank("02 step", step)

# %%
new = x[-1]
output, K, V = step(new @ W_q, new @ W_k, new @ W_v, x[:-1] @ W_k, x[:-1] @ W_v)
print(f"largest difference: {(output - without).abs().max():.1e}")
assert torch.allclose(output, without)

# %% [markdown]
# Now the whole model. We generate the text twice: once re-running the whole sequence for every new token, once running only
# the newest token.

# %%
prompt = model.tokenizer.encode("Once upon a time there was a lighthouse keeper who")


def write(n_new, use_cache):
    tokens, cache = list(prompt), model.new_cache(100)
    for _ in course.progress(range(n_new), "tokens"):
        if not use_cache:
            cache = model.new_cache(100)
        new = torch.tensor(tokens[cache.length :])  # what the cache does not hold yet
        tokens.append(int(model.forward(new, cache, slice(-1, None)).argmax()))
    return tokens[len(prompt) :]


with torch.inference_mode():
    texts = [model.tokenizer.decode(write(20, use_cache)) for use_cache in (False, True)]
print(texts[1])
print("the same text" if texts[0] == texts[1] else f"rounding tipped a near-tie; without the cache: {texts[0]}")

# %% [markdown]
# ## 2. What it saves
#
# The number of *forward passes* is the same with and without a cache: one for each new token. What differs is how many
# tokens a pass has to run. So count tokens: each time that one token goes through the model counts as one *token run*. With
# a cache, each token runs once: `prompt + new_tokens - 1` in all, since nothing follows the last one. **Your turn:** how
# many token runs without?


# %%
def tokens_without(prompt, new_tokens):
    """How many tokens run, over all forward passes, to write `new_tokens` after the prompt without a cache."""
    raise NotImplementedError("the first pass runs the prompt, the next one token more")


tokens_without = course.blank("02 tokens", tokens_without)

# %% [markdown]
# In attention it is not tokens that count but *pairs*: of a query and a key that meet. Double the length of the text, line
# by line, and look at how the four columns grow.

# %%
from specdec_ref.arithmetic import attention_pairs, token_passes

rows, last = [], None
for n_new in (200, 400, 800, 1600, 3200):
    counts = [
        tokens_without(1, n_new),
        token_passes(1, n_new, cached=True),
        attention_pairs(1, n_new, cached=False),
        attention_pairs(1, n_new, cached=True),
    ]
    growth = ["" if last is None else f" (x{new / old:.1f})" for new, old in zip(counts, last or counts)]
    rows.append((f"{n_new:,}", *(f"{c:,}{g}" for c, g in zip(counts, growth))))
    factors = [new / old for new, old in zip(counts, last or counts)]
    last = counts
assert all(abs(f / wanted - 1) < 0.01 for f, wanted in zip(factors, (4, 2, 8, 4))), "square, line, cube, square"

# %%
from IPython.display import HTML

head = ("new tokens", "token runs, no cache", "token runs, cache", "pairs, no cache", "pairs, cache")
HTML(course.table_html(head, rows))

# %% [markdown]
# Without a cache, token runs grow quadratically (twice the text, four times the runs) and attention pairs *cubically*.
# With a cache, token runs grow linearly and attention pairs quadratically. People often say that generation without a
# cache is "quadratic". It is worse.
#
# Does the clock agree? One more token, after more and more text:

# %%
import time

seconds = course.step_seconds(model, (4, 16, 64, 128, 256, 384), repeats=3, clock=time.thread_time)
assert seconds[384][1] > 2 * seconds[384][0], "after 384 tokens the cache must pay, or this picture shows nothing"
course.show(
    course.step_time_figure(seconds),
    alt="Milliseconds for one more token, on this machine, now: "
    + "; ".join(
        f"after {n} tokens {1e3 * a:.0f} with the cache and {1e3 * b:.0f} without" for n, (a, b) in seconds.items()
    ),
)

# %%
print(course.step_time_words(seconds))

# %% [markdown]
# You know the reason for both ends of this picture from lesson 01. A pass over a few tokens costs little more than a pass
# over one: both read all the weights. A pass over the whole text starts to cost in proportion once it is compute-bound, and
# from there on the cache pays.
#
# **What the article says:**

# %%
HTML(course.claims_html(8))

# %% [markdown]
# ## 3. Derive the size
#
# For one token, every layer keeps, for each key/value head, one key and one value: vectors of `head_dim` numbers of P
# bytes. With L layers:
#
# $$\text{bytes per token} = 2 \cdot L \cdot n_{kv} \cdot d_{head} \cdot P$$
#
# **Your turn**, by hand, for two models in 16-bit precision:
#
# | | layers | hidden size | query heads | key/value heads |
# |---|---|---|---|---|
# | Llama-2-7B | 32 | 4,096 | 32 | 32 |
# | Llama-3-70B | 80 | 8,192 | 64 | 8 |
#
# `head_dim` is hidden size / query heads in both.

# %%
my_llama_2_7b = None
my_llama_3_70b = None

print(course.check("cache of a Llama-2-7B token", my_llama_2_7b))
print(course.check("cache of a Llama-3-70B token", my_llama_3_70b))

# %% [markdown]
# Then as a function:


# %%
def bytes_per_token(layers, kv_heads, head_dim, bytes_per_number):
    """Bytes of the keys and values that one token leaves in all layers."""
    raise NotImplementedError("the formula above")


bytes_per_token = course.blank("02 bytes", bytes_per_token)

# %%
from specdec_ref.arithmetic import kv_bytes, kv_bytes_per_token, model_shape

for name in ("smollm2-135m", "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen3-4b"):
    shape = model_shape(name)
    heads = shape.layers[0].attention
    size = bytes_per_token(len(shape.layers), heads.n_kv_heads, heads.head_dim, 2)
    assert size == kv_bytes_per_token(shape), "the package counts the same, layer by layer"
    print(f"{name:13} 2 x {len(shape.layers)} x {heads.n_kv_heads:2} x {heads.head_dim:3} x 2 = {size:7,} bytes")

# %% [markdown]
# Look at Qwen3-4B: its hidden size over its query heads is 2,560 / 32 = 80, but `head_dim` is 128. The config says so, and
# calculators that divide get it wrong.
#
# A formula is a claim about memory. So allocate, and compare: the reference model's cache here, and caches that
# transformers fills for tiny models of three kinds.

# %%
from specdec_ref.measure import SHORT_NAMES

cache = model.new_cache(1000)
estimate = kv_bytes(model_shape("smollm2-135m"), 1000, kv=SHORT_NAMES[model.dtype])
print(f"SmolLM2, 1,000 tokens in {SHORT_NAMES[model.dtype]}: estimated {estimate:,} bytes, allocated {cache.nbytes:,}")
for kind in ("MHA", "GQA", "MQA"):
    estimate, allocated = course.allocated_bytes(kind)
    print(f"tiny {kind} in transformers: estimated {estimate:,} bytes, allocated {allocated:,}")
    assert estimate == allocated

# %% [markdown]
# Back to the question at the top.

# %%
my_gb = None  # GB (10^9 bytes) of 8,192 tokens of Llama-3-70B

print(course.check("cache of 8,192 tokens of Llama-3-70B", my_gb))

# %% [markdown]
# **What the article says.** It multiplies by the hidden size, and then errs by another factor of 2:

# %%
HTML(course.claims_html(9, 10))

# %% [markdown]
# ## 4. MHA, GQA, MQA, MLA
#
# The number of *key/value* heads is where model builders save:
#
# - **MHA**, multi-head: every query head has its own keys and values.
# - **GQA**, grouped-query: several query heads share them. Llama-3-70B: 8 share one.
# - **MQA**, multi-query: all share a single one.
# - **MLA**, multi-head latent: each layer keeps one short vector per token, from which all heads' keys and values can be
#   made again.

# %%
course.show(
    course.heads_figure(),
    alt="Eight query heads and what is in the cache. MHA: eight keys and values. GQA: two, each shared by four query "
    "heads. MQA: one for all. MLA: one latent vector, from which all keys and values are made.",
)

# %% [markdown]
# DeepSeek-V3 has 61 layers. Its latent has 512 numbers. The position of a token can't be made from the latent, so each
# layer keeps 64 numbers more: one short key, turned by the token's position, that all heads share. **Your turn:** bytes per
# token, in 16-bit precision?

# %%
my_deepseek = None

print(course.check("cache of a DeepSeek-V3 token", my_deepseek))

# %% [markdown]
# Which takes fewer bytes per token, do you think: Llama-3-70B if it had MQA, or DeepSeek-V3, a model of 671 billion
# weights? And which saves more, compared with the same model as MHA?

# %%
llama, deepseek = model_shape("llama-3-70b"), model_shape("deepseek-v3")
sizes = {f"Llama-3-70B as {kind}": kv_bytes_per_token(s) for kind, s in course.attention_variants(llama).items()}
sizes["DeepSeek-V3 expanded, as MHA would"] = kv_bytes_per_token(deepseek, latent=False)
sizes["DeepSeek-V3, MLA (as it is)"] = kv_bytes_per_token(deepseek)
course.show(
    course.attention_figure(sizes),
    alt="Bytes in the cache per token. " + "; ".join(f"{name}: {size:,}" for name, size in sizes.items()),
)

# %%
mha, _, mqa, expanded, latent = sizes.values()
fewer = "MQA on Llama-3-70B" if mqa < latent else "DeepSeek-V3's MLA"
more = "MQA on Llama-3-70B" if mha / mqa > expanded / latent else "DeepSeek-V3's MLA"
print(f"fewer bytes per token:  {fewer}, {min(mqa, latent):,} against {max(mqa, latent):,}")
print(f"saves more against MHA: {more}; MQA 1/{mha / mqa:.0f}, MLA 1/{expanded / latent:.0f}")

# %% [markdown]
# Nothing is free. DeepSeek-V3 has 128 heads. If their keys and values were made from the latent and kept (*expanded*), each
# head would compare 128 + 64 numbers, its own key and the shared one for the position, and collect a value of 128. Working
# on the latent itself (*absorbed*), each head compares all 512 + 64 numbers and collects 512. Per pair of query and key,
# with 2 FLOP for each number:

# %%
from_latent, from_expanded = 128 * 2 * (512 + 64 + 512), 128 * 2 * (128 + 64 + 128)
heads = deepseek.layers[0].attention
assert (from_latent, from_expanded) == (heads.flops_per_pair(absorbed=True), heads.flops_per_pair(absorbed=False))
print(f"FLOP per pair: {from_latent:,} from the latent, {from_expanded:,} expanded: x{from_latent / from_expanded:.1f}")
print(f"bytes per token: {latent:,} against {expanded:,}: 1/{expanded / latent:.0f}")

# %% [markdown]
# That trade should sound familiar: decode has arithmetic to spare and too few bytes per second. MLA spends the one to save
# the other, as speculation does.
#
# Some models save along the text, too: with a **sliding window**, a layer sees only the last W tokens and keeps no more.
# (Hybrid models such as Qwen3-Next go further: most of their layers replace attention by a state of fixed size, which does
# not grow with the text at all.) The lines below go on as if each model could read that far; Llama-2 stops at 4,096 tokens
# and Llama-3-8B at 8,192.

# %%
models = ("llama-2-7b", "llama-3-8b", "mistral-7b-v0.1", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3")
longest = {name: kv_bytes(model_shape(name), 2**17) / 1e9 for name in models}
course.show(
    course.growth_figure(models),
    alt="GB of cache against the context of one sequence, from 512 to 131,072 tokens, both logarithmic. At 131,072: "
    + "; ".join(f"{name} {gb:,.1f} GB" for name, gb in longest.items())
    + ". Mistral's line becomes flat at its window of 4,096; Gemma's and gpt-oss's grow more slowly beyond theirs.",
)

# %% [markdown]
# ## 5. How many users fit?
#
# Assume 90% of the memory is usable: the rest is for activations and the runtime. What the weights don't take of it is
# left for caches. (We take the 80 GB of the datasheet at its word, as 80 x 10^9 bytes. `nvidia-smi` shows somewhat more, 81,559
# MiB or 85.5 x 10^9 bytes: product names count GB loosely. So you are on the safe side.) **Your turn:**


# %%
def users_that_fit(memory, weights, per_user, usable):
    """How many users' caches fit alongside the weights in the share `usable` of the memory; sizes in bytes."""
    raise NotImplementedError("whole users, and never fewer than none")


users_that_fit = course.blank("02 users", users_that_fit)

# %%
from specdec_ref.arithmetic import accelerator, size_text

h100 = accelerator("h100-sxm")
print("eight H100s:", size_text(8 * h100.capacity))
print("weights of Llama-3-70B in 16-bit precision:", size_text(llama.weight_bytes()))

# %%
my_chats = None  # chats of 8,192 tokens that fit alongside the weights

print(course.check("chats on eight H100s", my_chats))

# %%
chats = users_that_fit(8 * h100.capacity, llama.weight_bytes(), kv_bytes(llama, 8192), usable=0.9)
print("GB per chat:", course.guess_text(my_guess_gb, kv_bytes(llama, 8192) / 1e9))
print("chats:      ", course.guess_text(my_guess_chats, chats))
rows = course.users_rows(llama, "h100-sxm", 8, (1024, 2048, 8192, 32_768, 131_072))
assert f"{chats:,}" == rows[2][1], "the package's table says the same"
HTML(course.table_html(("tokens of each user", *(f"users, cache in {kv}" for kv in course.KV_FORMATS)), rows))

# %% [markdown]
# (`int4-g64` means 4-bit integers in groups of 64 that share a scale.) FP8 doubles the users. INT8 does not quite, and 4
# bits do not quadruple them: integer formats carry scales, which take room as well; fp8 here has one for a whole tensor.
# What fewer bits do to the text is lesson 10's question (still to come).
#
# Now move it. First: 16 chips. Llama-3-70B has 8 key/value heads; what do 16 chips do with them? Then `llama-2-7b` with
# long contexts: when are the caches larger than the weights?

# %%
course.cache_explorer(users=256)

# %% [markdown]
# <details><summary>16 chips</summary>Each chip needs at least one key/value head, and there are 8: every head is held twice.
# The caches take twice the memory in all, though no chip holds more than before.</details>
# <details><summary>Llama-2-7B</summary>It has as many key/value heads as query heads: half a megabyte per token. Some tens
# of thousands of tokens, of one user or of many together, outweigh the model.</details>

# %% [markdown]
# **What the article says:**

# %%
HTML(course.claims_html(40))

# %% [markdown]
# ## 6. The cache takes time, too
#
# A decode step reads the weights once for *all* users, but each user's cache for that user alone. So with enough users or
# enough text, the caches are most of the reading, and then a larger batch no longer makes a token cheaper.

# %%
batches, contexts = (1, 4, 16, 64, 256), (1024, 4096, 8192, 32_768, 131_072)
shares = course.cache_shares(llama, batches, contexts)
assert shares[0][0] < 0.1 and shares[-1][-1] > 0.9, "from almost nothing to almost all"
course.show(
    course.shares_figure(shares, batches, contexts),
    alt="Share of the bytes of a decode step of Llama-3-70B that are keys and values. "
    + " ".join(
        f"Batch {b}: " + ", ".join(f"{100 * s:.0f}% at {c:,} tokens" for c, s in zip(contexts, row)) + "."
        for b, row in zip(batches, shares)
    ),
)

# %% [markdown]
# What does this mean for speculation? The drafted tokens belong to *one* user and share one reading of that user's cache.
# So a verification reads hardly more bytes than a plain step, whether weights or caches are most of them. What differs is
# the time: the linear layers have to compute, as lesson 01 showed, and kernel by kernel that is not free.

# %%
from specdec_ref.arithmetic import forward_kernels, step_time

prices = []
print("a verification of 5 drafts, compared with a decode step")
for batch, context in ((64, 1024), (64, 32_768), (256, 1024), (256, 32_768)):
    check, plain = (forward_kernels(llama, n, context, batch) for n in (6, 1))
    more = sum(k.bytes for k in check) / sum(k.bytes for k in plain)
    seconds_of = [sum(step_time(k, h100).overlapped_s for k in kernels) for kernels in (check, plain)]
    prices.append(seconds_of[0] / seconds_of[1])
    print(f"batch {batch:3}, {context:6,} tokens: {more:.3f} times the bytes, {prices[-1]:.2f} times as long")
assert prices[1] < prices[0] and 1 < prices[3] < prices[2], "longer texts must make it cheaper, and not free"

# %% [markdown]
# The longer the texts, the smaller the extra cost in proportion: so speculation can pay in large batches, too, if the texts
# are long (MagicDec, 2024).
#
# There is an exception. Attention over a *latent* does much more arithmetic per byte, so that decoding one token already
# comes near the ridge. Where do the drafts take it?

# %%
ridge, bounds = h100.ridge(), []
for name, n in (("decode", 1), ("verification of 5 drafts", 6)):
    attention = forward_kernels(deepseek, n, 8192, 8)[1]
    bounds.append(step_time(attention, h100).bound)
    print(
        f"DeepSeek-V3, attention, {name}: {attention.intensity:,.0f} FLOP/byte, ridge {ridge:.0f}: {bounds[-1]}-bound"
    )
assert bounds == ["memory", "compute"], "the drafts must take it across the ridge"

# %% [markdown]
# MLA has spent the slack that the drafts would use. It saves bytes and speculation saves readings, but both pay with the same
# idle arithmetic.

# %% [markdown]
# ## 7. Reserved is not used
#
# So far each user took exactly what they needed. A simple server cannot do that: it does not know how long an answer will
# be, and needs one piece of memory. So it *reserves* the maximum, say 2,048 tokens. Draw realistic lengths (most short, a
# few long). How much of the reservation is ever used? (The mean lengths are published ones; how they scatter is an
# assumption of ours.)

# %%
share = course.reserved_shares(max_len=2048)["max"]
reserved = users_that_fit(8 * h100.capacity, llama.weight_bytes(), kv_bytes(llama, 2048), usable=0.9)
assert share < 0.5, "this section is about waste"
print(f"Reserved for the longest: {100 * (1 - share):.0f}% of the memory never holds a token.")
print(f"The memory reserved for {reserved:,} users would hold the text of about {reserved / share:,.0f}.")

# %% [markdown]
# And even what will be used lies empty until its token comes. There is a way out that operating systems found long ago: do
# not reserve; hand out small blocks when they are needed, and keep a table of where they are. That is lesson 03.
#
# **What the article says:**

# %%
HTML(course.claims_html(11))

# %% [markdown]
# ## Check yourself
#
# **1. Why are queries not cached?**
#
# <details><summary>They change when more text follows</summary>They do not, no more than keys do. They are simply not
# needed again.</details>
# <details><summary>A token's query is used only when that token is new</summary>Yes. Later tokens ask with their own
# query, and look at old keys and values.</details>

# %% [markdown]
# **2. A model goes from 32 key/value heads to 8, with 32 query heads as before. What happens to the FLOPs of attention?**
#
# <details><summary>A quarter</summary>That is the *bytes*. Each of the 32 query heads still meets every cached token: four
# of them just read the same key.</details>
# <details><summary>The same</summary>Yes. Fewer bytes for the same arithmetic: attention's own intensity is four times
# higher.</details>

# %% [markdown]
# **3. A tool says "10.0" for a cache, another "10.7". Who is wrong?**
#
# <details><summary>The larger one, it counts overhead</summary>Perhaps, but look at the unit first: 10.0 GiB (of 2^30
# bytes) *are* 10.7 GB (of 10^9).</details>
# <details><summary>Perhaps nobody: GiB and GB</summary>Yes, they are 7% apart. Bandwidths are decimal, GB/s; memories are
# often counted in GiB, whatever their label says. `nvidia-smi` prints MiB (2^20 bytes), so there at least you know.</details>

# %% [markdown]
# **4. You edit the third word of a long prompt. How much of its cache can be kept?**
#
# <details><summary>All but that word's column</summary>From the second layer on, later tokens have collected values from the
# third word: their keys and values change, too, as in the picture of section 1.</details>
# <details><summary>The first two tokens</summary>Yes. That is why servers share caches of common *beginnings* (lesson
# 03).</details>

# %% [markdown]
# **5. Rejected draft tokens have already written keys and values. What must be done?**
#
# <details><summary>Nothing, they will be overwritten</summary>Only if the cache's *length* is taken back as well:
# otherwise the next token attends to words that nobody said.</details>
# <details><summary>The cache is cut back to the accepted tokens</summary>Yes: *rollback*. Here it is
# `cache.truncate(length)`, and lesson 05 makes it an invariant.</details>

# %% [markdown]
# ## In production
#
# - **transformers**: `DynamicCache` grows, `StaticCache` reserves, `QuantizedCache` keeps fewer bits; `cache.crop(n)` rolls
#   back. Windows and latents follow from the config.
# - **vLLM** takes the share `gpu_memory_utilization` of each GPU's memory (by default 0.92 in its current documentation; it
#   was 0.9 in version 0.10), loads the weights, and gives the rest to blocks of the cache; at start it prints how many tokens
#   fit. `kv_cache_dtype="fp8"` doubles them; `max_model_len` limits one sequence. **TensorRT-LLM** has
#   `KvCacheConfig(free_gpu_memory_fraction=...)`, a share of what the *weights leave*: mind the difference.
# - With tensor parallelism each chip keeps its own heads. Beyond the number of key/value heads they are *replicated*, and
#   the sum grows. A latent has no heads to share out: with MLA *every* chip keeps all of it. Hence *data-parallel attention*
#   for such models, where each chip keeps the caches of its own users, and vLLM's `decode_context_parallel_size`, where
#   each chip keeps a part of the tokens.
# - `specdec kv --model llama-3-70b --context 8192 --chip h100-sxm --tp 8` prints section 5 for any model.

# %% [markdown]
# ## What to remember
#
# - A token leaves 2 x layers x key/value heads x head_dim x bytes in the cache. Key/value heads, not query heads.
# - Attention is causal: what is cached never changes, so with a cache a step runs one token. Without one, token runs grow
#   quadratically and attention pairs cubically.
# - GQA, MQA and MLA save bytes, windows cap them; the arithmetic stays or grows.
# - Caches are not shared across a batch: users and context are limited by memory, and by its bandwidth.
# - Reserving the maximum length wastes most of the memory.
#
# **Problem set.** [ps02-kv-sizing](../exercises/ps02-kv-sizing/ps02-kv-sizing.ipynb), with a check below each part.
#
# **Exercises.** (a) Write `bytes_per_token` for a model with windows in some layers, and test it on `gemma-3-27b` with
# `kv_bytes`. (b) At which context are the caches of 32 users of Llama-3-8B as large as its weights? By hand, then by code.
# (c) Section 2: measure up to 1,024 tokens. With which power of the length does the time without a cache grow?
#
# **Sources.** Shazeer 2019, MQA (arXiv 1911.02150); Ainslie et al. 2023, GQA (arXiv 2305.13245); DeepSeek-AI 2024, MLA (arXiv
# 2405.04434); Chen et al. 2024, MagicDec (arXiv 2408.11049); Kwon et al. 2023, PagedAttention (arXiv 2309.06180), whose
# published mean lengths section 7 uses.
