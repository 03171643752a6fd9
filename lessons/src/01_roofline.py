# %% [markdown]
# # 01 · Roofline: the physics of inference
#
# *60 minutes. You need lesson 00, and a pocket calculator in your head. No GPU.*
#
# Afterwards you can say what bounds a language model on a chip, memory or arithmetic, and how fast it can be at most; you
# can place prefill, decode and verification on any chip's roofline; and you have done it for your own machine, and
# checked the prediction with a clock.

# %% [markdown]
# ## A question first
#
# A model with 70 billion weights in 16 bit writes text for *one* user on an NVIDIA H100, a chip that can do 989 trillion
# operations a second and reads its memory at 3.35 terabytes a second. The software is perfect. How many tokens a second
# can it write at most? And what part of the time do the arithmetic units have something to do?

# %%
my_guess_tokens_per_second = 200
my_guess_busy_percent = 50

# %% [markdown]
# ## 1. By hand
#
# To write one token, the chip has to read every weight once, and with each weight do one multiplication and one addition:
# 2 FLOP. (*FLOP* is an operation on floating-point numbers; FLOP/s is how many in a second.) Both take time. At best they
# happen at the same time, and then the slower one decides.

# %%
weights, bytes_per_weight = 70e9, 2
bandwidth, rate = 3.35e12, 989e12  # bytes/s and FLOP/s, from the H100's datasheet

seconds_to_read = weights * bytes_per_weight / bandwidth
seconds_to_compute = 2 * weights / rate
print(f"reading {seconds_to_read * 1e3:.2f} ms, computing {seconds_to_compute * 1e3:.2f} ms")

# %%
import specdec_course as course

seconds = max(seconds_to_read, seconds_to_compute)
print("tokens a second at most: ", course.guess_text(my_guess_tokens_per_second, 1 / seconds))
print("percent of the time busy:", course.guess_text(my_guess_busy_percent, 100 * seconds_to_compute / seconds))

# %% [markdown]
# So the chip waits for its memory nearly all of the time. This one line of arithmetic is the reason for batching, for
# quantisation, for grouped queries, and for speculative decoding.
#
# There is a catch in the question, though. An H100 has 80 GB of memory. **Your turn:** how many of them does it take to
# hold the weights, and how many tokens a second are possible then, if the chips share the reading evenly?

# %%
my_chips = None
my_tokens_per_second = None

print(course.check("chips for 70B", my_chips))
print(course.check("70B on those chips", my_tokens_per_second))

# %% [markdown]
# ## 2. Two numbers decide
#
# Divide the operations of a piece of work by the bytes that it moves: that is its **arithmetic intensity**, in FLOP/byte.
# Divide a chip's operations a second by its bytes a second: that is the chip's **ridge**, in FLOP/byte, too. Work to the
# left of the ridge is bound by memory, work to the right of it by arithmetic.

# %%
my_intensity = None  # FLOP/byte of decoding with 16-bit weights
my_ridge = None  # FLOP/byte of the H100

print(course.check("intensity of decode", my_intensity))
print(course.check("ridge of an H100", my_ridge))

# %% [markdown]
# What speed can a piece of work reach? The smaller of two limits, and that is the whole roofline (Williams, Waterman and
# Patterson, 2009):


# %%
def my_attainable(intensity):
    """FLOP/s that work of this intensity can reach at most."""
    return min(rate, intensity * bandwidth)


for intensity in (1, 10, 100, 1000):
    reached = my_attainable(intensity)
    print(f"{intensity:5} FLOP/byte: {reached / 1e12:6.1f} TFLOP/s, {100 * reached / rate:5.1f}% of the peak")

# %% [markdown]
# The package has the same function, and a table of chips with the source and date of every figure. Do both agree?

# %%
from specdec_ref.arithmetic import accelerator, attainable

h100 = accelerator("h100-sxm")
assert all(abs(my_attainable(i) / attainable(i, h100) - 1) < 1e-12 for i in (0.1, 1, 100, 295, 296, 1e4))
print(f"{h100.label}: {h100.rate() / 1e12:,.0f} TFLOP/s dense, {h100.bandwidth / 1e12} TB/s, ridge {h100.ridge():.0f}")
print(h100.source, h100.date)

# %% [markdown]
# ## 3. Prefill, decode, verify
#
# A model runs three kinds of passes. **Prefill** takes in a whole prompt. **Decode** takes in one token. **Verification**
# takes in the drafted tokens and one more: gamma + 1. They read the same weights, but do not do the same arithmetic with
# them: *N tokens in a pass make N times the operations, with the same reading*. So an intensity of about 1 becomes about N.
#
# Now with a real model, counted matrix by matrix, the key-value cache included. Before you run it: which of the three
# passes will be bound by arithmetic?

# %%
from IPython.display import HTML

works = course.passes("llama-3-70b", batch=1, context=1024, gamma=5, prompt=1024)
head = ("pass", "FLOP/byte", "ms at least", "bound by", "arithmetic units at work")
HTML(course.table_html(head, course.passes_rows(h100, works)))

# %%
words = "; ".join(f"{name} has {work.intensity:,.1f} FLOP/byte" for name, work in works.items())
course.show(
    course.passes_figure("llama-3-70b", "h100-sxm"),
    alt=f"Roofline of an H100 with ridge {h100.ridge():.0f} FLOP/byte, log-log. {words}. Passes left of the ridge lie on "
    "the slope, where memory is the bound; those to the right lie under the flat roof.",
)

# %% [markdown]
# This picture is worth keeping. Climb the slope from *decode* to *verify*: the pass does six times the arithmetic, and
# takes hardly longer, because it is still **left of the ridge**. That is all the magic there is in a cheap verification:
# not that the pass becomes compute-bound, but that it does *not*.

# %%
from specdec_ref.arithmetic import step_time

plain, checking = (step_time(works[name], h100).overlapped_s for name in ("decode", "verify 5"))
print(f"a pass that checks 5 drafts takes {checking / plain:.4f} plain steps, and does ", end="")
print(f"{works['verify 5'].flops / works['decode'].flops:.2f} times the arithmetic")

# %% [markdown]
# ## 4. Move the points
#
# The picture above is the still view. Below, try to answer by moving:
#
# 1. At which batch does decode cross the ridge? Then what does a verification cost?
# 2. Now raise the context. Why does the batch not help any more?
# 3. Set the weights to 4 bits. Where do the points go, and what happens to the time?
# 4. Take an L4 instead. Is its ridge further right or left, and what does that say about *its* spare arithmetic?

# %%
course.passes_explorer()

# %% [markdown]
# <details><summary>1. The batch at which decode crosses the ridge</summary>The line below the table names it. From there
# on every further token takes its time: a verification of 5 drafts then costs nearly 6 steps.</details>
# <details><summary>2. Longer context</summary>All points move left, and at some context no batch crosses the ridge any
# more. The next cell says why.</details>
# <details><summary>3. Weights in 4 bits</summary>The points move right, nearly four times as far from zero, and the steps
# get shorter in the same measure: the same operations, fewer bytes.</details>
# <details><summary>4. An L4</summary>Its ridge lies further right: for each byte that it reads it could compute more. It
# is the slower chip, and the one with more arithmetic to spare.</details>

# %% [markdown]
# The second answer surprises many. Weights are shared by all sequences of a batch, but each sequence brings its *own*
# key-value cache, and reading that does not get cheaper by company. Here is where decode turns compute-bound, if ever:

# %%
from specdec_ref.arithmetic import compute_bound_batch, decode, model_shape

llama = model_shape("llama-3-70b")
for context in (512, 1024, 2048, 4096, 8192, 32_768):
    batch = compute_bound_batch(llama, h100, context=context)
    limit = decode(llama, context, 1 << 20).intensity
    print(f"context {context:6,}: batch {batch or 'never':>6}; FLOP/byte with any batch stays below {limit:,.0f}")

# %% [markdown]
# ## 5. Your machine
#
# Datasheets are for chips that others own. What is the roofline of the machine in front of you? We measure it as decoding
# would use it:
#
# - **Bandwidth:** many matrices, half a gigabyte in all so that no cache holds them, each multiplied by a single token's
#   vector. How many bytes of weights a second?
# - **Matrix rate:** the product of two large matrices, which stay in the caches. How many FLOP a second?
#
# For each number format and for one and all threads, in turns, taking the best round: whatever else runs on a machine can
# only take away.

# %%
from specdec_ref.measure import measure_machine

machine = measure_machine(seconds=8, nbytes=2**29)
head = ("format", "threads", "GB/s", "GFLOP/s", "ridge, FLOP/byte", "the rounds were")
print(machine.name, "- measured on this machine, now")
HTML(course.table_html(head, course.machine_rows(machine)))

# %%
from specdec_ref import load_model
from specdec_ref.measure import SHORT_NAMES

model = load_model(weights="full")
dtype = SHORT_NAMES[model.dtype]
mine = machine.accelerator(dtype)
print(f"Models load in {dtype} here. Ridge of this machine in {dtype}: {mine.ridge(dtype):.0f} FLOP/byte, ", end="")
print(f"of an H100 {h100.ridge():.0f}.")
print(f"An H100 reads {h100.bandwidth / mine.bandwidth:,.0f} times as fast, and computes ", end="")
print(f"{h100.rate() / mine.rate(dtype):,.0f} times as fast.")

# %% [markdown]
# Now put a real layer under your own roof: one matrix, with more and more tokens in the pass. Does it climb the slope, as
# the theory says?
#
# From here on we use a single thread, and the clock of that thread, which stands still while the system lets others run:
# so it works on a busy machine, too.

# %%
import time

import torch

from specdec_ref.measure import WeightStream

torch.set_num_threads(1)
thread = machine.accelerator(dtype, threads=1)
stream = WeightStream(model.dtype, nbytes=2**29, clock=time.thread_time)
points = course.layer_points(stream, (1, 4, 16, 64, 256))
course.show(
    course.roofline_figure([thread, h100], points, dtype if dtype in h100.rates else None),
    alt="Rooflines of one thread of this machine and of an H100, log-log, with one linear layer measured here: "
    + "; ".join(f"{p.label} at {p.intensity:.1f} FLOP/byte reaches {p.rate / 1e9:,.0f} GFLOP/s" for p in points),
)

# %%
print(course.layer_verdict(points, thread, dtype))

# %% [markdown]
# Points may lie below the roof: a product of a few tokens uses the arithmetic units badly, even where memory would
# allow more. A roofline says what *cannot* be beaten. It does not promise that software gets there.

# %% [markdown]
# ## 6. Predict a real model, then measure it
#
# SmolLM2 has to read all its weights for a token, as any model. You know how many bytes that is, and how many a second
# come in. But a small model has a second cost: the framework. Python, the calls into PyTorch, hundreds of tiny
# operations: on a large model they hide, here they don't. So we measure them apart, with a model of *the same graph but
# 64 wide*, which has hardly any weights. (Before each of its layers we read other weights and do not count that time: in
# the real model, too, the weights push everything else out of the caches.)
#
# $$T_\text{predicted} = \frac{\text{bytes}}{\text{bandwidth}} + T_\text{overhead}$$
#
# Nothing in it knows how long the real step takes. Your guess first: what part of a step of SmolLM2 is overhead?

# %%
my_guess_overhead_percent = 10

# %%
from specdec_ref.measure import decode_times

times = decode_times(model, rounds=10, clock=time.thread_time)
HTML(course.table_html(("one step, one thread, on this machine, now", ""), course.decode_rows(times)))

# %%
import statistics

print(course.decode_verdict(times))
overhead_percent = 100 * statistics.median(o / m for o, m in zip(times.overheads, times.measured))
print("overhead, percent of a step:", course.guess_text(my_guess_overhead_percent, overhead_percent))

# %% [markdown]
# What does a verification cost then? The roofline's answer is: the bytes stay the same, the operations grow, the larger
# time counts. With the overhead added, here is the prediction for passes over n tokens, beside the measurement.

# %%
from specdec_ref.measure import pass_seconds, relative_cost

cost = relative_cost(pass_seconds(model, (1, 2, 4, 8, 16), context=64, repeats=6, clock=time.thread_time))
predicted = course.predicted_pass_cost(model, times, thread.rate(dtype), cost)
course.show(
    course.pass_cost_figure(cost, predicted),
    alt="Time of one pass over n tokens, in passes over one token: "
    + "; ".join(f"n={n}: measured {c:.2f}, predicted {predicted[n]:.2f}" for n, c in cost.items()),
)

# %%
worst = max(cost, key=lambda n: abs(cost[n] / predicted[n] - 1))
print(f"largest gap: n = {worst}, measured {cost[worst]:.2f}, predicted {predicted[worst]:.2f}")
print(
    f"16 tokens in one pass cost {cost[16]:.1f} plain passes: speculation "
    + ("has room here." if cost[16] < 8 else "has little room here, and needs very good drafts.")
)

# %% [markdown]
# Where the measured line runs above the predicted one, the roofline is too kind: kernels for a few tokens do not reach
# the matrix rate of large products, and attention adds work of its own. Lesson 06 therefore predicts speedups with the
# *measured* curve; the roofline is for chips that you cannot measure.

# %% [markdown]
# ## 7. What the article gets wrong, and why it matters
#
# This course grew out of an article on speculative decoding. Its figures are kept as data, each with the computation
# that settles it. These belong to the roofline:

# %%
HTML(course.claims_html(3, 4, 6, 7, 14, 32, 39))

# %% [markdown]
# Two of these errors cost real money. A peak *with sparsity* (look for the asterisk in datasheets) doubles the ridge on
# paper, and all utilisation figures become half of what they are. And if you believe that verification is compute-bound,
# you will look for more TFLOP/s where only bandwidth, or fewer bytes, would help.

# %% [markdown]
# ## Check yourself
#
# **1. You keep the weights in 4 bits instead of 16, and the arithmetic in 16 bit. What happens to decode on the
# roofline?**
#
# <details><summary>It moves left: less work</summary>The operations stay the same: each weight is still multiplied and
# added. Only the bytes shrink, and the bytes are below the fraction line.</details>
# <details><summary>It moves right, and each step takes little more than a quarter of the time</summary>Yes, as long as
# it stays left of the ridge. The slack that speculation would use is spent in part: nearly four times the intensity, and
# so nearly four times nearer to the ridge.</details>
# <details><summary>The ridge moves</summary>The ridge belongs to the chip and to the format that it *multiplies* in. That
# did not change.</details>
#
# **2. A chip gets a new version with twice the FLOP/s and the same bandwidth. What does one user who decodes notice?**
#
# <details><summary>Twice the speed</summary>Only work on the flat roof gets faster: long prompts, large batches. One
# user's decode waits for memory.</details>
# <details><summary>Nothing, in decode</summary>Yes. But the ridge has moved right: more drafted tokens can be checked for
# free.</details>
#
# **3. With 64 users in a batch, 1,024 tokens of context each, on H100s: does a verification of 5 drafts still cost about one step?**
#
# <details><summary>Yes, the weights are still read once</summary>The reading stays. But 64 x 6 = 384 tokens are in
# flight, and with them the arithmetic passes the ridge. Try it above: batch 64, gamma 5.</details>
# <details><summary>No, it begins to cost</summary>Yes: the pass has crossed the ridge, and every further token adds time.
# That is why speculation fades in a busy server (lesson 13).</details>

# %% [markdown]
# ## In production
#
# - **vLLM** caps the tokens of a pass with `max_num_batched_tokens` and the sequences with `max_num_seqs`, and mixes
#   pieces of prompts into decode passes (*chunked prefill*): arithmetic that comes free with a reading. **TensorRT-LLM**
#   has `max_num_tokens` and `max_batch_size` for the same.
# - **transformers** loads weights in fewer bits with `quantization_config=`; vLLM has `quantization=`. Both shorten the
#   reading.
# - **gpt-fast** prints the bandwidth that a generation achieved. Over the chip's peak that is *MBU*, model bandwidth
#   utilisation; lesson 12 measures it.
# - **Nsight Compute** draws a roofline for every kernel of a GPU program.
# - `specdec roofline --model llama-3-70b --chip h100-sxm --tp 2` prints section 3 for any model and chip.

# %% [markdown]
# ## What to remember
#
# - Time at least: the larger of bytes / bandwidth and FLOP / rate.
# - Intensity of a pass is about its number of tokens, in 16 bit; the ridge of a datacentre chip is in the hundreds.
# - Decode lies far left. Verification climbs the slope and stays left: that is why it is cheap.
# - Batching climbs the same slope, so it competes with speculation for the same slack; caches are not shared.
# - A roofline is a limit. Measure before you promise, and count the framework's overhead apart.
#
# **Problem set.** [ps01-roofline](../exercises/ps01-roofline/ps01-roofline.ipynb), with a check below each part.
#
# **Exercises.** (a) Find the chip in the table on which 16-bit decode leaves the most arithmetic unused. (b) By hand, then
# with `step_time`: how long is a prompt before its prefill on an H100 turns compute-bound? (c) `mixtral-8x7b` in section
# 4: why does its verification cost more than that of a dense model?
#
# **Sources.** Williams, Waterman, Patterson 2009, *Roofline: an insightful visual performance model*; Pope et al. 2022,
# *Efficiently scaling transformer inference* (arXiv 2211.05102); NVIDIA's datasheets, as named in the table.
