"""A server's memory as pictures: the map is what the simulation held, bars and curves are the numbers given."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from specdec_course.pictures.memory import (
    BlockCost,
    block_cost_figure,
    block_cost_words,
    block_costs,
    memory_figure,
    memory_map,
    memory_words,
    waste_figure,
    waste_words,
)
from specdec_course.simulate import Waste, block_utilisation, draw_lengths

FREE, TOKEN, LATER, NEVER = range(4)


def test_a_reservation_is_a_band_that_fills_up():
    """Two requests of 32 + 32 tokens at a time, each in a reservation of 2,048 slots: 128 stretches of 16."""
    m = memory_map("max", [32] * 9, [32] * 9, first=0, steps=32, capacity=4096)
    assert m.kind.shape == m.request.shape == (256, 32)
    reserved = m.kind[:128]
    assert list(reserved[:, 0]) == [TOKEN] * 2 + [LATER] * 2 + [NEVER] * 124
    assert list(reserved[:, 31]) == [TOKEN] * 4 + [NEVER] * 124
    assert set(m.request[:128].flat) == {0} and set(m.request[128:].flat) == {1}


def test_the_oracle_reserves_nothing_in_vain_and_paging_holds_hardly_anything_ahead():
    prompts, outputs = draw_lengths(120, np.random.default_rng(0))
    oracle, paged = (memory_map(kind, prompts, outputs, first=200, steps=50) for kind in ("oracle", "paged"))
    assert oracle.share(NEVER) == 0 and oracle.share(LATER) > 0.1
    assert paged.share(TOKEN) > 0.6 and paged.share(LATER) == paged.share(NEVER) == 0
    for m in (oracle, paged):
        assert sum(map(m.share, range(4))) == pytest.approx(1)
        assert ((m.request == -1) == (m.kind == FREE)).all()


def test_a_window_after_the_end_is_refused():
    with pytest.raises(ValueError, match=r"done after .* steps: give more requests"):
        memory_map("oracle", [32] * 9, [32] * 9, first=500, capacity=128)


def test_the_map_is_drawn_in_the_colours_of_its_legend_and_told_in_words():
    maps = {"one": memory_map("max", [32] * 9, [32] * 9, first=0, steps=32, capacity=4096)}
    figure = memory_figure(maps)
    image = figure.axes[0].images[0]
    assert image.get_array().shape == (256, 32, 3) and figure.axes[0].get_title() == "one"
    assert to_hex(image.get_array()[0, 0]) == "#009e73", "request 0, the first token"
    assert "reserved, never used" in memory_words(maps) and memory_words(maps).startswith("one: 3% holds a token")


WASTE = {
    "one": Waste(0.2, 0.1, 0.5, 0.05, 0.15, 7.0, 0),
    "two": Waste(0.9, 0.06, 0.02, 0.0, 0.02, 33.94, 5),
}


def test_waste_bars_are_the_shares():
    (ax,) = waste_figure(WASTE).axes
    widths = [[bar.get_width() for bar in group] for group in ax.containers]
    for i, w in enumerate(WASTE.values()):
        got = [group[i] for group in widths]
        assert got == pytest.approx([100 * x for x in (w.token_states, w.reserved, w.internal, w.external, w.free)])
        last = ax.containers[-1][i]
        assert last.get_x() + last.get_width() == pytest.approx(100)
    assert [t.get_text() for t in ax.texts] == ["7.0 requests\n0 preemptions", "33.9 requests\n5 preemptions"]
    assert len({(to_hex(g[0].get_facecolor()), g[0].get_hatch()) for g in ax.containers}) == 5
    assert waste_words(WASTE).startswith(
        "one: 20.0% holds a token, 10.0% reserved, for later, 50.0% reserved, never used"
    )


def test_block_costs_are_measured_for_each_size():
    costs = block_costs((1, 32), [10, 40], context=64, repeats=2)
    assert list(costs) == [1, 32]
    assert all(c.read > 0 and c.hash > 0 for c in costs.values())
    assert [c.empty for c in costs.values()] == [0, pytest.approx(1 - block_utilisation([10, 40], 32))]


def test_block_costs_are_drawn_as_given():
    costs = {1: BlockCost(2e-6, 9e-6, 0.0), 16: BlockCost(1e-6, 3e-6, 0.02)}
    left, right = block_cost_figure(costs).axes
    assert [list(line.get_ydata()) for line in left.lines] == [[2, 1], pytest.approx([9, 3])]
    assert list(right.lines[0].get_xdata()) == [1, 16] and list(right.lines[0].get_ydata()) == [0, 2]
    assert "blocks of 16: 1.00 µs to attend and 3.00 µs to hash" in block_cost_words(costs)
