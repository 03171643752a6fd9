"""The paged cache against one dense cache a sequence, over thousands of operations, and with planted bugs."""

import contextlib
import copy
import types
from pathlib import Path

import pytest
import torch
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

from specdec_ref.cache import paged
from specdec_ref.cache.block_pool import OutOfBlocks
from specdec_ref.cache.dense import DenseCache
from specdec_ref.kernels import attention

LAYERS, HEADS, DIM = 2, 2, 2
MODEL = types.SimpleNamespace(
    config=types.SimpleNamespace(n_layers=LAYERS, n_kv_heads=HEADS, head_dim=DIM), dtype=torch.float64, device="cpu"
)

# Mostly one token, so that texts often begin alike.
token_lists = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=7).map(tuple)


class CacheMachine(RuleBasedStateMachine):
    """Each sequence lives twice: paged, and in a dense cache of its own that is copied for a fork."""

    module: types.ModuleType = paged
    attention = staticmethod(attention.paged_attention)

    @initialize(num_blocks=st.sampled_from([8, 12, 5, 16, 2]), block_size=st.sampled_from([2, 3, 4, 1]))
    def build(self, num_blocks, block_size):
        self.pool = self.module.PagedKVPool(MODEL, num_blocks, block_size, self.attention)
        # A slot that nobody wrote shows in every sum it enters.
        self.pool.keys.fill_(torch.nan)
        self.pool.values.fill_(torch.nan)
        self.size = block_size
        self.texts = {}  # sequence: its tokens
        self.caches = {}
        self.dense = {}
        self.offered = {}  # sequence: how many of its tokens it has offered for reuse and still holds
        self.numbers = {}  # tokens up to a position: what stands for its key
        self.names = iter(range(10**6))

    def key_of(self, layer, text):
        """A key depends on all tokens up to its own."""
        number = self.numbers.setdefault(text, len(self.numbers) + 1)
        return [[number + 0.1 * layer + 0.01 * head + 0.001 * i for i in range(DIM)] for head in range(HEADS)]

    def new_tokens(self, layer, text, start):
        keys = torch.tensor([self.key_of(layer, text[: i + 1]) for i in range(start, len(text))], dtype=torch.float64)
        keys = keys.view(-1, HEADS, DIM).transpose(0, 1)
        return keys, -keys

    def run_pass(self, cache, text, start, layers=LAYERS):
        """What a model does with a cache; returns what each layer saw."""
        n = len(text) - start
        cache.reserve(n)
        rows = torch.arange(1, 2 * n * DIM + 1, dtype=torch.float64).div(3 * n * DIM).view(1, 2 * n, DIM)
        mask = torch.ones(n, len(text), dtype=torch.bool).tril(start).repeat(2, 1)
        q = rows.expand(HEADS, -1, -1)
        return [cache.attend(layer, q, *self.new_tokens(layer, text, start), mask) for layer in range(layers)]

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.texts)), label="sequence")

    def snapshot(self):
        blocks = [(b.refs, b.hash, b.key) for b in self.pool.block_pool.blocks]
        sequences = {name: (list(cache.table), cache.length) for name, cache in self.caches.items()}
        return blocks, list(self.pool.block_pool.free_queue), copy.deepcopy(self.pool.block_pool.cached), sequences

    def refused(self, cache, error, n):
        """Whether so many tokens really did not fit."""
        held = self.pool.block_pool.blocks_for(cache.length)
        shared = cache.length % self.size > 0 and self.pool.block_pool.blocks[cache.table[-1]].refs > 1
        need = self.pool.block_pool.blocks_for(cache.length + n) - held + bool(shared and n)
        return error.asked == need > error.free == self.pool.block_pool.num_free

    def grow(self, name, tokens):
        """Take tokens in; returns False, with nothing changed, if they do not fit."""
        cache, text = self.caches[name], self.texts[name]
        start, longer = len(text), text + tokens
        held = cache.table[: self.pool.block_pool.blocks_for(start)]
        known = copy.deepcopy(self.pool.block_pool.cached)
        try:
            got = self.run_pass(cache, longer, start)
        except OutOfBlocks as error:
            assert (cache.table, cache.length, self.pool.block_pool.cached) == (held, start, known)
            assert self.refused(cache, error, len(tokens))
            return False
        cache.advance(len(tokens))
        want = self.run_pass(self.dense[name], longer, start)
        self.dense[name].advance(len(tokens))
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        self.texts[name] = longer
        return True

    def drop(self, name):
        self.caches[name].truncate(0)
        for of_sequence in (self.caches, self.texts, self.dense, self.offered):
            del of_sequence[name]

    @precondition(lambda self: len(self.texts) < 5)
    @rule(data=st.data(), tail=token_lists, register=st.booleans())
    def start(self, data, tail, register):
        """A prompt, often one that goes on where another sequence stands."""
        prompt = data.draw(st.sampled_from([*sorted(set(self.texts.values())), ()]), label="head") + tail
        found = 0
        for name, text in self.texts.items():
            known, i = text[: self.offered[name]], 0
            while i < min(len(known), len(prompt) - 1) and known[i] == prompt[i]:
                i += 1
            found = max(found, i // self.size * self.size)
        name = next(self.names)
        cache = self.caches[name] = self.pool.new_sequence(prompt)
        assert cache.length % self.size == 0
        assert found <= cache.length <= max(0, len(prompt) - 1)
        self.texts[name], self.offered[name] = prompt[: cache.length], cache.length
        self.dense[name] = DenseCache(LAYERS, HEADS, DIM, 400, torch.float64)
        if cache.length:
            self.run_pass(self.dense[name], self.texts[name], 0)
            self.dense[name].advance(cache.length)
        self.contents_are_those_of_the_dense_cache()
        if not self.grow(name, prompt[cache.length :]):
            self.drop(name)
        elif register:
            self.register(name)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tokens=token_lists)
    def append(self, data, tokens):
        self.grow(self.pick(data), tokens)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tokens=token_lists, layers=st.integers(0, LAYERS))
    def break_off(self, data, tokens, layers):
        """A pass that fails on its way: what was reserved or written does not count."""
        name = self.pick(data)
        wrong = self.texts[name] + tuple(1 - token for token in tokens)
        with contextlib.suppress(OutOfBlocks):
            self.run_pass(self.caches[name], wrong, len(self.texts[name]), layers)
        self.offered[name] = min(self.offered[name], len(self.texts[name]) // self.size * self.size)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def commit(self, data):
        self.register(self.pick(data))

    def register(self, name):
        self.caches[name].register(self.texts[name])
        self.offered[name] = len(self.texts[name]) // self.size * self.size

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def roll_back(self, data):
        name = self.pick(data)
        self.truncate(name, data.draw(st.integers(0, len(self.texts[name])), label="length"))

    def truncate(self, name, length):
        self.caches[name].truncate(length)
        self.dense[name].truncate(length)
        self.texts[name] = self.texts[name][:length]
        self.offered[name] = min(self.offered[name], length // self.size * self.size)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), drafts=token_lists, correction=st.integers(0, 1))
    def round(self, data, drafts, correction):
        """One round of speculation: take drafts in, keep some, go on with another token."""
        name = self.pick(data)
        start = len(self.texts[name])
        if self.grow(name, drafts):
            self.truncate(name, start + data.draw(st.integers(0, len(drafts)), label="accepted"))
            self.grow(name, (correction,))
            self.register(name)

    @precondition(lambda self: 0 < len(self.texts) < 5)
    @rule(data=st.data())
    def fork(self, data):
        name, twin = self.pick(data), next(self.names)
        free = self.pool.block_pool.num_free
        held = len(self.caches[name].table)
        self.caches[twin] = self.caches[name].fork()
        # A fork takes nothing; it may give back what a broken pass had reserved.
        assert self.pool.block_pool.num_free == free + held - len(self.caches[name].table)
        self.dense[twin] = copy.deepcopy(self.dense[name])
        self.texts[twin], self.offered[twin] = self.texts[name], self.offered[name]
        assert len(self.caches[twin].table) == self.pool.block_pool.blocks_for(len(self.texts[twin]))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def stop(self, data):
        self.drop(self.pick(data))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def restart(self, data):
        """A cache that was emptied, or never used, takes over a prefix as a new one does."""
        name = self.pick(data)
        prompt = self.texts[name]
        if prompt:
            with pytest.raises(ValueError, match="only an empty one"):
                self.caches[name].reuse(prompt)
        self.truncate(name, 0)
        self.caches[name].reserve(data.draw(st.integers(0, 1), label="left over") and self.pool.block_pool.num_free)
        self.caches[name].reuse(prompt)
        self.texts[name] = prompt[: self.caches[name].length]
        self.offered[name] = len(self.texts[name])
        if self.texts[name]:
            self.run_pass(self.dense[name], self.texts[name], 0)
            self.dense[name].advance(len(self.texts[name]))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), surplus=st.integers(1, 9))
    def misuse(self, data, surplus):
        """Everything that must be refused is, and leaves no trace."""
        name = self.pick(data)
        cache, text = self.caches[name], self.texts[name]
        before = self.snapshot()
        for length in (-surplus, len(text) + surplus):
            with pytest.raises(ValueError, match="cannot truncate"):
                cache.truncate(length)
        with pytest.raises(ValueError, match="register those it took in"):
            cache.register(text + (0,) * surplus)
        assert self.snapshot() == before

    @invariant()
    def counts_are_conserved(self):
        blocks = self.pool.block_pool
        held = [block for cache in self.caches.values() for block in cache.table]
        assert [b.refs for b in blocks.blocks] == [held.count(b.id) for b in blocks.blocks]
        assert blocks.num_used == len(set(held)) == len(blocks.blocks) - blocks.num_free
        assert sum(cache.nbytes for cache in self.caches.values()) == len(held) * self.pool.nbytes // len(blocks.blocks)

    @invariant()
    def contents_are_those_of_the_dense_cache(self):
        for name, cache in self.caches.items():
            n = len(self.texts[name])
            assert cache.length == n
            slots = cache.slots(0, n).tolist()
            assert len(set(slots)) == n
            assert slots == [cache.table[i // self.size] * self.size + i % self.size for i in range(n)]
            keys, values = cache.gather()
            assert torch.equal(keys, self.dense[name].keys[:, :, :n])
            assert torch.equal(values, self.dense[name].values[:, :, :n])

    def teardown(self):
        for name in list(self.texts):
            self.drop(name)
        assert self.pool.block_pool.num_used == 0


def walk(module, paged_attention, examples, steps):
    machine = type("Machine", (CacheMachine,), {"module": module, "attention": staticmethod(paged_attention)})
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


def test_paged_and_dense_agree_over_thousands_of_operations():
    walk(paged, attention.paged_attention, examples=70, steps=40)


@pytest.mark.slow
def test_paged_and_dense_agree_over_many_thousands_of_operations():
    walk(paged, attention.paged_attention, examples=1500, steps=60)


# Name: (a line of the cache, the same with the bug).
PLANTED = {
    "a reused prefix counts the whole prompt": (
        "self.length = len(self.table) * self",
        "self.length = len(tokens) or self",
    ),
    "a reused prefix is not counted": ("self.length = len(self.table) * self.pool.block_pool.block_size", "pass"),
    "a prefix is taken over by a cache in use": (
        'raise ValueError(f"this cache holds {self.length} tokens: only',
        'str(f"this cache holds {self.length} tokens: only',
    ),
    "a prefix replaces blocks that are held": ("        self.truncate(0)\n", ""),
    "drafts are registered before they are held": ("if len(tokens) > self.length:", "if False:"),
    "a fork keeps what a broken pass reserved": (
        "        self.truncate(self.length)\n        twin",
        "        twin",
    ),
    "a fork is not counted": ("self.pool.block_pool.share(self.table), self.length", "list(self.table), self.length"),
    "a fork shares the list itself": (
        "twin.table, twin.length = self.pool.block_pool.share(self.table), self.length",
        "twin.table, twin.length = self.table, self.length\n        self.pool.block_pool.share(self.table)",
    ),
    "a fork begins empty": ("self.pool.block_pool.share(self.table), self.length", "[], 0"),
    "slots ignore the table": ("self.table[i // size] * size", "i // size * size"),
    "slots of a block run backwards": ("+ i % size", "+ (size - 1 - i % size)"),
    "slots of a block coincide": ("+ i % size", "+ 0"),
    "what a broken pass reserved stays": (
        "        self.truncate(self.length)  # a pass that broke off has left its blocks behind\n",
        "",
    ),
    "a copied block gets no values": (
        "for tensor in (self.pool.keys, self.pool.values):",
        "for tensor in (self.pool.keys,):",
    ),
    "a copied block gets its first layer only": (
        "tensor[:, :, target] = tensor[:, :, source]",
        "tensor[0, :, target] = tensor[0, :, source]",
    ),
    "a block is copied the wrong way": (
        "tensor[:, :, target] = tensor[:, :, source]",
        "tensor[:, :, source] = tensor[:, :, target]",
    ),
    "a shared block is not copied": ("tensor[:, :, target] = tensor[:, :, source]", "pass"),
    "new tokens are written from the start": ("self.slots(self.length, end)", "self.slots(0, n_tokens)"),
    "all layers write into one": ("self.pool.keys[layer]", "self.pool.keys[0]"),
    "values are written as keys": (
        "value_pool.flatten(1, 2).index_copy_(1, self._new_slots, values)",
        "value_pool.flatten(1, 2).index_copy_(1, self._new_slots, keys)",
    ),
    "new tokens do not see themselves": (
        "self.length + keys.shape[1], mask)",
        "self.length, mask[:, : self.length] if mask is not None else None)",
    ),
    "the mask is lost": ("self.length + keys.shape[1], mask)", "self.length + keys.shape[1])"),
    "a pass counts one token": ("self.length += n_tokens", "self.length += min(1, n_tokens)"),
    "rollback leaks blocks": ("        self.pool.block_pool.truncate(self.table, length)\n", ""),
    "rollback keeps the count": ("        self.length = length\n", ""),
    "rollback to any length": ("        check_truncate(self.length, length)\n", ""),
}

PLANTED_IN_ATTENTION = {
    "the rest of the last block is attended to": ("[:, :length] for pool", " for pool"),
    "blocks in the order of the pool": ("index_select(1, table)", "index_select(1, table.sort().values)"),
    "values are keys": ("for pool in (keys, values)", "for pool in (keys, keys)"),
}


def spoiled(module, good, bad):
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(good) == 1, f"the line to spoil is not there exactly once: {good!r}"
    spoiled_module = types.ModuleType("spoiled")
    exec(source.replace(good, bad), spoiled_module.__dict__)
    return spoiled_module


def test_a_copy_without_a_bug_passes():
    """So what is caught below is the bug, not the copying."""
    line = "self.length = length"
    walk(spoiled(paged, line, line), attention.paged_attention, examples=5, steps=40)


def expect_caught(module, paged_attention):
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        walk(module, paged_attention, examples=500, steps=40)
    assert not isinstance(caught.value, (NameError, SyntaxError))


@pytest.mark.parametrize("name", PLANTED)
def test_a_bug_planted_in_the_paged_cache_is_caught(name):
    expect_caught(spoiled(paged, *PLANTED[name]), attention.paged_attention)


@pytest.mark.parametrize("name", PLANTED_IN_ATTENTION)
def test_a_bug_planted_in_paged_attention_is_caught(name):
    expect_caught(paged, spoiled(attention, *PLANTED_IN_ATTENTION[name]).paged_attention)
