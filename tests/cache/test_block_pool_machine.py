"""Random walks through the block pool, in step with lists and dictionaries, and planted bugs that they must find."""

import copy
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specdec_ref.cache import block_pool

SOURCE = Path(block_pool.__file__).read_text(encoding="utf-8")

# Mostly one token, so that texts often begin alike.
tokens_of = {n: st.tuples(*[st.sampled_from([0, 0, 0, 1])] * n) for n in range(8)}
token_lists = st.sampled_from(range(8)).flatmap(tokens_of.__getitem__)
extras = st.sampled_from(["", "", "adapter"])


class PoolMachine(RuleBasedStateMachine):
    """What the pool should do, said with plain containers.

    `memory` stands for the tensors: a slot holds all that a key or value depends on, the extra key and the tokens up
    to its own, so a sequence that reads anything else through its table has been given a wrong block.
    """

    module: types.ModuleType = block_pool

    @initialize(num_blocks=st.sampled_from([8, 12, 5, 16, 2, 1]), block_size=st.sampled_from([2, 3, 4, 1]))
    def build(self, num_blocks, block_size):
        self.pool = self.module.BlockPool(num_blocks, block_size)
        self.size = block_size
        self.texts = {}  # sequence: (extra key, tokens)
        self.tables = {}  # sequence: the pool's table
        self.memory = {}  # (block, offset): (extra key, tokens up to here)
        self.idle = list(range(num_blocks))  # free blocks, longest free first
        self.labels = {}  # block: (extra key, tokens up to its end) that it was registered for
        self.known = {}  # the reverse: the blocks registered for it, of which the latest is found
        self.names = iter(range(10**6))

    def holders(self, block):
        return sum(block in table for table in self.tables.values())

    def forget(self, block):
        label = self.labels.pop(block, None)
        if label is not None:
            self.known[label].remove(block)
            if not self.known[label]:
                del self.known[label]

    def let_go(self, blocks):
        """Blocks that left a table: those in no other are idle, the last of the sequence first."""
        self.idle += [block for block in reversed(blocks) if not self.holders(block)]

    def snapshot(self):
        blocks = [(b.refs, b.hash, b.key) for b in self.pool.blocks]
        tables = {name: list(table) for name, table in self.tables.items()}
        return blocks, list(self.pool.free_queue), copy.deepcopy(self.pool.cached), tables

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.texts)), label="sequence")

    def grow(self, name, new_tokens):
        """Append tokens to a sequence; returns False, with nothing changed, if they do not fit."""
        table, (extra, old) = self.tables[name], self.texts[name]
        expected, end = list(table), len(old) + len(new_tokens)
        writes_last = new_tokens and len(old) % self.size
        copies = bool(writes_last and self.holders(table[-1]) > 1)
        need = -(-end // self.size) - len(table) + copies
        before = self.snapshot()
        try:
            moved = self.pool.extend(table, len(old), end)
        except self.module.OutOfBlocks as error:
            assert need > len(self.idle)
            assert (error.asked, error.free) == (need, len(self.idle))
            assert self.snapshot() == before
            return False
        assert need <= len(self.idle)
        fresh, self.idle = self.idle[:need], self.idle[need:]
        for block in fresh:
            self.forget(block)
        if copies:
            assert moved == [(expected[-1], fresh[0])]
            expected.pop()
        else:
            assert moved == []
            if writes_last:
                self.forget(expected[-1])
        assert table == expected + fresh
        for source, target in moved:
            for offset in range(self.size):
                self.memory[target, offset] = self.memory.get((source, offset))
        text = old + new_tokens
        for i in range(len(old), end):
            block = table[i // self.size]
            assert self.holders(block) == 1 and block not in self.labels
            self.memory[block, i % self.size] = (extra, text[: i + 1])
        self.texts[name] = (extra, text)
        return True

    def drop(self, name):
        table = self.tables.pop(name)
        del self.texts[name]
        self.pool.free(table)
        self.let_go(table)

    @precondition(lambda self: len(self.texts) < 5)
    @rule(data=st.data(), tail=token_lists, extra=extras, commit=st.booleans())
    def start(self, data, tail, extra, commit):
        """A prompt, often one that goes on where a registered block ended."""
        heads = sorted(tokens for key, tokens in self.known if key == extra)
        tokens = data.draw(st.sampled_from([*heads, ()]), label="head") + tail
        expected = []
        for end in range(self.size, len(tokens), self.size):
            if (extra, tokens[:end]) not in self.known:
                break
            expected.append(self.known[extra, tokens[:end]][-1])
        table = self.pool.reuse_prefix(tokens, extra)
        assert table == expected
        self.idle = [block for block in self.idle if block not in table]
        name = next(self.names)
        self.tables[name] = table
        self.texts[name] = (extra, tokens[: len(table) * self.size])
        if not self.grow(name, tokens[len(table) * self.size :]):
            self.drop(name)
        elif commit:
            self.register(name)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tokens=token_lists)
    def append(self, data, tokens):
        self.grow(self.pick(data), tokens)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def commit(self, data):
        self.register(self.pick(data))

    def register(self, name):
        table, (extra, tokens) = self.tables[name], self.texts[name]
        self.pool.register(table, tokens, extra)
        for i in range(len(tokens) // self.size):
            if table[i] not in self.labels:
                self.labels[table[i]] = (extra, tokens[: (i + 1) * self.size])
                self.known.setdefault(self.labels[table[i]], []).append(table[i])

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def roll_back(self, data):
        name = self.pick(data)
        self.truncate(name, data.draw(st.integers(0, len(self.texts[name][1])), label="length"))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), drafts=token_lists, correction=st.integers(0, 1), early=st.booleans())
    def round(self, data, drafts, correction, early):
        """One round of speculation; `early` registers drafts before they are verified, which must do no harm."""
        name = self.pick(data)
        start = len(self.texts[name][1])
        if self.grow(name, drafts):
            if early:
                self.register(name)
            self.truncate(name, start + data.draw(st.integers(0, len(drafts)), label="accepted"))
            self.grow(name, (correction,))
            self.register(name)

    def truncate(self, name, length):
        table, (extra, tokens) = self.tables[name], self.texts[name]
        keep = -(-length // self.size)
        kept, cut = table[:keep], table[keep:]
        self.pool.truncate(table, length)
        assert table == kept
        self.texts[name] = (extra, tokens[:length])
        self.let_go(cut)

    @precondition(lambda self: 0 < len(self.texts) < 5)
    @rule(data=st.data())
    def fork(self, data):
        name, twin = self.pick(data), next(self.names)
        self.tables[twin] = self.pool.share(self.tables[name])
        self.texts[twin] = self.texts[name]
        assert self.tables[twin] == self.tables[name]
        assert self.tables[twin] is not self.tables[name]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def stop(self, data):
        self.drop(self.pick(data))

    @rule(data=st.data(), surplus=st.integers(1, 3))
    def misuse(self, data, surplus):
        """Everything that must be refused is, and leaves no trace."""
        before = self.snapshot()
        held = [table for table in self.tables.values() if table]
        table = data.draw(st.sampled_from(held), label="table") if held else []
        total = len(self.pool.blocks)
        wrong = [[*table, total], [*table, -1]]
        wrong += [[*table, self.idle[0]]] if self.idle else []
        wrong += [[*table, table[0]]] if table else []
        for blocks in wrong:
            for call in (self.pool.free, self.pool.share):
                with pytest.raises(ValueError, match="unknown, free already, or named twice"):
                    call(blocks)
        for length in (-1, len(table) * self.size + 1):
            with pytest.raises(ValueError, match="cannot truncate"):
                self.pool.truncate(table, length)
        with pytest.raises(self.module.OutOfBlocks) as error:
            self.pool.allocate(len(self.idle) + surplus)
        assert (error.value.asked, error.value.free) == (len(self.idle) + surplus, len(self.idle))
        assert self.snapshot() == before

    @invariant()
    def counts_are_conserved(self):
        blocks = self.pool.blocks
        assert [b.refs for b in blocks] == [self.holders(b.id) for b in blocks]
        assert list(self.pool.free_queue) == self.idle
        assert self.pool.num_free == len(self.idle)
        assert self.pool.num_used + self.pool.num_free == len(blocks)

    @invariant()
    def every_sequence_reads_its_own_text(self):
        for name, (extra, tokens) in self.texts.items():
            table = self.tables[name]
            slots = [(table[i // self.size], i % self.size) for i in range(len(tokens))]
            assert len(set(slots)) == len(tokens) and len(table) == -(-len(tokens) // self.size)
            assert [self.memory[s] for s in slots] == [(extra, tokens[: i + 1]) for i in range(len(tokens))]

    @invariant()
    def no_hash_is_stale(self):
        assert {b.id for b in self.pool.blocks if b.hash} == set(self.labels)
        assert sorted(map(list, self.pool.cached.values())) == sorted(self.known.values())
        for block, (extra, tokens) in self.labels.items():
            assert self.pool.blocks[block].key[1:] == (tokens[-self.size :], extra)
            assert self.memory[block, self.size - 1] == (extra, tokens)


def walk(module, examples, steps):
    machine = type("Machine", (PoolMachine,), {"module": module})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_pool_and_model_agree_over_thousands_of_operations():
    walk(block_pool, examples=200, steps=50)


@pytest.mark.slow
def test_pool_and_model_agree_over_many_thousands_of_operations():
    walk(block_pool, examples=2000, steps=80)


# Name: (a line of the pool, the same with the bug).
PLANTED = {
    "reused block keeps its hash": ("            self._forget(block)\n", ""),
    "forgotten hash stays in the index": ("del self.cached[known.hash][block]", "pass"),
    "empty entry stays in the index": ("                del self.cached[known.hash]\n", "                pass\n"),
    "forgetting a block unlists its twins": (
        "del self.cached[known.hash][block]\n            if not self.cached[known.hash]:",
        "self.cached[known.hash].clear()\n            if True:",
    ),
    "equal block takes the place of the one before": (
        "self.cached.setdefault(block.hash, {})[block.id] = None",
        "self.cached[block.hash] = {block.id: None}",
    ),
    "cached block stays in the free queue": ("self.free_queue.pop(block, None)", "pass"),
    "cached block is not counted": (
        "self.free_queue.pop(block, None)\n            self.blocks[block].refs += 1",
        "self.free_queue.pop(block, None)",
    ),
    "wholly cached prompt leaves nothing to compute": ("range((len(tokens) - 1) //", "range(len(tokens) //"),
    "hash without the parent": ("return parent, tuple(", "return b'', tuple("),
    "hash without the extra key": (" * self.block_size])), extra", " * self.block_size])), ''"),
    "half-full block is registered": ("full = len(tokens) // self.block_size", "full = len(table)"),
    "block named twice is freed twice": (" or len(set(table)) != len(table)", ""),
    "free block is freed again": (" or self.blocks[b].refs == 0]", "]"),
    "negative block counts from the end": ("if not 0 <= b < len(", "if not b < len("),
    "shared block is freed with its first owner": (
        ".refs == 0:\n                self.free_queue",
        ".refs >= 0:\n                self.free_queue",
    ),
    "prefix is freed before what was built on it": ("in reversed(table)", "in table"),
    "block freed last is handed out first": ("popitem(last=False)", "popitem(last=True)"),
    "last free block is never handed out": ("if n > self.num_free", "if n >= self.num_free"),
    "fork is not counted": (
        "        for block in table:\n            self.blocks[block].refs += 1\n        return list(table)",
        "        return list(table)",
    ),
    "fork returns the same list": ("return list(table)", "return table"),
    "shared block is written in place": ("shared = half_full and", "shared = False and"),
    "block of one owner is copied": ("self.blocks[table[-1]].refs > 1", "self.blocks[table[-1]].refs > 0"),
    "full shared block is copied": (
        "half_full = new_length > length and length % self.block_size > 0",
        "half_full = new_length > length > 0",
    ),
    "append of nothing copies": ("half_full = new_length > length and ", "half_full = "),
    "copied block keeps the old count": ("self.blocks[copies[0][0]].refs -= 1", "pass"),
    "copy is not in the number asked for": ("- len(table) + shared)", "- len(table))"),
    "overwritten block keeps its hash": ("            self._forget(table[-1])\n", "            pass\n"),
    "failed append loses the table": (
        "        fresh = self.allocate(self.blocks_for(new_length) - len(table) + shared)",
        "        held, table[:] = list(table), []\n"
        "        fresh = self.allocate(self.blocks_for(new_length) - len(held) + shared)\n"
        "        table[:] = held",
    ),
    "rollback leaks the block at the border": (
        "keep = self.blocks_for(length)",
        "keep = min(len(table), length // self.block_size + 1)",
    ),
    "rollback frees the half-full block": ("keep = self.blocks_for(length)", "keep = length // self.block_size"),
    "rollback shortens the table only": ("        self.free(table[keep:])\n", ""),
    "rollback to a negative length": ("if not 0 <= length <= len(table) * ", "if not length <= len(table) * "),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_caught(name):
    good, bad = PLANTED[name]
    assert SOURCE.count(good) == 1, f"the line to spoil is not in the pool exactly once: {good!r}"
    module = types.ModuleType("spoiled_block_pool")
    exec(SOURCE.replace(good, bad), module.__dict__)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        walk(module, examples=3000, steps=40)
    assert not isinstance(caught.value, (NameError, SyntaxError))
