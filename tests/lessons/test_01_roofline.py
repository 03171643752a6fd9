"""Lesson 01: what its text says in numbers, and demonstrations that fail where they would show nothing."""

import pytest
from support.lessons import lesson_error

from specdec_ref.arithmetic import (
    accelerator,
    compute_bound_batch,
    forward_kernels,
    forward_work,
    model_shape,
    step_time,
)

H100, LLAMA = accelerator("h100-sxm"), model_shape("llama-3-70b")
LESSON = "01_roofline"


def price(batch, context, by_kernel=True):
    """What a verification of 5 drafts costs, in decode steps."""

    def seconds(n):
        works = forward_kernels(LLAMA, n, context, batch) if by_kernel else [forward_work(LLAMA, n, context, batch)]
        return sum(step_time(work, H100).overlapped_s for work in works)

    return seconds(6) / seconds(1)


def test_the_prices_that_the_answers_name():
    assert price(256, 1024) > 3, "more than three steps"
    assert price(64, 1024) == pytest.approx(1.3, abs=0.05)
    assert price(256, 8192) == pytest.approx(1.7, abs=0.05) and price(256, 8192, by_kernel=False) < 1.05
    assert 256 * 6 / H100.ridge() == pytest.approx(5, abs=0.3), "five times the ridge"


def test_the_batches_that_the_problem_set_names():
    assert [compute_bound_batch(LLAMA, H100, context=context) for context in (512, 1024)] == [453, 965]
    bounds = [step_time(forward_kernels(LLAMA, 1, 8192, batch)[0], H100).bound for batch in (295, 296)]
    assert bounds == ["memory", "compute"]


def test_the_moves_that_the_explorer_asks_for():
    small = model_shape("llama-3-8b")

    def steps(batch, context=1024, weights="bf16"):
        times = [
            sum(step_time(k, H100).overlapped_s for k in forward_kernels(small, n, context, batch, weights=weights))
            for n in (6, 1)
        ]
        return times[0] / times[1]

    assert steps(32) < 1.01 < steps(64), "the price leaves 1 at a batch of about ridge / (gamma + 1)"
    assert steps(64, 1024) > steps(64, 4096) > steps(64, 16_384) > 1, "and sinks towards 1 with the context"
    assert steps(64, weights="int4-g128") > steps(64), "4 bits spend the same slack"
    assert accelerator("l4").ridge() > H100.ridge()


ONE_BY_ONE = "[(k.flops, k.bytes) for k in forward_kernels(llama, n_tokens, context, batch)]"
AS_ONE = "[(k.flops, k.bytes) for k in [forward_work(llama, n_tokens, context, batch)]]"
PLANTED = {
    "a chip that is never idle": ("2 * weights / rate", "2 * weights / bandwidth", 'course.timeline_figure({"decode"'),
    "a roof without a slope": ("attainable(0.5 * rate / bandwidth", "attainable(2 * rate / bandwidth", ""),
    "a verification beyond the ridge": ("batch=1, context=1024", "batch=512, context=1024", "course.passes_figure"),
    "kernels taken as one piece": (ONE_BY_ONE, AS_ONE, "here the two ways"),
    "a mixture that is dense": (
        '"llama-3-70b", "mixtral-8x7b", ',
        '"llama-3-70b", "llama-3-8b", ',
        "a mixture must pay",
    ),
    "a verification that is a decode": (
        "forward_kernels(llama, n_tokens, 1024, batch)]",
        "forward_kernels(llama, 1, 1024, batch)]",
        "course.timeline_figure(timelines)",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_demonstration_that_shows_nothing_fails(planted):
    old, new, at = PLANTED[planted]
    assert isinstance(lesson_error(LESSON, old, new, at=at), AssertionError)


def test_the_prices_of_mixtures_at_both_ends():
    def steps(name, batch):
        times = [
            sum(step_time(k, H100).overlapped_s for k in forward_kernels(model_shape(name), n, 1024, batch))
            for n in (6, 1)
        ]
        return times[0] / times[1]

    for name in ("mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"):
        assert steps(name, 1) > 3 and steps(name, 256) < 1.4, "in a large batch most experts are read anyway"
    assert steps("llama-3-70b", 1) < 1.01 < steps("llama-3-70b", 256)
