"""The checker is itself tested by mutation: each change to a page must be seen."""

from __future__ import annotations

import copy
import json
from typing import Any

import demo_book as demo
import pytest

from thousand_fingers.book.drift import ONE_MACHINE, drift, without_cells
from thousand_fingers.book.execute import Job, execute
from thousand_fingers.book.notebook import (
    Notebook,
    normalise,
    notebook_bytes,
    parse_notebook,
    records_of,
    source_digest,
)
from thousand_fingers.book.project import BookError
from thousand_fingers.book.record import MIME_PREFIX


@pytest.fixture(scope="module")
def executed() -> Notebook:
    extra = 'record("demo.rate", 0.5, digits=2, interval=(0.4, 0.6))'
    text = notebook_bytes(demo.notebook("01_first.ipynb", extra)).decode()
    return parse_notebook(execute(Job("01_first", text)).notebook.decode())


def output_of(notebook: Notebook, name: str) -> dict[str, Any]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("scrapbook", {}).get("name") == name:
                return output
    raise AssertionError(name)


def with_value(notebook: Notebook, name: str, value: Any) -> Notebook:
    changed = copy.deepcopy(notebook)
    output_of(changed, name)["data"][MIME_PREFIX + "text/plain"] = repr(value)
    return changed


def test_a_notebook_does_not_drift_from_itself(executed):
    assert drift(executed, copy.deepcopy(executed)) == []


def test_a_change_below_the_tolerance_and_the_printed_digits_is_no_drift(executed):
    assert drift(executed, with_value(executed, "demo.mean", 0.123456789 * (1 + 1e-9))) == []


def test_a_changed_last_printed_digit_is_seen(executed):
    assert drift(executed, with_value(executed, "demo.mean", 0.1236)) == [
        "record demo.mean changed: 0.123456789 -> 0.1236"
    ]


def test_a_change_beyond_rtol_is_seen_even_where_the_print_is_the_same(executed):
    assert len(drift(executed, with_value(executed, "demo.mean", 0.12345))) == 1


def test_a_swapped_sign_is_seen(executed):
    assert len(drift(executed, with_value(executed, "demo.mean", -0.123456789))) == 1


def test_a_count_off_by_one_is_seen(executed):
    assert drift(executed, with_value(executed, "demo.people", 413)) == [
        "record demo.people changed: 412 -> 413"
    ]


def test_a_dropped_record_is_seen(executed):
    changed = copy.deepcopy(executed)
    for cell in changed["cells"]:
        cell["outputs"] = [
            o
            for o in cell.get("outputs", [])
            if o.get("metadata", {}).get("scrapbook", {}).get("name") != "demo.people"
        ]
    assert "record demo.people is no longer made" in drift(executed, changed)


def test_an_added_record_is_seen(executed):
    changed = copy.deepcopy(executed)
    added = copy.deepcopy(output_of(changed, "demo.people"))
    added["metadata"]["scrapbook"]["name"] = "demo.new"
    changed["cells"][5]["outputs"].append(added)
    assert "record demo.new is new" in drift(executed, changed)


def test_a_statistical_record_may_move_inside_its_interval_only(executed):
    assert drift(executed, with_value(executed, "demo.rate", 0.59)) == []
    assert "left its interval" in drift(executed, with_value(executed, "demo.rate", 0.61))[0]


def test_a_widened_interval_is_seen(executed):
    changed = copy.deepcopy(executed)
    output_of(changed, "demo.rate")["metadata"]["record"]["interval"] = [0.0, 1.0]
    assert "changed its interval" in drift(executed, changed)[0]


def test_a_record_that_changes_its_kind_is_seen(executed):
    changed = copy.deepcopy(executed)
    output_of(changed, "demo.people")["metadata"]["record"]["kind"] = "text"
    assert "changed its kind" in drift(executed, changed)[0]


def test_changed_text_is_seen(executed):
    changed = copy.deepcopy(executed)
    for cell in changed["cells"]:
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                output["text"] = output["text"].replace("done", "gone")
    assert drift(executed, changed) == ["the text printed by cell [3] changed: 'done' -> 'gone'"]


def test_text_of_approximate_cells_may_differ_but_their_records_may_not(executed):
    tagged = copy.deepcopy(executed)
    for cell in tagged["cells"]:
        if cell["source"] == demo.RECORD:
            cell["metadata"]["tags"] = ["approximate"]
    changed = copy.deepcopy(tagged)
    for cell in changed["cells"]:
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                output["text"] = output["text"].replace("done", "gone")
    assert drift(tagged, changed) == []
    assert len(drift(tagged, with_value(changed, "demo.mean", 0.2))) == 1


def test_changed_data_behind_a_figure_are_seen(executed):
    old = records_of(executed)["plot.fig_demo_1"].value
    summary = json.loads(str(old))
    summary["0.line0.y"]["last"] = 1.1
    changed = with_value(executed, "plot.fig_demo_1", json.dumps(summary, sort_keys=True))
    assert drift(executed, changed) == ["plot.fig_demo_1: the data of 0.line0.y changed"]


def test_a_line_missing_from_a_figure_is_seen(executed):
    changed = with_value(executed, "plot.fig_demo_1", "{}")
    assert drift(executed, changed) == ["plot.fig_demo_1: lines or panels came or went"]


@pytest.mark.parametrize("key", ["alt", "caption", "name"])
def test_changed_words_of_a_figure_are_seen(executed, key):
    changed = copy.deepcopy(executed)
    for cell in changed["cells"]:
        for output in cell.get("outputs", []):
            if "figure" in output.get("metadata", {}):
                output["metadata"]["figure"][key] = "something else"
    assert "of the figure of cell" in drift(executed, changed)[0]


def with_picture(notebook: Notebook, old: str, new: str) -> Notebook:
    changed = copy.deepcopy(notebook)
    for cell in changed["cells"]:
        for output in cell.get("outputs", []):
            if "image/svg+xml" in output.get("data", {}):
                assert old in output["data"]["image/svg+xml"]
                output["data"]["image/svg+xml"] = output["data"]["image/svg+xml"].replace(old, new)
    return changed


def test_other_bytes_of_the_same_picture_are_no_drift(executed):
    assert drift(executed, with_picture(executed, "stroke-width: 1.8", "stroke-width: 1.80001")) == []


def test_a_picture_that_lost_a_part_is_seen(executed):
    lost = with_picture(executed, '<g id="line2d_1"', '<g class="line2d_1"')
    assert drift(executed, lost) == ["the picture of cell [5] lost or gained parts"]


def test_a_notebook_edited_after_its_execution_is_seen(executed):
    changed = copy.deepcopy(executed)
    changed["cells"][5]["source"] += "\n"
    assert drift(executed, changed) == []  # a line end is not an edit
    changed["cells"][5]["source"] += "x = 1"
    assert "run it again" in drift(executed, changed)[0]


def test_a_name_recorded_twice_is_refused(executed):
    changed = copy.deepcopy(executed)
    changed["cells"][-4]["outputs"] = []
    changed["cells"][4]["outputs"] = [copy.deepcopy(output_of(executed, "demo.people"))]
    with pytest.raises(BookError, match=r"demo\.people is recorded twice"):
        records_of(changed)


def test_cells_of_one_machine_are_left_out_of_the_second_pass(executed):
    tagged = copy.deepcopy(executed)
    tagged["cells"][5]["metadata"]["tags"] = [ONE_MACHINE]
    remaining = without_cells(tagged, ONE_MACHINE)
    assert "demo.people" not in records_of(remaining)
    assert "demo.rate" in records_of(remaining)


def test_normal_form_is_a_fixed_point_and_forgets_the_machine(executed):
    noisy = copy.deepcopy(executed)
    noisy["metadata"]["papermill"] = {"duration": 3.2}
    noisy["metadata"]["language_info"]["version"] = "3.13.1"
    for position, cell in enumerate(noisy["cells"]):
        cell["id"] = f"random-{position}"
        cell["metadata"]["execution"] = {"iopub.status.busy": "2026-01-01"}
        cell["metadata"]["collapsed"] = True
    assert notebook_bytes(normalise(noisy)) == notebook_bytes(executed)
    assert notebook_bytes(normalise(normalise(executed))) == notebook_bytes(executed)


def test_the_source_digest_survives_execution_and_sees_tags(executed):
    extra = 'record("demo.rate", 0.5, digits=2, interval=(0.4, 0.6))'
    bare = demo.notebook("01_first.ipynb", extra)
    assert source_digest(bare) == source_digest(executed)
    bare["cells"][5]["metadata"]["tags"] = ["approximate"]
    assert source_digest(bare) != source_digest(executed)


def test_equal_cells_get_different_ids():
    notebook = demo.notebook("01_first.ipynb", "x = 1", "x = 1")
    ids = [cell["id"] for cell in normalise(notebook)["cells"]]
    assert len(ids) == len(set(ids))
