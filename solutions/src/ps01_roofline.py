# %% [markdown]
# # Problem set 01 · Roofline
#
# *60 minutes, 20 points. Follows lesson 01. No GPU, no network, no model is loaded.*
#
# By the end you can count what a pass of a language model computes and moves; read a datasheet without falling into
# its traps; say how long a pass takes at least, what a verification costs, and at which batch it stops being cheap.
#
# | part | | minutes | points |
# |---|---|---|---|
# | 1 | The work of a pass ★ | 10 | 3 |
# | 2 | A datasheet, and a clock ★ | 10 | 3 + 1 |
# | 3 | The time of a pass ★★ | 15 | 2 + 1 + 2 |
# | 4 | The batch that changes everything ★★★ | 12 | 3 |
# | 5 | Find the bug ★★ | 8 | 1 + 2 |
# | 6 | In words ★★ | 5 | 2 |
#
# Replace each line `raise NotImplementedError(...)` by your code. The cell below it checks your code, with other
# numbers each time, and says what is wrong. Run it as often as you like. Hints open one at a time.

# %% locked="setup"
from specdec_course import new_figure, show
from specdec_course.checks import ps01_roofline as checks
from specdec_course.checks.ps01_roofline import Chip, Model

# Keys and values are kept in 16 bits, as the weights are.
llama = Model(weights=70_553_706_496, bytes_per_weight=2, kv_bytes=327_680)  # Llama-3-70B
small = Model(weights=134_515_008, bytes_per_weight=2, kv_bytes=23_040)  # SmolLM2-135M
h100 = Chip(rate=989e12, bandwidth=3.35e12)

# %% [markdown]
# Two kinds of things go through this notebook. Both are named tuples, so `llama.weights` gives a number.
#
# | | field | meaning |
# |---|---|---|
# | `Model` | `weights` | how many weights the model has |
# | | `bytes_per_weight` | bytes that one weight takes in memory: 2 in 16 bits, 0.5625 in 4 bits with scales |
# | | `kv_bytes` | bytes of keys and values that one token leaves in the cache, over all layers |
# | `Chip` | `rate` | what it computes at most, in FLOP/s, dense |
# | | `bandwidth` | what it moves between memory and arithmetic units at most, in bytes/s |

# %% [markdown]
# ## 1. The work of a pass
#
# ★ · *10 minutes · 3 points*
#
# A pass takes in `n_tokens` new tokens of each of `batch` sequences. Each sequence has `context` earlier tokens,
# whose keys and values are in its cache already. The three passes of the lesson differ in these numbers only:
#
# | pass | `n_tokens` | `context` |
# |---|---|---|
# | prefill | the whole prompt | 0 |
# | decode | 1 | the text so far |
# | verify | gamma + 1 | the text so far |
#
# Count like this:
#
# - **FLOP.** Each new token meets each weight once, and is multiplied and added: 2 FLOP. (Attention's own arithmetic
#   is left out here: with contexts of some thousand tokens it is a small part.)
# - **Bytes, weights.** They are read once in a pass, for all tokens of all sequences.
# - **Bytes, caches.** Each sequence has its own. The keys and values of its `context` tokens are read once, and those
#   of its `n_tokens` new tokens are written.
#
# Return plain numbers.


# %% solve="work"
def work(model, n_tokens, batch, context):
    """What one pass computes, and what it moves between memory and arithmetic units.

    model: a Model. n_tokens: new tokens of each sequence. batch: sequences. context: cached tokens of each sequence.
    Returns the pair (FLOP, bytes).
    """
    ### BEGIN SOLUTION
    tokens = batch * n_tokens
    flop = 2 * model.weights * tokens
    cache = model.kv_bytes * (batch * context + tokens)
    return flop, model.weights * model.bytes_per_weight + cache
    ### END SOLUTION


# %% test="work" points=3
checks.work(work, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary>How many new tokens are in the pass, over all sequences? The FLOP depend on that
# number and on the weights, on nothing else.
# <details><summary>Hint 2</summary>Three things move: the weights; the cached tokens of all sequences, read; the new
# tokens of all sequences, written. Only the first does not depend on the batch.
# </details></details>
#
# With it you can place the three passes. **Before you run the cell:** which of them will have more than 295
# FLOP/byte, the ridge of an H100?

# %% tags=["raises-exception"]
for name, n_tokens, context in (("prefill of 1,024", 1024, 0), ("decode", 1, 1024), ("verify 5 drafts", 6, 1024)):
    flop, nbytes = work(llama, n_tokens, batch=1, context=context)
    print(f"{name:16} {flop / 1e12:8.3f} TFLOP {nbytes / 1e9:8.2f} GB {flop / nbytes:8.1f} FLOP/byte")

# %% [markdown]
# ## 2. A datasheet, and a clock
#
# ★ · *10 minutes · 3 points and 1 point*
#
# Here are rows as vendors print them.
#
# | `name` | `tflops` | `with_sparsity` | `bandwidth` | `unit` |
# |---|---|---|---|---|
# | `"H100 SXM"` | 1979.0 | True | 3.35 | `"TB/s"` |
# | `"A100 SXM"` | 312.0 | False | 2039 | `"GB/s"` |
# | `"TPU v5e"` | 197.0 | False | 800 | `"GiB/s"` |
#
# Two traps are in them.
#
# - A figure *with sparsity* is reached only if two of every four weights are zero, and the units skip those. The
#   weights of our models are not like that: they are *dense*, and get half of the figure.
# - TB and GB are powers of ten: $10^{12}$ and $10^9$ bytes. A GiB is a power of two: $2^{30}$ bytes.
#
# Write a function that reads a row, and one for the ridge: the FLOP/byte at which memory and arithmetic take equally
# long. A row is a dict with the keys above; `unit` is one of the three that you see.


# %% solve="datasheet"
def datasheet(row):
    """The Chip that a datasheet's row describes: Chip(rate in dense FLOP/s, bandwidth in bytes/s)."""
    ### BEGIN SOLUTION
    rate = row["tflops"] * 1e12 / (2 if row["with_sparsity"] else 1)
    return Chip(rate, row["bandwidth"] * {"TB/s": 1e12, "GB/s": 1e9, "GiB/s": 2**30}[row["unit"]])
    ### END SOLUTION


def ridge(chip):
    """FLOP/byte from which on work on this chip is bound by arithmetic."""
    ### BEGIN SOLUTION
    return chip.rate / chip.bandwidth
    ### END SOLUTION


# %% test="datasheet" points=3
checks.datasheet(datasheet, ridge, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary>Sparsity is about arithmetic. Which of the two numbers does it change?
# <details><summary>Hint 2</summary>A dict from the unit to its bytes saves you three ifs: <code>{"TB/s": 1e12,
# ...}[row["unit"]]</code>.
# </details></details>

# %% tags=["raises-exception"]
rows = [
    {"name": "H100 SXM", "tflops": 1979.0, "with_sparsity": True, "bandwidth": 3.35, "unit": "TB/s"},
    {"name": "A100 SXM", "tflops": 312.0, "with_sparsity": False, "bandwidth": 2039, "unit": "GB/s"},
    {"name": "TPU v5e", "tflops": 197.0, "with_sparsity": False, "bandwidth": 800, "unit": "GiB/s"},
]
for row in rows:
    print(f"{row['name']:8} ridge {ridge(datasheet(row)):5.0f} FLOP/byte")

# %% [markdown]
# **A clock.** You measure a program, divide the bytes (or FLOP) that it achieved a second by the chip's peak, and
# call that its *utilisation*. Nothing can do more than its peak. So a utilisation above 1 says that one of your
# numbers is wrong: the peak, the count, or the clock. A good function gives the number back all the same, and *warns*
# with `warnings.warn`: then the caller sees it, and a program can catch it. (An error would stop the measurement; a
# printed line gets lost.)


# %% solve="utilisation"
def utilisation(achieved, peak):
    """The share of `peak` that was achieved, both in the same unit. Warns if it is above 1."""
    ### BEGIN SOLUTION
    import warnings

    share = achieved / peak
    if share > 1:
        warnings.warn(f"a utilisation of {share:.2f} is impossible: check peak, count and clock", stacklevel=2)
    return share
    ### END SOLUTION


# %% test="utilisation" points=1
checks.utilisation(utilisation, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary><code>import warnings</code>, then <code>warnings.warn("a sentence")</code>, and
# then return the share as ever.
# </details>

# %% [markdown]
# ## 3. The time of a pass
#
# ★★ · *15 minutes · 2, 1 and 2 points*
#
# First, one pass. Reading and computing happen at the same time at best. How long does it take at least, and which of
# the two sets that?


# %% solve="pass_time"
def pass_time(flop, nbytes, chip):
    """The least time of a pass that computes `flop` FLOP and moves `nbytes` bytes.

    Returns the pair (seconds, "memory") or (seconds, "compute"), by what takes longer; "compute" if both take equally
    long.
    """
    ### BEGIN SOLUTION
    memory, compute = nbytes / chip.bandwidth, flop / chip.rate
    return (memory, "memory") if memory > compute else (compute, "compute")
    ### END SOLUTION


# %% test="pass_time" points=2
checks.pass_time(pass_time, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Seconds of memory are bytes over bytes/s. What are seconds of arithmetic?
# <details><summary>Hint 2</summary>The pass ends when both are done. If they run side by side, when is that?
# </details></details>
#
# Now two questions that it answers. The functions below get `work` as their first argument. It is called as yours is:
# `work(model, n_tokens, batch, context)`. When your code is checked it is one that is right, so a slip in part 1
# costs you nothing here. A slip in `pass_time` does, if you call it: put it right first.
#
# - **How fast can plain decoding be?** A step gives each sequence of the batch one token. Count the tokens of all
#   sequences.
# - **What does a verification cost?** Count it in plain steps: the time of a pass that checks `gamma` drafts of each
#   sequence, over the time of a decode step of the same batch, behind the same context.


# %% solve="tokens_per_second"
def tokens_per_second(work, model, chip, batch, context):
    """New tokens a second that plain decoding can give at most, over all `batch` sequences."""
    ### BEGIN SOLUTION
    seconds, _ = pass_time(*work(model, 1, batch, context), chip)
    return batch / seconds
    ### END SOLUTION


# %% test="tokens_per_second" points=1
checks.tokens_per_second(tokens_per_second, points=1)


# %% solve="verify_cost"
def verify_cost(work, model, chip, gamma, batch, context):
    """What checking `gamma` drafts of each sequence costs, in plain decode steps: 1 would be free."""
    ### BEGIN SOLUTION
    check, _ = pass_time(*work(model, gamma + 1, batch, context), chip)
    plain, _ = pass_time(*work(model, 1, batch, context), chip)
    return check / plain
    ### END SOLUTION


# %% test="verify_cost" points=2
checks.verify_cost(verify_cost, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Both are one or two calls of <code>work</code>, each handed on to
# <code>pass_time</code>: <code>flop, nbytes = work(...)</code>.
# <details><summary>Hint 2</summary>How many tokens of a sequence does a pass take in that checks gamma drafts? Look
# at the table in part 1.
# </details></details>
#
# Look at what you have. **Your guess first:** from a batch of 1 to one of 256, what happens to the tokens a second,
# and what to the price of a verification?

# %% tags=["raises-exception"]
for batch in (1, 4, 16, 64, 256):
    speed = tokens_per_second(work, llama, h100, batch, context=1024)
    price = verify_cost(work, llama, h100, 5, batch, context=1024)
    print(f"batch {batch:3}: at most {speed:8,.0f} tokens a second, a verification of 5 drafts costs {price:.2f} steps")

# %% [markdown]
# (One H100 cannot hold Llama-3-70B in 16 bits. Two that share the work evenly would take half the time for each pass,
# and the prices would be the same.)

# %% [markdown]
# ## 4. The batch that changes everything
#
# ★★★ · *12 minutes · 3 points*
#
# With a larger batch more tokens share the reading of the weights. At some batch the arithmetic takes as long as the
# memory: from there on the pass is compute-bound, and each further token costs its time. Which batch is it? Sometimes
# there is none, since each sequence brings a cache of its own to read.
#
# You may search for it or solve for it. Where there is such a batch in the checks, it is below 10,000. The
# `work` that your function gets may be called a million times; then the check says that your search does not end.


# %% solve="compute_bound_batch"
def compute_bound_batch(work, model, chip, n_tokens, context):
    """The smallest batch at which a pass over `n_tokens` tokens of each sequence is compute-bound.

    Compute-bound: the arithmetic takes at least as long as the memory. work: as in part 3.
    Returns a whole number, 1 or more; None if there is no such batch, however large.
    """

    ### BEGIN SOLUTION
    def computes(batch):
        flop, nbytes = work(model, n_tokens, batch, context)
        return flop / chip.rate >= nbytes / chip.bandwidth

    # More sequences share the weights and all else grows in proportion: once compute-bound, always compute-bound.
    return next((batch for batch in range(1, 10_001) if computes(batch)), None)
    ### END SOLUTION


# %% test="compute_bound_batch" points=3
checks.compute_bound_batch(compute_bound_batch, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary>Write a small function that says whether a given batch is compute-bound. Then try
# 1, 2, 3 and so on.
# <details><summary>Hint 2</summary>If you solve for it: the weights take W/bandwidth seconds once, and each sequence
# adds a fixed time to the arithmetic and a fixed time to the memory. When does the arithmetic never catch up?
# <details><summary>Hint 3</summary>A batch is whole. Round up, and never below 1.
# </details></details></details>
#
# What you built, in one table: where the batch of plain decoding turns, and the batch of a verification of 5 drafts.

# %% tags=["raises-exception"]
# stop_endless hands on what your work says, and raises an error after a million calls, so that no search runs forever.
print(f"{'context':>7} {'decode':>8} {'verify 5':>9}")
for context in (0, 256, 512, 1024, 2048, 4096):
    plain, check = (compute_bound_batch(checks.stop_endless(work), llama, h100, n, context) for n in (1, 6))
    print(f"{context:7,} {plain or 'never':>8} {check or 'never':>9}")

# %% [markdown]
# The package's `compute_bound_batch` gives 453 at a context of 512, and 965 at 1,024: a little smaller than yours. It
# counts attention's own arithmetic as well, which we left out in part 1, and with it the arithmetic catches up sooner.
# Both take the pass as one piece of work. The lesson's section 4 shows what that leaves out: attention and the linear
# layers run one after the other, so the linear layers turn compute-bound at 296 sequences, whatever the context. Where
# this table says "never", read: attention's waiting is never shorter than all the arithmetic together.
#
# And as a picture: the price of a verification against the batch, for three contexts. Where a line leaves 1, the
# slack that speculation lives on is used up. (Take `small` for `llama`, another chip or more drafts, and look again.)

# %% tags=["raises-exception"]
batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
prices = {s: [verify_cost(work, llama, h100, 5, b, s) for b in batches] for s in (128, 1024, 8192)}
figure, (ax,) = new_figure()
for context, line in prices.items():
    ax.plot(batches, line, label=f"context {context:,}")
ax.set_xscale("log", base=2)
ax.set_xlabel("batch")
ax.set_ylabel("price of checking 5 drafts, in plain steps")
ax.legend()
show(
    figure,
    alt="; ".join(
        f"context {s:,}: {line[0]:.2f} steps at batch 1, {line[-1]:.2f} at 512" for s, line in prices.items()
    ),
)

# %% [markdown]
# ## 5. Find the bug
#
# ★★ · *8 minutes · 1 point and 2 points*
#
# A colleague wants to know how many drafts can be checked *for free*: in no more time than a plain step takes. To
# keep it simple they leave the caches out, so only the weights are read. They tried it on one sequence, found it
# right, and put it into a server that runs batches.


# %% locked="colleague"
def colleagues_free_drafts(chip, batch, bytes_per_weight):
    """The largest gamma for which checking gamma drafts of each of `batch` sequences takes no longer than a plain step.

    Caches are left out: a pass reads the weights, and nothing else moves. 0 where no draft is free.
    """
    flop_per_byte = chip.rate / chip.bandwidth
    tokens = flop_per_byte * bytes_per_weight / 2  # in a pass whose arithmetic takes as long as its reading
    return max(0, int(tokens) - batch)


print(colleagues_free_drafts(Chip(989e12, 3.35e12), batch=1, bytes_per_weight=2), "drafts are free on an H100")

# %% [markdown]
# That number is right. Find an input for which the function is wrong: a chip, a batch, and the bytes of a weight. Any
# will do. Take paper: how many tokens are in the pass?


# %% solve="counterexample"
def counterexample():
    """Where colleagues_free_drafts is wrong: the triple (Chip(rate, bandwidth), batch, bytes_per_weight)."""
    ### BEGIN SOLUTION
    return Chip(989e12, 3.35e12), 64, 2
    ### END SOLUTION


# %% test="counterexample" points=1
checks.counterexample(counterexample, points=1)

# %% [markdown]
# Now write it as it should be. The docstring above says what is asked for, and it is right.


# %% solve="free_drafts"
def free_drafts(chip, batch, bytes_per_weight):
    """The largest gamma for which checking gamma drafts of each of `batch` sequences takes no longer than a plain step.

    Caches are left out: a pass reads the weights, and nothing else moves. 0 where no draft is free. A whole number.
    """
    ### BEGIN SOLUTION
    tokens = chip.rate / chip.bandwidth * bytes_per_weight / 2
    return max(0, int(tokens / batch) - 1)
    ### END SOLUTION


# %% test="free_drafts" points=2
checks.free_drafts(free_drafts, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Each of the <code>batch</code> sequences has its own drafts in the pass, and one
# more token of its own. Write the number of tokens in the pass as a product.
# <details><summary>Hint 2</summary>batch x (gamma + 1) may be as large as <code>tokens</code>, not larger. Which
# gamma is the largest?
# <details><summary>Hint 3</summary>If <code>batch</code> alone is more than <code>tokens</code>, a plain step is
# compute-bound already. Then every draft costs time.
# </details></details></details>

# %% [markdown]
# ## 6. In words
#
# ★★ · *5 minutes · 2 points, marked by hand*
#
# A salesman writes: "Our new chip has 4,000 TFLOP/s *(with sparsity)*, four times your H100's 989, at the same 3.35
# TB/s. Verification of drafts is compute-bound, so your speculative decoding for one user will run up to four times
# as fast."
#
# What is wrong with that? And is there anything that the new chip *would* do better? Answer in three to six
# sentences, with a number or two from above. (989 TFLOP/s is the H100's dense figure.)

# %% [markdown] written="salesman" points=2
# <!-- BEGIN SOLUTION -->
# Verifying a few drafts for one user has about 6 FLOP/byte in 16 bits (gamma = 5), and the ridge of the H100 is 295:
# the pass is bound by memory, not by arithmetic. Its time is bytes over bandwidth, and the bandwidth is the same, so
# one user notices nothing. The comparison is wrong as well: 4,000 TFLOP/s with sparsity are 2,000 dense, which is
# twice the 989, not four times. What gets better is work to the right of the ridge: long prompts, large batches, up
# to twice as fast. And the ridge moves from 295 to about 597 FLOP/byte, so larger batches, or more drafts, can be
# verified before each token costs its time.
#
# **Marking.** 1 point: verification for one user is memory-bound (intensity about gamma + 1, far below the ridge), so
# the same bandwidth means the same time. Half of it without any number. 1 point, in halves: the sparse figure counts
# half (2,000 dense, or "the weights are not sparse"); something that does gain: prefill, large batches, more free
# drafts because the ridge moves right. Do not take off for other words. An answer that keeps "verification is
# compute-bound" gets at most 0.5.
# <!-- END SOLUTION -->

# %% [markdown]
# ## What to take along
#
# - FLOP grow with the tokens in a pass, bytes hardly: weights are read once.
# - Halve a rate "with sparsity"; look at the unit of a bandwidth; distrust a utilisation above 1.
# - The longer of memory and arithmetic counts. Left of the ridge a verification costs about one step. It rises as its
#   own intensity passes the ridge, and costs about gamma + 1 steps once a plain step alone is right of it.
# - The product batch x (gamma + 1) decides on which side you are; caches push to the left, for they are not shared.
