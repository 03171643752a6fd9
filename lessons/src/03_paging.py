# %% [markdown]
# # 03 · Paging the cache
#
# *75 minutes. You need lesson 02 (what a cache holds). No GPU.*
#
# Afterwards you have built a block pool with block tables, reference counts and copy-on-write; you can say what the
# prefix cache may reuse and what it must recompute; you have put the pool under a real engine and seen the same text; and
# you can measure what paging saves, and name what it does not.

# %% [markdown]
# ## A question first
#
# A server has memory for the keys and values of 15,700 tokens. Nobody knows how long an answer will be, so each request
# reserves 2,048 tokens, the longest that the model allows. Prompts have 160 tokens on average, answers 340. Requests are
# always waiting.
#
# At a random moment, what share of this memory holds a token? And what share is reserved, but will *never* hold one?

# %%
my_guess_used = 0.50  # share of the memory that holds a token
my_guess_never = 0.20  # share that is reserved, and never will
my_guess_gain = 1.5  # how many times as many requests run at once if no memory is reserved ahead

# %% [markdown]
# ## 1. What one piece of memory costs
#
# The reference package can replay such a server, token by token. Lengths are drawn at random, with the averages of
# ShareGPT chats that the paging paper reports.

# %%
import numpy as np

import specdec_course as course

prompts, outputs = course.draw_lengths(400, np.random.default_rng(0))
reserving = course.serve_contiguous(prompts, outputs, "max", capacity=15_700, max_len=2048)
print(f"holds a token:                 {reserving.token_states:4.0%}   (you guessed {my_guess_used:.0%})")
print(f"reserved, will hold one later: {reserving.reserved:4.0%}")
print(f"reserved, and never will:      {reserving.internal:4.0%}   (you guessed {my_guess_never:.0%})")
print(f"too small for another request: {reserving.free:4.0%}")
print(f"requests that run at a time:   {reserving.batch:.1f}")

# %% [markdown]
# Why not reserve less? Because a tensor is *one piece*: whoever needs one token more than was reserved would have to move
# all of it. And batch size is throughput: a decode step reads all weights once, for however many requests (lesson 01).
#
# Operating systems had this problem in the 1960s. Their answer: cut memory into **blocks** of equal size, hand out one at
# a time, and let each process keep a table of where its blocks are. Let us build that for a cache.

# %% [markdown]
# ## 2. A pool, and a table
#
# The pool only deals in block *numbers*. `refs` counts how many sequences hold a block; that is one or none, for now.

# %%
from collections import deque


class Pool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.refs = [0] * num_blocks  # how many tables hold the block
        self.free = deque(range(num_blocks))  # those that none holds, longest free first


def allocate(pool, n):
    if n > len(pool.free):  # all or nothing: check before anything is changed
        raise MemoryError(f"asked for {n} blocks, {len(pool.free)} are free")
    taken = [pool.free.popleft() for _ in range(n)]
    for block in taken:
        pool.refs[block] = 1
    return taken


# %% [markdown]
# A sequence has a **block table**, a list of block numbers in order. It grows when the last block is full, and not
# before.


# %%
def append(pool, table, length, n):
    """Make room for n tokens after the `length` that the table holds."""
    blocks_needed = -(-(length + n) // pool.block_size)  # rounded up
    table += allocate(pool, blocks_needed - len(table))


def slot(pool, table, i):
    """Where position i lies in memory."""
    return table[i // pool.block_size] * pool.block_size + i % pool.block_size


def release(pool, table):
    for block in reversed(table):
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)


# %% [markdown]
# Two sequences that grow in turns. Where do their blocks go?

# %%
pool = Pool(num_blocks=8, block_size=4)
ann, bob, n = [], [], 3
for length in (0, n, 2 * n):
    append(pool, ann, length, n)
    append(pool, bob, length, n)
print(f"ann: {3 * n} tokens in blocks {ann};  bob: {3 * n} tokens in blocks {bob};  free: {list(pool.free)}")
print("ann's tokens lie in slots", [slot(pool, ann, i) for i in range(3 * n)])
print(f"slots that ann holds and does not use: {len(ann) * pool.block_size - 3 * n}")
release(pool, bob)
print("bob is gone; free:", list(pool.free))

# %% [markdown]
# Neither sequence is in one piece, and neither had to say how long it would be. `slot` is all that a reader needs to
# know: block from the table, offset in the block. The most that a sequence can waste is the rest of its last block.
#
# **Try it:** set `n` to 4, then to 6. How many blocks does ann hold then, and how many slots are wasted? (One of the two
# ends in an error. What does it say, and is it right?)

# %% [markdown]
# ## 3. Share, and copy on write
#
# Four answers to *one* prompt should not keep that prompt four times. Two tables may name the same block: **fork** copies
# the list of numbers, and counts.


# %%
def fork(pool, table):
    for block in table:
        pool.refs[block] += 1
    return list(table)


def write(memory, pool, table, length, text):
    """Append letters to a sequence; a letter stands for one token's keys and values."""
    for source, target in append(pool, table, length, len(text)) or []:
        at, to = source * pool.block_size, target * pool.block_size
        memory[to : to + pool.block_size] = memory[at : at + pool.block_size]
    for i, letter in enumerate(text, start=length):
        memory[slot(pool, table, i)] = letter


def read(memory, pool, table, length):
    return "".join(memory[slot(pool, table, i)] for i in range(length))


# %%
def two_endings():
    pool, memory = Pool(8, 4), ["."] * 32
    first = []
    write(memory, pool, first, 0, "the cat ")
    write(memory, pool, first, 8, "sa")
    second = fork(pool, first)
    write(memory, pool, first, 10, "t down")
    write(memory, pool, second, 10, "ng")
    print("first: ", repr(read(memory, pool, first, 16)), first)
    print("second:", repr(read(memory, pool, second, 12)), second)


two_endings()

# %% [markdown]
# The cat sat, and the other cat sang. But that is not what is read: both wrote into the same half-full block, and the
# later one won. In a real cache nothing crashes there: a sequence simply attends to *another sequence's* keys.
#
# Full blocks may be shared without any care: nobody will ever write to them again. Only the last block, half full and
# held by several, needs a rule. **Copy on write**: whoever wants to write there first takes a block of his own, copies,
# and lets go of the shared one. `append` is the place where this is known:


# %%
def append(pool, table, length, n):
    """As above; returns the (source, target) blocks whose content has to be copied before writing."""
    half_full = n > 0 and length % pool.block_size > 0
    shared = half_full and pool.refs[table[-1]] > 1
    fresh = allocate(pool, -(-(length + n) // pool.block_size) - len(table) + shared)
    copies = []
    if shared:
        copies = [(table.pop(), fresh[0])]
        pool.refs[copies[0][0]] -= 1
    table += fresh
    return copies


two_endings()

# %% [markdown]
# Block 2 was shared; the first writer moved to a block of its own, the second then held block 2 alone and wrote in
# place. One block was copied, not three.
#
# One thing is easily got wrong: `allocate` comes *before* anything else changes. If it raises, table and counts are as
# they were, and the request can wait and try again.

# %% [markdown]
# ## 4. The same, in the package
#
# That was the pool, in some forty lines. The package's `BlockPool` has the same moves: `extend` is our `append`, `share`
# our `fork`, `free` our `release`. Do both agree? Thousands of random operations, on a pool that is often full, and
# everything is compared after each: copies, tables, counts, and the *order* of the free queue.

# %%
import random
from collections import Counter

from specdec_ref.cache import BlockPool, OutOfBlocks


def outcome(operation, *arguments):
    try:
        return operation(*arguments)
    except (MemoryError, OutOfBlocks):
        return "refused"


def agree(steps=5000, seed=0):
    rng, seen = random.Random(seed), Counter()
    mine, package = Pool(12, 4), BlockPool(12, 4)
    sequences = [{"mine": [], "package": [], "length": 0} for _ in range(5)]
    for step in range(steps):
        s, other, op = rng.choice(sequences), rng.choice(sequences), rng.choice(["append", "append", "fork", "release"])
        if op == "append":
            a, n = s["length"], rng.randint(1, 6)
            result = outcome(append, mine, s["mine"], a, n)
            assert result == outcome(package.extend, s["package"], a, a + n), f"operation {step}: {op}"
            s["length"] += 0 if result == "refused" else n
            op = "append refused" if result == "refused" else "append with a copy" if result else "append"
        elif op == "fork":
            if other["length"]:
                continue  # its place is taken
            other |= {"mine": fork(mine, s["mine"]), "package": package.share(s["package"]), "length": s["length"]}
        elif op == "release":
            release(mine, s["mine"])
            package.free(s["package"])
            s |= {"mine": [], "package": [], "length": 0}
        seen[op] += 1
        assert s["mine"] == s["package"] and mine.refs == [b.refs for b in package.blocks], f"operation {step}: {op}"
        assert list(mine.free) == list(package.free_queue), f"operation {step}: {op}"
    return dict(seen)


print("equal after every one of these operations:")
for operation, times in agree().items():
    print(f"{times:5} x {operation}")

# %% [markdown]
# **Try it:** break your `append`, `fork` or `release`: leave out a count, or the copy. How many operations does it take
# until an assertion fails? It says so.
#
# What the package adds: errors that say what to do, a double free refused, `truncate` for rolling back, and the part
# that comes next.

# %% [markdown]
# ## 5. Found again: the prefix cache
#
# A chat begins with the same system prompt for every user. When the first request has ended, its blocks are free, but
# what they hold is still there, until they are handed out again. If a new prompt begins in the same way, take them.
#
# How is a block found? By a hash of what it holds. Of its tokens alone? Look at the keys of the *same token*, at the same
# place, after different beginnings, in the real model:

# %%
import torch

from specdec_ref import load_model

target = load_model(dtype="float32")
tokenizer = target.tokenizer


def keys_of_last(text):
    ids = tokenizer.encode(text)
    cache = target.new_cache(len(ids))
    target.forward(torch.tensor(ids), cache, slice(0))
    print([tokenizer.decode([t]) for t in ids])
    return cache.keys[:, :, len(ids) - 1]


a = keys_of_last("The old river bank")
b = keys_of_last("She robbed a bank")
for layer in (0, 1, target.config.n_layers - 1):
    difference = (a[layer] - b[layer]).norm() / a[layer].norm()
    print(f"layer {layer:2}: keys of ' bank' differ by {difference:.0%}")

# %% [markdown]
# In layer 0 a key knows only its token and its position; from layer 1 on it has attended to what came before. So a block
# is only the same if *everything before it* is the same, too. The hash of a block therefore takes in the hash of its
# parent, which stands for the whole prefix:

# %%
from specdec_ref.cache import hash_block


def chain(text, block_size=4):
    parent, names = b"", []
    for start in range(0, len(text) - block_size + 1, block_size):
        block = text[start : start + block_size]
        parent = hash_block((parent, tuple(map(ord, block)), ""))
        names.append(f"{block!r} {parent.hex()[:6]}")
    return names


for text in ("Hi! Tell me", "Hi! Tell us", "Yo! Tell me"):
    print(*chain(text), sep="   ")

# %% [markdown]
# The first two agree in both full blocks. In the third, `Tell` has another parent, so another name. What is left behind
# the last full block has no hash: it may still be written to.
#
# Three rules follow. The first and the last were bugs in real servers once (see the sources):
#
# - a block that is handed out again must **lose its hash**, or a new prompt finds another text's keys;
# - blocks are freed **last one first**, so that a prefix outlives what was built on it: without its parent a block cannot
#   be found any more;
# - **one token is always left over**. Even if the whole prompt is known: a cache holds keys and values, but what the next
#   token is to be comes from *logits*, and these must be computed.

# %%
pool = BlockPool(num_blocks=8, block_size=4)
table, prompt = [], list(range(100, 108))  # eight tokens: exactly two blocks
pool.extend(table, 0, len(prompt))
pool.register(table, prompt)
pool.free(table)

again = pool.reuse_prefix(prompt)
known = 4 * len(again)
print(f"the same 8 tokens again: {len(again)} block found, so {known} tokens known, {8 - known} to compute")
pool.free(again)
pool.free(pool.allocate(8))  # somebody needs all of the memory
print("after that memory was used by others:", pool.reuse_prefix(prompt))

# %% [markdown]
# ## 6. Watch it
#
# Eight blocks of four slots, and letters for tokens. Colours say who holds a block; two colours mean that two do. `#`
# marks a block that can be found by its hash; grey letters are left from a sequence that is gone. Below is the free queue.
#
# First one moment as a still picture: A was forked as B, and B has just written.

# %%
steps = course.pool_tour()
s = steps[4]
course.show(
    course.pool_figure(s.pool, s.tables, s.lengths, s.slots, title=s.title),
    alt=course.pool_words(s.pool, s.tables, s.title),
)

# %% [markdown]
# Now step through the whole story. Before each step, say what will happen: which block is taken, what becomes of the
# counts, where in the queue a freed block goes. Three moments to look out for:
#
# - step 9: C finds what A and B left behind, though both are gone. Which blocks leave the *middle* of the queue?
# - step 10: D needs blocks. Whose memory is forgotten, and why those?
# - step 12: E begins like B did, and yet only two of B's blocks are found.

# %%
course.pool_stepper(steps)

# %% [markdown]
# **Your own story.** Change the operations, and predict the table before you run the cell. (A full pool raises
# `OutOfBlocks`, and nothing has happened.)

# %%
mine = course.PoolRecorder(num_blocks=8, block_size=4)
mine.start("x", "to be or not")
mine.fork("x", "y")
mine.append("y", " to be")
mine.free("x")
my_prediction_of_ys_table = [0, 1, 2, 3]
print("y's table:", mine.tables["y"], "- you said", my_prediction_of_ys_table)
course.pool_stepper(mine.snapshots)

# %% [markdown]
# ## 7. Under the real model
#
# Now the slots hold keys and values. `PagedKVPool` keeps them for all layers in one tensor, `[layers, heads, blocks,
# block_size, head_dim]`. Writing goes to `slot(i)`; attention *gathers* a sequence's blocks through its table, and is
# plain attention from there on.
#
# To make it hard, hand the blocks out in reverse order, and feed the prompt in uneven pieces. Blocks are small here, 8
# tokens, so that we see some of them come and go.

# %%
from specdec_ref import encode_prompt
from specdec_ref.cache import PagedKVPool

ids = encode_prompt(course.prompt("rewrite-1").messages, target)
kv = PagedKVPool(target, num_blocks=128, block_size=8)
kv.block_pool.free(kv.block_pool.allocate(128))  # freed last one first: the queue now begins with block 127

dense, paged = target.new_cache(len(ids)), kv.new_sequence()
target.forward(torch.tensor(ids), dense, slice(0))
for piece in torch.tensor(ids).split(13):
    logits = target.forward(piece, paged, slice(-1, None))

keys, values = paged.gather()
apart = max((keys - dense.keys).abs().max().item(), (values - dense.values).abs().max().item())
print(f"{len(ids)} tokens in blocks {paged.table}")
print(f"largest difference to one contiguous pass: {apart:.1e}, beside numbers up to {values.abs().max():.0f}")
print(f"the pool: {kv.nbytes / 1e6:.0f} MB; this sequence holds {paged.nbytes / 1e6:.1f} MB")
paged.truncate(0)  # gives all blocks back

# %% [markdown]
# (float32 rounds after some seven digits, and pieces of 13 add in another order than one pass does: hence not quite 0.)
#
# The engine takes the pool as an argument, and changes nothing else. The loop is that of lesson 05; here you need to know
# only that `gamma=6` lets a round write up to six *guessed* tokens into the cache, of which the wrong ones are taken
# back.

# %%
from specdec_ref import NGramDrafter, SpeculativeEngine
from specdec_ref.measure import compare_greedy

on_dense = SpeculativeEngine(target, NGramDrafter(), gamma=6)
on_pages = SpeculativeEngine(target, NGramDrafter(), gamma=6, pool=kv)
held = []


def watch(run, round_):
    drafted = len(round_.proposal.tokens)
    fullest = run.cache.length - len(round_.kept) + 1 + drafted  # one pending token and the guesses were written
    held.append((drafted, round_.verdict.accepted, fullest, run.cache.length, len(run.cache.table)))


a = on_dense.generate(ids, max_new_tokens=48)
b = on_pages.generate(ids, max_new_tokens=48, on_round=watch)
print(b.text)
print("\ndense and paged:", compare_greedy(a.tokens, b.tokens, target, ids))

# %%
for drafted, accepted, fullest, length, blocks in held:
    peak = kv.block_pool.blocks_for(fullest)
    print(f"{accepted} of {drafted} accepted: {fullest} tokens in {peak} blocks, then {length} in {blocks}", end="")
    print(f"   <- {peak - blocks} given back" if peak > blocks else "")
print("never a block more than needed:", all(b == kv.block_pool.blocks_for(n) for *_, n, b in held))
print("in use when all is over:", kv.block_pool.num_used, "blocks")

# %% [markdown]
# A wrong guess may have opened a new block; rolling back gives it back at once. This is what `truncate` is for, and why
# a speculative engine needs a few blocks more than it keeps.

# %% [markdown]
# ## 8. One prompt, four answers
#
# Fork the prompt for four samples, and let each go on for 16 tokens. How many blocks do they hold together, and how many
# would they with a copy each?

# %%
my_guess_blocks = 30

# %%
from specdec_ref import RandomSource


def go_on(cache, n, seed, temperature=0.8):
    source, tokens = RandomSource(seed), [ids[-1]]  # the prompt's last token is still to be fed
    for _ in range(n):
        logits = target.forward(torch.tensor(tokens[-1:]), cache)
        tokens.append(source.categorical(torch.softmax(logits[-1] / temperature, -1)))
    return tokens[1:]


kv = PagedKVPool(target, num_blocks=64, block_size=16)
parent = kv.new_sequence()
target.forward(torch.tensor(ids[:-1]), parent, slice(0))
samples = [parent.fork() for _ in range(4)]
parent.truncate(0)  # the parent lets go; its children hold the blocks
texts = [go_on(sample, 16, seed) for seed, sample in enumerate(samples)]
for text in texts:
    print("-", repr(tokenizer.decode(text))[:90])

# %%
pages = kv.block_pool
alone = sum(len(sample.table) for sample in samples)
print(f"prompt of {len(ids)} tokens, four answers of 16, blocks of 16:")
print(f"{pages.num_used} blocks in use, {alone} if each had its own (you guessed {my_guess_blocks})")
print("counts of the first sample's blocks:", [pages.blocks[block].refs for block in samples[0].table])
for sample in samples:
    sample.truncate(0)
print("all given back:", pages.num_used, "in use")

# %% [markdown]
# The full blocks of the prompt count four holders and are stored once. And its last, half-full block? The first three
# samples to write copied it; the fourth found itself alone with it, and wrote in place.
#
# The engine does it for you: `generate_many(prompt, 4, ...)`. It works one sample after the other, and takes in the prompt once.

# %%
engine = SpeculativeEngine(target, NGramDrafter(), gamma=6, pool=PagedKVPool(target, num_blocks=64))
four = engine.generate_many(ids, 4, max_new_tokens=8, temperature=0.8, seed=1)
first, *others = [g.stats.prefill_seconds for g in four]
print("time to take in the prompt, the first sample's as 1: 1.00", *(f"{t / first:.2f}" for t in others))

# %% [markdown]
# ## 9. One system prompt, many users
#
# Here nobody forks: requests come one by one, and share because their *beginnings* are equal.

# %%
system = (
    "You are the assistant of a small harbour museum. Answer in one or two friendly sentences. The museum is open from "
    "ten to five, except on Mondays. Children under twelve enter for free; everybody else pays six euros. The lighthouse "
    "may be climbed in groups of at most eight people, with a guide. Dogs have to wait outside, where there is water in "
    "the shade. If you are asked for something that you do not know, say so, and give the telephone number of the desk."
)
questions = ["May I bring my dog?", "What does it cost for two adults?", "Can I climb the lighthouse?"]
kv = PagedKVPool(target, num_blocks=64, block_size=16)
engine = SpeculativeEngine(target, NGramDrafter(), gamma=6, pool=kv)
seconds = []
for question in questions:
    chat = encode_prompt([{"role": "system", "content": system}, {"role": "user", "content": question}], target)
    probe = kv.new_sequence(chat)  # what does the pool know already?
    known = probe.length
    probe.truncate(0)
    answer = engine.generate(chat, max_new_tokens=8)
    seconds.append(answer.stats.prefill_seconds)
    share = seconds[-1] / seconds[0]
    print(f"{len(chat)} tokens, {known} known, {len(chat) - known} to compute; time {share:.2f} of the first")

# %% [markdown]
# Tokens are counted, times are this machine's, now. The saving is in the time to the *first* token; a decode step costs
# what it did. And it works for chats, too: the next turn begins with everything said so far.
#
# **Try it:** put the question first. Write `question + " " + system` in place of `system` in the loop, and run it again.
# What is known now, and what does that say about system prompts that begin with the user's name, or the time?

# %% [markdown]
# ## 10. The waste, measured
#
# Back to the server of the beginning. Four ways to give out the same 15,700 slots: reserve the longest; be told the
# answer's length, rounded up to a power of two; be told it exactly (an oracle, nobody has one); or paging, with blocks of
# 16.

# %%
systems = {
    "reserve 2,048": reserving,
    "next power of 2": course.serve_contiguous(prompts, outputs, "pow2"),
    "oracle": course.serve_contiguous(prompts, outputs, "oracle"),
    "paged": course.serve_paged(prompts, outputs, block_size=16),
}
course.show(course.waste_figure(systems), alt=course.waste_words(systems))

# %%
for name, w in systems.items():
    print(f"{name:16} tokens {w.token_states:5.1%}  later {w.reserved:5.1%}  never {w.internal:5.1%}  ", end="")
    print(f"allocator {w.external:5.1%}  free {w.free:5.1%}  requests {w.batch:4.1f}")
gain = systems["paged"].batch / reserving.batch
print(f"\npaging runs {gain:.1f} times as many requests at once as reserving does (you guessed {my_guess_gain})")

# %% [markdown]
# Kwon et al. measured on real traffic: 20% to 38% of the memory of earlier systems held tokens, 96% of theirs. Our requests
# are drawn, theirs were recorded: the same picture, not the same digits.
#
# Even the oracle wastes: it holds memory for tokens to come, and its pieces do not fit together. The names: *reserved*
# (will be used later), *internal* (inside a reservation, never used), *external* (between reservations). Paging has no
# external waste but for a rest of the pool, and bounds the other two by a block a sequence.
#
# **The block size.** Small blocks waste less. So why not 1?

# %%
sizes = (1, 4, 16, 64, 256)
used = {size: course.block_utilisation(prompts + outputs, size) for size in sizes}
batch = {size: course.serve_paged(prompts, outputs, block_size=size).batch for size in sizes}
course.show(
    course.block_size_figure(used, batch),
    alt="; ".join(f"blocks of {n}: {used[n]:.1%} used, {batch[n]:.1f} requests at a time" for n in sizes),
)

# %% [markdown]
# Because the table costs, too. Each block is an entry to be looked up by the attention kernel, a separate piece to read
# (short reads use less of the bandwidth), and a hash to compute. Up to 16 or so the waste hardly shows; from 256 on it
# does. The other way round, sharing works by whole blocks: the larger, the less of a common beginning is shared.
#
# **Your turn.** A prompt of 100 tokens, four samples of 50 tokens each, blocks of 16. How many blocks do they take at
# their full length, shared? Work it out on paper first.

# %%
my_blocks = 40

# %%
pool = BlockPool(num_blocks=200, block_size=16)
course.fit_samples(pool, prompt=100, outputs=[50] * 4)
right, copies = pool.num_used, 4 * pool.blocks_for(150)
hints = {
    right: "yes: 6 full blocks of the prompt are shared, and each sample has 4 more, of which the first is its copy",
    copies: "that is without sharing: four times the blocks of 150 tokens",
    7 + 4 * 4: "the prompt's own seventh block goes back to the pool once every sample has its copy of it",
    7 + 4 * 3: "the prompt's seventh block is half full: each sample needs one of its own",
}
print(
    f"{my_blocks}: {hints.get(my_blocks, 'not yet: which blocks of the prompt are full? What does each sample write?')}"
)

# %% [markdown]
# ## 11. What paging does not solve
#
# **The bytes.** A token's keys and values are as large as before (lesson 02; lesson 10 makes them smaller). Paging stops
# waste, and when there is none left, memory is full again.
#
# **Full is full.** Who reserves nothing can be caught out: all running requests grow, and no block is left. Then one of
# them has to give up its blocks, wait, and be computed again: *preemption*. Keeping a few blocks back when requests are
# admitted makes it rarer:

# %%
for watermark in (0, 0.01, 0.05, 0.2):
    w = course.serve_paged(prompts, outputs, block_size=16, watermark=watermark)
    print(
        f"keep {watermark:4.0%} back: {w.preemptions:3} preemptions, {w.batch:4.1f} of {len(prompts)} requests at a time"
    )

# %% [markdown]
# With reservations this cannot happen. It is the price of a large batch, in work that is done twice, and users see
# it as a text that halts. (Here requests always wait: the hardest case.)
#
# **The last block.** Half a block is lost a sequence, on average: little for long chats, much for very short ones.
#
# **Reading through a table.** Our CPU path first gathers the blocks into one piece, a copy that the plain cache need not
# make. What does that cost? A decode step after some 500 tokens, dense and paged in turns:

# %%
import time
from statistics import median


def step_seconds(cache):
    start = time.perf_counter()
    target.forward(torch.tensor([1]), cache)
    cache.truncate(cache.length - 1)
    return time.perf_counter() - start


text = torch.arange(500) % 1000 + 100
caches = target.new_cache(512), PagedKVPool(target, num_blocks=32).new_sequence()
for cache in caches:
    target.forward(text, cache, slice(0))
    step_seconds(cache)
ratios = sorted(step_seconds(caches[1]) / step_seconds(caches[0]) for _ in range(13))
print(f"paged takes {median(ratios):.2f} times as long (middle half of the pairs: {ratios[3]:.2f} to {ratios[9]:.2f})")

# %% [markdown]
# On a GPU one need not gather: the kernel reads each block where it lies. That is *PagedAttention* proper; in this package
# it is `specdec_ref.kernels.triton_paged`. Does that pay? Here is a recorded run, of one sequence with the heads of
# Llama-3-8B: microseconds of one layer's attention for one new token (medians).

# %%
import json
from pathlib import Path

record = json.loads(Path("recorded/paged_attention_gpu.json").read_text(encoding="utf-8"))
print(f"recorded on one {record['device']}, {record['date']}, torch {record['torch']}, triton {record['triton']}")
print("context    dense  gathered  kernel  kernel in one part   in bf16")
for r in record["runs"]:
    if r["dtype"] == "bf16" and r["new_tokens"] == 1:
        us = {way: times[1] for way, times in r["microseconds"].items()}
        best = min(("gathered", "kernel"), key=us.get)
        row = f"{r['context']:7,} {us['dense']:8.0f} {us['gathered']:9.0f} {us['kernel']:7.0f} {us['one_part']:19.0f}"
        print(f"{row}   {best}: {us[best] / us['dense']:.1f} times dense")

# %% [markdown]
# Compare the two columns of the kernel, then count its programs. It starts one for each key head, eight here, and a chip
# like that has room for more than a hundred: in one part, a long context is read by eight programs while the rest of the
# chip waits, and even the copy wins, which all of it shares. So a long context is cut into parts, with a program for each
# part and a second small kernel that puts their softmaxes together (*flash decoding*). For short contexts a call costs more
# than its work, and a second kernel would only add to that: they stay in one part. A batch of many sequences fills the
# chip, too.

# %% [markdown]
# ## Check yourself
#
# **1. A sequence of 33 tokens, blocks of 16. A fork of it appends one token. Which blocks are copied?**
#
# <details><summary>All three</summary>Only what is written to has to be one's own. The first two blocks are full, and
# nobody will ever write there again.</details>
# <details><summary>The third</summary>Yes: it holds one token, is held twice, and is about to be written.</details>
# <details><summary>None, the fork takes a new block</summary>That would be right for 32 tokens. Position 33 lies in the
# third block, which exists already and is shared.</details>
#
# **2. The pool holds the blocks of a prompt of 64 tokens, in blocks of 16, and the same prompt comes again. How many tokens
# are computed?**
#
# <details><summary>None</summary>Then who would say what comes next? Logits are not cached.</details>
# <details><summary>One</summary>One would be enough for the logits. But sharing works by whole blocks, and the last token
# must be written into a block that is not shared.</details>
# <details><summary>16</summary>Yes: three blocks are reused, and the fourth, whose last token has to be fed, is computed
# anew.</details>
#
# **3. Why is a free block's hash kept, and when must it go?**
#
# <details><summary>It must go when the block is freed, or others read what is not theirs</summary>Free blocks with a hash
# <i>are</i> the prefix cache: what they hold is still valid, and equal tokens have equal keys.</details>
# <details><summary>Kept so that the next equal prompt finds it; gone when the block is handed out for other tokens</summary>
# Yes. Forget that, and the old hash leads to the new text.</details>
#
# **4. Paging quadruples the batch. Does each user get the text faster?**
#
# <details><summary>Yes, four times</summary>Throughput is not latency: a step now does more work, not less. What grows is
# the number of users served at once.</details>
# <details><summary>No: more users at a time, the step itself gets no shorter</summary>Yes. Only the first token comes
# earlier, where a prefix is known, or where one no longer waits in a queue.</details>

# %% [markdown]
# ## In production
#
# The design is vLLM's, so most names have a counterpart there.
#
# | here | vLLM |
# |---|---|
# | `num_blocks` | follows from `gpu_memory_utilization`: what weights and activations leave of that share is given to blocks at start |
# | `block_size=16` | `block_size`; 16 unless the platform or the attention backend wants another |
# | `BlockPool`, `Block.refs` | `BlockPool`, `KVCacheBlock.ref_cnt` |
# | `free_queue` | `free_block_queue`, a linked list, so that a hit can leave its middle |
# | `cached`, `hash_block` | `cached_block_hash_to_block`; the hash takes in the parent's hash, the tokens and extra keys |
# | the extra key | LoRA, images, and `cache_salt`, which keeps tenants apart: else response times tell who asked what |
# | `reuse_prefix`, `extend` | `KVCacheManager.get_computed_blocks`, `.allocate_slots` |
# | the prefix cache itself | `enable_prefix_caching` |
# | no block left | *preemption*: a request's blocks are freed and it is recomputed later; a warning counts them, and the documentation suggests a larger `gpu_memory_utilization` or a smaller `max_num_seqs` |
#
# vLLM's first engine forked and copied on write as we do here. The present one keeps block tables append-only: samples of
# one prompt find each other's *full* blocks through the prefix cache, and each computes the rest itself. Speculation asks
# `allocate_slots` for room for the drafts as well (*lookahead* tokens). SGLang keeps prefixes in a tree (RadixAttention)
# instead of a hash table; TensorRT-LLM has `KvCacheConfig(enable_block_reuse=...)`. Names change between releases: look
# them up for yours.

# %% [markdown]
# ## What to remember
#
# - Reserving for the longest leaves most of the memory without a token. Blocks bound the waste by one block a sequence.
# - Position i lies in block `table[i // block_size]`, at offset `i % block_size`. Only the table knows.
# - Full blocks are shared freely, by counting. A half-full shared block is copied before it is written.
# - A block's hash takes in its whole prefix; it goes when the block is handed out; one token of a prompt is always computed.
# - The text does not change. The bytes a token do not, either; and memory that is full leads to preemption.
#
# **Problem set.** [ps03-block-pool](../exercises/ps03-block-pool/ps03-block-pool.ipynb), with a check below each part.
#
# **Exercises.** (a) Give your pool `truncate(table, length)`, and add it to `agree`. (b) Hand out the *most* recently freed
# block first. Which of the stories in section 6 comes out differently, and what becomes of prefix hits? (c) `sigma` in
# `draw_lengths` sets how different lengths are. With equal lengths (`sigma=0.01`), how much of paging's gain is left, and
# over which of the other three? (d) How long must a common system prompt be to double the batch? Fill a `BlockPool`
# with requests that begin alike, through `reuse_prefix`, `extend` and `register`, and count how many fit.
#
# **Sources.** Kwon et al. 2023, *Efficient memory management for large language model serving with PagedAttention* (arXiv
# 2309.06180): the definitions of waste, figures 2, 11 and 13, and sections 4.2 to 4.5. Zheng et al. 2024, *SGLang*
# (arXiv 2312.07104). vLLM's design document *Automatic Prefix Caching*. Reports of such bugs: a reused block found under
# its old hash, vLLM pull request 4764 and nano-vllm issue 163; a wholly known prompt, nano-vllm issue 144.
