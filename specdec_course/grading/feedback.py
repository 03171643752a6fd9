"""The page for a student: the notebook as it was graded, with the marks and comments at their places.

It is one file that loads nothing from anywhere, so formulas stay as they were typed, in TeX. nbgrader's own feedback
shows 0.0 for a part that was not run or not marked, and names no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_course.grading.course_folder import Course, read_json
from specdec_course.grading.gradebook import Grade, grades
from specdec_ref.files import write_atomic

# nbconvert's page without the scripts that it would load from the network, for formulas, widgets and diagrams.
PAGE = "{% extends 'lab/index.html.j2' %}" + "".join(
    f"{{% block {name} %}}{{% endblock %}}"
    for name in ("html_head_js", "html_head_js_mathjax", "html_head_js_mermaidjs", "jupyter_widgets")
)


def write_page(course: Course, book: Any, name: str, student: str) -> bool:
    """Write the page of a graded submission; where it was not graded, remove an old one. Whether there is a page."""
    import nbformat
    from nbconvert import HTMLExporter

    target, source = course.feedback(name, student), course.autograded(name, student)
    if (read_json(course.record(name, student)) or {}).get("state") != "graded" or not source.exists():
        target.unlink(missing_ok=True)
        return False
    notebook = with_marks(nbformat.read(source, as_version=4), name, grades(course, book, name, student))
    exporter = HTMLExporter(
        template_name="lab", raw_template=PAGE, exclude_input_prompt=True, exclude_output_prompt=True
    )
    page, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": f"{name}, {student}"}})
    write_atomic(target, page)
    return True


def with_marks(notebook: Any, name: str, mine: Sequence[Grade]) -> Any:
    """The notebook with a table of marks in front, and the mark of each part before the cell that it is for."""
    import nbformat

    by_id = {grade.question: grade for grade in mine}
    have = [grade.points for grade in mine if grade.points is not None]
    so_far = "" if len(have) == len(mine) else " so far, other parts have no mark yet"
    lines = [f"# {name}: {round(sum(have), 2):g} of {sum(g.most for g in mine):g}{so_far}", "", "| part | marks |"]
    lines += ["|---|---|", *(f"| [{part_name(g.question)}](#{g.question}) | {mark_text(g)} |" for g in mine)]
    cells = [nbformat.v4.new_markdown_cell("\n".join(lines), id="marks")]
    for cell in notebook.cells:
        grade = by_id.get(cell.metadata.get("nbgrader", {}).get("grade_id", ""))
        if grade is None:
            cells.append(cell)
            continue
        head = f'<a id="{grade.question}"></a>**{part_name(grade.question)}: {mark_text(grade)}**'
        cells += [nbformat.v4.new_markdown_cell(head, id=f"mark-{len(cells)}"), cell]
        if grade.comment:
            cells.append(nbformat.v4.new_markdown_cell(f"**Comment.** {grade.comment}", id=f"comment-{len(cells)}"))
    notebook.cells = cells
    return notebook


def part_name(question: str) -> str:
    """A part's name as learners know it: `work` for the test `test-work`."""
    kind, _, name = question.partition("-")
    return f"{name} (in writing)" if kind == "written" else name or kind


def mark_text(grade: Grade) -> str:
    """A mark in words; never a number where there is none."""
    return f"{grade.state}, of {grade.most:g}" if grade.points is None else f"{grade.points:g} of {grade.most:g}"
