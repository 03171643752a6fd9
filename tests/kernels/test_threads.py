"""Threads of a compiled function: they wait for each other, count themselves, and are fewer while a core is taken."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from numba import types

from specdec_ref.kernels import threads
from specdec_ref.kernels.loops import loop
from specdec_ref.kernels.memory import int64_at, put_int64
from specdec_ref.kernels.threads import Team, breathe, join_team, share, wait

needs_team = pytest.mark.skipif(threads._gomp_parallel() is None, reason="PyTorch has no GNU OpenMP here")


def relay(waits):
    @loop(types.int64)
    def run(data):
        """Each thread writes its number, the last one late; then each adds up what all have written."""
        team = int64_at(data)
        me, n = join_team(team)
        if me == n - 1:
            for _ in range(200_000):
                breathe()
        put_int64(data + 8 * (1 + me), me + 1)
        if waits:
            wait(team)
        total = 0
        for i in range(n):
            total += int64_at(data + 8 * (1 + i))
        put_int64(data + 8 * (10 + me), total)
        if waits:
            wait(team)

    return run


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield Team()
    torch.set_num_threads(before)


def run(team, waits):
    data = np.zeros(20, np.int64)
    data[0] = team.address
    team.run(relay(waits), data.ctypes.data)
    return data[10:12].tolist()


@needs_team
def test_a_barrier_makes_all_see_what_all_have_written(two_threads):
    assert two_threads.threads == 2
    assert run(two_threads, True) == [3, 3]


@needs_team
def test_without_the_barrier_it_would_be_seen(two_threads):
    """The early thread adds up a number that is not there yet."""
    assert 3 not in run(two_threads, False)[:1]


@needs_team
def test_the_team_counts_the_threads_that_there_are():
    """OpenMP may give fewer than asked for; a barrier for two would then wait for ever."""
    code = (
        "import torch, numpy as np, sys; sys.path.insert(0, sys.argv[1]); import test_threads as t\n"
        "torch.set_num_threads(2); team = t.Team(); assert team.threads == 2; print(t.run(team, True))"
    )
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["[1,", "0]"], done.stderr


def test_shares_are_everything_once():
    for n in (0, 1, 7, 64):
        for size in (1, 2, 3, 5):
            parts = [share.py_func(n, me, size) for me in range(size)]
            assert [i for a, b in parts for i in range(a, b)] == list(range(n))


def runs(team, late):
    """Threads of each run, where `late(threads)` says whether one comes late."""
    taken = []
    for _ in range(400):
        taken.append(team.threads)
        team.notice(late(team.threads))
    return taken


@needs_team
def test_a_single_hiccup_changes_nothing(two_threads):
    two_threads.notice(True)
    assert two_threads.threads == 2


@needs_team
def test_where_a_core_is_taken_one_thread_does_it_and_two_are_tried_now_and_then(two_threads):
    taken = runs(two_threads, lambda threads: threads == 2)
    assert taken[:2] == [2, 2] and taken[2] == 1
    assert taken.count(2) < 12
    tries = [i for i in range(3, 400) if taken[i] == 2]
    assert tries and all(b - a > 1.5 * (a - c) for c, a, b in zip(tries, tries[1:], tries[2:])), "ever more rarely"


@needs_team
def test_when_the_core_is_free_again_both_are_taken(two_threads):
    runs(two_threads, lambda threads: threads == 2)
    assert set(runs(two_threads, lambda threads: False)[-100:]) == {2}
