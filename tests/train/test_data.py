"""Answers in batches, shards on disk, and runs that go on where they were."""

import copy
import json
from collections import Counter

import pytest
import torch
from support.chatting import chatting_llama

from specdec_ref.engine import SpeculativeEngine
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.models.llama import Llama
from specdec_ref.proof.goodness import g_test
from specdec_ref.train.answers import Request, answers
from specdec_ref.train.batch import LlamaRows
from specdec_ref.train.data import DataOptions, make_data, plan, progress
from specdec_ref.train.prompts import build_prompts
from specdec_ref.train.shards import Example, read_folder, read_recipe, shard_numbers, write_shard

FEW = DataOptions(max_new_tokens=6, shard=8, per_kind=2, per_unseen_kind=1)


@pytest.fixture(scope="module")
def model() -> Llama:
    return chatting_llama(3)


def some_requests(temperature: float) -> list[Request]:
    return [Request(i, [7 + i, 40, 3 * i] * (1 + i % 3), temperature, f"seed {i}") for i in range(9)]


@pytest.mark.parametrize("n_rows", [1, 4, 16])
def test_a_batch_answers_as_the_engine_does_one_by_one(model, n_rows):
    ends = range(0, 257, 12)
    found = dict(answers(LlamaRows(model, n_rows, 64), n_rows, some_requests(0.0), 20, ends))
    engine = SpeculativeEngine(model)
    want = {r.index: engine.generate(r.tokens, 20, eos_token_id=ends).tokens for r in some_requests(0.0)}
    assert found == want
    assert len({len(tokens) for tokens in found.values()}) > 1, "no answer ended early: rows were never refilled"


def test_a_sampled_answer_does_not_depend_on_what_is_answered_beside_it(model):
    requests = some_requests(1.0)
    alone = dict(answers(LlamaRows(model, 1, 64), 1, requests, 20, model.eos_token_ids))
    beside = dict(answers(LlamaRows(model, 5, 64), 5, requests[::-1], 20, model.eos_token_ids))
    assert alone == beside and len(set(map(tuple, alone.values()))) == len(alone)


def test_sampled_answers_have_the_targets_distribution(model):
    prompt, n, heat = [65, 66, 67], 900, 3.0
    requests = [Request(i, prompt, heat, str(i)) for i in range(n)]
    bins = Counter(tokens[0] % 5 for _, tokens in answers(LlamaRows(model, 64, 8), 64, requests, 1, ()))
    p = torch.softmax(model(torch.tensor(prompt), model.new_cache(3), slice(2, None))[0] / heat, -1)
    assert p.max() < 0.4
    assert g_test([bins[i] for i in range(5)], [p[i::5].sum().item() for i in range(5)]).p_value > 1e-6


def test_what_is_written_is_read_again(tmp_path):
    examples = [
        Example("chat-1", "chat", "train", 0.7, 2, [1, 2, 40_000]),
        Example("verse-0", "verse", "unseen", 0.0, 1, [5, 6]),
    ]
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    write_shard(tmp_path, 3, examples)
    assert read_folder(tmp_path, ["train", "unseen"]) == examples
    assert read_folder(tmp_path, ["unseen"]) == examples[1:]
    with pytest.raises(ValueError, match="no answers to held"):
        read_folder(tmp_path, ["held"])
    with pytest.raises(ValueError, match="16 bits"):
        write_shard(tmp_path, 4, [Example("x", "chat", "train", 0.0, 1, [1, 70_000])])


def test_a_stopped_run_goes_on_to_the_same_data(model, tmp_path):
    whole = make_data(model, tmp_path / "whole", 150, FEW, n_rows=4)
    assert whole.tokens["train"] >= 150 and whole.tokens["held"] and whole.tokens["unseen"]
    parted = tmp_path / "parted"
    for part in ((0, 2), (1, 2)):
        make_data(model, parted, 40, FEW, n_rows=4, part=part)
    (parted / "shard-99999.npz").write_bytes(b"cut short")  # its JSON was never written
    before = len(shard_numbers(parted))
    make_data(model, parted, 150, FEW, n_rows=3)
    assert 0 < before < len(shard_numbers(parted))
    for split in ("train", "held", "unseen"):
        want = read_folder(tmp_path / "whole", [split])
        assert read_folder(parted, [split])[: len(want)] == want


def test_time_that_is_over_stops_a_run(model, tmp_path):
    assert make_data(model, tmp_path, 10**9, FEW, limit_seconds=0).answers == 0


def test_a_folder_is_not_continued_with_other_options_or_another_target(model, tmp_path):
    make_data(model, tmp_path, 1, FEW, limit_seconds=0)
    assert read_recipe(tmp_path)["target"] == fingerprint(model)
    with pytest.raises(ValueError, match="max_new_tokens 6, now it is 7"):
        make_data(model, tmp_path, 1, DataOptions(max_new_tokens=7, shard=8, per_kind=2, per_unseen_kind=1))
    with pytest.raises(ValueError, match="target"):
        make_data(chatting_llama(4), tmp_path, 1, FEW)


def test_the_plan_measures_first_and_answers_every_prompt_greedily_once():
    prompts = build_prompts(0, 40, 2)
    n_train = sum(p.split == "train" for p in prompts)
    planned = [each for _, each in zip(range(2 * n_train + 200), plan(prompts, 0))]
    measured = [each for each in planned if each[0].split != "train"]
    assert planned[: len(measured)] == measured and {t for _, t in measured} == {0.0, 1.0}
    trained = planned[len(measured) : len(measured) + 2 * n_train]
    greedy = Counter(p.id for p, t in trained if t == 0)
    assert len(greedy) == n_train and set(greedy.values()) == {1}
    assert {t for _, t in trained} == {0.0, 0.6, 0.7, 0.8, 0.9, 1.0}


def test_a_shard_says_what_it_holds(model, tmp_path):
    make_data(model, tmp_path, 30, FEW, n_rows=4)
    about = json.loads((tmp_path / "shard-00000.json").read_text(encoding="utf-8"))
    assert set(about[0]) == {"id", "kind", "split", "temperature", "n_prompt", "n_answer"}
    assert sum(each["n_answer"] for each in about if each["split"] == "unseen") <= progress(tmp_path).tokens["unseen"]


def test_a_fingerprint_is_of_the_model_not_of_its_number_format(model):
    assert fingerprint(copy.deepcopy(model).to(torch.float32)) == fingerprint(model)
    other = copy.deepcopy(model)
    other.norm.weight[0] += 0.1
    assert fingerprint(other) != fingerprint(model)
