"""Right and wrong solutions of problem set 03."""

from dataclasses import replace

from support.harness import Wrong

RIGHT = {
    "plain lists, new ones put in place": {
        "allocate": """
def allocate(pool, n):
    queue = list(pool.free)
    if len(queue) < n:
        raise MemoryError("full")
    taken, pool.free = queue[:n], queue[n:]
    for b in taken:
        pool.refs[b] += 1
        h = pool.hashes[b]
        pool.hashes[b] = None
        if h in pool.cached and pool.cached[h] == b:
            pool.cached.pop(h)
    return taken
""",
        "release": """
def release(pool, table):
    seen = []
    for b in table:
        if b in seen or b not in range(len(pool.refs)) or pool.refs[b] < 1:
            raise ValueError(b)
        seen.append(b)
    pool.refs = [count - (b in seen) for b, count in enumerate(pool.refs)]
    pool.free = list(pool.free) + [b for b in table[::-1] if pool.refs[b] == 0]
    table.clear()
""",
        "append": """
def append(pool, table, length, n):
    room = len(table) * pool.block_size - length
    missing = max(0, n - room)
    new = allocate(pool, (missing + pool.block_size - 1) // pool.block_size)
    table.extend(new)
    every = [b * pool.block_size + o for b in table for o in range(pool.block_size)]
    return every[length:length + n]
""",
        "truncate": """
def truncate(pool, table, length):
    while len(table) > 0 and (len(table) - 1) * pool.block_size >= length:
        release(pool, [table.pop()])
""",
        "fork": """
def fork(pool, table):
    pool.refs = [count + table.count(b) for b, count in enumerate(pool.refs)]
    return table[:]
""",
        "append_cow": """
def append_cow(pool, table, length, n):
    if n == 0:
        return []
    size = pool.block_size
    total = (length + n + size - 1) // size
    first = length // size  # the first block that is written
    copy = first < len(table) and pool.refs[table[first]] > 1
    new = allocate(pool, total - first if copy else total - len(table))
    if not copy:
        table.extend(new)
        return []
    old = table[first]
    table[first:] = new
    pool.refs[old] -= 1
    return [[old, new[0]]]
""",
        "block_hash": """
import hashlib

def block_hash(parent, tokens):
    return hashlib.sha256(repr((parent, list(tokens))).encode()).hexdigest()
""",
        "register": """
def register(pool, table, tokens):
    parent = None
    for start, block in zip(range(0, len(tokens), pool.block_size), table):
        piece = tokens[start:start + pool.block_size]
        if len(piece) < pool.block_size:
            return
        parent = block_hash(parent, piece)
        pool.hashes[block] = parent
        pool.cached.setdefault(parent, block)
""",
        "reuse_prefix": """
def reuse_prefix(pool, tokens):
    found, parent, start = [], None, 0
    while start + pool.block_size < len(tokens):
        parent = block_hash(parent, tokens[start:start + pool.block_size])
        block = pool.cached.get(parent)
        if block is None:
            break
        found.append(block)
        start += pool.block_size
    pool.free = [b for b in pool.free if b not in found]
    for block in found:
        pool.refs[block] += 1
    return found
""",
        "story": """
def story():
    return ((7, 7, 5), (1, 2, 3, 4, 7, 7, 7, 7), (7, 7, 7))
""",
        "repair": """
def mended_start(pool, prompt):
    # an old entry stays, and is not believed: the block must be filed under this very hash
    size, table, known, parent = pool.block_size, [], 0, None
    for i in range(0, len(prompt), size):
        tokens = tuple(prompt[i : i + size])
        parent = hash((parent, tokens))
        block = pool.cached.get(parent)
        same = block is not None and pool.hashes[block] == parent
        if same and known == i and i + size < len(prompt):
            known += size
            if pool.refs[block] == 0:
                pool.free.remove(block)
        else:
            block = pool.free.popleft()
            pool.tokens[block] = tokens
            pool.hashes[block] = None
            if len(tokens) == size:
                pool.cached[parent] = block
                pool.hashes[block] = parent
        pool.refs[block] += 1
        table.append(block)
    return table, known
""",
    },
    "numpy and tensors": {
        "allocate": """
import numpy as np

def allocate(pool, n):
    if n > sum(r == 0 for r in pool.refs):
        raise MemoryError
    taken = np.array([pool.free.popleft() for _ in range(n)], dtype=int)
    for b in taken.tolist():
        pool.refs[b] = 1
        pool.hashes[b] = None
    for h, b in list(pool.cached.items()):
        if b in taken:
            del pool.cached[h]
    return taken
""",
        "release": """
import numpy as np

def release(pool, table):
    blocks = np.asarray(table, dtype=int)
    if blocks.size != np.unique(blocks).size or ((blocks < 0) | (blocks >= len(pool.refs))).any():
        raise ValueError("unknown or named twice")
    refs = np.asarray(pool.refs)
    if (refs[blocks] == 0).any():
        raise ValueError("free already")
    refs[blocks] -= 1
    pool.refs = refs.tolist()
    pool.free.extend(b for b in blocks[::-1].tolist() if refs[b] == 0)
""",
        "append": """
import torch

def append(pool, table, length, n):
    needed = len(range(0, length + n, pool.block_size)) - len(table)
    table.extend(int(b) for b in allocate(pool, needed))
    positions = torch.arange(length, length + n)
    blocks = torch.tensor(table, dtype=torch.long)
    if n == 0:
        return positions
    return blocks[positions // pool.block_size] * pool.block_size + positions % pool.block_size
""",
        "truncate": """
import math

def truncate(pool, table, length):
    keep = math.ceil(length / pool.block_size)
    dropped, table[:] = table[keep:], table[:keep]
    release(pool, dropped)
""",
        "fork": """
def fork(pool, table):
    second = []
    for block in table:
        pool.refs[block] = pool.refs[block] + 1
        second.append(block)
    return second
""",
        "append_cow": """
import numpy as np

def append_cow(pool, table, length, n):
    used = length % pool.block_size
    blocks = int(np.ceil((length + n) / pool.block_size)) - len(table)
    if n and used and pool.refs[table[-1]] != 1:
        source, new = table[-1], allocate(pool, blocks + 1)
        release(pool, [source])
        table[-1:] = [int(b) for b in new]
        return np.array([[source, new[0]]])
    table += [int(b) for b in allocate(pool, blocks)]
    return np.empty((0, 2), dtype=int)
""",
        "block_hash": """
import numpy as np

def block_hash(parent, tokens):
    return (parent or b"") + np.asarray(tokens, dtype=np.int64).tobytes() + b"|"
""",
        "register": """
import numpy as np

def register(pool, table, tokens):
    full = np.asarray(tokens)[: len(tokens) // pool.block_size * pool.block_size].reshape(-1, pool.block_size)
    parent = None
    for block, row in zip(table, full.tolist()):
        parent = block_hash(parent, row)
        pool.cached[parent], pool.hashes[block] = block, parent
""",
        "reuse_prefix": """
import torch

def reuse_prefix(pool, tokens):
    pieces = torch.tensor(tokens[: (len(tokens) - 1) // pool.block_size * pool.block_size]).split(pool.block_size)
    parent, found = None, []
    for piece in pieces:
        parent = block_hash(parent, piece.tolist()) if len(piece) else None
        if parent is None or parent not in pool.cached:
            break
        block = pool.cached[parent]
        if block in pool.free:
            pool.free.remove(block)
        pool.refs[block] += 1
        found.append(block)
    return torch.tensor(found, dtype=torch.long)
""",
        "story": """
def story():
    import numpy as np

    return [np.array([1, 1]), np.array([2, 2, 2, 2, 2, 2, 1, 1]), np.array([1, 1, 1, 1])]
""",
        "repair": """
def mended_start(pool, prompt):
    # the whole prefix is kept with the block, and compared
    size, table, known = pool.block_size, [], 0
    for i in range(0, len(prompt), size):
        prefix = tuple(prompt[: i + size])
        block = pool.cached.get(prefix)
        if block is not None and pool.tokens[block] == prefix and known == i and i + size < len(prompt):
            known += size
            if pool.refs[block] == 0:
                pool.free.remove(block)
        else:
            block = pool.free.popleft()
            pool.tokens[block] = prefix
            if len(prompt) >= i + size:
                pool.cached[prefix] = block
        pool.refs[block] += 1
        table.append(block)
    return table, known
""",
    },
    "recursion, and every function on its own": {
        "allocate": """
def allocate(pool, n, taken=()):
    if not taken and n > len(pool.free):
        raise MemoryError(n)
    if n == 0:
        return tuple(taken)
    block = pool.free[0]
    del pool.free[0]
    pool.refs[block] = 1
    name = pool.hashes[block]
    if name is not None:
        pool.cached = {h: b for h, b in pool.cached.items() if (h, b) != (name, block)}
        pool.hashes[block] = None
    return allocate(pool, n - 1, (*taken, block))
""",
        "release": """
from collections import Counter

def release(pool, table):
    named = Counter(table)
    held = {b for b, count in enumerate(pool.refs) if count}
    if set(named) - held or any(times > 1 for times in named.values()):
        raise ValueError(table)

    def let_go(rest):
        if rest:
            let_go(rest[1:])
            pool.refs[rest[0]] -= 1
            if not pool.refs[rest[0]]:
                pool.free.append(rest[0])

    let_go(table)
""",
        "append": """
def append(pool, table, length, n):
    size = pool.block_size
    have = len(table)
    need = 0
    while (have + need) * size < length + n:
        need += 1
    if need > len(pool.free):
        raise MemoryError
    slots = []
    for i in range(length, length + n):
        if i // size == len(table):
            block = pool.free.popleft()
            pool.refs[block] = 1
            table.append(block)
        slots.append(table[-1] * size + i % size if i // size == len(table) - 1 else table[i // size] * size + i % size)
    return slots
""",
        "truncate": """
def truncate(pool, table, length):
    if (len(table) - 1) * pool.block_size < length or not table:
        return
    block = table.pop()
    pool.refs[block] -= 1
    if pool.refs[block] == 0:
        pool.free.append(block)
    truncate(pool, table, length)
""",
        "fork": """
def fork(pool, table):
    if not table:
        return []
    pool.refs[table[0]] += 1
    return [table[0], *fork(pool, table[1:])]
""",
        "append_cow": """
def append_cow(pool, table, length, n):
    size, pairs = pool.block_size, []
    growth = -(-(length + n) // size) - len(table)
    copy = int(n > 0 and length % size != 0 and pool.refs[table[-1]] >= 2)
    if growth + copy > len(pool.free):
        raise MemoryError(growth + copy)
    for i in range(growth + copy):
        block = pool.free.popleft()
        pool.refs[block] = 1
        if copy and i == 0:
            pairs.append((table[-1], block))
            pool.refs[table[-1]] -= 1
            table[-1] = block
        else:
            table.append(block)
    return pairs
""",
        "block_hash": """
def block_hash(parent, tokens):
    return (parent, *tokens)
""",
        "register": """
def register(pool, table, tokens):
    size = pool.block_size

    def go(i, parent):
        if (i + 1) * size <= len(tokens):
            name = block_hash(parent, tokens[i * size:(i + 1) * size])
            if pool.hashes[table[i]] is None:
                pool.hashes[table[i]] = name
                if name not in pool.cached:
                    pool.cached[name] = table[i]
            go(i + 1, name)

    go(0, None)
""",
        "reuse_prefix": """
def reuse_prefix(pool, tokens):
    size = pool.block_size

    def go(i, parent):
        if (i + 1) * size >= len(tokens):
            return []
        name = block_hash(parent, tokens[i * size:(i + 1) * size])
        if name not in pool.cached:
            return []
        return [pool.cached[name], *go(i + 1, name)]

    table = go(0, None)
    for b in table:
        pool.refs[b] += 1
        if pool.refs[b] == 1:
            pool.free.remove(b)
    return tuple(table)
""",
        "story": """
def story():
    served = [[5, 5]]
    served.append([*range(10, 16), 5, 5])
    served.append([5, 5, 5, 5, 5])
    return served
""",
        "repair": """
def mended_start(pool, prompt):
    size = pool.block_size
    pieces = [tuple(prompt[i : i + size]) for i in range(0, len(prompt), size)]
    names = []
    for piece in pieces:
        names.append(hash((names[-1] if names else None, piece)))
    found = []
    for name in names[: (len(prompt) - 1) // size]:
        if name not in pool.cached:
            break
        found.append(pool.cached[name])
    for block in found:
        if pool.refs[block] == 0:
            pool.free.remove(block)
        pool.refs[block] += 1
    new = [pool.free.popleft() for _ in pieces[len(found) :]]
    pool.cached = {h: b for h, b in pool.cached.items() if b not in new}
    for block, piece, name in zip(new, pieces[len(found) :], names[len(found) :]):
        pool.refs[block] = 1
        pool.tokens[block] = piece
        if len(piece) == size:
            pool.cached[name] = block
    return found + new, len(found) * size
""",
    },
    "the blocks in another order": {
        "allocate": """
def allocate(pool, n):
    if n > len(pool.free):
        raise MemoryError(n)
    taken = []
    for _ in range(n):
        block = pool.free.popleft()
        if pool.cached.get(pool.hashes[block]) == block:
            del pool.cached[pool.hashes[block]]
        pool.hashes[block], pool.refs[block] = None, 1
        taken.insert(0, block)
    return taken
""",
    },
    "another allocate, with arguments of its own": {
        "fork": """
fork = lambda pool, table: [pool.refs.__setitem__(b, pool.refs[b] + 1) or b for b in table]
""",
        "append_cow": """
def append_cow(pool, table, length, n):
    size, old = pool.block_size, table[-1] if table else None
    copy = length % size != 0 and n > 0 and pool.refs[old] > 1
    new = allocate(pool, -(-(length + n) // size) - len(table) + copy)
    table[len(table) - copy :] = new
    pool.refs[old or 0] -= copy
    return zip([old] * copy, new)
""",
        "allocate": """
def allocate(pool, n, *, keep=0):
    free = len(pool.free) - keep
    if free < n:
        raise MemoryError(f"{n} > {free}")
    taken = []
    while len(taken) < n:
        block = pool.free.popleft()
        stale = [h for h, b in pool.cached.items() if b == block]
        for h in stale:
            del pool.cached[h]
        pool.hashes[block], pool.refs[block] = None, 1
        taken.append(block)
    return taken
""",
        "append": """
def append(pool, table, length, n):
    total, rest = divmod(length + n, pool.block_size)
    table += allocate(pool, total + (rest > 0) - len(table), keep=0)
    return (table[p // pool.block_size] * pool.block_size + p % pool.block_size for p in range(length, length + n))
""",
    },
}

ALLOCATE = """
def allocate(pool, n):
    if n > len(pool.free):
        raise MemoryError(n)
    taken = [pool.free.popleft() for _ in range(n)]
    for block in taken:
        pool.refs[block] = 1
        if pool.cached.get(pool.hashes[block]) == block:
            del pool.cached[pool.hashes[block]]
        pool.hashes[block] = None
    return taken
"""
RELEASE = """
def release(pool, table):
    for block in table:
        if not 0 <= block < len(pool.refs) or pool.refs[block] == 0:
            raise ValueError(block)
    if len(set(table)) < len(table):
        raise ValueError(table)
    for block in reversed(table):
        pool.refs[block] -= 1
        if pool.refs[block] == 0:
            pool.free.append(block)
"""
APPEND = """
def append(pool, table, length, n):
    size = pool.block_size
    table += allocate(pool, -(-(length + n) // size) - len(table))
    return [table[i // size] * size + i % size for i in range(length, length + n)]
"""
TRUNCATE = """
def truncate(pool, table, length):
    keep = -(-length // pool.block_size)
    release(pool, table[keep:])
    del table[keep:]
"""
FORK = """
def fork(pool, table):
    for block in table:
        pool.refs[block] += 1
    return list(table)
"""
APPEND_COW = """
def append_cow(pool, table, length, n):
    size, copies = pool.block_size, []
    shared = n > 0 and length % size > 0 and pool.refs[table[-1]] > 1
    new = allocate(pool, -(-(length + n) // size) - len(table) + (1 if shared else 0))
    if shared:
        source = table.pop()
        pool.refs[source] -= 1
        copies = [(source, new[0])]
    table += new
    return copies
"""
REGISTER = """
def register(pool, table, tokens):
    size, parent = pool.block_size, None
    for i in range(len(tokens) // size):
        parent = block_hash(parent, tokens[i * size : (i + 1) * size])
        pool.hashes[table[i]] = parent
        pool.cached[parent] = table[i]
"""
REUSE = """
def reuse_prefix(pool, tokens):
    size, parent, table = pool.block_size, None, []
    for i in range((len(tokens) - 1) // size):
        parent = block_hash(parent, tokens[i * size : (i + 1) * size])
        if parent not in pool.cached:
            break
        table.append(pool.cached[parent])
    for block in table:
        if pool.refs[block] == 0:
            pool.free.remove(block)
        pool.refs[block] += 1
    return table
"""
START = """
def mended_start(pool, prompt):
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
            pool.tokens[block] = tokens
            if len(tokens) == size:
                pool.cached[parent] = block
        pool.refs[block] += 1
        table.append(block)
    return table, known
"""
CODE = {
    "allocate": ALLOCATE,
    "release": RELEASE,
    "append": APPEND,
    "truncate": TRUNCATE,
    "fork": FORK,
    "append_cow": APPEND_COW,
    "register": REGISTER,
    "reuse_prefix": REUSE,
    "repair": START,
}


def slip(name, cell, *changes, says, loses=None):
    """A right function with pieces of its text replaced."""
    code = CODE[cell]
    for old, new in changes:
        assert old in code, (name, old)
        code = code.replace(old, new)
    return Wrong(name, {cell: code}, loses=loses or (cell,), says=says)


def whole(name, cell, code, says, loses=None):
    return Wrong(name, {cell: code}, loses=loses or (cell,), says=says)


WRONG = [
    # 1. allocate and release
    whole(
        "allocate takes one at a time, and loses them when it raises (inference-sim #1061)",
        "allocate",
        ALLOCATE.replace("    if n > len(pool.free):\n        raise MemoryError(n)\n", "").replace(
            "    taken = [pool.free.popleft() for _ in range(n)]\n",
            "    taken = []\n    for _ in range(n):\n        if not pool.free:\n            raise MemoryError(n)\n"
            "        taken.append(pool.free.popleft())\n",
        ),
        says="all or nothing",
    ),
    slip(
        "allocate refuses the last block",
        "allocate",
        ("n > len", "n >= len"),
        says="> or >=",
        loses=("allocate", "evict"),
    ),
    slip(
        "allocate counts nothing",
        "allocate",
        ("pool.refs[block] = 1", "pass"),
        says="held by 1 table, and counts 0",
        loses=("allocate", "evict"),
    ),
    whole(
        "allocate leaves the blocks in the queue",
        "allocate",
        ALLOCATE.replace("[pool.free.popleft() for _ in range(n)]", "list(pool.free)[:n]"),
        says="in pool.free while it is held",
        loses=("allocate", "evict"),
    ),
    slip(
        "allocate gives fewer where there are fewer",
        "allocate",
        ("raise MemoryError(n)", "n = len(pool.free)"),
        says="blocks that are needed with those that are free",
    ),
    whole(
        "allocate writes its table of blocks down and returns nothing",
        "allocate",
        ALLOCATE.replace("    return taken\n", ""),
        says="is there a return",
        loses=("allocate", "evict"),
    ),
    whole(
        "double free goes through (vllm #42571)",
        "release",
        "def release(pool, table):\n    for b in reversed(table):\n        pool.refs[b] -= 1\n"
        "        if pool.refs[b] <= 0:\n            pool.free.append(b)\n",
        says="look at every block first",
    ),
    slip(
        "duplicate ids in one free (vllm PR #3347)",
        "release",
        ("    if len(set(table)) < len(table):\n        raise ValueError(table)\n", ""),
        says="named twice",
    ),
    whole(
        "double free refused when half is done",
        "release",
        "def release(pool, table):\n    if len(set(table)) < len(table):\n        raise ValueError\n"
        "    for b in reversed(table):\n        if not 0 <= b < len(pool.refs) or pool.refs[b] == 0:\n"
        "            raise ValueError\n"
        "        pool.refs[b] -= 1\n        if pool.refs[b] == 0:\n            pool.free.append(b)\n",
        says="check everything first",
    ),
    slip(
        "block -1 is the last one",
        "release",
        ("not 0 <= block < len(pool.refs) or pool.refs[block] == 0", "pool.refs[block] == 0"),
        says="none is negative",
    ),
    slip(
        "shared blocks are freed",
        "release",
        ("        if pool.refs[block] == 0:\n            pool.free", "        if True:\n            pool.free"),
        says="in pool.free while it is held",
        loses=("release", "evict"),
    ),
    slip(
        "counts set to 0",
        "release",
        ("pool.refs[block] -= 1", "pool.refs[block] = 0"),
        says="held by [12] tables?, and counts 0",
        loses=("release", "evict"),
    ),
    slip(
        "release gives nothing back: a leak",
        "release",
        ("pool.free.append(block)", "pass"),
        says="go back into pool.free|a leak",
        loses=("release", "evict"),
    ),
    # 2. append and truncate
    slip(
        "append forgets the room in the last block",
        "append",
        ("-(-(length + n) // size) - len(table)", "-(-n // size)"),
        says="room left in the last block",
    ),
    slip(
        "append adds a block at each border",
        "append",
        ("-(-(length + n) // size)", "(length + n) // size + 1"),
        says="one block too many at a block border",
    ),
    slip("append rounds down", "append", ("-(-(length + n) // size)", "(length + n) // size"), says="rounded down"),
    whole(
        "a failed append keeps what it took (inference-sim #1061)",
        "append",
        "def append(pool, table, length, n):\n    size, slots = pool.block_size, []\n"
        "    for i in range(length, length + n):\n        if i // size >= len(table):\n"
        "            table += allocate(pool, 1)\n"
        "        slots.append(table[i // size] * size + i % size)\n    return slots\n",
        says="all or nothing",
    ),
    slip(
        "append puts a list into the table",
        "append",
        (
            "table += allocate(pool, -(-(length + n) // size) - len(table))",
            "table.append(allocate(pool, -(-(length + n) // size) - len(table)))",
        ),
        says="table [ab] is no list of whole numbers",
    ),
    slip("append makes a new table", "append", ("table += ", "table = table + "), says="new list"),
    slip(
        "slots as if blocks lay side by side",
        "append",
        ("table[i // size] * size + i % size for", "table[length // size] * size + length % size + i - length for"),
        says=r"lies in block table\[i // block_size\]",
    ),
    slip(
        "slots all in the last block: not distinct (vllmini #2)",
        "append",
        ("table[i // size] * size", "table[-1] * size"),
        says=r"lies in block table\[i // block_size\]",
    ),
    slip(
        "slots are positions",
        "append",
        ("table[i // size] * size + i % size for", "i for"),
        says=r"block b begins at slot b \* block_size",
    ),
    slip(
        "slots for blocks of 4 only",
        "append",
        ("* size + i % size", "* 4 + i % 4"),
        says=r"block b begins at slot b \* block_size",
    ),
    slip(
        "truncate rounds down",
        "truncate",
        ("-(-length // pool.block_size)", "length // pool.block_size"),
        says="rounded down",
    ),
    slip(
        "truncate keeps a block too many",
        "truncate",
        ("-(-length // pool.block_size)", "length // pool.block_size + 1"),
        says="one block too many",
    ),
    slip(
        "a leak of one block a request: cut off, not given back (imp #1115)",
        "truncate",
        ("release(pool, table[keep:])", "pass"),
        says="leak",
    ),
    slip(
        "truncate leaves the table as it is",
        "truncate",
        ("    del table[keep:]\n", ""),
        says="held by 1 table, and counts 0",
    ),
    slip(
        "a negative slice of nothing is everything",
        "truncate",
        (
            "    release(pool, table[keep:])\n    del table[keep:]\n",
            "    k = len(table) - keep\n    release(pool, table[-k:])\n    del table[-k:]\n",
        ),
        says="negative slice",
    ),
    whole(
        "truncate frees blocks that others hold",
        "truncate",
        "def truncate(pool, table, length):\n    keep = -(-length // pool.block_size)\n    for b in table[keep:]:\n"
        "        pool.refs[b] = 0\n        pool.free.append(b)\n    del table[keep:]\n",
        says="free while it is read|handed out a second time|is held by",
    ),
    # 3. fork and append_cow
    slip("fork gives the same list", "fork", ("return list(table)", "return table"), says="return a copy"),
    slip("fork counts nothing", "fork", ("pool.refs[block] += 1", "pass"), says="held by [23] tables, and counts [12]"),
    slip("fork gives a tuple", "fork", ("return list(table)", "return tuple(table)"), says="no list of its own"),
    slip("fork sets counts to 2", "fork", ("pool.refs[block] += 1", "pool.refs[block] = 2"), says="held by 3 tables"),
    slip("no copy on write", "append_cow", (" and pool.refs[table[-1]] > 1", " and False"), says="without a copy"),
    slip("a full block is copied", "append_cow", ("length % size > 0", "length > 0"), says="full block is not written"),
    slip(
        "copies what it holds alone", "append_cow", (" and pool.refs[table[-1]] > 1", ""), says="holds the block alone"
    ),
    slip("copies for nothing", "append_cow", ("n > 0 and length", "length"), says="n = 0"),
    slip(
        "the old block keeps its count: a leak",
        "append_cow",
        ("        pool.refs[source] -= 1\n", ""),
        says="held by 1 table, and counts 2|held by 2 tables, and counts 3",
    ),
    slip("pair the wrong way round", "append_cow", ("(source, new[0])", "(new[0], source)"), says="source, target"),
    slip(
        "the copy behind the growth",
        "append_cow",
        ("(source, new[0])", "(source, new[-1])"),
        says=r"\(source, target\), from the shared block to the one in its place",
    ),
    slip(
        "block replaced, not copied",
        "append_cow",
        ("copies = [(source, new[0])]", "pass"),
        says=r"\(source, target\), from the shared block to the one in its place",
    ),
    slip(
        "append_cow: no return",
        "append_cow",
        ("    return copies\n", ""),
        says=r"a list of pairs \(source, target\).* or \[\] for none",
    ),
    slip(
        "a pair in place of a list of pairs",
        "append_cow",
        ("return copies", "return copies[0] if copies else []"),
        says=r"a list of pairs \(source, target\)",
    ),
    whole(
        "lets go of the shared block before it knows that there is room",
        "append_cow",
        "def append_cow(pool, table, length, n):\n    size, copies = pool.block_size, []\n"
        "    if n > 0 and length % size and pool.refs[table[-1]] > 1:\n        [new] = allocate(pool, 1)\n"
        "        copies = [(table[-1], new)]\n        pool.refs[table[-1]] -= 1\n        table[-1] = new\n"
        "    table += allocate(pool, -(-(length + n) // size) - len(table))\n    return copies\n",
        says="all or nothing",
    ),
    whole(
        "copies every shared block",
        "append_cow",
        "def append_cow(pool, table, length, n):\n    if n == 0:\n"
        "        return []\n    size, copies = pool.block_size, []\n"
        "    shared = [i for i, b in enumerate(table) if pool.refs[b] > 1]\n"
        "    new = allocate(pool, -(-(length + n) // size) - len(table) + len(shared))\n    for i in shared:\n"
        "        target = new.pop(0)\n        copies.append((table[i], target))\n        pool.refs[table[i]] -= 1\n"
        "        table[i] = target\n    table += new\n    return copies\n",
        says="",
    ),
    # 4. the prefix
    whole(
        "hash of the tokens alone",
        "block_hash",
        "def block_hash(parent, tokens):\n    return hash(tuple(tokens))\n",
        says="take in the parent",
    ),
    whole(
        "hash of the sum",
        "block_hash",
        "def block_hash(parent, tokens):\n    return hash((parent, sum(tokens)))\n",
        says="hash the tuple|sums",
    ),
    whole(
        "hash without order",
        "block_hash",
        "def block_hash(parent, tokens):\n    return hash((parent, frozenset(tokens)))\n",
        says="order of the tokens",
    ),
    whole(
        "digits run together",
        "block_hash",
        "def block_hash(parent, tokens):\n    return f'{parent}/' + ''.join(map(str, tokens))\n",
        says="digits run together",
    ),
    *(
        whole(f"hash: {name}", "block_hash", f"def block_hash(parent, tokens):\n    return {code}\n", says)
        for name, code, says in (
            ("base 31", "(31 * (31 * (parent or 7) + tokens[0]) + tokens[1])", "sums"),
            ("base 65,599", "(65_599 * (65_599 * (parent or 7) + tokens[0]) + tokens[1])", "sums"),
            ("base 31, bounded", "(31 * (31 * (parent or 7) + tokens[0]) + tokens[1]) % (2**61 - 1)", "sums"),
            ("bytes of tokens", "(parent or b'') + bytes(t % 256 for t in tokens)", "a byte holds"),
            ("exclusive or", "hash(parent) ^ hash(tuple(tokens))", "order of the blocks|take in the parent"),
            ("a sum of hashes", "(parent or 0) + hash(tuple(tokens))", "order of the blocks|take in the parent"),
            ("no comma behind the parent", "str(parent) + ','.join(map(str, tokens))", "digits run together"),
        )
    ),
    whole(
        "a list is no key",
        "block_hash",
        "def block_hash(parent, tokens):\n    return [parent, *tokens]\n",
        says="a hash is a number, a string, bytes, or a tuple",
    ),
    slip(
        "register: every block a first block",
        "register",
        ("block_hash(parent,", "block_hash(None,"),
        says="hand on the parent",
    ),
    slip(
        "register: the half-full block too",
        "register",
        ("len(tokens) // size)", "-(-len(tokens) // size))"),
        says="not full",
    ),
    slip(
        "register: not in hashes", "register", ("pool.hashes[table[i]] = parent", "pass"), says="pool.hashes must hold"
    ),
    slip(
        "register: not in cached", "register", ("pool.cached[parent] = table[i]", "pass"), says="pool.cached must lead"
    ),
    slip(
        "register: no hash for a twin",
        "register",
        (
            "        pool.hashes[table[i]] = parent\n        pool.cached[parent] = table[i]\n",
            "        if parent not in pool.cached:\n"
            "            pool.hashes[table[i]] = parent\n            pool.cached[parent] = table[i]\n",
        ),
        says="a second block with the same content",
    ),
    slip(
        "block 0 is taken for none",
        "reuse_prefix",
        ("if parent not in pool.cached:", "if not pool.cached.get(parent):"),
        says="test `is None`",
    ),
    slip(
        "found once, and never again",
        "reuse_prefix",
        (
            "            pool.free.remove(block)\n",
            "            pool.free.remove(block)\n            del pool.cached[pool.hashes[block]]\n"
            "            pool.hashes[block] = None\n",
        ),
        says="can be found again",
    ),
    slip(
        "the whole prompt from the cache (nano-vllm #144)",
        "reuse_prefix",
        ("(len(tokens) - 1) // size", "len(tokens) // size"),
        says="one token must be left over",
    ),
    slip(
        "a whole block left over",
        "reuse_prefix",
        ("(len(tokens) - 1) // size", "len(tokens) // size - 1"),
        says="only the last",
    ),
    slip("holes in the prefix", "reuse_prefix", ("break", "continue"), says="stop at the first miss"),
    slip(
        "found and not counted",
        "reuse_prefix",
        ("pool.refs[block] += 1", "pass"),
        says="held by [1-4] tables?, and counts [0-3]",
    ),
    slip(
        "found, and still in the queue",
        "reuse_prefix",
        ("            pool.free.remove(block)", "            pass"),
        says="in pool.free while it is held",
    ),
    slip(
        "taken out of the queue though held",
        "reuse_prefix",
        ("if pool.refs[block] == 0:", "if True:"),
        says="only one that nobody held",
    ),
    slip(
        "looks among free blocks only",
        "reuse_prefix",
        ("if parent not in pool.cached:", "if parent not in pool.cached or pool.refs[pool.cached[parent]]:"),
        says="another table holds can be shared",
    ),
    slip(
        "looked up as a first block",
        "reuse_prefix",
        ("block_hash(parent,", "block_hash(None,"),
        says="hand on the parent",
    ),
    # 5. eviction
    slip(
        "a reused block is found under its old hash (nano-vllm #163, vllm PR #4764)",
        "allocate",
        (
            "        if pool.cached.get(pool.hashes[block]) == block:\n"
            "            del pool.cached[pool.hashes[block]]\n",
            "",
        ),
        says="loses its hash: in pool.hashes, and no entry",
        loses=("evict",),
    ),
    slip(
        "the hash stays with the block",
        "allocate",
        ("        pool.hashes[block] = None\n", ""),
        says="loses its hash: in pool.hashes, and no entry",
        loses=("evict",),
    ),
    slip(
        "the twin's entry goes too",
        "allocate",
        ("if pool.cached.get(pool.hashes[block]) == block:", "if pool.hashes[block] in pool.cached:"),
        says="compare first",
        loses=("evict",),
    ),
    slip(
        "the whole cache goes",
        "allocate",
        ("del pool.cached[pool.hashes[block]]", "pool.cached.clear()"),
        says="only entries of blocks that were handed out go",
        loses=("evict",),
    ),
    slip(
        "the newest is evicted", "allocate", ("popleft()", "pop()"), says="popleft takes the oldest", loses=("evict",)
    ),
    slip(
        "the first block is freed first",
        "release",
        ("reversed(table)", "table"),
        says="its last block first",
        loses=("evict",),
    ),
    slip(
        "freed to the front of the queue",
        "release",
        ("pool.free.append(block)", "pool.free.appendleft(block)"),
        says="comes to the back",
        loses=("evict",),
    ),
    # 6. the bug
    whole(
        "story: other tokens in the block",
        "story",
        "def story():\n    return [[1, 2, 3], [4, 5, 6, 7, 8, 9, 4, 4], [1, 2, 3]]\n",
        says="after another beginning",
    ),
    whole(
        "story: a right hit",
        "story",
        "def story():\n    return [[1, 2, 3], [1, 2, 4]]\n",
        says="after another beginning",
    ),
    whole(
        "story: never asked again",
        "story",
        "def story():\n    return [[1, 2], [3, 4, 5, 6, 7, 8, 1, 2]]\n",
        says="ask for",
    ),
    whole(
        "story: no token left over",
        "story",
        "def story():\n    return [[1, 2], [3, 4, 5, 6, 7, 8, 1, 2], [1, 2]]\n",
        says="token left over",
    ),
    whole("repair: nothing changed", "repair", START, says="used for other text"),
    slip(
        "repair: held blocks are not counted again",
        "repair",
        ("        pool.refs[block] += 1\n", "        pool.refs[block] = 1\n"),
        says="used for other text|the counts",
    ),
    slip(
        "repair: no cache at all", "repair", ("if same and", "if False and"), says="what is still there must be found"
    ),
    slip(
        "repair: the entry goes, wherever it leads",
        "repair",
        (
            "            pool.tokens[block] = tokens\n            if len(tokens) == size:\n",
            "            pool.cached.pop(pool.hashes[block], None)\n            pool.hashes[block] = None\n"
            "            pool.tokens[block] = tokens\n            if len(tokens) == size:\n"
            "                pool.hashes[block] = parent\n",
        ),
        says="compare before you delete",
    ),
    slip(
        "repair: all entries go",
        "repair",
        ("pool.tokens[block] = tokens\n", "pool.tokens[block] = tokens\n            pool.cached.clear()\n"),
        says="what is still there must be found",
    ),
    slip(
        "repair: first blocks are never found",
        "repair",
        ("if same and known == i", "if same and i > 0 and known == i"),
        says="what is still there must be found",
    ),
    slip(
        "repair: the last block may be known too",
        "repair",
        (" and i + size < len(prompt)", ""),
        says="less is known than given",
    ),
]


# Found from outside: parts that hold without looking, and siblings.
WRONG += [
    slip(
        "blocks without a hash go first",
        "allocate",
        (
            "    taken = [pool.free.popleft() for _ in range(n)]\n",
            "    taken = sorted(pool.free, key=lambda b: pool.hashes[b] is not None)[:n]\n"
            "    for block in taken:\n        pool.free.remove(block)\n",
        ),
        says="longest free goes first",
        loses=("evict",),
    ),
    slip(
        "the lowest number goes first",
        "allocate",
        (
            "[pool.free.popleft() for _ in range(n)]",
            "sorted(pool.free)[:n]\n    for b in taken:\n        pool.free.remove(b)",
        ),
        says="longest free goes first",
        loses=("evict",),
    ),
    slip(
        "the others lose their places",
        "allocate",
        ("    return taken\n", "    pool.free = type(pool.free)(sorted(pool.free))\n    return taken\n"),
        says="longest free goes first",
        loses=("evict",),
    ),
    slip(
        "the entry goes, the hash stays",
        "allocate",
        ("        pool.hashes[block] = None\n", "        pool.hashes[block] = pool.hashes[block]\n"),
        says="loses its hash",
        loses=("evict",),
    ),
    slip(
        "a block that is let go of loses its hash",
        "release",
        (
            "            pool.free.append(block)\n",
            "            pool.free.append(block)\n            pool.hashes[block] = None\n",
        ),
        says="keeps its hash",
        loses=("evict",),
    ),
    slip(
        "a block that is let go of loses its entry",
        "release",
        (
            "            pool.free.append(block)\n",
            "            pool.free.append(block)\n            pool.cached.pop(pool.hashes[block], None)\n",
        ),
        says="only entries of blocks that were handed out go",
        loses=("evict",),
    ),
    slip(
        "release sorts the queue",
        "release",
        ("    for block in reversed(table):\n", "    for block in sorted(table):\n"),
        says="its last block first",
        loses=("evict",),
    ),
    slip(
        "release of an empty table is refused",
        "release",
        ("    if len(set(table)) < len(table):\n", "    if not table or len(set(table)) < len(table):\n"),
        says="",
        loses=("release", "evict"),
    ),
    slip(
        "another error for a double free",
        "release",
        ("raise ValueError(block)", "raise KeyError(block)"),
        says="look at every block first",
    ),
    slip(
        "another error for a full pool",
        "allocate",
        ("raise MemoryError(n)", "raise IndexError(n)"),
        says="blocks that are needed with those that are free",
    ),
    slip(
        "append takes a block for each token",
        "append",
        ("-(-(length + n) // size) - len(table)", "n"),
        says="",
    ),
    slip(
        "append always takes a new block",
        "append",
        ("-(-(length + n) // size) - len(table)", "max(1, -(-(length + n) // size) - len(table)) if n else 0"),
        says="",
    ),
    slip(
        "truncate lets go of the last block only",
        "truncate",
        ("    release(pool, table[keep:])\n", "    release(pool, table[keep:][-1:])\n"),
        says="never be free again",
    ),
    slip(
        "truncate empties the table and takes new blocks",
        "truncate",
        (
            "    release(pool, table[keep:])\n    del table[keep:]\n",
            "    release(pool, table)\n    table[:] = allocate(pool, keep)\n",
        ),
        says="",
    ),
    slip(
        "fork counts the first block only",
        "fork",
        ("for block in table:", "for block in table[:1]:"),
        says="held by [23] tables, and counts [12]",
    ),
    slip(
        "a block of three is taken for a block of one",
        "append_cow",
        ("pool.refs[table[-1]] > 1", "pool.refs[table[-1]] == 2"),
        says="",
    ),
    slip(
        "the shared block is released as if nobody else held it",
        "append_cow",
        ("        pool.refs[source] -= 1\n", "        pool.refs[source] = 0\n        pool.free.append(source)\n"),
        says="held by [12] tables?, and counts 0",
    ),
    whole(
        "hash: by Python's identity",
        "block_hash",
        "def block_hash(parent, tokens):\n    return id(tokens)\n",
        says="not the same when asked again|same hash",
    ),
    whole(
        "hash: an object that is equal to all",
        "block_hash",
        "class Same:\n    def __eq__(self, other):\n        return True\n    def __hash__(self):\n        return 1\n\n"
        "def block_hash(parent, tokens):\n    return Same()\n",
        says="a hash is a number, a string, bytes, or a tuple",
    ),
    whole(
        "hash: only the first and last token",
        "block_hash",
        "def block_hash(parent, tokens):\n    return hash((bool(parent), tokens[0], tokens[-1]))\n",
        says="same hash",
    ),
    slip(
        "register: skips what has its hash, and forgets to hand it on",
        "register",
        (
            "    for i in range(len(tokens) // size):\n",
            "    for i in range(len(tokens) // size):\n        if pool.hashes[table[i]] is not None:\n            continue\n",
        ),
        says="not the parent of the next",
    ),
    slip(
        "register: all tokens so far, and the parent",
        "register",
        ("tokens[i * size : (i + 1) * size]", "tokens[: (i + 1) * size]"),
        says="hash the tokens of this block alone",
    ),
    slip(
        "register: the first block only",
        "register",
        ("len(tokens) // size)", "min(1, len(tokens) // size))"),
        says="",
    ),
    slip(
        "register: entries by number",
        "register",
        ("pool.cached[parent] = table[i]", "pool.cached[table[i]] = parent"),
        says="",
    ),
    slip(
        "reuse_prefix gives the first block only",
        "reuse_prefix",
        ("        table.append(pool.cached[parent])\n", "        table.append(pool.cached[parent])\n        break\n"),
        says="all known blocks",
    ),
    slip(
        "reuse_prefix takes new blocks for the rest",
        "reuse_prefix",
        ("    return table\n", "    return table + allocate(pool, min(1, len(pool.free)))\n"),
        says="",
    ),
    whole(
        "an odd list that is as one wants it",
        "fork",
        "class Odd(list):\n    def __eq__(self, other):\n        return True\n    def __ne__(self, other):\n        return False\n\n"
        "def fork(pool, table):\n    pool.refs = Odd(pool.refs)\n    return Odd(table)\n",
        says="no list of its own|held by",
    ),
    whole(
        "an odd number that is as one wants it",
        "append",
        "class Odd(int):\n    def __eq__(self, other):\n        return True\n    def __hash__(self):\n        return 1\n\n"
        "def append(pool, table, length, n):\n    return [Odd(0)] * n\n",
        says="",
    ),
    slip(
        "register: an entry that is as one wants it",
        "register",
        (
            "def register(pool, table, tokens):\n",
            "class Odd(int):\n    def __eq__(self, other):\n        return True\n"
            "    def __ne__(self, other):\n        return False\n    def __hash__(self):\n        return int(self)\n\n\n"
            "def register(pool, table, tokens):\n",
        ),
        ("pool.cached[parent] = table[i]", "pool.cached[parent] = Odd(len(pool.refs))"),
        says="",
    ),
    whole(
        "story: of one prompt",
        "story",
        "def story():\n    return [[1, 2, 1, 2, 1, 2]]\n",
        says="after another beginning",
    ),
    whole("story: too long", "story", "def story():\n    return [[1] * 9]\n", says="4 blocks of 2 hold 8"),
    slip(
        "repair: known blocks are not taken out of the queue",
        "repair",
        ("                pool.free.remove(block)\n", "                pass\n"),
        says="",
    ),
]

# And right ones in unusual ways.
RIGHT |= {
    "helpers, and reversing the list that was handed over": {
        "allocate": """
def _take(pool):
    block = pool.free.popleft()
    pool.refs[block] = 1
    for name in [h for h, b in pool.cached.items() if b == block]:
        del pool.cached[name]
    pool.hashes[block] = None
    return block


def allocate(pool, n):
    if not n <= len(pool.free):
        raise MemoryError("no room")
    return list(map(_take, [pool] * n))
""",
        "release": """
def release(pool, table):
    if len(table) != len(set(table)) or not set(table) <= {b for b, r in enumerate(pool.refs) if r}:
        raise ValueError("no")
    table.reverse()
    while table:
        b = table.pop(0)
        pool.refs[b] -= 1
        pool.free += [b] * (pool.refs[b] == 0)
""",
        "append": """
def _room(pool, table, tokens):
    while len(table) * pool.block_size < tokens:
        table.append(*allocate(pool, 1))


def append(pool, table, length, n):
    before = len(table)
    try:
        _room(pool, table, length + n)
    except MemoryError:
        release(pool, table[before:])
        del table[before:]
        raise
    return [pool.block_size * table[p // pool.block_size] + p % pool.block_size for p in range(length, length + n)]
""",
        "append_cow": """
def append_cow(pool, table, length, n):
    size = pool.block_size
    last = table[-1] if length % size and n else None
    if last is None or pool.refs[last] == 1:
        append(pool, table, length, n)
        return []
    extra = (length + n + size - 1) // size - len(table)
    first, *rest = allocate(pool, 1 + extra)
    release(pool, [last])
    table[-1] = first
    table.extend(rest)
    return [(last, first)]
""",
        "truncate": """
def truncate(pool, table, length):
    cut = [b for i, b in enumerate(table) if i * pool.block_size >= length]
    table[:] = table[: len(table) - len(cut)]
    release(pool, cut)
""",
    },
    "errors and hashes of one's own": {
        "allocate": """
class PoolFull(MemoryError):
    pass


def allocate(pool, n):
    if len(pool.free) < n:
        raise PoolFull(n)
    taken = list(pool.free)[:n]
    pool.free = pool.free.__class__(list(pool.free)[n:])
    pool.refs = [1 if b in taken else r for b, r in enumerate(pool.refs)]
    pool.cached = {h: b for h, b in pool.cached.items() if b not in taken}
    pool.hashes = [None if b in taken else h for b, h in enumerate(pool.hashes)]
    return taken
""",
        "block_hash": """
from typing import NamedTuple


class Key(NamedTuple):
    parent: object
    tokens: tuple


def block_hash(parent, tokens):
    return Key(parent, tuple(tokens))
""",
        "register": """
def register(pool, table, tokens):
    name = None
    for i, block in enumerate(table[: len(tokens) // pool.block_size]):
        if pool.hashes[block] is None:
            pool.hashes[block] = block_hash(name, tokens[i * pool.block_size :][: pool.block_size])
        name = pool.hashes[block]
        if name not in pool.cached:
            pool.cached[name] = block
""",
    },
    "found by looking through the hashes": {
        "reuse_prefix": """
def reuse_prefix(pool, tokens):
    found, name, rest = [], None, list(tokens)
    while len(rest) > pool.block_size:
        name = block_hash(name, rest[: pool.block_size])
        rest = rest[pool.block_size :]
        if name not in pool.hashes:
            break
        found.append(pool.hashes.index(name))
    for b in found:
        if b in pool.free:
            pool.free.remove(b)
        pool.refs[b] += 1
    return found
""",
    },
    "the hash written out where it is needed": {
        "block_hash": "block_hash = lambda parent, tokens: str((parent, tokens))\n",
        "register": """
def register(pool, table, tokens):
    name, size = None, pool.block_size
    for i in range(0, len(tokens) - size + 1, size):
        name = str((name, tokens[i : i + size]))
        pool.hashes[table[i // size]] = name
        pool.cached[name] = table[i // size]
""",
    },
    "numbers in an array": {
        "fork": """
import numpy as np

def fork(pool, table):
    pool.refs = np.asarray(pool.refs) + np.bincount(np.asarray(table, dtype=int), minlength=len(pool.refs))
    return [*table]
""",
        "block_hash": """
import zlib

def block_hash(parent, tokens):
    return (parent, zlib.adler32(b""), frozenset(enumerate(tokens)).__len__(), tuple(enumerate(tokens)))
""",
    },
}


PARTS = {
    "allocate takes one at a time, and loses them when it raises (inference-sim #1061)": "refused",
    "allocate refuses the last block": "forgets gives keeps_others longest_free_first refused",
    "allocate counts nothing": "forgets gives refused",
    "allocate leaves the blocks in the queue": "forgets gives longest_free_first refused",
    "allocate gives fewer where there are fewer": "refused",
    "allocate writes its table of blocks down and returns nothing": "forgets gives keeps_others longest_free_first refused",
    "double free goes through (vllm #42571)": "again twice unknown",
    "duplicate ids in one free (vllm PR #3347)": "twice",
    "double free refused when half is done": "again unknown",
    "block -1 is the last one": "unknown",
    "shared blocks are freed": "again counts last_block_first twice unknown",
    "counts set to 0": "again counts last_block_first twice unknown",
    "release gives nothing back: a leak": "again counts forgets last_block_first twice unknown",
    "append forgets the room in the last block": "grows refused slots",
    "append adds a block at each border": "grows refused slots",
    "append rounds down": "grows refused slots",
    "a failed append keeps what it took (inference-sim #1061)": "refused",
    "append puts a list into the table": "grows refused slots",
    "append makes a new table": "grows refused slots",
    "slots as if blocks lay side by side": "slots",
    "slots all in the last block: not distinct (vllmini #2)": "slots",
    "slots are positions": "slots",
    "slots for blocks of 4 only": "slots",
    "truncate rounds down": "shortens",
    "truncate keeps a block too many": "leaks_nothing shortens",
    "a leak of one block a request: cut off, not given back (imp #1115)": "leaks_nothing shortens",
    "truncate leaves the table as it is": "leaks_nothing shortens",
    "a negative slice of nothing is everything": "shortens",
    "truncate frees blocks that others hold": "shortens",
    "fork gives the same list": "forks",
    "fork counts nothing": "forks",
    "fork gives a tuple": "forks",
    "fork sets counts to 2": "forks",
    "no copy on write": "copies reads refused",
    "a full block is copied": "copies reads refused",
    "copies what it holds alone": "copies reads refused",
    "copies for nothing": "copies reads refused?",
    "the old block keeps its count: a leak": "copies reads refused",
    "pair the wrong way round": "copies reads",
    "the copy behind the growth": "copies reads",
    "block replaced, not copied": "copies reads",
    "append_cow: no return": "copies reads",
    "a pair in place of a list of pairs": "copies reads",
    "lets go of the shared block before it knows that there is room": "refused",
    "copies every shared block": "copies reads refused",
    "hash of the tokens alone": "tells_blocks_apart",
    "hash of the sum": "tells_blocks_apart",
    "hash without order": "tells_blocks_apart",
    "digits run together": "tells_blocks_apart",
    "hash: base 31": "tells_blocks_apart",
    "hash: base 65,599": "tells_blocks_apart",
    "hash: base 31, bounded": "tells_blocks_apart",
    "hash: bytes of tokens": "tells_blocks_apart",
    "hash: exclusive or": "tells_blocks_apart",
    "hash: a sum of hashes": "tells_blocks_apart",
    "hash: no comma behind the parent": "tells_blocks_apart",
    "a list is no key": "tells_blocks_apart",
    "register: every block a first block": "registers",
    "register: the half-full block too": "registers",
    "register: not in hashes": "registers",
    "register: not in cached": "registers",
    "register: no hash for a twin": "registers",
    "block 0 is taken for none": "finds",
    "found once, and never again": "finds",
    "the whole prompt from the cache (nano-vllm #144)": "finds leaves_one",
    "a whole block left over": "finds",
    "holes in the prefix": "finds",
    "found and not counted": "counts",
    "found, and still in the queue": "counts",
    "taken out of the queue though held": "counts finds leaves_one",
    "looks among free blocks only": "finds",
    "looked up as a first block": "finds",
    "a reused block is found under its old hash (nano-vllm #163, vllm PR #4764)": "forgets",
    "the hash stays with the block": "forgets",
    "the twin's entry goes too": "keeps_others",
    "the whole cache goes": "keeps_others",
    "the newest is evicted": "longest_free_first",
    "the first block is freed first": "last_block_first",
    "freed to the front of the queue": "last_block_first",
    "story: other tokens in the block": "goes_wrong",
    "story: a right hit": "goes_wrong",
    "story: never asked again": "goes_wrong",
    "story: no token left over": "goes_wrong",
    "repair: nothing changed": "mended",
    "repair: held blocks are not counted again": "mended",
    "repair: no cache at all": "mended",
    "repair: the entry goes, wherever it leads": "mended",
    "repair: all entries go": "mended",
    "repair: first blocks are never found": "mended",
    "repair: the last block may be known too": "mended",
    "blocks without a hash go first": "longest_free_first",
    "the lowest number goes first": "longest_free_first",
    "the others lose their places": "longest_free_first",
    "the entry goes, the hash stays": "forgets",
    "a block that is let go of loses its hash": "forgets",
    "a block that is let go of loses its entry": "forgets",
    "release sorts the queue": "last_block_first",
    "release of an empty table is refused": "again counts forgets last_block_first twice unknown",
    "another error for a double free": "again unknown",
    "another error for a full pool": "refused",
    "append takes a block for each token": "grows refused slots",
    "append always takes a new block": "grows refused slots",
    "truncate lets go of the last block only": "leaks_nothing shortens",
    "truncate empties the table and takes new blocks": "shortens",
    "fork counts the first block only": "forks",
    "a block of three is taken for a block of one": "copies reads? refused?",
    "the shared block is released as if nobody else held it": "copies reads refused",
    "hash: by Python's identity": "tells_blocks_apart",
    "hash: an object that is equal to all": "tells_blocks_apart",
    "hash: only the first and last token": "tells_blocks_apart",
    "register: skips what has its hash, and forgets to hand it on": "registers",
    "register: all tokens so far, and the parent": "registers",
    "register: the first block only": "registers",
    "register: entries by number": "registers",
    "reuse_prefix gives the first block only": "finds",
    "reuse_prefix takes new blocks for the rest": "finds leaves_one",
    "an odd list that is as one wants it": "forks",
    "an odd number that is as one wants it": "grows refused slots",
    "register: an entry that is as one wants it": "registers",
    "story: of one prompt": "goes_wrong",
    "story: too long": "goes_wrong",
    "repair: known blocks are not taken out of the queue": "mended",
}
WRONG = [replace(wrong, parts=PARTS[wrong.name]) for wrong in WRONG]
