# %% [markdown]
# # Problem set 03 · A block pool
#
# *90 minutes, 20 points. Follows lesson 03. No GPU, no network, no model is loaded: blocks are numbers here.*
#
# By the end you will have written a page table that never loses a block, never lets one sequence write into another's,
# finds known prefixes again, and forgets in the right order; and you will have found a bug that no crash would have
# shown you.
#
# | part | | minutes | points |
# |---|---|---|---|
# | 1 | Allocate and release ★ | 12 | 1 + 2 |
# | 2 | Append, and roll back ★★ | 15 | 2 + 1 |
# | 3 | Fork, and copy on write ★★★ | 20 | 1 + 3 |
# | 4 | Found by its prefix ★★★ | 20 | 1 + 1 + 2 |
# | 5 | Who is forgotten first ★★ | 8 | 2 |
# | 6 | Find the bug ★★ | 10 | 1 + 1 |
# | 7 | In words ★★ | 5 | 2 |
#
# Replace each line `raise NotImplementedError(...)` with your code. The cell below it calls your code on random pools,
# different ones each time, from small to large. If something is wrong, it shows the first pool and call that go wrong, as
# code that you can paste into a cell, and the likely mistake. (What your functions print meanwhile is not shown.) Run it
# as often as you like.
#
# **A part does not need the ones before it.** Your functions may call each other. If one of them is wrong or missing,
# the check of another puts a right one in its place.

# %% [markdown]
# ## The pool
#
# All functions work on this state, in plain Python: lists, a deque, a dictionary. The class is given. Do not change it:
# the checks bring pools of their own that look just like it.

# %% locked="pool"
from collections import deque

from specdec_course.checks import ps03_block_pool as checks


class Pool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size  # tokens that fit into a block
        self.refs = [0] * num_blocks  # refs[b]: how many tables hold block b
        self.free = deque(range(num_blocks))  # the blocks that no table holds; the longest free stands first
        self.hashes = [None] * num_blocks  # hashes[b]: the hash of what block b holds, or None (from part 4 on)
        self.cached = {}  # from a hash to the block that holds it (from part 4 on)


def show(pool, **tables):
    """Print a pool, and tables with their names: show(pool, ann=ann, bob=bob)."""
    print(f"counts {pool.refs}, free {list(pool.free)}, found by hash {sorted(pool.cached.values())}", end="")
    print("".join(f"; {name} {table}" for name, table in tables.items()))


# %% [markdown]
# A **table** is a list of block numbers: where the tokens of one sequence lie, in order. Blocks need not lie side by
# side. Here is a table `[5, 2]` of a sequence of 6 tokens, in blocks of 4:
#
# | position of the token | 0 | 1 | 2 | 3 | 4 | 5 | | |
# |---|---|---|---|---|---|---|---|---|
# | block | 5 | 5 | 5 | 5 | 2 | 2 | 2 | 2 |
# | slot | 20 | 21 | 22 | 23 | 8 | 9 | (10) | (11) |
#
# Block 5 begins at slot 5 · 4 = 20. Slots 10 and 11 are the sequence's, and not used yet.
#
# One rule holds throughout: **all or nothing**. An operation that cannot be done raises an error and leaves the pool and
# all tables exactly as they were. The request waits and tries again later. If operations left something half done, blocks
# would be lost one at a time, and after a day the server would stand still.

# %% [markdown]
# ## 1. Allocate and release
#
# ★ · *12 minutes · 1 + 2 points*
#
# `allocate` takes `n` blocks out of `pool.free`. From then on each has one holder. (*Which* free blocks it takes does not
# matter yet. Part 5 comes back to that.)


# %% solve="allocate"
def allocate(pool, n):
    """Take n free blocks. Each counts one holder now, and is not in pool.free any more.

    Returns the list of their numbers; an empty list for n = 0.
    Raises MemoryError, and changes nothing, if fewer than n blocks are free.
    """
    ### BEGIN SOLUTION
    if n > len(pool.free):
        raise MemoryError(f"asked for {n} blocks, {len(pool.free)} are free")
    taken = [pool.free.popleft() for _ in range(n)]  # the longest free first (part 5)
    for block in taken:
        pool.refs[block] = 1
        # Part 5: what the block held is gone. Its entry goes too, unless that leads to another block by now.
        if pool.hashes[block] is not None and pool.cached.get(pool.hashes[block]) == block:
            del pool.cached[pool.hashes[block]]
        pool.hashes[block] = None
    return taken
    ### END SOLUTION


# %% test="allocate" points=1
checks.allocate(allocate, points=1)

# %% [markdown]
# `release` is how a table lets go. Other tables may hold the same blocks (part 3), so a block is free only when
# *nobody* holds it any more.
#
# A table that is released twice by mistake does harm: by the second time, its blocks may belong to another sequence. So
# `release` refuses what cannot be right.


# %% solve="release"
def release(pool, table):
    """Each block of the table has one holder less. A block that nobody holds any more goes back into pool.free.

    The list `table` itself is not needed any more: leave it as it is, or change it (reverse it in place, empty it).
    Raises ValueError, and changes nothing, if a block of the table is free already, is named twice, or has a number
    that the pool does not have.
    """
    ### BEGIN SOLUTION
    for block in table:
        if not 0 <= block < len(pool.refs) or pool.refs[block] == 0:
            raise ValueError(f"block {block} of {table} is free already, or none of this pool")
    if len(set(table)) < len(table):
        raise ValueError(f"a block is named twice in {table}")
    for block in reversed(table):  # the last first (part 5)
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)
    ### END SOLUTION


# %% test="release" points=2
checks.release(release, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Two loops: the first only looks, the second only changes. With one loop, the first
# blocks have changed already when the last one turns out to be wrong.
# <details><summary>Hint 2</summary><code>pool.refs[-1]</code> is the last entry, not an error. And for a block that
# is named twice, compare the length of the list with that of its set.</details></details>

# %% [markdown]
# ## 2. Append, and roll back
#
# ★★ · *15 minutes · 2 + 1 points*
#
# A sequence has `length` tokens and grows by `n`. How many blocks does it need then, and how many does it have? The last
# block may have room. (In this part no blocks are shared.)
#
# `append` changes the list that it is given: `table.append(...)`, `table += ...` and `table.extend(...)` do that. But
# `table = table + ...` makes a new list, which the caller never sees.


# %% solve="append"
def append(pool, table, length, n):
    """Make room for n tokens after the `length` tokens that the table holds; changes the table.

    Returns the list of the n slots in which the new tokens lie, in order.
    Raises MemoryError, and changes nothing, if there are not enough free blocks.
    """
    ### BEGIN SOLUTION
    size = pool.block_size
    needed = -(-(length + n) // size)  # rounded up
    table += allocate(pool, needed - len(table))
    return [table[i // size] * size + i % size for i in range(length, length + n)]
    ### END SOLUTION


# %% test="append" points=2
checks.append(append, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>L tokens take L / block_size blocks, rounded up. In whole numbers: <code>-(-L //
# size)</code>, or <code>(L + size - 1) // size</code>. Subtract those that the table has already.
# <details><summary>Hint 2</summary>Ask <code>allocate</code> once, for all new blocks. It is all or nothing, so
# <code>append</code> is too.
# <details><summary>Hint 3</summary>Position i lies in block <code>table[i // size]</code>, at offset <code>i %
# size</code>. Where does block b begin?</details></details></details>
#
# **Rolling back.** In speculative decoding a round appends drafts, and then some of them turn out to be wrong. The blocks
# that held only those go back at once.


# %% solve="truncate"
def truncate(pool, table, length):
    """Keep the blocks of the first `length` tokens, and let go of the others; changes the table.

    Other tables may hold some of the blocks. `length` is never more than what the table holds.
    """
    ### BEGIN SOLUTION
    keep = -(-length // pool.block_size)
    release(pool, table[keep:])
    del table[keep:]
    ### END SOLUTION


# %% test="truncate" points=1
checks.truncate(truncate, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary>A block that holds one of the kept tokens stays, even if the rest of it is empty.
# <details><summary>Hint 2</summary><code>table[keep:]</code> are the blocks to let go of, and <code>del
# table[keep:]</code> shortens the list in place. Beware of <code>table[-k:]</code>: with k = 0 that is
# everything.</details></details>

# %% [markdown]
# ## 3. Fork, and copy on write
#
# ★★★ · *20 minutes · 1 + 3 points*
#
# Four answers to one prompt share the prompt's blocks. `fork` makes the second table.


# %% solve="fork"
def fork(pool, table):
    """A second table over the same blocks: a list of its own. Each block has one holder more."""
    ### BEGIN SOLUTION
    for block in table:
        pool.refs[block] += 1
    return list(table)
    ### END SOLUTION


# %% test="fork" points=1
checks.fork(fork, points=1)

# %% [markdown]
# From now on a table may share blocks. `append_cow` makes room as `append` does, and makes sure that nobody writes into a
# block that others read. It moves no keys and values itself. It *returns* which blocks have to be copied, as pairs
# (source, target), and the caller copies them before it writes.
#
# Tables `a` and `b` hold `[0, 1]`, 6 tokens in blocks of 4. First `a` grows by 4, then `b` grows by 1:
#
# | | a | b | counts of blocks 0, 1, 2, 3 | returned |
# |---|---|---|---|---|
# | before | `[0, 1]` | `[0, 1]` | 2, 2, 0, 0 | |
# | `append_cow(pool, a, 6, 4)` | `[0, 2, 3]` | `[0, 1]` | 2, 1, 1, 1 | `[(1, 2)]` |
# | `append_cow(pool, b, 6, 1)` | `[0, 2, 3]` | `[0, 1]` | 2, 1, 1, 1 | `[]` |
#
# Block 0 is shared and full: nobody writes there any more. Block 1 was shared and partly filled: `a` gets block 2 in its
# place, and block 3 for the rest. After that `b` holds block 1 alone, and writes in place.


# %% solve="append_cow"
def append_cow(pool, table, length, n):
    """Make room for n tokens after the `length` tokens of a table whose blocks others may hold; changes the table.

    Before a half-full block that others hold is written, a new block takes its place in the table. No other block is
    replaced, and none if n = 0.
    Returns the list of pairs (source, target) of blocks to copy before writing; it has no pair or one.
    Raises MemoryError, and changes nothing, if there are not enough free blocks for all of it.
    """
    ### BEGIN SOLUTION
    size = pool.block_size
    writes_into_last = n > 0 and length % size > 0
    shared = writes_into_last and pool.refs[table[-1]] > 1
    # One call for the copy and for the growth: all or nothing.
    new = allocate(pool, -(-(length + n) // size) - len(table) + (1 if shared else 0))
    copies = []
    if shared:
        source = table.pop()
        pool.refs[source] -= 1  # never down to 0: others hold it
        copies = [(source, new[0])]
    table += new
    return copies
    ### END SOLUTION


# %% test="append_cow" points=3
checks.append_cow(append_cow, points=3)

# %% [markdown]
# <details><summary>Hint 1</summary>When is the last block written to at all? When n > 0, and it has room:
# <code>length</code> is not a multiple of the block size. When is that a danger? When its count is above 1.
# <details><summary>Hint 2</summary>Count first: blocks for the growth as in <code>append</code>, and one more if the
# last block is to be replaced. Ask <code>allocate</code> once for the sum. Only then change the table and the count
# of the old block.
# <details><summary>Hint 3</summary>The order in the table: the copy stands where the shared block stood, the blocks
# for the growth come after it.</details></details></details>

# %% [markdown]
# ## 4. Found by its prefix
#
# ★★★ · *20 minutes · 1 + 1 + 2 points*
#
# Prompts often begin in the same way. The keys and values of a full block depend on its tokens *and on all tokens
# before it*. So its hash is made from its parent's hash (that of the block before it) and its tokens. The first block's
# parent is `None`.


# %% solve="block_hash"
def block_hash(parent, tokens):
    """Hash of a full block: of the hash of the block before it (None for the first), and the list of its tokens.

    Returns a number, a string, bytes, or a tuple of these and of None; but not None.
    Different blocks must not share it, except by an accident that is too rare to matter.
    """
    ### BEGIN SOLUTION
    return hash((parent, tuple(tokens)))
    ### END SOLUTION


# %% test="block_hash" points=1
checks.block_hash(block_hash, points=1)

# %% [markdown]
# `register` is called once the keys and values of `tokens` are written, for a table from its start. Every *full*
# block gets its hash, in `pool.hashes`, and can be found from now on, through `pool.cached`. The rest after the last
# full block may still be written to, so it gets none.
#
# If another block holds the same already, you may leave its entry in `pool.cached`, or let it lead to the new block.


# %% solve="register"
def register(pool, table, tokens):
    """Give each full block of a sequence its block_hash: in pool.hashes, and in pool.cached (from it to the block).

    tokens: all tokens of the sequence, from the start. Some of the blocks may have their hash already.
    """
    ### BEGIN SOLUTION
    size, parent = pool.block_size, None
    for i in range(len(tokens) // size):
        parent = block_hash(parent, tokens[i * size : (i + 1) * size])
        pool.hashes[table[i]] = parent
        pool.cached[parent] = table[i]
    ### END SOLUTION


# %% test="register" points=1
checks.register(register, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary>Go through the full blocks in order, and hand the hash of each on to the next as its
# parent, also where a block has its hash already.
# <details><summary>Hint 2</summary>There are <code>len(tokens) // size</code> full blocks, and block i holds
# <code>tokens[i * size : (i + 1) * size]</code>. Both <code>pool.hashes</code> and <code>pool.cached</code> have to
# know.</details></details>
#
# `reuse_prefix` begins the table of a new prompt with what is known. A block that it finds may be held by others, or
# be free: then it stands *somewhere* in `pool.free`, and must leave it.
#
# **At least one token is left to compute.** Even if all of the prompt is known, its last token has to be fed to the model:
# the cache holds keys and values, but the next token comes from logits.


# %% solve="reuse_prefix"
def reuse_prefix(pool, tokens):
    """Table over the longest known prefix of a prompt, in whole blocks; at least one token of the prompt is left over.

    The new table is one more holder of each of its blocks, and none of them is in pool.free any more.
    Returns the list of blocks, empty if nothing is known. No new block is taken.
    """
    ### BEGIN SOLUTION
    size, parent, table = pool.block_size, None, []
    for i in range((len(tokens) - 1) // size):  # full blocks that leave a token over
        parent = block_hash(parent, tokens[i * size : (i + 1) * size])
        if parent not in pool.cached:
            break
        table.append(pool.cached[parent])
    for block in table:
        if pool.refs[block] == 0:
            pool.free.remove(block)
        pool.refs[block] += 1
    return table
    ### END SOLUTION


# %% test="reuse_prefix" points=2
checks.reuse_prefix(reuse_prefix, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>Go through the full blocks of the prompt as <code>register</code> does, with the
# parent's hash handed on, and stop at the first that is not in <code>pool.cached</code>.
# <details><summary>Hint 2</summary>A prompt of 8 tokens, blocks of 4: at most one block may be found. Of 9 tokens:
# two. So how many, of L tokens?
# <details><summary>Hint 3</summary>A deque has <code>remove</code>. Call it only for blocks that are in there: those
# with count 0.</details></details></details>

# %% [markdown]
# ## 5. Who is forgotten first
#
# ★★ · *8 minutes · 2 points*
#
# **Go back to `allocate` and `release` in part 1**, change them where needed, run their cells again, then come back and
# run the check below. There is nothing new to write here.
#
# A free block that has a hash can still be found. So taking a free block also destroys a piece of the prefix cache. This
# gives four rules:
#
# 1. `allocate` takes the blocks that have been free *longest*: from the front of `pool.free`. The order in which it
#    returns them does not matter. The others keep their order.
# 2. `release` puts blocks at the back of `pool.free`, and **the last block of the table first**. So a sequence is
#    forgotten from its end, and its beginning can be found the longest. (Without its first block, none of the others
#    can be found.)
# 3. A block that is handed out **loses its hash**: it will hold other tokens. `pool.hashes[block]` is `None` again,
#    and nothing in `pool.cached` leads to it.
# 4. All other entries stay. Two blocks can have the same hash, and `pool.cached` leads to one of them. When the other
#    one is handed out, the entry must stay.
#
# Example: `pool.free` is 3, 1, 0. Then `allocate(pool, 1)` gives `[3]`, and after `release(pool, [3, 2])` the queue
# is 1, 0, 2, 3.

# %% test="evict" points=2
checks.evict(allocate, release, points=2)

# %% [markdown]
# <details><summary>Hint 1</summary>A deque has two ends: <code>popleft</code> takes the first, <code>append</code>
# adds at the end. And <code>reversed(table)</code> runs from the last block to the first.
# <details><summary>Hint 2</summary>For rules 3 and 4: look up the block's hash. Delete the entry in
# <code>pool.cached</code> only if it leads to this block. Then set <code>pool.hashes[block]</code> to
# <code>None</code>.</details></details>

# %% [markdown]
# ## What you built
#
# Three users, one system prompt, a pool of 12 blocks, with all of your functions together. Before you run it: how
# many blocks will the second user find? And the third, who comes when the others are gone?


# %%
def served():
    pool = Pool(num_blocks=12, block_size=4)
    system = list(range(100, 110))  # ten tokens: two full blocks, and a half
    tables = {}
    for user, question in [("ann", [1, 2, 3]), ("bob", [4, 5, 6, 7]), ("cid", [1, 2, 3])]:
        if user == "cid":
            for table in tables.values():
                release(pool, table)
            print("ann and bob go")
        prompt = system + question
        table = tables[user] = reuse_prefix(pool, prompt)
        known = len(table) * pool.block_size
        append(pool, table, known, len(prompt) - known)
        register(pool, table, prompt)
        print(f"{user}: {known} of {len(prompt)} tokens known")
        show(pool, **{user: table})
    second = fork(pool, table)
    print("cid wants a second answer; blocks to copy:", append_cow(pool, second, len(prompt), 2))
    show(pool, cid=table, second=second)


try:
    served()
except Exception as error:
    print(f"not yet: this needs your functions of parts 1 to 4 ({type(error).__name__}: {error})")

# %% [markdown]
# ## 6. Find the bug
#
# ★★ · *10 minutes · 1 + 1 points*
#
# This code is given. It serves prompts: known blocks first, then new ones, in one function. A colleague left out rule 3 of
# part 5, and gives the reason in a comment: if an old entry is found, the *tokens* in the block turn out to be different.
# The tests pass, and it went into production.


# %% locked="server"
class ServerPool(Pool):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.tokens = [()] * num_blocks  # tokens[b]: the tokens whose keys and values block b holds


def start(pool, prompt):
    """Blocks for a prompt. Returns (table, number of tokens whose keys and values are known)."""
    size, table, known, parent = pool.block_size, [], 0, None
    for i in range(0, len(prompt), size):
        tokens = tuple(prompt[i : i + size])
        parent = hash((parent, tokens))
        block = pool.cached.get(parent)
        # Old entries of pool.cached do no harm: we compare the tokens.
        same = block is not None and pool.tokens[block] == tokens
        if same and known == i and i + size < len(prompt):
            known += size
            if pool.refs[block] == 0:
                pool.free.remove(block)
        else:
            block = pool.free.popleft()
            pool.tokens[block] = tokens
            if len(tokens) == size:
                pool.cached[parent] = block
        pool.refs[block] += 1
        table.append(block)
    return table, known


def end(pool, table):
    """The sequence is over."""
    for block in reversed(table):
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)


# %% [markdown]
# **(a) Show it.** Give a story in which it goes wrong: a list of prompts, each a list of tokens. They are served one
# after the other, `start` and then `end`, by a `ServerPool(4, 2)`, which is new: 4 blocks of 2 tokens, so a prompt
# has at most 8 tokens. In one of them, `start` must count a block as known whose keys and values were computed
# *after other tokens*.
#
# Try your story out first. It helps to draw the four blocks on paper.

# %%
pool = ServerPool(num_blocks=4, block_size=2)
for prompt in [[1, 2, 3], [1, 2, 4]]:  # a story in which all goes well
    table, known = start(pool, prompt)
    print(f"{prompt}: table {table}, {known} tokens known; the blocks hold {pool.tokens}")
    end(pool, table)
    print("   free now:", list(pool.free))


# %% solve="story"
def story():
    """Prompts, served one after the other, of which one gets a block that was computed after other tokens.

    Returns a list of prompts, each a list of at most 8 tokens (whole numbers).
    """
    ### BEGIN SOLUTION
    # [1, 2] lies in block 0, and leaves its hash as the beginning of a prompt. The second prompt takes blocks 1, 2, 3
    # and then 0, where again 1, 2 come to lie, but after six other tokens. The third prompt finds the old entry, and
    # the tokens are the same.
    return [[1, 2], [3, 4, 5, 6, 7, 8, 1, 2], [1, 2, 9]]
    ### END SOLUTION


# %% test="story" points=1
checks.story(story, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary>The comparison catches a block with <i>other</i> tokens. When does a block hold
# the <i>same</i> tokens again, and is still not the same?
# <details><summary>Hint 2</summary>The keys of a block depend on what stands before it. So the same two tokens must
# come to lie in the same block, once at the beginning of a prompt, and once later in one.
# <details><summary>Hint 3</summary>Begin with the prompt <code>[1, 2]</code>. It lies in block 0. In which order are
# the blocks free then? In the second prompt, let the piece <code>1, 2</code> be the one that gets block
# 0.</details></details></details>
#
# **(b) Repair it.** Write `start` once more, without the bug. Copy it from above and change as little as you can.
# Nothing that can still be found may be lost. You have `pool.hashes`, which the given code does not use.


# %% solve="repair"
def mended_start(pool, prompt):
    """As `start`, but only blocks that were computed after exactly the prompt's tokens count as known.

    pool: a ServerPool. Returns (table, number of known tokens).
    """
    ### BEGIN SOLUTION
    size, table, known, parent = pool.block_size, [], 0, None
    for i in range(0, len(prompt), size):
        tokens = tuple(prompt[i : i + size])
        parent = hash((parent, tokens))
        block = pool.cached.get(parent)
        same = block is not None and pool.tokens[block] == tokens
        if same and known == i and i + size < len(prompt):
            known += size
            if pool.refs[block] == 0:
                pool.free.remove(block)
        else:
            block = pool.free.popleft()
            if pool.cached.get(pool.hashes[block]) == block:  # the entry of what it held before
                del pool.cached[pool.hashes[block]]
            pool.hashes[block] = None
            pool.tokens[block] = tokens
            if len(tokens) == size:
                pool.hashes[block] = parent
                pool.cached[parent] = block
        pool.refs[block] += 1
        table.append(block)
    return table, known
    ### END SOLUTION


# %% test="repair" points=1
checks.repair(mended_start, points=1)

# %% [markdown]
# <details><summary>Hint 1</summary>There are two ways. Delete the old entry when its block is handed out. Or let it
# stand, and do not believe it when it is found.
# <details><summary>Hint 2</summary>For both you need to know under which hash a block is filed <i>now</i>: keep that
# in <code>pool.hashes</code>.</details></details>

# %% [markdown]
# ## 7. In words
#
# ★★ · *5 minutes · 2 points, marked by hand*
#
# A server decodes speculatively. To save time it calls `register` for every block as soon as it is full, drafts
# included. After each round it rolls back with `truncate`, and goes on writing at the place of the first wrong draft.
#
# (a) Describe, with blocks of 4 and one short sequence, how another user can get wrong keys although no block was ever
# handed out a second time. (b) What is the simplest rule that prevents it, and why does it cost next to nothing?

# %% [markdown] written="words" points=2
# <!-- BEGIN SOLUTION -->
# (a) A sequence has 6 tokens, `t0 ... t5`, and drafts `x, y`. They fill the second block, which is registered under
# the hash of `(t0..t3), (t4, t5, x, y)`. The target rejects `x`: the sequence is truncated to 6 tokens. The second
# block stays in the table, since `t4, t5` are in it, and keeps its hash. The next tokens `z, w` are written over `x,
# y`. Now a user comes whose prompt is `t0 ... t5, x, y` and something more. The hash is found, and the block holds
# the keys and values of `z, w`. Nothing crashes: this user's model attends to tokens that are not in the prompt.
#
# (b) Register committed tokens only: after verification, up to the last token that was kept. A hash then describes
# what will never change. It costs next to nothing: a block is found one round later at most, and blocks that were
# full of accepted tokens are registered all the same. (Also right: drop the hash of a block before it is written
# again, in `truncate` or in `append`. That works, but then *every* path that writes must think of it; and between
# registering and rolling back, another request could already have taken the block.)
#
# *Marking.* (a) 1 point: the block is registered with drafts in it, stays in the table after the rollback, and is
# overwritten while its hash still leads to it. Half a point if the answer only says "the hash is stale" with no order
# of events, or if the block is freed and handed out again in it (that is part 6). (b) 1 point: committed tokens only,
# or the hash is dropped before the block is written, with a reason for the small cost (half a point without).
# "Compare the tokens" earns nothing unless the tokens that are stored with the block are said to be updated by the
# write.
# <!-- END SOLUTION -->

# %% [markdown]
# **Sources.** Kwon et al. 2023, *Efficient memory management for large language model serving with PagedAttention*
# (arXiv 2309.06180), sections 4.2 to 4.4. vLLM's design document *Automatic Prefix Caching*. Reports of a reused
# block that was found under its old hash: vLLM pull request 4764; nano-vllm issue 163, where tokens are compared as
# in part 6.
