"""Executing notebooks: same bytes twice, clear failures, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import demo_book as demo
import pytest

from thousand_fingers.book.execute import (
    BASELINE_CHECK,
    BASELINE_VECTORS,
    FIXED_ENVIRONMENT,
    Interrupt,
    Job,
    check_parameters,
    execute,
    execution_environment,
)
from thousand_fingers.book.notebook import notebook_bytes, parse_notebook, records_of
from thousand_fingers.book.offline import GUARD, NAMESPACE, ONLINE, isolation, offline_command
from thousand_fingers.book.project import BookError


def job(*extra: str, **about) -> Job:
    text = notebook_bytes(demo.notebook("01_first.ipynb", *extra)).decode("utf-8")
    return Job("01_first", text, **about)


def test_two_executions_give_the_same_bytes():
    first, second = execute(job()), execute(job())
    assert first.failure is None
    assert first.notebook == second.notebook
    executed = parse_notebook(first.notebook.decode())
    records = records_of(executed)
    assert records["demo.mean"].value == 0.123456789
    assert records["demo.people"].kind == "count"
    assert "plot.fig_demo_1" in records
    counts = [c["execution_count"] for c in executed["cells"] if c["cell_type"] == "code"]
    assert counts == [1, 2, 3, 4]
    assert "papermill" not in executed["metadata"]
    figure_cell = next(c for c in executed["cells"] if "mystnb" in c["metadata"])
    assert figure_cell["metadata"]["mystnb"]["image"]["alt"].startswith("A straight line")


def test_progress_is_reported_cell_by_cell():
    seen: list[tuple[int, int]] = []
    execute(job(), on_progress=lambda done, of: seen.append((done, of)))
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)


def test_a_failing_cell_is_named_with_its_error_and_source():
    execution = execute(job("total = 0", "1 / total"))
    assert execution.failure is not None
    assert execution.failure.cell == 5
    assert execution.failure.what == "ZeroDivisionError: division by zero"
    assert execution.failure.source == "1 / total"
    assert execution.notebook == b""


def test_a_cell_that_runs_too_long_is_ended():
    execution = execute(job("import time\ntime.sleep(60)", cell_timeout=2))
    assert execution.failure is not None
    assert "longer than 2 s" in execution.failure.what


def test_a_kernel_that_dies_is_reported():
    execution = execute(job("import os\nos._exit(1)"))
    assert execution.failure is not None
    assert "kernel died" in execution.failure.what


def test_an_exit_in_a_cell_is_not_taken_for_success():
    execution = execute(job("raise SystemExit(3)"))
    assert execution.failure is not None


def test_an_unknown_parameter_is_an_error_before_anything_runs():
    with pytest.raises(BookError, match="unknown parameter 'scal'; the notebook declares: scale"):
        execute(job(parameters={"scal": "paper"}))


def test_a_text_where_a_number_is_declared_is_refused():
    notebook = demo.notebook("01_first.ipynb")
    notebook["cells"][3]["source"] = "delta = 1e-5\nlabel = 'a=b'"
    with pytest.raises(BookError, match="must be of type float"):
        check_parameters(notebook, {"delta": "1e-5"})
    check_parameters(notebook, {"delta": 1e-6, "label": "c=d"})


def test_parameters_reach_the_notebook():
    execution = execute(job('record("demo.scale", scale)', parameters={"scale": "paper"}))
    assert records_of(parse_notebook(execution.notebook.decode()))["demo.scale"].value == "paper"


def test_a_notebook_without_parameters_cell_is_refused():
    notebook = demo.notebook("01_first.ipynb")
    notebook["cells"][3]["metadata"] = {}
    with pytest.raises(BookError, match="no cell tagged 'parameters'"):
        check_parameters(notebook, {})


def test_the_environment_is_fixed_whatever_the_shell_says(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    environment = execution_environment({}, "folder")
    assert environment.items() >= FIXED_ENVIRONMENT.items()
    assert not {"PYTHONPATH", "MPLBACKEND"} & environment.keys()


def test_a_cluster_with_another_version_of_the_library_is_refused():
    with pytest.raises(BookError, match="copy of the library differs"):
        execute(job(source_hash="something else"))


def test_the_baseline_pass_asserts_that_the_cap_took_effect():
    probe = "from numpy._core._multiarray_umath import __cpu_features__ as f\n"
    probe += 'record("demo.wide", int(f["X86_V3"]))'
    execution = execute(job(probe, environment=BASELINE_VECTORS, assertion=BASELINE_CHECK))
    assert records_of(parse_notebook(execution.notebook.decode()))["demo.wide"].value == 0
    with pytest.raises(BookError, match="does not run as asked"):
        execute(job(assertion="assert False, 'still wide'"))


REACH_OUT = """\
import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=3)
    outcome = "connected"
except OSError as error:
    outcome = "refused" if "without a network" in str(error) or "nreachable" in str(error) else str(error)
record("demo.outcome", outcome)"""


def test_the_network_is_out_of_reach_in_the_isolation_this_machine_allows():
    execution = execute(job(REACH_OUT))
    assert execution.isolation in (NAMESPACE, GUARD)
    assert records_of(parse_notebook(execution.notebook.decode()))["demo.outcome"].value == "refused"


def test_the_network_is_out_of_reach_where_only_the_guard_is_possible(monkeypatch):
    monkeypatch.setattr("thousand_fingers.book.execute.isolation", lambda: GUARD)
    execution = execute(job(REACH_OUT))
    assert execution.failure is None, execution.failure
    assert execution.isolation == GUARD
    assert records_of(parse_notebook(execution.notebook.decode()))["demo.outcome"].value == "refused"


def test_without_unshare_the_guard_is_chosen(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert isolation() == GUARD
    assert offline_command(["/bin/true"], ONLINE) == (["/bin/true"], {})


def test_stopping_ends_a_running_execution_and_its_kernel(tmp_path):
    import threading

    marker = tmp_path / "pid"
    interrupt = Interrupt()
    slow = f"import os, time, pathlib\npathlib.Path({str(marker)!r}).write_text(str(os.getpid()))\ntime.sleep(120)"
    thread = threading.Thread(target=execute, args=(job(slow),), kwargs={"interrupt": interrupt})
    thread.start()
    deadline = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    interrupt.stop()
    thread.join(timeout=20)
    assert not thread.is_alive()
    kernel = int(marker.read_text())
    assert gone(kernel)


def gone(process: int) -> bool:
    """Wait until a process has ended."""
    deadline = time.monotonic() + 15
    while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_exits_130_and_leaves_nothing_half_written(tmp_path, end):
    project = demo.make_project(tmp_path / "book")
    marker = tmp_path / "kernel"
    slow = f"import os, pathlib, time\npathlib.Path({str(marker)!r}).write_text(str(os.getpid()))\ntime.sleep(120)"
    demo.write_notebook(project, "01_first.ipynb", demo.notebook("01_first.ipynb", slow))
    process = subprocess.Popen(
        [sys.executable, "-m", "thousand_fingers.book.cli", "run"],
        cwd=project.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(end, signal.SIG_DFL),  # whatever nohup or a shell made of it
    )
    target = project.executed(project.chapters(["2"])[0], "ci")
    deadline = time.monotonic() + 90
    while not (target.exists() and marker.exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(end)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "nothing was left half-written" in output
    assert parse_notebook(target.read_text())["cells"]
    assert not project.executed(project.chapters(["1"])[0], "ci").exists()
    leftovers = [p for p in project.build_dir.rglob(".*") if p.name != ".lock"]
    assert leftovers == []
    json.loads((project.build_dir / "state.json").read_text())
    assert gone(int(marker.read_text()))
