"""The line of progress: shown in a notebook while a cell works, gone from what is stored."""

import nbformat
import pytest
from build_lessons import without_progress
from nbclient import NotebookClient

from specdec_course.progress_line import TRANSIENT, progress


def test_outside_notebooks_the_steps_pass_through_in_silence(capsys):
    assert list(progress(range(3), "race")) == [0, 1, 2]
    assert capsys.readouterr().out == ""


def run(source):
    cell = nbformat.v4.new_code_cell(source)
    NotebookClient(nbformat.v4.new_notebook(cells=[cell]), kernel_name="python3", timeout=120).execute()
    return cell.outputs


SOURCE = "import specdec_course as course\nfor i in course.progress(range(3), 'race'):\n    print(i)"


@pytest.mark.parametrize("stopped", [False, True])
def test_in_a_notebook_a_line_is_shown_and_empty_at_the_end(stopped):
    outputs = run(SOURCE + "\n    break" * stopped)
    lines = [o for o in outputs if o.output_type == "display_data"]
    assert [o.metadata for o in lines] == [TRANSIENT]
    assert lines[0].data["text/html"] == ""
    assert [o.output_type for o in without_progress(outputs)] == ["stream"] * (len(outputs) - 1)


def test_the_line_says_how_far_it_is():
    source = (
        "import specdec_course.progress_line as module\nseen = []\n"
        "module.HTML = lambda text: seen.append(text) or __import__('IPython').display.HTML(text)\n"
        "for i in module.progress(range(3), 'race'):\n    pass\nprint(seen)"
    )
    text = "".join(o.text for o in run(source) if o.output_type == "stream")
    assert "race: 0 of 3 done" in text and "race: 2 of 3 done, about 0 s to go" in text
