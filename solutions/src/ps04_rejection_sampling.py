# %% [markdown]
# # Problem set 04 · Rejection sampling
#
# *85 minutes, 20 points. Follows lesson 04. No GPU, no network, no model is loaded.*
#
# By the end you can write the rule of speculative decoding for one token and for a whole round; keep it exact where
# both sides are filtered; design a statistical test whose size and power you can state; and find a fault that looks
# like a saving of time. (Part 4 needs the optional lesson 04b, or some statistics.)
#
# | part | | minutes | points |
# |---|---|---|---|
# | 1 | One token: keep it, or make up for it ★ | 15 | 1 + 2 |
# | 2 | A round of drafts ★★ | 20 | 4 |
# | 3 | Top-p on both sides ★★ | 15 | 2 + 2 |
# | 4 | A test that knows its strength ★★★ | 15 | 3 |
# | 5 | Find the bug ★★ | 12 | 1 + 2 |
# | 6 | In words ★★ | 8 | 3 |
#
# Replace each line `raise NotImplementedError(...)` by your code. The cell below it checks your code, with other
# numbers each time, and says what is wrong. Run it as often as you like. Hints open one at a time.

# %% locked="setup"
import random

import numpy as np

from specdec_course import new_figure, show
from specdec_course.checks import ps04_rejection as checks
from specdec_ref.proof import draws_needed, enumerate_distribution, g_test, power


class Dice:
    """A random source, as in the lesson. Everything that is random goes through these two methods."""

    def __init__(self, seed):
        self.generator = random.Random(seed)

    def bernoulli(self, probability):
        """True with this probability: u < probability, for a u that is uniform in [0, 1)."""
        return self.generator.random() < probability

    def categorical(self, distribution):
        """A token, drawn from this distribution."""
        return self.generator.choices(range(len(distribution)), [float(x) for x in distribution])[0]


def try_out(call, *arguments):
    """What your function returns; or what it raises, without stopping the notebook."""
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# %% [markdown]
# **What goes through this notebook.**
#
# - Tokens are the whole numbers 0, 1, 2, ...
# - A *distribution* is a list with one probability for each token: with `p = [0.6, 0.3, 0.1]`, token 0 has probability
#   60%. `p` is the target's distribution, `q` the draft's.
# - What you are given is a list of floats. What you return, or pass to `source.categorical`, may be a list, a tuple, a
#   NumPy array or a torch tensor.
# - Don't change the lists that you are given. Return a new list, even where it has the same numbers.
#
# **How your code is checked.** Code that draws gets a `source` with the two methods above. Every random choice has to
# come from it. The checks replace it by a source that visits every answer with its probability, like the walk in section
# 3 of the lesson: your function is run once for each way in which its random choices can fall. So the checks know the
# distribution of your result exactly, and luck plays no part. Two things follow.
#
# - What your function does may depend only on its arguments and on the answers of `source`.
# - In one run it may make at most 200 random choices. A loop that draws again *until* a token fits has no last way, so it
#   can't be enumerated. You don't need one: drawing again until a token is in a set is the same as drawing once, from the
#   distribution with 0 for all other tokens, divided by its sum.
#
# You can enumerate, too, with `enumerate_distribution`. Here is a program that flips a coin, then draws from a
# distribution:

# %%
print(enumerate_distribution(lambda source: (source.bernoulli(0.25), source.categorical([0.5, 0.5]))))

# %% [markdown]
# ## 1. One token: keep it, or make up for it
#
# ★ · *15 minutes · 1 point and 2 points*
#
# The draft model proposes a token $x$, drawn from $q$, so $q(x) > 0$. It is kept with probability
# $\min(1, p(x)/q(x))$. First the decision itself, from a number $u$ that is uniform in $[0, 1)$: it may be 0, it is
# never 1. Two things must hold at the ends, whatever $u$ is: a token with $p(x) \ge q(x)$ is always kept, and a
# token with $p(x) = 0$ never.


# %% solve="accept"
def accept(p_x, q_x, u):
    """Whether a draft x is kept.

    p_x, q_x: the probabilities of x in p and in q; q_x is above 0. u: uniform in [0, 1).
    Returns True or False.
    """
    ### BEGIN SOLUTION
    return u < p_x / q_x
    ### END SOLUTION


# %% test="accept" points=1
checks.accept(accept, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary>A number that is uniform in [0, 1) lies below 0.3 in 30% of all cases.
# <details><summary>Hint 2</summary>Try p_x = 0 and u = 0 on paper. Does your comparison keep the draft?
# </details></details>
#
# If the draft is dropped, the token comes from the *residual*: $\max(0, p - q)$, divided by its sum. Where $p = q$
# there is nothing to divide by. In exact arithmetic nothing is ever dropped then; on a computer that rounds it can
# happen, so the function has to return something sensible: a copy of $p$. (Rounding can also make $p$ and $q$ differ in
# the last digit and still leave no difference above 0. So look at the sum, not at whether $p$ and $q$ are equal.) If
# anything is missing, however little, it is the residual, scaled up.


# %% solve="residual"
def residual(p, q):
    """The distribution that the token is drawn from after a rejection: max(0, p - q), scaled to sum to one.

    p, q: distributions over the same tokens, any number of them. Some entries may be 0.
    Returns a new distribution; where max(0, p - q) is 0 for every token, a copy of p.
    """
    ### BEGIN SOLUTION
    missing = [max(0.0, a - b) for a, b in zip(p, q)]
    total = sum(missing)
    return [m / total for m in missing] if total > 0 else list(p)
    ### END SOLUTION


# %% test="residual" points=2
checks.residual(residual, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Three steps: a list of the differences, each cut at 0; their sum; the division.
# <details><summary>Hint 2</summary>Look at the sum before you divide by it.
# </details></details>
#
# A number to look at: in the lesson the sum that you divide by was the chance of a rejection. Here it is again.

# %%
p, q = [0.6, 0.3, 0.1], [0.1, 0.3, 0.6]
print("residual of", p, "and", q, ":", try_out(residual, p, q))
print("sum of max(0, p - q):", sum(max(0, a - b) for a, b in zip(p, q)))
print("1 - sum of min(p, q):", 1 - sum(map(min, p, q)))

# %% [markdown]
# ## 2. A round of drafts
#
# ★★ · *20 minutes · 4 points*
#
# A round has $\gamma$ drafts. The target looks at all of them in one pass, and gives a distribution for each place:
# what it would have said after the context, after the first draft, after the second, and so on. That is **one row
# more** than there are drafts. For $\gamma = 3$:
#
# | place | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | the draft | `drafts[0]` | `drafts[1]` | `drafts[2]` | |
# | the distribution that it was drawn from | `q[0]` | `q[1]` | `q[2]` | |
# | the target's distribution at this place | `p[0]` | `p[1]` | `p[2]` | `p[3]` |
#
# The round goes from left to right.
#
# 1. Keep the draft at place $i$ with probability $\min(1, p_i(x)/q_i(x))$.
# 2. At the first draft that is dropped, draw a *correction* from the residual of that place. The round is over.
# 3. If no draft was dropped, draw a *bonus* from the target's distribution after the last draft.
#
# So each round ends with a token of the target's own. Three examples for drafts 5, 7, 2: if all are kept, the result
# is `[5, 7, 2, bonus]`. If the second is dropped, it is `[5, correction]`, and the third draft does not matter any
# more. Without any draft, $\gamma = 0$, it is `[bonus]`.
#
# Use `source.bernoulli(probability)` for each decision, and `source.categorical(distribution)` for each draw.
# `source` has these two methods and no other, as `Dice` above: there is no $u$ to ask for, so you do not call
# `accept` here. Inside, `bernoulli` draws a $u$ and compares it as `accept` does; a probability above 1 counts as 1.
#
# As in part 1, leave what you are given as it is: `drafts` and the rows are needed again.


# %% solve="verify"
def verify(drafts, q, p, source):
    """The tokens that a round emits: the kept drafts, and one more token.

    drafts: list of gamma tokens; gamma may be 0. q: gamma distributions, drafts[i] was drawn from q[i].
    p: gamma + 1 distributions, the target's at each place. source: has bernoulli(probability) and
    categorical(distribution). Returns a list of 1 to gamma + 1 tokens.
    """
    ### BEGIN SOLUTION
    for i, x in enumerate(drafts):
        if not source.bernoulli(p[i][x] / q[i][x]):
            return [*drafts[:i], source.categorical(residual(p[i], q[i]))]
    return [*drafts, source.categorical(p[len(drafts)])]
    ### END SOLUTION


# %% test="verify" points=4
checks.verify(verify, points=4)

# %% [markdown]
# <details><summary>Hint 1</summary>One loop over the drafts. There are two places where the function returns.
# <details><summary>Hint 2</summary>Inside the loop, if the draft at place i is dropped: return the drafts before it,
# and a token drawn from <code>residual(p[i], q[i])</code>.
# <details><summary>Hint 3</summary>After the loop all drafts are kept. The last row is <code>p[len(drafts)]</code>,
# and <code>p[-1]</code> is the same row.
# </details></details></details>
#
# Given: how such a round is used. `plain_draft` lets a draft model propose; `one_round` asks the target for its rows,
# and then your `verify`. Models are functions here: a list of tokens goes in, the distribution of the next token
# comes out.


# %% locked="one_round"
def plain_draft(draft, prefix, gamma, source):
    """gamma drafts after `prefix`, and the distributions that they were drawn from."""
    drafts, distributions = [], []
    for _ in range(gamma):
        q = draft(prefix + drafts)
        drafts.append(source.categorical(q))
        distributions.append(q)
    return drafts, distributions


def one_round(target, draft, prefix, gamma, source, drafter=plain_draft):
    """The tokens that a round adds to `prefix`."""
    drafts, q = drafter(draft, prefix, gamma, source)
    p = [target(prefix + drafts[:i]) for i in range(len(drafts) + 1)]
    return verify(drafts, q, p, source)


def first_token_distribution(p, q, drafter=plain_draft):
    """The exact distribution of the first token of a round with one draft, where the models always say p and q."""
    distribution = enumerate_distribution(
        lambda source: int(one_round(lambda _: p, lambda _: q, [], 1, source, drafter)[0])
    )
    return {token: round(float(distribution.get(token, 0)), 9) for token in sorted({*range(len(p)), *distribution})}


# %%
p, q = [0.6, 0.3, 0.1], [0.1, 0.3, 0.6]
print("target:                 ", dict(enumerate(p)))
print("first token of a round: ", try_out(first_token_distribution, p, q))
dice = Dice(seed=1)
print("five rounds of 3 drafts:", try_out(lambda: [one_round(lambda _: p, lambda _: q, [], 3, dice) for _ in range(5)]))

# %% [markdown]
# ## 3. Top-p on both sides
#
# ★★ · *15 minutes · 2 points and 2 points*
#
# Top-p sampling with a *mass* of 0.9 leaves out the unlikely tokens. It sorts the tokens by their probability, goes
# down from the likeliest, adds up, and stops as soon as the sum is 0.9 **or more**. The token that crosses the
# threshold stays. Then what is left is scaled to sum to one.
#
# | distribution | mass | sums | left |
# |---|---|---|---|
# | `[0.5, 0.35, 0.1, 0.05]` | 0.9 | 0.5, 0.85, **0.95** | tokens 0, 1, 2 |
# | `[0.125, 0.25, 0.625]` | 0.75 | 0.625, **0.875** | tokens 2, 1 |
# | `[0.25, 0.5, 0.25]` | 0.75 | 0.5, **0.75** | tokens 1, 0: of equally likely ones the lower comes first |
#
# Tokens keep their numbers: the second row becomes `[0, 0.25 / 0.875, 0.625 / 0.875]`.


# %% solve="top_p"
def top_p(distribution, mass):
    """The distribution after top-p: the fewest of the likeliest tokens that hold `mass` or more, scaled to sum to one.

    distribution: one probability for each token. mass: above 0 and up to 1. Of equally likely tokens the lowest stay.
    Returns a new distribution of the same length, with 0 for each token that was left out.
    """
    ### BEGIN SOLUTION
    kept, total = [], 0.0
    for x in sorted(
        range(len(distribution)), key=lambda x: -distribution[x]
    ):  # sorted() leaves equal ones in their order
        if total >= mass:
            break
        kept.append(x)
        total += distribution[x]
    return [distribution[x] / total if x in kept else 0.0 for x in range(len(distribution))]
    ### END SOLUTION


# %% test="top_p" points=2
checks.top_p(top_p, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Sort the token numbers by probability, not the probabilities: you have to know
# where each one belongs. For a token ask what the sum was <i>before</i> it: below the mass it stays.
# <details><summary>Hint 2</summary><code>sorted(range(len(distribution)), key=lambda x: -distribution[x])</code>
# gives the tokens from the likeliest down, with the lower number first where two are equally likely. (torch.sort does
# that with stable=True only.)
# </details></details>
#
# Now speculation with top-p. The user asked for a target **with** top-p, so what comes out has to follow the filtered
# $p$. The draft's distribution is filtered too, with the same mass, since its unlikely tokens would be dropped anyway.
# Write both sides of one token: `propose` draws a draft and reports a distribution; `judge` keeps the draft or draws a
# correction. The proof of the lesson holds for the distribution that the draft was **really** drawn from. Which one is
# that?
#
# Both functions get distributions *before* any filter, except `reported`, which `judge` uses as it is. They are checked
# alone and together. Alone, `judge` gets a correct draft and a correct `reported`, as a list; together, it gets exactly
# what your `propose` returned.


# %% solve="both_sides"
def propose(q, mass, source):
    """The draft's side: a token drawn from q after top-p.

    q: the draft model's distribution before any filter. mass: of top-p. source: as in part 2.
    Returns the pair (x, reported): the token, and the distribution that it was drawn from, with one probability for
    every token of the vocabulary (0 for those left out) and a sum of one.
    """
    ### BEGIN SOLUTION
    reported = top_p(q, mass)
    return source.categorical(reported), reported
    ### END SOLUTION


def judge(p, x, reported, mass, source):
    """The target's side: keeps the draft x, or draws from a residual, by the rule of part 1.

    p: the target's distribution before any filter. mass: of top-p. x: the draft. reported: the distribution that x was
    drawn from, already filtered. source: as in part 2.
    Returns the token that comes out. If x was drawn from `reported`, it follows p after top-p.
    """
    ### BEGIN SOLUTION
    p = top_p(p, mass)
    if source.bernoulli(p[x] / reported[x]):
        return x
    return source.categorical(residual(p, reported))
    ### END SOLUTION


# %% test="both_sides" points=2
checks.both_sides(propose, judge, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Each side filters its own distribution, once. Everything after that happens with
# the filtered distributions: drawing, the ratio, the residual.
# <details><summary>Hint 2</summary><code>reported</code> is the output of your <code>top_p</code>, and
# <code>judge</code> uses it as it comes. A draft that top-p has taken out of p has probability 0 there: never kept.
# </details></details>

# %%
p, q, mass = [0.5, 0.3, 0.15, 0.05], [0.3, 0.1, 0.4, 0.2], 0.75


def filtered_token(source):
    x, reported = propose(q, mass, source)
    return int(judge(p, x, reported, mass, source))


print("p after top-p:", try_out(top_p, p, mass))
print("what comes out:", try_out(enumerate_distribution, filtered_token))

# %% [markdown]
# ## 4. A test that knows its strength
#
# ★★★ · *15 minutes · 3 points*
#
# Enumeration needs a program that takes its random choices from a source. Often there is none: you can only call the
# program many times, and count. Write a test for that, `trusts(sample, distribution)`. It gets
#
# - `sample`, a function: `sample(n)` calls the program n times and returns the **counts** of its tokens, a list with
#   one whole number for each token. You may call it several times; each call draws new tokens, and all of them count
#   towards the budget below;
# - `distribution`, the distribution that the program should have, a list: 2 to 8 tokens, each with a probability of 0
#   or of at least 0.01.
#
# It returns True for "no objection" and False for "alarm". The contract has to hold for **every** such distribution:
#
# | | what | in figures |
# |---|---|---|
# | size | the probability of an alarm where the program is right | at most **1 in 1,000** |
# | power | that of an alarm where its distribution is off by a total variation of **0.02** or more | at least **99%** |
# | forbidden tokens | that of an alarm where a token of probability 0 comes in 1 of 1,000 calls | at least **99%** |
# | budget | draws in one run of the test, over all calls of `sample` | at most **40,000** |
# | time | one run of the test | at most about **5 ms** |
#
# (Total variation is half of the sum of all $|p - q|$, as in the lesson.) The budget leaves little room. So two questions
# come before the code. Which pair of distribution and fault, among all that the contract allows, needs the most draws?
# And which way to compare counts with a distribution sees a fault that is spread thinly over all tokens?
#
# How the test works inside is up to you. You may draw random numbers of your own: this is the one part whose check runs
# your code instead of enumerating it. Three functions of lesson 04b are here:
#
# - `g_test(counts, distribution).p_value`; each possible token needs an expected count of at least 25;
# - `power(wrong_distribution, distribution, draws, size)`, of a G test;
# - `draws_needed(wrong_distribution, distribution, size, wanted_power)`, for a G test.


# %% solve="trusts"
def trusts(sample, distribution):
    """A test of a program that can only be run: True if there is no objection, False for an alarm.

    sample: sample(n) gives the counts of n draws, one for each token; 40,000 draws at most in one run.
    distribution: what the program should draw from; 2 to 8 tokens, probabilities 0 or at least 0.01.
    """
    ### BEGIN SOLUTION
    # A fault of total variation d has KL(fault || distribution) >= 2 d^2 (Pinsker), so G has a noncentrality of at
    # least 4 n d^2 = 0.0016 n. The most draws are needed where that is reached and the degrees of freedom are many: 8
    # tokens of 0.125, half of them 0.005 up, half down. draws_needed says 28,357 there; with 36,000 the power is 0.999.
    return g_test(sample(36_000), distribution).p_value >= 0.001
    ### END SOLUTION


# %% test="trusts" points=3
checks.trusts(trusts, points=3)

# %% [markdown]
# The check runs your test 6,000 times on programs that are right, 1,000 times on the hardest fault, and 200 times on
# each of five others. Those are 8,000 runs, and at marking a cell is stopped after 60 seconds: hence the 5 ms. What
# the check itself adds is small, and if your test takes more than 2 ms it says how long all will take. Bad luck alone
# does not fail a test that keeps the contract: the limits leave room for it (less than one chance in a million). That
# has its price, and so the check is a test that knows its own strength:
#
# | your test has | the check objects with probability |
# |---|---|
# | a size of 1 in 1,000, a power of 99% | less than 0.000001 |
# | a size of 0.3% / 0.5% / 0.6% / 1% | 14% / 92% / 99% / nearly 100% |
# | a power, for the hardest fault, of 97% / 96% / 95% / 90% | 45% / 94% / 99.8% / nearly 100% |
#
# So "right" does not say that you keep the contract to the digit. `power` does that, for a G test.
#
# To try your test yourself: `make_sample(distribution, seed)` makes a program that draws from a distribution. Change
# `wrong_distribution`, spread the fault over more tokens, and see how often the alarm goes off.


# %% locked="make_sample"
def make_sample(distribution, seed):
    """A program that draws from `distribution`, as sample(n) -> counts."""
    generator = np.random.default_rng(seed)
    return lambda n: generator.multinomial(n, distribution).tolist()


def alarm_rate(test, distribution, actual, runs=100):
    """The share of runs in which `test` raises the alarm, where the program draws from `actual`."""
    return sum(not test(make_sample(actual, seed), distribution) for seed in range(runs)) / runs


# %%
distribution, wrong_distribution = [0.6, 0.3, 0.1], [0.58, 0.31, 0.11]
counts = make_sample(wrong_distribution, seed=0)(5_000)
print(
    "5,000 draws from the wrong distribution:",
    counts,
    "p-value of a G test:",
    round(g_test(counts, distribution).p_value, 4),
)
print("alarms, right program:", try_out(alarm_rate, trusts, distribution, distribution))
print("alarms, wrong program:", try_out(alarm_rate, trusts, distribution, wrong_distribution))
print(
    "a G test with 10,000 draws finds it with probability",
    round(power(wrong_distribution, distribution, 10_000, 0.001), 3),
)
print("draws that a G test needs for it:", draws_needed(wrong_distribution, distribution, 0.001, 0.99))

# %% [markdown]
# <details><summary>Hint 1</summary>Two decisions: a border for the p-value, which is the size, and a number of draws,
# which gives the power. What is the hardest distribution among those allowed? Try <code>draws_needed</code> with 3
# and with 8 tokens, and with a fault that sits in two tokens and one that is spread over all of them.
# <details><summary>Hint 2</summary>The hardest distribution has 8 tokens. A border for each single token does not
# find a thin fault within the budget; adding up the deviations of all tokens, as G does, finds it. More draws never
# hurt. <details><summary>Hint 3</summary>One look with one border has the size that you choose. Ten looks with that
# border each have nearly ten times the size.
# <details><summary>Hint 4</summary><code>g_test</code> settles a count where the distribution has 0 with a p-value of
# 0. If you write your own sum, look out for a division by 0 there, and do not leave these tokens out.
# </details></details></details></details>

# %% [markdown]
# ## 5. Find the bug
#
# ★★ · *12 minutes · 1 point and 2 points*
#
# A draft that the draft model itself gives little probability will most likely be dropped. Why spend the target's
# time on it? Here is a drafter that stops there. `verify` can deal with fewer than $\gamma$ drafts. The review said:
# "Each draft is reported with the distribution that it was drawn from, and fewer drafts can only be slower. Approved."


# %% locked="careful_draft"
def careful_draft(draft, prefix, gamma, source, sure=0.5):
    """Up to gamma drafts, and the distributions that they were drawn from. Stops early where the draft model is not
    sure.
    """
    drafts, distributions = [], []
    while len(drafts) < gamma:
        q = draft(prefix + drafts)
        x = source.categorical(q)
        if q[x] < sure:  # not worth the target's time
            break
        drafts.append(x)
        distributions.append(q)
    return drafts, distributions


# %% [markdown]
# **Show the bug.** Take a round with one draft ($\gamma = 1$, `sure=0.5`), and models that say the same after every
# prefix. The first token of such a round should follow $p$. Find a $p$ and a $q$ for which it does not, by a total
# variation of 0.02 or more, and say which distribution comes out. You may compute that distribution on paper; if your `verify` is right,
# `first_token_distribution(p, q, careful_draft)` computes it too. Many answers are right.


# %% solve="witness"
def witness():
    """Returns (p, q, emitted): two distributions over the same tokens, and the distribution of the first token that comes out.

    Three lists of numbers, emitted to two digits or better.
    """
    ### BEGIN SOLUTION
    # Even where p = q. Token 0 is kept (0.6); token 1 is dropped, and then p draws: 0.4 * 0.6 more for token 0.
    return [0.6, 0.4], [0.6, 0.4], [0.84, 0.16]
    ### END SOLUTION


# %% test="witness" points=1
checks.witness(witness, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary>Where no draft is left, the target gives one token from p. For which tokens x does
# that happen?
# <details><summary>Hint 2</summary>If the draft model is sure of every token that it can draw, or of none, all is
# well. So q needs one token with 0.5 or more, and others with less.
# <details><summary>Hint 3</summary>Try p = q. A token with q(x) >= 0.5 comes as a kept draft, with q(x). How much is
# dropped, and what does it turn into?
# </details></details></details>
#
# **Mend it.** Write a drafter that stops early as well, and with which the text follows the target's distribution again, for
# all models. There are several ways; any of them will do.


# %% solve="repair"
def repaired_draft(draft, prefix, gamma, source, sure=0.5):
    """Up to gamma drafts, and the distributions that they were drawn from: two lists of the same length.

    draft: a function, list of tokens -> distribution of the next one; each draft continues `prefix` and the drafts
    before it. prefix: a list of tokens, left as it is.
    Where each token that q can give has q(x) >= sure, all gamma drafts are proposed.
    Where q gives every token less than `sure`, whatever the prefix, at most one draft is proposed.
    """
    ### BEGIN SOLUTION
    drafts, distributions = [], []
    while len(drafts) < gamma:
        q = draft(prefix + drafts)
        x = source.categorical(q)
        drafts.append(x)  # what was drawn is proposed, whatever it is; it only ends the drafting
        distributions.append(q)
        if q[x] < sure:
            break
    return drafts, distributions
    ### END SOLUTION


# %% test="repair" points=2
checks.repair(repaired_draft, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Think of all drafts that get past the line <code>if q[x] &lt; sure</code>. Which
# distribution do they follow? Which distribution is reported?
# <details><summary>Hint 2</summary>Whether to stop may depend on anything that is known <i>before</i> the draw. What
# was drawn has to be proposed. (Question 4 of the lesson's "Check yourself".)
# </details></details>

# %% [markdown]
# ## What you built
#
# Everything together: your round with three drafters, and your test as the judge. The distributions are exact, from
# enumeration; your test sees only counts of draws from them.

# %%
p, q = [0.55, 0.3, 0.15], [0.5, 0.2, 0.3]


def built():
    distributions = {"target": p}
    for name, drafter in (("plain", plain_draft), ("careful", careful_draft), ("repaired", repaired_draft)):
        distribution = first_token_distribution(p, q, drafter)
        distributions[name] = [distribution.get(x, 0.0) for x in range(3)]
        verdict = "no objection" if trusts(make_sample(distributions[name], seed=4), p) else "ALARM"
        print(f"{name:9} first token: {', '.join(f'{x:.4f}' for x in distributions[name])}   your test: {verdict}")
    figure, (axes,) = new_figure(7, 3.2)
    for i, (name, distribution) in enumerate(distributions.items()):
        axes.bar(
            [x + 0.2 * (i - 1.5) for x in range(3)], distribution, 0.18, label=name, hatch=["", "//", "..", "xx"][i]
        )
    axes.set(xticks=range(3), xlabel="first token", ylabel="probability")
    axes.legend()
    words = "; ".join(
        f"{name}: {', '.join(f'{x:.3f}' for x in distribution)}" for name, distribution in distributions.items()
    )
    return show(figure, alt=f"Bars of the distribution of the first token. {words}.")


picture = try_out(built)
print(picture) if isinstance(picture, str) else picture

# %% [markdown]
# ## 6. In words
#
# ★★ · *8 minutes · 3 points*
#
# A colleague has changed your engine: after a rejection it draws from $p$, "since $p$ is what we want". The colleague
# also wrote a test for $p$ = (0.5, 0.3, 0.2) and $q$ = (0.46, 0.33, 0.21): 1,000 draws, and each share within 0.02 of
# $p$. It passed. Answer in about ten lines.
#
# 1. Give the distribution that comes out as a formula in $p$, $q$ and $\beta = \sum \min(p, q)$. For which tokens is it more
#    than $p$, for which less? (Look at your formula: $q > p$ is not quite the condition.) *(1 point)*
# 2. Why is the residual, divided by its sum, exactly what is needed? Use the probability of a rejection. *(1 point)*
# 3. What is the distribution of question 1 in the colleague's case, in numbers? Compare its distance from $p$ with the border of
#    the test, and with what chance does to the shares of 1,000 draws. About how often would the test pass this engine,
#    and how often a right one: nearly never, about half of the time, nearly always? So what is its pass worth?
#    *(1 point)*

# %% [markdown] written="colleague" points=3
# <!-- BEGIN SOLUTION -->
# 1\. A kept draft gives $\min(p, q)$; a rejection happens with $1 - \beta$ and gives $p$ once more. So the distribution is
# $\min(p(x), q(x)) + (1 - \beta)\,p(x)$, which is $\min(p(x), q(x)) - \beta\,p(x)$ more than $p(x)$. Too often: the
# tokens with $q(x) > \beta\,p(x)$, so all that the draft likes as much as the target does, and some that it likes a
# little less. Too seldom: those with $q(x) < \beta\,p(x)$. The draft's taste leaks into the text.
#
# 2\. The kept drafts have delivered $\min(p, q)$. What is missing to $p$ is $p - \min(p, q) = \max(0, p - q)$, with
# a sum of $1 - \beta$, and $1 - \beta$ is the chance of a rejection. So "with the chance of a rejection, draw from
# $\max(0, p - q) / (1 - \beta)$" adds exactly $\max(0, p - q)$.
#
# 3\. $\beta = 0.46 + 0.3 + 0.2 = 0.96$, so the distribution is $\min(p, q) + 0.04\,p$ = (0.48, 0.312, 0.208). Token 0 is off by
# 0.02, just the border. By chance a share moves by $\sqrt{p (1 - p) / 1000}$, about 0.016 for token 0: its share is
# within the border in every second run. The other two tokens mostly are. So this engine passes in about 4 of 10 runs. A
# right engine passes in about 2 of 3 only, since chance alone often moves a share by more than 0.02. A pass is hardly
# more likely for the right engine than for the wrong one, and so it is worth little.
#
# *Marking guide. One point each. (1) Half for the formula, half for the condition: $q > \beta p$ (or the same said with
# $\min(p, q) > \beta p$) is full; "$q \ge p$ comes too often" alone, without the tokens a little below, a quarter. A
# right example with numbers counts as the formula's half. (2) Full where the sum of the residual and the chance of a
# rejection are said to be the same number; half for "it is what is missing" alone. (3) A quarter for the distribution in
# numbers, a quarter for the size of chance (about 0.015), half for the conclusion: both engines pass in roughly half of
# the runs (any figures from 0.3 to 0.8 that are argued for; the exact ones are 0.4 and 0.65), so a pass tells next to
# nothing. "More draws" alone: a quarter.*
# <!-- END SOLUTION -->
