"""A short form of the training on a tiny random Llama: the loss falls, runs resume, planted bugs are noticed."""

import copy
import json
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from support.tiny_models import tiny_llama

from specdec_ref.draft import BlockDrafter, DraftModelDrafter, EagleDrafter, MedusaDrafter
from specdec_ref.draft.weights import read_draft
from specdec_ref.engine import SpeculativeEngine
from specdec_ref.models.fingerprint import fingerprint
from specdec_ref.models.load import load_model
from specdec_ref.train import batches
from specdec_ref.train.block import BlockTraining, new_block
from specdec_ref.train.draft_lm import DraftLMTraining, export_draft_lm, new_draft_lm
from specdec_ref.train.eagle import EagleTraining, new_head
from specdec_ref.train.evaluate import evaluate, mean
from specdec_ref.train.kinds import KINDS, DraftOptions
from specdec_ref.train.loop import RunOptions, learning_rate, measure, mixed_precision, train
from specdec_ref.train.medusa import MedusaTraining, new_medusa
from specdec_ref.train.run import REPORT, WEIGHTS, measured_sets, run
from specdec_ref.train.shards import Example, open_folder, write_shard

PLACES = 3
HEADS = {"eagle": EagleDrafter, "block": BlockDrafter, "medusa": MedusaDrafter}


@pytest.fixture(scope="module")
def model():
    return tiny_llama(7, n_layers=4, vocab_size=32, hidden_size=32, head_dim=8)


@pytest.fixture(scope="module")
def examples(model) -> list[Example]:
    """Greedy texts and texts at temperature 1 of the target, for training and for measuring."""
    engine, found = SpeculativeEngine(model), []
    for i in range(40):
        prompt, t = [1 + i % 7, 2 + i % 11, 3 + i % 5], float(i % 2)
        split = ("train", "train", "train", "held", "unseen")[i // 2 % 5]
        tokens = engine.generate(prompt, 16, temperature=t, seed=i).tokens
        found.append(Example(f"x-{i}", "ab"[i % 2], split, t, 3, prompt + tokens))
    return found


class Teacher(batches.Teacher):
    """Reads each text once for all tests of this file."""

    memory: ClassVar[dict] = {}

    def _states(self, ids):
        key = self.model, self.read, tuple(ids)
        if key not in self.memory:
            self.memory[key] = super()._states(ids)
        return self.memory[key]


def trained_on(examples):
    return [e for e in examples if e.split == "train"]


def make(kind: str, model):
    if kind == "lm":
        return DraftLMTraining(new_draft_lm(model, (0, 3)), PLACES)
    torch.manual_seed(0)
    if kind == "block":
        return BlockTraining(new_block(model, torch.arange(0, 32), PLACES, (1, 2, 3), depth=2, rank=8))
    if kind == "medusa":
        return MedusaTraining(new_medusa(model, torch.arange(0, 32), PLACES))
    return EagleTraining(new_head(model, torch.arange(0, 32), (1, 2, 3)), PLACES)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_more_is_accepted(kind, model, examples, tmp_path):
    training, losses = make(kind, model), []
    teacher = Teacher(model, training.layers)
    before = mean(measure(training, teacher, trained_on(examples), 0.0))
    options = RunOptions(steps=40, learning_rate=1e-2, anchors=64)
    # Medusa heads do not see the pending token, on which a random model's text depends most.
    gain = 0.01 if kind == "medusa" else 0.2
    measured = measured_sets([e for e in examples if e.split != "train"])
    state = train(
        training, teacher, trained_on(examples), measured, tmp_path, options, report=lambda s: losses.append(s.loss)
    )
    assert losses[-1] < 0.8 * losses[0]
    assert mean(measure(training, teacher, trained_on(examples), 0.0)) > before + gain
    assert set(state.curve[-1]) >= {"minutes", "anchors", "loss", "held 0.0", "held 1.0", "unseen 0.0", "unseen 1.0"}
    assert (tmp_path / "curve.csv").read_text(encoding="utf-8").count("\n") == 1 + len(state.curve)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_training_becomes_what_an_uninterrupted_one_does(kind, model, examples, tmp_path):
    options, ends = RunOptions(steps=12, learning_rate=1e-2, batch=4, anchors=16), []
    for name, stops in (("whole", [None]), ("parted", [5, 9, None])):
        for stop in stops:
            training = make(kind, model)
            teacher = Teacher(model, training.layers)
            train(training, teacher, trained_on(examples), {}, tmp_path / name, options, stop_at_step=stop)
        ends.append([w.detach().clone() for w in training.module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    fresh = make(kind, model)
    assert not all(torch.equal(a, b) for a, b in zip(ends[0], fresh.module.parameters()))
    with pytest.raises(ValueError, match="learning_rate"):
        train(fresh, teacher, trained_on(examples), {}, tmp_path / "whole", RunOptions(steps=12))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_measured_is_what_the_engine_does(kind, temperature, model, examples, tmp_path):
    """Rounds walked along recorded texts against rounds of the engine: equal for greedy, in the mean for sampled."""
    training = make(kind, model)
    teacher = Teacher(model, training.layers)
    train(training, teacher, trained_on(examples), {}, tmp_path, RunOptions(steps=40, learning_rate=1e-2))
    training.module.eval()
    if kind == "lm":
        export_draft_lm(model, training.tensors(), 2, tmp_path / "hf")
        drafter = DraftModelDrafter(load_model(tmp_path / "hf", dtype="float32"))
    else:
        drafter = HEADS[kind](training.module)
    engine, n, runs = SpeculativeEngine(model, drafter, PLACES), 16, 1 if temperature == 0 else 6
    texts, rounds = [], 0
    for i in range(6):
        for r in range(runs):
            prompt = [1 + i, 2 + i, 3]
            out = engine.generate(prompt, n, temperature=temperature, seed=1000 * i + r)
            texts.append(Example(f"{i}-{r}", "a", "held", temperature, 3, prompt + out.tokens))
            rounds += out.stats.rounds
    walked = evaluate(lambda b, k, t: training.acceptance(b, teacher, k, t), teacher, texts, PLACES, temperature)["a"]
    assert len(texts) * n / rounds > 1.15, "nothing is accepted: this would show nothing"
    exact = 1e-6 if temperature == 0 and kind != "lm" else 0.06  # the exported LM is in 16 bits
    assert walked.tokens / walked.rounds == pytest.approx(len(texts) * n / rounds, rel=exact)


def shifted_states(training):
    """A planted bug: the head is trained on states one place early."""
    right = training.unroll

    def wrong(batch, model, n_places):
        early = tuple(torch.cat([s[:, :1], s[:, :-1]], 1) for s in batch.states)
        return right(replace(batch, states=early), model, n_places)

    training.unroll = wrong


def shifted_targets(training):
    """A planted bug: the loss asks for the token after the right one."""
    right = training.loss

    def wrong(batch, teacher, blend):
        return right(replace(batch, last=torch.cat([batch.last[:, 1:], batch.last[:, -1:]], 1)), teacher, blend)

    training.loss = wrong


def sees_its_answers(training):
    """A planted bug: a block sees the target's states of the very tokens that it is asked for."""
    training.visible = lambda batch: torch.arange(batch.ids.shape[1] - 1) <= batch.anchors[..., None] + PLACES


def another_layer(drafter):
    """A planted bug: the drafter asks for the states of other layers than those it was trained on."""
    drafter.layers = tuple(i + 1 for i in drafter.layers)


def permuted_tokens(drafter):
    """A planted bug: the map from the draft's tokens to the target's is out of order."""
    drafter.head.tokens.copy_(drafter.head.tokens.roll(1))


def trained(kind, model, examples, folder, bug=None):
    training = make(kind, model)
    if bug:
        bug(training)
    train(training, Teacher(model, training.layers), examples, {}, folder, RunOptions(steps=60, learning_rate=1e-2))
    training.module.eval()
    return training


@pytest.fixture(scope="module")
def sound(model, examples, tmp_path_factory):
    """Heads trained without a planted bug."""
    return {
        kind: trained(kind, model, trained_on(examples), tmp_path_factory.mktemp(kind)) for kind in ("eagle", "block")
    }


def rounds_of_the_engine(model, drafter, examples):
    engine = SpeculativeEngine(model, drafter, PLACES)
    return sum(engine.generate(e.ids[:3], 16).stats.rounds for e in examples)


def rounds_measured(training, model, examples):
    (walked,) = measure(training, Teacher(model, training.layers), examples, 0.0).values()
    return walked.rounds


@pytest.mark.parametrize("kind", ["eagle", "block"])
def test_a_sound_head_does_in_the_engine_what_it_did_in_training(kind, model, examples, sound):
    """And with a bug planted in the drafter, it does not."""
    greedy = [e for e in trained_on(examples) if e.temperature == 0]
    training = sound[kind]
    rounds = rounds_of_the_engine(model, HEADS[kind](training.module), greedy)
    assert 16 * len(greedy) / rounds > 1.8 and rounds == pytest.approx(rounds_measured(training, model, greedy))
    for bug in (another_layer, permuted_tokens):
        drafter = HEADS[kind](copy.deepcopy(training.module))
        bug(drafter)
        assert rounds_of_the_engine(model, drafter, greedy) > 1.1 * rounds


@pytest.mark.parametrize(
    ("kind", "bug"), [(k, b) for k in ("eagle", "block") for b in (shifted_states, shifted_targets)]
)
def test_a_head_trained_one_place_off_is_seen_in_the_engine(kind, bug, model, examples, tmp_path):
    greedy = [e for e in trained_on(examples) if e.temperature == 0]
    training = trained(kind, model, trained_on(examples), tmp_path, bug)
    assert 16 * len(greedy) / rounds_of_the_engine(model, HEADS[kind](training.module), greedy) < 1.6


def test_a_block_that_sees_its_own_answers_does_not_do_in_the_engine_what_it_did_in_training(model, examples, tmp_path):
    greedy = [e for e in trained_on(examples) if e.temperature == 0]
    training = trained("block", model, trained_on(examples), tmp_path, sees_its_answers)
    rounds = rounds_of_the_engine(model, BlockDrafter(training.module), greedy)
    assert rounds > 1.2 * rounds_measured(training, model, greedy)


def test_a_block_depends_on_nothing_after_its_pending_token(model, examples):
    training = make("block", model)
    batch = Teacher(model, training.layers).batch(trained_on(examples)[:2])
    anchor = batch.anchors[:, 2:3]
    batch = replace(batch, anchors=anchor, valid=batch.valid[:, 2:3])
    after = torch.arange(batch.ids.shape[1]) > anchor
    other = tuple(torch.where(after[..., None], 9.0, s) for s in batch.states)
    ids = torch.where(torch.arange(batch.ids.shape[1]) > anchor + 1, 0, batch.ids)
    want = training.blocks(batch, model)
    assert torch.equal(training.blocks(replace(batch, states=other, ids=ids), model), want)
    sees_its_answers(training)
    assert not torch.equal(training.blocks(replace(batch, states=other, ids=ids), model), want)


def test_prompts_and_padding_carry_no_loss(model, examples):
    """Tokens of the prompt, and what stands after the end, may be anything: the loss asks for neither."""
    for kind in KINDS:
        training = make(kind, model)
        teacher = Teacher(model, training.layers)
        batch = teacher.batch([examples[0], replace(examples[1], ids=examples[1].ids[:9])])
        loss = training.loss(batch, teacher, 0.3).item()
        outside = torch.ones(batch.last.shape[:2], dtype=torch.bool)
        outside[0, 2:18] = outside[1, 2:8] = False
        other = torch.where(outside[..., None], 9.0, batch.last)
        assert training.loss(replace(batch, last=other), teacher, 0.3).item() == loss
        inside = torch.where(outside[..., None], batch.last, 9.0)
        assert training.loss(replace(batch, last=inside), teacher, 0.3).item() != loss


def test_the_rate_rises_stays_and_falls():
    assert learning_rate(0, 0.0) == pytest.approx(0.02) and learning_rate(200, 0.5) == 1
    assert learning_rate(900, 1.0) == pytest.approx(0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_draft_report_and_card(kind, model, examples, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    open_folder(data, {"target": fingerprint(model)})
    write_shard(data, 0, examples)
    draft = DraftOptions(kind, (0, 3) if kind == "lm" else (1, 2, 3), 20, PLACES, depth=2, rank=8)
    result = run(draft, RunOptions(steps=5, batch=4), model, lambda: model, data, out)
    assert json.loads(json.dumps(result)) == json.loads((out / REPORT).read_text(encoding="utf-8"))
    assert set(result["tokens_per_round"]) == {"held 0.0", "held 1.0", "unseen 0.0", "unseen 1.0"}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert fingerprint(model) in card and "NOTICE" in card and "kinds never trained on" in card
    assert f"{result['tokens_per_round']['unseen 0.0']['mean']:.2f}" in card
    assert read_draft(out / WEIGHTS)[1]["target"] == fingerprint(model)
    if kind in HEADS:
        drafter = HEADS[kind].read(out / WEIGHTS)
        assert SpeculativeEngine(model, drafter, 2).generate([1, 2, 3], 8).stats.drafted
        with pytest.raises(ValueError, match="trained for a target"):
            SpeculativeEngine(tiny_llama(8, n_layers=4, vocab_size=32, hidden_size=32, head_dim=8), drafter)
    for wrong in HEADS.keys() - {kind}:
        with pytest.raises(ValueError, match=f"kind '{kind}'"):
            HEADS[wrong].read(out / WEIGHTS)
    with pytest.raises(ValueError, match="another target"):
        run(draft, RunOptions(steps=5), tiny_llama(1), lambda: model, data, out)


def test_an_exported_draft_is_what_transformers_takes_as_assistant(model, tmp_path):
    from transformers import AutoModelForCausalLM

    lm = new_draft_lm(model, (0, 3))
    export_draft_lm(model, DraftLMTraining(lm).tensors(), 2, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    torch.testing.assert_close(loaded(ids).logits.float(), lm(ids).logits, rtol=0.05, atol=0.2)
    plain = lm.generate(ids, max_new_tokens=8, do_sample=False)
    assisted = lm.generate(ids, assistant_model=loaded.float(), max_new_tokens=8, do_sample=False)
    assert plain.tolist() == assisted.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_in_bfloat16_trains_in_mixed_precision(kind, model, examples):
    low = copy.deepcopy(model).to(torch.bfloat16)
    losses = []
    for target in (model, low):
        training = make(kind, model)
        teacher = Teacher(target, training.layers)
        batch = teacher.batch(trained_on(examples)[:6])
        with mixed_precision(teacher):
            loss = training.loss(batch, teacher, 0.5)
            kept = training.acceptance(batch, teacher, PLACES, 1.0)
        loss.backward()
        assert loss.dtype == torch.float32 and kept.min() >= 0 and kept.max() <= 1
        assert all(
            w.grad is not None and w.grad.isfinite().all() for w in training.module.parameters() if w.requires_grad
        )
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def test_a_run_begins_from_an_earlier_draft_and_keeps_its_vocabulary(model, examples, tmp_path):
    data, first, second = tmp_path / "data", tmp_path / "first", tmp_path / "second"
    open_folder(data, {"target": fingerprint(model)})
    write_shard(data, 0, examples)
    draft = DraftOptions("eagle", (1, 2, 3), 20, PLACES)
    run(draft, RunOptions(steps=30, batch=4), model, lambda: model, data, first)
    write_shard(data, 1, [replace(e, ids=[31] * len(e.ids)) for e in examples])  # now another token is the frequent one
    later = replace(draft, start=first / WEIGHTS)
    options = RunOptions(steps=1, batch=4, learning_rate=0.0, weight_decay=0.0)
    run(later, options, model, lambda: model, data, second)
    a, b = (read_draft(folder / WEIGHTS)[0] for folder in (first, second))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(ValueError, match="draft of kind eagle"):
        run(replace(later, kind="lm", layers=(0, 3)), options, model, lambda: model, data, tmp_path / "third")
