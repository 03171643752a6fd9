"""The seams for later rooms: features for drafters, paths of verdicts, several runs in a step; fakes stand for them."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref import NGramDrafter, Proposal, SpeculativeEngine
from specdec_ref.cache import PagedKVPool
from specdec_ref.engine.engine import PREFILL_CHUNK
from specdec_ref.interfaces import Drafter, Verdict
from specdec_ref.models import ScriptedModel
from specdec_ref.models.scripted import TokenCache

VOCAB = 7


def scripted(**options):
    """Its distribution depends on all tokens and their places."""

    def distribution(tokens):
        weights = [1 + (sum((i + 1) * t for i, t in enumerate(tokens)) * (x + 1)) % 5 for x in range(VOCAB)]
        return [w / sum(weights) for w in weights]

    return ScriptedModel(distribution, VOCAB, **options)


class Listens(Drafter):
    """Proposes what the target would say (`right`), else junk, and writes down what `commit` is handed."""

    layers = (0, 2)

    def __init__(self, right, target):
        self.right, self.target, self.heard = right, target, []

    def begin(self, target, sampling, capacity):
        self.heard = []
        return self  # so that the test can look into it

    def propose(self, tokens, gamma, source):
        drafted = []
        for i in range(gamma):
            best = max(range(VOCAB), key=self.target.distribution((*tokens, *drafted)).__getitem__)
            drafted.append(best if self.right(i) else (best + 1) % VOCAB)
        return Proposal(drafted)

    def commit(self, tokens, features=None):
        self.heard.append((list(tokens), features))


@pytest.mark.parametrize("right", [lambda i: True, lambda i: False, lambda i: i < 2], ids=["all", "none", "two"])
@pytest.mark.parametrize("prompt", [[3], [1, 2, 3], [1] * (PREFILL_CHUNK + 5)], ids=["one", "three", "two chunks"])
def test_commit_is_handed_the_features_of_each_committed_token_once(right, prompt):
    target = scripted()
    drafter = Listens(right, target)
    result = SpeculativeEngine(target, drafter, 3).generate(prompt, 12)
    seen = []
    for tokens, features in drafter.heard:
        assert len(features) == len(drafter.layers)
        # A scripted model's hidden state is (tokens seen, own id): it says which token it belongs to.
        rows = features[0].tolist()
        assert [row[1] for row in rows] == tokens[-1 - len(rows) : -1]
        seen += rows
    whole = [*prompt, *result.tokens]
    assert seen == [[i + 1, t] for i, t in enumerate(whole[:-1])]
    assert result.stats.accepted > 0 or right(0) is False


def test_features_are_those_of_a_pass_over_the_whole_text():
    target = tiny_llama(1)
    heard = []

    class Hears(Drafter):
        layers = (0, 1, 2)

        def propose(self, tokens, gamma, source):
            return Proposal([(tokens[-1] + 1) % 13] * gamma)

        def commit(self, tokens, features=None):
            heard.append(features)

    result = SpeculativeEngine(target, Hears(), 3).generate([1, 2, 3], 9, eos_token_id=None)
    whole = torch.tensor([1, 2, 3, *result.tokens])[:-1]
    want = target.forward_pass(whole, target.new_cache(20), layers=Hears.layers).features
    for layer, expected in enumerate(want):
        torch.testing.assert_close(torch.cat([f[layer] for f in heard]), expected)


def test_a_drafter_that_reads_features_gets_them_for_a_prompt_that_the_pool_knows():
    target, heard = tiny_llama(1), []

    class Hears(Drafter):
        layers = (1,)

        def propose(self, tokens, gamma, source):
            return Proposal([])

        def commit(self, tokens, features=None):
            heard.append(len(features[0]))

    pool = PagedKVPool(target, 20, 2)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    plain = SpeculativeEngine(target, pool=pool).generate(prompt, 3).tokens
    got = SpeculativeEngine(target, Hears(), 2, pool=pool).generate(prompt, 3)
    assert got.tokens == plain and heard[0] == len(prompt) - 1
    assert pool.block_pool.num_used == 0


def test_a_target_that_shows_no_hidden_states_is_refused_at_once():
    class Bare:
        vocab_size, max_context, eos_token_ids, tokenizer, device = VOCAB, None, (), None, torch.device("cpu")

        def new_cache(self, capacity):
            return TokenCache()

        def forward(self, tokens, cache, rows=slice(None)):
            return scripted().forward(tokens, cache, rows)

    SpeculativeEngine(Bare()).generate([1], 2)
    with pytest.raises(ValueError, match="reads hidden states of the target"):
        SpeculativeEngine(Bare(), Listens(lambda i: True, scripted()), 2)


# Paths


class Skips:
    """A rule that keeps every second draft, as a tree's rule does; the target here looks at the newest token alone."""

    def __call__(self, proposal, p, source):
        path = tuple(range(1, len(proposal.tokens), 2))
        return Verdict(len(path), source.categorical(p[len(proposal.tokens)]), "bonus", path)


def test_a_verdict_with_a_path_keeps_those_drafts_and_their_places_in_the_cache():
    target = ScriptedModel(lambda tokens: [1 / VOCAB] * VOCAB, VOCAB)
    caches = []

    class Counts(Drafter):
        def propose(self, tokens, gamma, source):
            return Proposal([len(tokens) % VOCAB, 6, 5, 4, 3][:gamma])

    engine = SpeculativeEngine(target, Counts(), 5, rule=Skips())
    result = engine.generate(
        [1, 2],
        9,
        temperature=1.0,
        seed=3,
        on_round=lambda run, round_: caches.append((list(run.cache.tokens), run.tokens[:-1], round_.verdict.indices)),
    )
    assert any(kept == (1, 3) for _, _, kept in caches), "no round kept drafts with gaps between them"
    assert all(held == committed for held, committed, _ in caches)
    assert result.tokens[:2] == [6, 4] and result.stats.accepted_by_position[:2] != [0, 0]


@pytest.mark.parametrize("path", [(1, 0), (0, 0), (0, 7), (-1, 0)])
def test_a_path_that_does_not_rise_through_the_proposal_is_an_error(path):
    class Keeps(Drafter):
        def propose(self, tokens, gamma, source):
            return Proposal([1, 2, 3][:gamma])

    engine = SpeculativeEngine(scripted(), Keeps(), 3, rule=lambda proposal, p, source: Verdict(2, 1, "bonus", path))
    with pytest.raises(ValueError, match="rising indices"):
        engine.generate([1], 9)


# Several runs in a step


def test_runs_that_share_their_steps_write_what_each_writes_alone():
    target = tiny_llama(1)
    engine = SpeculativeEngine(target, NGramDrafter(), 2)
    prompts = [[1, 2, 3], [4], [5, 6]]
    alone = [engine.generate(p, 8, temperature=1.0, seed=i).tokens for i, p in enumerate(prompts)]
    runs = [engine.start(p, 8, temperature=1.0, seed=i) for i, p in enumerate(prompts)]
    steps = 0
    while going := [run for run in runs if run.finish_reason is None]:
        assert len(engine.step(going)) == len(going)
        steps += 1
    assert [run.generation().tokens for run in runs] == alone
    assert steps <= 8


def test_a_run_that_is_over_cannot_be_stepped():
    engine = SpeculativeEngine(scripted())
    run = engine.start([1], 0)
    assert run.finish_reason == "length" and run.generation().tokens == []
    with pytest.raises(ValueError, match="this run is over"):
        engine.step([run])


def test_a_run_that_is_given_up_gives_its_blocks_back():
    target = tiny_llama(1)
    pool = PagedKVPool(target, 20, 2)
    engine = SpeculativeEngine(target, pool=pool)
    run = engine.start([1, 2, 3, 4, 5], 20)
    assert pool.block_pool.num_used == 0, "nothing is held before the first step"
    engine.step([run])
    assert pool.block_pool.num_used > 0
    run.release()
    assert pool.block_pool.num_used == 0


# Streams


def test_a_stream_has_its_result_at_the_end_and_not_before():
    engine = SpeculativeEngine(scripted())
    stream = engine.stream([1], 4)
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = stream.result
    chunks = list(stream)
    assert [t for chunk in chunks for t in chunk.tokens] == stream.result.tokens and len(stream.result.tokens) == 4
    assert list(stream) == [] and stream.read() is stream.result


def test_a_closed_stream_gives_back_its_blocks_and_has_no_result():
    target = tiny_llama(1)
    pool = PagedKVPool(target, 20, 2)
    stream = SpeculativeEngine(target, pool=pool).stream([1, 2, 3], 20)
    next(stream)
    assert pool.block_pool.num_used
    stream.close()
    assert pool.block_pool.num_used == 0
    assert list(stream) == []
    with pytest.raises(RuntimeError):
        _ = stream.result


# Kinds of caches


def test_a_model_makes_the_kind_of_cache_that_it_is_asked_for():
    from specdec_ref.cache import DenseCache

    class Counting(DenseCache):
        reads = 0

        def attend(self, *args):
            type(self).reads += 1
            return super().attend(*args)

    model = tiny_llama(1)
    cache, plain = model.new_cache(8, Counting), model.new_cache(8)
    tokens = torch.tensor([1, 2, 3])
    torch.testing.assert_close(model.forward(tokens, cache), model.forward(tokens, plain))
    assert type(cache) is Counting and Counting.reads == model.config.n_layers and type(plain) is DenseCache
