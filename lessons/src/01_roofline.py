# %% [markdown]
# # 01 · Roofline: the physics of inference
#
# *75 minutes. You need lesson 00 and a little mental arithmetic. No GPU.*
#
# By the end you can say whether memory or arithmetic limits a model on a given chip, compute its top speed, and check
# that prediction on your own machine. You will know why verifying drafts is almost free for one user, and when it stops
# being so.

# %% [markdown]
# ## A question first
#
# A model with 70 billion weights in 16-bit precision writes text for *one* user on an NVIDIA H100, a chip that does 989 trillion
# operations per second and reads its memory at 3.35 terabytes per second. The software is perfect. How many tokens per
# second can it write at most? And what fraction of the time are the arithmetic units busy? Write down a guess; nobody
# sees it.

# %%
my_guess_tokens_per_second = None
my_guess_busy_percent = None

# %% [markdown]
# ## 1. By hand
#
# The weights lie in the chip's large memory (HBM on an H100, 80 GB). The arithmetic units can only use what has been
# brought into the small memories beside them, some tens of megabytes. A large model does not fit there, so each *forward
# pass*, one run through all layers, streams all weights past the arithmetic units, and the next pass does it again.
#
# To write one token, the chip reads every weight once, and does one multiplication and one addition with it: 2 FLOP. (A
# *FLOP* is one operation on floating-point numbers; FLOP/s is how many per second.) Both take time. At best they overlap
# fully, and then the slower of the two decides.

# %%
weights, bytes_per_weight = 70e9, 2
bandwidth, rate = 3.35e12, 989e12  # bytes/s and FLOP/s, from the H100's datasheet

seconds_to_read = weights * bytes_per_weight / bandwidth
seconds_to_compute = 2 * weights / rate
print(f"reading {seconds_to_read * 1e3:.2f} ms, computing {seconds_to_compute * 1e3:.2f} ms")

# %%
import specdec_course as course

seconds = max(seconds_to_read, seconds_to_compute)
busy_percent = 100 * seconds_to_compute / seconds
print("tokens per second at most:", course.guess_text(my_guess_tokens_per_second, 1 / seconds))
print("percent of the time busy: ", course.guess_text(my_guess_busy_percent, busy_percent))

# %% [markdown]
# Here is that step, drawn to scale. Look for the second bar.

# %%
from specdec_ref.arithmetic import StepTime

assert busy_percent < 1, "the step that this picture shows leaves the arithmetic units idle"
course.show(
    course.timeline_figure({"decode": [StepTime(seconds_to_read, seconds_to_compute)]}),
    alt=f"One step to scale: memory is busy for {1e3 * seconds_to_read:.1f} ms, arithmetic units for "
    f"{1e3 * seconds_to_compute:.2f} ms at its beginning.",
)

# %% [markdown]
# The chip waits for its memory nearly all of the time. Three of the best-known tricks of this field work on that one
# picture: *quantisation* makes the blue bar shorter, *batching* serves more users with the same blue bar, and *speculative
# decoding* fills the empty space beside the orange bar with guesses.
#
# There is a catch in the question, though. An H100 has 80 GB of memory. **Your turn:** how many of them does it take to
# hold the weights, and how many tokens per second are possible then, if the chips share the reading evenly?

# %%
my_chips = None
my_tokens_per_second = None

print(course.check("chips for 70B", my_chips))
print(course.check("70B on those chips", my_tokens_per_second))

# %% [markdown]
# From here on we speak of *one* H100, as if its memory were large enough. Two that share the work evenly take half of
# every time below, and all ratios stay the same.
#
# **What the article says.** This course grew out of an article published online, "Demystifying Speculative Decoding: Build
# 3x Faster LLM Inference Engines From Scratch". You need not know it, and nothing here depends on it. But its claims are
# good practice in reading critically, so each of them appears in the lesson where it belongs, beside what we compute.
# They are numbered in the order of the article, which is not that of the lessons. These five are about the step that you
# just worked out.

# %%
from IPython.display import HTML

HTML(course.claims_html(1, 2, 5, 6, 7))

# %% [markdown]
# ## 2. Two numbers decide
#
# Divide the operations of a piece of work by the bytes that it moves: that is its **arithmetic intensity**, in FLOP/byte.
# Divide a chip's operations per second by its bytes per second: that is the chip's **ridge**, in FLOP/byte as well. Work
# to the left of the ridge is *memory-bound*, work to the right of it *compute-bound*. **Your turn:**

# %%
my_intensity = None  # FLOP/byte of decoding with 16-bit weights
my_ridge = None  # FLOP/byte of the H100

print(course.check("intensity of decode", my_intensity))
print(course.check("ridge of an H100", my_ridge))

# %% [markdown]
# What speed can a piece of work reach? The smaller of two limits, and that is the whole roofline (Williams, Waterman and
# Patterson, 2009). Write it. (Stuck? The check names the likely mistake, and `course.solution("01 roof")` prints ours.)


# %%
def attainable(intensity, rate, bandwidth):
    """FLOP/s that work of this intensity can reach at most, on a chip of this rate (FLOP/s) and bandwidth (bytes/s)."""
    raise NotImplementedError("the smaller of two limits")


attainable = course.blank("01 roof", attainable)

# %%
for intensity in (1, 10, 100, 1000):
    reached = attainable(intensity, rate, bandwidth)
    print(f"{intensity:5} FLOP/byte: {reached / 1e12:6.1f} TFLOP/s, {100 * reached / rate:5.1f}% of the peak")

# %% [markdown]
# Drawn against the intensity, this function is the roof: a slope whose steepness is the bandwidth, and a flat part as high
# as the rate. They meet at the ridge. Both axes are logarithmic, as usual for rooflines.

# %%
from specdec_ref.arithmetic import accelerator

h100 = accelerator("h100-sxm")
assert h100.ridge() == rate / bandwidth, "the package's H100 has the numbers of section 1"
course.show(
    course.roofline_figure([h100]),
    alt=f"Attainable TFLOP/s of an H100 against arithmetic intensity: a slope up to the ridge at {h100.ridge():.0f} "
    f"FLOP/byte, then flat at {h100.rate() / 1e12:.0f}. Memory-bound is under the slope, compute-bound under the flat part.",
)

# %% [markdown]
# **What the article says.** It draws the picture differently. Can you say what is wrong with the drawing on the left
# before you read on? (Here the axes are linear and without numbers, as in the article.)

# %%
assert attainable(0.5 * rate / bandwidth, rate, bandwidth) < 0.51 * rate, "left of the ridge the peak is out of reach"
course.show(
    course.two_roofs_figure(),
    alt="Left, as the article draws it: a flat roof over all intensities, and a slanted line; compute-bound and "
    "memory-bound both lie to the right of that line. Right, as it is: the slope rises to the flat part and ends there, "
    "at the ridge. Memory-bound is under the slope, compute-bound under the flat part.",
)

# %% [markdown]
# In the article's drawing the flat roof reaches over the slope's side, too, as if the peak could be had at any intensity;
# and both regions lie to the right of the slope, though memory-bound work is what lies under it.

# %%
HTML(course.claims_html(3, 39))

# %% [markdown]
# A peak *with sparsity* (look for the asterisk in datasheets) doubles the ridge on paper, and whoever divides by it reports
# half of the true utilisation. The package's table of chips holds dense rates only, each with its source and date. (Real
# kernels reach neither number of a datasheet. They usually miss the rate by more than the bandwidth, so the ridge that
# software meets lies somewhat further left.)

# %%
HTML(course.table_html(("chip", "TFLOP/s, 16-bit", "TB/s", "GB", "ridge, FLOP/byte", "as of"), course.chips_rows()))

# %% [markdown]
# ## 3. Prefill, decode, verify
#
# A model runs three kinds of forward passes. **Prefill** reads a whole prompt. **Decode** reads one token. **Verification**
# reads the drafted tokens and the one before them: gamma + 1 tokens. All three read the same weights once. A pass over N
# tokens does N times the arithmetic per byte read:

# %%
course.show(
    course.tile_figure((1, 6)),
    alt="A tile of weights times one token's column: each weight is read once and used once, 1 FLOP/byte. The same tile "
    "times six columns: each weight is read once and used six times, 6 FLOP/byte.",
)

# %% [markdown]
# The tokens' own numbers move as well: into the layer and out of it. Beside large matrices they are few, but they keep
# the intensity of a long prompt from growing without end. **Your turn:** the intensity of one layer with `width` x `width`
# weights, for n tokens, everything in 16-bit precision.


# %%
def layer_intensity(n_tokens, width):
    """FLOP/byte of n tokens through a layer of width x width weights, all in 16-bit precision.

    The pass moves the weights once, and for each token `width` numbers in and `width` numbers out.
    """
    raise NotImplementedError("FLOP divided by bytes")


layer_intensity = course.blank("01 intensity", layer_intensity)

# %%
for n_tokens in (1, 6, 128, 512, 2048):
    print(f"{n_tokens:5} tokens: {layer_intensity(n_tokens, 8192):7,.1f} FLOP/byte")

# %% [markdown]
# Now a real model, counted matrix by matrix, with its key-value cache (the subject of lesson 02: what attention has to
# read of the text so far). Before you run it: which of the three passes will be compute-bound?

# %%
from specdec_ref.arithmetic import model_shape

llama = model_shape("llama-3-70b")
works = course.passes("llama-3-70b", batch=1, context=1024, gamma=5, prompt=1024)
head = ("pass", "FLOP/byte", "ms at least", "bound by", "arithmetic units busy")
read, stored = works["decode"].weight_bytes / 2e9, llama.parameters / 1e9
print(f"Llama-3-70B has {stored:.1f} billion weights; a decode step reads {read:.1f} billion of them:", end=" ")
print("of the input embedding it looks up one row.")
HTML(course.table_html(head, course.passes_rows(h100, works)))

# %%
from specdec_ref.arithmetic import step_time

plain, checking = (step_time(works[name], h100) for name in ("decode", "verify 5"))
assert checking.bound == "memory" and checking.overlapped_s < 1.01 * plain.overlapped_s
words = "; ".join(f"{name} has {work.intensity:,.1f} FLOP/byte" for name, work in works.items())
course.show(
    course.passes_figure("llama-3-70b", "h100-sxm"),
    alt=f"Roofline of an H100 with ridge {h100.ridge():.0f} FLOP/byte, log-log. {words}. Decode and verify lie on the "
    "slope, where memory is the limit; prefill lies under the flat roof. From decode to verify: six times the arithmetic "
    f"in {checking.overlapped_s / plain.overlapped_s:.4f} times the time.",
)

# %% [markdown]
# This picture is worth keeping. Climb the slope from *decode* to *verify*: the pass does six times the arithmetic and takes
# no longer, because it is still **left of the ridge**. That is all the magic in a cheap verification: not that the pass
# becomes compute-bound, but that it does *not*.
#
# **What the article says.** If you believe its second claim here, you will look for more TFLOP/s where only bandwidth, or
# fewer bytes, would help.

# %%
HTML(course.claims_html(4, 14))

# %% [markdown]
# ## 4. Many users: a pass is two kinds of kernels
#
# A server decodes for a *batch* of users at a time. The **linear layers** multiply by weights, and the whole batch shares
# one reading of those: with 64 users their intensity is 64 times as high. **Attention** reads each user's *own* cache, and
# batching does not make that cheaper: however large the batch, its intensity stays where it was. (Drafts do raise it, since
# the drafted tokens of one user share that user's cache.)
#
# These are different programs on the chip (*kernels*), and they run one after the other. So while attention waits for
# memory, the linear layers' arithmetic cannot use the idle units: its turn is over. The time of a pass is a **sum of
# maxima**, not one maximum over all bytes and all FLOP. **Your turn:**


# %%
def pass_seconds(kernels, rate, bandwidth):
    """Seconds that a pass takes at least: its kernels, each (FLOP, bytes), run one after the other."""
    raise NotImplementedError("for each kernel the larger of two times")


pass_seconds = course.blank("01 pass time", pass_seconds)

# %%
from specdec_ref.arithmetic import forward_kernels, forward_work


def price(batch, context, gamma=5):
    """What a verification costs, in decode steps of the same batch: (kernel by kernel, taken as one piece of work)."""
    seconds = []
    for n_tokens in (gamma + 1, 1):
        kernels = [(k.flops, k.bytes) for k in forward_kernels(llama, n_tokens, context, batch)]
        whole = forward_work(llama, n_tokens, context, batch)
        seconds += [pass_seconds(kernels, rate, bandwidth), pass_seconds([(whole.flops, whole.bytes)], rate, bandwidth)]
    return seconds[0] / seconds[2], seconds[1] / seconds[3]


print("verification of 5 drafts, Llama-3-70B on H100s, in decode steps")
for batch, context in ((1, 1024), (64, 1024), (256, 1024), (256, 8192)):
    by_kernel, as_one = price(batch, context)
    print(f"batch {batch:3}, context {context:5,}: {by_kernel:.2f} kernel by kernel, {as_one:.2f} as one piece of work")
assert price(256, 8192)[0] > 1.5 > 1.1 > price(256, 8192)[1], "here the two ways to count must disagree"

# %% [markdown]
# Look at the last line. Counted as one piece of work, a verification would be free in a batch of 256 with long texts: all
# those bytes of cache seem to hide the arithmetic. Kernel by kernel it costs well over half a step more. The same as a
# picture:

# %%
batches = (1, 16, 64, 128, 256)
prices = {context: [price(batch, context)[0] for batch in batches] for context in (1024, 8192)}
course.show(
    course.kernels_figure("llama-3-70b", "h100-sxm", batches, (1024, 8192), gamma=5),
    alt="Stacked bars: linear layers and attention, decode beside verification of 5 drafts. "
    + " ".join(
        f"With {context:,} tokens of context, a verification costs "
        + ", ".join(f"{p:.2f} steps at batch {b}" for b, p in zip(batches, costs))
        + "."
        for context, costs in prices.items()
    )
    + " Blue, the linear layers, grows from decode to verify; attention stays the same.",
)

# %% [markdown]
# The growth of blue is what speculation costs: once batch x (gamma + 1) tokens exceed the ridge, the linear layers are compute-bound and
# every further token takes its time. Orange is what every step costs anyway. So with long texts a verification is cheap *in
# proportion*: the same blue on top of a taller bar. This is the direction that MagicDec (2024) points in; it does not make
# verification free.

# %%
for n_tokens, name in ((1, "decode"), (6, "verification of 5 drafts")):
    print(f"{name}: linear layers compute-bound from a batch of {course.crossing_batch(llama, h100, n_tokens):,} on")

# %% [markdown]
# The wait, drawn to scale. Each dotted line is where attention takes over from the linear layers.

# %%
timelines = {
    f"{name}, batch {batch}": [step_time(k, h100) for k in forward_kernels(llama, n_tokens, 1024, batch)]
    for batch in (1, 64)
    for name, n_tokens in (("decode", 1), ("verify 5", 6))
}
linear, attention = timelines["verify 5, batch 64"]
assert linear.bound == "compute" and attention.bound == "memory", "this picture shows a pass that waits for both"
course.show(
    course.timeline_figure(timelines),
    alt="Memory and arithmetic units over time. "
    + "; ".join(
        f"{name}: {1e3 * sum(t.overlapped_s for t in times):.1f} ms, of which arithmetic units compute "
        f"{1e3 * sum(t.compute_s for t in times):.1f} ms"
        for name, times in timelines.items()
    ),
)

# %% [markdown]
# **Mixtures of experts.** All of this was about *dense* models, in which every token uses every weight. Many large models
# are mixtures of experts (MoE): each layer has many sets of weights, the *experts*, and each token goes through only a few
# of them. One token reads little then. But six tokens go through different experts, so a verification reads more weights
# than a decode step. For one user, with experts chosen at random:

# %%
moe_prices = {}
for name in ("llama-3-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"):
    decode_s, verify_s = (
        pass_seconds(
            [(k.flops, k.bytes) for k in forward_kernels(model_shape(name), n, 1024, batch=1)], rate, bandwidth
        )
        for n in (1, 6)
    )
    moe_prices[name] = verify_s / decode_s
    print(f"{name:13} a verification of 5 drafts costs {moe_prices[name]:.2f} decode steps")
dense, *mixtures = moe_prices.values()
assert dense < 1.01 and min(mixtures) > 2, "a mixture must pay for its drafts, or this shows nothing"

# %% [markdown]
# So the cheap verification of section 3 is a property of dense models. For a mixture drafts must be better to pay, at
# least for one user. (In a large batch most experts are read anyway; exercise (c) looks at that.)

# %% [markdown]
# ## 5. Move the points
#
# Now with Llama-3-8B, which fits on one H100. Each pass is two points: linear layers and attention. Answer by moving:
#
# 1. Go from batch 1 to 512. Which points move, and which stay? When does "in decode steps" leave 1?
# 2. Batch 64: raise the context. Which column grows? What happens to the price of a verification?
# 3. Set the weights to 4 bits. Which points move now, and what happens to the price at batch 64?
# 4. Take an L4. Is its ridge further right or left, and what does that say about *its* spare arithmetic?

# %%
course.kernels_explorer()

# %% [markdown]
# <details><summary>1. Batch</summary>The two linear points climb, the attention points stay: nobody shares a cache. The
# price leaves 1 when the linear layers of the verification cross the ridge, at a batch of about ridge / (gamma + 1); the
# line below the table names it.</details>
# <details><summary>2. Context</summary>Attention's time grows, its points hardly move. The linear layers do not notice. The
# price sinks towards 1, since the same extra work is divided by a longer step.</details>
# <details><summary>3. Weights in 4 bits</summary>Only the linear points move, to nearly four times the intensity: the same
# operations, fewer bytes. Steps get shorter, but the ridge is now nearly four times nearer, so the price at batch 64
# rises: both tricks spend the same slack.</details>
# <details><summary>4. An L4</summary>Its ridge lies further right: for each byte it reads, it could compute more. It is the
# slower chip, and the one with more arithmetic to spare.</details>

# %% [markdown]
# ## 6. Your machine
#
# Datasheets are for chips that others own. What is the roofline of the machine in front of you? We measure it as decoding
# would use it:
#
# - **Reading:** many matrices, half a gigabyte in all so that no cache holds them, each multiplied by a single token's
#   vector. How many bytes of weights per second?
# - **Computing:** the product of two large matrices, which stay in the caches. How many FLOP per second?
#
# We repeat every measurement and keep the fastest: other programs can only slow it down. But if they never pause, the
# fastest is too slow as well, so first we look. (The measurements of this section and the next take a few seconds each,
# and loading a model's full weights does, too.)

# %%
print(course.others_text())

# %%
from specdec_ref.measure import measure_machine

machine = measure_machine(seconds=8, nbytes=2**29, progress=course.progress)
head = ("format", "threads", "GB/s", "GFLOP/s", "ridge, FLOP/byte", "rounds, of the best GB/s")
print(machine.name, "- measured on this machine, now")
HTML(course.table_html(head, course.machine_rows(machine)))

# %% [markdown]
# The memory does not know number formats. So if one format reads fewer bytes per second than another here, its *kernel* is
# what holds it back, not the memory: these are speeds that decoding reaches with the software at hand, and the memory's own
# speed is at least the highest of them. The ridge in each row is that of its format and its threads, with the bandwidth
# that this format reached.

# %%
from specdec_ref import load_model
from specdec_ref.measure import SHORT_NAMES

model = load_model(weights="full")
dtype = SHORT_NAMES[model.dtype]
mine = machine.accelerator(dtype)
print(
    f"Full-size weights are {dtype} here. Ridge of this machine in {dtype}: {mine.ridge(dtype):.0f} FLOP/byte, ", end=""
)
print(f"of an H100: {h100.ridge():.0f}.")
print(f"An H100 reads {h100.bandwidth / mine.bandwidth:,.0f} times as fast, and computes ", end="")
print(f"{h100.rate() / mine.rate(dtype):,.0f} times as fast.")

# %% [markdown]
# Now put a real layer under your own roof: one matrix, with more and more tokens in the pass. Does it climb the slope, as
# the theory says?
#
# From here on: one thread and its CPU-time clock, which stops while other programs run. So it works on a busy machine too.
# (Lesson 00 used all threads and 4-bit weights; its curve of costs is another one.)
#
# A program can't read your memory's datasheet, so the roof is drawn through the best of everything that we measure, in
# any format: the true one may lie higher, never lower. That gives this roof a bandwidth, and so a ridge, of its own, for one
# thread; do not expect those of the table above.

# %%
import time

import torch

from specdec_ref.measure import WeightStream

torch.set_num_threads(1)
one = measure_machine(threads=(1,), seconds=3, nbytes=2**29, clock=time.thread_time, progress=course.progress)
stream = WeightStream(model.dtype, nbytes=2**29, clock=time.thread_time)
points = course.layer_points(stream, (1, 4, 16, 64, 256))
roof = course.roof_of(one, 1, points, dtype)
course.show(
    course.machine_figure(roof, points, dtype, h100),
    alt=f"Left: the roof of one thread of this machine, ridge {roof.ridge(dtype):.0f} FLOP/byte, and one linear layer: "
    + "; ".join(f"{p.label} at {p.intensity:.1f} FLOP/byte reaches {p.rate / 1e9:,.0f} GFLOP/s" for p in points)
    + ". Right: the same roof far below that of an H100.",
)

# %%
print(course.layer_words(points, roof, dtype))

# %% [markdown]
# A true roof can't be beaten: no work runs above it. It is no promise that software gets there. A product of a few tokens
# may use the arithmetic units badly, and even the product of one token may read more slowly than the memory could deliver.
# If the one-token pass is slower than it need be, several tokens in a pass look cheaper than they are.

# %% [markdown]
# ## 7. Predict a real model, then measure it
#
# For each token SmolLM2 has to read all its weights, like any model. You know how many bytes that is, and how many come in
# per second. But a small model has a second cost, the framework: Python, the calls into PyTorch, hundreds of tiny
# operations. In a large model they hide behind the reading; here they don't. So we measure them apart, with a model of *the
# same graph but 64 wide*, which has hardly any weights. (One detail: a processor keeps what it has just used in small fast
# memories of its own, its *CPU caches*, which have nothing to do with the key-value cache. In the real model each layer's
# weights push everything else out of them. The narrow model is too small to do so, and would look too fast. So we empty
# the CPU caches before each of its layers, while the clock stands still.)
#
# $$T_\text{predicted} = \frac{\text{bytes}}{\text{bandwidth}} + T_\text{overhead}$$
#
# The measured step itself enters neither term. But mind which bandwidth this is: that of the same kernel on other weights of
# the same format, not the memory's. So the test is whether reading and overhead *add up* to a step, not whether the kernel
# reads as fast as the memory could deliver. Your guess first: what percentage of a step of SmolLM2 is overhead?

# %%
my_guess_overhead_percent = None

# %%
from specdec_ref.measure import decode_times

times = decode_times(model, rounds=10, clock=time.thread_time, progress=course.progress)
HTML(course.table_html(("one step, one thread, on this machine, now", ""), course.decode_rows(times)))

# %%
import statistics

print(course.decode_verdict(times))
overhead_percent = 100 * statistics.median(o / m for o, m in zip(times.overheads, times.measured))
print("overhead, percent of a step:", course.guess_text(my_guess_overhead_percent, overhead_percent))

# %% [markdown]
# What does a verification cost then? The roofline's answer: the bytes stay the same, the operations grow, the larger time
# counts. With the overhead added, here is the prediction for passes over n tokens, beside the measurement.

# %%
from specdec_ref.measure import pass_seconds as measure_passes

measured = measure_passes(
    model, (1, 2, 4, 8, 16), context=64, repeats=8, clock=time.thread_time, progress=course.progress
)
ranges = course.cost_ranges(measured)
predicted = course.predicted_pass_cost(model, times, roof.rate(dtype), ranges)
course.show(
    course.predicted_cost_figure(ranges, predicted),
    alt="Time of one pass over n tokens, in passes over one token: "
    + "; ".join(
        f"n={n}: measured {c:.2f} ({low:.2f} to {high:.2f}), predicted {predicted[n]:.2f}"
        for n, (low, c, high) in ranges.items()
    ),
)

# %%
print(course.cost_words(ranges, predicted))

# %% [markdown]
# Where the measured line runs above the predicted one, the roofline is too kind: kernels for a few tokens do not reach the
# matrix rate of large products, and attention adds work of its own. Lesson 06 (still to come) therefore predicts speedups
# with the *measured* curve; the roofline is for chips that you cannot measure.
#
# **What the article says.** Claim 13 is its central one. What you measured speaks to it, for a small model on your machine;
# but as you saw, a flat curve may come from idle arithmetic, as the claim has it, or from a slow kernel for one token.

# %%
HTML(course.claims_html(13, 32))

# %% [markdown]
# ## Check yourself
#
# **1. You keep the weights in 4 bits instead of 16, and the arithmetic in 16-bit precision. What happens to decode on the
# roofline?**
#
# <details><summary>It moves left: less work</summary>The operations stay the same: each weight is still multiplied and
# added. Only the bytes shrink, and the bytes are below the fraction line.</details>
# <details><summary>It moves right, and each step takes little more than a quarter of the time</summary>Yes, as long as
# it stays left of the ridge. Part of the slack that speculation would use is spent: nearly four times the intensity, and
# so nearly four times nearer to the ridge.</details>
# <details><summary>The ridge moves</summary>The ridge belongs to the chip and to the format that it *multiplies* in. That
# did not change.</details>

# %% [markdown]
# **2. A chip gets a new version with twice the FLOP/s and the same bandwidth. What does one user who decodes notice?**
#
# <details><summary>Twice the speed</summary>Only work on the flat roof gets faster: long prompts, large batches. One
# user's decode waits for memory.</details>
# <details><summary>Nothing, in decode</summary>Yes. But the ridge has moved right: more drafted tokens can be checked in
# the time of one.</details>

# %% [markdown]
# **3. Llama-3-70B on H100s, 256 users in a batch with 1,024 tokens of context each: does a verification of 5 drafts still
# cost about one step?**
#
# <details><summary>Yes, the weights are still read once</summary>The reading stays. But 256 x 6 = 1,536 tokens are in
# flight, five times the ridge, and the linear layers have to compute them all: section 4 has it at more than three steps.
# At batch 64 it is 1.3.</details>
# <details><summary>No, it costs more than three</summary>Yes: the linear layers have crossed the ridge, and every further
# token takes its time. That is why speculation fades in a busy server (lesson 13, still to come).</details>

# %% [markdown]
# **4. The same server with 8,192 tokens of context: the caches are now most of the bytes, and the whole pass has fewer
# FLOP/byte than the ridge. Is verification free again?**
#
# <details><summary>Yes, the pass is memory-bound</summary>Attention is. The linear layers are not, and they cannot compute
# while attention waits: kernels run one after the other, so their times add.</details>
# <details><summary>No, but it costs less in proportion</summary>Yes: the linear layers take as much longer as before, on
# top of a longer step. Section 4 has 1.7 steps, where the sum of all bytes would promise 1.0.</details>

# %% [markdown]
# ## In production
#
# - **vLLM** caps the tokens of a pass with `max_num_batched_tokens` and the sequences with `max_num_seqs`, and mixes
#   pieces of prompts into decode passes (*chunked prefill*): arithmetic that comes free with a reading, as long as the pass
#   stays left of the ridge. A budget of several thousand tokens does not: then the users who decode in that pass wait for
#   the prompt's arithmetic. **TensorRT-LLM** has `max_num_tokens` and `max_batch_size` for the same.
# - **transformers** loads weights in fewer bits with `quantization_config=`; vLLM has `quantization=`. Both shorten the
#   reading.
# - **gpt-fast** prints the bandwidth that a generation achieved. Divided by the chip's peak that is *MBU*, model bandwidth
#   utilisation, the subject of lesson 12 (still to come).
# - **Nsight Compute** draws a roofline for every kernel of a GPU program.
# - `specdec roofline --model llama-3-70b --chip h100-sxm --tp 2` prints section 3 for any model and chip.

# %% [markdown]
# ## What to remember
#
# - Time of a kernel ≥ max(bytes / bandwidth, FLOP / rate). Kernels run one after the other: their times add.
# - In 16-bit precision, the intensity of a linear layer is about its number of tokens; the ridge of a datacentre chip is in the
#   hundreds.
# - Decode lies far left. Verification climbs the slope and stays left: that is why it is cheap for one user of a dense
#   model. In a mixture of experts it reads more weights.
# - Batching climbs the same slope, so it competes with speculation for the same slack. Attention does not climb with the
#   batch: caches are not shared.
# - A roofline is a limit. Measure before you promise, and count the framework's overhead apart.
#
# **Problem set.** [ps01-roofline](../exercises/ps01-roofline/ps01-roofline.ipynb), with a check below each part. (It leaves
# attention's own arithmetic out and takes a pass as one piece of work, so its batches differ a little from those here.)
#
# **Exercises.** (a) In the table of section 2: on which chip does 16-bit decode leave the most arithmetic unused? (By code:
# `accelerators()` has them all; ask for `chip.ridge(chip.half_precision)`, since the oldest know no bf16.) (b) By hand,
# then with `layer_intensity`: how long is a prompt before a layer of width 8,192 turns compute-bound on an H100? (c)
# Run the last cell of section 4 with `batch=256` and without its assertion. Llama's price rises, those of the mixtures
# fall. Why both?
#
# **Sources.** Williams, Waterman, Patterson 2009, *Roofline: an insightful visual performance model*; Pope et al. 2022,
# *Efficiently scaling transformer inference* (arXiv 2211.05102); Chen et al. 2024, MagicDec (arXiv 2408.11049); chips'
# datasheets, as named in the package's table.
