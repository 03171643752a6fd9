# %% [markdown]
# # 04 · Why it is exact
#
# *90 minutes. You need Python, and probability as far as "the chances of all cases add up to one". Lesson 00 helps. No
# GPU, no network.*
#
# Afterwards you can prove the rule of speculative decoding on paper; check it by enumeration, and by a test that you
# know the strength of; find a real bug that such tests find; and say what "exact" means on a computer that rounds.

# %% [markdown]
# ## A question first
#
# A vocabulary of three tokens. The model that we want to hear, the *target*, says token 2 in **10%** of all cases. A
# cheap helper, the *draft*, proposes token 2 in **60%** of all cases. The draft proposes a token, the target only looks
# at it and says keep or drop.
#
# People doubt that the result can be anything but a compromise between the two. What do you think? Put your guesses in
# before you go on.

# %%
target_distribution = [0.6, 0.3, 0.1]  # p
draft_distribution = [0.1, 0.3, 0.6]  # q

my_guess_kept = 0.3  # the share of drafts that is kept
my_guess_token_2 = 0.25  # the share of token 2 in what comes out
my_guess_draws = 1000  # how many tokens you must look at to notice a program that goes wrong in 2 of 100 calls

# %% [markdown]
# ## 1. The rule
#
# It has three lines. $p$ is the target's distribution, $q$ the draft's.
#
# 1. Draw $x$ from $q$.
# 2. Keep it with probability $\min(1, p(x)/q(x))$: always where the target wants more of it than the draft gives, and
#    now and then where the draft gives too much.
# 3. If it was dropped, draw from what is missing, the *residual* $\max(0, p - q)$, scaled up to sum to one.
#
# Chance enters in two ways only: a coin that falls "yes" with a given probability, and a draw from a distribution. So the program
# asks a *source* of chance for both. Here is a plain one, a dice; soon there will be another.

# %%
import random


class Dice:
    def __init__(self, seed):
        self.generator = random.Random(seed)

    def bernoulli(self, probability):
        return self.generator.random() < probability

    def categorical(self, distribution):
        return self.generator.choices(range(len(distribution)), distribution)[0]


def residual(p, q):
    missing = [max(0, a - b) for a, b in zip(p, q)]
    return [m / sum(missing) for m in missing] if sum(missing) else p


def speculative_token(p, q, source):
    x = source.categorical(q)
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(residual(p, q))


dice = Dice(seed=1)
print(*(speculative_token(target_distribution, draft_distribution, dice) for _ in range(40)))

# %% [markdown]
# Token 2 is rare already, though the draft proposes it all the time. The picture takes one step apart. On the left what
# both distributions have in common; in the middle what is drawn from after a rejection; on the right what comes out, in its two
# parts. The diamonds mark $p$.

# %%
from IPython.display import HTML

import specdec_course as course

HTML(course.rejection_html(target_distribution, draft_distribution))

# %% [markdown]
# **Now move it.** The sliders are weights; each distribution is its three weights divided by their sum. Try to find a $p$ and a
# $q$ for which the bars on the right miss a diamond. Then look for these three:
#
# - a draft of which everything is kept,
# - a draft of which nothing is kept,
# - a residual with two tokens in it.

# %%
course.exactness_explorer()

# %% [markdown]
# ## 2. The proof on paper
#
# A token $x$ comes out in one of two ways. Add them up.
#
# **As a kept draft.** It has to be drawn, then kept: $\;q(x)\,\min(1, p(x)/q(x)) = \min(p(x), q(x))$.
#
# **As a correction.** A draft has to be dropped, whichever it was, and then $x$ drawn from the residual. With
# $Z = \sum_y \max(0, p(y) - q(y))$, the number that the residual was divided by:
#
# $$\Pr[\text{dropped}] \cdot \frac{\max(0, p(x) - q(x))}{Z}$$
#
# Now the one thing that makes it work. How often is a draft dropped? As often as it is not kept:
#
# $$1 - \sum_y \min(p(y), q(y)) = \sum_y \big(p(y) - \min(p(y), q(y))\big) = \sum_y \max(0, p(y) - q(y)) = Z$$
#
# **The chance of a rejection is the very number that the residual was divided by.** They cancel, and what is left is
#
# $$\min(p(x), q(x)) + \max(0, p(x) - q(x)) = p(x),$$
#
# since one of the two always is the whole of it: where $p \le q$ the first term is $p$ and the second is nothing; where
# $p > q$ the first is $q$ and the second is the rest. Nothing was assumed about $q$. If $p = q$ then $Z = 0$, and
# nothing is ever dropped.
#
# Two by-products. The chance to keep a draft is $\beta = \sum_y \min(p, q)$. And $Z$ is half of $\sum |p - q|$, known as
# the *total variation* $\mathrm{TV}(p, q)$, so
#
# $$\beta = 1 - \mathrm{TV}(p, q).$$
#
# A draft is kept exactly as often as the two distributions agree. No exact rule that tests one draft can keep more: a kept $x$ is
# drafted *and* emitted, and it is drafted only in $q(x)$ and may be emitted only in $p(x)$ of all cases.

# %%
kept = sum(min(a, b) for a, b in zip(target_distribution, draft_distribution))
tv = sum(abs(a - b) for a, b in zip(target_distribution, draft_distribution)) / 2
print(f"kept: sum min(p, q) = {kept:.2f};  1 - TV = {1 - tv:.2f};  your guess was {my_guess_kept:.2f}")

# %% [markdown]
# ### The same by algebra
#
# A proof on paper may hold a slip. SymPy goes over it with symbols for numbers: first the last line of the proof in your
# own words, then the package's version of it, then the whole step for three tokens, with each case of which tokens have
# $p > q$.

# %% tags=["nbval-check-output"]
import sympy

from specdec_ref.proof import identity, one_step_proof

p_x, q_x = sympy.symbols("p q", real=True)
difference_to_p = sympy.Min(p_x, q_x) + sympy.Max(0, p_x - q_x) - p_x
print("yours:", sympy.simplify(difference_to_p.rewrite(sympy.Piecewise)), " the package's:", identity())

for above, differences in one_step_proof(3).items():
    print(f"p > q at {above!s:7}  emitted - p = {differences}")

# %% [markdown]
# ## 3. Visit every case
#
# Proofs are about formulas, and bugs are in programs. With three tokens a program has so few ways to go that one can
# walk all of them. First by hand. `Fraction` computes with whole numbers, so that *equal* means equal.

# %% tags=["nbval-check-output"]
from fractions import Fraction

p = [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]
q = [Fraction(1, 10), Fraction(3, 10), Fraction(6, 10)]


def emitted_by_hand(p, q):
    distribution = [0, 0, 0]
    for x in range(3):  # each draft that may be drawn
        keep = min(1, p[x] / q[x])
        distribution[x] += q[x] * keep
        for y in range(3):  # each correction that may follow
            distribution[y] += q[x] * (1 - keep) * residual(p, q)[y]
    return distribution


print(*emitted_by_hand(p, q), " equal to p:", emitted_by_hand(p, q) == p)

# %% [markdown]
# **Your turn.** Change $p$ and $q$ above to whatever you like (each has to sum to one, and $q$ may hold no 0 here). Then
# break the rule: replace `residual(p, q)[y]` by `p[y]`, and look at what comes out. Put it back before you go on.
#
# By hand we wrote the rule a *second* time, and a bug in the first copy would go unseen. Better to walk through the
# program itself. That is what the source of chance is for: swap the dice for a source that gives one answer, remembers
# the others, and has the program run again for each of them.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import enumerate_branches, enumerate_distribution

for branch in enumerate_branches(lambda source: speculative_token(p, q, source)):
    print(f"answers {branch.choices!s:11} probability {branch.probability!s:5} emits token {branch.outcome}")

print(
    "distribution:",
    {x: str(share) for x, share in enumerate_distribution(lambda source: speculative_token(p, q, source)).items()},
)

# %% [markdown]
# A draft of 0 or 1 is kept for certain, so there is nothing to ask about. A draft of 2 is dropped five times of six, and
# then token 0 is all that is missing.
#
# Now the real thing: the function that the package's engine calls, unchanged, under the same source.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import emitted_distribution

print(
    "production rule:", *emitted_distribution("token", p, q), " equal to p:", emitted_distribution("token", p, q) == p
)

# %% [markdown]
# ## 4. From one token to a text
#
# A round drafts several tokens, stops at the first that is dropped, and adds one of the target's own. How many come out
# depends on chance, and on the tokens. Is the *text* still right?
#
# Beware of a plausible shortcut: "each kept token follows $p$, each correction follows $p$, so all do". Neither is true.

# %% tags=["nbval-check-output"]
step = course.one_step(target_distribution, draft_distribution)
print("kept drafts alone: ", *(f"{a / sum(step.accepted):.2f}" for a in step.accepted))
print("corrections alone: ", *(f"{c:.2f}" for c in step.residual))
print("both together:     ", *(f"{e:.2f}" for e in step.emitted))

# %% [markdown]
# So the argument has to go another way, by induction over the positions of a round.
#
# **Claim.** Run one round with $\gamma$ drafts, and then let the target go on alone. The text follows the target's distribution.
#
# - **$\gamma = 0$.** Nothing is drafted; the round is one token drawn from the target. True.
# - **From $\gamma - 1$ to $\gamma$.** By section 2 the first token follows $p$. What comes after it? If it was a
#   *correction*, the round is over and the target goes on alone. If it was a *kept draft* $x$, what is left is a round
#   with $\gamma - 1$ drafts after $x$, and for that the claim holds already. Either way the rest follows the target's
#   distribution **given the first token**, however that token came about. First token right, rest right given the first: the
#   whole is right.
#
# **Over rounds.** "The target goes on alone" may be replaced by "another round, and then the target alone", as often as
# you like: by the claim that changes nothing. Until the text is full. $\square$
#
# Note what was used: after any prefix the draft proposes from the distribution $q$ that it *reports*, and the target's $p$ belongs
# to that very prefix. A row off by one, a target's cache that was rolled back wrongly, a $q$ from before top-k: each of them breaks
# the proof. Let us look at a round whose distributions depend on all tokens so far.

# %% tags=["nbval-check-output"]
from itertools import product

from specdec_ref.proof import completed_distribution, fractions, round_distribution

P = fractions([[".6", ".3", ".1"], [".1", ".2", ".7"], [".25", ".5", ".25"]])
Q = fractions([[".1", ".3", ".6"], [".5", ".4", ".1"]])


def target_after(tokens):
    return P[sum(tokens) % 3]


def draft_after(tokens):
    return Q[sum(tokens) % 2]


def target_alone(text):  # the chance of three tokens, one after the other
    first, second, third = text
    return target_after(())[first] * target_after((first,))[second] * target_after((first, second))[third]


outcomes = round_distribution("token", target_after, draft_after, gamma=2)
for length in (1, 2, 3):
    share = sum(chance for (_, tokens), chance in outcomes.items() if len(tokens) == length)
    print(f"a round of {length} tokens: {share} of all rounds")

alone = {text: target_alone(text) for text in product(range(3), repeat=3)}
same = completed_distribution(outcomes, target_after, 3) == alone
print(f"a round and then the target, against the target alone: all {len(alone)} texts equal: {same}")

# %% [markdown]
# And the whole production engine, with its caches, its rollback and its budget, over several rounds. The models are
# scripted, everything else is what decodes SmolLM2 in lesson 00. `source=` takes the place of a seed.

# %% tags=["nbval-check-output"]
from collections import Counter

from specdec_ref import DraftModelDrafter, SpeculativeEngine
from specdec_ref.models import ScriptedModel
from specdec_ref.proof import autoregressive_distribution, difference

target = ScriptedModel(lambda tokens: [float(x) for x in target_after(tokens)], vocab_size=3)
drafter = DraftModelDrafter(ScriptedModel(lambda tokens: [float(x) for x in draft_after(tokens)], vocab_size=3))
engine = SpeculativeEngine(target, drafter, gamma=2)


def text(source):
    return tuple(engine.generate([0], max_new_tokens=4, temperature=1.0, source=source).tokens)


distribution, ways = Counter(), 0
for branch in enumerate_branches(text):
    distribution[branch.outcome] += branch.probability
    ways += 1

expected = autoregressive_distribution(target.distribution, [0], 4)
print(f"{ways:,} ways through the engine lead to {len(distribution)} texts of 4 tokens")
print("largest difference to the target alone is below 1e-12:", difference(distribution, expected) < 1e-12)

# %% [markdown]
# Here the numbers are floats, so the last digit may differ, and the limit is $10^{-12}$. The package's tests do this for
# every rule, every kind of drafter, and every sampling option.

# %% [markdown]
# ## 5. Throw the dice
#
# Enumeration replaces the source of chance, so it cannot find a *bad* source: one that is seeded again in each round, or
# a GPU kernel that uses one number twice. For those there is only one way: run it, count, compare.


# %%
def count(program, draws, seed=0):
    source, counts = Dice(seed), [0, 0, 0]
    for _ in range(draws):
        counts[program(target_distribution, draft_distribution, source)] += 1
    return counts


counts = {n: count(speculative_token, n) for n in (30, 1_000, 100_000)}
words = "; ".join(f"{n:,} draws: {', '.join(f'{c / n:.3f}' for c in counted)}" for n, counted in counts.items())
print(words, f"  (your guess for token 2: {my_guess_token_2})")
course.show(
    course.histogram_figure(target_distribution, counts),
    alt=f"Observed shares of the tokens beside p = 0.6, 0.3, 0.1. {words}.",
)

# %% [markdown]
# It converges. It always does, to something. The question is whether you can tell $p$ from something else.

# %% [markdown]
# ## 6. A bug from the wild
#
# The article that this course checks (*Demystifying Speculative Decoding: Build 3x Faster LLM Inference Engines From
# Scratch*) carries an engine that it calls complete and production-grade. It stops with an `AttributeError` at the first
# rejection: the function that should give back the draft's distribution reads a field that nothing sets. Suppose somebody repairs
# that line and nothing else. Then the function gives back *zeros*. In our words: after a rejection the residual is
# $\max(0, p - 0)$, which is $p$ itself.
#
# It looks harmless: "draw from the target, what could be wrong with that?" **What distribution do you expect?** Then run it, through
# the two tools that you have by now.


# %% tags=["nbval-check-output"]
def article_token(p, q, source):
    x = source.categorical(q)
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(p)


article_distribution = list(enumerate_distribution(lambda source: article_token(p, q, source)).values())
beta = sum(map(min, p, q))
by_formula = [min(a, b) + (1 - beta) * a for a, b in zip(p, q)]
print("enumerated:", *article_distribution, " as decimals:", *map(float, article_distribution))
print("min(p, q) + (1 - beta) p gives the same:", by_formula == article_distribution)

# %% [markdown]
# Token 0 comes in 40% instead of 60% of all cases. The mass that a rejection has to put on token 0 is spread over all
# three: the draft's taste leaks into the text. Now by counting: 4,000 draws and a *G test*, which says how likely it is
# that correct code strays this far from $p$ by chance, or farther.

# %%
from specdec_ref.proof import g_test

for program in (speculative_token, article_token):
    counted = count(program, 4_000)
    result = g_test(counted, target_distribution)
    verdict = "not p" if result.p_value < 1e-6 else "no objection"
    print(f"{program.__name__:18}", *(f"{c / 4000:.3f}" for c in counted), f" p-value {result.p_value:.2g}: {verdict}")

# %% [markdown]
# ### A smaller one
#
# The same article keeps a draft if $u \le p/q$, where $u$ is uniform in $[0, 1)$. What is wrong with the equals sign?
# $u$ may be **0**. A token with $p = 0$, one that top-k has cut or a grammar forbids, then passes.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import ReplaySource

u, forbidden = 0.0, 0.0
print("u <= p/q keeps the forbidden token:", u <= forbidden / 0.5)
print("u <  p/q keeps it:                 ", u < forbidden / 0.5)
print("the package's coin at u = 0 keeps it:", ReplaySource(coins=[0.0], draws=[]).bernoulli(forbidden / 0.5))
print(f"uniforms in float32 have 24 bits: one in {2**24:,} is exactly 0")

# %% [markdown]
# One in 17 million: a busy server draws it every day, a test of 4,000 draws hardly ever. Nor does enumeration, as it has no
# $u$. It takes a third kind of test, a source that replays the number you fear. **Three tools, and each is blind where
# another sees.**

# %% [markdown]
# ## 7. A test that knows its strength
#
# The article's bug moved 20% of the mass, and 4,000 draws were plenty. Now take a program that is right most of the time:
# in 2 of 100 calls it falls back to the article's rule. A race between threads, say, or one branch of a kernel.

# %% tags=["nbval-check-output"]
SHARE = Fraction(2, 100)


def sloppy_token(p, q, source):
    program = article_token if source.bernoulli(SHARE) else speculative_token
    return program(p, q, source)


sloppy_distribution = list(enumerate_distribution(lambda source: sloppy_token(p, q, source)).values())
print("enumerated:", *sloppy_distribution, " as decimals:", *map(float, sloppy_distribution))

# %% [markdown]
# Enumeration is not impressed: 0.596 is not 0.6. It would see one in a billion as well. And the dice? Let us see how far
# the shares are from $p$ (total variation, as in section 2) after more and more draws. The counts of $n$ draws from a
# known distribution follow the *multinomial* distribution, and NumPy draws from that in one go. So we need not run a program ten million
# times, and can afford 200 runs of each size. Shown is the run in the middle, the median.

# %%
import numpy as np

generator = np.random.default_rng(0)
right, sloppy, article = (
    np.array([float(x) for x in distribution]) for distribution in (p, sloppy_distribution, article_distribution)
)


def runs(distribution, draws, repeats=200):
    return generator.multinomial(draws, distribution, size=repeats)


def median_distance(distribution, draws):
    return np.median(np.abs(runs(distribution, draws) / draws - right).sum(1) / 2)


marks = [10**k for k in range(1, 8)]
programs = {"the rule": right, "wrong in 2 of 100": sloppy, "the article's rule": article}
lines = {name: [median_distance(distribution, n) for n in marks] for name, distribution in programs.items()}
limits = {name: np.abs(distribution - right).sum() / 2 for name, distribution in programs.items()}
ends = "; ".join(f"{name} ends at {line[-1]:.5f}, exact {limits[name]:.3f}" for name, line in lines.items())
course.show(
    course.convergence_figure(marks, lines, limits),
    alt=f"Total variation distance to p after 10 to {marks[-1]:,} draws: {ends}.",
)

# %% [markdown]
# Chance alone leaves a distance that shrinks as $1/\sqrt{n}$: ten times closer takes a hundred times the draws. The
# article's rule gets stuck at 0.2 and is caught early. The other gets stuck at 0.004, and until chance has shrunk below
# that, the two lower lines cannot be told apart.

# %% [markdown]
# ### The well-meant test
#
# Here is a test as one might write it: 1,000 draws, and each share within 0.02 of $p$. How good is it? To find
# out, run *the test* many times: 2,000 times on correct code, and 2,000 times on the wrong program.


# %%
def passes(counted):
    return (np.abs(counted / counted.sum(1, keepdims=True) - right) < 0.02).all(1)


print(f"correct code fails the test in {1 - passes(runs(right, 1_000, 2_000)).mean():.0%} of the runs")
print(f"wrong code passes it in {passes(runs(sloppy, 1_000, 2_000)).mean():.0%} of the runs")

# %% [markdown]
# It blames the innocent often enough that somebody will loosen it, or pin the seed. And it lets this bug pass about as
# often as it lets correct code pass: it cannot tell one from the other at all. A test has **two** numbers:
#
# - its *size*, the chance to blame correct code,
# - its *power*, the chance to find a **named** fault.
#
# A test that has passed says something only if you know its power. A G test lets you *choose* the size: raise the alarm
# where the p-value is below it. The power you have to pay for, in draws.
#
# **Find the price by experiment.** How many draws does it take until the alarm goes off in 99 of 100 runs? Change
# `my_draws` and run the cell a few times before you read on.

# %%
my_draws = 10_000


def alarm_rate(distribution, draws, size, repeats=200):
    return np.mean([g_test(counted, right).p_value < size for counted in runs(distribution, draws, repeats)])


found, blamed = (alarm_rate(distribution, my_draws, 0.01, repeats=1_000) for distribution in (sloppy, right))
print(f"{my_draws:,} draws, size 1%: alarm in {found:.1%} of the runs of the wrong program,")
print(f"and in {blamed:.1%} of the runs of the correct one, where it should be about 1%")

# %% [markdown]
# Now all numbers of draws at once, for two sizes: 1%, and one in a million, which is what a suite needs that runs every
# day and must not cry wolf. The dashed lines are the package's `power`, a formula (noncentral chi-square).

# %%
from specdec_ref.proof import draws_needed, power

draws = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 500_000, 1_000_000, 2_000_000]
sizes = {"size 1%": 0.01, "size one in a million": 1e-6}
seen = {name: [alarm_rate(sloppy, n, size) for n in draws] for name, size in sizes.items()}
computed = {name: [power(sloppy, right, n, size) for n in draws] for name, size in sizes.items()}
course.show(
    course.power_figure(draws, seen, computed),
    alt="Share of runs in which the test finds the fault, by experiment. "
    + "; ".join(f"{name}: " + ", ".join(f"{n:,}: {r:.0%}" for n, r in zip(draws, seen[name])) for name in sizes),
)

# %%
for name, size in sizes.items():
    enough = next((f"{n:,}" for n, rate in zip(draws, seen[name]) if rate >= 0.99), "more than those")
    print(f"{name}: of the numbers tried, {enough} draws find the fault in 99 of 100 runs;")
    print(f"    by formula it takes {draws_needed(sloppy, right, size):,}")
print(f"your guess was {my_guess_draws:,}")

# %% [markdown]
# Why so many? A fault in a share $s$ of the calls moves the distribution by an amount that goes
# as $s$; chance has to shrink below that, and it shrinks as $1/\sqrt{n}$. So the draws go as $1/s^2$.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import mixture


def two_digits(n):
    return f"{int(float(f'{n:.1e}')):,}"


for percent in (100, 50, 20, 10, 5, 2, 1):
    needed = draws_needed(mixture(right, article, percent / 100), right, size=1e-6, wanted_power=0.99)
    product_ = needed * (percent / 100) ** 2
    print(f"wrong in {percent:3}% of the calls: {two_digits(needed):>9} draws; x share^2: {product_:.0f}")

# %% [markdown]
# That is why the package draws more than a million times where it wants to find 2%, states for every check the fault that
# it finds in 99 of 100 runs, and leaves the rest to enumeration.

# %% [markdown]
# ## 8. Who tests the tests?
#
# Plant bugs, and see whether they are found. The package keeps a list of edits of its own code, each a mistake that
# somebody made somewhere. `kill` swaps one in, runs the suites, and names the first check that objects. A check called
# *distribution* compares the distribution of whole texts, *acceptance* how much is kept, *generator* the source of chance.

# %%
from specdec_ref.proof import MUTANTS, kill, planted

by_name = {mutant.name: mutant for mutant in MUTANTS}
print(len(MUTANTS), "planted bugs. This is one of them:\n")
print(by_name["bonus from the wrong row"].diff())

# %%
for name in (
    "residual with q = 0",
    "bonus from the wrong row",
    "rollback by one",
    "q before filtering",
    "<= at u = 0",
    "draft cache without the last token",
):
    found = kill(by_name[name])
    print(f"{name:36}", f"found by: {found.check}" if found else "survives: a test is missing")

# %% [markdown]
# Look at the last one. A draft model that has forgotten a token proposes worse, yet it still reports the distribution that it drew
# from, and the proof asks for no more. So **the text stays exact, and fewer drafts are kept**. No test of the output can
# find that; a test of the *acceptance* can. Here is the text's distribution with that bug in the engine of section 4:

# %% tags=["nbval-check-output"]
with planted(by_name["draft cache without the last token"]):
    print("text still exact:", difference(enumerate_distribution(text), expected) < 1e-12)

# %% [markdown]
# ## 9. The rules side by side
#
# The rule of section 1 is not the only exact one. On four tokens, with $p = (.6, .2, .1, .1)$ and $q = (.7, .2, .05, .05)$:
#
# - **token**: the rule of section 1.
# - **match**: draw from $p$ as if there were no draft, and keep the draft if it happens to be the same token. What comes out
#   is the target's own draw, so it is exact without any proof. It does not even need $q$.
# - **token, for a certain draft**: nothing random went into it (lookup, or a model's likeliest token). Its distribution is 1 for that token; the
#   rule of section 1 shrinks to: keep with $p(x)$, else draw from $p$ without $x$.
# - **block**: judges all drafts of a round together. See below.
#
# Guess first: how often does each keep a draft?

# %% tags=["nbval-check-output"]
p4, q4 = fractions([".6", ".2", ".1", ".1"]), fractions([".7", ".2", ".05", ".05"])
certain = fractions([1, 0, 0, 0])  # the draft's likeliest token, always


def kept_share(rule, p, q):
    return sum(
        chance for (accepted, _), chance in round_distribution(rule, lambda _: p, lambda _: q).items() if accepted
    )


for name, rule, q_used in (
    ("token", "token", q4),
    ("block", "block", q4),
    ("match", "match", q4),
    ("token, certain draft", "token", certain),
):
    exact = emitted_distribution(rule, p4, q_used) == p4
    print(f"{name:21} keeps {float(kept_share(rule, p4, q_used)):.2f} of first drafts; emits p exactly: {exact}")

# %% [markdown]
# By formula: $\sum \min(p, q)$ for token and block, $\sum p\,q$ for match, $p(x)$ for a certain draft. All exact, at very different
# prices.
#
# A trap lies between two of them. Let a draft take its likeliest token, *and* report its softmax as $q$. It did not draw
# from that $q$, so the proof does not hold:


# %% tags=["nbval-check-output"]
def greedy_draft_softmax_q(p, q, source):
    x = q.index(max(q))
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(residual(p, q))


p2, q2 = fractions([".6", ".4"]), fractions([".8", ".2"])
print(
    "target:", *p2, " emitted:", *enumerate_distribution(lambda source: greedy_draft_softmax_q(p2, q2, source)).values()
)

# %% [markdown]
# ### Block verification
#
# No rule that tests *one* draft can keep more than $\beta$. But a round has several, and the rule of section 1 forgets
# something: a draft that the target likes *more* than the draft model did ($p/q > 1$) earns nothing for it. Block
# verification (Sun et al. 2024) carries the ratio of the whole prefix along and lets a lucky first token pay for a later
# one. Two tokens, $p = (1/3, 2/3)$, $q = (2/3, 1/3)$, two drafts:

# %% tags=["nbval-check-output"]
p3, q3 = fractions(["1/3", "2/3"]), fractions(["2/3", "1/3"])
for rule in ("token", "block"):
    outcomes = round_distribution(rule, lambda _: p3, lambda _: q3, gamma=2)
    whole = completed_distribution(outcomes, lambda _: p3, 3)
    exact = all(chance == p3[a] * p3[b] * p3[c] for (a, b, c), chance in whole.items())
    drafts_kept = sum(accepted * chance for (accepted, _), chance in outcomes.items())
    print(f"{rule}: {drafts_kept} drafts kept in a round, on average; the text is exact: {exact}")

# %% [markdown]
# The paper proves that block verification never keeps fewer. Do not take its word for it: try 500 random pairs of distributions, and
# the pair of above at several $\gamma$. Both numbers are exact expectations, no sampling.

# %%
import torch

from specdec_ref.verify import expected_accepted


def token_and_block(p, q, gamma):
    beta = torch.minimum(p, q).sum().item()
    return sum(beta**i for i in range(1, gamma + 1)), expected_accepted(p, q, gamma)


pairs = torch.from_numpy(np.random.default_rng(5).dirichlet(np.ones(4), size=(500, 2)))
gains = [b - t for t, b in (token_and_block(p, q, gamma=4) for p, q in pairs)]
print(f"500 random pairs, gamma 4: block keeps fewer in {sum(gain < -1e-12 for gain in gains)} of them,")
print(f"{np.mean(gains):.2f} drafts more on average, {max(gains):.2f} at most")

p_pair, q_pair = (torch.tensor([float(x) for x in distribution], dtype=torch.float64) for distribution in (p4, q4))
for gamma in (1, 2, 4, 8):
    by_token, by_block = token_and_block(p_pair, q_pair, gamma)
    print(
        f"(.6, .2, .1, .1), gamma {gamma}: token {by_token:.2f}, block {by_block:.2f}: {by_block / by_token:.3f} times"
    )

# %% [markdown]
# At $\gamma = 1$ both are the same rule. For that pair the gain is small at first and grows with $\gamma$; it costs nothing
# but a few more multiplications.

# %% [markdown]
# ## 10. Rules that are not exact, and by how much
#
# Some rules give exactness up for more kept drafts. *Leniency* $l$ (Leviathan et al., appendix A.5) compares $p$ with
# $l\,q$, so that a draft passes more easily. *Typical acceptance* (Medusa) keeps whatever the target finds plausible
# enough. "Hardly changes the output" is how they are advertised; enumeration says what it is. TV is the largest
# difference that the rule can make to the probability of anything.

# %% tags=["nbval-check-output"]
from functools import partial

from specdec_ref.proof import total_variation
from specdec_ref.verify import verify_lossy_leniency

for leniency in ("1", "0.9", "0.7", "0.5", "0.2"):
    rule = partial(verify_lossy_leniency, leniency=Fraction(leniency))
    off = total_variation(dict(enumerate(emitted_distribution(rule, p, q))), dict(enumerate(p)))
    print(f"leniency {leniency:3}  keeps {float(kept_share(rule, p, q)):.3f}  TV of a token {float(off):.3f}")

# %% [markdown]
# A pattern? What the rule keeps beyond $\beta = 0.5$ it pays for in TV, one for one. And that is one token. Over a text it
# adds up; here for leniency 0.5 and typical acceptance in the whole engine, on one of the package's scripted scenarios:

# %% tags=["nbval-check-output"]
from specdec_ref.proof import Scenario

print("tokens in the text     1      2      3")
for rule in ("token", "lossy-leniency", "lossy-typical"):
    off = [Scenario(rule, budget=n).total_variation() for n in (1, 2, 3)]
    print(f"{rule:17}", *(f"{x:6.3f}" for x in off))

# %% [markdown]
# The first column is 0 for all three, and by rights: with a budget of one token the engine drafts nothing, since each round
# adds a token of the target's own.
#
# Whether such a price is worth paying is for you to say. That there *is* one should stand in the name: the package calls
# these rules `lossy-...`.

# %% [markdown]
# ## 11. What "exact" means on a computer that rounds
#
# All of this holds for real numbers. A computer rounds, and a pass over nine tokens adds its numbers in another order than
# nine passes over one. So the rule is exact for the $p$ *that it is given*, and that $p$ differs a little from the one that
# plain decoding would have seen. The article promises the target's distribution "down to machine precision". That of bfloat16
# is 8 significant bits.
#
# Greedy decoding shows it best: where the two best tokens are all but equally likely, the rounding may turn them. Three
# prompts, 12 tokens each, plain and speculative, in two precisions:

# %%
from specdec_ref import NGramDrafter, load_model
from specdec_ref.measure import compare_greedy

models = {dtype: load_model(dtype=dtype) for dtype in ("bfloat16", "float32")}
chosen = [course.prompt(name) for name in ("translation-1", "code-2", "rewrite-1")]
kinds = {}
for dtype, model in models.items():
    plain, speculative = SpeculativeEngine(model, gamma=0), SpeculativeEngine(model, NGramDrafter(), gamma=8)
    for request in chosen:
        a, b = (e.generate(request.messages, max_new_tokens=12) for e in (plain, speculative))
        found = compare_greedy(a.tokens, b.tokens, model, request.messages)
        kinds[dtype, request.id] = found.kind
        print(f"{dtype:9} {request.id:14} {found}")

# %%
for dtype in models:
    here = Counter(kind for (d, _), kind in kinds.items() if d == dtype)
    print(f"{dtype}: {here['same']} texts the same, {here['near-tie']} part at a near-tie, {here['error']} errors")

# %% [markdown]
# `compare_greedy` goes to the first token in which two texts differ, computes the logits there again in passes of several
# widths, and measures two things: the *gap* between the two tokens, and the *rounding scale*, by how much a logit moves when
# nothing changes but the width of the pass. A gap that such movements of both logits explain, with some margin, is a
# near-tie. Any other difference would be a bug, and it would say so. Behind a flip the two texts go on differently, and say nothing more.
#
# Do not wave every difference away as rounding: **list them**. How many places of a text are near-ties at all? Each of two
# logits may move, so a gap counts as one here if it is at most twice the rounding scale. (The gap depends on the width of
# the pass, too; here it is taken from one pass over everything.)

# %%
from specdec_ref import encode_prompt
from specdec_ref.measure import logits_by_shape

request, model = chosen[0], models["bfloat16"]
ids = encode_prompt(request.messages, model)
written = SpeculativeEngine(model, gamma=0).generate(request.messages, max_new_tokens=12).tokens
by_width = {dtype: logits_by_shape(m, ids, written[:6]).double() for dtype, m in models.items()}
rows = by_width["bfloat16"]  # the logits of one place, from passes of several widths
moved = (rows - rows[0])[:, rows[0].topk(8).indices].abs().max().item()
spacing = 2.0 ** (np.floor(np.log2(rows.max().item())) - 7)
print(f"the best logit is {rows.max():.1f}; there the next bfloat16 is {spacing} away; seen to move by {moved}")

with torch.inference_mode():
    everything = torch.tensor([*ids, *written])
    logits = model.forward(everything, model.new_cache(len(everything)), slice(len(ids) - 1, -1))
best = logits.float().topk(2)
gaps = best.values[:, 0] - best.values[:, 1]
print(f"{(gaps <= 2 * moved).sum()} of {len(gaps)} places are near-ties. The closest:")
for place in gaps.argsort()[:6].tolist():
    words = (repr(model.tokenizer.decode([t])) for t in best.indices[place].tolist())
    print(f"  token {place:2}: {' or '.join(words):24} gap {gaps[place]:.3f}")

# %% [markdown]
# And with sampling? There no token "flips", but the distribution itself moves. By how much, as TV between the distributions that passes of
# several widths give for the same place:

# %%
for dtype, rows in by_width.items():
    distributions = torch.softmax(rows, -1)
    tv = (distributions - distributions[0]).abs().sum(-1).max().item() / 2
    print(f"{dtype:9} the distribution of a token moves by a TV of up to {tv:.1e} between passes of different widths")

# %% [markdown]
# That is the honest claim: **the rule adds nothing to what the arithmetic does anyway**. Changing the batch size, the
# kernel or the GPU moves a distribution in the same way. In float64 greedy texts are the same, token for token, and the package's
# tests require it.
#
# Must the width matter? It does because fast kernels choose the order of their sums by it. A kernel that treats each row of
# a pass by itself, with one order of sums whatever stands beside it, gives a token the same bits in any pass (*batch
# invariance*: He et al. 2025, "Defeating Nondeterminism in LLM Inference"). The package's norms, and its attention in
# bfloat16 on a CPU, are written so. Whether the matrix products are, too, depends on the library and the machine. Here is
# the default model, in 4 bits where this machine can:

# %%
from specdec_ref.measure import WIDTHS

default = load_model()
# Without the pass over the whole prompt: so many rows take other kernels.
rows = logits_by_shape(default, ids, written[:6])[1:]
widest = (rows - rows[0]).abs().max().item()
print(f"between passes of {WIDTHS[0]} to {WIDTHS[-1]} tokens a logit moves by at most {widest:.3g}")
plain, speculative = SpeculativeEngine(default, gamma=0), SpeculativeEngine(default, NGramDrafter(), gamma=8)
pairs = [[e.generate(r.messages, max_new_tokens=40).tokens for e in (plain, speculative)] for r in chosen]
print(f"{sum(a == b for a, b in pairs)} of {len(pairs)} texts of up to 40 tokens are the same")

# %% [markdown]
# That is one place, in passes of a few widths. Where it holds for every pass that the engine makes, plain and speculative
# decoding compute the same bits, and no near-tie can part their texts.

# %% [markdown]
# ## Back to your guesses

# %%
for what, guess, found in (
    ("drafts kept", my_guess_kept, kept),
    ("token 2 in the output", my_guess_token_2, float(emitted_distribution("token", p, q)[2])),
    ("draws for a fault of 2%, size 1%", my_guess_draws, draws_needed(sloppy, right, 0.01)),
):
    print(f"{what:34} your guess {guess:<8,} found {found:,}")

# %% [markdown]
# ## Check yourself
#
# **1. A draft always proposes the worst token, one that the target gives probability 0. What comes out?**
#
# <details><summary>Mostly that token</summary>You may be thinking of an average of the two models. It is kept with
# probability min(1, 0/q) = 0: never.</details>
# <details><summary>The target's distribution, one token a round</summary>Yes. Everything is rejected, the residual is p itself as q
# covers none of it, and each round yields its correction only. Exact, and slow.</details>
# <details><summary>Nothing, the engine hangs</summary>No: a rejection is always followed by a correction, and the residual
# has mass whenever something can be rejected.</details>
#
# **2. After a rejection somebody draws from p, "to be on the safe side". What is wrong?**
#
# <details><summary>Nothing, p is what we want</summary>The likely mistake: p is what the <i>whole</i> step has to give. The
# kept drafts have delivered min(p, q) already. A correction from p delivers a part of that again.</details>
# <details><summary>Tokens that the draft likes enough come too often</summary>Yes: min(p, q) + (1 - beta) p instead of p,
# which is too much wherever q > beta p. In section 6 token 0, with less than that, got 40% instead of 60%.</details>
#
# **3. Your test draws 10,000 tokens and passes, p-value 0.4. What do you know?**
#
# <details><summary>The code is correct with a probability of 40%</summary>No. The p-value is computed <i>under the
# assumption</i> that the code is correct: correct code would stray this far or farther in 40% of all runs. It is no
# probability of correctness.</details>
# <details><summary>The code is correct</summary>Only that no fault was found that this test had the power to find. Section
# 7: a fault in 2% of the calls passes 10,000 draws nearly always.</details>
# <details><summary>That larger faults are unlikely, as far as the power goes</summary>Yes. With the power function you can
# say which: name the fault, and compute its chance to be seen with 10,000 draws.</details>
#
# **4. A draft model drops its last token when its own probability is low, after it has drawn it. Does that matter?**
#
# <details><summary>No, fewer drafts are only slower</summary>It would be so if the decision were made <i>before</i> the draw.
# Made after it, unlikely tokens are dropped and likely ones stay: those that stay no longer follow the reported q.</details>
# <details><summary>Yes, the distribution changes</summary>Right: the proof needs a draft that was drawn from the q that it reports.
# Decide before drawing, or propose the token and stop after it.</details>

# %% [markdown]
# ## In production
#
# - **vLLM** has a `RejectionSampler` (`vllm/v1/sample/rejection_sampler.py`). Its words: *accepted* tokens, *recovered* tokens
#   (our corrections) and *bonus* tokens. For n-gram drafts it gets `draft_probs=None`, our one-hot distribution. In newer versions
#   `speculative_config` takes `rejection_sample_method`, `"standard"` or `"block"` (block verification; there is also
#   `"synthetic"`, which accepts at given rates and is for benchmarks), and `draft_sample_method`, `"greedy"` or
#   `"probabilistic"`. Its documentation, too, keeps exactness
#   in theory apart from what hardware numerics leave of it.
# - **transformers** has `_speculative_sampling` in `generation/utils.py`, used for `assistant_model=` with `do_sample=True`.
#   Newer versions offer `assistant_ensemble_weight`, a lossy rule, and their documentation says that it is biased. How
#   does yours treat $u = 0$? The cell below looks.
# - **TensorRT-LLM** has `use_rejection_sampling` in its speculative configurations (a prototype), off by default: then sampled requests
#   are verified by exact match, our *match* rule. Exact either way; you know now what the difference is.

# %%
import inspect

import transformers
from transformers.generation import utils

source_code = inspect.getsource(getattr(utils, "_speculative_sampling", lambda: None))
test = (
    "u <= p/q"
    if "<= probability_ratio" in source_code
    else "u < p/q"
    if "< probability_ratio" in source_code
    else "unknown"
)
print(f"transformers {transformers.__version__}, _speculative_sampling: the test is {test}")

# %% [markdown]
# ## What to remember
#
# - Keep with min(1, p/q), else draw from max(0, p - q). The chance to reject is the residual's own normaliser: that is the
#   whole proof.
# - What is kept on average is 1 - TV(p, q). The draft may be anything, as long as the distribution that it *reports* is true.
# - For a text: the rest is right given the first token, however that came about. Induction does the rest.
# - Enumerate what you can, sample what you must, replay the numbers you fear; and state the power of a test. A fault of 2%
#   takes several hundred thousand draws.
# - Exact is meant for the p that was computed. Rounding moves p; list the near-ties, and call the rest bugs.
#
# **Problem set.** [ps04-rejection-sampling](../exercises/ps04-rejection-sampling/ps04-rejection-sampling.ipynb), with a check below each part.
#
# **Exercises.** (1) Write a rule that takes the *likelier of two* sampled drafts, and find its distribution by enumeration for
# p = q = (.6, .4). (2) Point the test of section 7 at `transformers.generation.utils._speculative_sampling`: feed it
# log-probabilities of `target_distribution` and `draft_distribution`, and choose the number of draws by the fault that you want to find.
# (3) Choose a mutant from `MUTANTS`, read its `diff()`, and predict which check finds it.
#
# **Sources.** Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), proof in appendix A.1, leniency in A.5; Chen et al. 2023
# (arXiv 2302.01318); Sun et al. 2024, *Block verification accelerates speculative decoding* (arXiv 2403.10444); Cai et al.
# 2024, *Medusa* (arXiv 2401.10774), typical acceptance.
