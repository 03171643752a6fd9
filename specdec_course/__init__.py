"""The course as notebooks see it: `import specdec_course as course`, then `course.show(...)`.

This is what a lesson needs beside its subject: prompts, answers, pictures, things to move, simulations. The subject
itself comes from `specdec_ref`, under its own names. Names are imported at first use.
"""

# ruff: noqa: I001 - grouped by what a reader looks for
import os
from typing import TYPE_CHECKING

from specdec_ref.lazy import attach

# Threads that spin while they wait for each other decode at a quarter of the speed, or less, once another program
# wants a core. OpenMP reads this when PyTorch is loaded; who has set it knows better.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    # In every lesson: the course's prompts, answers, figures and tables
    from specdec_ref.prompts import prompt as prompt, prompts as prompts
    from specdec_course.answers import check as check, guess_text as guess_text
    from specdec_course.blanks import blank as blank, solution as solution
    from specdec_course.progress_line import progress as progress
    from specdec_course.pictures.plots import new_figure as new_figure, show as show, table_html as table_html
    from specdec_course.contents import contents_html as contents_html
    from specdec_course.article.settle import claims_html as claims_html

    # Generations: where each token came from, rounds one by one, speed, differences
    from specdec_course.pictures.tokens import tokens_html as tokens_html, legend_html as legend_html
    from specdec_course.pictures.tokens import side_by_side_html as side_by_side_html
    from specdec_course.pictures.timeline import timed_run as timed_run, timeline_html as timeline_html
    from specdec_course.pictures.timeline import race_html as race_html, race_explorer as race_explorer
    from specdec_course.pictures.recorded import record_rounds as record_rounds, worked_round as worked_round
    from specdec_course.pictures.strip import strip_figure as strip_figure, strip_words as strip_words
    from specdec_course.pictures.rounds import round_stepper as round_stepper, rounds_figure as rounds_figure
    from specdec_course.pictures.rounds import times_figure as times_figure, times_words as times_words
    from specdec_course.suspects import suspect as suspect, reply_to_order as reply_to_order
    from specdec_course.pictures.plots import pass_cost_figure as pass_cost_figure
    from specdec_course.pictures.races import ratio_figure as ratio_figure, predicted_speedup as predicted_speedup
    from specdec_course.pictures.races import together_words as together_words
    from specdec_course.pictures.diverge import diverging_html as diverging_html

    # Roofline: chips and passes, kernels and batches
    from specdec_course.pictures.passes import timeline_figure as timeline_figure, tile_figure as tile_figure
    from specdec_course.pictures.passes import two_roofs_figure as two_roofs_figure, kernels_figure as kernels_figure
    from specdec_course.pictures.roofline import chips_rows as chips_rows, roofline_figure as roofline_figure
    from specdec_course.pictures.roofline import passes as passes, passes_rows as passes_rows
    from specdec_course.pictures.roofline import passes_figure as passes_figure, crossing_batch as crossing_batch
    from specdec_course.pictures.roofline import kernels_explorer as kernels_explorer

    # Roofline: layers and steps on this machine
    from specdec_course.pictures.machine import others_text as others_text, machine_rows as machine_rows
    from specdec_course.pictures.machine import layer_points as layer_points, layer_words as layer_words
    from specdec_course.pictures.machine import roof_of as roof_of, machine_figure as machine_figure
    from specdec_course.pictures.machine import decode_rows as decode_rows, decode_verdict as decode_verdict
    from specdec_course.pictures.machine import predicted_pass_cost as predicted_pass_cost
    from specdec_course.pictures.machine import cost_ranges as cost_ranges, cost_words as cost_words
    from specdec_course.pictures.machine import predicted_cost_figure as predicted_cost_figure

    # The cache: what is kept and shared, time, size, users
    from specdec_course.pictures.kept import cache_figure as cache_figure, heads_figure as heads_figure
    from specdec_course.pictures.kept import changed_keys as changed_keys, changed_figure as changed_figure
    from specdec_course.pictures.kept import cache_shares as cache_shares, shares_figure as shares_figure
    from specdec_course.pictures.cache import step_seconds as step_seconds, step_time_figure as step_time_figure
    from specdec_course.pictures.cache import step_time_words as step_time_words
    from specdec_course.pictures.cache import allocated_bytes as allocated_bytes
    from specdec_course.pictures.cache import attention_variants as attention_variants
    from specdec_course.pictures.cache import attention_figure as attention_figure, growth_figure as growth_figure
    from specdec_course.pictures.cache import KV_FORMATS as KV_FORMATS, users_rows as users_rows
    from specdec_course.pictures.cache import cache_explorer as cache_explorer
    from specdec_course.pictures.cache import reserved_shares as reserved_shares

    # Paging: a pool step by step, and a simulated server's memory
    from specdec_course.pictures.paging import PoolRecorder as PoolRecorder, pool_tour as pool_tour
    from specdec_course.pictures.paging import pool_figure as pool_figure, pool_words as pool_words
    from specdec_course.pictures.paging import pool_stepper as pool_stepper
    from specdec_course.simulate import draw_lengths as draw_lengths, serve_contiguous as serve_contiguous
    from specdec_course.simulate import serve_paged as serve_paged
    from specdec_course.pictures.memory import memory_map as memory_map, memory_figure as memory_figure
    from specdec_course.pictures.memory import memory_words as memory_words
    from specdec_course.pictures.memory import waste_figure as waste_figure, waste_words as waste_words
    from specdec_course.pictures.memory import block_costs as block_costs, block_cost_figure as block_cost_figure
    from specdec_course.pictures.memory import block_cost_words as block_cost_words
    from specdec_course.pictures.kernel_times import kernel_times as kernel_times, kernel_figure as kernel_figure
    from specdec_course.pictures.kernel_times import kernel_words as kernel_words

    # Exactness: one draft as mass that moves, the tree of a round, tests that count
    from specdec_course.pictures.mass import one_step as one_step, mass_figure as mass_figure
    from specdec_course.pictures.mass import mass_words as mass_words, mass_html as mass_html
    from specdec_course.pictures.mass import mass_explorer as mass_explorer, likeliest_bars as likeliest_bars
    from specdec_course.pictures.mass import tree_figure as tree_figure, tree_words as tree_words
    from specdec_course.pictures.mass import pushes_figure as pushes_figure
    from specdec_course.pictures.exactness import convergence_figure as convergence_figure
    from specdec_course.pictures.exactness import g_figure as g_figure, power_figure as power_figure
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
