"""The course's prompts."""

import pytest

from specdec_ref.prompts import prompt, prompts


def test_there_are_at_least_twenty_prompts_each_with_its_own_id():
    assert len({p.id for p in prompts()}) == len(prompts()) >= 20
    assert {p.domain for p in prompts()} >= {"open chat", "summary", "code editing", "translation", "arithmetic"}
    assert prompts("summary")
    with pytest.raises(ValueError, match="no domain 'poetry': there are"):
        prompts("poetry")
    assert prompt("chat-1").messages[0]["content"] == prompt("chat-1").user
