# %% [markdown]
# # 00 · Start here
#
# *20 minutes. You need what `make lab` has set up, and some Python. No GPU, and no network from here on.*
#
# Afterwards you have seen a real language model write the same text twice, plainly and speculatively; you can say
# where the gain comes from, and why it is sometimes none; and you know the way through the course.

# %% [markdown]
# ## A question first
#
# A language model writes one token after the other, and for **each** token it reads **all** of its weights. Now let
# somebody whisper guesses for the next few tokens. The model can check several guesses in a *single* reading, keep
# those that it would have written itself, and throw the rest away. The text stays the same. How much faster will it be
# written?
#
# Put your guesses into the next cell before you go on: one for a prompt that asks for something new, one for a prompt
# that asks to repeat a text. 1.0 means equally fast.

# %%
my_guess_for_open_chat = 1.5
my_guess_for_a_rewrite = 1.5

# %% [markdown]
# ## 1. A real model, decoding plainly

# %%
from IPython.display import HTML

import specdec_course as course
from specdec_ref import NGramDrafter, SpeculativeEngine, load_model

target = load_model(weights="full")
print(f"{target.config.n_weights / 1e6:.0f} million weights in {target.dtype}, {target.config.n_layers} layers")

# %% [markdown]
# This is SmolLM2-135M-Instruct, a real trained model, small enough for any laptop. Its weights come from a file in
# which they were quantised to 4 bits; what you see is the model *in that file*, multiplied out to more bits
# (`weights="full"`) as most libraries do. It is no great thinker. It need not be: everything in this course holds for
# the large ones, too.
#
# `gamma=0` means: no guesses. One token a pass.

# %%
chat, rewrite = course.prompt("chat-1"), course.prompt("rewrite-1")
plain = SpeculativeEngine(target, gamma=0)

for chunk in plain.stream(chat.messages, max_new_tokens=50):
    print(chunk.text, end="")

# %% [markdown]
# ## 2. The same model, with guesses
#
# Where do guesses come from? The cheapest source is the text itself: find the last few tokens earlier in the text, and
# guess that it goes on as it did there. No second model, hardly any time. This is *lookup drafting* (`NGramDrafter`);
# `gamma=8` allows eight guesses a round. It makes as many as the two places have words in common: a single word that came
# before says little about what follows, a shared sentence a lot.
#
# In the text below each token shows where it comes from.

# %%
speculative = SpeculativeEngine(target, NGramDrafter(), gamma=8)
result = speculative.generate(rewrite.messages, max_new_tokens=60)
HTML(course.tokens_html(result, target.tokenizer, rewrite.user.split("\n")[0]) + course.legend_html(result))

# %% [markdown]
# Two things can happen in a round. Either the model rejects a guess: then it writes its own token in that place, the
# *correction*, and the guesses behind it are dropped. Or it rejects none: then its pass has also told what comes
# *after* the last guess, and that token is a *bonus*. So every pass yields at least one token, and never a wrong one.

# %%
stats = result.stats
print(f"{stats.emitted} tokens in {stats.rounds} passes of the target: {stats.tokens_per_round:.1f} tokens a pass")
print(f"drafted {stats.drafted}, tested {stats.tested}, accepted {stats.accepted}")

# %% [markdown]
# **Try it:** what do you expect for `chat` instead of `rewrite`? Change the prompt in the cell above the last one, and
# run both again.

# %% [markdown]
# ## 3. Does it pay? A race
#
# A fair race runs both ways in turns, plain, speculative, plain, speculative: computers have slow minutes, and both
# arms should share them. We look only at the ratio of times.

# %%
from specdec_ref.measure import race

races = {
    p: race(
        lambda p=p: plain.generate(p.messages, max_new_tokens=50),
        lambda p=p: speculative.generate(p.messages, max_new_tokens=50),
        repeats=3,
    )
    for p in (chat, rewrite)
}
for p, r in races.items():
    print(f"{p.domain:10} {r.verdict()}")

# %%
course.show(
    course.ratio_figure(
        [p.domain for p in races],
        [r.ratios for r in races.values()],
        [my_guess_for_open_chat, my_guess_for_a_rewrite],
    ),
    alt="Speedup over plain decoding, measured here. " + "; ".join(f"{p.domain}: {r}" for p, r in races.items()),
)

# %% [markdown]
# Your numbers are your machine's, and differ from those that are stored here. If the two bars differ much, the reason
# is not the clock: look at how many tokens each target pass gave.

# %%
for p, r in races.items():
    s = r.second.stats
    print(f"{p.domain:10} {s.tokens_per_round:.2f} tokens a pass, {s.acceptance_rate:.2f} of tested drafts accepted")

# %% [markdown]
# ## 4. Where the gain comes from
#
# Checking eight guesses means that one pass takes in nine tokens. If that took nine times as long as a pass over one
# token, nothing would be won. So measure it: the time of *one pass over n tokens*, in units of a pass over one.

# %%
from specdec_ref.measure import pass_seconds, relative_cost

cost = relative_cost(pass_seconds(target, (1, 2, 4, 8, 12, 16), context=64, repeats=8))
course.show(
    course.pass_cost_figure(cost),
    alt="Time of one pass over n tokens, in passes over one token: "
    + ", ".join(f"n={n}: {c:.2f}" for n, c in cost.items())
    + ". The line for n separate passes rises as n.",
)

# %%
for n, c in cost.items():
    print(f"one pass over {n:2} tokens takes {c:.2f} times as long as a pass over one; {n} passes would take {n}")

# %% [markdown]
# The gap between the two lines is what speculation lives on. A pass over one token spends its time on *reading weights*,
# and leaves the arithmetic units waiting; more tokens in the same pass use weights that are being read anyway. How far
# that carries depends on the machine and on the weights' format: lesson 01 makes it exact.
#
# Now the whole of speculative decoding is one fraction:
#
# $$\text{speedup} = \frac{\text{tokens a round}}{\text{cost of a round, in plain passes}}$$
#
# Guesses that are often right raise the top. Cheap guesses, and a pass that hardly notices more tokens, keep the bottom
# near 1. Let us see how well that predicts the race.

# %%
for p, r in races.items():
    s = r.second.stats
    tokens_in_a_pass = 1 + s.drafted / s.rounds
    nearest = min(cost, key=lambda n: abs(n - tokens_in_a_pass))
    predicted = s.tokens_per_round / cost[nearest]
    print(f"{p.domain:10} predicted {predicted:.2f}x, measured {r}")

# %% [markdown]
# The prediction leaves things out: it takes the mean number of drafted tokens for every round, and forgets the prompt's
# own pass, which both arms pay. Lesson 06 does better, and finds out when speculation *loses*.

# %% [markdown]
# ## 5. The same slack, spent another way
#
# If reading weights takes the time, one can also read fewer bytes. The file has the weights in 4 bits; `load_model()`
# leaves them so where this machine can multiply such weights. Three ways to write the rewrite, in turns: as above, with
# 4-bit weights, and with both.

# %%
from specdec_ref.models import bytes_a_pass

small = load_model()
for name, model in {"full": target, "default": small}.items():
    print(f"{name:8} a pass over one token reads {bytes_a_pass(model) / 1e6:.0f} MB of weights")

arms = {"4-bit weights": SpeculativeEngine(small), "both": SpeculativeEngine(small, NGramDrafter(), gamma=8)}
for name, engine in arms.items():
    r = race(lambda: plain.generate(rewrite.messages, 50), lambda e=engine: e.generate(rewrite.messages, 50), repeats=3)
    print(f"{name:14} {r.verdict()}")

# %%
small_cost = relative_cost(pass_seconds(small, (1, 4, 8, 16), context=64, repeats=8))
for n, c in small_cost.items():
    print(
        f"one pass over {n:2} tokens takes {c:.2f} times as long as over one with 4-bit weights; above: {cost[n]:.2f}"
    )

# %% [markdown]
# If more tokens in a pass cost more here than above, then less waiting is left for guesses to use. See what that does:
# divide the ratio of "both" by that of the 4-bit weights, and compare it with what guesses gave alone. `specdec bench` on
# the command line measures this in six kinds of text, against other libraries if you ask it to.

# %% [markdown]
# ## 6. Move something
#
# First a still picture, with two guesses a round on open chat. Then choose the prompt and gamma yourself: more guesses a
# round, fewer passes? Where does it stop helping?

# %%
HTML(course.draft_html(target, chat, gamma=2, max_new_tokens=40))

# %%
course.draft_explorer(target, [p for p in course.prompts() if p.id.endswith("-1")], gamma=4)

# %% [markdown]
# ## 7. Is it really the same text?
#
# With greedy decoding, yes, up to one thing that a computer does to all of us: a pass over nine tokens adds its numbers
# in another order than nine passes over one, so the last digits differ. Where two tokens are all but equally likely,
# that can tip the choice. The cell below says whether it happened here, and how near the two tokens were.

# %%
from specdec_ref.measure import describe_difference

for p, r in races.items():
    print(f"{p.domain:10} {describe_difference(r, target, p.messages)}")

# %% [markdown]
# With sampling the *distribution* of the text is the same, not each single text: two honest dice do not show the same number
# either. That this distribution is met exactly, by a rule of three lines, is the most surprising fact of the subject. Lesson 04
# proves it, and then tries hard to break it.

# %% [markdown]
# ## Check yourself
#
# **1. All guesses of a round are wrong. How many tokens does the round yield?**
#
# <details><summary>None: everything is thrown away</summary>Not quite. The target has computed its own distribution for the first
# place, so it writes its own token there. A round never comes back empty.</details>
# <details><summary>One</summary>Yes: the correction. With useless guesses speculation is plain decoding, plus the cost of
# guessing.</details>
#
# **2. Four guesses, all accepted. How many tokens does the round yield?**
#
# <details><summary>Four</summary>One more: the pass also gave the distribution behind the last guess, and a token from it is the
# bonus.</details>
# <details><summary>Five</summary>Yes: four accepted, and a bonus.</details>
#
# **3. A better drafter doubles the number of accepted tokens. What does that do to the quality of the text?**
#
# <details><summary>It gets better</summary>No: the target decides every token. The drafter changes how *fast* the text
# comes, never what it says.</details>
# <details><summary>Nothing</summary>Yes. That is why one may draft with anything: a small model, a table, a dice.</details>

# %% [markdown]
# ## In production
#
# What you ran here is known as *prompt lookup decoding* or *n-gram speculation*. In transformers it is
# `model.generate(..., prompt_lookup_num_tokens=8)`, and a draft model is `assistant_model=`. In vLLM it is
# `speculative_config={"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 3}`; TensorRT-LLM calls it
# `NGramDecodingConfig`.

# %% [markdown]
# ## The way from here

# %%
HTML(course.contents_html())

# %% [markdown]
# ## What to remember
#
# - A decode step reads all weights for one token; checking several tokens in one pass costs little more, where reading
#   is the bottleneck.
# - Draft, verify in one pass, keep the accepted prefix, add the target's own token: a correction or a bonus.
# - Speedup is tokens a round over cost a round. Both are measured, neither is promised.
# - It depends on the text: repeated text is easy to guess, new text is not.
# - The drafter decides the speed; the target decides the text.
#
# **Sources.** Leviathan, Kalman, Matias 2023, *Fast inference from transformers via speculative decoding* (arXiv
# 2211.17192); Chen et al. 2023 (arXiv 2302.01318); Saxena 2023, *Prompt lookup decoding*.
