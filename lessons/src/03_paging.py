# %% [markdown]
# # 03 · Paging the cache
#
# *110 minutes; the part marked "deeper" takes 15 more. You need lesson 02 (what a cache holds). No GPU.*
#
# By the end you will have written the core of a block pool: finding a position, sharing blocks, copying on write, rolling
# back. You will know what a prefix cache may reuse and what it must recompute. You will have run a real engine on such a
# pool and seen the same text come out, and you will have measured what paging saves and what it does not solve.
#
# Lessons 04 and 05 do not need this one: if you want speculation first, read them now and come back before lesson 13. And
# if you want a break, the end of section 6 is the place.

# %% [markdown]
# ## A question first
#
# A server has room for the keys and values of 15,700 tokens. (That is what OPT-13B, a model of 13 billion weights, leaves
# free on an A100 with 40 GB.) Nobody knows in advance how long an answer will be, so each request reserves 2,048 tokens,
# the longest the model allows. Prompts have 160 tokens on average, answers 340. More requests are always waiting.
#
# At a random moment, what share of this memory holds a token? What share is reserved but will *never* hold one? And how
# many times as many requests could run at once if nothing were reserved? Write three numbers in place of `None`.

# %%
my_guess_used = None  # percent of the memory that holds a token
my_guess_never = None  # percent that is reserved and never will
my_guess_gain = None  # times as many requests at once, without reservations

# %% [markdown]
# ## 1. The cost of one piece
#
# Let us replay such a server, one decode step at a time. The lengths of requests are drawn at random, with the averages
# that the paging paper reports for ShareGPT chats.

# %%
import numpy as np

import specdec_course as course

prompts, outputs = course.draw_lengths(400, np.random.default_rng(0))
reserving = course.serve_contiguous(prompts, outputs, "max", capacity=15_700, max_len=2048)
print("holds a token:                ", course.guess_text(my_guess_used, 100 * reserving.token_states, "%"))
print("reserved, and never will:     ", course.guess_text(my_guess_never, 100 * reserving.internal, "%"))
print(f"reserved, will hold one later: {100 * reserving.reserved:.1f} %")
print(f"too small for another request: {100 * reserving.free:.1f} %")
print(f"requests that run at a time:   {reserving.batch:.1f}")

# %% [markdown]
# Why does it reserve so much? Because a tensor is *one piece*: a request that outgrew its piece would have to be copied to
# a larger one. And running so few requests at a time is expensive: a decode step reads all weights once, whether for seven
# requests or for thirty (lesson 01).
#
# Would it help if every request told us its exact length? Here is the memory of both servers over 400 decode steps. Each
# request is a band of slots, from the step at which it starts to the step at which it ends.

# %%
maps = {}
servers = {"reserve 2,048 each": "max", "reserve the exact length": "oracle"}
for name in course.progress(servers, "servers"):
    maps[name] = course.memory_map(servers[name], prompts, outputs)
course.show(course.memory_figure(maps), alt=course.memory_words(maps))

# %% [markdown]
# On the left, the dark orange is reserved for nothing. On the right there is none of it, since that server knows the future.
# And yet: blue space waits for tokens to come, and grey holes are too small for the next request, though together they would
# be large enough. Pieces of different sizes never fit together well.
#
# Operating systems had this problem in the 1960s. Their answer: cut memory into **blocks** of equal size, hand them out
# one at a time, and let each process keep a table of where its blocks are. Let us build that for a cache.

# %% [markdown]
# ## 2. A pool and a table
#
# The pool deals only in block *numbers*. `refs` counts how many sequences hold a block: one or none, for now. A sequence
# has a **block table**, the list of its blocks in order, which grows when the last block is full and not before.

# %%
from collections import deque


class Pool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.refs = [0] * num_blocks  # how many tables hold each block
        self.free = deque(range(num_blocks))  # blocks that no table holds, longest free first


def allocate(pool, n):
    if n > len(pool.free):  # all or nothing: check before anything is changed
        raise MemoryError(f"asked for {n} blocks, {len(pool.free)} are free")
    taken = [pool.free.popleft() for _ in range(n)]
    for block in taken:
        pool.refs[block] = 1
    return taken


def append(pool, table, length, n):
    """Make room for n tokens after the `length` that the table holds."""
    needed = -(-(length + n) // pool.block_size)  # rounded up
    table += allocate(pool, needed - len(table))


# %% [markdown]
# Ann and Bob are two sequences that grow in turn, `n` tokens at a time. Where do their blocks go?

# %%
pool, n = Pool(num_blocks=8, block_size=4), 3
ann, bob = [], []
for length in (0, n, 2 * n):
    append(pool, ann, length, n)
    append(pool, bob, length, n)
print(f"slots that Ann holds and does not use: {len(ann) * pool.block_size - 3 * n}")
tables, lengths = {"Ann": ann, "Bob": bob}, {"Ann": 3 * n, "Bob": 3 * n}
course.show(course.pool_figure(pool, tables, lengths), alt=course.pool_words(pool, tables))

# %% [markdown]
# Neither sequence lies in one piece, and neither had to say how long it would become. The most that a sequence can waste
# is the rest of its last block.
#
# **Try it:** set `n` to 4. How many blocks does Ann hold then, and how many slots are wasted? Then set it to 6: the cell ends
# in an error. What does the error say, and is it right? Set `n` back to 3 before you go on.
#
# **Your turn (1 of 5).** To read position i of a sequence you need only one small function: look up the block in the
# table, add the offset in the block. Block b begins at slot `b * block_size`. Write it, and run the cell: your function
# is checked at once. Until it is right, the lesson goes on with one of ours.


# %%
def slot(pool, table, i):
    """Where position i of a sequence lies in memory."""
    raise NotImplementedError("your code in place of this line")


slot = course.blank("03 slot", slot)
print("Ann's tokens lie in slots", [slot(pool, ann, i) for i in range(3 * n)])

# %% [markdown]
# And when a sequence ends, its table lets go:


# %%
def release(pool, table):
    for block in reversed(table):  # the last block first; section 5 says why
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)


release(pool, bob)
print("Bob is gone; free blocks:", list(pool.free))

# %% [markdown]
# ## 3. Sharing, and copy on write
#
# Four answers to *one* prompt should not store that prompt four times. Two tables may name the same block.
#
# **Your turn (2 of 5).** `fork` makes a second table over the same blocks: a list of its own, and one more holder of each
# block.


# %%
def fork(pool, table):
    """A second table over the same blocks: a list of its own. Each block has one holder more."""
    raise NotImplementedError("your code in place of this line")


fork = course.blank("03 fork", fork)

# %% [markdown]
# Now let the slots hold something. A letter stands for one token's keys and values.


# %%
def write(memory, pool, table, length, text):
    copies = append(pool, table, length, len(text)) or []  # our append returns None; a later one, blocks to copy
    for source, target in copies:
        at, to = source * pool.block_size, target * pool.block_size
        memory[to : to + pool.block_size] = memory[at : at + pool.block_size]
    for i, letter in enumerate(text, start=length):
        memory[slot(pool, table, i)] = letter


def read(memory, pool, table, length):
    return "".join(memory[slot(pool, table, i)] for i in range(length))


def two_endings():
    pool, memory, first = Pool(8, 4), ["·"] * 32, []
    write(memory, pool, first, 0, "the cat sa")
    second = fork(pool, first)
    write(memory, pool, first, 10, "t down")
    write(memory, pool, second, 10, "ng")
    print("first: ", read(memory, pool, first, 16))
    print("second:", read(memory, pool, second, 12))
    slots = [memory[i : i + 4] for i in range(0, 32, 4)]
    return pool, {"first": first, "second": second}, {"first": 16, "second": 12}, slots


pool, tables, lengths, slots = two_endings()
assert slots[2] == list("sang"), "both sequences wrote into block 2"
course.show(course.pool_figure(pool, tables, lengths, slots), alt=course.pool_words(pool, tables))

# %% [markdown]
# One cat sat down, the other sang. But that is not what we read: both wrote into the same partly filled block, and the
# later one won. In a real cache nothing crashes there. A sequence simply attends to *another sequence's* keys.
#
# Full blocks can be shared without any care, since nobody will write to them again. Only a partly filled last block that
# several sequences share needs a rule, **copy on write**: before writing, a sequence copies that block into one of its
# own and drops the shared one. `append` is where we find out.
#
# **Your turn (3 of 5).** Three lines are missing, for the case that the last block is shared:
#
# 1. take the last block out of the table, and call it `source`;
# 2. it has one holder less;
# 3. the `fresh` blocks come in its place, at the end of the table.


# %%
def append_cow(pool, table, length, n):
    """Make room for n tokens; returns the (source, target) blocks to copy before writing."""
    needed = -(-(length + n) // pool.block_size) - len(table)
    shared = n > 0 and length % pool.block_size > 0 and pool.refs[table[-1]] > 1
    fresh = allocate(pool, needed + shared)  # one more block if one has to be copied
    if not shared:
        table += fresh
        return []
    raise NotImplementedError("your three lines in place of this one, and then:")
    # return [(source, fresh[0])]


append = course.blank("03 append_cow", append_cow)
pool, tables, lengths, slots = two_endings()
assert "".join(slots[2]) == "sang" and "".join(slots[3]) == "sat ", "each wrote into a block of its own"
course.show(course.pool_figure(pool, tables, lengths, slots), alt=course.pool_words(pool, tables))

# %% [markdown]
# Block 2 was shared. The first writer moved to a copy, block 3; after that the second sequence held block 2 alone and
# wrote in place. One block was copied, not three.
#
# One detail is easy to get wrong: `allocate` comes *before* anything else changes. If it raises, table and counts are as
# they were, and the request can wait and try again.

# %% [markdown]
# ## 4. Rolling back
#
# Why does a course on speculative decoding care? Speculation works in rounds (lesson 05). Each round writes a few guessed
# tokens into the cache, checks them all in one forward pass, and then removes those that were wrong. A guess may have
# opened a new block, and that block should go back at once.
#
# **Your turn (4 of 5).** Keep the blocks that hold one of the first `length` tokens, release the others (the last one first, as
# `release` does), and shorten the table *in place*: `del table[k:]` does that.


# %%
def truncate(pool, table, length):
    """Keep the blocks of the first `length` tokens, let go of the others, the last one first; changes the table."""
    raise NotImplementedError("your code in place of this line")


truncate = course.blank("03 truncate", truncate)

# %%
pool, ann = Pool(8, 4), []
append(pool, ann, 0, 10)
print("10 tokens:                ", ann)
append(pool, ann, 10, 7)
grown = len(ann)
print("7 guesses more:           ", ann)
truncate(pool, ann, 12)
print("2 of them were right:     ", ann, "- free:", list(pool.free))
assert grown - len(ann) == 2, "two blocks came back"

# %% [markdown]
# That is the pool, in about forty lines. The package's `BlockPool` has the same moves: `extend` is our `append`, `share`
# our `fork`, `free` our `release`, and `truncate` is `truncate`. It adds errors that say what to do, refuses to free a
# block twice, and has the part that comes next.

# %% [markdown]
# ## 5. The prefix cache
#
# A chat service begins every prompt with the same system prompt. When a request has ended its blocks are free, but what
# they hold is still there until they are handed out again. If a new prompt begins in the same way, it can take them.
#
# How is a block found? By a hash of what it holds. Is a hash of its tokens enough? Look at the keys of the *same token*,
# at the same position, after different beginnings, in the real model. (Loading it takes some seconds.)

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
    difference = ((a[layer] - b[layer]).norm() / a[layer].norm()).item()
    print(f"layer {layer:2}: the keys of ' bank' differ by {difference:.0%}")
assert torch.equal(a[0], b[0]) and not torch.allclose(a[1], b[1], atol=0.01)

# %% [markdown]
# In layer 0 a key depends only on its token and its position. From layer 1 on, the token has attended to what came before
# it, and its key shows that. So two blocks are the same only if *everything before them* is the same, too. The hash of a
# block therefore covers the hash of the block before it, its parent, which stands for the whole prefix:

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
assert chain("Hi! Tell me") == chain("Hi! Tell us") and chain("Hi! Tell me")[1] != chain("Yo! Tell me")[1]

# %% [markdown]
# The first two texts agree in both full blocks. In the third, `Tell` has another parent, and so another hash. The rest
# after the last full block has no hash: it may still be written to.
#
# Three rules follow. Breaking the first or the last was once a bug in real servers (see the sources):
#
# - A block that is handed out again must **lose its hash**, or a new prompt finds another text's keys.
# - Blocks are freed **last one first**, so that a prefix outlives what was built on it. Without its parent a block cannot
#   be found any more.
# - **At least one token is left to compute**, even if the whole prompt is known. A cache holds keys and values, but the
#   next token comes from *logits*, which nobody has stored.
#
# **Your turn (5 of 5).** Blocks are reused whole. So how many blocks of a prompt may be reused at most, if all of it is
# known? Mind the third rule.


# %%
def reusable(n_tokens, block_size):
    """The most blocks of a known prompt that may be reused: whole ones, and at least one token is left to compute."""
    raise NotImplementedError("your code in place of this line")


reusable = course.blank("03 reusable", reusable)

# %% [markdown]
# The package's pool keeps to it. Eight tokens fill two blocks of four exactly; the same eight tokens come again:

# %%
from specdec_ref.cache import BlockPool

pool = BlockPool(num_blocks=8, block_size=4)
table, prompt = [], list(range(100, 108))
pool.extend(table, 0, len(prompt))
pool.register(table, prompt)
pool.free(table)

again = pool.reuse_prefix(prompt)
assert len(again) == reusable(len(prompt), 4) == 1
print(f"found: {len(again)} block, so {4 * len(again)} tokens are known and {len(prompt) - 4 * len(again)} to compute")
pool.free(again)
pool.free(pool.allocate(8))  # others need all of the memory
print(f"after others have used all of the memory: {len(pool.reuse_prefix(prompt))} blocks found")

# %% [markdown]
# For the logits one token would be enough. But its key and value have to be written somewhere, and a block that others may
# find must not be written to. So that token's whole block is computed again.

# %% [markdown]
# ## 6. Watch it
#
# Eight blocks of four slots, and letters for tokens. Colours say who holds a block, and two colours mean that two do. `#`
# marks a block that can be found by its hash. Grey letters are left over from a sequence that is gone.
#
# The story opens at step 9, where C begins like A and B did: it finds what they left behind, though both are gone. Which
# blocks left the *middle* of the free queue? Then go back to step 1 and walk through all of it. Before each step say what
# will happen: which block is taken, what happens to the counts, where in the queue a freed block goes. Two more moments:
#
# - step 10: D needs blocks. Whose memory is forgotten, and why those?
# - step 12: E begins like B did, and yet only two of B's blocks are found.

# %%
steps = course.pool_tour()
course.pool_stepper(steps, step=9)

# %% [markdown]
# **Your own story.** Change the operations, and predict y's table before you run the cell. (A full pool raises
# `OutOfBlocks`, and then nothing has happened.)

# %%
mine = course.PoolRecorder(num_blocks=8, block_size=4)
mine.start("x", "to be or not")
mine.fork("x", "y")
mine.append("y", " to be")
mine.free("x")
my_prediction_of_ys_table = None  # such as [0, 1, 2, 3]
print("y's table:", mine.tables["y"], "- you said", my_prediction_of_ys_table)
course.pool_stepper(mine.snapshots, step=len(mine.snapshots))

# %% [markdown]
# ## 7. Under the real model
#
# Now the slots hold keys and values. `PagedKVPool` keeps them for all layers in one tensor, `[layers, heads, blocks,
# block_size, head_dim]`. New tokens are written to `slot(i)`. Attention first *gathers* a sequence's blocks through its
# table, and from there on it is plain attention.
#
# To make it hard, we hand the blocks out in reverse order and feed the prompt in uneven pieces. Blocks are small here, 8
# tokens, so that we see some of them come and go.

# %%
from specdec_ref import encode_prompt
from specdec_ref.cache import PagedKVPool

ids = encode_prompt(course.prompt("summary-2").messages, target)
kv = PagedKVPool(target, num_blocks=128, block_size=8)
kv.block_pool.free(kv.block_pool.allocate(128))  # freed last one first: the queue now begins with block 127

dense, paged = target.new_cache(len(ids)), kv.new_sequence()
target.forward(torch.tensor(ids), dense, slice(0))
for piece in torch.tensor(ids).split(13):
    target.forward(piece, paged, slice(0))

keys, values = paged.gather()
apart = max((keys - dense.keys).abs().max().item(), (values - dense.values).abs().max().item())
print(f"{len(ids)} tokens in blocks {paged.table}")
print(f"largest difference from one contiguous pass: {apart:.1e}, beside numbers up to {values.abs().max():.0f}")
assert apart < 1e-3 * values.abs().max()
paged.truncate(0)  # gives all blocks back

# %% [markdown]
# (float32 keeps about seven digits, and pieces of 13 tokens are summed in another order than one pass: hence not quite 0.)
#
# The engine takes the pool as an argument; nothing else changes. With `gamma=6`, each round writes up to six guessed
# tokens into the cache and removes the wrong ones. The guesses are what followed the last words where they stood before in
# the text. `trust=None` makes it guess boldly, all six even after a single matching word: we want to see wrong guesses. The
# cell writes the text twice, on a dense cache and on the pool, which takes some seconds.

# %%
from specdec_ref import NGramDrafter, SpeculativeEngine

on_dense = SpeculativeEngine(target, NGramDrafter(trust=None), gamma=6)
on_pages = SpeculativeEngine(target, NGramDrafter(trust=None), gamma=6, pool=kv)
rounds = []


def watch(run, round_):
    guessed, length = len(round_.proposal.tokens), run.cache.length
    before = length - len(round_.kept)  # tokens in the cache when the round began
    rounds.append((guessed, round_.verdict.accepted, before + 1 + guessed, length, len(run.cache.table)))


a = on_dense.generate(ids, max_new_tokens=48)
b = on_pages.generate(ids, max_new_tokens=48, on_round=watch)
print(b.text)
assert a.tokens == b.tokens, "dense and paged write the same tokens"

# %% [markdown]
# The dense cache gave the same tokens, or the last line would have failed. And here is what happened to the blocks. Each
# round writes one token that was pending (lesson 05 says why) and the guesses, and keeps what was right. In rounds with "0
# of 0" nothing was guessed, since the last word had not occurred before.

# %%
given_back = 0
for guessed, accepted, written, length, blocks in rounds:
    peak = kv.block_pool.blocks_for(written)
    given_back += peak - blocks
    note = f"   <- {peak - blocks} given back" if peak > blocks else ""
    print(f"{accepted} of {guessed} right: {written} tokens in {peak} blocks, then {length} in {blocks}{note}")
assert given_back > 0, "no wrong guess opened a block: take another prompt"
assert kv.block_pool.num_used == 0, "after the last token all blocks are free"

# %% [markdown]
# That is what `truncate` is for, and why a speculative engine needs room for a few more blocks than it keeps.

# %% [markdown]
# ## 8. Sharing under the real model
#
# **One prompt, four answers.** Fork the prompt for four samples, and let each go on for 16 tokens. How many blocks of 16
# do the four hold together? (Section 7 printed the prompt's length.)

# %%
my_guess_blocks = None

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
for seed, sample in course.progress(list(enumerate(samples)), "answers"):
    print("-", repr(tokenizer.decode(go_on(sample, 16, seed)))[:90])

pages, used = kv.block_pool, kv.block_pool.num_used
print(f"\na prompt of {len(ids)} tokens, four answers of 16:", course.guess_text(my_guess_blocks, used, "blocks"))
print("with a copy of the prompt for each:", sum(len(sample.table) for sample in samples), "blocks")
print("holders of the first sample's blocks:", [pages.blocks[block].refs for block in samples[0].table])
assert used < sum(len(sample.table) for sample in samples)
for sample in samples:
    sample.truncate(0)

# %% [markdown]
# The full blocks of the prompt have four holders and are stored once. And its last, partly filled block? The first three
# samples that wrote to it copied it; the fourth found itself alone with it and wrote in place. The engine does all this
# for you: `generate_many(prompt, 4, ...)`.
#
# **One system prompt, many users.** Here nobody forks. Requests come one by one, and share because their *beginnings* are
# equal. Each question's prompt is computed on a pool that has seen the questions before it, and on an empty one, in turn.

# %%
import time

system = (
    "You are the assistant of a small harbour museum. Answer in one or two friendly sentences. The museum is open from "
    "ten to five, except on Mondays. Children under twelve enter for free; everybody else pays six euros. The lighthouse "
    "may be climbed in groups of at most eight people, with a guide. Dogs have to wait outside, where there is water in "
    "the shade. If you are asked for something that you do not know, say so, and give the telephone number of the desk."
)
questions = ["May I bring my dog?", "What does it cost for two adults?", "Can I climb the lighthouse?"]


def prefill(pool, tokens):
    """Compute what the pool does not know of a prompt; returns the cache, the tokens known, and the seconds."""
    cache = pool.new_sequence(tokens)  # begins with the known blocks
    known, start = cache.length, time.perf_counter()
    target.forward(torch.tensor(tokens[known:]), cache, slice(-1, None))
    return cache, known, time.perf_counter() - start


# %%
kv = PagedKVPool(target, num_blocks=64, block_size=16)
for question in questions:
    chat = encode_prompt([{"role": "system", "content": system}, {"role": "user", "content": question}], target)
    ratios = []
    for _ in course.progress(range(3), "turns"):
        cache, known, seconds = prefill(kv, chat)
        ratios.append(seconds / prefill(PagedKVPool(target, num_blocks=16), chat)[2])
        cache.truncate(0)
    to_compute = len(chat) - known
    print(f"{len(chat)} tokens, {known} known: {to_compute / len(chat):.2f} of them to compute,", end=" ")
    print(f"{min(ratios):.2f} to {max(ratios):.2f} of the time")
    cache, *_ = prefill(kv, chat)
    cache.register(chat)  # from now on its blocks can be found
    cache.truncate(0)
assert known > 0, "the last question found the system prompt"

# %% [markdown]
# The first question finds nothing, so its ratio should be 1: its range shows how precise this clock is. The others compute
# only a small part of their tokens. Where the time falls less than the number of tokens, remember lesson 01: even a pass over a single
# token reads all weights. What is saved is time to the *first* token; later steps cost what they did. It works within a
# chat, too, since the next turn begins with everything said so far.
#
# **Try it:** put the question first. Write `question + " " + system` in place of `system` in the loop, and run the cell
# again. What is known now? What does that say about system prompts that begin with the user's name, or the time?

# %% [markdown]
# ## 9. The waste, measured
#
# Back to the server of the beginning. Without reservations there is a new danger: all running requests grow, and at some
# step no block is free. Then one of them has to give up its blocks, wait, and be computed again later: *preemption*. A
# server makes that rarer by holding some blocks in reserve when it admits requests; the share kept back is called a
# *watermark*. So here are five ways to hand out the same 15,700 slots: reserve the longest; be told the answer's length,
# rounded up to a power of two; be told it exactly (by an oracle that nobody has); and paging in blocks of 16, with 1% or with
# 20% of the blocks kept back.
#
# (The three that reserve use a *buddy allocator*, as earlier servers did: it halves memory again and again, and hands out
# pieces whose size is a power of two. What this rounding takes is counted with the holes between the pieces.)

# %%
systems = {
    "reserve 2,048": reserving,
    "next power of 2": course.serve_contiguous(prompts, outputs, "pow2"),
    "oracle": course.serve_contiguous(prompts, outputs, "oracle"),
    "paged, 1% kept back": course.serve_paged(prompts, outputs, block_size=16, watermark=0.01),
    "paged, 20% kept back": course.serve_paged(prompts, outputs, block_size=16, watermark=0.2),
}
course.show(course.waste_figure(systems), alt=course.waste_words(systems))

# %%
greedy, careful = systems["paged, 1% kept back"], systems["paged, 20% kept back"]
gain = careful.batch / reserving.batch
print("requests at once, compared with reserving 2,048:", course.guess_text(my_guess_gain, gain, "times as many"))
print(f"   with {careful.preemptions} preemptions for {len(prompts)} requests")
print(f"with 1% kept back: {greedy.batch / reserving.batch:.2f} times as many, and", end=" ")
print(f"{greedy.preemptions} preemptions, {greedy.preemptions / len(prompts):.1f} per request")
assert careful.preemptions < 0.01 * len(prompts) < greedy.preemptions

# %% [markdown]
# The more a server keeps back, the smaller its batch and the rarer its preemptions. Where to stop is a choice (try
# `watermark=0.05`): each preemption is work done twice, and a text that stalls in the middle. A gain that is quoted without
# its preemptions says little, so we quote the one with hardly any. (Requests always wait here, which is the hardest case; a
# server that is not full all the time needs far less in reserve.) Nor is a larger batch the same as throughput: lesson 13,
# still to come, measures that.
#
# The kinds of waste have names in the paging paper: *reserved* (for later), *internal* fragmentation (inside a reservation,
# never used), *external* fragmentation (free, but in pieces that are too small). Paging has none of the third; the other two
# are at most one block per sequence. Kwon et al. replayed requests with the lengths of real chats: 20% to 38% of the memory
# of earlier systems held tokens, and 96% of theirs. Our lengths are drawn at random: the same picture, not the same digits.
# And here it is over time:

# %%
maps = {
    "reserve 2,048 each": maps["reserve 2,048 each"],
    "paged, 20% kept back": course.memory_map("paged", prompts, outputs),
}
course.show(course.memory_figure(maps), alt=course.memory_words(maps))

# %% [markdown]
# **The block size.** Smaller blocks waste less. So why not blocks of one token? Measure what a token of context costs, on
# this machine: attention through a scattered table (one layer of our model), and hashing the blocks for the prefix cache.

# %%
costs = course.block_costs((1, 4, 16, 64, 256), prompts + outputs)
course.show(course.block_cost_figure(costs), alt=course.block_cost_words(costs))

# %% [markdown]
# A block costs something, whatever its size: an entry to look up, a separate piece to read, a hash to compute. The left
# panel shows which of these you would notice on this machine; here all blocks are copied together before attention begins,
# and on a GPU whose kernel reads each block where it lies, very small ones read badly, too. Large blocks cost memory.
# Compare 16, the usual choice, with 4: how much more time do the smaller blocks take, and how much memory is left for them
# to save? Large blocks also share less: only whole blocks of a common prefix can be reused.
#
# **On paper.** A prompt of 100 tokens, four samples of 50 tokens each, blocks of 16. How many blocks do they take at full
# length, shared?

# %%
my_blocks = None
print(course.check("blocks of four samples", my_blocks))

# %% [markdown]
# ## 10. What paging does not solve
#
# **The bytes.** A token's keys and values are as large as before (lesson 02; lesson 10, still to come, makes them
# smaller). Paging stops waste, and when there is none left, memory is full again.
#
# **Memory can still run out.** Nothing was reserved, so running requests may all need a block when none is free. That is
# the price of the larger batch, as you saw above.
#
# **The last block.** On average half a block per sequence stays empty: little for long chats, much for very short ones.
#
# **Reading through a table.** Our CPU path first gathers the blocks into one piece, a copy that the plain cache need not
# make. What does it cost? A decode step after 500 tokens, dense and paged in turn:


# %%
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
pairs = course.progress(range(13), "pairs of steps")
ratios = sorted(step_seconds(caches[1]) / step_seconds(caches[0]) for _ in pairs)
print(
    f"paged takes {ratios[6]:.2f} times as long (middle half of the pairs: {ratios[3]:.2f} to {ratios[9]:.2f})", end=""
)
print(": too small a difference for this clock" if ratios[3] < 1 < ratios[9] else "")

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ### Deeper: a kernel that reads through the table
#
# You need no GPU for this part, but it helps to have met one. Here is a recorded run: one layer's attention for one
# sequence, with the heads of Llama-3-8B. The dash-dotted line is the floor of lesson 01: the cache's bytes, divided by the
# memory's 4.8 TB/s. Before you run the cell, guess how close to that line a kernel comes.

# %%
import json
from pathlib import Path

record = json.loads(Path("recorded/paged_attention_gpu.json").read_text(encoding="utf-8"))
print(f"recorded on one {record['device']}, {record['date']}; medians of {record['repeats']}, bars: fastest to slowest")
course.show(course.kernel_figure(record), alt=course.kernel_words(record))

# %%
long = 65_536
for tokens in (1, 5):
    for way in ("dense", "kernel"):
        times = course.kernel_times(record, way, tokens)
        print(f"{long:,} tokens of context, {tokens} new, {way:6}: {times.median[-1]:5,.0f} µs,", end=" ")
        print(f"{times.share(long):3.0%} of the memory's speed if the cache is read once")

# %% [markdown]
# Read the picture from the left. Up to about 4,000 tokens the floor is below four microseconds, and every call takes about
# a hundred or more. What you see there is the cost of starting a call, and differences below a third mean nothing: at 256
# and 1,024 tokens "kernel" and "unsplit" run the very same code. Only at the right end does reading the cache take the time.
#
# There the kernel is about four times as fast as dense attention, but not because of paging. Compare "kernel" with
# "unsplit", the same kernel with one setting changed. A kernel runs as many *programs* side by side, each a group of threads
# with a part of the work. Unsplit, there is one program per key head: only eight of them read a long context while the rest
# of the chip idles. Even copying first is faster, since the whole chip takes part in that. The kernel cuts a long context
# into parts and starts a program for each. Each computes the softmax of its part, and the parts are then weighted by their
# sums and added (*flash decoding*).
#
# Two warnings. "Dense" is PyTorch's own attention call, without any tuning. And with 27% of the memory's speed at best, our
# kernel is a simple one: it says what splitting is worth, not how fast paged attention can be. Tuned libraries
# (FlashAttention, FlashInfer) come much nearer to the floor, and production servers use those. Lesson 11 is still to come.
#
# **Five new tokens**, a verification of four drafts, should cost one reading of the cache, just as one token does. Here
# they cost more than twice as much. One reason is in the shape: four query heads per key head and five tokens make 20 rows,
# and a program of this kernel holds 16, so each part of the cache has to be read twice. That explains a factor of two at
# most; what makes up the rest, this record does not say. Details of that size decide whether speculation pays at long
# contexts.

# %% [markdown]
# ## 11. What the article says about paging

# %%
from IPython.display import HTML

print(f"in this lesson, reserving 2,048 each: {1 - reserving.token_states:.0%} of the memory holds no token")
HTML(course.claims_html(11, 12))

# %% [markdown]
# ## Check yourself
#
# **1. A sequence of 33 tokens, blocks of 16. A fork of it appends one token. Which blocks are copied?**
#
# <details><summary>All three</summary>Only the block that is written to has to be the fork's own. The first two are full,
# and nobody will ever write there again.</details>
# <details><summary>The third</summary>Yes: it holds one token, has two holders, and is about to be written.</details>
# <details><summary>None, the fork takes a new block</summary>That would be right for 32 tokens. Position 33 lies in the
# third block, which exists already and is shared.</details>
#
# **2. The pool holds the blocks of a prompt of 64 tokens, in blocks of 16, and the same prompt comes again. How many tokens
# are computed?**
#
# <details><summary>None</summary>Then where would the next token come from? Logits are not cached.</details>
# <details><summary>One</summary>One would be enough for the logits. But blocks are shared whole, and the last token must
# be written into a block that is not shared.</details>
# <details><summary>16</summary>Yes: three blocks are reused, and the fourth, which holds the last token, is computed
# again.</details>
#
# **3. Why is a free block's hash kept, and when must it go?**
#
# <details><summary>It must go when the block is freed, or others read what is not theirs</summary>Free blocks with a hash
# <i>are</i> the prefix cache: what they hold is still valid, and equal tokens after equal tokens have equal keys.</details>
# <details><summary>It is kept so that the next equal prompt finds it, and goes when the block is handed out</summary>
# Yes. Otherwise the old hash leads to the new text.</details>
#
# **4. Paging quadruples the batch. Does each user get the text faster?**
#
# <details><summary>Yes, four times</summary>Throughput is not latency: a step now does more work, not less. What grows is
# the number of users served at once.</details>
# <details><summary>No: more users at a time, but a step gets no shorter</summary>Yes. Only the first token comes earlier,
# where a prefix is known, or where a request no longer waits in a queue.</details>

# %% [markdown]
# ## In production
#
# The design is vLLM's, so most names have a counterpart there.
#
# | here | vLLM |
# |---|---|
# | `num_blocks` | follows from `gpu_memory_utilization`: what weights and activations leave of that share becomes blocks at start |
# | `block_size=16` | `block_size`; 16 unless the platform or the attention backend wants another |
# | `BlockPool`, `Block.refs` | `BlockPool`, `KVCacheBlock.ref_cnt` |
# | `free_queue` | `free_block_queue`, a linked list, so that a hit can leave its middle |
# | `cached`, `hash_block` | `cached_block_hash_to_block`; the hash covers the parent's hash, the tokens and extra keys |
# | the extra key | LoRA, images, and `cache_salt`, which keeps tenants apart: otherwise response times tell who asked what |
# | `reuse_prefix`, `extend` | `KVCacheManager.get_computed_blocks`, `.allocate_slots` |
# | the prefix cache itself | `enable_prefix_caching`, on by default |
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
# - Reserving for the longest leaves most of the memory without a token. Blocks bound the waste by one block per sequence.
# - Position i lies in block `table[i // block_size]`, at offset `i % block_size`. Only the table knows.
# - Full blocks are shared freely, by counting. A partly filled shared block is copied before it is written.
# - A block's hash covers its whole prefix and is dropped when the block is handed out for other tokens. At least one prompt
#   token is always recomputed.
# - The text does not change, and neither do the bytes per token. When memory is full, requests are preempted.
#
# **Problem set.** [ps03-block-pool](../exercises/ps03-block-pool/ps03-block-pool.ipynb), with a check below each part.
#
# **Exercises.** (a) Hand out the *most* recently freed block first. Which steps of the story in section 6 come out
# differently, and what happens to prefix hits? (b) `sigma` in `draw_lengths` sets how much lengths differ. With equal
# lengths (`sigma=0.01`), how much of paging's gain is left, and over which of the other three? (c) How long must a common
# system prompt be to double the batch? Fill a `BlockPool` with requests that begin alike, through `reuse_prefix`,
# `extend` and `register`, and count how many fit.
#
# **Sources.** Kwon et al. 2023, *Efficient memory management for large language model serving with PagedAttention* (arXiv
# 2309.06180): the definitions of waste, figures 2, 11 and 13, and sections 4.2 to 4.5. Zheng et al. 2024, *SGLang*
# (arXiv 2312.07104). vLLM's design document *Automatic Prefix Caching*. Reports of such bugs: a reused block found under
# its old hash, vLLM pull request 4764 and nano-vllm issue 163; a wholly known prompt, nano-vllm issue 144.
