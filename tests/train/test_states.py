"""Kept states are those that a pass gives, and what a run that was cut short has left does no harm."""

import copy

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref.train.batches import Teacher
from specdec_ref.train.shards import Example
from specdec_ref.train.states import StateStore

EXAMPLES = [Example(f"x-{i}", "a", "train", 0.0, 2, [1 + i, 2, 3, 4 + i, 5][: 5 - i % 2]) for i in range(4)]


@pytest.fixture
def model():
    return tiny_llama(7, n_layers=3, vocab_size=32, hidden_size=32, head_dim=8).to(torch.bfloat16)


def states(teacher):
    batch = teacher.batch(EXAMPLES)
    return torch.stack([*batch.states, batch.last])


def test_kept_states_are_those_of_a_pass_and_no_pass_is_run_for_them(model, tmp_path):
    want = states(Teacher(model, (1, 2)))
    assert torch.equal(states(Teacher(model, (1, 2), kept=tmp_path)), want)
    later = Teacher(model, (1, 2), kept=tmp_path)
    later.model = None  # any pass would fail
    with pytest.raises(AttributeError):
        later.batch([Example("new", "a", "train", 0.0, 2, [9, 9, 9])])
    later.model = model
    model.forward_pass = None
    assert torch.equal(states(later), want)


def test_other_layers_and_another_target_have_states_of_their_own(model, tmp_path):
    states(Teacher(model, (1, 2), kept=tmp_path))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.norm.weight.mul_(2)
    for teacher, plain in ((Teacher(model, (2, 1), kept=tmp_path), Teacher(model, (2, 1))),
                           (Teacher(other, (1, 2), kept=tmp_path), Teacher(other, (1, 2)))):  # fmt: skip
        assert torch.equal(states(teacher), states(plain))


@pytest.mark.parametrize("what", ["states.bin", "index.jsonl"])
def test_a_write_that_was_cut_short_does_not_count(model, tmp_path, what):
    want = states(Teacher(model, (1, 2), kept=tmp_path))
    (path,) = tmp_path.rglob(what)
    path.write_bytes(path.read_bytes()[:-7])
    assert torch.equal(states(Teacher(model, (1, 2), kept=tmp_path)), want)
    assert torch.equal(states(Teacher(model, (1, 2), kept=tmp_path)), want)


def test_a_target_whose_states_would_be_rounded_is_refused(tmp_path):
    with pytest.raises(ValueError, match="load it in bfloat16"):
        StateStore(tmp_path, tiny_llama(1), (1,))
