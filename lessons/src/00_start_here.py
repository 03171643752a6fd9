# %% [markdown]
# # 00 · Start here
#
# *35 minutes. You need what `make lab` has set up, and some Python. No GPU, and no network from here on.*
#
# By the end you will have watched a real model write one text twice, token by token and speculatively. You will know
# where the speedup comes from, and why it is sometimes zero; and you will have written the heart of the algorithm
# yourself.

# %% [markdown]
# ## A question first
#
# A language model writes one token at a time, and for **each** token it reads **all** of its weights. Suppose someone
# whispers guesses for the next few tokens. In *one* forward pass, one reading of the weights, the model can check them
# all. It keeps those it would have written itself and discards the rest. The text stays the same. How much faster will
# it be written?
#
# Put your guesses into the next cell before you go on: one for a prompt that asks for something new, one for a prompt
# that asks to repeat a text. 1.0 means equally fast.

# %%
my_guess_for_open_chat = None
my_guess_for_a_rewrite = None

# %% [markdown]
# ## 1. A real model writes, token by token
#
# The next cell loads the model. The very first time it also unpacks the weights and compiles the forward pass for your
# processor. That can take a minute, during which little or nothing is printed. Later starts take seconds.

# %%
from IPython.display import HTML

import specdec_course as course
from specdec_ref import NGramDrafter, SpeculativeEngine, load_model

target = load_model()
print(f"{target.config.n_weights / 1e6:.0f} million weights, {target.config.n_layers} layers")

# %% [markdown]
# This is SmolLM2-135M-Instruct, a real trained model, small enough for any laptop. It is no great thinker. It need not
# be: the algorithm and its proofs are the same for large models. Where size makes a difference, as it does for speed,
# the lessons say so.
#
# A *token* is a word or a piece of one. In a *forward pass* the model reads the text so far and gives every token of its
# vocabulary a score for coming next, its *logit*. Here we decode *greedily*: the token with the highest logit is
# written, and the next pass begins. One pass, one token.

# %%
chat, rewrite = course.prompt("chat-1"), course.prompt("rewrite-1")
plain = SpeculativeEngine(target, gamma=0)  # gamma: how many guesses per pass, at most

print(f"{chat.user}\n")
for chunk in plain.stream(chat.messages, max_new_tokens=48):
    print(chunk.text, end="")

# %% [markdown]
# ## 2. Guess, check, keep: the algorithm in your own code
#
# Where do guesses come from? The cheapest source is the text itself. Take the last two tokens, find where they stood
# before, and guess that the text goes on as it did there. No second model, and hardly any time.
#
# **Your turn.** Tokens are whole numbers here: their places in the vocabulary. Replace the line with `raise` and run the
# cell; it tells you at once whether your code is right. If you get stuck, `course.solution("00 lookup")` prints ours.


# %%
def lookup(tokens, gamma):
    """Up to gamma guesses: what followed the last two tokens where they last stood before; [] if they never did."""
    raise NotImplementedError("search backwards; the last two tokens must not find themselves")


lookup = course.blank("00 lookup", lookup)

# %% [markdown]
# Now the check. The guesses are appended to the text, and the model reads all of it in one pass. That pass gives the
# model's own *choice* at every place: for the place of the first guess, of the second, and so on, and for the place
# after the last guess. A guess that equals the choice at its place is right. But the choices after a wrong guess are
# worthless, since they continue a text that the model would not have written.
#
# **Your turn** again: what does such a round add to the text?


# %%
def round_tokens(guesses, choices):
    """The right guesses up to the first wrong one, then one token of the model's own.

    choices: the model's token for the place of each guess, and for the place after the last: one more than guesses.
    """
    raise NotImplementedError("guesses = [5, 6, 7], choices = [5, 6, 8, 9] gives [5, 6, 8]")


round_tokens = course.blank("00 round", round_tokens)

# %% [markdown]
# Those two functions are speculative decoding. Here they write, with nothing but the model's forward pass around them.
#
# One index deserves a closer look. The pass gives a choice after *every* token it reads: `choices[i]` is what the model
# would write *after* token i. The text so far ends with token `len(tokens) - 1`, so `choices[len(tokens) - 1]` belongs to
# the place of the first guess. The entries before it repeat what is long decided, and the slice drops them.

# %%
import torch

from specdec_ref import encode_prompt


@torch.inference_mode()
def choices_after(tokens):
    """The model's own next token after each of these tokens: one forward pass over all of them."""
    return target.forward(torch.tensor(tokens), target.new_cache(len(tokens))).argmax(-1).tolist()


prompt = encode_prompt(rewrite.messages, target)
tokens, passes = list(prompt), 0
while len(tokens) - len(prompt) < 32:
    guesses = lookup(tokens, 8)
    choices = choices_after(tokens + guesses)
    tokens += round_tokens(guesses, choices[len(tokens) - 1 :])  # from the choice after the last token on
    passes += 1

mine = tokens[len(prompt) :]
print(f"{len(mine)} tokens in {passes} passes:\n{target.tokenizer.decode(mine)}")
assert passes < len(mine) / 2, "too few guesses were right to show anything"

# %% [markdown]
# The prompt was: repeat this text word for word. So most guesses were right, and most passes gave several tokens. (This
# loop reads the whole text in every pass. A real engine keeps what it has computed for earlier tokens in a *cache*;
# that is lesson 02, and taking wrong guesses out of the cache again is lesson 05.)

# %% [markdown]
# ## 3. One text, written twice
#
# From here on we use the course's own engine, `SpeculativeEngine`. Its lookup drafter, `NGramDrafter`, is yours with one
# refinement: the longer the match, the more it guesses. One matching token says little about what comes next, a
# matching sentence says a lot.

# %%
guessing = SpeculativeEngine(target, NGramDrafter(), gamma=8)
by_token = plain.generate(rewrite.messages, max_new_tokens=48)
by_guess = guessing.generate(rewrite.messages, max_new_tokens=48)

assert by_guess.tokens == by_token.tokens, "the two texts should be the same, token for token"
assert by_token.tokens[: len(mine)] == mine[:48], "your loop should write this text, too"
HTML(course.side_by_side_html({"token by token": by_token, "with guesses": by_guess}, target.tokenizer))

# %% [markdown]
# The two texts are the same to the last token; the cell would have failed if they were not. On the right, each upright
# line begins a new *round*: one round of guesses, checked by one pass. Colour and underline say where a token came from.
#
# A round ends in one of two ways. Either the model rejects a guess: then it writes its own token there, the
# *correction*, and drops the guesses after it. Or it rejects none: then the same pass has already computed the token
# *after* the last guess, a free *bonus* token. Either way a round adds at least one token, and never a wrong one.
#
# A repeated text is easy to guess. A summary uses some words of its own, so there more guesses are wrong:

# %%
summary = course.prompt("summary-1")
by_prompt = {"rewrite": by_guess, "summary": guessing.generate(summary.messages, max_new_tokens=48)}
for name, result in by_prompt.items():
    s = result.stats
    print(
        f"{name}: {s.emitted} tokens in {s.rounds} passes, {s.tokens_per_round:.1f} per pass; "
        f"{s.drafted} guesses drafted, {s.tested} tested, {s.accepted} accepted"
    )
assert s.accepted < s.tested < s.drafted and s.corrected and s.bonus, "a summary should have all kinds of guesses"

# %% [markdown]
# *Drafted* are all guesses that were made. *Tested* are those up to the first wrong one of each round, for the guesses
# after it are never looked at. *Accepted* are the right ones among those tested.

# %% [markdown]
# And this is how it went, on this machine, just now. Both rows have the same axis of time. Each tick is one pass of the
# model, each box a token. Run the cell again to see it again.

# %%
runs = [
    ("Token by token", course.timed_run(plain, rewrite.messages, 48)),
    ("With guesses", course.timed_run(guessing, rewrite.messages, 48)),
]
HTML(course.timeline_html(runs, target.tokenizer))

# %% [markdown]
# **What to look for.** A pass with guesses *gives* more tokens, and it *reads* more tokens, so it may take longer. How
# far apart are the ticks in the lower row, compared with the upper one? Whether guessing pays is the question of how
# much longer a pass takes, and how much more it gives. Section 6 makes a formula of it.

# %% [markdown]
# ## 4. Your own prompt
#
# Choose a prompt, or write one of your own, and the model writes the answer both ways. Before you press Enter: will it
# be faster? Try a summary, then open chat; try a prompt that makes the model repeat itself; and raise gamma until it
# helps no more. (Each change writes two texts, so give it a few seconds.)

# %%
some = [course.prompt(name) for name in ("summary-1", "rewrite-1", "question-1", "code-3", "translation-1", "chat-1")]
course.race_explorer(target, some, gamma=8)

# %% [markdown]
# More guesses make fewer passes only as long as the guesses are right. When the text is new, lookup finds nothing to
# guess, or guesses wrongly, and every pass gives one token. A drafter that can also guess *new* text has to know the
# language: a small model. Lesson 07 (still to come) trains one.

# %% [markdown]
# ## 5. Does it pay? A race
#
# One run proves little. A fair race takes turns, plain, guessing, guessing, plain: a computer is sometimes busy, and
# alternating the runs makes both suffer equally. We compare the time of *decoding*; reading the prompt takes equally
# long either way. And we say "faster" only where chance alone would rarely look like that: if both ways were equally fast, one of
# them would win all six pairs of runs in only 2 of 64 races, or 3%.

# %%
from specdec_ref.measure import race

races = {
    p.domain: race(
        lambda p=p: plain.generate(p.messages, max_new_tokens=40),
        lambda p=p: guessing.generate(p.messages, max_new_tokens=40),
        progress=course.progress,
    )
    for p in (chat, summary, rewrite)
}
for name, r in races.items():
    print(f"{name:10} {r.verdict()}")

# %%
print("open chat:", course.guess_text(my_guess_for_open_chat, races["open chat"].ratio, "x"))
print("rewrite:  ", course.guess_text(my_guess_for_a_rewrite, races["rewrite"].ratio, "x"))
course.show(
    course.ratio_figure(races, guesses=[my_guess_for_open_chat, None, my_guess_for_a_rewrite]),
    alt="Speedup of decoding with lookup guesses, measured here. " + "; ".join(f"{p}: {r}" for p, r in races.items()),
)

# %% [markdown]
# Your numbers are your machine's, and differ from those that are stored here. But the bars differ from each other for a
# reason that is not your machine's: look at how many tokens each pass gave.

# %%
for name, r in races.items():
    s = r.second.stats
    print(f"{name:10} {s.tokens_per_round:.2f} tokens per pass; {s.drafted} guesses in {s.rounds} rounds")

# %% [markdown]
# ## 6. Where the gain comes from
#
# To check eight guesses, one pass has to read nine tokens. If that took nine times as long as a pass over one token,
# nothing would be won. So measure it: the time of *one pass over n tokens*, in units of a pass over one.

# %%
from specdec_ref.measure import pass_seconds, relative_cost

sizes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
cost = relative_cost(pass_seconds(target, sizes, context=64, progress=course.progress))
course.show(
    course.pass_cost_figure(cost),
    alt="Time of one pass over n tokens, in passes over one token: "
    + ", ".join(f"n={n}: {c:.2f}" for n, c in cost.items())
    + ". The line for n separate passes rises as n.",
)

# %% [markdown]
# The gap between the two lines is what speculation lives on. A pass over one token spends most of its time *reading
# weights*, while the arithmetic units wait; further tokens in the same pass use weights that are being read anyway. How
# far that carries depends on the machine and on the format of the weights. Lesson 01 makes it exact.
#
# Now all of speculative decoding is one fraction:
#
# $$\text{speedup} = \frac{\text{tokens per round}}{\text{cost of a round, in passes over one token}}$$
#
# Guesses that are often right raise the top. Cheap guesses, and a pass that hardly notices more tokens, keep the bottom
# near 1. How well does it predict the race? Lookup costs next to nothing, so a round costs one pass over its guesses and
# one token more.

# %%
predicted = [course.predicted_speedup(r.second.stats, cost) for r in races.values()]
for (name, r), p in zip(races.items(), predicted):
    print(f"{name:10} predicted {p:.2f}x, measured {r.ratio:.2f}x; with the prompt's pass {r.total_ratio:.2f}x")
course.show(
    course.ratio_figure(races, predicted=predicted),
    alt="Speedup measured and predicted: "
    + "; ".join(f"{name} {r.ratio:.2f}, {p:.2f}" for (name, r), p in zip(races.items(), predicted)),
)

# %% [markdown]
# Nothing in the prediction was timed in the race: it knows how long passes take, and how many tokens the rounds gave. It
# leaves out whatever else a round does: finding guesses, comparing them, taking wrong ones out of the cache, and the
# Python code around all that. And its passes follow 64 tokens of text, those of the race a longer text. So expect it to
# promise somewhat too much. (A busy machine can push either number up or down; that is why the race has dots.)
#
# The last number of each line is what a user notices who waits for the whole answer. The prompt's pass takes equally long
# in both arms, so it pulls every speedup towards 1; the shorter the answer, the more. Lesson 06 (still to come) finds out when
# speculation *loses*.

# %% [markdown]
# ## 7. The same idle time, spent twice
#
# If reading weights is what takes the time, one can also read fewer bytes. The model's file holds its weights in 4 bits,
# but for the output head, which has 8; and `load_model()`, above, has left them so where this machine can multiply such
# weights. Most libraries expand them to 16 bits or more; `weights="full"` does so here. That makes two optimisations,
# 4-bit weights and guesses, and four ways to write a text. First, each optimisation alone, against neither:

# %%
from specdec_ref.models import bytes_a_pass

full = load_model(weights="full")
for name, model in {"full": full, "4-bit": target}.items():
    print(f"{name:6} weights: a pass over one token reads {bytes_a_pass(model) / 1e6:.0f} MB")

plain_full, guessing_full = SpeculativeEngine(full), SpeculativeEngine(full, NGramDrafter(), gamma=8)


def against_plain(engine):
    return race(
        lambda: plain_full.generate(rewrite.messages, 32),
        lambda: engine.generate(rewrite.messages, 32),
        same_target=engine.target is full,
        progress=course.progress,
    )


alone = {"guesses": against_plain(guessing_full), "4-bit weights": against_plain(plain)}
for name, r in alone.items():
    print(f"{name:13} {r.verdict()}")

# %% [markdown]
# **A word on the second line.** Compare its speedup with the bytes: if the step had only become shorter by what it no
# longer reads, the speedup would be the ratio of the two numbers of MB. Where it is larger, the rest is *other code*: full
# weights go through PyTorch, operation by operation, while 4-bit weights go through one compiled pass of this package. A
# race compares two programs as they are; it does not say which difference between them made the gain.
#
# **Guess first:** you know what each of them gives alone on your machine. How many times as fast will both together be?

# %%
my_guess_for_both = None

# %%
both = against_plain(guessing)
print("both:", course.guess_text(my_guess_for_both, both.ratio, "x"))
print(course.together_words(alone, both))
full_cost = relative_cost(pass_seconds(full, (1, 4, 9), context=64, progress=course.progress))
for n in (4, 9):
    print(f"a pass over {n} tokens costs {full_cost[n]:.2f} passes over one with full weights, ", end="")
    print(f"{cost[n]:.2f} with 4-bit weights")

# %% [markdown]
# Guesses live on the time that a pass over one token leaves unused. Whatever makes that pass faster also changes how much
# there is to live on. Compare the two costs in each line: where the 4-bit figure is the larger one, extra tokens find less
# idle time to fill, and guesses gain less than they did with full weights. (A cost below 1 means that the pass over one
# token was the slower of the two: either its kernel is a slow one, or the machine was busy while it was measured.)
#
# So a speedup is always *over something*, two speedups cannot simply be multiplied, and a technique has to be measured on
# top of what you already have. `specdec bench` on the command line does so for six kinds of text, and against other
# libraries if you ask it to.

# %% [markdown]
# ## 8. Is it always the same text?
#
# With greedy decoding, yes, with one exception: rounding. A pass over nine tokens may add its numbers in another order
# than nine passes over one, so that the last digits differ; where two logits are all but equal, that can tip the choice.
# With 4-bit weights this package adds in the same order whether a pass checks one token or nine, so here the texts are
# equal to the last token. For other formats lesson 04 shows a text in which rounding does tip the choice.
#
# A sampler rolls dice instead of taking the highest logit. With sampling, the *distribution* of the text is the same,
# not the text itself: two fair dice rarely show the same number. That this distribution is met *exactly*, by a rule of
# three lines, is the most surprising fact of the subject. Lesson 04 proves it, and then tries hard to break it.

# %% [markdown]
# ## The words
#
# | word | what it means |
# |---|---|
# | token | a word or a piece of one: an entry of the model's vocabulary, written as a whole number |
# | forward pass | one run of the model over some tokens; it reads all weights once and gives logits after each token |
# | logit | the score of a token for coming next; softmax makes probabilities of logits |
# | greedy | always the token with the highest logit; the opposite is sampling |
# | target | the model whose text we want |
# | draft, drafter | guesses for the next tokens, and whatever makes them: a lookup, a small model |
# | gamma (γ) | how many tokens are drafted per round, at most |
# | verify | to check a draft with one forward pass of the target |
# | accept, reject | a drafted token is accepted if it is what the target wants there; after the first rejected one none is tested |
# | round | one draft, one pass of the target, and what both add to the text |
# | correction, bonus, plain | the target's own token at the end of a round: after a rejection, after none, or where nothing was drafted |
# | acceptance rate (α) | accepted over tested (beware: vLLM's logs divide by *drafted* and use the same name) |
# | prefill, decode | reading the prompt in one pass; writing the answer, round by round |
# | KV cache | what the model keeps of earlier tokens, so that a pass need read only the new ones (lesson 02) |
# | distribution | which tokens may come next, and how probable each is |

# %% [markdown]
# ## Check yourself
#
# **1. All guesses of a round are wrong. How many tokens does the round yield?**
#
# <details><summary>None: everything is thrown away</summary>Not quite. The target has computed its own choice for the
# first place, so it writes that. A round never comes back empty.</details>
# <details><summary>One</summary>Yes: the correction. With useless guesses speculation is plain decoding, plus the cost of
# guessing and of longer passes.</details>
#
# **2. Four guesses, all accepted. How many tokens does the round yield?**
#
# <details><summary>Four</summary>One more: the pass has also given the token after the last guess, the bonus.</details>
# <details><summary>Five</summary>Yes: four accepted, and a bonus.</details>
#
# **3. Eight guesses are drafted, the third is wrong. How many were tested, and what is the acceptance rate of this round?**
#
# <details><summary>8 tested; 2 of 8, or 25%</summary>No: the guesses after the third were never looked at. They may have
# been right or wrong; the text they belong to was not written. 2 of 8 is *accepted per drafted*, another number,
# which is the one that vLLM logs as its acceptance rate.</details>
# <details><summary>3 tested; 2 of 3, or 67%</summary>Yes: two right ones and the wrong one.</details>
#
# **4. A better drafter doubles the number of accepted tokens. What does that do to the quality of the text?**
#
# <details><summary>It gets better</summary>No: the target decides every token. The drafter changes how *fast* the text
# comes, never what it says.</details>
# <details><summary>Nothing</summary>Yes. So you may draft with anything: a small model, a lookup table, even a die.</details>
#
# **5. A pass over nine tokens costs 2.0 passes over one. How many tokens must a round with eight guesses yield, on
# average, before it pays?**
#
# <details><summary>More than 2</summary>Yes: the fraction of section 6 must exceed 1. With all eight guesses right it would
# be 9 / 2 = 4.5.</details>
# <details><summary>More than 9</summary>That would be so if nine tokens cost nine passes. They cost two.</details>

# %% [markdown]
# ## In production
#
# What you ran here is known as *prompt lookup decoding* or *n-gram speculation*; drafting more where the match is longer
# comes from *suffix decoding* (vLLM has that, too: `"method": "suffix"`). In transformers lookup is
# `model.generate(..., prompt_lookup_num_tokens=8)`, and a draft model is `assistant_model=`. In vLLM lookup is `speculative_config={"method": "ngram", "num_speculative_tokens": 8,
# "prompt_lookup_max": 3}`; TensorRT-LLM calls it `NGramDecodingConfig`.

# %% [markdown]
# ## The way from here

# %%
HTML(course.contents_html())

# %% [markdown]
# ## What to remember
#
# - A decode step reads all weights to write one token. Where reading is the bottleneck, checking several tokens in one
#   pass costs little more.
# - Draft, verify in one pass, keep the accepted prefix, add one token of the target's own: a correction or a bonus.
# - Speedup is tokens per round over cost of a round. Both are measured, neither is promised.
# - It depends on the text: repeated text is easy to guess, new text is not. And two optimisations that use the same idle
#   time do not multiply.
# - The drafter decides the speed; the target decides the text.
#
# **Sources.** Leviathan, Kalman, Matias 2023, *Fast inference from transformers via speculative decoding* (arXiv
# 2211.17192); Chen et al. 2023 (arXiv 2302.01318); Saxena 2023, *Prompt lookup decoding*; Oliaro et al. 2024,
# *SuffixDecoding* (arXiv 2411.04975).
