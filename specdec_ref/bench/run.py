"""The benchmark's run, arms in turns, and its record: plain data from which every figure follows."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specdec_ref.bench.arms import OURS, Sample, model_folder
from specdec_ref.bench.compare import (
    Ratio,
    Samples,
    check_same_work,
    noise,
    prompt_ratios,
    seconds,
    summarise,
)
from specdec_ref.bench.explain import differences
from specdec_ref.bench.worker import Worker
from specdec_ref.engine.prompt import as_chat, encode_text
from specdec_ref.measure import WeightStream
from specdec_ref.models.load import load_model
from specdec_ref.models.store.folder import read_tokenizer
from specdec_ref.prompts import Prompt

PROMPTS = Path(__file__).with_name("prompts.jsonl")  # 8 of each of 6 domains; the texts are ours


def first_of_each_domain(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts of each domain, in the order given."""
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.domain] += 1
        if seen[prompt.domain] <= count:
            chosen.append(prompt)
    return chosen


def run(
    prompts: Sequence[Prompt],
    workers: Sequence[str],
    model: str,
    *,
    max_new_tokens: int = 64,
    repeats: int = 2,
    gamma: int = 11,
    lookups: Sequence[int] = (3, 5, 10),
    threads: int | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, Any]:
    """Time every arm of every worker on every prompt, in turns: arms A B C A B C for each prompt. Returns the record.

    The first arm decides how many tokens a prompt gets: as many as it writes until its end token, `max_new_tokens` at
    most. Then every arm makes exactly that many. Of transformers' lookup settings only the one that is fastest on the
    first prompt of each domain takes part.
    Raises WorkerFailed where an arm cannot run, UnlikeWork where arms did different work.
    """
    started = datetime.datetime.now(datetime.timezone.utc)
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    tokenizer = _tokenizer(model)
    ids = {p.id: encode_text(as_chat(p.user, tokenizer), tokenizer) for p in prompts}
    domains = {p.id: p.domain for p in prompts}
    running: list[Worker] = []
    try:
        for i, name in enumerate(workers):
            progress(f"loading {name}", i / len(workers))
            running.append(Worker(name, model, gamma, lookups, threads))
        arms = {arm: worker for worker in running for arm in worker.arms}
        n_tokens = _lengths(arms, ids, max_new_tokens, progress)
        dropped = _drop_slower_lookups(arms, ids, domains, n_tokens, progress)
        samples: dict[str, dict[str, list[Sample]]] = {arm: {p: [] for p in ids} for arm in arms}
        for j, (prompt, tokens) in enumerate(ids.items()):
            for _ in range(repeats):
                for arm, worker in arms.items():
                    samples[arm][prompt].append(worker.run(arm, tokens, n_tokens[prompt]))
            progress("timing", (j + 1) / len(ids))
        bandwidth = _bandwidth(threads)
        memory = {worker.name: worker.peak_bytes() for worker in running}
    finally:
        for worker in running:
            worker.close()
    check_same_work(samples, n_tokens)
    progress("comparing outputs", 0)
    models = {name: load_model(model, **options) for name, options in OURS.items() if name in workers}
    found = differences(samples, {arm: worker.name for arm, worker in arms.items()}, ids, models)
    return {
        "what": "greedy generation on token ids, arms in turns; seconds",
        "date": started.isoformat(timespec="minutes"),
        "machine": machine(),
        "load_average_before": load_before,
        "threads": threads,
        "model": model,
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "gamma": gamma,
        "workers": {w.name: {**w.facts, "peak_bytes": memory[w.name]} for w in running},
        "arms": {arm: worker.name for arm, worker in arms.items()},
        "lookup_settings_tried": dropped,
        "bandwidth_bytes_per_second": bandwidth,
        "differences": found,
        "prompts": {p: {"domain": domains[p], "prompt_tokens": len(ids[p]), "new_tokens": n_tokens[p]} for p in ids},
        "samples": {arm: {p: [asdict(s) for s in r] for p, r in by.items()} for arm, by in samples.items()},
    }


def _bandwidth(threads: int | None) -> float:
    """Bytes a second at which bfloat16 weights stream through small products on this machine, the best of five."""
    if threads:
        torch.set_num_threads(threads)
    stream = WeightStream(torch.bfloat16)
    return max(stream.bandwidth() for _ in range(5))


def _tokenizer(model: str) -> Any:
    tokenizer = read_tokenizer(model_folder(model))
    if tokenizer is None:
        raise ValueError(f"{model} has no tokenizer: the benchmark's prompts are text")
    return tokenizer


def _lengths(
    arms: Mapping[str, Worker],
    ids: Mapping[str, list[int]],
    most: int,
    progress: Callable[[str, float], None],
) -> dict[str, int]:
    """How many new tokens each prompt gets: what the first arm writes, its end token included. Also warms it up."""
    arm, worker = next(iter(arms.items()))
    ends = set(worker.facts["eos_token_ids"])
    lengths = {}
    for i, (prompt, tokens) in enumerate(ids.items()):
        out = worker.run(arm, tokens, most).tokens
        # Two at least, or there would be no time between tokens.
        lengths[prompt] = max(2, next((k + 1 for k, t in enumerate(out) if t in ends), len(out)))
        progress("finding lengths", (i + 1) / len(ids))
    return lengths


def _drop_slower_lookups(
    arms: dict[str, Worker],
    ids: Mapping[str, list[int]],
    domains: Mapping[str, str],
    n_tokens: Mapping[str, int],
    progress: Callable[[str, float], None],
) -> dict[str, float]:
    """Warm every arm up, and keep the fastest of transformers' lookup settings; seconds of each setting."""
    first = [next(p for p, d in domains.items() if d == domain) for domain in dict.fromkeys(domains.values())]
    tried = [arm for arm in arms if arm.startswith("transformers lookup")]
    took = {}
    for i, arm in enumerate(list(arms)):
        arms[arm].run(arm, ids[first[0]], n_tokens[first[0]])
        if arm in tried and len(tried) > 1:
            took[arm] = sum(arms[arm].run(arm, ids[p], n_tokens[p]).seconds for p in first)
        progress("warming up", (i + 1) / len(arms))
    for arm in sorted(took, key=lambda a: took[a])[1:]:
        del arms[arm]
    return took


def samples_of(record: Mapping[str, Any]) -> dict[str, Samples]:
    """The samples of a record: arm -> prompt -> repeats."""
    return {
        arm: {p: [Sample(**s) for s in repeats] for p, repeats in by.items()} for arm, by in record["samples"].items()
    }


def ratio(record: Mapping[str, Any], first: str, second: str, domain: str | None = None, what: str = "total") -> Ratio:
    """How much faster `second` is than `first`, over all prompts or those of one domain.

    Raises ValueError for an arm or a domain that the record does not hold.
    """
    samples = samples_of(record)
    for arm in (first, second):
        if arm not in samples:
            raise ValueError(f"the record has no arm {arm!r}: there are {', '.join(samples)}")
    domains = {p: v["domain"] for p, v in record["prompts"].items()}
    if domain is not None and domain not in domains.values():
        raise ValueError(f"the record has no domain {domain!r}: there are {', '.join(dict.fromkeys(domains.values()))}")
    chosen = {p: d for p, d in domains.items() if domain in (None, d)}  # in the record's order: so are the draws
    ratios = prompt_ratios(samples[first], samples[second], what)
    return summarise({p: ratios[p] for p in chosen}, chosen)


def comparisons(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a record compares: (first arm, second arm, in words), as far as it has them."""
    arms = list(record["arms"])
    theirs = [a for a in arms if a.startswith("transformers lookup")]
    wanted = [
        ("transformers plain", "q4 lookup", "4-bit lookup over transformers plain"),
        ("transformers plain", "q4 plain", "4-bit plain over transformers plain"),
        *((t, "q4 lookup", "4-bit lookup over transformers lookup") for t in theirs),
        ("transformers plain", "q4 eagle", "4-bit trained head over transformers plain"),
        ("openvino plain", "q4 plain", "4-bit plain over OpenVINO plain"),
        ("openvino plain", "q4a8 plain", "the same, activations in 8 bits"),
        ("llamacpp plain", "q4 plain", "4-bit plain over llama.cpp plain"),
        ("llamacpp plain", "q4a8 plain", "the same, activations in 8 bits"),
        ("transformers plain", "bf16 plain", "bf16 plain over transformers plain"),
        ("bf16 plain", "bf16 lookup", "lookup's own share, bf16"),
        ("q4 plain", "q4 lookup", "lookup's own share, 4 bits"),
        ("q4a8 plain", "q4a8 lookup", "lookup's own share, 4 bits, activations in 8"),
        ("bf16 plain", "bf16 eagle", "trained head's own share, bf16"),
        ("q4 plain", "q4 eagle", "trained head's own share, 4 bits"),
        ("q4a8 plain", "q4a8 eagle", "trained head's own share, 4 bits, activations in 8"),
    ]
    return [(a, b, words) for a, b, words in wanted if a in arms and b in arms]


def table(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each arm: tokens per second, TTFT, TPOT, noise, bytes per token and memory, medians over prompts."""
    rows = []
    for arm, by in samples_of(record).items():
        worker = record["workers"][record["arms"][arm]]
        every = [s for repeats in by.values() for s in repeats]
        passes = [s.passes / len(s.tokens) for s in every if s.passes is not None]
        per_pass = worker.get("bytes_a_pass")
        rows.append(
            {
                "arm": arm,
                "tokens_per_second": len([t for s in every for t in s.tokens]) / sum(s.seconds for s in every),
                "ttft_seconds": statistics.median(seconds(s, "ttft") for s in every),
                "tpot_seconds": statistics.median(seconds(s, "tpot") for s in every),
                "tokens_per_pass": 1 / statistics.fmean(passes) if passes else None,
                "weight_bytes_per_token": per_pass * statistics.fmean(passes) if passes and per_pass else None,
                "noise": noise(by),
                "peak_bytes": worker["peak_bytes"],
            }
        )
    return rows


def machine() -> dict[str, Any]:
    """What it ran on, without a host name."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")  # on Linux nothing else names the processor
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
