"""Lesson 02: what its text says in numbers, and demonstrations that fail where they would show nothing."""

import pytest
from support.lessons import lesson_error

from specdec_ref.arithmetic import forward_kernels, model_shape

LESSON = "02_kv_cache"
PLANTED = {
    "a change that changes nothing": ("other=text[8]", "other=text[4]", "course.changed_figure"),
    "a model that is no longer causal": (
        "changes = torch.tensor(course.changed_keys(model, text, place, other=text[8]))",
        "changes = torch.tensor(course.changed_keys(model, text, place, other=text[8])).flip(1)",
        "course.changed_figure",
    ),
    "a prompt that hides the powers": ("tokens_without(1, n_new)", "tokens_without(1000, n_new)", "square, line, cube"),
    "a cache that is never most of the bytes": ("= (1, 4, 16, 64, 256), (", "= (1, 1, 1, 1, 1), (", "shares_figure"),
    "a latent whose drafts stay left of the ridge": (
        '("verification of 5 drafts", 6)',
        '("verification of 5 drafts", 1)',
        "the drafts must take it across",
    ),
    "a reservation that is used": ('max_len=2048)["max"]', 'max_len=2048)["oracle"]', "this section is about waste"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_demonstration_that_shows_nothing_fails(planted):
    old, new, at = PLANTED[planted]
    assert isinstance(lesson_error(LESSON, old, new, at=at), AssertionError)


def test_a_cache_that_saves_no_time_fails(monkeypatch):
    monkeypatch.setattr("specdec_course.step_seconds", lambda model, lengths, **_: dict.fromkeys(lengths, (1.0, 1.0)))
    assert "must pay" in str(lesson_error(LESSON, "repeats=3", "repeats=1", at="course.step_time_figure"))


@pytest.mark.parametrize(("batch", "context"), [(64, 1024), (256, 32_768)])
def test_a_verification_reads_hardly_more_than_a_plain_step_whatever_most_of_the_bytes_are(batch, context):
    check, plain = (forward_kernels(model_shape("llama-3-70b"), n, context, batch) for n in (6, 1))
    caches = plain[1].bytes / sum(k.bytes for k in plain)
    assert caches < 0.2 or caches > 0.9
    assert sum(k.bytes for k in check) / sum(k.bytes for k in plain) < 1.005
