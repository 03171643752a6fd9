# %% [markdown]
# # 05 · The engine
#
# *160 minutes, best in two sittings: about 100 for sections 1 to 8, the rest later. You need lesson 00. Sections 1 to 8 are
# greedy and stand alone, so you may read them before lessons 01 to 04. Section 9 samples, and takes the accept/reject rule
# from lesson 04.*
#
# By the end you will have written the parts of a speculative engine that decide whether it is right: acceptance, roll-back,
# budget, stop, and the draft model's cache. You will have tracked down eight classic bugs from their symptoms, and you will
# know which of them show in the text, which only in the numbers, and which check finds each.

# %% [markdown]
# ## A question first
#
# Let the draft model be *the target itself*, with the same weights. It drafts 4 tokens per round, greedily, and is never
# wrong. We want 40 tokens. How many passes of the target does that take, not counting the one that reads the prompt?
#
# Now suppose a token gets lost. After a round in which every draft was accepted, the last draft is missing from the
# *draft model's* cache: that one token and no other. How many passes now, and does the text change?

# %%
my_guess_passes = None
my_guess_passes_with_the_slip = None
my_guess_text_changes = None  # True or False

# %% [markdown]
# ## 1. The loop without drafts
#
# One sentence carries the whole lesson, so learn it before any code. A token is **committed** once it is part of the output
# for good. The newest committed token is **pending**: it has been chosen, but no forward pass has read it yet.
#
# > **Between rounds, the cache holds every committed token but the pending one.**
#
# Every pass starts with the pending token and returns the distribution of the token *after* it. A prompt is no special case:
# the *prefill* reads all of it but its last token, and that one is pending. (Production engines read the whole prompt and
# take the first new token from that same pass. It saves one pass per text; the sentence holds for them as well.)
#
# The model computes in float32 in this lesson. In that format rounding hardly ever decides a token, so a difference between
# two texts is almost certainly a *bug*. Section 10 comes back to that.

# %%
import torch
from IPython.display import HTML

import specdec_course as course
from specdec_ref import encode_prompt, load_model

# %%
target = load_model(dtype="float32")
tokenizer = target.tokenizer
prompts = {"rewrite": "rewrite-1", "owls": "question-2", "chat": "chat-1"}
rewrite, owls, chat = (encode_prompt(course.prompt(name).messages, target) for name in prompts.values())
print(
    f"tokens: rewrite {len(rewrite)}, owls {len(owls)}, chat {len(chat)}; the end-of-text token is {target.eos_token_ids}"
)


# %%
def prefill(model, tokens, capacity):
    """A cache that holds all of `tokens` but the last one."""
    cache = model.new_cache(capacity)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))  # slice(0): no logits wanted
    return cache


def decode_plain(model, prompt, max_new_tokens):
    tokens = list(prompt)
    cache = prefill(model, tokens, len(tokens) + max_new_tokens)
    for _ in range(max_new_tokens):
        logits = model.forward(torch.tensor(tokens[-1:]), cache)  # feed the pending token
        tokens.append(int(logits[-1].argmax()))  # greedy: the likeliest token is the next pending one
    return tokens[len(prompt) :]


# %%
plain, owls_plain = (
    decode_plain(target, prompt, n) for prompt, n in course.progress([(rewrite, 48), (owls, 24)], "two plain texts")
)
print(tokenizer.decode(plain))
print("\n" + tokenizer.decode(owls_plain))

# %% [markdown]
# The first text took 48 passes for 48 tokens, the second 24 for 24. They are our *references*: whatever we build from here on
# has to write exactly these tokens. (Nothing stops at an end of the text yet; that is section 5.)

# %% [markdown]
# ## 2. Draft, then verify in one pass
#
# Any guess is allowed. The cheapest is a lookup: find the last two tokens earlier in the text, and guess that what followed
# them there follows here too.


# %%
def lookup(tokens, gamma, n=2):
    """What followed the last earlier place with the same `n` tokens: at most `gamma` tokens, perhaps none."""
    for i in range(len(tokens) - n - 1, -1, -1):
        if tokens[i : i + n] == tokens[-n:]:
            return tokens[i + n : i + n + gamma]
    return []


so_far = owls + owls_plain[:10]
drafted = lookup(so_far, gamma=4)
print("text so far ends with:", repr(tokenizer.decode(so_far[-9:])))
print("drafted:              ", [tokenizer.decode([t]) for t in drafted])

# %% [markdown]
# Not a foolish guess: the same two words stand in the question itself.
#
# Now feed the pending token **and** the drafts, in one pass. It returns one row of logits per token fed, so one row more than
# there are drafts. Row $i$ has seen $i$ drafts, and says what the target would write after them.


# %%
def show_rows(tokens, drafted, best):
    print(f"{'row':>3}  {'fed':12} {'the target would go on with':28} drafted")
    for i, fed in enumerate([tokens[-1], *drafted]):
        guess = repr(tokenizer.decode([drafted[i]])) if i < len(drafted) else "nothing: this row is for a bonus"
        print(f"{i:3}  {tokenizer.decode([fed])!r:12} {tokenizer.decode([best[i]])!r:28} {guess}")


cache = prefill(target, so_far, capacity=len(so_far) + 4)
logits = target.forward(torch.tensor([so_far[-1], *drafted]), cache)
best = logits.argmax(-1).tolist()
show_rows(so_far, drafted, best)

# %% [markdown]
# ## 3. Accept
#
# The drafts stay up to the first one that differs from the target's own choice. Then the target adds one token of its own,
# from the row after the last accepted draft: a *correction* if a draft was rejected there, a *bonus* if all were accepted.
#
# **Your turn.** How many drafts stay? `best` has one entry per row, so one more than `drafted`.


# %%
def accept_prefix(drafted, best):
    """How many drafts stay: those before the first that differs from the target's choice."""
    raise NotImplementedError("write it")


accept_prefix = course.blank("05 accept_prefix", accept_prefix)

# %%
accepted = accept_prefix(drafted, best)
emitted = [*drafted[:accepted], best[accepted]]
print(f"accepted {accepted} of {len(drafted)}; emitted {[tokenizer.decode([t]) for t in emitted]}")
assert 0 < accepted < len(drafted) and emitted == owls_plain[10 : 10 + len(emitted)]

# %% [markdown]
# Three tokens from one pass, and exactly those that plain decoding wrote. Here is another round, from the other text. Before
# you run it: the keeper climbed the stairs in the text to be repeated, and the drafts say that he climbs again. How many of
# the four stay?

# %%
elsewhere = rewrite + plain[:21]
guesses = lookup(elsewhere, gamma=4)
choices = target.forward(torch.tensor([elsewhere[-1], *guesses]), prefill(target, elsewhere, len(elsewhere) + 4))
choices = choices.argmax(-1).tolist()
show_rows(elsewhere, guesses, choices)
print(f"accepted: {accept_prefix(guesses, choices)}")
assert sum(a == b for a, b in zip(guesses, choices)) == 3 > accept_prefix(guesses, choices)

# %% [markdown]
# **Look at row 0, and at the rows below it.** Row 0 disagrees with its draft. The rows below *agree*, and that means nothing:
# each says what would follow a text that will never be written. Even so the round yields a token, and it is the right one.

# %% [markdown]
# ## 4. Roll back
#
# Back to the owls. The pass has put five tokens into the cache: the pending one and four drafts. Two of them are not part of
# the text, and the cache has to go back to what the sentence of section 1 asks for. `cache.truncate(n)` keeps the first `n`
# tokens.
#
# **Your turn.** `tokens` are all the tokens committed by now, prompt included.


# %%
def roll_back(cache, tokens):
    """After this the cache holds every committed token but the pending one."""
    raise NotImplementedError("write it")


roll_back = course.blank("05 roll_back", roll_back)

# %%
tokens = so_far + emitted
print(f"committed: {len(tokens)} tokens; in the cache after the pass: {cache.length}")
roll_back(cache, tokens)
print(f"after roll_back: {cache.length}")

# %% [markdown]
# `truncate` moves no data: it sets a number, and the next pass overwrites what lies beyond it. Here is the whole round in one
# picture. A column is a place in the text, so each draft stands above the target's choice for the same place.

# %%
round_ = course.worked_round(so_far, drafted, accepted, best[accepted])
course.show(course.strip_figure(round_, tokenizer, best), alt=course.strip_words(round_))

# %% [markdown]
# How would you know that the cache is right? By the strongest check there is for a cache: *it must behave as a freshly filled
# one*. Feed the pending token to ours and to a fresh one, and compare the logits.


# %%
def cache_error(model, cache, tokens):
    """Largest difference in the next logits between this cache and a fresh prefill; the cache stays as it is."""
    length, pending = cache.length, torch.tensor(tokens[-1:])
    here = model.forward(pending, cache)
    cache.truncate(length)
    fresh = model.forward(pending, prefill(model, tokens, len(tokens)))
    return (here - fresh).abs().max().item()


error = cache_error(target, cache, tokens)
print(f"largest logit difference from a fresh cache: {error:.1e}")
assert error < 0.01

# %% [markdown]
# ## 5. Stop
#
# Two things end a text: the budget, and an end-of-text token (EOS). Plain decoding checks after every token. A round emits up
# to $\gamma + 1$ tokens at once, so either end can fall *inside* it. Two small functions take care of that.
#
# **Your turn.** `room` more tokens may be emitted. How many may be drafted, when `gamma` are wanted? And which of the emitted
# tokens stay, when `eos` is a collection of tokens each of which ends the text? (The one that ends it stays, too.)


# %%
def limit(gamma, room):
    """How many tokens to draft when `room` more may be emitted; `room` is at least 1."""
    raise NotImplementedError("write it")


limit = course.blank("05 limit", limit)


# %%
def cut(emitted, eos):
    """The list of emitted tokens up to the first that ends the text, and that one too; all of them if none does."""
    raise NotImplementedError("write it")


cut = course.blank("05 cut", cut)

# %% [markdown]
# ## 6. The loop
#
# Now put the parts together. Read it line by line: your four functions are in it. `watch` is called after each round, so that
# we can look at the cache from outside.


# %%
def generate(model, propose, prompt, max_new_tokens, gamma=4, eos=(), watch=lambda cache, tokens: None):
    """New tokens, and (drafted, accepted) of each round."""
    tokens, rounds, end = list(prompt), [], len(prompt) + max_new_tokens
    cache = prefill(model, tokens, capacity=end)
    while len(tokens) < end and not (rounds and tokens[-1] in eos):  # 5. stop? (an EOS in the prompt ends nothing)
        drafted = propose(tokens, limit(gamma, end - len(tokens)))  # 1. draft
        logits = model.forward(torch.tensor([tokens[-1], *drafted]), cache)  # 2. verify in one pass
        best = logits.argmax(-1).tolist()
        accepted = accept_prefix(drafted, best)  # 3. accept
        emitted = [*drafted[:accepted], best[accepted]]
        tokens += cut(emitted, eos)
        roll_back(cache, tokens)  # 4. roll back
        rounds.append((len(drafted), accepted))
        watch(cache, tokens)
    return tokens[len(prompt) :], rounds


# %%
mine, rounds = generate(target, lookup, rewrite, 48)
print(f"{len(rounds)} passes for {len(mine)} tokens; (drafted, accepted) of each round:\n{rounds}")
print("the same tokens as plain decoding" if mine == plain else "NOT the tokens of plain decoding")
assert mine == plain and len(rounds) < len(mine) and any(a < d for d, a in rounds)

# %% [markdown]
# A dozen lines, and far fewer passes than tokens. Why is a capacity of `end` enough, although a pass adds drafts that are not
# part of the text? With `room` tokens left, `limit` drafts at most `room - 1`, so even at its fullest the cache holds fewer
# than `end` tokens: the budget covers the drafts as well.
#
# **Try it:** `propose=lambda tokens, gamma: []` turns the same loop into plain decoding. And a drafter that always proposes
# token 17? It costs nothing but time.

# %% [markdown]
# ## 7. Break it
#
# Now the other way round. Each engine below is ours with *one line* changed. The loop is the one above, word for word; the
# four functions are our solutions, which may be written differently from yours. (Their caches have room to spare, so that a
# wrong engine writes a wrong text instead of stopping.) Real engines have shipped several of these bugs. Six are in this
# section, one more in each of the next two. You see the symptom first. Then read the engine and **find the line** before you
# read on.
#
# ### Engine 1
#
# It is given the same task as yours.

# %%
engine_1 = course.suspect(1)
wrong, wrong_rounds = engine_1.generate(target, lookup, rewrite, 48)
right_count, wrong_count = (sum(a for _, a in r) for r in (rounds, wrong_rounds))
print(f"passes:          {len(rounds)} yours, {len(wrong_rounds)} engine 1")
right_drafts, wrong_drafts = (sum(d for d, _ in r) for r in (rounds, wrong_rounds))
print(f"drafts accepted: {right_count} of {right_drafts} yours, {wrong_count} of {wrong_drafts} engine 1")
assert wrong != plain and wrong_count / wrong_drafts > right_count / right_drafts
HTML(course.diverging_html({"plain decoding": plain, "engine 1": wrong}, tokenizer))

# %%
my_line_1 = None
engine_1.find(my_line_1)

# %% [markdown]
# **Bug 1: count all that agree**, not the agreeing prefix. This is the nastiest kind. The text is fluent: it jumps over a
# passage, and no reader who doesn't know the original would notice. The counts don't warn you either, since wrong tokens
# count as accepted ones: the **acceptance rate** *rises*. A rate that suddenly improves is a reason to be afraid.
#
# Two numbers go by that name. One is *accepted per drafted*: the share of all drafts that stayed. It is what this lesson
# prints and what vLLM's metrics show. The other is *accepted per tested*, the α of lesson 00: drafts after a rejection were
# never tested and don't count. With four drafts of which the second is rejected, the first number is 1/4, the second 1/2.
# Before you compare two rates, ask which they are.
#
# ### Engines A, B and C
#
# Three engines, each with a slip in the same line, the roll-back. One never rolls back, one keeps a token too many, one loses
# a token. After every round the cache is compared with a fresh one, and the comparison stops at the first large difference.

# %%
n = 30
slips = {"A": course.suspect(4), "B": course.suspect(2), "C": course.suspect(3)}
texts, found = {}, {}
for name in course.progress(["yours", *slips], "comparing caches"):
    errors, spare = [], []

    def watch(cache, tokens, errors=errors, spare=spare):
        spare.append(cache.length - (len(tokens) - 1))
        if not errors or errors[-1] < 0.01:
            errors.append(cache_error(target, cache, tokens))

    run = generate if name == "yours" else slips[name].generate
    texts[name], _ = run(target, lookup, rewrite, n, watch=watch)
    found[name] = (errors, spare)

for name, (errors, _) in found.items():
    text = "the right text" if texts[name] == plain[:n] else "ANOTHER text"
    seen = f"first seen in round {len(errors)}" if errors[-1] > 0.01 else f"none in {len(errors)} rounds"
    print(f"{name:6} {text:15} largest cache error {max(errors):.1e}, {seen}")
assert max(found["yours"][0]) < 0.01 and all(found[name][0][-1] > 0.01 for name in slips)
assert texts["A"] == plain[:n], "a wrong cache that the text does not show"

# %% [markdown]
# Compare the two columns. The *cache error* separates right from wrong by several powers of ten, in the very round in which
# the fault happens. The *text* is a poor witness: a model that repeats a text attends mostly to the prompt, and may get over
# a missing token. Engine A did: a test that compares this one text passes an engine with a hole in its cache.
#
# Which engine is which? One more number helps: how much longer the cache is than it should be, after each round.

# %%
print("(drafted, accepted) in your rounds:", rounds[:8])
print("tokens too many in the cache:")
for name, (_, spare) in found.items():
    print(f"  {name:6} {spare}")
assert not any(found["yours"][1]) and all(any(found[name][1]) for name in slips)

# %%
my_order = None  # three letters: no roll-back, one token too many, one token lost
print(course.reply_to_order("05 caches", my_order))

# %% [markdown]
# **Bugs 2, 3 and 4.** *No roll-back* (B) leaves every rejected draft in the cache, and *one too many* (C) leaves one: from then
# on the model continues another text, in which every new token sits at a wrong position. *One lost* (A) shows at once: the
# cache lacks the last token of the prompt, and every later token sits one position too early.
#
# And yet A wrote the right text above. Is it harmless? Let it answer a question.

# %%
from specdec_ref.measure import compare_greedy

for _ in course.progress([owls], "another text by engine A"):
    hole, _ = slips["A"].generate(target, lookup, owls, 24)
    parting = compare_greedy(owls_plain, hole, target, owls)
a, b = (tokenizer.decode([token]) for token in parting.tokens)
print(
    f"token {parting.position}: {a!r} or {b!r}, logit gap {parting.gap:.2f}; rounding moves them by {parting.rounding:.0e}"
)
assert parting.kind == "error" and parting.gap > 1
HTML(course.diverging_html({"plain decoding": owls_plain, "engine A": hole}, tokenizer))

# %% [markdown]
# Another answer, in good English. `compare_greedy` looked up how far apart the two candidate tokens are where the texts part:
# the *logit gap*, and beside it how far rounding moves these logits. This was no coin toss. Whether and when a text diverges
# is luck; the cache error is not.

# %% [markdown]
# ### Engine 5
#
# Let the full stop end the text: one sentence, please. (Any id can be the EOS. That is also how to test a stop without waiting
# for the model to feel like stopping.)

# %%
full_stop = (tokenizer.encode(".")[-1],)
engine_5 = course.suspect(5)
one_sentence, _ = generate(target, lookup, rewrite, 48, eos=full_stop)
passed_over, _ = engine_5.generate(target, lookup, rewrite, 48, eos=full_stop)
print(f"{len(one_sentence)} tokens yours, {len(passed_over)} engine 5")
assert passed_over[: len(one_sentence)] == one_sentence and len(passed_over) > len(one_sentence)
HTML(course.diverging_html({"yours": one_sentence, "engine 5": passed_over}, tokenizer))

# %%
my_line_5 = None
engine_5.find(my_line_5)

# %% [markdown]
# **Bug 5: an end inside a block.** It depends on where in a round the end falls: at the end of a block all is well. So one
# text proves nothing. The test is to declare *each* token of an output the EOS in turn, and for that a toy is better than a
# language model: a **scripted model**, whose distribution you write yourself. This one counts, $5, 6, 7, \ldots$, and its
# drafter knows.

# %%
from specdec_ref.models import ScriptedModel


def count_up(tokens):
    return [float(x == (tokens[-1] + 1) % 30) for x in range(30)]


counter = ScriptedModel(count_up, vocab_size=30)


def knows(tokens, gamma):
    return [(tokens[-1] + 1 + i) % 30 for i in range(gamma)]


def at_every_end(run):
    return [len(run(counter, knows, [4], 12, eos=(end,))[0]) for end in range(5, 17)]


print("EOS is token number 1, 2, ... 12; tokens emitted:")
print("  yours   ", at_every_end(generate))
print("  engine 5", at_every_end(engine_5.generate))
assert at_every_end(generate) == list(range(1, 13)) != at_every_end(engine_5.generate)

# %% [markdown]
# With $\gamma = 4$ a round emits five tokens. Engine 5 is right only where the end falls on the last of five, or where the
# budget ends the text anyway.
#
# ### Engine 6
#
# Now the budget, asked for in every size:


# %%
def at_every_budget(run):
    return [len(run(counter, knows, [4], asked)[0]) for asked in range(1, 13)]


engine_6 = course.suspect(6)
print("asked for 1, 2, ... 12 tokens; got:")
print("  yours   ", at_every_budget(generate))
print("  engine 6", at_every_budget(engine_6.generate))
assert at_every_budget(generate) == list(range(1, 13)) != at_every_budget(engine_6.generate)

# %%
my_line_6 = None
engine_6.find(my_line_6)

# %% [markdown]
# **Bug 6: one token too many.** If you limit the drafts to the remaining budget and forget the extra token, you overrun it
# whenever the last round is fully accepted. With SmolLM2 and lookup you would seldom have seen that. Perfect drafters are for
# testing.

# %% [markdown]
# ## 8. A draft model has a cache of its own
#
# Now let a *model* draft. It needs what every model needs: a cache, filled, and rolled back after each round. One thing is
# different from the target, and it is what the question at the top was about.
#
# To draft $\gamma$ tokens, the draft model is fed the pending token and the first $\gamma - 1$ drafts. The last draft comes
# *out* of its last pass and never goes *in*. Here is the round of section 4 again, as if a model had drafted it, and below it
# a round in which all four drafts are accepted. Look at the last row of each: what does the draft's cache lack afterwards?

# %%
half = course.worked_round(so_far, drafted, 2, best[2], draft_cache=True)
course.show(course.strip_figure(half, tokenizer, best), alt=course.strip_words(half))

# %%
later = owls + owls_plain[:13]
whole = course.worked_round(later, owls_plain[13:17], 4, owls_plain[17], draft_cache=True)
assert (half.draft.after, whole.draft.after) == (half.committed - 1, whole.committed - 2)
course.show(course.strip_figure(whole, tokenizer), alt=course.strip_words(whole))

# %% [markdown]
# After a fully accepted round the draft's cache lacks **two** committed tokens: the last draft, and the pending one.
#
# **Your turn.** The draft's cache holds the first `held` of the committed `tokens`: nearly all of them, or none before the
# first round. What has to be fed before the model can draft?


# %%
def missing(tokens, held):
    """The committed tokens that the draft's cache lacks; it holds the first `held` of them."""
    raise NotImplementedError("write it")


missing = course.blank("05 missing", missing)


# %%
class DraftModel:
    """Drafts greedily with a model that has a cache of its own."""

    def __init__(self, model, capacity):
        self.model, self.cache = model, model.new_cache(capacity)

    def __call__(self, tokens, gamma):
        self.cache.truncate(min(self.cache.length, len(tokens) - 1))  # roll back what was not accepted
        drafted, new = [], missing(tokens, self.cache.length)
        for _ in range(gamma):
            logits = self.model.forward(torch.tensor(new), self.cache, slice(len(new) - 1, None))
            new = [int(logits[0].argmax())]
            drafted += new
        return drafted


draft_model = target  # the question at the top: the target drafts for itself

# %% [markdown]
# Run it with your `missing`, and with that of engine 7.

# %%
engine_7 = course.suspect(7)
chat_plain = decode_plain(target, chat, 40)
drafters = (DraftModel(draft_model, 200), engine_7.DraftModel(draft_model, 200))
(chat_full, full_rounds), (chat_slip, slip_rounds) = (
    generate(target, drafter, chat, 40) for drafter in course.progress(drafters, "two draft models")
)
for name, got, its in (("yours", chat_full, full_rounds), ("engine 7", chat_slip, slip_rounds)):
    share = sum(a for _, a in its) / sum(d for d, _ in its)
    text = "the right text" if got == chat_plain else "ANOTHER text"
    print(f"{name:8} {len(its):2} passes of the target, {share:4.0%} of the drafts accepted, {text}")

print("passes:                ", course.guess_text(my_guess_passes, len(full_rounds)))
print("passes with the slip:  ", course.guess_text(my_guess_passes_with_the_slip, len(slip_rounds)))
said = "no guess yet" if my_guess_text_changes is None else f"you guessed {'yes' if my_guess_text_changes else 'no'}"
print("does the text change?  ", "no" if chat_slip == chat_plain else "yes", f"({said})")
assert chat_full == chat_slip == chat_plain and all(a == d for d, a in full_rounds)
assert len(slip_rounds) > len(full_rounds)

# %%
course.show(
    course.rounds_figure({"yours": full_rounds, "engine 7, a hole in the draft's cache": slip_rounds}),
    alt="Tokens of each round, with the target as its own draft. With your code: "
    f"{len(full_rounds)} rounds, accepted {[a for _, a in full_rounds]}. "
    f"Engine 7: {len(slip_rounds)} rounds, accepted {[a for _, a in slip_rounds]}.",
)

# %%
my_line_7 = None
engine_7.find(my_line_7)

# %% [markdown]
# **Bug 7: the draft's cache lacks the last accepted draft.** The picture above is the one to keep. The drafter has the
# target's very weights, and gets rejected: it no longer reads the same text. No exception, no wrong token, no test of the
# output that could fail. The target repairs everything, and the only trace is an acceptance rate, and nobody knew what it
# should be. TensorRT-LLM once had a milder form of this bug (the place was there, its content was stale), and vLLM a close
# relative of it, which was noticed because the acceptance rate fell sharply (see the sources).
#
# So know what it should be: *a model that drafts for itself must have every draft accepted.* That is a test of one line, and
# one of the best there is, under one condition: both sides must compute the same $p$ and $q$. Here they are greedy, in
# float32. With sampling, give both the same temperature and filters, and let the draft be *drawn*: a draft that always takes
# its likeliest token is rejected now and then by a target that samples. And in a 16-bit format a pass over one token may
# round differently from a pass over five, so a few drafts may fall without any bug.
#
# A draft model has to read and write the target's tokens. The article that this course checks (*Demystifying Speculative
# Decoding: Build 3x Faster LLM Inference Engines From Scratch*) names a pair; one of the two does not exist:

# %%
HTML(course.claims_html(15))

# %% [markdown]
# ## 9. Sampling
#
# So far the loop compares tokens. Above temperature 0 the target has a distribution $p$ for each place, and the draft was
# drawn from a distribution $q$. Lesson 04 proves the rule: keep a draft $x$ with probability $\min(1, p(x)/q(x))$; after a
# rejection, draw from the **residual** $\max(0, p - q)$. Where rounding leaves nothing of that, draw from $p$: that is the
# guard of section 5 there, and the last line of `residual` here. Three lines of the loop change, and they are marked:
#
# 1. drafting is a draw, so `propose` hands over $q$ along with each token;
# 2. logits become distributions, at a temperature;
# 3. the rule takes the place of `accept_prefix`, and draws the target's own token as well.
#
# Budget, end and roll-back stay as they are. All random choices go through `source`: `bernoulli(p)` is a coin,
# `categorical(p)` a draw.


# %%
def distribution(logits, temperature):
    return torch.softmax(logits / temperature, -1)


def residual(p, q):
    """max(0, p - q); p itself where rounding leaves nothing of that."""
    left = (p - q).clamp(min=0)
    return left if left.sum() > 0 else p


def verify_tokenwise(drafted, q, p, source):
    """How many drafts stay, and the target's token after them. p has one row more than there are drafts."""
    for i, x in enumerate(drafted):
        if not source.bernoulli(min(1.0, float(p[i][x] / q[i][x]))):
            return i, source.categorical(residual(p[i], q[i]))
    return len(drafted), source.categorical(p[len(drafted)])


def sample(model, propose, prompt, max_new_tokens, source, temperature, gamma=4, eos=()):
    tokens, rounds, end = list(prompt), [], len(prompt) + max_new_tokens
    cache = prefill(model, tokens, capacity=end)
    while len(tokens) < end and not (rounds and tokens[-1] in eos):
        drafted, q = propose(tokens, limit(gamma, end - len(tokens)), source)  # changed: 1
        p = distribution(model.forward(torch.tensor([tokens[-1], *drafted]), cache), temperature)  # changed: 2
        accepted, token = verify_tokenwise(drafted, q, p, source)  # changed: 3
        tokens += cut([*drafted[:accepted], token], eos)
        roll_back(cache, tokens)
        rounds.append((len(drafted), accepted))
    return tokens[len(prompt) :], rounds


# %% [markdown]
# Now the draft model has to draw, and to say from what it drew:


# %%
class SamplingDraft(DraftModel):
    """Drafts by drawing; hands over the distribution that each token was drawn from."""

    def __init__(self, model, capacity, temperature):
        super().__init__(model, capacity)
        self.temperature = temperature

    def __call__(self, tokens, gamma, source):
        self.cache.truncate(min(self.cache.length, len(tokens) - 1))
        drafted, distributions, new = [], [], missing(tokens, self.cache.length)
        for _ in range(gamma):
            logits = self.model.forward(torch.tensor(new), self.cache, slice(len(new) - 1, None))
            distributions.append(distribution(logits[0], self.temperature))
            new = [source.categorical(distributions[-1])]
            drafted += new
        return drafted, distributions


# %%
from specdec_ref import RandomSource

for seed in course.progress([1], "a sampled text"):
    drafter = SamplingDraft(draft_model, 200, 0.8)
    sampled, sampled_rounds = sample(target, drafter, chat, 30, RandomSource(seed), temperature=0.8)
print(tokenizer.decode(sampled))
print(f"{len(sampled_rounds)} passes for {len(sampled)} tokens; (drafted, accepted): {sampled_rounds}")
assert len(sampled_rounds) < len(sampled)

# %% [markdown]
# That text says nothing about whether the loop is right: every text is possible. Lesson 04 has the test that does.
# `enumerate_distribution` runs a program once for *every* way its random choices can fall and adds up the probabilities. What
# comes out is the distribution itself, of your *whole loop*: acceptance, roll-back, budget and end. Three tokens are enough,
# one of which ends the text, if two things hold: the draft model disagrees with the target, and both look at *every* token
# before, so that a wrong cache gives a wrong distribution.

# %%
from specdec_ref.proof import enumerate_distribution

P = [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.25, 0.5, 0.25]]
Q = [[0.1, 0.3, 0.6], [0.5, 0.4, 0.1]]
small = ScriptedModel(lambda tokens: P[sum(tokens) % 3], 3)
small_draft = ScriptedModel(lambda tokens: Q[sum(tokens) % 2], 3)


def nothing(tokens, gamma, source):
    return [], []


def all_texts(sampler, make_drafter):
    """The exact distribution of the texts that `sampler` writes: at most three tokens, and token 1 ends them."""

    def program(source):
        return tuple(sampler(small, make_drafter(), [2, 2, 2], 3, source, temperature=1.0, gamma=2, eos=(1,))[0])

    return enumerate_distribution(program)


def first_token(texts):
    return [round(sum(chance for text, chance in texts.items() if text[0] == x), 3) for x in range(3)]


def apart(a, b):
    return max(abs(a.get(text, 0) - b.get(text, 0)) for text in {*a, *b})


plainly = all_texts(sample, lambda: nothing)
drafting = all_texts(sample, lambda: SamplingDraft(small_draft, 20, 1.0))
print(f"{len(plainly)} texts; largest difference between plain and speculative: {apart(plainly, drafting):.0e}")
print("first token:", first_token(drafting), "and p is", P[0])
assert apart(plainly, drafting) < 1e-9

# %% [markdown]
# ### Engine 8
#
# Its loop, enumerated in the same way:

# %%
engine_8 = course.suspect(8)
skewed = all_texts(engine_8.sample, lambda: engine_8.SamplingDraft(small_draft, 20, 1.0))
print("first token:", first_token(skewed), "and p is", P[0])
assert max(abs(a - b) for a, b in zip(first_token(skewed), P[0])) > 0.1

# %%
my_line_8 = None
engine_8.find(my_line_8)

# %% [markdown]
# **Bug 8: the correction comes from p.** It is the bug of lesson 04, section 5, now in a whole loop: what the draft likes too
# much comes up too often. With a good draft the shift is small, no single text looks odd, and no greedy test can see it:
# with one-hot $p$ and $q$ the residual *is* $p$.
#
# ### Which check finds which bug?
#
# You have met five checks. Here each of them looks at each engine. The first four run its greedy loop. The last enumerates
# its sampling loop, which is built from the same parts, the wrong one among them. Before you run the cell: which check finds
# the most, and which bugs escape it?

# %%
CHECKS = ("one text", "cache = fresh prefill", "every end, every budget", "drafts for itself", "enumerated loop")


def findings(engine):
    """For each check whether it finds fault with the engine."""
    last = []

    def watch(cache, tokens):
        last[:] = cache, tokens

    text, _ = engine.generate(target, lookup, rewrite, 30, watch=watch)
    _, own_rounds = engine.generate(target, engine.DraftModel(target, 200), chat, 20)
    yield text != plain[:30]
    yield cache_error(target, *last) > 0.01
    yield at_every_end(engine.generate) != list(range(1, 13)) or at_every_budget(engine.generate) != list(range(1, 13))
    yield own_rounds != [(4, 4)] * 4
    yield apart(all_texts(engine.sample, lambda: engine.SamplingDraft(small_draft, 20, 1.0)), plainly) > 1e-6


table = {n: list(findings(course.suspect(n))) for n in course.progress(range(1, 9), "five checks of eight engines")}
alone = {check: [n for n, row in table.items() if row[i] and sum(row) == 1] for i, check in enumerate(CHECKS)}
for check, column in zip(CHECKS, zip(*table.values())):
    missed = [n for n, found in zip(table, column) if not found]
    print(f"{check:24} misses bugs {missed!s:19}", f"and is alone in finding {alone[check]}" if alone[check] else "")
HTML(course.table_html(["bug", *CHECKS], [[str(n), *("found" if f else "–" for f in row)] for n, row in table.items()]))

# %%
# What the text below says, held to what the table shows.
found_by = [sum(column) for column in zip(*table.values())]
assert all(any(row) for row in table.values()) and max(found_by) < 8, "every bug is found, no check finds all"
assert found_by[0] <= 4 and found_by[4] == max(found_by) == 6, "one text finds half at most, enumeration the most"
assert [n for n, row in table.items() if not row[4]] == [1, 7] and alone["drafts for itself"] == [7]
assert not alone["cache = fresh prefill"] and 8 in alone["enumerated loop"]

# %% [markdown]
# No column is full. The first is the test that most people write, and it lets half of the bugs or more pass. Enumeration finds
# the most, because the *whole loop* was enumerated, over models that look at every token before: a stale cache, a missed end
# and an overrun budget all change the distribution of the texts. A unit test that enumerates the rule alone would have found
# bug 8 and no other.
#
# Two bugs escape it. Bug 7 changes no distribution, only the number of accepted drafts; the target that drafts for itself is
# alone in finding it. Bug 1 sits in `accept_prefix`, which the sampling loop never calls: a check sees only the code that it
# runs. And the comparison of caches, which here finds nothing that others miss? It works on the real model, where nobody can
# enumerate, and it names the round.
#
# Read from the other side, as a map of who notices in production:
#
# | a fault in ... | what suffers | who notices |
# |---|---|---|
# | the target's cache, acceptance, stopping | the text | the user, perhaps |
# | the draft's cache | the speed | nobody, unless the acceptance rate is watched |
# | the residual | the distribution | nobody |

# %% [markdown]
# ## 10. The package's engine
#
# `SpeculativeEngine` is this loop, with everything around it that an engine needs: sampling options, stop strings, streaming,
# statistics, errors that help. Does it write what yours writes, in the same rounds?

# %%
from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine

by_lookup = SpeculativeEngine(target, NGramDrafter(max_ngram=2, min_ngram=2, trust=None), gamma=4)
by_itself = SpeculativeEngine(target, DraftModelDrafter(draft_model), gamma=4)

(lookup_run, lookup_steps), (itself_run, itself_steps) = (
    course.record_rounds(engine, prompt, max_new_tokens=n, eos_token_id=None)
    for engine, prompt, n in course.progress([(by_lookup, rewrite, 48), (by_itself, chat, 40)], "two texts")
)

for name, ours, theirs, our_rounds, steps, start in (
    ("lookup, rewrite", mine, lookup_run, rounds, lookup_steps, rewrite),
    ("target as its own draft, chat", chat_full, itself_run, full_rounds, itself_steps, chat),
):
    their_rounds = [(len(s.drafted), s.accepted) for s in steps]
    print(f"{name}: {compare_greedy(ours, theirs.tokens, target, start)}")
    print(f"  yours in {len(our_rounds)} rounds, the package's in {len(their_rounds)}")
    assert ours == theirs.tokens and their_rounds == our_rounds

# %% [markdown]
# Token by token and round by round. And with the sampling loop, from the same seed:

# %%
for seed in course.progress([1], "a sampled text"):
    theirs = by_itself.generate(chat, max_new_tokens=30, temperature=0.8, seed=seed, eos_token_id=None)
print("the same tokens" if theirs.tokens == sampled else "other tokens")
assert theirs.tokens == sampled

# %% [markdown]
# Why `trust=None`? Left to itself, the package's lookup drafts as many tokens as the two places have in common before them:
# two matching tokens say little about what comes next, ten say a lot. Same text, other rounds:

# %%
careful = SpeculativeEngine(target, NGramDrafter(max_ngram=2, min_ngram=2), gamma=4)
careful_run, careful_steps = course.record_rounds(careful, rewrite, max_new_tokens=48, eos_token_id=None)
careful_rounds = [(len(s.drafted), s.accepted) for s in careful_steps]
for name, its in (("yours", rounds), ("by match", careful_rounds)):
    print(f"{name:9} {len(its)} rounds, {sum(d - a for d, a in its)} drafts thrown away: {its}")
assert careful_run.tokens == mine and careful_rounds != rounds

# %% [markdown]
# `compare_greedy` matters where rounding is coarser. A pass over five tokens may add its numbers in another order than five
# passes over one. In float64 that changes no text (the package's tests require it), in float32 it hardly ever does; in
# bfloat16, whose 8 significant bits are two to three digits, it can. *An engine is not wrong because a near-tie fell the
# other way, and not right because somebody says it was one: measure the gap.*

# %% [markdown]
# ## 11. Round by round
#
# Step through the rounds of three runs. For the target, what the cache lacks after a round is 1, *every* time: the sentence of
# section 1. For a draft model it is 1 or 2, and now you know when.

# %%
by_owls = SpeculativeEngine(target, NGramDrafter(max_ngram=2, min_ngram=2, trust=None), gamma=4)
owls_run, owls_steps = course.record_rounds(by_owls, owls, max_new_tokens=24, eos_token_id=None)
partly = [i for i, s in enumerate(owls_steps, 1) if 0 < s.accepted < len(s.drafted)]
assert partly and owls_run.tokens == owls_plain
assert all(s.committed - s.target.after == 1 for s in [*lookup_steps, *owls_steps, *itself_steps])
course.round_stepper(
    {"lookup, owls": owls_steps, "lookup, rewrite": lookup_steps, "target as its own draft, chat": itself_steps},
    tokenizer,
    number=partly[0],
)

# %% [markdown]
# ## 12. Where the time goes
#
# The engine keeps three clocks: drafting, verifying (the pass and the rule), and the rest (committing, rolling back). Three
# arms write the same text in turns: plain decoding, lookup, and the target drafting for itself. Before you run it: which arm
# is fastest, and how does the third compare with plain decoding? Its drafts are perfect, remember.

# %%
arms = {
    "plain decoding": SpeculativeEngine(target),
    "lookup": by_lookup,
    "target drafts for itself": by_itself,
}
runs = {name: [] for name in arms}
for _ in course.progress(range(3), "three arms in turns"):
    for name, arm in arms.items():
        runs[name].append(arm.generate(rewrite, max_new_tokens=30, eos_token_id=None).stats)

words = course.times_words(runs)
course.show(course.times_figure(runs), alt="Time per token, plain decoding is 1. " + "; ".join(words))

# %%
print("time per token, plain decoding is 1 (median, and the range of three runs):")
print("\n".join(f"  {line}" for line in words))
stats = runs["target drafts for itself"][0]
n = stats.emitted
print(f"target drafts for itself: {stats.drafted} passes to draft and {stats.rounds} to verify, for {n} tokens.")
print(f"If all passes took the same time: draft {stats.drafted / n:.2f}, verify {stats.rounds / n:.2f}")
assert stats.drafted + stats.rounds == stats.emitted

# %% [markdown]
# A perfect draft and no pass saved: four full-price draft passes, to save four target passes. The count leaves no room for a
# gain. Compare the clock with the last line, part by part. Two things may make it say more: passes that read several tokens
# (each verification five, and the first draft pass after a fully accepted round two), and whatever else the machine was
# doing, for which the range of the three runs is a hint. Drafting pays when it is *cheap*, verification when it is *nearly
# free*; lesson 06 (still to come) puts both into one formula.
#
# And all the bookkeeping of this lesson, the rest, hardly shows on a CPU. Speed is no excuse for getting it wrong. (On a GPU
# it is another story, told in lesson 11, still to come: each time the loop waits for the device, the device waits for the loop.)

# %% [markdown]
# ## 13. The article's engine
#
# The article prints an engine and calls it production-grade. You can now read such code with the questions of this lesson.
# *Where is the cache? Who rolls it back? What if an end falls inside a block? What is the residual's q?* Here is its logic in
# our own words, made greedy so that it runs: the original ends with an `AttributeError` at its first rejection, since a helper
# reads an attribute that nothing sets.


# %%
def as_in_the_article(model, draft, prompt, max_new_tokens, gamma=5):
    """The same decisions: no cache, drafts limited by the room, an end looked for when the round is over."""

    def run(m, seen):  # the whole text, from the start, each time
        return m.forward(torch.tensor(seen), m.new_cache(len(seen))).argmax(-1).tolist()

    tokens = list(prompt)
    while (room := len(prompt) + max_new_tokens - len(tokens)) > 0:
        drafted = []
        for _ in range(min(gamma, room)):
            drafted.append(run(draft, tokens + drafted)[-1])
        best = run(model, tokens + drafted)[-len(drafted) - 1 :]
        accepted = accept_prefix(drafted, best)
        tokens += [*drafted[:accepted], best[accepted]]
        if 2 in tokens[-accepted - 1 :]:
            break
    return tokens[len(prompt) :]


# %% [markdown]
# Which of the bugs 1 to 8 does it have? Decide, then run two of your checks, and a count of the tokens that each way sends
# through the models.


# %%
class Counting:
    """A model that counts the tokens it is fed."""

    def __init__(self, model):
        self.model, self.new_cache, self.fed = model, model.new_cache, 0

    def forward(self, tokens, cache, rows=slice(None)):
        self.fed += len(tokens)
        return self.model.forward(tokens, cache, rows)


def the_article(model, propose, prompt, max_new_tokens, eos=()):
    return as_in_the_article(model, model, prompt, max_new_tokens), []


ours, theirs = Counting(target), Counting(target)
for _ in course.progress([chat], "the article's engine and yours"):
    a, _ = generate(ours, DraftModel(ours, 200), chat, 15)
    b = as_in_the_article(theirs, theirs, chat, 15, gamma=4)
print(
    f"15 tokens after a prompt of {len(chat)}, fed to target and draft: {ours.fed} with caches, {theirs.fed} without,"
)
print(f"{theirs.fed / ours.fed:.1f} times as many for the same 15 tokens")
print("asked for 1, 2, ... 12 tokens; got:", at_every_budget(the_article))
from_zero = as_in_the_article(counter, counter, [29], 12)
print("the end is token 2; text:", from_zero)
assert a == b[:15] and theirs.fed > ours.fed
assert at_every_budget(the_article) != list(range(1, 13)) and 2 in from_zero[:-1]

# %% [markdown]
# <details><summary><b>Which bugs?</b></summary>
#
# Bug 5: the whole block is kept, and the end is looked for afterwards. Bug 6: drafts are limited to the room, not to the room
# less one. Bugs 2, 3, 4 and 7 are impossible, since there is no cache to get wrong; the price is that each round pays for
# everything ever written, and the ratio above grows with the text. And in the sampling version bug 8, as in lesson 04: its
# $q$ is all zeros, so the residual is $p$.
#
# </details>
#
# The course keeps the article's claims as data, each with the computation that settles it. Those about its engine:

# %%
HTML(course.claims_html(*range(20, 28)))

# %% [markdown]
# Number 27 is a lesson of its own: two rows of a batch rarely accept the same number of drafts, so a batch becomes *ragged*,
# and each row needs a cache length of its own (lesson 13, still to come).

# %% [markdown]
# ## Check yourself
#
# **1. A round drafted four tokens, the target's choices agree with the first, not with the second, and with the last two.
# How many tokens does the round emit?**
#
# <details><summary>Four: three that agree, and one from the target</summary>That is bug 1. The last two agree with what the
# target would write after a <i>rejected</i> token; that text will never exist.</details>
# <details><summary>One</summary>The first draft was right, so it stays; and then the target's own token follows.</details>
# <details><summary>Two</summary>Yes: one accepted draft and the correction. The last two were never tested.</details>

# %% [markdown]
# **2. Before a round 100 tokens are committed. Four are drafted, two accepted. How long is the target's cache at its
# fullest, and after the roll-back?**
#
# <details><summary>105 and 102</summary>Before the round the cache holds 99 tokens, not 100: the newest committed token is
# pending. So 99, and then the pending token and four drafts.</details>
# <details><summary>104 and 103</summary>The first is right: 99, the pending token, and four drafts. But the correction is
# now pending: it has been chosen and not fed. 103 are committed, so 102 are in the cache.</details>
# <details><summary>104 and 102</summary>Yes: 99 + 1 + 4, and after the round 100 + 2 + 1 = 103 are committed, all but the
# pending one in the cache.</details>

# %% [markdown]
# **3. The acceptance rate of your engine has fallen from 0.8 to 0.6 after a change. All outputs are the same as before. Is
# it a bug?**
#
# <details><summary>No, the outputs are right</summary>Right outputs only say that the <i>target's</i> side is in order. The
# draft can be fed nonsense, and the target repairs it, at the price of speed.</details>
# <details><summary>Quite likely, on the draft's side</summary>Yes. Let the target draft for itself: if not every draft is
# accepted, though both compute alike, the draft reads another text than the target. If all are, the change made the draft
# itself worse. (And check that both numbers mean the same: accepted per tested, or per drafted?)</details>

# %% [markdown]
# **4. Greedy tests all pass. What can still be wrong?**
#
# <details><summary>Nothing: greedy is the hardest case</summary>It is the easiest one for the rule: with one-hot p and q the
# residual after a rejection is p itself, so an engine that forgets the residual passes.</details>
# <details><summary>The distribution of sampled text</summary>Yes. That is bug 8: with one-hot distributions max(0, p - q) and p give the
# same token. Sampling needs a test of its own, and the best one is enumeration.</details>

# %% [markdown]
# ## In production
#
# The same five steps, under other names.
#
# | here | transformers | vLLM | TensorRT-LLM |
# |---|---|---|---|
# | draft | `assistant_model=`, `prompt_lookup_num_tokens=`; a `CandidateGenerator` | `speculative_config={"method": "draft_model", "model": ..., "num_speculative_tokens": 5}`; a proposer | `DraftTargetDecodingConfig(max_draft_len=..., speculative_model=...)` |
# | gamma | `num_assistant_tokens`; a draft model stops earlier where it is unsure (`assistant_confidence_threshold`) | `num_speculative_tokens` | `max_draft_len` |
# | accept, correct, bonus | in `_assisted_decoding`; above temperature 0 `_speculative_sampling` | `RejectionSampler`: accepted, *recovered* and bonus tokens | |
# | roll back | the cache's `crop` | `num_computed_tokens` is lowered by the rejected tokens; their slots are written over | `rewind_kv_cache` |
# | what to watch | | `vllm:spec_decode_num_drafts`, `..._num_draft_tokens`, `..._num_accepted_tokens`, `..._num_accepted_tokens_per_pos`; its log prints accepted per *drafted* as acceptance rate, and a *mean acceptance length* that includes the target's own token | |
#
# A chain of drafts is rolled back by setting a length, as you did; with a paged cache (lesson 03) whole blocks may go back to
# the pool. When several candidates per place are verified at once, as a tree, the accepted ones need not lie side by side:
# then keys and values do move (`move_accept_tokens_to_target_kvcache` in SGLang, `updateKVCacheDraftTokenLocation` in
# TensorRT-LLM; lesson 08, still to come). Names change between releases: look them up for yours.

# %% [markdown]
# ## What to remember
#
# - Between rounds the cache holds every committed token but the pending one. All roll-backs follow from that sentence.
# - Only the agreeing prefix counts, and one token from the target follows it: correction or bonus.
# - Budget and EOS can fall inside a block: limit the drafts to room minus one, and cut at the first end.
# - A fault on the target's side makes the text wrong; one on the draft's side only makes it slow, and nobody notices. Let
#   the target draft for itself, in the same arithmetic: everything must be accepted.
# - Compare caches with a fresh prefill, try an end at every place of a block, and enumerate the whole loop, not only the
#   rule. A friendly text proves little.
#
# **Problem set.** [ps05-engine](../exercises/ps05-engine/ps05-engine.ipynb), with a check below each part.
#
# **Exercises.** (a) Give your loop a stop *string*, and test it at every offset inside a block; then compare with
# `stop=` of the engine. (b) Let `lookup` try three tokens first, then two, then one. On which of the course's prompts does
# it save passes? (c) Plant a bug of your own, and find the cheapest of this lesson's checks that sees it.
# `specdec_ref.proof.MUTANTS` holds a collection.
#
# **Sources.** Leviathan, Kalman, Matias 2023, *Fast inference from transformers via speculative decoding* (arXiv
# 2211.17192), algorithm 1; Chen et al. 2023, *Accelerating large language model decoding with speculative sampling*
# (arXiv 2302.01318), algorithm 2; Saxena 2023, *Prompt lookup decoding*. Reports of such bugs: counting past a
# rejection, vLLM pull request 2658; an end passed over inside a block, transformers issue 47912; a draft's cache
# with stale content for the last draft, TensorRT-LLM pull request 5285, or spoilt by the bonus token, vLLM pull request 9730.
