"""The benchmark: like work, counts by id, ratios with intervals, no conclusion that the noise does not allow."""

import itertools
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from click.testing import CliRunner
from support.paths import ROOT
from support.tiny_models import tiny_llama

from specdec_course.pictures.bench import bench_figure
from specdec_course.pictures.bench import main as draw
from specdec_ref.arithmetic import shape_from_config
from specdec_ref.bench import arms, compare, explain, run
from specdec_ref.bench.arms import Sample, bytes_read, make_arms
from specdec_ref.bench.compare import Ratio, UnlikeWork
from specdec_ref.bench.run import comparisons
from specdec_ref.bench.worker import Worker, WorkerFailed, peak_bytes
from specdec_ref.cli import main
from specdec_ref.cli.bench import bench
from specdec_ref.prompts import Prompt, read_prompts


def sample(n=10, first=0.5, seconds=2.0, passes=None, tokens=None):
    return Sample(tokens if tokens is not None else list(range(n)), first, seconds, passes)


# Counting and comparing


def test_time_a_token_leaves_the_first_out_and_counts_tokens_not_arrivals():
    # 9 tokens after the first in 1.5 s, in however many chunks they came.
    assert compare.seconds(sample(), "tpot") == pytest.approx(1.5 / 9)
    assert compare.seconds(sample(), "ttft") == 0.5 and compare.seconds(sample(), "total") == 2.0
    assert compare.seconds(sample(n=1, first=2.0), "tpot") == 0.0
    with pytest.raises(ValueError, match="ttft and tpot"):
        compare.seconds(sample(), "itl")


@pytest.mark.parametrize(
    "arms, message",
    [
        ({"a": {"p": [sample(10)]}, "b": {"p": [sample(9)]}}, r"b made \[9\] tokens of p, 10"),
        ({"a": {"p": [sample(10), sample(9)]}}, r"made \[9, 10\] tokens"),
        ({"a": {"p": [sample(10)]}, "b": {"q": [sample(10)]}}, "did not run the same prompts"),
        ({"a": {"p": [sample(10)]}, "b": {"p": [sample(10), sample(10)]}}, "a different number of times"),
        ({"a": {"p": [sample(10)]}, "b": {}}, "did not run the same prompts"),
    ],
)
def test_unlike_work_is_not_compared(arms, message):
    with pytest.raises(UnlikeWork, match=message):
        compare.check_same_work(arms, {"p": 10})
    compare.check_same_work({"a": {"p": [sample(10)]}, "b": {"p": [sample(10)]}}, {"p": 10})


def test_ratios_pair_each_repeat_with_its_neighbour():
    """A slow minute that hits both arms does not move the ratio."""
    slow = [1.0, 10.0, 1.2]
    first = {"p": [sample(seconds=2 * s) for s in slow]}
    second = {"p": [sample(seconds=s) for s in slow]}
    assert compare.prompt_ratios(first, second) == {"p": pytest.approx(2.0)}


def test_one_disturbed_repeat_does_not_move_a_prompts_ratio():
    first, second = [2.0, 2.2, 40.0], [1.0, 1.0, 1.0]
    by = ({"p": [sample(seconds=s) for s in seconds]} for seconds in (first, second))
    assert compare.prompt_ratios(*by) == {"p": pytest.approx(2.2)}


def test_the_mean_is_geometric_so_that_no_arm_gains_by_being_named_first():
    ratios, domains = {"a": 4.0, "b": 0.25}, {"a": "x", "b": "x"}
    assert compare.summarise(ratios, domains).mean == pytest.approx(1.0)


def test_each_domain_weighs_the_same():
    ratios = {"a": 4.0, **{f"b{i}": 1.0 for i in range(9)}}
    domains = {p: p[0] for p in ratios}
    found = compare.summarise(ratios, domains)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0)), "no draw of prompts changes it here"


def test_mean_and_interval_weigh_domains_alike_whatever_their_number_of_prompts():
    """Domain a has 2 prompts of 20, and half the weight: the interval spreads as far as a's two prompts allow."""
    ratios = {"a0": 4.0, "a1": 1.0, **{f"b{i}": 1.0 for i in range(18)}}
    found = compare.summarise(ratios, {p: p[0] for p in ratios})
    assert found.mean == pytest.approx(2**0.5)
    assert (found.low, found.high) == pytest.approx((1.0, 2.0)), "a's draws are 1 and 1, 1 and 4, or 4 and 4"


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """200 experiments of 24 prompts: at 95% nominal a bootstrap of this size covers well above 85%."""
    draw, covered = random.Random(4), 0
    for trial in range(200):
        ratios = {str(i): math.exp(draw.gauss(math.log(1.5), 0.3)) for i in range(24)}
        found = compare.summarise(ratios, {p: str(int(p) % 3) for p in ratios}, draws=400, seed=trial)
        covered += found.low <= 1.5 <= found.high
    assert 0.85 < covered / 200 < 0.995


def test_verdicts_say_nothing_where_the_noise_does_not_allow_it():
    faster, slower, unclear = Ratio(2, 1.8, 2.2, 9), Ratio(0.5, 0.4, 0.6, 9), Ratio(1.1, 0.9, 1.3, 9)
    assert compare.verdict(faster, [0.02, 0.03]).startswith("faster")
    assert compare.verdict(slower, [0.02, 0.03]).startswith("slower")
    assert compare.verdict(unclear, [0.02, 0.03]).startswith("no clear difference")
    assert "too noisy to conclude" in compare.verdict(faster, [0.02, 0.3])
    assert "not known" in compare.verdict(faster, [0.02, None])


def test_noise_is_what_repeats_differ_by():
    assert compare.noise({"p": [sample(seconds=1.0), sample(seconds=1.2)], "q": [sample(), sample()]}) == pytest.approx(
        0.1
    )
    assert compare.noise({"p": [sample()]}) is None


# Prompts


def test_our_prompts_are_six_domains_of_eight():
    prompts = read_prompts(run.PROMPTS)
    domains = [p.domain for p in prompts]
    assert len(set(domains)) >= 6 and all(domains.count(d) >= 8 for d in domains)
    assert len({p.user for p in prompts}) == len(prompts)
    two = run.first_of_each_domain(prompts, 2)
    assert [p.domain for p in two] == [d for d in dict.fromkeys(domains) for _ in range(2)]
    assert all(p.id.endswith(("-1", "-2")) for p in two)


# The run, with workers that are scripted


class Tokenizer:
    chat_template = None

    def encode(self, text):
        return [ord(c) % 13 for c in text]


class Scripted:
    """Stands in for a worker process: tokens and times by script, in the order in which it is asked."""

    log: ClassVar[list] = []
    times: ClassVar[dict] = {
        "q4 plain": 0.5,
        "transformers plain": 2.0,
        "transformers lookup 3": 1.5,
        "transformers lookup 5": 1.0,
    }
    short = None

    def __init__(self, worker, model, gamma, lookups, threads):
        self.name, self.facts = worker, {"bytes_a_pass": 100, "eos_token_ids": [9]}
        names = {
            "q4": ["q4 plain"],
            "transformers": ["transformers plain", *(f"transformers lookup {k}" for k in lookups)],
        }
        self.arms = names[worker]

    def run(self, arm, ids, n):
        Scripted.log.append(arm)
        made = n - (arm == Scripted.short)
        return Sample([3, 4, 9, *range(made - 3)][:made], 0.1, self.times[arm], n)

    def peak_bytes(self):
        return 10**9

    def close(self):
        Scripted.log.append("closed")


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(run, "model_folder", lambda name: None)
    monkeypatch.setattr(run, "read_tokenizer", lambda folder: Tokenizer())
    monkeypatch.setattr(run, "load_model", lambda *a, **k: None)
    monkeypatch.setattr(run, "Worker", Scripted)
    monkeypatch.setattr(run, "_bandwidth", lambda threads: 1e9)
    monkeypatch.setattr(run, "differences", lambda *a: [])
    Scripted.log, Scripted.short = [], None


PROMPTS = [Prompt(f"{d}{i}", d, f"{d} {i}") for d in ("one", "two") for i in range(3)]


def record(**options):
    return run.run(PROMPTS, ["q4", "transformers"], "m", max_new_tokens=8, repeats=2, lookups=[3, 5], **options)


def test_arms_take_turns_and_all_make_what_the_first_wrote_to_its_end(scripted):
    made = record()
    arms = ["q4 plain", "transformers plain", "transformers lookup 5"]
    assert list(made["arms"]) == arms  # the slower lookup setting is dropped, and its time kept
    assert made["lookup_settings_tried"] == {"transformers lookup 3": 3.0, "transformers lookup 5": 2.0}
    turns = [a for a in Scripted.log if a != "closed"][-len(arms) * 2 * len(PROMPTS) :]
    assert turns == arms * 2 * len(PROMPTS)
    assert {p["new_tokens"] for p in made["prompts"].values()} == {3}  # id 9 ends the text, and counts
    assert Scripted.log.count("closed") == 2
    json.dumps(made)


def test_an_arm_that_makes_fewer_tokens_stops_the_run_and_closes_the_workers(scripted):
    Scripted.short = "transformers plain"
    with pytest.raises(UnlikeWork, match="transformers plain made"):
        record()
    assert Scripted.log.count("closed") == 2


def test_ratios_and_rows_follow_from_the_record(scripted):
    made = json.loads(json.dumps(record()))
    assert run.ratio(made, "transformers plain", "q4 plain").mean == pytest.approx(4.0)
    assert run.ratio(made, "transformers plain", "q4 plain", "two", "tpot").mean == pytest.approx(1.9 / 0.4)
    row = run.table(made)[0]
    assert row["tokens_per_second"] == pytest.approx(3 / 0.5) and row["weight_bytes_per_token"] == pytest.approx(100)
    with pytest.raises(ValueError, match="no arm 'vllm'"):
        run.ratio(made, "vllm", "q4 plain")
    with pytest.raises(ValueError, match="no domain 'three'"):
        run.ratio(made, "transformers plain", "q4 plain", "three")


def test_passes_are_averaged_per_token_so_that_bytes_and_tokens_agree(scripted):
    made = record()
    for by in made["samples"].values():
        for i, repeats in enumerate(by.values()):
            for each in repeats:
                each["passes"] = 3 if i % 2 else 1  # of 3 tokens: 1 and 1/3 of a pass each
    row = run.table(made)[0]
    assert row["tokens_per_pass"] == pytest.approx(1.5)
    assert row["weight_bytes_per_token"] == pytest.approx(100 / row["tokens_per_pass"])


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_fault_is_told_by_the_exit_code_too(scripted, tmp_path, options, capsys):
    path = tmp_path / "r.json"
    for found, code in (([], 0), ([{"arm": "q4 plain", "prompt": "one0", "kind": "error", "position": 3}], 1)):
        path.write_text(json.dumps(record() | {"differences": found}), encoding="utf-8")
        assert main(["bench", "--read", str(path), *options]) == code


def test_the_picture_and_the_command_show_a_record(scripted, tmp_path):
    path, picture = tmp_path / "r.json", tmp_path / "r.png"
    path.write_text(json.dumps(record()), encoding="utf-8")
    assert comparisons(json.loads(path.read_text(encoding="utf-8")))
    result = CliRunner().invoke(bench, ["--read", str(path)], catch_exceptions=False)
    assert result.exit_code == 0 and "4.00" in result.output and "4.75" in result.output
    draw(str(path), str(picture))
    assert picture.read_bytes()[:4] == b"\x89PNG"
    as_json = CliRunner().invoke(bench, ["--read", str(path), "--json"], standalone_mode=False, catch_exceptions=False)
    assert json.loads(as_json.output)["ratios"][0]["ratio"][0] == pytest.approx(4.0)


def test_nothing_to_compare_makes_no_picture(scripted):
    made = record()
    made["arms"] = {"q4 plain": "q4"}
    with pytest.raises(ValueError, match="no two arms"):
        bench_figure(made)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--against", "vllm"], "give transformers, openvino, llamacpp"),
        (["--weights", "int8"], "give q4, q4a8, bf16"),
        (["--weights", ""], "--weights is empty"),
        (["--lookups", "a"], "whole numbers"),
        (["--lookups", "0"], "whole numbers"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    result = CliRunner().invoke(bench, options)
    assert result.exit_code == 2 and message in result.output.replace("\n", " ")


def test_a_file_that_is_no_record_is_refused(tmp_path):
    path = tmp_path / "r.json"
    for text in ("{}", "[]", "3", '{"samples": {}}'):
        path.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(bench, ["--read", str(path)], catch_exceptions=False)
        assert result.exit_code == 1 and "r.json is no record of this benchmark" in result.output
    path.write_bytes(b"\xff{")
    assert "is not UTF-8" in CliRunner().invoke(bench, ["--read", str(path)]).output
    path.write_text("{", encoding="utf-8")
    assert "is not JSON" in CliRunner().invoke(bench, ["--read", str(path)]).output


def test_a_place_where_no_record_can_be_written_is_refused_before_the_run(tmp_path):
    result = CliRunner().invoke(bench, ["--out", str(tmp_path / "no" / "r.json")])
    assert result.exit_code == 2 and "missing or may not be written" in result.output.replace("\n", " ")


# Differences


def test_differences_are_looked_at_with_the_model(monkeypatch):
    from specdec_ref.measure.neartie import Comparison

    seen = []

    def compare_greedy(ours, theirs, model, ids):
        seen.append((ours, theirs, model, ids))
        return Comparison("near-tie", 1, (2, 5), 0.1, 0.2)

    monkeypatch.setattr(explain, "compare_greedy", compare_greedy)
    samples = {
        "q4 plain": {"p": [sample(tokens=[1, 2]), sample(tokens=[1, 2])], "r": [sample(tokens=[7])]},
        "q4 lookup": {"p": [sample(tokens=[1, 5]), sample(tokens=[1, 6])], "r": [sample(tokens=[7])]},
    }
    found = explain.differences(samples, {a: "q4" for a in samples}, {"p": [0], "r": [0]}, {"q4": "model"})
    assert seen == [([1, 2], [1, 5], "model", [0])]
    assert [d["kind"] for d in found] == ["not repeatable", "near-tie"]
    assert explain.unexplained(found) == ["q4 lookup on p: token None differs by more than rounding"]


def test_only_our_own_faults_are_faults():
    found = [
        {"arm": "openvino plain", "prompt": "p", "kind": "error", "position": 3},
        {"arm": "bf16 lookup", "prompt": "p", "kind": "error", "position": 3},
        {"arm": "q4 lookup", "prompt": "p", "kind": "near-tie", "position": 3},
    ]
    assert explain.unexplained(found) == ["bf16 lookup on p: token 3 differs by more than rounding"]


# Bytes


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_that_is_only_looked_up_is_not_counted_as_read(tied):
    """Of transformers' model as of our own: the arithmetic's bytes of a pass over one token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=100, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied))
    shape = shape_from_config(model.config)
    assert bytes_read(model) == shape.weight_bytes_read(1, "fp32")
    assert (bytes_read(model) == shape.weight_bytes("fp32")) == tied


# The arms


def test_the_first_token_is_timed_when_it_comes(monkeypatch):
    """On a clock that is an hour further each time it is asked: at the start, at the first chunk, at the end."""
    monkeypatch.setattr(arms, "load_model", lambda *a, **k: tiny_llama(1))
    monkeypatch.setattr(arms, "fastest_threads", lambda model: 1)
    monkeypatch.setattr(arms, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    made, _ = make_arms("bf16", "tiny", 3, [])
    sample = made["bf16 plain"]([1, 2, 3], 8)
    assert (len(sample.tokens), sample.first_seconds, sample.seconds, sample.passes) == (8, 1, 2, 8)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says it there")
def test_peak_memory_is_in_bytes():
    """The system counts in units of 1,024 bytes, and calls them kB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    known = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    assert 1024 * known <= peak_bytes() <= 1.01 * 1024 * known + 2**20


# Real processes


def test_an_unknown_worker_is_refused():
    with pytest.raises(ValueError, match="there are q4, q4a8, bf16, transformers, openvino"):
        make_arms("vllm", "m", 3, [3])


def test_a_worker_that_cannot_load_says_why():
    with pytest.raises(WorkerFailed, match="no model 'no-such-model'"):
        Worker("bf16", "no-such-model", 3, [3], 1)


def test_llamacpp_without_node_says_what_to_install(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(WorkerFailed, match="npm install node-llama-cpp"):
        Worker("llamacpp", "smollm2-135m", 3, [3], 1)


@pytest.mark.model
def test_a_worker_runs_its_arms_and_survives_a_bad_request():
    worker = Worker("bf16", "smollm2-135m", 3, [3], 1)
    try:
        assert worker.arms == ["bf16 plain", "bf16 lookup", "bf16 eagle"]
        with pytest.raises(WorkerFailed, match="KeyError"):
            worker.run("no arm", [1], 2)
        plain, lookup, eagle = (worker.run(arm, [1, 504, 1, 504, 1], 6) for arm in worker.arms)
        assert len(plain.tokens) == len(lookup.tokens) == len(eagle.tokens) == 6
        assert 0 < plain.first_seconds < plain.seconds and plain.passes == 6
        assert lookup.passes <= 6
        assert 10**8 < worker.peak_bytes() < 10**10
        assert worker.facts["bytes_a_pass"] > 2 * 10**8
    finally:
        worker.close()


# The recorded run


def test_the_readme_says_what_the_record_says():
    made = json.loads((ROOT / "lessons" / "recorded" / "bench.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    theirs = next(a for a in made["arms"] if a.startswith("transformers lookup"))
    pairs = [
        ("transformers plain", "q4 plain"),
        ("transformers plain", "q4 lookup"),
        (theirs, "q4 lookup"),
        ("llamacpp plain", "q4 plain"),
        ("openvino plain", "q4 plain"),
        ("openvino plain", "q4 lookup"),
        ("transformers plain", "bf16 plain"),
        ("bf16 plain", "bf16 lookup"),
        ("q4 plain", "q4 lookup"),
    ]
    for first, second in pairs:
        r = run.ratio(made, first, second, what="tpot")
        assert f"{r.mean:.2f} ({r.low:.2f} to {r.high:.2f})" in readme, f"{second} over {first}: {r}"
    for second in ("q4 plain", "q4 lookup"):
        assert f"{run.ratio(made, 'transformers plain', second).mean:.2f}" in readme
    assert made["date"][:10] in readme and str(len(made["prompts"])) in readme
    noisy = next(row["noise"] for row in run.table(made) if row["arm"] == "llamacpp plain")
    assert f"its repeats differ by {noisy:.0%}" in readme
    apart = [d for d in made["differences"] if d["arm"] == "openvino plain" and d["kind"] == "error"]
    assert f"In {len(apart)} of {len(made['prompts'])} texts its output diverges" in readme
    assert not [d for d in made["differences"] if d["arm"] == "q4 lookup"], "the same texts, all of them"
    assert explain.unexplained(made["differences"]) == []
    compare.check_same_work(run.samples_of(made), {p: v["new_tokens"] for p, v in made["prompts"].items()})
