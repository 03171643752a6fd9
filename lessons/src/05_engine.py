# %% [markdown]
# # 05 · The engine
#
# *90 minutes. You need lesson 00. Lesson 02 (what a cache holds) and lesson 04 (the accept/reject rule) help; what is
# used of them is said again.*
#
# Afterwards you have written the loop of a speculative engine yourself, on a real model: draft, verify in one pass,
# accept, roll back, stop. You have planted its eight classic bugs with your own hands, and you know which of them show in
# the text, which only in the numbers, and which check finds them.

# %% [markdown]
# ## A question first
#
# Let the draft model be *the target itself*: the same weights. It drafts 4 tokens a round, greedily, and it is never
# wrong. We want 40 tokens. How many passes of the target does that take?
#
# Now somebody forgets one token: after a round in which everything was accepted, the last draft is missing from the
# *draft's* cache. Just that one. How many passes now, and does the text change? Write your guesses down.

# %%
my_guess_passes = 40
my_guess_passes_with_the_slip = 40
my_guess_text_changes = True

# %% [markdown]
# ## 1. The loop without drafts
#
# Everything rests on one sentence, so learn it before any code. A token is **committed** once it is part of the output
# for good. The newest committed token is **pending**: it has been chosen, but no pass has taken it in yet.
#
# > **Between rounds, the cache holds every committed token but the pending one.**
#
# So a pass is always fed the pending token first, and what it returns is the distribution of the token *after* it. A prompt is
# no special case: take in all of it but its last token, which is pending.
#
# In this lesson the model computes in float32. A difference between two texts shall mean a *bug*, not a rounding error;
# section 10 comes back to that.

# %%
import torch

import specdec_course as course
from specdec_ref import encode_prompt, load_model

target = load_model(dtype="float32")
tokenizer = target.tokenizer
rewrite, chat = (encode_prompt(course.prompt(name).messages, target) for name in ("rewrite-1", "chat-1"))
print(f"rewrite: {len(rewrite)} tokens, chat: {len(chat)} tokens; the end-of-text token is {target.eos_token_ids}")


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
plain = decode_plain(target, rewrite, 48)
print(tokenizer.decode(plain))

# %% [markdown]
# These 48 tokens took 48 passes, and they are our *reference*: whatever we build from here on has to write exactly them.
# (It does not stop at an end of the text yet. Section 6.)

# %% [markdown]
# ## 2. Draft
#
# Any guess is allowed. The cheapest: find the last two tokens earlier in the text, and guess that it goes on as it did
# there.


# %%
def lookup(tokens, gamma, n=2):
    """What followed the last earlier place with the same `n` tokens: at most `gamma` tokens, perhaps none."""
    for i in range(len(tokens) - n - 1, -1, -1):
        if tokens[i : i + n] == tokens[-n:]:
            return tokens[i + n : i + n + gamma]
    return []


so_far = rewrite + plain[:21]
drafted = lookup(so_far, gamma=4)
print("text so far ends with:", repr(tokenizer.decode(so_far[-9:])))
print("drafted:              ", [tokenizer.decode([t]) for t in drafted])

# %% [markdown]
# A guess, and not a foolish one: the keeper *did* climb the stairs, once.

# %% [markdown]
# ## 3. Verify in one pass
#
# Feed the pending token **and** the drafts, in one pass. It returns one row of logits for each token that went in, so
# one row more than there are drafts. Row $i$ has seen $i$ drafts: it says what the target would write there.

# %%
cache = prefill(target, so_far, capacity=len(so_far) + 5)
logits = target.forward(torch.tensor([so_far[-1], *drafted]), cache)
best = logits.argmax(-1).tolist()

print(f"{'row':>3}  {'fed':12} {'the target would go on with':28} drafted")
for i, fed in enumerate([so_far[-1], *drafted]):
    guess = repr(tokenizer.decode([drafted[i]])) if i < len(drafted) else "nothing: this row is for the bonus"
    print(f"{i:3}  {tokenizer.decode([fed])!r:12} {tokenizer.decode([best[i]])!r:28} {guess}")

# %% [markdown]
# **Look at row 0 and at the rows below it.** Row 0 disagrees with the draft. The rows below *agree*, and that means
# nothing: they answer what comes after a text that will never be written.

# %% [markdown]
# ## 4. Accept
#
# So what counts is the agreeing **prefix**. Then comes one token from the target itself, from the row after the accepted
# drafts: a *correction* if a draft was rejected there, a *bonus* if none was left.


# %%
def accept_prefix(drafted, best):
    """How many drafts stay: those before the first that differs from the target's choice."""
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted


accepted = accept_prefix(drafted, best)
emitted = [*drafted[:accepted], best[accepted]]
print(f"accepted {accepted} of {len(drafted)}; emitted {[tokenizer.decode([t]) for t in emitted]}")

# %% [markdown]
# Four drafts, none accepted, and still the round gave a token, the very one that plain decoding would have given. Greedy
# acceptance compares tokens; section 9 does the same for sampling.
#
# ## 5. Roll back
#
# The pass has put five tokens into the cache: the pending one and four drafts. Four of them are not part of the text.
# The cache has to be brought back to what the sentence of section 1 asks for.

# %%
tokens = so_far + emitted
print(f"the cache holds {cache.length} tokens; committed are {len(tokens)}, so it should hold {len(tokens) - 1}")


def roll_back(cache, tokens):
    """Afterwards the cache holds every committed token but the pending one."""
    cache.truncate(len(tokens) - 1)


roll_back(cache, tokens)
print(f"after roll_back: {cache.length}")

# %% [markdown]
# That is all: `truncate` moves no data, it sets a number. What lies after that is overwritten by the next pass.
#
# How would you know that it is right? By the strongest check there is for a cache: *it must behave as a freshly filled
# one*. Feed the pending token to ours and to a fresh one, and compare the logits.


# %%
def cache_error(model, cache, tokens):
    """Largest difference in the next logits between this cache and a fresh prefill; the cache stays as it is."""
    length, pending = cache.length, torch.tensor(tokens[-1:])
    here = model.forward(pending, cache)
    cache.truncate(length)
    fresh = model.forward(pending, prefill(model, tokens, len(tokens)))
    return (here - fresh).abs().max().item()


print(f"largest logit difference to a fresh cache: {cache_error(target, cache, tokens):.1e}")

# %% [markdown]
# ## 6. Stop
#
# Two things end a text: the budget and an end-of-text token (EOS). Plain decoding checks after each token. A round emits
# up to $\gamma + 1$ tokens at once, so both ends can fall *inside* it. Therefore:
#
# - draft at most `room - 1` tokens: a round adds one token more than were drafted;
# - keep what the round emitted only up to the first EOS.


# %%
def limit(gamma, room):
    """How many tokens to draft when `room` more may be emitted."""
    return min(gamma, room - 1)


def cut(emitted, eos):
    """The emitted tokens up to the first that ends the text, and that one too."""
    for i, token in enumerate(emitted):
        if token in eos:
            return emitted[: i + 1]
    return emitted


# %% [markdown]
# ## The loop
#
# Now put the parts together. Each part is an argument, so that you can exchange it for a broken one in a moment.


# %%
def generate(model, propose, prompt, max_new_tokens, gamma=4, eos=(),
             accept=accept_prefix, roll_back=roll_back, limit=limit, cut=cut):  # fmt: skip
    tokens, rounds, end = list(prompt), [], len(prompt) + max_new_tokens
    cache = prefill(model, tokens, capacity=len(prompt) + (gamma + 1) * (max_new_tokens + 1))
    while len(tokens) < end and not (rounds and tokens[-1] in eos):
        drafted = propose(tokens, limit(gamma, end - len(tokens)))  # 1. draft
        logits = model.forward(torch.tensor([tokens[-1], *drafted]), cache)  # 2. verify in one pass
        best = logits.argmax(-1).tolist()
        accepted = accept(drafted, best)  # 3. accept
        tokens += cut([*drafted[:accepted], best[accepted]], eos)
        roll_back(cache, tokens)  # 4. roll back
        rounds.append((len(drafted), accepted))  # 5. stop? see the while
    return tokens[len(prompt) :], rounds


# %%
mine, rounds = generate(target, lookup, rewrite, 48)
print(f"{len(rounds)} passes for {len(mine)} tokens; (drafted, accepted) of each round:\n{rounds}")
print("the same tokens as plain decoding" if mine == plain else "NOT the tokens of plain decoding")

# %% [markdown]
# A dozen lines, and far fewer passes than tokens. **Try it:** `propose=lambda tokens, gamma: []` turns the
# same loop into plain decoding. And a drafter that always proposes token 17? Try that, too: it costs nothing but time.

# %% [markdown]
# ## 7. Break it
#
# Now the other way round. Below you plant six bugs that real engines have shipped (two more follow in sections 8 and 9).
# **Before you run a cell, say what you will see:** garbage, a wrong but fluent text, the right text more slowly, or nothing at all?
#
# ### Bug 1: count all that agree
#
# Instead of the prefix, count every draft that equals the target's choice.

# %%
from IPython.display import HTML


def count_all_that_agree(drafted, best):
    return sum(d == b for d, b in zip(drafted, best))


wrong, wrong_rounds = generate(target, lookup, rewrite, 48, accept=count_all_that_agree)
print(f"passes: {len(rounds)} right, {len(wrong_rounds)} with the bug")
print(f"accepted: {sum(a for _, a in rounds)} right, {sum(a for _, a in wrong_rounds)} with the bug")
print(f"by these numbers the broken engine looks {'better' if len(wrong_rounds) < len(rounds) else 'no better'}")
HTML(course.diverging_html({"plain decoding": plain, "bug 1": wrong}, tokenizer))

# %% [markdown]
# The nastiest kind. The text is fluent: it jumps over a passage, and no reader who doesn't know the original would see it.
# And the counts don't warn you, since wrong tokens count as accepted ones. An acceptance rate that suddenly *rises* is a
# reason to be afraid.
#
# ### Bugs 2, 3 and 4: roll back not at all, not far enough, too far
#
# To see more than the text, let every round check its cache against a fresh one.


# %%
def truncate_by(slip):
    """A roll-back that keeps `slip` tokens more than it should (negative: fewer)."""
    return lambda cache, tokens: cache.truncate(min(cache.length, len(tokens) - 1 + slip))


def checked(roll_back, errors):
    """The same roll-back; afterwards the cache error of each round is noted in `errors`, up to the first large one."""

    def roll_back_and_check(cache, tokens):
        roll_back(cache, tokens)
        if not errors or errors[-1] < 0.01:
            errors.append(cache_error(target, cache, tokens))

    return roll_back_and_check


def no_roll_back(cache, tokens):
    pass


# %%
variants = {
    "right": roll_back,
    "bug 2: no roll-back": no_roll_back,
    "bug 3: one token stays too many": truncate_by(+1),
    "bug 4: one token is lost": truncate_by(-1),
}
texts = {"plain decoding": plain[:30]}
for name, variant in variants.items():
    errors = []
    texts[name], _ = generate(target, lookup, rewrite, 30, roll_back=checked(variant, errors))
    same = "same text" if texts[name] == plain[:30] else "OTHER text"
    found = f"found in round {len(errors)}" if errors[-1] >= 0.01 else f"nothing found in {len(errors)} rounds"
    print(f"{name:33} {same}; {found}, cache error {max(errors):.1e}")

# %%
HTML(course.diverging_html({k: v for k, v in texts.items() if k == "plain decoding" or v != plain[:30]}, tokenizer))

# %% [markdown]
# Compare the two columns of the table. The *cache error* separates right from wrong by several powers of ten, in the very
# round in which the fault happens. The *text* is a poor witness: a model that repeats a text attends mostly to the prompt,
# and can get over a stale token or a missing one. A test that compares one friendly text may well pass an engine with a
# hole in its cache.
#
# Bugs 2 and 3 leave tokens in the cache that never became text: all rejected ones, or one. From then on the model continues
# another text, in which everything new sits at a wrong position. Bug 4 loses a token that is part of the text.
#
# **Try it:** is bug 4 harmless then? Give it open chat, where there is nothing to copy.

# %%
chat_plain = decode_plain(target, chat, 40)
chat_hole, _ = generate(target, lookup, chat, 16, roll_back=truncate_by(-1))
HTML(course.diverging_html({"plain decoding": chat_plain[:16], "bug 4 on open chat": chat_hole}, tokenizer))

# %% [markdown]
# Where the two part, the model has lost the last token of its *prompt*, and everything after it has moved up by one place.
# It goes on in good English. Whether and when a text parts is luck; the cache error is not.

# %% [markdown]
# ### Bug 5: an end inside a block
#
# Take the full stop as the end of the text: one sentence, please. (Any id can be the EOS; that is also how you test a
# stop without waiting for the model to feel like stopping.) The bug: nothing is cut, only the *last* token of a round is
# compared.

# %%
full_stop = (tokenizer.encode(".")[-1],)
one_sentence, _ = generate(target, lookup, rewrite, 48, eos=full_stop)
passed_over, _ = generate(target, lookup, rewrite, 48, eos=full_stop, cut=lambda emitted, eos: emitted)
print(f"{len(one_sentence)} tokens, and {len(passed_over)} with the bug")
HTML(course.diverging_html({"cut at the first stop": one_sentence, "bug 5": passed_over}, tokenizer))

# %% [markdown]
# It depends on where in a round the stop falls: at the end of a block all is well. So one text proves nothing; the test
# is to declare *each* token of an output the EOS in turn. For that a toy is better than a language model: a
# **scripted model**, whose distribution you write yourself. This one counts, $5, 6, 7, \ldots$, and its drafter knows.

# %%
from specdec_ref.models import ScriptedModel


def count_up(tokens):
    return [float(x == (tokens[-1] + 1) % 30) for x in range(30)]


counter = ScriptedModel(count_up, vocab_size=30)


def knows(tokens, gamma):
    return [(tokens[-1] + 1 + i) % 30 for i in range(gamma)]


for name, part in {"right": cut, "bug 5": lambda emitted, eos: emitted}.items():
    lengths = [len(generate(counter, knows, [4], 12, eos=(end,), cut=part)[0]) for end in range(5, 17)]
    print(f"{name:6} EOS is token number 1, 2, ... 12; tokens emitted: {lengths}")

# %% [markdown]
# With $\gamma = 4$ a round emits five tokens, and the broken engine is right only where the end falls on the last of five,
# or where the budget ends the text anyway.
#
# ### Bug 6: one token too many
#
# A round adds one more token than it drafts. Who limits drafts to the room that is left, and forgets the one, oversteps
# the budget whenever the last round goes well.

# %%
for name, part in {"right": limit, "bug 6": lambda gamma, room: min(gamma, room)}.items():
    got = [len(generate(counter, knows, [4], asked, limit=part)[0]) for asked in range(1, 13)]
    print(f"{name:6} asked for 1, 2, ... 12 tokens; got {got}")

# %% [markdown]
# With SmolLM2 and lookup you would have seen nothing here most of the time: it takes a last round in which everything is
# accepted. Perfect drafters are for testing.

# %% [markdown]
# ## 8. A draft model has a cache of its own
#
# Now let a *model* draft. It needs what every model needs: a cache, filled, and rolled back after each round. One thing
# is different from the target, and it is what the question at the top was about.
#
# To draft $\gamma$ tokens, the draft model is fed the pending token and the first $\gamma - 1$ drafts. The last draft comes *out* of its
# last pass, and never goes *in*. If all are accepted, the draft's cache lacks **two** committed tokens: that last
# draft, and the pending one.


# %%
class DraftModel:
    """Drafts greedily with a model; its cache lags behind by one token after a round in which all went well."""

    def __init__(self, model, capacity):
        self.model, self.cache = model, model.new_cache(capacity)

    def missing(self, tokens):
        return tokens[self.cache.length :]  # all committed tokens that the cache lacks: one, two, or the prompt

    def __call__(self, tokens, gamma):
        self.cache.truncate(min(self.cache.length, len(tokens) - 1))  # roll back what was not accepted
        drafted, new = [], self.missing(tokens)
        for _ in range(gamma):
            logits = self.model.forward(torch.tensor(new), self.cache, slice(len(new) - 1, None))
            new = [int(logits[0].argmax())]
            drafted += new
        return drafted


# %% [markdown]
# ### Bug 7: the draft's cache lacks the last accepted draft
#
# The slip: feed just the pending token, *as one does with the target*.


# %%
class DraftModelWithAHole(DraftModel):
    def missing(self, tokens):
        return tokens[-1:] if self.cache.length else tokens  # the first time the whole prompt, then the pending token


chat_full, full_rounds = generate(target, DraftModel(target, 200), chat, 40)
chat_slip, slip_rounds = generate(target, DraftModelWithAHole(target, 200), chat, 40)
for name, got, its in (("right", chat_full, full_rounds), ("bug 7", chat_slip, slip_rounds)):
    share = sum(a for _, a in its) / sum(d for d, _ in its)
    text = "the text is right" if got == chat_plain else "the text is WRONG"
    print(f"{name}: {len(its):2} passes of the target, {share:4.0%} of the drafts accepted, {text}")
said = "the text changes" if my_guess_text_changes else "the text stays the same"
print(f"your guesses: {my_guess_passes} passes, {my_guess_passes_with_the_slip} with the bug, and {said}")

# %%
course.show(
    course.rounds_figure({"right": full_rounds, "bug 7, a hole in the draft's cache": slip_rounds}),
    alt="Tokens of each round, with the target as its own draft. Correct code: "
    f"{len(full_rounds)} rounds, accepted {[a for _, a in full_rounds]}. "
    f"With the hole: {len(slip_rounds)} rounds, accepted {[a for _, a in slip_rounds]}.",
)

# %% [markdown]
# **This is the picture to keep.** The drafter has the target's very weights, and gets rejected: it no longer reads the
# same text. No exception, no wrong token, no test of the output that could fail. The target repairs everything, and the
# only trace is a number that nobody had an expectation for. TensorRT-LLM once had just this bug, and vLLM a close relative
# of it; what gave the latter away was a sharp fall of the acceptance rate (see the sources).
#
# So have an expectation: *a model that drafts for itself must have every draft accepted.* That is a test of one line, and
# one of the best there is.
#
# | a fault in ... | what suffers | who notices |
# |---|---|---|
# | the target's cache, acceptance, stopping | the text | the user, perhaps |
# | the draft's cache | the speed | nobody |

# %% [markdown]
# ## 9. Sampling: the residual
#
# ### Bug 8: the correction comes from p
#
# Above temperature 0 the target has a distribution $p$ for each place, and the draft was drawn from a distribution $q$. Comparing tokens is
# not enough; lesson 04 proves what is: keep a draft $x$ with probability $\min(1, p(x)/q(x))$, and after a rejection draw
# from the **residual** $\max(0, p - q)$. Only `accept` changes, the rest of the loop stays as it is.


# %%
def verify_tokenwise(drafted, q, p, source):
    """(accepted, next token). q: a distribution for each draft; p: the target's distributions, one more. `source` makes all choices."""
    for i, x in enumerate(drafted):
        if not source.bernoulli(min(1.0, float(p[i][x] / q[i][x]))):
            return i, source.categorical((p[i] - q[i]).clamp(min=0))
    return len(drafted), source.categorical(p[len(drafted)])


def without_the_residual(drafted, q, p, source):
    for i, x in enumerate(drafted):
        if not source.bernoulli(min(1.0, float(p[i][x] / q[i][x]))):
            return i, source.categorical(p[i])  # "it was rejected, so ask the target": sounds right
    return len(drafted), source.categorical(p[len(drafted)])


# %% [markdown]
# Three tokens are enough to see it, and no dice are needed: `enumerate_distribution` runs a program once for *every* way its random
# choices can fall and adds up the probabilities. What comes out is the distribution itself.

# %%
from specdec_ref.proof import enumerate_distribution

p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
q = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)


def first_token(verify):
    def program(source):
        x = source.categorical(q)  # the draft is drawn from q
        accepted, token = verify([x], [q], [p, p], source)
        return x if accepted else token

    return [enumerate_distribution(program).get(x, 0.0) for x in range(3)]


for name, rule in (("with the residual", verify_tokenwise), ("bug 8: without it", without_the_residual)):
    distribution = first_token(rule)
    verdict = "that is p" if torch.allclose(torch.tensor(distribution), p.float()) else "that is not p"
    print(f"{name:18} {[round(x, 3) for x in distribution]}: {verdict}, which is {p.tolist()}")

# %% [markdown]
# **Why?** The draft has had its say already: tokens that it likes too much come up too often, and the residual makes up
# for exactly that by never giving them again. Draw from $p$ instead, and the draft's taste stays in the text. With a good
# draft that is a small shift, no single text looks odd, and no greedy test can see it.

# %% [markdown]
# ## 10. The package's engine
#
# `SpeculativeEngine` is this loop, with everything around it that an engine needs: sampling options, stop strings,
# streaming, statistics, errors that help. Does it write what yours writes?

# %%
from specdec_ref import DraftModelDrafter, NGramDrafter, SpeculativeEngine
from specdec_ref.measure import compare_greedy

by_lookup = SpeculativeEngine(target, NGramDrafter(max_ngram=2, min_ngram=2), gamma=4)
by_itself = SpeculativeEngine(target, DraftModelDrafter(target), gamma=4)

lookup_run, lookup_steps = course.record_rounds(by_lookup, rewrite, max_new_tokens=48, eos_token_id=None)
itself_run, itself_steps = course.record_rounds(by_itself, chat, max_new_tokens=40, eos_token_id=None)

# %%
for name, ours, theirs, start in (
    ("lookup, rewrite", mine, lookup_run, rewrite),
    ("target as its own draft, chat", chat_full, itself_run, chat),
):
    print(f"{name}: {compare_greedy(ours, theirs.tokens, target, start)}")
their_rounds = [(len(s.drafted), s.accepted) for s in lookup_steps]
print("rounds of the lookup run:", "the same, too" if their_rounds == rounds else f"others: {their_rounds}")

# %% [markdown]
# `compare_greedy` does not only compare. Where two texts part, it looks how near the two candidate tokens were, and
# whether the rounding of the pass explains it: a pass over five tokens adds its numbers in another order than five passes
# over one. In float32 that hardly ever matters; in bfloat16, where a logit has about three digits, it can. *An engine is
# not wrong because a near-tie fell the other way, and not right because somebody says it was one: measure the gap.*
#
# The parts fit, too. Your rule of section 9 runs in the package's engine, on SmolLM2, with the same seed:

# %%
from specdec_ref import Verdict


def my_rule(proposal, p, source):
    q = [proposal.distribution(i, like=p[i]) for i in range(len(proposal.tokens))]
    accepted, token = verify_tokenwise(proposal.tokens, q, p, source)
    return Verdict(accepted, token, "bonus" if accepted == len(proposal.tokens) else "corrected")


sampled = [
    SpeculativeEngine(target, NGramDrafter(), gamma=4, rule=rule).generate(
        rewrite, max_new_tokens=30, temperature=0.8, seed=1
    )
    for rule in (my_rule, "token")
]
print(tokenizer.decode(sampled[0].tokens))
print("same tokens with your rule and the package's:", sampled[0].tokens == sampled[1].tokens)

# %% [markdown]
# ## 11. Round by round
#
# Here is one round as the engine saw it. First the round in which lookup erred.

# %%
rejected = [i for i, s in enumerate(lookup_steps) if s.origin == "corrected"]
shown = rejected[0] if rejected else 0
HTML(course.round_html(lookup_steps[shown], tokenizer, f"lookup, round {shown + 1} of {len(lookup_steps)}"))

# %% [markdown]
# Now go through both runs. Watch the last column of the small table. For the target it is 1 after *every* round: the
# sentence of section 1. For the draft model it is 2 after a round in which all went well: the token of bug 7, on its way.

# %%
course.round_stepper({"lookup, rewrite": lookup_steps, "target as its own draft, chat": itself_steps}, tokenizer)

# %% [markdown]
# ## 12. Where the time goes
#
# The engine keeps three clocks: drafting, verifying (the pass and the rule), and the rest (committing, rolling back). Which is the
# largest for lookup, and which where a model of the target's size drafts four tokens a round? Say it before you run.

# %%
runs = {"lookup": lookup_run.stats, "target drafts for itself": itself_run.stats}
words = {n: ", ".join(f"{part} {x:.1%}" for part, x in course.time_shares(s).items()) for n, s in runs.items()}
course.show(
    course.times_figure(runs), alt="Shares of the rounds' time. " + "; ".join(f"{n}: {w}" for n, w in words.items())
)

# %%
for name, s in runs.items():
    shares = course.time_shares(s)
    largest = max(shares, key=shares.get)
    print(f"{name:25} {words[name]}: {largest} takes the most; {s.tokens_per_round:.2f} tokens a round")

# %% [markdown]
# A perfect draft, and no gain: four draft passes of full price, to save four passes of the same price. Drafting pays when
# it is *cheap*, or verification when it is *nearly free*; lesson 06 puts both into one formula. What you take from here: the
# rest, all the bookkeeping that this lesson was about, hardly shows on a CPU, so speed is no excuse for getting it wrong. (On
# a GPU it is another story, see lesson 11: each time the loop waits for the device, the device waits for the loop.)

# %% [markdown]
# ## 13. The article's engine
#
# The article that this course grew out of prints an engine and calls it production-grade. You can now read such code
# with the questions of this lesson. *Where is the cache? Who rolls it back? What is the residual's q? What if an end falls
# inside a block?* Here is what it decides, told again in our own few lines, greedy, so that it runs at all: the
# original ends with an `AttributeError` at its first rejection, since a helper reads an attribute that nothing sets.


# %%
def as_in_the_article(model, draft, prompt, max_new_tokens, gamma=5):
    """Same decisions, our words: no cache, drafts limited by the room, an end looked for when the round is over."""

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
# **No cache, so nothing to roll back.** A wrapper counts how many tokens each way sends through the model.


# %%
class Counting:
    """A model that counts the tokens it is fed."""

    def __init__(self, model):
        self.model, self.new_cache, self.fed = model, model.new_cache, 0

    def forward(self, tokens, cache, rows=slice(None)):
        self.fed += len(tokens)
        return self.model.forward(tokens, cache, rows)


ours, theirs = Counting(target), Counting(target)
a, _ = generate(ours, DraftModel(ours, 200), chat, 15)
b = as_in_the_article(theirs, theirs, chat, 15, gamma=4)
same = "the same 15 tokens" if a == b[:15] else "other tokens"
print(f"15 tokens after a prompt of {len(chat)}, fed to target and draft: {ours.fed} with caches, {theirs.fed} without")
print(f"that is {theirs.fed / ours.fed:.1f} times as many; {same}")

# %% [markdown]
# And that ratio grows with the length of the text: without a cache each round pays for everything that was ever written.
#
# **The budget, and the end.** On the counting model, where every draft is right:

# %%
for n in (1, 5, 6):
    print(f"asked for {n}: the article's decisions give {len(as_in_the_article(counter, counter, [4], n))} tokens")

from_zero = as_in_the_article(counter, counter, [29], 12)
print("EOS 2, the number built in:  ", from_zero, "<- goes on after the 2")
print("the same, cut at the first 2:", generate(counter, knows, [29], 12, eos=(2,))[0])
print("EOS 7, known to the model:   ", as_in_the_article(counter, counter, [4], 12), "<- 7 is not even looked for")
print("the same, with eos=(7,):     ", generate(counter, knows, [4], 12, eos=(7,))[0])

# %% [markdown]
# Id 2 happens to be SmolLM2's own end of text. So on this very model the second fault hides, and only the first one shows:
# the choice of a test model decides what a test can see.
#
# **The residual.** The helper that should return $q$ returns zeros. Then $\max(0, p - 0) = p$: it is bug 8,
# and its distribution is the one you computed in section 9.
#
# **The edges of its arithmetic:** accept if `u <= p/q`; temperature clamped to $10^{-5}$ in place of greedy; and an `if`
# over a batch.

# %%
u, p_x, q_x = 0.0, 0.0, 0.5  # u is drawn from [0, 1): 0 is possible, and then ...
print(f"p(x) = 0: 'u <= p/q' accepts: {u <= p_x / q_x}; 'u < p/q' accepts: {u < p_x / q_x}")

logits16 = torch.tensor([5.0, 4.0, 1.0], dtype=torch.float16)
almost_greedy = torch.softmax(logits16 / 1e-5, -1)
print(f"softmax(logits / 1e-5) in fp16: {almost_greedy.tolist()}; argmax: {int(logits16.argmax())}")

try:
    if torch.tensor([[0.2], [0.7]]) <= torch.tensor([[0.5], [0.5]]):  # two rows of a batch, one 'if'
        print("never reached")
except RuntimeError as error:
    print(f"a batch of 2: RuntimeError: {error}")

# %% [markdown]
# Two rows rarely accept the same number of drafts, so a batch becomes *ragged*: each row needs a cache length of its own
# (lesson 13). The course keeps the article's claims as data, each with the computation that settles it. Those about its
# engine:

# %%
HTML(course.claims_html(*range(20, 28)))

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
#
# **2. Before a round 100 tokens are committed. Four are drafted, two accepted. How long is the target's cache at its
# fullest, and after the roll-back?**
#
# <details><summary>105 and 102</summary>Before the round the cache holds 99 tokens, not 100: the newest committed token is
# pending. So 99, and then the pending token and four drafts.</details>
# <details><summary>104 and 103</summary>The first is right: 99, the pending token, and four drafts. But the correction is
# now pending: it has been chosen and not fed. 103 are committed, so 102 are in the cache.</details>
# <details><summary>104 and 102</summary>Yes: 99 + 1 + 4, and after the round 100 + 2 + 1 = 103 are committed, all but the
# pending one in the cache.</details>
#
# **3. The acceptance rate of your engine has fallen from 0.8 to 0.6 after a change. All outputs are the same as before. Is
# it a bug?**
#
# <details><summary>No, the outputs are right</summary>Right outputs only say that the <i>target's</i> side is in order. The
# draft can be fed nonsense, and the target repairs it, at the price of speed.</details>
# <details><summary>Quite likely, on the draft's side</summary>Yes. Let the target draft for itself: if not every draft is
# accepted, the draft reads another text than the target. If all are, the change made the draft itself worse.</details>
#
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
# | what to watch | | `vllm:spec_decode_num_drafts`, `..._num_draft_tokens`, `..._num_accepted_tokens`, `..._num_accepted_tokens_per_pos` | |
#
# Nobody moves data to roll back. All of them set a length, as you did; with a paged cache (lesson 03) whole blocks may go
# back to the pool. Names change between releases: look them up for yours.

# %% [markdown]
# ## What to remember
#
# - Between rounds the cache holds every committed token but the pending one. All roll-backs follow from that sentence.
# - Only the agreeing prefix counts, and one token from the target follows it: correction or bonus.
# - Budget and EOS can fall inside a block: limit the drafts to room minus one, and cut at the first end.
# - A fault on the target's side makes the text wrong; one on the draft's side only makes it slow, and nobody notices. Let
#   the target draft for itself: everything must be accepted.
# - Compare caches with a fresh prefill, distributions by enumeration, ends at every place of a block. A friendly text proves little.
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
# rejection, vLLM pull request 2658; an end passed over inside a block, transformers issue 47912; a draft's cache that
# lacks the last draft, TensorRT-LLM pull request 5285, or is spoilt by the bonus token, vLLM pull request 9730.
