# %% [markdown]
# # 04 · Why it is exact
#
# *100 minutes; the two parts marked "deeper" take 40 more. You need Python, and probability as far as "the chances of
# all cases add up to one". Lesson 00 helps; what this lesson takes from lesson 05 it explains where it uses it. No GPU,
# no network.*
#
# By the end you can prove the rule of speculative decoding on paper, check a program by enumerating everything it may
# do, and say what "exact" means on a computer that rounds. With the deeper parts you can also write block verification,
# and say what an inexact rule costs.
#
# Four functions are left for you to write, two of them in the deeper parts. Each is checked at once; until yours is
# right, the lesson goes on with ours. If you are stuck, `course.solution("04 residual")` in a cell of your own prints
# one.

# %% [markdown]
# ## A question first
#
# A vocabulary of three tokens. The *target* model, whose distribution we want, emits token 2 with probability **10%**.
# A cheap *draft* model proposes token 2 with probability **60%**. The draft model proposes a token; the target only
# looks at the proposal and says keep or drop.
#
# Surely the result is a compromise between the two? Write down your guesses before you go on.

# %%
import specdec_course as course

target_distribution = [0.6, 0.3, 0.1]  # p
draft_distribution = [0.1, 0.3, 0.6]  # q

my_guess_kept = None  # the share of drafts that is kept, between 0 and 1
my_guess_token_2 = None  # the share of token 2 in what comes out

# %% [markdown]
# ## 1. The rule
#
# $p$ is the target's distribution, $q$ the draft's. For one draft the rule has three lines.
#
# 1. Draw $x$ from $q$.
# 2. Keep it with probability $\min(1, p(x)/q(x))$: always where the target wants it at least as often as the draft
#    proposes it, otherwise only now and then.
# 3. If it was dropped, draw from what is missing instead: from the *residual* $\max(0, p - q)$, scaled to sum to one.
#
# The picture shows the whole idea. On the left is what the draft proposes. Where $q$ exceeds $p$, the excess is dropped
# (dotted); where $p$ exceeds $q$, something is missing (dashed). **Both areas are equal**, since both distributions sum
# to one. The rule pours one into the other; on the right is what comes out.

# %%
from IPython.display import HTML

HTML(course.mass_html(target_distribution, draft_distribution))

# %% [markdown]
# **Now move it.** The sliders are weights; each distribution is its three weights divided by their sum. Try to find a
# $p$ and a $q$ for which the bars on the right miss a green line. Then look for these:
#
# - a draft of which everything is kept,
# - a draft of which nothing is kept,
# - two tokens with an excess.

# %%
course.mass_explorer()

# %% [markdown]
# **Write the residual.** What do you return if nothing is missing, so that the sum is 0? In exact arithmetic nothing is
# ever dropped then. With rounding it can happen (section 5), so return a copy of $p$. Use plain Python: later the
# numbers are fractions, and they must stay fractions.


# %%
def residual(p, q):
    """max(0, p - q) for each token, scaled to sum to one; a copy of p where that is 0 for every token."""
    raise NotImplementedError("write the residual")


residual = course.blank("04 residual", residual)

# %% [markdown]
# Now the rule itself. A program needs randomness in two ways: a biased coin, and a sample from a distribution. Both
# come from a *source* object, so that we can swap it later. This source is an ordinary random generator.

# %%
import random


class Dice:
    """Random answers: a coin that says yes with a given probability, and a token drawn from a distribution."""

    def __init__(self, seed):
        self.generator = random.Random(seed)

    def bernoulli(self, probability):
        return self.generator.random() < probability

    def categorical(self, distribution):
        return self.generator.choices(range(len(distribution)), distribution)[0]


def speculative_token(p, q, source):
    x = source.categorical(q)
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(residual(p, q))


def shares(program, draws, seed=0):
    """How often each token comes in that many calls, divided by their number."""
    source, counts = Dice(seed), [0, 0, 0]
    for _ in range(draws):
        counts[program(target_distribution, draft_distribution, source)] += 1
    return [count / draws for count in counts]


dice = Dice(seed=1)
print("40 tokens:", *(speculative_token(target_distribution, draft_distribution, dice) for _ in range(40)))
seen = shares(speculative_token, 20_000)
print("20,000 tokens:", *(f"{share:.3f}" for share in seen), "  p is", *target_distribution)
print("token 2:", course.guess_text(my_guess_token_2, seen[2]))

# %% [markdown]
# Not a compromise. Counting suggests it; a proof settles it.

# %% [markdown]
# ## 2. The proof on paper
#
# A token $x$ comes out in one of two ways. Add them up.
#
# **As a kept draft.** It is drawn, then kept: $\;q(x)\,\min(1, p(x)/q(x)) = \min(p(x), q(x))$. These are the blue bars.
#
# **As a correction.** Some draft is dropped, and then $x$ is drawn from the residual. With
# $Z = \sum_y \max(0, p(y) - q(y))$, the number that the residual was divided by:
#
# $$\Pr[\text{dropped}] \cdot \frac{\max(0, p(x) - q(x))}{Z}$$
#
# Now the step that makes it work. How often is a draft dropped? Whenever it is not kept:
#
# $$1 - \sum_y \min(p(y), q(y)) = \sum_y \big(p(y) - \min(p(y), q(y))\big) = \sum_y \max(0, p(y) - q(y)) = Z$$
#
# **The probability of a rejection is the very number that the residual was divided by.** They are the two equal areas
# of the picture. They cancel, which leaves
#
# $$\min(p(x), q(x)) + \max(0, p(x) - q(x)) = p(x).$$
#
# If $p(x) \le q(x)$ the sum is $p(x) + 0$. If $p(x) > q(x)$ it is $q(x) + (p(x) - q(x))$. Either way it is $p(x)$.
# Nothing was assumed about $q$.
#
# Two by-products. A draft is kept with probability $\beta = \sum_y \min(p, q)$. And $Z$ is half of $\sum |p - q|$, known
# as the *total variation* $\mathrm{TV}(p, q)$: the largest difference between the two in the probability of any event.
# So
#
# $$\beta = 1 - \mathrm{TV}(p, q).$$
#
# No exact rule that tests one draft can keep more. A kept $x$ must be both drafted, probability $q(x)$, and emitted,
# probability $p(x)$; so it is kept with at most $\min(p(x), q(x))$.

# %%
beta = sum(map(min, target_distribution, draft_distribution))
tv = sum(abs(a - b) for a, b in zip(target_distribution, draft_distribution)) / 2
print("kept, sum of min(p, q):", course.guess_text(my_guess_kept, beta))
print(f"1 - TV: {1 - tv:.2f}")

# %% [markdown]
# **A real pair.** Three tokens are a toy; a model has tens of thousands. Below, $p$ is SmolLM2's distribution at one
# place of a text that it wrote. The draft is the same model cut off after 28 of its 30 layers. That saves hardly any
# time, so nobody would use it; but it is a real $q$ that needs no training. (Small trained draft models come in lesson
# 07.) The likeliest tokens have bars of their own, all others are put together on the side where they belong; thin flows
# have no arrow.

# %%
import torch

from specdec_ref import SpeculativeEngine, encode_prompt, load_model

story = course.prompt("chat-1")
for _ in course.progress([story], "loading the model, and a text of it"):
    model = load_model()
    prompt_ids = encode_prompt(story.messages, model)
    written = SpeculativeEngine(model, gamma=0).generate(story.messages, max_new_tokens=24).tokens


def target_and_draft(model):
    """p and q after the prompt and after each written token but the last, two tensors [24, vocab]."""
    ids = torch.tensor([*prompt_ids, *written[:-1]])
    with torch.inference_mode():
        out = model.forward_pass(ids, model.new_cache(len(ids)), slice(len(prompt_ids) - 1, None), layers=(28,))
        early = model.head(model.norm(out.features[0][len(prompt_ids) - 1 :]))
    return out.logits.double().softmax(-1), early.double().softmax(-1)


p_real, q_real = target_and_draft(model)
betas = torch.minimum(p_real, q_real).sum(-1)
average = (betas - betas.mean()).abs().topk(5, largest=False).indices  # where the draft is about as good as on average
place = average[p_real[average].topk(6).values.sum(-1).argmax()].item()  # there the place that few bars show best
bars = course.likeliest_bars(p_real[place], q_real[place], model.tokenizer)
assert abs(sum(map(min, bars.p, bars.q)) - betas[place]) < 1e-6, "the bars must keep what all tokens keep"
print("after:", repr(model.tokenizer.decode(written[:place])))
words = f"{course.mass_words(bars.p, bars.q)} The tokens: {', '.join(bars.names)}."
course.show(course.mass_figure(*bars), alt=words)

# %%
print(f"beta over {len(betas)} places of this text: {betas.mean():.2f} on average,", end=" ")
print(f"{betas.min():.2f} to {betas.max():.2f}; at this place {betas[place]:.2f}")

# %% [markdown]
# Some places are easy to guess and some are not. The *acceptance rate* of a run is an average of $\beta$ over the places
# that were *tested*; drafts after a rejection are not. (Many metrics, vLLM's among them, print another number under that
# name: accepted per *drafted*, where those drafts count as well.)

# %% [markdown]
# ## 3. Visit every case
#
# Proofs are about formulas, and bugs are in programs. With three tokens the program has so few ways to go that we can
# visit them all. Here is the tree of a round with one draft. An end is reached with the product of the probabilities
# along its way; ends that emit the same token add up.

# %%
course.show(
    course.tree_figure(target_distribution, draft_distribution),
    alt=course.tree_words(target_distribution, draft_distribution),
)

# %% [markdown]
# Token 0 has two ends, 10% + 50% = 60%. That is $p(0)$.
#
# Let the *program itself* grow this tree. Replace the random source by one that reads its answers from a list. Where
# the list ends, the program stops, and tells which answers were possible. `Fraction` computes with whole numbers, so
# that *equal* means equal.

# %% tags=["nbval-check-output"]
from fractions import Fraction


class Fork(Exception):
    """The program asks for an answer that the script does not have. `options`: (answer, chance) pairs."""

    def __init__(self, options):
        self.options = options


class Script:
    """A source whose answers are given beforehand. What is certain is answered without being asked."""

    def __init__(self, answers):
        self.answers = list(answers)

    def choose(self, options):
        options = [(answer, chance) for answer, chance in options if chance > 0]
        if len(options) == 1:
            return options[0][0]
        if not self.answers:
            raise Fork(options)
        return self.answers.pop(0)

    def bernoulli(self, probability):
        return self.choose([(True, probability), (False, 1 - probability)])

    def categorical(self, distribution):
        return self.choose(list(enumerate(distribution)))


def run(program, answers):
    """(result, None) if these answers are enough, else (None, options)."""
    try:
        return program(Script(answers)), None
    except Fork as fork:
        return None, fork.options


p = [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]
q = [Fraction(1, 10), Fraction(3, 10), Fraction(6, 10)]
for answers in ([], [2], [2, False]):
    result, options = run(lambda source: speculative_token(p, q, source), answers)
    asked = options and ", ".join(f"{answer} ({chance})" for answer, chance in options)
    print(f"answers {answers!s:10}", f"it asks: {asked}" if options else f"token {result} comes out")

# %% [markdown]
# **Write the walk.** Start with no answers and the chance 1. Where a run ends, its chance goes to its result. Where it
# asks, each option is a way to go on: one more answer, and its chance as a factor. Keep a list of what is left to do.


# %%
def visit(run):
    """All results of a program, as a dict {result: chance}.

    run(answers): gives (result, None) if the program ends with these answers, or (None, options) if it asks for one
    more; options is a list of pairs (answer, chance).
    """
    raise NotImplementedError("write the walk")


visit = course.blank("04 visit", visit)

# %% [markdown]
# <details><summary>Hint 1</summary><code>todo = [([], 1)]</code> holds pairs of answers and their chance. Take one off
# with <code>todo.pop()</code> until it is empty.</details>
# <details><summary>Hint 2</summary>For each option append <code>([*answers, answer], chance * share)</code>. For a
# result: <code>found[result] = found.get(result, 0) + chance</code>.</details>


# %% tags=["nbval-check-output"]
def chances(program):
    """{result: chance} of program(source)."""
    return dict(sorted(visit(lambda answers: run(program, answers)).items()))


exact = chances(lambda source: speculative_token(p, q, source))
print({token: str(chance) for token, chance in exact.items()})
print("equal to p:", list(exact.values()) == p)
assert list(exact.values()) == p

# %% [markdown]
# The package has the same walk under the name `enumerate_branches`. With it, here is the function that the package's
# engine calls, unchanged:

# %% tags=["nbval-check-output"]
from specdec_ref.proof import emitted_distribution

production = emitted_distribution("token", p, q)
print("production rule:", *production, " equal to p:", production == p)

# %% [markdown]
# ## 4. From one token to a text
#
# A round drafts several tokens, stops at the first one that is dropped, and adds one token of the target's own: a
# *correction* after a rejection, a *bonus* if everything was kept. How many tokens come out depends on chance, and on
# the tokens. Is the *text* still right?
#
# Beware of a plausible shortcut: "each kept token follows $p$, each correction follows $p$, so all do". Neither is
# true.

# %% tags=["nbval-check-output"]
step = course.one_step(target_distribution, draft_distribution)
print("kept drafts alone: ", *(f"{a / sum(step.accepted):.2f}" for a in step.accepted))
print("corrections alone: ", *(f"{c:.2f}" for c in step.residual))
print("both together:     ", *(f"{e:.2f}" for e in step.emitted))

# %% [markdown]
# The argument is an induction over the positions of a round.
#
# **Claim.** Run one round with $\gamma$ drafts, then let the target go on alone. The text follows the target's
# distribution.
#
# - **$\gamma = 0$.** Nothing is drafted; the round is one token drawn from the target. True.
# - **From $\gamma - 1$ to $\gamma$.** By section 2 the first token follows $p$. What comes after it? If it was a
#   *correction*, the round is over and the target goes on alone. If it was a *kept draft* $x$, what is left is a round
#   with $\gamma - 1$ drafts after $x$, for which the claim already holds. Either way the rest follows the target's
#   distribution **given the first token**, however that token came about. First token right, and the rest right given
#   the first: the whole is right.
#
# **Over rounds.** By the claim, "the target goes on alone" may be replaced by "another round, and then the target
# alone", as often as you like, until the text is full. $\square$
#
# Two conditions were used. After any prefix the draft is drawn from the $q$ that it *reports*; and the target's $p$
# belongs to that very prefix. A row off by one, a cache that was rolled back wrongly, a $q$ taken before a filter such
# as top-k was applied: each breaks the proof.
#
# Now a round whose distributions depend on all tokens so far, then the target alone up to three tokens. Your walk
# visits every way.


# %%
def token_round(drafts, q, p, source):
    """The tokens that a round emits. drafts[i] was drawn from q[i]; p has one row more than there are drafts."""
    for i, x in enumerate(drafts):
        if not source.bernoulli(min(1, p[i][x] / q[i][x])):
            return [*drafts[:i], source.categorical(residual(p[i], q[i]))]
    return [*drafts, source.categorical(p[-1])]


def text_program(rule, target, draft, gamma=2, length=3):
    """A program that writes a text: one round, then the target alone. Its result: (drafts kept, the text)."""

    def program(source):
        drafts = []
        for _ in range(gamma):
            drafts.append(source.categorical(draft(drafts)))
        q = [draft(drafts[:i]) for i in range(gamma)]
        p = [target(drafts[:i]) for i in range(gamma + 1)]
        text = rule(drafts, q, p, source)
        kept = len(text) - 1
        while len(text) < length:
            text.append(source.categorical(target(text)))
        return kept, tuple(text)

    return program


def target_alone(target, text):
    """The chance that the target writes this text, one token after the other."""
    chance = Fraction(1)
    for i, token in enumerate(text):
        chance *= target(text[:i])[token]
    return chance


# %% tags=["nbval-check-output"]
from collections import Counter

from specdec_ref.proof import fractions

P = fractions([[".6", ".3", ".1"], [".1", ".2", ".7"], [".25", ".5", ".25"]])
Q = fractions([[".1", ".3", ".6"], [".5", ".4", ".1"]])


def target_after(tokens):
    return P[sum(tokens) % 3]


def draft_after(tokens):
    return Q[sum(tokens) % 2]


def texts_and_kept(outcomes):
    """From {(kept, text): chance}: {text: chance}, and the average number of drafts kept."""
    texts = Counter()
    for (_, text), chance in outcomes.items():
        texts[text] += chance
    return texts, sum(kept * chance for (kept, _), chance in outcomes.items())


texts, drafts_kept = texts_and_kept(chances(text_program(token_round, target_after, draft_after)))
same = all(chance == target_alone(target_after, text) for text, chance in texts.items())
print(f"{len(texts)} texts of 3 tokens; {drafts_kept} drafts kept per round on average")
print("every text has the chance that the target alone gives it:", same)
assert same and len(texts) == 27

# %% [markdown]
# And the whole production engine, with its caches, its roll-back and its limit on tokens, over several rounds. Lesson
# 05 builds that engine. Here it is enough to know what it does in each round: a second model drafts two tokens, the
# target computes its three rows in one forward pass, the rule decides, and what was dropped is taken out of both
# models' caches. The models are scripted, everything else is what decodes SmolLM2 in lesson 00. `source=` takes the
# place of a seed.

# %%
from specdec_ref import DraftModelDrafter
from specdec_ref.models import ScriptedModel
from specdec_ref.proof import autoregressive_distribution, difference, enumerate_branches

target = ScriptedModel(lambda tokens: [float(x) for x in target_after(tokens)], vocab_size=3)
drafter = DraftModelDrafter(ScriptedModel(lambda tokens: [float(x) for x in draft_after(tokens)], vocab_size=3))
engine = SpeculativeEngine(target, drafter, gamma=2)


def four_tokens(source):
    return tuple(engine.generate([0], max_new_tokens=4, temperature=1.0, source=source).tokens)


distribution, ways = Counter(), 0
for program in course.progress([four_tokens], "every way through the engine"):
    for branch in enumerate_branches(program):
        distribution[branch.outcome] += branch.probability
        ways += 1

off = difference(distribution, autoregressive_distribution(target.distribution, [0], 4))
print(f"{ways:,} ways through the engine lead to {len(distribution)} texts of 4 tokens")
print("largest difference from the target alone is below 1e-12:", off < 1e-12)
assert off < 1e-12

# %% [markdown]
# Here the numbers are floats, so the last digits may differ. The package's tests do this for every rule, every kind of
# drafter and every sampling option.

# %% [markdown]
# ## 5. Three ways to be almost right
#
# **A bug from the wild.** The article that this course checks (*Demystifying Speculative Decoding: Build 3x Faster LLM
# Inference Engines From Scratch*) prints an engine that it calls complete. It stops with an `AttributeError` at the
# first rejection: the function that should return the draft's distribution reads a field that nothing sets. Suppose
# someone repairs that line and nothing else. The function then returns *zeros*, so the residual is $\max(0, p - 0)$,
# which is $p$ itself.
#
# "Draw from the target: what could be wrong with that?" **Which distribution do you expect?** Then run it, through
# your walk and by counting.


# %% tags=["nbval-check-output"]
def article_token(p, q, source):
    x = source.categorical(q)
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(p)


article = list(chances(lambda source: article_token(p, q, source)).values())
print("enumerated:", *article, " as decimals:", *map(float, article))
kept = sum(map(min, p, q))
print("min(p, q) + (1 - beta) p gives the same:", [min(a, b) + (1 - kept) * a for a, b in zip(p, q)] == article)
print("20,000 draws:", *(f"{share:.3f}" for share in shares(article_token, 20_000)))
assert article != p

# %% [markdown]
# Token 0 comes in 40% of all cases instead of 60%. What a rejection has to put on token 0 is spread over all three
# tokens: the draft's taste leaks into the text. Here 20,000 draws make it obvious. How many draws it takes to see a
# *small* fault, and what it means if a test passes, is the optional lesson
# [04b, Size and power of a test](04b_size_and_power.ipynb).
#
# **The edge at zero.** The same article keeps a draft if $u \le p/q$, where $u$ is uniform in $[0, 1)$. What is wrong
# with the equals sign? $u$ may be **0**. A token with $p = 0$, one that top-k has cut or a grammar forbids, then passes.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import ReplaySource

u, forbidden = 0.0, 0.0
coin = ReplaySource(coins=[0.0], draws=[])  # a source whose next u is 0
print("u <= p/q keeps the forbidden token:", u <= forbidden / 0.5)
print("u <  p/q keeps it:                 ", u < forbidden / 0.5)
print("the package keeps it:              ", coin.bernoulli(forbidden / 0.5))
print(f"uniforms in float32 have 24 bits: one in {2**24:,} is exactly 0")

# %% [markdown]
# One in 17 million: a busy server draws it every day, a test with 20,000 draws hardly ever. Enumeration has no $u$ at
# all, so it takes a third tool: a source that replays the number you fear. **Three tools, and each is blind where
# another sees.** Enumeration replaces the random source, so it cannot find a bad one, such as a generator that is
# seeded again in each round. For that one has to count.
#
# **A residual of nothing.** If $p = q$, nothing is ever dropped, on paper. But suppose that target and draft are equal,
# and the two sides compute the softmax in two common ways:

# %%
logits = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
p_32 = logits.softmax(-1)
q_32 = logits.log_softmax(-1).exp()
stuck = (p_32 <= q_32).all(1) & (p_32 < q_32).any(1)  # a rejection is possible, and nothing is missing
print(f"in {stuck.float().mean():.1%} of 2,000 distributions a rejection is possible and the residual is 0 / 0")
assert stuck.any()
chance = (q_32.double() - p_32.double()).clamp(min=0).sum(1)[stuck].mean()
print(f"there it comes to a rejection with a probability of {chance:.0e}")
one = stuck.nonzero()[0].item()
a, b = p_32[one].tolist(), q_32[one].tolist()
print("your residual returns a copy of p there:", residual(a, b) == a)
assert residual(a, b) == a

# %% [markdown]
# That is rare enough to pass every test, and on a busy server it comes all the same. Then the code divides by zero. The
# guard in your residual prevents it, and to draw from $p$ is the right limit.

# %% [markdown]
# ## 6. Other exact rules
#
# The rule of section 1, here called *token*, is not the only exact one. Take four tokens with
# $p = (.6, .2, .1, .1)$ and $q = (.7, .2, .05, .05)$.
#
# - **match**: draw from $p$ as if there were no draft, and keep the draft if it happens to be the same token. What
#   comes out is the target's own draw, so no proof is needed. It does not even use $q$.
# - **token, for a deterministic draft**: one that involves no chance, such as a lookup or a model's likeliest token. Its
#   $q$ is 1 for that token, and the rule of section 1 becomes: keep it with probability $p(x)$, otherwise draw from $p$
#   without $x$.
# - **block**: judges all drafts of a round together; it is the subject of the deeper part below.
#
# Guess first: how often does each keep a draft?

# %% tags=["nbval-check-output"]
from specdec_ref.proof import round_distribution

p4, q4 = fractions([".6", ".2", ".1", ".1"]), fractions([".7", ".2", ".05", ".05"])
always_0 = fractions([1, 0, 0, 0])  # the draft's likeliest token, always


def kept_share(rule, p, q):
    """The probability that a round of one draft keeps it, from every way through the package's rule."""
    outcomes = round_distribution(rule, lambda _: p, lambda _: q)
    return sum(chance for (accepted, _), chance in outcomes.items() if accepted)


for name, rule, q_used in (
    ("token", "token", q4),
    ("block", "block", q4),
    ("match", "match", q4),
    ("token, deterministic", "token", always_0),
):
    is_p = emitted_distribution(rule, p4, q_used) == p4
    print(f"{name:21} keeps {float(kept_share(rule, p4, q_used)):.2f} of first drafts; emits p exactly: {is_p}")
    assert is_p

# %% [markdown]
# By formula: $\sum \min(p, q)$ for token and block, $\sum p\,q$ for match, $p(x)$ for a deterministic draft. All are exact, at
# very different prices.
#
# A trap lies between two of them. Let the draft model propose its likeliest token *and* report its softmax as $q$. It
# did not draw from that $q$, so the proof does not apply:


# %% tags=["nbval-check-output"]
def greedy_draft_softmax_q(p, q, source):
    x = q.index(max(q))
    if source.bernoulli(min(1, p[x] / q[x])):
        return x
    return source.categorical(residual(p, q))


p2, q2 = fractions([".6", ".4"]), fractions([".8", ".2"])
trapped = chances(lambda source: greedy_draft_softmax_q(p2, q2, source))
print("target:", *p2, " emitted:", *trapped.values())
assert list(trapped.values()) != p2

# %% [markdown]
# ### Deeper: block verification
#
# No rule that tests *one* draft can keep more than $\beta$. But a round has several. Let the ratios $p/q$ of two drafts
# be 1/2 and 2. The token rule keeps the first with 1/2, and the second for certain: both with 1/2. Yet together the
# target likes these two drafts exactly as much as the draft model does, since 1/2 · 2 = 1. Block verification (Sun et
# al. 2024) cuts the *product* at 1, where the token rule cuts each factor:
#
# $$\rho_0 = 1, \qquad \rho_i = \min\Big(1,\; \rho_{i-1}\,\frac{p_i(x_i)}{q_i(x_i)}\Big)$$
#
# The rule is built so that the first $i$ drafts stay, with or without later ones, with probability $\rho_i$. That is an
# average over the drafts that may come after them. In the example $\rho_1 = 1/2$. If the second draft is the one with
# ratio 2, then $\rho_2 = 1$ and both stay for certain. If it is another, the first stays less often than with 1/2. A later
# draft that the target likes makes up for an earlier one that it doesn't.
#
# So the rule can't decide about the first draft before it has seen the second. It starts **from the end**.
#
# 1. Keep all $\gamma$ drafts with probability $\rho_\gamma$, and add a bonus token.
# 2. Otherwise try $i = \gamma - 1$, then $\gamma - 2$, and so on. Stop at $i$ drafts with probability $h_i$. (At
#    $i = 0$ stop in any case.)
# 3. Having stopped at $i$, draw the correction from $\max(0, \rho_i\,p_{i+1} - q_{i+1})$, scaled to sum to one.
#
# What must $h_i$ be? Take the drafts $x_1 \ldots x_i$ as given; the next one is drawn from $q_{i+1}$. At least $i$ drafts
# are to stay with probability $\rho_i$, and that has two parts.
#
# - *More* than $i$ stay with probability
#   $\sum_x q_{i+1}(x) \min(1, \rho_i\,p_{i+1}(x) / q_{i+1}(x)) = \sum_x \min(q_{i+1}(x), \rho_i\,p_{i+1}(x))$.
# - *Exactly* $i$ have to make up the rest. Since $\rho\,p = \min(q, \rho\,p) + \max(0, \rho\,p - q)$, and $\rho_i\,p_{i+1}$
#   sums to $\rho_i$, the rest is
#
# $$M_i = \sum_x \max(0,\; \rho_i\,p_{i+1}(x) - q_{i+1}(x)).$$
#
# The rule asks about $i$ only after it has turned down everything longer, which happens with probability
# $1 - (\rho_i - M_i)$. So $h_i$ times that has to be $M_i$:
#
# $$h_i = \frac{M_i}{M_i + 1 - \rho_i}.$$
#
# It is the picture of section 1 with $\rho\,p$ in place of $p$: what is missing to $\rho\,p$ has the total $M$, and $M$ is
# how often a correction is drawn to fill it.
#
# **Write both numbers.**


# %%
def prefix_ratios(drafts, q, p):
    """[rho_0, rho_1, ..., rho_gamma]: one number more than there are drafts.

    drafts[i] was drawn from q[i], and the target has p[i] at that place; p has one row more.
    """
    raise NotImplementedError("write the ratios")


prefix_ratios = course.blank("04 ratios", prefix_ratios)


# %%
def stop_chance(rho, p_next, q_next):
    """h = M / (M + 1 - rho), from rho and the distributions of the next place; 1 where rho is 1."""
    raise NotImplementedError("write h")


stop_chance = course.blank("04 stop", stop_chance)

# %% [markdown]
# The rest is given. The paper's own example: two tokens, $p = (1/3, 2/3)$, $q = (2/3, 1/3)$, two drafts. The last line is
# a bound for *any* exact rule: the first $i$ drafts can be kept at most as often as their joint distributions agree.


# %% tags=["nbval-check-output"]
def block_round(drafts, q, p, source):
    rho = prefix_ratios(drafts, q, p)
    if source.bernoulli(rho[-1]):
        return [*drafts, source.categorical(p[-1])]
    for i in range(len(drafts) - 1, -1, -1):
        if i == 0 or source.bernoulli(stop_chance(rho[i], p[i], q[i])):
            return [*drafts[:i], source.categorical(residual([rho[i] * x for x in p[i]], q[i]))]


p3, q3 = fractions(["1/3", "2/3"]), fractions(["2/3", "1/3"])
average = {}
for rule in (token_round, block_round):
    texts, average[rule] = texts_and_kept(chances(text_program(rule, lambda _: p3, lambda _: q3)))
    is_exact = all(chance == target_alone(lambda _: p3, text) for text, chance in texts.items())
    print(f"{rule.__name__}: {9 * average[rule]}/9 drafts kept per round; the text is exact: {is_exact}")
    assert is_exact
bound = sum(map(min, p3, q3)) + sum(min(p3[x] * p3[y], q3[x] * q3[y]) for x in range(2) for y in range(2))
print(f"at most, by any rule: {9 * bound}/9")
assert average[token_round] < average[block_round] <= bound

# %% [markdown]
# The paper proves that block verification never keeps fewer drafts. Don't take its word for it: here are 500 random
# pairs, and the pair from above at several $\gamma$. All numbers are exact expectations, from the package's
# implementation; nothing is sampled.

# %%
import numpy as np

from specdec_ref.verify import expected_accepted


def token_and_block(p, q, gamma):
    """The expected number of drafts kept per round, by both rules."""
    beta = torch.minimum(p, q).sum().item()
    return sum(beta**i for i in range(1, gamma + 1)), expected_accepted(p, q, gamma)


pairs = torch.from_numpy(np.random.default_rng(5).dirichlet(np.ones(4), size=(500, 2)))
gains = [block - token for token, block in (token_and_block(p, q, gamma=4) for p, q in pairs)]
print(f"500 random pairs, gamma 4: block keeps fewer in {sum(gain < -1e-12 for gain in gains)} of them,")
print(f"{np.mean(gains):.2f} drafts more on average, {max(gains):.2f} at most")

p_pair, q_pair = (torch.tensor([float(x) for x in row], dtype=torch.float64) for row in (p4, q4))
for gamma in (1, 2, 4, 8):
    by_token, by_block = token_and_block(p_pair, q_pair, gamma)
    ratio = by_block / by_token
    print(f"(.6, .2, .1, .1), gamma {gamma}: token {by_token:.2f}, block {by_block:.2f}: {ratio:.3f} times")
assert (
    min(gains) > -1e-12 and abs(token_and_block(p_pair, q_pair, 1)[0] - token_and_block(p_pair, q_pair, 1)[1]) < 1e-12
)

# %% [markdown]
# With one draft both are the same rule; the gain grows with $\gamma$. It has a price: a sum over the vocabulary at every
# draft, and all $\gamma$ full distributions $q$, where the token rule needs only the one at the rejection. The paper
# reports speedups of 5 to 8% in wall-clock time.

# %% [markdown]
# ## 7. Deeper: rules that are not exact, and by how much
#
# Some rules give exactness up to keep more drafts.
#
# - *Leniency* $l$ (Leviathan et al., appendix A.5): keep with $\min(1, p(x) / (l\,q(x)))$, for an $l$ below 1.
# - *Typical acceptance* (Medusa): keep $x$ if $p(x) > \min(\varepsilon, \delta\,e^{-H(p)})$, where $H$ is the entropy of
#   $p$; no $q$, no coin. Whatever the target finds plausible enough passes.
#
# What does that cost? Enumeration says it exactly, as the TV between what is emitted and $p$.

# %% tags=["nbval-check-output"]
from functools import partial

from specdec_ref.proof import total_variation
from specdec_ref.verify import verify_lossy_leniency


def kept_and_off(rule, p, q):
    """The share of drafts that is kept, and the TV between what is emitted and p."""
    emitted = emitted_distribution(rule, p, q)
    return kept_share(rule, p, q), total_variation(dict(enumerate(emitted)), dict(enumerate(p)))


for leniency in ("1", "0.9", "0.7", "0.5", "0.2"):
    share, off = kept_and_off(partial(verify_lossy_leniency, leniency=Fraction(leniency)), p, q)
    print(f"leniency {leniency:3}  keeps {float(share):.3f}  TV of a token {float(off):.3f}")

# %% [markdown]
# A pattern? What leniency keeps beyond $\beta = 0.5$ it pays for in TV, one for one. Is that a rule, or this one pair?
# Try many pairs, and both rules:

# %%
from specdec_ref.verify import RULES

extra = {"lossy-leniency": [], "lossy-typical": []}
for a, b in pairs[:100].tolist():
    for name, found in extra.items():
        share, off = kept_and_off(name, a, b)
        found.append((share - sum(map(min, a, b)), off))
for name, found in extra.items():
    equal = sum(abs(off - more) < 1e-9 for more, off in found)
    above = sum(off > more + 1e-9 for more, off in found)
    print(f"{name}: TV equals the drafts kept beyond beta in {equal} of {len(found)} pairs, is larger in {above}")
    assert equal + above == len(found) and set(extra) <= set(RULES)

# %% [markdown]
# For any rule at all, the TV is at least what is kept beyond $\beta$: if more is kept than $\beta$, some tokens are emitted
# more often than $p$ allows, as the bound of section 2 says. Leniency pays just that; typical acceptance often pays more.
#
# That is one token; over a text it adds up. Here is the whole engine on one of the package's *scenarios*: scripted models
# over three tokens, whose $p$ and $q$ depend on all tokens so far, and two drafts per round.

# %% tags=["nbval-check-output"]
from specdec_ref.proof import Scenario

half = partial(verify_lossy_leniency, leniency=0.5)
print("the first p of the scenario:", *Scenario().target_distribution(Scenario().prompt))
print("tokens in the text     1      2      3")
for name, rule in {"token": "token", "leniency 0.5": half, "lossy-typical": "lossy-typical"}.items():
    print(f"{name:17}", *(f"{Scenario(rule, budget=n).total_variation():6.3f}" for n in (1, 2, 3)))

# %% [markdown]
# (The first column is 0 for all three: where one token is wanted the engine drafts nothing, since each round adds a
# token of the target's own.)
#
# Whether the price is worth paying is for you to decide. That there *is* one belongs in the name: the package calls
# these rules `lossy-...`.

# %% [markdown]
# ## 8. What "exact" means on a computer that rounds
#
# All of this holds for real numbers. A computer rounds, and then the *order* of a sum matters. Not so for integers.
# Each entry of a matrix product is a sum of hundreds of products; here are 576 of them, added up in 200 random orders,
# once as float32 and once as integers.

# %% tags=["nbval-check-output"]
shuffled = np.random.default_rng(0)
weights, activations = shuffled.integers(0, 16, 576), shuffled.integers(-127, 128, 576)
as_integers = weights * activations
as_floats = (as_integers / 1000).astype(np.float32)


def different_sums(numbers, orders=200):
    """How many different sums come out if the numbers are added one by one in random orders."""
    return len({np.cumsum(shuffled.permutation(numbers))[-1] for _ in range(orders)})


print("(0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3):", (0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3))
print("(1 + 2) + 3 == 1 + (2 + 3):            ", (1 + 2) + 3 == 1 + (2 + 3))
float_sums, integer_sums = different_sums(as_floats), different_sums(as_integers)
print(f"576 products in 200 orders: {float_sums} different float32 sums, {integer_sums} integer sum")
assert float_sums > 1 and integer_sums == 1

# %% [markdown]
# Fast libraries choose the order of their sums by the number of tokens in a pass. So a pass over nine tokens may give
# other last bits than nine passes over one. The rule is exact for the $p$ that it is given; that $p$ may differ slightly
# from the one that plain decoding would have seen.
#
# Whether your library does that depends on the machine. To make sure that you see it, we *plant* it: in a pass over
# more than one token, each matrix product is computed as the sum of two halves, each rounded to the model's format. (PyTorch
# allows its GPU kernels the same by default, under the name *reduced-precision reduction*.)

# %%
from specdec_ref import NGramDrafter
from specdec_ref.measure import compare_greedy


def in_halves(matrix):
    """The same product, but for several tokens at a time as the sum of two halves: another order of the same sum."""
    whole = matrix.forward

    def forward(x):
        if len(x) == 1:
            return whole(x)
        first = x.clone()
        first[:, x.shape[1] // 2 :] = 0
        return whole(first) + whole(x - first)

    matrix.forward = forward


models = {dtype: load_model(dtype=dtype) for dtype in ("bfloat16", "float32")}
for each in models.values():
    for name, part in each.named_modules():
        if name.split(".")[-1] in ("qkv", "out", "gate_up", "down", "head"):
            in_halves(part)

comparisons = {}
runs = [(dtype, id) for dtype in models for id in ("chat-1", "translation-2", "rewrite-1")]
for dtype, id in course.progress(runs, "plain and speculative texts"):
    messages = course.prompt(id).messages
    engines = SpeculativeEngine(models[dtype], gamma=0), SpeculativeEngine(models[dtype], NGramDrafter(), gamma=8)
    plain, speculative = (e.generate(messages, max_new_tokens=14).tokens for e in engines)
    comparisons[dtype, id] = compare_greedy(plain, speculative, models[dtype], messages)
assert any(found.kind == "near-tie" for (dtype, _), found in comparisons.items() if dtype == "bfloat16")
assert not any(found.kind == "error" for found in comparisons.values())
for (dtype, id), found in comparisons.items():
    a, b = (repr(model.tokenizer.decode([token])) if token is not None else "" for token in found.tokens)
    scale = f"gap {found.gap:.3g}, rounding scale {found.rounding:.2g}"
    print(f"{dtype:9} {id:14}", "same" if found.kind == "same" else f"token {found.position}: {a} or {b}, {scale}")

# %% [markdown]
# Greedy decoding takes the likeliest token, so where two tokens are almost equally likely, the last bits decide.
# `compare_greedy` goes to the first token in which two texts differ and computes its logits again, in passes of several
# widths. It prints the *gap* between the two tokens, and the *rounding scale*: how far a logit moves if nothing changes
# but the width of the pass. If rounding alone can close the gap, we call it a **near-tie**, and every difference above is
# one. Any other would be a bug. After a flip the texts diverge, so later differences tell us nothing.
#
# Don't wave every difference away as rounding: **list them**. How many places of a text are near-ties? Take each place by
# itself: the gap between its two best tokens, and how far these two logits move there if the passes are eight tokens wide.
# It is a near-tie if they move at least as far as the gap. (The moves come from the rounding that we planted; your library
# may show fewer, or none.)


# %%
def logits_by_width(model, width):
    """The logits after the prompt and after each written token but the last, [24, vocab], in passes of `width`."""
    ids = torch.tensor([*prompt_ids, *written[:-1]])
    cache, first = model.new_cache(len(ids)), len(prompt_ids) - 1
    with torch.inference_mode():
        model.forward(ids[:first], cache, slice(0))
        return torch.cat([model.forward(part, cache) for part in ids[first:].split(width)]).double()


model = models["bfloat16"]
narrow, wide = logits_by_width(model, 1), logits_by_width(model, 8)
best = narrow.topk(2)
gaps = best.values[:, 0] - best.values[:, 1]
moved = (wide - narrow).gather(1, best.indices).abs().sum(1)  # by both logits together, at each place
ties = gaps <= moved
print(f"{ties.sum()} of {len(gaps)} places are near-ties; those with the smallest gaps:")
for at in gaps.argsort()[:6].tolist():
    words = " or ".join(repr(model.tokenizer.decode([t])) for t in best.indices[at].tolist())
    verdict = "a near-tie" if ties[at] else "none"
    print(f"  token {at:2}: {words:24} gap {gaps[at]:.3f}, moved by {moved[at]:.3f}: {verdict}")
low = 2 ** best.values.median().log2().floor().item()
print(f"between {low:.0f} and {2 * low:.0f} the format itself has steps of {torch.finfo(torch.bfloat16).eps * low:.3g}")
assert ties.any()

# %% [markdown]
# The gaps are coarse, since a logit in bfloat16 can't lie between two steps of the format (last line; smaller logits have
# finer steps). So two tokens can even tie exactly, and one step may be enough to swap two neighbours.

# %% [markdown]
# ### Noise is not bias
#
# And with sampling? Nothing flips there; the distribution shifts slightly. At each of the 24 places, how far is the $p$
# of a wide pass from that of a narrow one, as TV? Beside it stands a rule that is not exact: *leniency 0.9* keeps a
# draft with $\min(1, p / (0.9\,q))$, a little too often. How far does that move $p$, with the draft of section 2?
#
# Don't read much into the *sizes*: we chose the leniency, and we planted the rounding. Look at the *direction*: how much
# mass moves to tokens that the draft prefers ($q > p$)?

# %%
p_narrow, p_wide = narrow.softmax(-1), wide.softmax(-1)
q_draft = target_and_draft(model)[1]
favoured = q_draft > p_narrow  # the tokens that the draft model prefers

lenient_keep = torch.minimum(q_draft, p_narrow / 0.9)
missing = (p_narrow - q_draft).clamp(min=0)
lenient = lenient_keep + (1 - lenient_keep.sum(-1, keepdim=True)) * missing / missing.sum(-1, keepdim=True)

moves = {"planted rounding": p_wide - p_narrow, "leniency 0.9": lenient - p_narrow}
for name, change in moves.items():
    size, push = change.abs().sum(-1) / 2, (change * favoured).sum(-1)
    print(
        f"{name:16} TV {size.mean():.3f} on average; mass moved to the draft's favourites {push.mean():+.3f},", end=" "
    )
    print(f"{(push > 0).sum()} times up and {(push < 0).sum()} times down")
pushes = {name: (change * favoured).sum(-1).tolist() for name, change in moves.items()}
assert min(pushes["planted rounding"]) < 0 < max(pushes["planted rounding"]) and min(pushes["leniency 0.9"]) >= 0
alt = "; ".join(f"{name}: from {min(values):+.3f} to {max(values):+.3f}" for name, values in pushes.items())
course.show(course.pushes_figure(pushes), alt=f"Mass moved to tokens that the draft prefers, at 24 places. {alt}.")

# %% [markdown]
# That is the difference. Rounding is **noise**: it goes both ways, knows nothing of the draft, and changing the batch
# size or the GPU does the same to plain decoding. A lossy rule is a **bias**: it goes one way at every token, towards
# the draft, and a long text adds it up.
#
# So the honest claim is: **the rule adds nothing to what the arithmetic does anyway.** In float64 greedy texts are equal,
# token for token, and the package's tests require it; in float32 they hardly ever differ.
#
# ### Can it be had to the last bit?
#
# Must the width matter? There are two ways out. A kernel that treats each row of a pass by itself, in one order of sums
# whatever stands beside it, gives a token the same bits in any pass (*batch invariance*: He et al. 2025, "Defeating
# Nondeterminism in LLM Inference"). The package's norms and its attention in bfloat16 on a CPU are written so.
#
# Or the sums are of integers, where no order matters. Weights in few bits lend themselves to that. A 4-bit weight times
# an activation that was rounded to an integer is an integer, so the sum over a group of weights that share a scale is
# exact, in whatever order the CPU is fastest. The default model multiplies like that, in groups of 32; only the few sums
# of groups are floats, and they are added in one fixed order:

# %%
default = load_model()
narrow, wide = logits_by_width(default, 1), logits_by_width(default, 8)
widest = (wide - narrow).abs().max().item()
print(f"passes of 1 and of 8 tokens, {narrow.numel():,} logits: the largest difference is {widest:.3g}")
plain, speculative = SpeculativeEngine(default, gamma=0), SpeculativeEngine(default, NGramDrafter(), gamma=8)
requests = [course.prompt(id) for id in ("chat-1", "translation-2", "rewrite-1")]
pairs_of_texts = [
    [engine.generate(r.messages, max_new_tokens=40).tokens for engine in (plain, speculative)]
    for r in course.progress(requests, "texts of the default model")
]
print(f"{sum(a == b for a, b in pairs_of_texts)} of {len(requests)} texts of up to 40 tokens are the same")
assert widest > 0 or all(a == b for a, b in pairs_of_texts)

# %% [markdown]
# Where the difference is 0, plain and speculative decoding compute the same bits, and no near-tie can part their texts.

# %% [markdown]
# ## What the article says
#
# The claims of the article that belong here, and what is left of them:

# %%
HTML(course.claims_html(16, 17, 18, 21, 25))

# %% [markdown]
# ## Check yourself
#
# **1. A draft model always proposes the worst token, one that the target gives probability 0. What comes out?**
#
# <details><summary>Mostly that token</summary>You may be thinking of an average of the two models. It is kept with
# probability min(1, 0/q) = 0: never.</details>
# <details><summary>The target's distribution, one token per round</summary>Yes. Everything is rejected, the residual is p
# itself because q covers none of it, and each round yields only its correction. Exact, and slow.</details>
# <details><summary>Nothing, the engine hangs</summary>No: a rejection is always followed by a correction, and the residual
# has mass whenever something can be rejected.</details>
#
# **2. After a rejection someone draws from p, "to be on the safe side". What is wrong?**
#
# <details><summary>Nothing, p is what we want</summary>The likely mistake: p is what the <i>whole</i> step has to give. The
# kept drafts have already delivered min(p, q). A correction from p delivers part of that again.</details>
# <details><summary>Tokens that the draft model likes come too often</summary>Yes: min(p, q) + (1 - beta) p instead of p,
# which is too much wherever q > beta p. In section 5 token 0, with less than that, got 40% instead of 60%.</details>
#
# **3. In bfloat16 your speculative text differs from the plain one at token 11. Is that a bug?**
#
# <details><summary>Yes: exact means the same text</summary>Exact for the p that was computed. A wide pass may round p
# differently, and a near-tie then flips.</details>
# <details><summary>No: bfloat16 always does that</summary>Then you would never find a bug. Look first.</details>
# <details><summary>It depends on the gap at token 11</summary>Yes. If the gap between the two tokens is within what rounding
# moves a logit, it is a near-tie; otherwise it is a bug. In float32 near-ties are rare; in float64, and where all passes
# give the same bits, a difference is always a bug.</details>
#
# **4. A draft model drops its last token if its own probability was low, after it has drawn it. Does that matter?**
#
# <details><summary>No, fewer drafts are only slower</summary>It would be so if the decision were made <i>before</i> the draw.
# Made after it, unlikely tokens are dropped and likely ones stay: those that stay no longer follow the reported q.</details>
# <details><summary>Yes, the distribution changes</summary>Right: the proof needs a draft that was drawn from the q that it
# reports. Decide before drawing, or propose the token and stop after it.</details>

# %% [markdown]
# ## In production
#
# - **vLLM** has a `RejectionSampler` (`vllm/v1/sample/rejection_sampler.py`). Its words: *accepted* tokens, *recovered*
#   tokens (our corrections) and *bonus* tokens. For n-gram drafts it gets `draft_probs=None`, our deterministic draft.
#   Newer versions have `draft_sample_method` in `speculative_config`: `"greedy"`, the default, means that an EAGLE head or
#   a draft model proposes its likeliest token, again without a distribution. Such a draft is kept with probability
#   $p(x)$, and $1 - \mathrm{TV}$ is reached only with `"probabilistic"`. There is also `rejection_sample_method`,
#   `"standard"` or `"block"` (or `"synthetic"`, which accepts at given rates and is for benchmarks). The uniforms are
#   drawn in float64, to make the $u = 0$ of section 5 all but impossible. Its documentation, too, distinguishes exactness
#   in theory from what hardware numerics leave of it.
# - **transformers** has `_speculative_sampling` in `generation/utils.py`, used for `assistant_model=` with
#   `do_sample=True`. Newer versions offer `assistant_ensemble_weight`, a lossy rule, and their documentation says that
#   it is biased. How does your version treat $u = 0$? The cell below looks.
# - **TensorRT-LLM** has `use_rejection_sampling` in its speculative configurations (a prototype), off by default:
#   sampled requests are then verified by exact match, our *match* rule. Exact either way; you now know the difference.

# %%
import inspect

import transformers
from transformers.generation import utils

source_code = inspect.getsource(getattr(utils, "_speculative_sampling", lambda: None))
tests = {"<= probability_ratio": "u <= p/q", "< probability_ratio": "u < p/q"}
test = next((says for text, says in tests.items() if text in source_code), "not found")
print(f"transformers {transformers.__version__}, _speculative_sampling: the test is {test}")

# %% [markdown]
# ## What to remember
#
# - Keep with min(1, p/q), else draw from max(0, p - q). The probability of a rejection is the residual's own normaliser:
#   that is the whole proof.
# - On average 1 - TV(p, q) is kept. The draft may be anything, as long as the distribution that it *reports* is true.
# - For a text: the rest is right given the first token, however that came about. Induction does the rest.
# - Enumerate what you can, count what you must, replay the numbers you fear.
# - "Exact" refers to the p that was actually computed. Rounding is noise around it, a lossy rule is a bias; list the
#   near-ties and call the rest bugs.
#
# **Problem set.** [ps04-rejection-sampling](../exercises/ps04-rejection-sampling/ps04-rejection-sampling.ipynb), with a
# check below each part.
#
# **Exercises.** (1) Write a rule that takes the *likelier of two* sampled drafts, and find its distribution with your
# walk for p = q = (.6, .4). (2) Prove that TV ≥ (share kept) − β for any rule, and that leniency reaches it. (3) Change
# `block_round` so that it tries the shortest prefix first, and let `chances` show what breaks.
#
# **Sources.** Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), proof in appendix A.1, leniency in A.5; Chen et al. 2023
# (arXiv 2302.01318); Sun et al. 2024, *Block verification accelerates speculative decoding* (arXiv 2403.10444); Cai et al.
# 2024, *Medusa* (arXiv 2401.10774), typical acceptance; He et al. 2025, *Defeating Nondeterminism in LLM Inference*.
