"""Pictures of the block table and of the waste: what they say is what the pool holds."""

from collections import deque
from itertools import pairwise

import ipywidgets
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from specdec_course.pictures.paging import (
    EMPTY,
    SEQUENCE_COLOURS,
    PoolRecorder,
    owners,
    pool_figure,
    pool_stepper,
    pool_tour,
    pool_words,
    sequence_colours,
    snapshot_html,
)
from specdec_ref.cache import BlockPool, OutOfBlocks


def texts(figure):
    return [t.get_text() for t in figure.axes[0].texts if t.get_text()]


def arrows(figure):
    """(place of the table entry, place on the block) of each arrow."""
    return [(t.xyann, t.xy) for t in figure.axes[0].texts if getattr(t, "arrow_patch", None)]


def fills(figure):
    patches = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    return [to_hex(p.get_facecolor()).upper() for p in patches if p.get_facecolor()[3] > 0]


def shared_pool():
    """Two sequences over blocks 0 and 1 of five, the second with block 2 besides; block 0 is registered."""
    pool = BlockPool(5, 2)
    first = []
    pool.extend(first, 0, 4)
    pool.register(first, [7, 8])
    second = pool.share(first)
    pool.extend(second, 4, 5)
    return pool, {"first": first, "second": second}, {"first": 4, "second": 5}


def test_the_picture_shows_tables_counts_hashes_and_the_queue_in_order():
    pool, tables, lengths = shared_pool()
    pool.free(pool.allocate(1))
    figure = pool_figure(pool, tables, lengths, title="both")
    shown = texts(figure)
    first, second = shown.index("table of first"), shown.index("table of second")
    assert shown[first + 1 : second] == ["0", "1"] and shown[second + 1 : second + 4] == ["0", "1", "2"]
    assert [t for t in shown if t.startswith("block ")] == [
        "block 0 #\n2 refs",
        "block 1\n2 refs",
        "block 2\n1 ref",
        "block 3\n0 refs",
        "block 4\n0 refs",
    ]
    assert shown[-3:] == ["free queue, next block to be allocated first:", "4", "3"]
    assert figure.axes[0].get_title() == "both"


def test_blocks_have_the_colours_of_all_sequences_that_hold_them():
    pool, tables, lengths = shared_pool()
    a, b = SEQUENCE_COLOURS[:2]
    in_tables, in_blocks = [a, a, b, b, b], [a, b, a, b, b]
    assert fills(pool_figure(pool, tables, lengths)) == in_tables + in_blocks
    assert owners(tables, 1) == ["first", "second"] and owners(tables, 2) == ["second"] and owners(tables, 4) == []


def test_an_arrow_leads_from_each_entry_to_its_block():
    pool, tables, lengths = shared_pool()
    figure = pool_figure(pool, tables, lengths)
    frames = {}  # of the boxes below the tables, by block
    for text in figure.axes[0].texts:
        if text.get_text().startswith("block "):
            frames[int(text.get_text().split()[1])] = text.get_position()[0]
    middles = sorted(frames.values())
    nearest = [min(frames, key=lambda b: abs(frames[b] - tip[0])) for _, tip in arrows(figure)]
    assert nearest == [*tables["first"], *tables["second"]] and len(middles) == 5
    to_block_0 = [tip for _, tip in arrows(figure) if abs(tip[0] - frames[0]) < 2]
    assert len(set(to_block_0)) == 2, "two holders, two places to point at"


def test_a_pool_as_the_lesson_builds_it_is_drawn_like_the_packages():
    class Plain:
        block_size, refs, free = 2, [2, 2, 1, 0, 0], deque([3, 4])

    pool, tables, lengths = shared_pool()
    pool._forget(0)  # the lesson's pool has no hashes
    assert texts(pool_figure(Plain(), tables, lengths)) == texts(pool_figure(pool, tables, lengths))
    assert pool_words(Plain(), tables) == pool_words(pool, tables)


def test_many_tables_go_to_a_second_row():
    pool = BlockPool(12, 1)
    tables = {f"sequence {i}": pool.allocate(3) for i in range(4)}
    figure = pool_figure(pool, tables, dict.fromkeys(tables, 3))
    rows = {t.get_position()[1] for t in figure.axes[0].texts if t.get_text().startswith("table of")}
    assert len(rows) == 2


def test_slots_past_the_end_of_a_sequence_are_grey():
    pool, tables, lengths = shared_pool()
    slots = [list("ab"), list("cd"), list("ex"), list("yz"), [EMPTY, " "]]
    letters = {t.get_text(): t.get_color() for t in pool_figure(pool, tables, lengths, slots).axes[0].texts}
    assert {letters[c] for c in "abcde"} == {"#000000"}
    assert {letters[c] for c in ("x", "y", "z", "␣")} == {"#808080"}
    assert texts(pool_figure(pool, tables, lengths)).count("■") == 5, "without letters, the slots in use are marked"


def test_what_has_a_hash_is_marked_and_what_is_filled_anew_is_not():
    """Two blocks with equal content, and one whose content was never registered."""
    pool, older, newer = BlockPool(3, 2), [], []
    for table in (older, newer):
        pool.extend(table, 0, 2)
        pool.register(table, [1, 2])
    tables, lengths = {"older": older, "newer": newer}, {"older": 2, "newer": 2}
    assert "Found by hash: 0, 1." in pool_words(pool, tables)
    assert {"block 0 #\n1 ref", "block 1 #\n1 ref"} <= set(texts(pool_figure(pool, tables, lengths)))
    pool.truncate(older, 0)
    pool.extend(newer, 2, 6)  # takes both other blocks
    assert "Found by hash: 1." in pool_words(pool, {"newer": newer})
    assert "block 0\n1 ref" in texts(pool_figure(pool, {"newer": newer}, {"newer": 6}))


def test_a_full_pool_says_so():
    pool = BlockPool(1, 2)
    table = pool.allocate(1)
    assert "free queue: empty" in texts(pool_figure(pool, {"a": table}, {"a": 2}))
    assert pool_words(pool, {"a": table}, "full") == (
        "full. Table of a: 0. Shared blocks: none. Found by hash: none. Free, in order: none."
    )


def test_words_name_the_sequences_that_share():
    pool, tables, _ = shared_pool()
    assert "Shared blocks: 0 by first and second, 1 by first and second." in pool_words(pool, tables)


def read(snapshot, name):
    size = snapshot.pool.block_size
    table = snapshot.tables[name]
    return "".join(snapshot.slots[table[i // size]][i % size] for i in range(snapshot.lengths[name]))


def test_the_tour_shows_every_kind_of_operation_once_named():
    steps = pool_tour()
    titles = [s.title for s in steps]
    assert titles[4] == 'append "n" to B; block 2 is shared: copied to 3 first'
    assert titles[8] == 'start C with "once upon a tale"; 12 tokens are known, 4 are written'
    assert titles[9] == 'start D with "in a land far"; forgotten: what blocks 3, 4 held'
    assert titles[11].startswith('start E with "once upon an owl"; 8 tokens are known, 8 are written')
    assert steps[3].title.startswith("fork") and steps[6].title == "free A"
    for before, after in pairwise(steps):
        gone = set(before.tables) - set(after.tables)
        assert gone == ({after.title[-1]} if after.title.startswith("free") else set())


def test_every_step_of_the_tour_reads_as_what_was_written():
    written = {"A": ["once upon", "once upon a", "once upon a time"], "B": ["once upon a", "once upon an"]}
    written |= {"C": ["once upon a tale"], "D": ["in a land far"], "E": ["once upon an owl"]}
    seen = set()
    for step in pool_tour():
        counts = [sum(b in t for t in step.tables.values()) for b in range(len(step.pool.blocks))]
        assert counts == [b.refs for b in step.pool.blocks]
        for name in step.tables:
            assert read(step, name) in written[name]
            seen.add((name, read(step, name)))
    assert seen == {(name, text) for name, every in written.items() for text in every}


def test_snapshots_do_not_change_afterwards():
    r = PoolRecorder(4, 2)
    r.start("a", "xy")
    before = pool_words(r.snapshots[1].pool, r.snapshots[1].tables)
    r.append("a", "z")
    r.free("a")
    assert pool_words(r.snapshots[1].pool, r.snapshots[1].tables) == before
    assert len(r.snapshots) == 4


def test_what_a_full_pool_refuses_leaves_no_trace():
    r = PoolRecorder(2, 2)
    r.start("a", "abc")
    r.free("a")
    r.start("b", "ab")
    state = pool_words(r.pool, r.tables)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks"):
        r.start("c", "abcdef")  # its first block is known, and must be let go of again
    with pytest.raises(OutOfBlocks):
        r.append("b", "cdefg")
    assert pool_words(r.pool, r.tables) == state and len(r.snapshots) == 4
    with pytest.raises(ValueError, match="choose another name"):
        r.start("b", "x")
    with pytest.raises(ValueError, match="choose another name"):
        r.fork("b", "b")


def test_a_sequence_keeps_its_colour():
    colours = sequence_colours([{}, {"a": []}, {"b": []}, {"a": [], "c": []}])
    assert list(colours) == ["a", "b", "c"] and len(set(colours.values())) == 3


def test_stepper_follows_its_slider():
    steps = pool_tour()
    slider, output = pool_stepper(steps).children
    assert isinstance(slider, ipywidgets.IntSlider) and (slider.min, slider.max) == (1, len(steps))
    assert output.value == snapshot_html(steps, 1)
    assert pool_stepper(steps, step=9).children[1].value == snapshot_html(steps, 9)
    slider.value = 5
    assert "step 5 of 12</b>: 4 of 8 blocks in use" in output.value
    assert "copied to 3 first. Table of A: 0, 1, 2. Table of B: 0, 1, 3." in output.value, "words stand in for pictures"
    assert "data:image/png" in output.value
