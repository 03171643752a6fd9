"""The notebook as it was graded: what formgrader shows, and what the page for the student is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_course.grading import submission
from specdec_course.grading.course_folder import Course, digest
from specdec_course.grading.sandbox import CodeCell, Outcome


@dataclass(frozen=True)
class ProblemSet:
    """What grading needs of a problem set."""

    name: str
    source: Any
    released: Any
    fingerprint: str

    @classmethod
    def load(cls, course: Course, name: str) -> ProblemSet:
        """Read the instructor's and the learners' notebook. Raises ValueError where it was not released."""
        import nbformat

        if not course.released(name).exists():
            raise ValueError(f"{name} is not released: run `specdec grade release {name}` first")
        data = course.source(name).read_bytes()
        return cls(
            name,
            nbformat.reads(data.decode("utf-8"), as_version=4),
            nbformat.read(course.released(name), as_version=4),
            digest(data),
        )

    @property
    def graded_cells(self) -> dict[str, Any]:
        """The instructor's cells that have a part in grading, by their id."""
        return {c.metadata.nbgrader.grade_id: c for c in self.source.cells if submission.graded(c)}


def graded_notebook(
    cells: Sequence[submission.Cell], problem_set: ProblemSet, tests: Mapping[int, CodeCell], outcome: Outcome
) -> tuple[Any, dict[str, float | None], dict[str, bool]]:
    """The graded notebook that feedback is made of, each test's score, and which written parts hold an answer."""
    import nbformat
    from nbgrader.utils import compute_checksum

    true = problem_set.graded_cells
    stubs = {c.metadata.nbgrader.grade_id: c.source for c in problem_set.released.cells if submission.graded(c)}
    given = {c.source for c in problem_set.released.cells}
    made = nbformat.v4.new_notebook(metadata=problem_set.released.metadata)
    scores: dict[str, float | None] = {}
    answers: dict[str, bool] = {}
    for index, cell in enumerate(cells):
        new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}.get(
            cell.kind, nbformat.v4.new_raw_cell
        )(cell.source, id=f"cell-{index:03d}")
        if cell.kind != "code" and cell.source not in given:
            new.source = without_html(cell.source)
        if cell.grade_id:
            new.metadata["nbgrader"] = nbformat.from_dict(dict(true[cell.grade_id].metadata.nbgrader))
            new.metadata.nbgrader["checksum"] = compute_checksum(new)
            kind = submission.graded(true[cell.grade_id])
            if kind == "test":
                scores[cell.grade_id] = outcome.score(tests[index])
            elif kind == "written":
                answers[cell.grade_id] = cell.source.strip() not in ("", stubs[cell.grade_id].strip())
        if cell.kind == "code":
            new.outputs = [nbformat.from_dict(o) for o in map(_output, outcome.shown(index)) if o]
            if how := outcome.ended.get(index) or outcome.stopped(index):
                new.outputs.append(nbformat.v4.new_output("stream", name="stderr", text=f"{how}\n"))
        made.cells.append(new)
    return made, scores, answers


def without_html(text: str) -> str:
    """Markdown that loads and runs nothing in a reader's browser: tags, pictures and scripts become plain text."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "< ", text)
    text = re.sub(r"!(?=\[)", "! ", text)
    text = re.sub(r"\\(?=(require|style|href|url|class|cssId|includegraphics)\b)", r"\\ ", text)  # MathJax follows them
    return re.sub(r"\](?=\(\s*(?!https?://)|:|\[)", "] ", text)


def _output(raw: Any) -> dict[str, Any] | None:
    """An output as a notebook holds it, made of what is known to be harmless: text and pictures."""
    try:
        kind = raw["output_type"]
        if kind == "stream":
            name = "stderr" if raw["name"] == "stderr" else "stdout"
            return {"output_type": "stream", "name": name, "text": str(raw["text"])}
        if kind == "error":
            trace = [str(line) for line in raw["traceback"]]
            return {
                "output_type": "error",
                "ename": str(raw["ename"]),
                "evalue": str(raw["evalue"]),
                "traceback": trace,
            }
        data = {k: str(v) for k, v in raw["data"].items() if k in ("text/plain", "image/png")}
        if not re.fullmatch(r"[A-Za-z0-9+/=\s]*", data.get("image/png", "")):
            return None
        return {"output_type": "display_data", "data": data, "metadata": {}} if data else None
    except (KeyError, TypeError, AttributeError):
        return None
