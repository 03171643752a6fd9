# %% [markdown]
# # 02 · The KV cache
#
# *60 minutes. You need lesson 01. No GPU.*
#
# Afterwards you can derive the size of any model's key-value cache, for MHA, GQA, MQA and MLA; show what the cache saves
# in work and in time; say how many users fit on a machine; and explain why reserved memory is mostly wasted.

# %% [markdown]
# ## A question first
#
# Llama-3-70B serves chats of 8,192 tokens each. How many gigabytes does the cache of *one* chat take, in 16 bit? And how
# many such chats can a server with eight H100s (80 GB each) hold at a time, beside the weights?

# %%
my_guess_gb = 40
my_guess_chats = 10

# %% [markdown]
# ## 1. What is kept, and why that is allowed
#
# In attention, each token asks (with its *query*) all tokens before it (by their *keys*) what they have to tell (their
# *values*). A token's key and value are made of what the model knew at that token, and never change when more text
# follows. So they can be kept. Here is one attention head, without a cache and with one:

# %%
import torch

torch.set_num_threads(1)  # timings below use the clock of this one thread, as in lesson 01
torch.manual_seed(0)
n, d = 10, 16
x = torch.randn(n, d, dtype=torch.float64)  # ten tokens, as the layer sees them
W_q, W_k, W_v = torch.randn(3, d, d, dtype=torch.float64) / d**0.5


def attend(q, K, V):
    return torch.softmax(q @ K.T / d**0.5, -1) @ V


without = attend(x[-1] @ W_q, x @ W_k, x @ W_v)  # all keys and values, again

K_cache, V_cache = x[:-1] @ W_k, x[:-1] @ W_v  # left from earlier steps
K = torch.cat([K_cache, x[-1:] @ W_k])
V = torch.cat([V_cache, x[-1:] @ W_v])
cached = attend(x[-1] @ W_q, K, V)
print("largest difference:", (cached - without).abs().max().item())

# %% [markdown]
# Queries are not kept: a token asks once, when it is new. Hence *KV* cache.
#
# Now the whole model. This writes a text twice: once all tokens go through the model for each new token, once only the
# newest does.

# %%
from specdec_ref import load_model

model = load_model(weights="full")
prompt = model.tokenizer.encode("Once upon a time there was a lighthouse keeper who")


def write(n_new, use_cache):
    tokens, cache = list(prompt), model.new_cache(100)
    for _ in range(n_new):
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
# Count first. To write n tokens after a prompt, how many tokens go through the layers, and how many pairs of query and key
# meet in attention?

# %%
from specdec_ref.arithmetic import attention_pairs, token_passes

print(f"{'new tokens':>10} {'token passes without':>22} {'with':>6} {'pairs without':>16} {'with':>10}")
for n_new in (100, 200, 400, 800):
    passes = [token_passes(100, n_new, cached) for cached in (False, True)]
    pairs = [attention_pairs(100, n_new, cached) for cached in (False, True)]
    print(f"{n_new:>10} {passes[0]:>22,} {passes[1]:>6,} {pairs[0]:>16,} {pairs[1]:>10,}")

# %% [markdown]
# Double the text, and look at the columns. Without a cache the token passes grow with the square, and the attention pairs
# with the cube. With one they grow in proportion and with the square. (People often say that generation without a cache is
# "quadratic". It is worse.)
#
# Does the clock agree? One more token, behind more and more text.

# %%
import time

import specdec_course as course

seconds = course.step_seconds(model, (32, 64, 128, 256, 384), repeats=3, clock=time.thread_time)
course.show(
    course.step_time_figure(seconds),
    alt="Milliseconds for one more token, on this machine, now: "
    + "; ".join(
        f"after {n} tokens {1e3 * a:.0f} with the cache and {1e3 * b:.0f} without" for n, (a, b) in seconds.items()
    ),
)

# %%
print(course.step_time_verdict(seconds))

# %% [markdown]
# Short texts show hardly any difference, if your machine is like most: a pass over a few tokens costs about as much as a
# pass over one, as you know from lesson 01. The cache pays when the pass without it crosses the ridge.

# %% [markdown]
# ## 3. Derive the size
#
# For one token, every layer keeps, for each key/value head, one key and one value: vectors of `head_dim` numbers of P
# bytes. With L layers:
#
# $$\text{bytes a token} = 2 \cdot L \cdot n_{kv} \cdot d_{head} \cdot P$$
#
# **Your turn**, for two models in 16 bit:
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
# As a function of three lines, beside the package's, which counts layer by layer:


# %%
from specdec_ref.arithmetic import kv_bytes_per_token, model_shape


def my_bytes_per_token(layers, kv_heads, head_dim, bytes_per_number=2):
    """Keys and values that one token leaves in all layers."""
    return 2 * layers * kv_heads * head_dim * bytes_per_number


for name in ("smollm2-135m", "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen3-4b"):
    shape = model_shape(name)
    attention = shape.layers[0].attention
    mine = my_bytes_per_token(len(shape.layers), attention.n_kv_heads, attention.head_dim)
    assert mine == kv_bytes_per_token(shape)
    print(
        f"{name:13} 2 x {len(shape.layers)} x {attention.n_kv_heads:2} x {attention.head_dim:3} x 2 = {mine:7,} bytes"
    )

# %% [markdown]
# Look at Qwen3-4B: its hidden size over its query heads is 2,560 / 32 = 80, but `head_dim` is 128. The config says so, and
# calculators that divide get it wrong.
#
# A formula is a claim about memory. So allocate, and compare: the reference model's cache here, and caches that
# transformers fills for tiny models of three kinds.

# %%
from specdec_ref.arithmetic import kv_bytes
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
# ## 4. MHA, GQA, MQA, MLA
#
# The number of *key/value* heads is where model builders save:
#
# - **MHA**, multi-head: every query head has its own keys and values.
# - **GQA**, grouped-query: several query heads share one. Llama-3-70B: 8 to one.
# - **MQA**, multi-query: all share a single one.
# - **MLA**, multi-head latent: each layer keeps one short vector a token (DeepSeek-V3: 512 numbers, and 64 for the
#   position), from which all heads' keys and values can be made again.
#
# Which saves more, do you think: MQA on Llama-3-70B, or MLA on DeepSeek-V3, a model of 671 billion weights?

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
expanded, latent = list(sizes.values())[-2:]
print(f"DeepSeek-V3: the latent takes 1/{expanded / latent:.0f} of expanded keys and values")
print("It costs arithmetic instead: a head's query meets 512 + 64 numbers a token, not 128 + 64.")
print(
    f"FLOP a query-key pair: {deepseek.layers[0].attention.flops_per_pair(absorbed=True):,} from the latent, ", end=""
)
print(f"{deepseek.layers[0].attention.flops_per_pair(absorbed=False):,} expanded")

# %% [markdown]
# That trade should sound familiar: decode has arithmetic to spare and too few bytes a second. MLA spends the one to save
# the other, as speculation does.
#
# Some models save along the text, too: with a **sliding window** a layer sees only the last W tokens and keeps no more.

# %%
models = ("llama-2-7b", "llama-3-8b", "mistral-7b-v0.1", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3")
last = {name: kv_bytes(model_shape(name), 2**17) / 1e9 for name in models}
course.show(
    course.growth_figure(models),
    alt="GB of cache against the context of one sequence, from 512 to 131,072 tokens, both logarithmic. At 131,072: "
    + "; ".join(f"{name} {gb:,.1f} GB" for name, gb in last.items())
    + ". Mistral's line becomes flat at its window of 4,096; Gemma's and gpt-oss's grow more slowly beyond theirs.",
)

# %% [markdown]
# ## 5. How many users fit?
#
# Memory that the weights leave is for caches. Say that 90% of it may be used:

# %%
from specdec_ref.arithmetic import accelerator, size_text

h100 = accelerator("h100-sxm")
print("eight H100s:", size_text(8 * h100.capacity))
print("weights of Llama-3-70B in 16 bit:", size_text(llama.weight_bytes()))

# %%
my_chats = None  # chats of 8,192 tokens that fit beside the weights

print(course.check("chats on eight H100s", my_chats))

# %%
from IPython.display import HTML

from specdec_ref.arithmetic import fit

print("GB a chat:", course.guess_text(my_guess_gb, kv_bytes(llama, 8192) / 1e9))
print("chats:    ", course.guess_text(my_guess_chats, fit(llama, h100, 8192, tp=8).sequences))
rows = course.users_rows(llama, "h100-sxm", 8, (1024, 2048, 8192, 32_768, 131_072))
HTML(course.table_html(("tokens of each user", *(f"users, cache in {kv}" for kv in course.KV_FORMATS)), rows))

# %% [markdown]
# FP8 doubles the users. INT8 does not quite, and 4 bits do not quadruple them: integer formats carry scales, which take room
# as well (fp8 here has one for a whole tensor). What fewer bits do to the text is lesson 10's question.
#
# First still, then yours to move. Try: 16 chips. Llama-3-70B has 8 key/value heads: what do 16 chips do with them? Then
# `llama-2-7b` with long contexts: when are the caches larger than the weights?

# %%
HTML(course.cache_html("llama-3-70b", "h100-sxm", chips=8, users=64, context=8192))

# %%
course.cache_explorer()

# %% [markdown]
# <details><summary>16 chips</summary>Each chip needs at least one key/value head, and there are 8: every head is held twice.
# The caches take twice the memory in all, though no chip holds more than before.</details>
# <details><summary>Llama-2-7B</summary>It has as many key/value heads as query heads: half a megabyte a token. Some tens of
# thousands of tokens, of one user or of many together, outweigh the model.</details>
#
# ## 6. The cache takes time, too
#
# A decode step reads the weights once for *all* users, but each user's cache for that user alone. So with enough users or
# enough text the caches are most of the reading, and then a larger batch no longer makes a token cheaper.

# %%
from specdec_ref.arithmetic import decode, verification

for batch in (1, 16, 64):
    shares = []
    for context in (1024, 8192, 32_768):
        work = decode(llama, context, batch)
        shares.append(f"{context:6,} tokens {100 * work.kv_read_bytes / work.bytes:3.0f}%")
    print(f"batch {batch:2}: caches' share of the bytes read: {', '.join(shares)}")
more = verification(llama, 5, 32_768, 64).bytes / decode(llama, 32_768, 64).bytes
print(f"batch 64, 32,768 tokens: a verification of 5 drafts reads {more:.3f} times the bytes of a plain step")

# %% [markdown]
# Speculation is another matter: the drafted tokens belong to *one* user and share one reading of that user's cache. So it
# can pay in large batches, too, if the texts are long (MagicDec, 2024).

# %% [markdown]
# ## 7. Reserved is not used
#
# So far each user took exactly what they needed. A simple server cannot do that: it does not know how long an answer will
# be, and needs one piece of memory. So it *reserves* for the longest: say 2,048 tokens. With lengths drawn as users'
# requests are (most short, some long), how much of that is ever used? (The mean lengths are published ones; how they
# scatter is an assumption of ours.)

# %%
shares = course.reserved_shares(max_len=2048)
names = {"max": "the longest allowed", "pow2": "next power of two", "oracle": "what it will need"}
course.show(
    course.reserved_figure(shares, names),
    alt="Share of reserved slots that hold a token in the end. "
    + "; ".join(f"reserving {names[p]}: {100 * s:.0f}%" for p, s in shares.items())
    + ". The last policy would have to know the future.",
)

# %%
print(f"reserved for the longest: {100 * (1 - shares['max']):.0f}% of the slots never hold a token.")
print(f"Of {course.users_rows(llama, 'h100-sxm', 8, [2048])[0][1]} users' reservations, ", end="")
print(f"{shares['max']:.0%} would have carried the same texts.")

# %% [markdown]
# And even what will be used lies empty until its token comes. "The next power of two" looks good here only because it is
# told the answer's length and rounds it. There is a way out that operating systems found long ago: do not reserve; hand out
# small blocks when they are needed, and keep a table of where they are. That is lesson 03.

# %% [markdown]
# ## 8. What the article says about caches

# %%
HTML(course.claims_html(8, 9, 10, 11, 40))

# %% [markdown]
# ## Check yourself
#
# **1. Why are queries not cached?**
#
# <details><summary>They change when more text follows</summary>They do not, no more than keys do. They are simply not
# needed again.</details>
# <details><summary>A token's query is used only when that token is new</summary>Yes. Later tokens ask with their own
# query, and look at old keys and values.</details>
#
# **2. A model goes from 32 key/value heads to 8, with 32 query heads as before. What becomes of the arithmetic of
# attention scores?**
#
# <details><summary>A quarter</summary>That is the *bytes*. Each of the 32 query heads still meets every cached token:
# only, four of them read the same key.</details>
# <details><summary>The same</summary>Yes. Fewer bytes for the same arithmetic: attention's own intensity is four times
# higher.</details>
#
# **3. A tool says "10.0" for a cache, another "10.7". Who is wrong?**
#
# <details><summary>The larger one, it counts overhead</summary>Perhaps, but look at the unit first: 10.0 GiB (of 2^30
# bytes) *are* 10.7 GB (of 10^9).</details>
# <details><summary>Perhaps nobody: GiB and GB</summary>Yes. `nvidia-smi` prints MiB and datasheets GB; they are 7%
# apart at this size.</details>
#
# **4. In a rejected draft, some tokens have already written keys and values. What has to happen?**
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
# - **vLLM** takes `gpu_memory_utilization` of the memory (0.9 by default), loads the weights, and gives the rest to blocks
#   of the cache; at start it prints how many tokens fit. `kv_cache_dtype="fp8"` doubles them; `max_model_len` limits one
#   sequence. **TensorRT-LLM** has `KvCacheConfig(free_gpu_memory_fraction=...)`.
# - With tensor parallelism each chip keeps its own heads. Beyond the number of key/value heads they are *replicated*, and
#   the sum grows.
# - `specdec kv --model llama-3-70b --context 8192 --chip h100-sxm --tp 8` prints section 5 for any model.

# %% [markdown]
# ## What to remember
#
# - A token leaves 2 x layers x key/value heads x head_dim x bytes behind. Key/value heads, not query heads.
# - With a cache a step passes one token; without one all of them, and the total is quadratic in passes, cubic in pairs.
# - GQA, MQA and MLA save bytes, windows cap them; the arithmetic stays or grows.
# - Caches are not shared by a batch: users and context are limited by memory, and by its bandwidth.
# - Reserving for the longest wastes most of it.
#
# **Problem set.** [ps02-kv-sizing](../exercises/ps02-kv-sizing/ps02-kv-sizing.ipynb), with a check below each part.
#
# **Exercises.** (a) Write `my_bytes_per_token` for a model with windows in some layers, and test it on `gemma-3-27b` with
# `kv_bytes`. (b) At which context are the caches of 32 users of Llama-3-8B as large as its weights? By hand, then by code.
# (c) `SmolLM2` in section 2: measure up to 1,024 tokens. Which power of the length does the time without a cache follow?
#
# **Sources.** Shazeer 2019, MQA (arXiv 1911.02150); Ainslie et al. 2023, GQA (arXiv 2305.13245); DeepSeek-AI 2024, MLA (arXiv
# 2405.04434); Chen et al. 2024, MagicDec (arXiv 2408.11049); Kwon et al. 2023, PagedAttention (arXiv 2309.06180), whose
# published mean lengths the last picture uses.
