# %% [markdown]
# # Problem set 05 · The engine
#
# *90 minutes, 20 points. It follows lesson 05, The engine. You need nothing else: no GPU, no network.*
#
# By the end you will have written a speculative engine with a draft model, part by part, with an exact check of every
# part. You will be able to say what each of the two caches holds after any round, end a text at the right token, and
# find the fault in an engine that passes its author's tests.
#
# | part | what | points | difficulty | minutes |
# |---|---|---|---|---|
# | A | draft with a cache | 3 | ★★ | 15 |
# | B | verify in one pass, keep the prefix | 3 | ★★ | 15 |
# | C | roll back, and end in time | 5 | ★★ | 20 |
# | D | the loop | 4 | ★★★ | 20 |
# | E | find the bug | 3 | ★★ | 12 |
# | F | in writing | 2 | ★ | 8 |
#
# Write where a cell says so, run it, then run the check below it. A check draws new inputs each time. The parts are
# independent: where one needs another, its check brings a right one along.

# %% [markdown]
# ## What is given
#
# **The words.** A token is *committed* once it belongs to the text for good. The newest committed token is *pending*:
# no pass has taken it in yet. Between rounds the target's cache holds every committed token but the pending one.
#
# **The models.** A model is used through three calls only, as in the lesson:
#
# - `cache = model.new_cache(capacity)` makes an empty cache for at most `capacity` tokens;
# - `logits = model.forward(torch.tensor(ids), cache)` reads `ids` (at least one) after what the cache holds. It
#   returns one row of logits for each of them, `[n, vocab]`. Row i says what comes after `ids[i]`;
#   `model.forward(ids, cache, slice(0))` reads them and returns no row;
# - `cache.length` is the number of tokens held, `cache.truncate(length)` keeps the first `length` of them.
#
# `model.max_context` is the most tokens that its cache may ever hold, or `None`.
#
# **The distribution, the rule and the source.** They are in the next cell. Read it, it is short. `distribution` turns
# logits into the distribution that tokens are drawn from. A *rule* says how many drafts are kept and which token
# follows them; `sampling_rule` is the one of lesson 04. Every random choice goes through `source`:
# `source.categorical(distribution)` draws a token, `source.bernoulli(p)` is true with probability p.

# %% locked="given"
from typing import Any, NamedTuple

import torch

from specdec_course.checks import ps05_engine as checks
from specdec_ref.models import ScriptedModel


def distribution(logits, temperature):
    """The distribution of the next token for logits `[vocab]` or `[n, vocab]`, same shape.

    At temperature 0 it is one-hot: all on the best token.
    """
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter(-1, best, 1.0)
    return torch.softmax(logits / temperature, -1)


def sampling_rule(source):
    """The rule of lesson 04, with its random choices from `source`: rule(drafted, q, p) -> (accepted, next token)."""

    def rule(drafted, q, p):
        for i, x in enumerate(drafted):
            if not source.bernoulli(min(1.0, float(p[i][x] / q[i][x]))):
                residual = (p[i] - q[i]).clamp(min=0)
                return i, source.categorical(residual if residual.sum() > 0 else p[i])
        return len(drafted), source.categorical(p[len(drafted)])

    return rule


# %% [markdown]
# A scripted model to play with. Its distribution depends on the **whole** text, so a cache that holds the wrong
# tokens gives a different answer.


# %%
def mixes(tokens):
    """Ten tokens; which is likely depends on every token so far, and on its place."""
    best = (sum((i + 2) * (t + 1) for i, t in enumerate(tokens)) + 4 * len(tokens)) % 13 % 10
    return [0.55 if x == best else 0.05 for x in range(10)]


toy = ScriptedModel(mixes, vocab_size=10)
cache = toy.new_cache(20)
logits = toy.forward(torch.tensor([3, 1, 4]), cache)
print(f"fed 3 tokens, got logits of shape {list(logits.shape)}; the cache holds {cache.length}")
print("after 3, 1, 4 the toy would go on with", int(logits[-1].argmax()))
cache.truncate(1)
print(f"after truncate(1) the cache holds {cache.length}")

# %% [markdown]
# ## Part A. Draft with a cache
#
# *★★, 15 minutes, 3 points*
#
# The draft model writes `gamma` tokens, one after the other. Its cache holds a *beginning* of the committed tokens:
# all but the pending one, or fewer, and nothing at all before the first round. So the first pass is fed everything
# that the cache lacks, and each later pass the draft before it.
#
# - At each place the distribution is `distribution(row, temperature)`, and the token is drawn from it, with one call of
#   `source.categorical`. Return that distribution along with the token.
# - `gamma` drafts take `gamma` passes, no more. So the last draft comes *out* of the last pass and never goes *in*.
# - With `gamma == 0` nothing happens, and the answer is `([], [])`.
#
# <details><summary>Hint 1</summary>
#
# How many committed tokens does the cache lack? You know what it holds from `cache.length` alone, because it is a
# beginning of `tokens`.
#
# <details><summary>Hint 2</summary>
#
# Keep a list `new` of what has to be fed next. At first it is `tokens[cache.length:]`; after each pass it is the one
# token that was just drawn.
#
# <details><summary>Hint 3</summary>
#
# Only the last row of a pass counts: `model.forward(torch.tensor(new), cache)[-1]`.
#
# </details></details></details>


# %% solve="draft"
def draft(model, cache, tokens, gamma, temperature, source):
    """Draft `gamma` tokens after the committed `tokens`.

    cache: the draft model's; it holds a beginning of `tokens`, never the pending token.
    Returns (drafted, distributions): a list of `gamma` token ids, and for each the distribution `[vocab]` that it was
    drawn from. After the call the cache holds `tokens` and all drafts but the last. Takes `gamma` passes; `tokens` is not
    changed.
    """
    ### BEGIN SOLUTION
    drafted, distributions = [], []
    new = tokens[cache.length :]  # all that the cache lacks: one token, two after a fully accepted round, or the prompt
    for _ in range(gamma):
        q = distribution(model.forward(torch.tensor(new), cache)[-1], temperature)
        x = source.categorical(q)
        drafted.append(x)
        distributions.append(q)
        new = [x]
    return drafted, distributions
    ### END SOLUTION


# %% test="draft" points=3
checks.draft(draft, points=3)

# %% [markdown]
# ## Part B. Verify in one pass, keep the prefix
#
# *★★, 15 minutes, 3 points*
#
# **The greedy rule first.** A rule is a function `rule(drafted, q, p)`:
#
# - `drafted` holds g tokens, `q` the g distributions that they were drawn from;
# - `p` holds the target's distributions, `[g + 1, vocab]`. Row i is its distribution after the committed tokens and
#   the first i drafts.
#
# It returns `(accepted, token)`: how many drafts stay, and the target's own token after them. The greedy rule keeps
# drafts as long as each is the likeliest token of its row. It does not look at `q`.
#
# <details><summary>Hint</summary>
#
# Drafts 0 to 3 agree as yes, no, yes, yes: one is kept. The token after it comes from the row that has seen exactly
# the kept drafts.
#
# </details>


# %% solve="greedy"
def greedy_rule(drafted, q, p):
    """(accepted, token): the length of the agreeing prefix, and the target's choice after it."""
    ### BEGIN SOLUTION
    best = [int(row.argmax()) for row in p]
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted, best[accepted]
    ### END SOLUTION


# %% test="greedy" points=1
checks.greedy(greedy_rule, points=1)

# %% [markdown]
# **Now the pass.** The target's cache holds all of `tokens` but the pending one. One pass has to give the g + 1
# distributions that a rule needs. What do you feed?
#
# Then ask the rule, whichever it is, and return the list of the tokens that this round *emits*: the kept drafts and the
# one token after them. Do not roll back yet: that is part C.
#
# <details><summary>Hint</summary>
#
# A pass returns a row for each token that was fed, and row i is about what comes *after* token i. The first draft has
# to be judged too: which token stands before it?
#
# </details>


# %% solve="verify"
def verify(model, cache, tokens, drafted, q, rule, temperature):
    """One pass of the target over the drafts, and what the rule keeps: the list of emitted token ids.

    cache: the target's; it holds `tokens` but the pending one. After the call it holds `tokens` and `drafted`.
    q: the distributions that `drafted` were drawn from. rule: rule(drafted, q, p) -> (accepted, token), as above.
    """
    ### BEGIN SOLUTION
    logits = model.forward(torch.tensor([tokens[-1], *drafted]), cache)
    accepted, token = rule(drafted, q, distribution(logits, temperature))
    return [*drafted[:accepted], token]
    ### END SOLUTION


# %% test="verify" points=2
checks.verify(verify, points=2)

# %% [markdown]
# ## Part C. Roll back, and end in time
#
# *★★, 20 minutes, 5 points*
#
# **Roll back.** Follow one round on paper. Ten tokens, `t0` to `t9`, are committed, four are drafted (`a b c d`), two
# are kept, and the target says `x`.
#
# | | target's cache | draft's cache |
# |---|---|---|
# | before the round | `t0 ... t8` | `t0 ... t8` |
# | after drafting | `t0 ... t8` | `t0 ... t9 a b c` |
# | after the pass | `t0 ... t9 a b c d` | `t0 ... t9 a b c` |
# | committed now | `t0 ... t9 a b x` | `t0 ... t9 a b x` |
# | after the roll-back | `t0 ... t9 a b` | `t0 ... t9 a b` |
#
# Do the same for 0, 3 and 4 kept drafts. In one of these cases the two caches differ at the end.
#
# `roll_back` is called for each cache in turn, with all tokens that are committed after the round. It keeps as
# much as it may, and no more. Sometimes there is nothing to take back.
#
# <details><summary>Hint</summary>
#
# `truncate` takes an absolute length, and refuses one that is larger than what the cache holds.
#
# </details>


# %% solve="rollback"
def roll_back(cache, tokens):
    """After a round: the cache keeps what belongs to the committed `tokens`, without the pending one.

    cache: of the target or of the draft; it holds the committed tokens of before, then drafts. Returns nothing.
    """
    ### BEGIN SOLUTION
    cache.truncate(min(cache.length, len(tokens) - 1))
    ### END SOLUTION


# %% test="rollback" points=2
checks.rollback(roll_back, points=2)

# %% [markdown]
# **The budget.** The text has to end with `end` tokens at most (prompt included), and has `n_tokens` now. A round emits
# one token more than it keeps drafts. How many may be drafted?
#
# A second limit: the draft model may have a shorter context than the target. Its cache can never hold more than
# `draft_context` tokens. How many are in it after drafting g tokens? (Look at the table above.) Where there is no room
# left, the answer is 0: the engine goes on without drafts.
#
# <details><summary>Hint 1</summary>
#
# The best case counts: g drafts, all kept, and one more token.
#
# <details><summary>Hint 2</summary>
#
# To draft g tokens, the draft model is fed the `n_tokens` committed ones and g - 1 drafts.
#
# </details></details>


# %% solve="limit"
def how_many_drafts(gamma, n_tokens, end, draft_context=None):
    """The most tokens to draft, 0 to `gamma`, so that neither the text nor the draft's cache can grow too long.

    n_tokens: committed now, at least 1 and less than `end`. draft_context: None where there is no limit; 0 is one.
    """
    ### BEGIN SOLUTION
    most = min(gamma, end - n_tokens - 1)
    if draft_context is not None:
        most = min(most, draft_context - n_tokens + 1)
    return max(0, most)
    ### END SOLUTION


# %% test="limit" points=2
checks.limit(how_many_drafts, points=2)

# %% [markdown]
# **The stop.** A model may have several end-of-text tokens (EOS), or none. The first of them ends the text and is its
# last token. It can stand anywhere in a block.


# %% solve="cut"
def cut(emitted, eos):
    """The list of the emitted tokens up to the first that is in `eos`, and that one too; all of them where none is.

    eos: a collection of token ids, perhaps empty.
    """
    ### BEGIN SOLUTION
    for i, token in enumerate(emitted):
        if token in eos:
            return emitted[: i + 1]
    return emitted
    ### END SOLUTION


# %% test="cut" points=1
checks.cut(cut, points=1)

# %% [markdown]
# ## Part D. The loop
#
# *★★★, 20 minutes, 4 points*
#
# Now put the parts together. They come in as `parts`, so that the check can hand you correct ones:
# call all five, as `parts.draft(...)` and not `draft(...)`. Their arguments are those of above.
#
# The engine promises, exactly:
#
# 1. at most `max_new_tokens` new tokens, and prompt and output together at most `target.max_context`;
# 2. the text ends with the first EOS that is *committed*. An EOS in the prompt ends nothing, and neither does one that
#    the draft only proposed;
# 3. after every round both caches are as part C says, and `on_round(tokens, target_cache, draft_cache)` is called with
#    all committed tokens, the prompt's too;
# 4. the target reads the prompt (all of it but its last token), and from then on makes one pass per round;
# 5. the caller's `prompt` is not changed. It may have a single token.
#
# <details><summary>Hint 1</summary>
#
# Write the order of a round as comments first: how many, draft, verify, cut, commit, roll back (twice), tell, stop?
#
# <details><summary>Hint 2</summary>
#
# Where does the text end at the latest? `end` is the length of the prompt plus the budget, but not more than
# `target.max_context`. The loop runs while there are fewer tokens than that.
#
# <details><summary>Hint 3</summary>
#
# A pass needs at least one token. What is left to read of a prompt that has only one? You need not fill the draft's
# cache before the first round: `draft` feeds everything that it lacks.
#
# </details></details></details>


# %% locked="parts"
class Parts(NamedTuple):
    """The five functions of parts A to C."""

    draft: Any
    verify: Any
    roll_back: Any
    how_many_drafts: Any
    cut: Any


def tell_nobody(tokens, target_cache, draft_cache):
    """An `on_round` that does nothing."""


# %% solve="loop"
def generate(
    target, draft_model, prompt, max_new_tokens, gamma, parts, rule, source,
    temperature=0.0, eos=(), on_round=tell_nobody,
):  # fmt: skip
    """Decode speculatively: the list of new token ids, without the prompt.

    target, draft_model: models; each needs a cache of its own.
    prompt: list of at least one id. gamma: most drafts per round; 0 is plain decoding.
    rule: for parts.verify. source: for parts.draft. temperature: for both. eos: ids that end the text.
    """
    ### BEGIN SOLUTION
    tokens, end = list(prompt), len(prompt) + max_new_tokens
    if target.max_context is not None:
        end = min(end, target.max_context)
    target_cache, draft_cache = target.new_cache(end), draft_model.new_cache(end)
    if len(tokens) > 1:
        target.forward(torch.tensor(tokens[:-1]), target_cache, slice(0))
    while len(tokens) < end:
        n = parts.how_many_drafts(gamma, len(tokens), end, draft_model.max_context)
        drafted, q = parts.draft(draft_model, draft_cache, tokens, n, temperature, source)
        emitted = parts.verify(target, target_cache, tokens, drafted, q, rule, temperature)
        tokens += parts.cut(emitted, eos)
        parts.roll_back(target_cache, tokens)
        parts.roll_back(draft_cache, tokens)
        on_round(tokens, target_cache, draft_cache)
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]
    ### END SOLUTION


# %% test="loop" points=4
checks.loop(generate, points=4)

# %% [markdown]
# ### What you built
#
# Your loop with *your* parts. First on the toy: a draft that agrees with it now and then. Each group between bars is
# what one pass of the target gave.

# %% tags=["raises-exception"]
mine = Parts(draft, verify, roll_back, how_many_drafts, cut)


def nearly(tokens):
    """Another opinion than `mixes` at every third length."""
    return mixes(tokens) if len(tokens) % 3 else mixes((*tokens, 1))


checks.show_run(generate, mine, greedy_rule, toy, ScriptedModel(nearly, vocab_size=10), [3, 1, 4], 18, gamma=4)

# %% [markdown]
# Now on a real model, SmolLM2. Where its weights are missing, the cell says how to get them, and you can go on without:
# nothing below needs them. The draft is no second network here: `copies` is a scripted model that looks for the last
# two tokens earlier in the text and says what came next there. For your `draft` it is a model like any other.
#
# The target computes in float32 here, so that a difference from plain decoding is a fault and not rounding (a near-tie
# of two tokens could still fall the other way, but hardly ever does).

# %% tags=["raises-exception"]
smollm2 = checks.smollm2()  # None where the weights are missing; says so


def copies(tokens):
    """One-hot at what followed the last earlier place with the same two tokens; the newest token again if none did."""
    guess = tokens[-1]
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i : i + 2] == tokens[-2:]:
            guess = tokens[i + 2]
            break
    probs = torch.zeros(smollm2.vocab_size, dtype=torch.float64)
    probs[guess] = 1
    return probs.tolist()


if smollm2 is not None:
    prompt = checks.smollm2_prompt(smollm2)
    lookup = ScriptedModel(copies, vocab_size=smollm2.vocab_size)
    checks.show_run(generate, mine, greedy_rule, smollm2, lookup, prompt, 24, gamma=4)
    print("\nThe target as its own draft, in a cache of its own:")
    checks.show_run(generate, mine, greedy_rule, smollm2, smollm2, prompt, 10, gamma=4)

# %% [markdown]
# ## Part E. Find the bug
#
# *★★, 12 minutes, 3 points*
#
# Somebody hands in this engine. It is greedy, and it drafts with a function `propose(tokens, gamma)` that returns at
# most `gamma` tokens. Its author has tested it: with a perfect drafter for every gamma, and with a drafter that is
# always wrong, at gamma 1.

# %% locked="handed-in"
remembering = (
    checks.remembering_model()
)  # scripted; tokens 0 to 9; its distribution looks at the whole text, as `mixes` does


def handed_in(model, propose, prompt, max_new_tokens, gamma):
    tokens, end = list(prompt), len(prompt) + max_new_tokens
    cache = model.new_cache(end)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    while len(tokens) < end:
        drafted = list(propose(tokens, min(gamma, end - len(tokens) - 1)))
        best = model.forward(torch.tensor([tokens[-1], *drafted]), cache).argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == best[accepted]:
            accepted += 1
        tokens += [*drafted[:accepted], best[accepted]]
        if accepted < gamma:  # take the rejected drafts back
            cache.truncate(cache.length - (gamma - accepted))
    return tokens[len(prompt) :]


def nothing(tokens, gamma):
    return []


plain = handed_in(remembering, nothing, [1, 2], 12, gamma=0)  # gamma 0: plain decoding, and that is right


def perfect(tokens, gamma):  # for the prompt [1, 2]
    done = len(tokens) - 2
    return plain[done : done + gamma]


def always_wrong(tokens, gamma):
    return [(x + 1) % 10 for x in perfect(tokens, gamma)]


print("plain decoding:       ", plain)
print("perfect, gamma 1 to 8:", all(handed_in(remembering, perfect, [1, 2], 12, g) == plain for g in range(1, 9)))
print("always wrong, gamma 1:", handed_in(remembering, always_wrong, [1, 2], 12, 1) == plain)

# %% [markdown]
# **Show it.** Find an input on which `handed_in` goes wrong with the model `remembering`: it writes a different text
# from plain decoding, or it raises an error. Any such input will do. Your `propose` must keep its promise: at most as
# many tokens as it is asked for, and ids from 0 to 9.
#
# <details><summary>Hint 1</summary>
#
# Play a round on paper: what does the cache hold after the pass, what should it hold, and what does the last `if`
# leave?
#
# <details><summary>Hint 2</summary>
#
# How many drafts were rejected? The last `if` computes that number in a way of its own. When is it wrong?
#
# </details></details>


# %% solve="witness"
def witness():
    """(propose, prompt, max_new_tokens, gamma): arguments with which `handed_in(remembering, ...)` goes wrong."""

    ### BEGIN SOLUTION
    def one_token_at_a_time(tokens, gamma):
        return [0][:gamma]  # fewer than gamma, though more were asked for

    return one_token_at_a_time, [1, 2, 3, 4, 5, 6], 12, 4
    ### END SOLUTION


# %% test="witness" points=1
checks.witness(witness, points=1)

# %% [markdown]
# **Repair it.** Copy the engine and mend it. Your version
#
# - writes the text of plain decoding, whatever `propose` returns;
# - asks `propose` for as many drafts as `handed_in` does, in the same rounds, and verifies all that it gets;
# - feeds no token twice, so no fresh cache in each round. The prompt (all of it but its last token) may have a pass of its
#   own, as it has now, or share the first verifying pass.


# %% solve="repair"
def repaired(model, propose, prompt, max_new_tokens, gamma):
    """As `handed_in`, but right for every `propose`."""
    ### BEGIN SOLUTION
    tokens, end = list(prompt), len(prompt) + max_new_tokens
    cache = model.new_cache(end)
    if len(tokens) > 1:
        model.forward(torch.tensor(tokens[:-1]), cache, slice(0))
    while len(tokens) < end:
        drafted = list(propose(tokens, min(gamma, end - len(tokens) - 1)))
        best = model.forward(torch.tensor([tokens[-1], *drafted]), cache).argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == best[accepted]:
            accepted += 1
        tokens += [*drafted[:accepted], best[accepted]]
        cache.truncate(len(tokens) - 1)
    return tokens[len(prompt) :]
    ### END SOLUTION


# %% test="repair" points=2
checks.repair(repaired, points=2)

# %% [markdown]
# ## Part F. In writing
#
# *★, 8 minutes, 2 points. Marked by hand: a few sentences for each question.*
#
# 1. A drafted EOS may end the *drafting* of this round, but not the *text*. Why is the first harmless for what comes
#    out, in greedy decoding and in sampling? And what goes wrong with the text if the engine stops as soon as the draft
#    has proposed an EOS?
# 2. A colleague tests the roll-back with a scripted model that counts: after token t comes t + 1, whatever came before.
#    Every test passes, although `roll_back` was replaced by a function that does nothing. Explain why, and say what a
#    model for such a test must do. Name one fault of the *draft's* cache that even your better model will not show in
#    the text, and say which number shows it.

# %% [markdown] written="why" points=2
# <!-- BEGIN SOLUTION -->
# *For marking: one point for each question, half for half of it.*
#
# 1. *(half)* Drafts after an EOS can never be part of the text: if the EOS is kept, the text ends with it; if it is
#    rejected, everything after it is rejected too. So not drafting them changes neither the text nor its distribution;
#    whether one stops depends on a token that *was proposed and is still tested*, so no token is dropped unseen. (An
#    answer that says only "they would be thrown away anyway" is enough.)
#    *(half)* If the text stops at a drafted EOS that was not verified, it ends where the target wanted to go on: greedy
#    output is cut short; in sampling texts end with the draft's probability of EOS, q, and not with the target's, p.
#    The output then depends on the draft, so it is no longer exact.
# 2. *(half)* The counting distribution depends on the newest token only. The pending token is always fed by the round
#    itself, so what stands in the cache before it has no influence, right or wrong. The model must depend on the whole
#    text, tokens *and* places, so that a token too many, one too few or a rejected one changes its answer. (Comparing
#    the cache with a fresh prefill is as good an answer.)
#    *(half)* For instance: the last accepted draft never enters the draft's cache, a rejected one stays in it, or it is
#    rolled back too far and the hole is never filled. The target repairs the text; the share of accepted drafts falls
#    and the number of target passes rises. With the target as its own draft every draft must be kept, so anything
#    below 100% shows the fault.
# <!-- END SOLUTION -->
