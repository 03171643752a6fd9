# %% [markdown]
# # 04b · Size and power of a test
#
# *50 minutes, optional. Follows lesson 04; nothing later depends on it. No GPU, no network.*
#
# By the end you can say what a statistical test of a sampler is worth: how often it blames correct code, how often it
# finds a named fault, and how many draws that takes. And you know how to test the tests themselves.

# %% [markdown]
# ## A question first
#
# In lesson 04 a program that draws from $p$ after a rejection, instead of from the residual, gave token 0 in 40% of all
# cases where 60% was right. Any test sees that. Now take a program that is right most of the time: in **2 of 100** calls
# it falls back to that bug. A race between two threads, say, or one branch of a kernel.
#
# You can only call the program and count. How many tokens must you draw to find the fault, nearly always, with a test
# that blames correct code in 1 of 100 runs?

# %%
import specdec_course as course

my_guess_draws = None

# %% [markdown]
# ## 1. A fault in 2 of 100 calls
#
# Three programs: the rule, the bug, and the one that is wrong now and then. `enumerate_distribution` visits every way
# through a program, as your own walk did in lesson 04.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import emitted_distribution, enumerate_distribution, fractions

p, q = fractions([".6", ".3", ".1"]), fractions([".1", ".3", ".6"])


def article_token(p, q, source):
    x = source.categorical(q)
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(p)  # the bug: it should be the residual


right = [float(x) for x in emitted_distribution("token", p, q)]
article = [float(x) for x in enumerate_distribution(lambda source: article_token(p, q, source)).values()]
print("the rule:", *right, "  the bug:", *article)

# %% [markdown]
# **Write the third.** With probability `share` a call draws from the wrong distribution, otherwise from the right one.
# What is the distribution of a token?


# %%
def mixture(right, wrong, share):
    """The distribution of a program that draws from `wrong` in a `share` of its calls, and from `right` otherwise."""
    raise NotImplementedError("write the mixture")


mixture = course.blank("04b mixture", mixture)

# %%
import numpy as np

sloppy = mixture(right, article, 0.02)
print("wrong in 2 of 100 calls:", *(f"{x:.3f}" for x in sloppy))


def total_variation(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).sum(-1) / 2


assert 0 < total_variation(sloppy, right) < 0.01

# %% [markdown]
# Enumeration is not impressed: 0.596 is not 0.6, and it would see one in a billion just as well. What about counting?
# Let us see how far the observed shares are from $p$, as total variation, after more and more draws. We don't need to
# run a program ten million times: the counts are multinomial, and NumPy samples them directly. For each number of draws
# we take the median of 200 runs.

# %%
generator = np.random.default_rng(0)


def runs(distribution, draws, repeats=200):
    """Counts of each token in many runs of that many draws, [repeats, tokens]."""
    return generator.multinomial(draws, distribution, size=repeats)


marks = [round(10 ** (k / 4)) for k in range(4, 29)]
programs = {"the rule": right, "wrong in 2 of 100": sloppy, "the bug": article}
lines = {name: [np.median(total_variation(runs(d, n) / n, right)) for n in marks] for name, d in programs.items()}
limits = {name: total_variation(d, right) for name, d in programs.items()}
ends = "; ".join(f"{name} ends at {line[-1]:.5f}, exact {limits[name]:.3f}" for name, line in lines.items())
course.show(
    course.convergence_figure(marks, lines, limits),
    alt=f"Total variation distance to p after 10 to {marks[-1]:,} draws: {ends}.",
)

# %% [markdown]
# Chance alone leaves a distance that shrinks as $1/\sqrt{n}$: to come ten times closer takes a hundred times the draws.
# The bug gets stuck at 0.2 and is caught early. The fault in 2 of 100 calls gets stuck at 0.004. Until chance has shrunk
# below that, the two lower lines cannot be told apart.

# %% [markdown]
# ## 2. The well-meant test
#
# Here is a test as one might write it: 1,000 draws, and each share within 0.02 of $p$. How good is it? Run *the test*
# many times: 2,000 times on correct code, and 2,000 times on the sloppy program.


# %%
def passes(counts):
    return (np.abs(counts / counts.sum(1, keepdims=True) - right) < 0.02).all(1)


blamed = 1 - passes(runs(right, 1_000, 2_000)).mean()
missed = passes(runs(sloppy, 1_000, 2_000)).mean()
print(f"correct code fails the test in {blamed:.0%} of the runs")
print(f"wrong code passes it in {missed:.0%} of the runs")
assert blamed > 0.1 and missed > 0.5

# %% [markdown]
# It fails correct code so often that someone will loosen it or fix the seed. And it lets the fault pass about as often
# as it lets correct code pass, so it can't tell one from the other. A test has **two** numbers:
#
# - its *size*, the probability that it blames correct code,
# - its *power*, the probability that it finds a **named** fault.
#
# A test that has passed tells you something only if you know its power.

# %% [markdown]
# ## 3. A test whose size you choose
#
# The *G test* compares each count with what is expected:
#
# $$G = 2 \sum_x \text{count}(x)\, \ln \frac{\text{count}(x)}{\text{expected}(x)}, \qquad \text{expected}(x) = n\,p(x)$$
#
# It is 0 if all counts are as expected, and grows with every deviation. **Write it.** (A count of 0 adds nothing.)


# %%
def g_statistic(counts, distribution):
    """G for these counts, one for each token, under this distribution."""
    raise NotImplementedError("write G")


g_statistic = course.blank("04b g", g_statistic)

# %% [markdown]
# What does correct code give? With many draws its $G$ follows a known curve, the *chi-square distribution*. The curve has
# one parameter, the *degrees of freedom*: the number of tokens less one, since the last count follows from the others. So
# here it is 2. Below are 2,000 runs of 100,000 draws each, of the correct program and of the one with the small fault.

# %%
values = {
    name: [g_statistic(counts.tolist(), right) for counts in runs(programs[name], 100_000, 2_000)]
    for name in ("the rule", "wrong in 2 of 100")
}
means = {name: np.mean(found) for name, found in values.items()}
course.show(
    course.g_figure(values, freedom=2),
    alt="Two histograms of G and the chi-square curve. Means: "
    + ", ".join(f"{name} {mean:.1f}" for name, mean in means.items()),
)
assert abs(means["the rule"] - 2) < 0.3 and means["wrong in 2 of 100"] > 2 * means["the rule"]

# %% [markdown]
# Correct code follows the curve. The fault shifts its histogram to the right, and the two overlap: that is why a single run
# may mislead.
#
# The *p-value* of a run is the probability that correct code gives this $G$ or a larger one: the area under the curve to
# the right of $G$. An alarm that goes off at p-values below $10^{-6}$ therefore blames correct code in about one run of a
# million: its size is $10^{-6}$, whatever the number of draws, as long as every expected count is large. The package's
# `g_test` returns both numbers. Here is one run of 4,000 draws of each program:

# %%
from specdec_ref.proof import g_test

for name, distribution in programs.items():
    counts = runs(distribution, 4_000, 1)[0]
    result = g_test(counts, right)
    assert abs(result.statistic - g_statistic(counts.tolist(), right)) < 1e-6
    verdict = "ALARM" if result.p_value < 1e-6 else "no objection"
    print(f"{name:18} G = {result.statistic:8.2f}  p-value {result.p_value:.2g}: {verdict}")
    assert (verdict == "ALARM") == (name == "the bug")

# %% [markdown]
# Only the bug is unmistakable. Don't compare the other two: the p-values of correct code are spread evenly between 0 and 1,
# so one run in ten is below 0.1, and correct code often looks worse than code with a small fault.
#
# The size is yours to choose. The power you pay for, in draws. **Find the price by experiment:** how many draws does it
# take until the alarm goes off in 99 of 100 runs? Change `my_draws` and run the cell a few times before you read on.

# %%
my_draws = 10_000


def alarm_rate(distribution, draws, size, repeats=200):
    """The share of runs in which the G test raises the alarm."""
    return np.mean([g_test(counts, right).p_value < size for counts in runs(distribution, draws, repeats)])


found, blamed = (alarm_rate(distribution, my_draws, 0.01, repeats=1_000) for distribution in (sloppy, right))
print(f"{my_draws:,} draws, size 1%: alarm in {found:.1%} of the runs of the wrong program,")
print(f"and in {blamed:.1%} of the runs of the correct one, where it should be about 1%")

# %% [markdown]
# Now many numbers of draws at once, for two sizes: 1%, and one in a million, which is what a suite needs that runs every
# day and must not cry wolf. The dashed lines are the package's `power`. It is a formula: for a wrong program, $G$ follows a
# relative of the chi-square curve (*noncentral* is its name) that lies farther to the right the more draws there are.

# %%
from specdec_ref.proof import draws_needed, power

draws = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 500_000, 1_000_000, 2_000_000]
fine = [round(10 ** (3 + 3.3 * k / 60)) for k in range(61)]
sizes = {"size 1%": 0.01, "size one in a million": 1e-6}
seen = {name: [alarm_rate(sloppy, n, size) for n in draws] for name, size in sizes.items()}
computed = {name: [power(sloppy, right, n, size) for n in fine] for name, size in sizes.items()}
course.show(
    course.power_figure(draws, seen, computed, fine),
    alt="Share of runs in which the test finds the fault, by experiment. "
    + "; ".join(f"{name}: " + ", ".join(f"{n:,}: {r:.0%}" for n, r in zip(draws, seen[name])) for name in sizes),
)

# %%
for name, size in sizes.items():
    enough = next((f"{n:,}" for n, rate in zip(draws, seen[name]) if rate >= 0.99), "more than those")
    print(f"{name}: of the numbers tried, {enough} draws find the fault in 99 of 100 runs;")
    print(f"    by formula it takes {draws_needed(sloppy, right, size):,}")
print("draws at size 1%:", course.guess_text(my_guess_draws, draws_needed(sloppy, right, 0.01)))

# %% [markdown]
# Why so many? A fault in a share $s$ of the calls moves the distribution in proportion to $s$. Chance has to shrink below
# that, and it shrinks as $1/\sqrt{n}$. So the number of draws goes as $1/s^2$:


# %% tags=["nbval-check-output"]
def two_digits(n):
    return f"{int(float(f'{n:.1e}')):,}"


products = []
for percent in (100, 50, 20, 10, 5, 2, 1):
    share = percent / 100
    needed = draws_needed([(1 - share) * a + share * b for a, b in zip(right, article)], right, size=1e-6)
    products.append(needed * share**2)
    print(f"wrong in {percent:3}% of the calls: {two_digits(needed):>9} draws; times share^2: {products[-1]:.0f}")
assert max(products) < 1.6 * min(products)

# %% [markdown]
# That is why the package draws more than a million times where it wants to find 2%, states for every check the fault
# that it finds in 99 of 100 runs, and leaves the rest to enumeration.

# %% [markdown]
# ## 4. Who tests the tests?
#
# Plant bugs, and see whether they are found. The package keeps a list of edits of its own code (*mutants*), each a
# mistake that someone made somewhere. `kill` makes the edit, runs the suites, and names the first check that objects. A
# check called *distribution* compares the distribution of whole texts, found by enumerating the engine's whole loop; after
# the colon stand the rule, and the kind of draft or the sampling option. *Acceptance* compares how much is kept. *Generator*
# tries the random source where it is delicate: at $u = 0$, and at $u$ just below 1.

# %%
from specdec_ref.proof import MUTANTS, kill, planted

by_name = {mutant.name: mutant for mutant in MUTANTS}
print(len(MUTANTS), "planted bugs. This is one of them:\n")
print(by_name["bonus from the wrong row"].diff())

# %%
names = (
    "residual with q = 0",
    "bonus from the wrong row",
    "rollback by one",
    "q before filtering",
    "<= at u = 0",
    "draft cache without the last token",
)
killed = {name: kill(by_name[name]) for name in course.progress(names, "planted bugs")}
for name, found in killed.items():
    print(f"{name:36}", f"found by: {found.check}" if found else "survives: a test is missing")
assert all(killed.values())

# %% [markdown]
# Look at the last one. A draft model that has forgotten a token makes worse proposals, yet it still reports the
# distribution that it drew from, and the proof asks for no more. So **the text stays exact, and fewer drafts are kept**.
# No test of the output can find that; a test of the *acceptance* can. Here is the engine of lesson 04, section 4, with
# that bug:

# %%
from contextlib import nullcontext

from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.models import ScriptedModel
from specdec_ref.proof import autoregressive_distribution, difference

P = [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.25, 0.5, 0.25]]
Q = [[0.1, 0.3, 0.6], [0.5, 0.4, 0.1]]
target = ScriptedModel(lambda tokens: P[sum(tokens) % 3], vocab_size=3)


def text_and_kept(source):
    drafter = DraftModelDrafter(ScriptedModel(lambda tokens: Q[sum(tokens) % 2], vocab_size=3))
    made = SpeculativeEngine(target, drafter, gamma=2).generate([0], max_new_tokens=5, temperature=1.0, source=source)
    return tuple(made.tokens), made.stats.accepted


def measured():
    """Whether the texts are exact, and the average number of drafts that are kept."""
    texts, kept = {}, 0.0
    for (text, accepted), chance in enumerate_distribution(text_and_kept).items():
        texts[text] = texts.get(text, 0.0) + chance
        kept += accepted * chance
    return difference(texts, autoregressive_distribution(target.distribution, [0], 5)) < 1e-12, kept


found = []
for bug in course.progress([None, "draft cache without the last token"], "every way through the engine"):
    with planted(by_name[bug]) if bug else nullcontext():
        found.append(measured())
(whole, kept), (still, fewer) = found
print(f"without the bug: text exact: {whole}, {kept:.3f} drafts kept per text")
print(f"with it:         text exact: {still}, {fewer:.3f} drafts kept per text")
assert whole and still and abs(fewer - kept) > 0.01

# %% [markdown]
# ## Check yourself
#
# **1. Your test draws 10,000 tokens and passes, p-value 0.4. What do you know?**
#
# <details><summary>The code is correct with a probability of 40%</summary>No. The p-value is computed <i>under the
# assumption</i> that the code is correct: correct code would stray this far or farther in 40% of all runs. It is not a
# probability of correctness.</details>
# <details><summary>The code is correct</summary>Only that no fault was found that this test had the power to find. Section
# 3: a fault in 2% of the calls passes 10,000 draws nearly always.</details>
# <details><summary>That larger faults are unlikely, as far as the power goes</summary>Yes. With the power function you can
# say which: name the fault, and compute the probability of seeing it with 10,000 draws.</details>
#
# **2. A test with fixed seed 0 has passed every night for a year. What does that add to its first night?**
#
# <details><summary>365 times the evidence</summary>With a fixed seed all those runs draw the same numbers.</details>
# <details><summary>Only that the code did not change its draws</summary>Yes. It is a useful check against accidental changes,
# and no further evidence about the distribution.</details>
#
# **3. You look at the counts after every 1,000 draws and stop at the first p-value below 1%. What is the size?**
#
# <details><summary>1%</summary>That holds for one look. Each further look is another chance to be unlucky.</details>
# <details><summary>More than 1%</summary>Yes, with many looks far more. Decide on the number of draws beforehand, or divide
# the size among the looks.</details>

# %% [markdown]
# ## In production
#
# - **vLLM** tests its rejection sampler by drawing 10 to 100,000 samples and asking that the distance from the target
#   distribution shrinks much faster than that from an unrelated one
#   (`test_rejection_sampling_approximates_target_distribution`). It states neither size nor power. Which fault would
#   it miss?
# - vLLM also counts `spec_decode_num_accepted_tokens_per_pos`, the accepted drafts at each position. Acceptance is the
#   number that shows the last bug of section 4, which no test of the output can see.
# - Mutation testing has tools of its own, such as `mutmut` for Python. Ours is a list by hand, because the bugs that
#   matter here are few and known.

# %% [markdown]
# ## What to remember
#
# - A test has a size, the probability that it blames correct code, and a power for each named fault.
# - Without its power, a test that passed says nothing.
# - A fault in a share s of the calls takes a number of draws that goes as 1/s²: several hundred thousand for 2%.
# - Plant bugs, and see which check finds them. A bug that changes only the acceptance is invisible in the output.
#
# **Problem set.** Part 4 of [ps04-rejection-sampling](../exercises/ps04-rejection-sampling/ps04-rejection-sampling.ipynb)
# asks for such a test.
#
# **Exercises.** (1) Point the test of section 3 at `transformers.generation.utils._speculative_sampling`: feed it the
# logarithms of p and q, and choose the number of draws by the fault that you want to find. (2) Choose a mutant from
# `MUTANTS`, read its `diff()`, and predict which check finds it.
#
# **Sources.** Sokal and Rohlf, *Biometry*, on the G test; Cressie and Read 1984, *Multinomial goodness-of-fit tests*, on
# its relatives and their power.
