"""Regenerating a whole book: what runs, where, and what survives a failure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import demo_book as demo
import pytest

from thousand_fingers.book.execute import Execution, Failure, execute
from thousand_fingers.book.freshness import State
from thousand_fingers.book.project import BookError, Chapter, Project
from thousand_fingers.book.run import Listener, check_cluster_address, cluster, run
from thousand_fingers.book.timings import Timings


def run_all(project: Project, **options):
    return run(project, State(project), Timings(project), project.chapters(), **options)


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Project:
    """The demonstration book, executed once."""
    project = demo.make_project(tmp_path_factory.mktemp("run") / "book")
    assert [o.state for o in run_all(project)] == ["executed", "executed"]
    return project


def test_a_second_run_executes_nothing(book):
    assert [o.state for o in run_all(book)] == ["fresh", "fresh"]


def test_fresh_chapters_run_when_asked_for(book):
    before = {c.name: book.executed(c, "ci").read_bytes() for c in book.chapters()}
    outcomes = run_all(book, fresh=True)
    assert [o.state for o in outcomes] == ["executed", "executed"]
    assert {c.name: book.executed(c, "ci").read_bytes() for c in book.chapters()} == before


def test_other_scales_and_vector_widths_have_results_of_their_own(book):
    first = book.chapters(["1"])
    for options in ({"scale": "paper"}, {"variant": "baseline"}):
        (outcome,) = run(book, State(book), Timings(book), first, **options)
        assert outcome.state == "executed"
    assert {p.parent.name for p in book.build_dir.rglob("01_first.ipynb")} == {"ci", "paper", "ci-baseline"}


def test_a_failing_chapter_leaves_the_others_and_its_previous_result(book):
    first, second = book.chapters()
    good, source = book.executed(first, "ci").read_bytes(), first.path.read_bytes()
    demo.write_notebook(book, first.path.name, demo.notebook(first.path.name, "1 / 0"))
    demo.write_notebook(book, second.path.name, demo.notebook(second.path.name, "x = 1"))
    outcomes = run_all(book)
    assert [o.state for o in outcomes] == ["failed", "executed"]
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.what == "ZeroDivisionError: division by zero"
    assert book.executed(first, "ci").read_bytes() == good
    assert State(book).why_stale(first, "ci") == ["cells"]
    first.path.write_bytes(source)


def test_what_is_edited_during_a_run_makes_the_chapter_stale(tmp_path):
    project = demo.make_project(tmp_path / "book")
    first = project.chapters(["1"])

    class Editing:
        def submit(self, function, job):
            future: Future = Future()
            future.set_result(function(job))
            demo.write_notebook(project, first[0].path.name, demo.notebook(first[0].path.name, "x = 1"))
            return future

    run(project, State(project), Timings(project), first, executor=Editing())
    assert State(project).why_stale(first[0], "ci") == ["cells"]


class CountingPool(ThreadPoolExecutor):
    """A pool of two that remembers how many jobs were alive together."""

    def __init__(self) -> None:
        super().__init__(2)
        self.alive = self.most = 0
        self.lock = threading.Lock()

    def submit(self, function, /, *arguments):
        def counted(*given):
            with self.lock:
                self.alive += 1
                self.most = max(self.most, self.alive)
            try:
                return function(*given)
            finally:
                with self.lock:
                    self.alive -= 1

        return super().submit(counted, *arguments)


@pytest.mark.parametrize(("needs", "together"), [({"memory": "heavy"}, 1), ({}, 2)])
def test_memory_heavy_chapters_never_run_side_by_side(tmp_path, needs, together):
    project = demo.make_project(tmp_path / "book")
    for file in ("01_first.ipynb", "02_second.ipynb"):
        content = demo.notebook(file)
        content["metadata"]["thousand_fingers"] = needs
        demo.write_notebook(project, file, content)
    with CountingPool() as pool:
        assert [o.state for o in run_all(project, executor=pool)] == ["executed", "executed"]
    assert pool.most == together


def test_the_memory_heavy_chapters_form_a_chain_that_starts_at_once(tmp_path, monkeypatch):
    def at_once(job, *_):
        return Execution(job.name, b"", 0.0, 0, "", Failure(0, "", "not executed here", ""))

    monkeypatch.setattr("thousand_fingers.book.run.execute", at_once)
    project = demo.make_project(tmp_path / "book")
    for file in ("02_second.ipynb", "03_third.ipynb"):
        heavy = demo.notebook(file)
        heavy["metadata"]["thousand_fingers"] = {"memory": "heavy"}
        demo.write_notebook(project, file, heavy)
    started: list[str] = []

    class Recording(Listener):
        def started(self, chapter: Chapter, why: list[str]) -> None:
            started.append(chapter.path.name[:2])

    run_all(project, jobs=1, listener=Recording())
    assert started == ["02", "03", "01"]


def test_a_chapter_that_cannot_start_is_named_and_the_others_run(tmp_path):
    project = demo.make_project(tmp_path / "book")
    content = demo.notebook("01_first.ipynb")
    content["cells"][3]["metadata"] = {}
    demo.write_notebook(project, "01_first.ipynb", content)
    outcomes = run_all(project)
    assert [o.state for o in outcomes] == ["failed", "executed"]
    assert "no cell tagged 'parameters'" in outcomes[0].failure.what


def test_a_cell_that_is_no_python_fails_in_its_place(tmp_path):
    project = demo.make_project(tmp_path / "book")
    demo.write_notebook(project, "01_first.ipynb", demo.notebook("01_first.ipynb", "x = = 1"))
    outcomes = run_all(project)
    assert [o.state for o in outcomes] == ["failed", "executed"]
    assert outcomes[0].failure.what.startswith("SyntaxError")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def scheduler():
    """A real Dask cluster of two worker processes on the loopback interface."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        scheduler_port=free_port(),
        dashboard_address=None,
    ) as local:
        yield local.scheduler_address


def test_a_dask_cluster_makes_the_same_bytes_as_local_workers(book, scheduler):
    chapters = book.chapters()
    run_all(book, fresh=True)
    before = [book.executed(c, "ci").read_bytes() for c in chapters]
    with cluster(scheduler) as executor:
        outcomes = run_all(book, fresh=True, executor=executor)
    assert [o.state for o in outcomes] == ["executed", "executed"]
    assert [book.executed(c, "ci").read_bytes() for c in chapters] == before


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.1:8786",
        "tcp://example.org:8786",
        "8786",
        "",
        "ucx://127.0.0.1:1",
        "http://127.0.0.1:1",
        "tcp://localhost",
        "tls://10.0.0.1",
        "tcp://localhost:99999",
    ],
)
def test_a_scheduler_that_others_could_reach_is_refused(address):
    with pytest.raises(BookError, match="--executor must be tls://"):
        check_cluster_address(address)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:1", "tls://10.0.0.1:1"]
)
def test_loopback_and_encrypted_addresses_pass(address):
    check_cluster_address(address)


def test_a_scheduler_that_does_not_answer_is_one_line():
    with (
        pytest.raises(BookError, match="no Dask scheduler answers"),
        cluster(f"tcp://127.0.0.1:{free_port()}"),
    ):
        pass


def test_jobs_and_results_can_travel(book):
    import pickle

    from thousand_fingers.book.execute import Execution, Job

    job = Job("x", "{}", {"scale": "ci"}, {"A": "1"})
    assert pickle.loads(pickle.dumps(job)) == job
    result = Execution("x", b"", 1.0, 2, "none")
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(execute)) is execute


def fingers(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "thousand_fingers.book.cli", *arguments],
        cwd=project.root,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )


def test_the_command_line_tells_the_whole_story(tmp_path):
    project = demo.make_project(tmp_path / "book")
    never = fingers(project, "check")
    assert never.returncode == 3
    assert "was never executed" in never.stdout
    first = fingers(project, "refresh", "--jobs", "1")
    assert first.returncode == 0, first.stderr
    assert "demo.mean: — → 0.1235" in first.stdout
    assert "01_first: written, 2 recorded figures changed" in first.stdout
    again = fingers(project, "run")
    assert "0 executed, 2 fresh, 0 failed" in again.stdout
    good = fingers(project, "check", "--require-fresh")
    assert good.returncode == 0, good.stdout
    assert "2 figures, 1 claims hold, compared with the regenerated run" in good.stdout
    listing = fingers(project, "list")
    assert "fresh" in listing.stdout

    # a function of the chapter changes what it computes: the drift is named, and refresh shows old and new
    content = demo.notebook("01_first.ipynb")
    content["cells"][5]["source"] = demo.RECORD.replace("0.123456789", "0.2")
    demo.write_notebook(project, "01_first.ipynb", content)
    assert "stale: cells" in fingers(project, "list").stdout
    refreshed = fingers(project, "refresh", "1")
    assert "demo.mean: — → 0.2000" in refreshed.stdout
    failing = fingers(project, "check")
    assert failing.returncode == 3
    assert "claim demo.mean: ours is 0.2, the ledger says 0.1235 (to 4 digits)" in failing.stdout


def test_a_failing_cell_is_reported_with_chapter_cell_and_error(tmp_path):
    project = demo.make_project(tmp_path / "book")
    demo.write_notebook(project, "02_second.ipynb", demo.notebook("02_second.ipynb", "x = [1]\nx[3]"))
    result = fingers(project, "run", "2")
    assert result.returncode == 1
    assert "02_second: cell [4] failed" in result.stderr
    assert "IndexError: list index out of range" in result.stderr
    assert "x[3]" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "99"], 2, "no chapter '99'; the chapters are: 1 (01_first), 2 (02_second)"),
        (["run", "--scale", "huge"], 2, "huge"),
        (["run", "--jobs", "0"], 2, "jobs"),
        (["run", "--vector-width", "wide"], 2, "--vector-width must be one of baseline, got 'wide'"),
        (["run", "--executor", "tcp://10.1.2.3:1"], 2, "--executor must be tls://"),
        (["check", "--vector-width", "baseline"], 1, "was not executed at vector width baseline"),
        (["data", "fetch", "nothing"], 2, "no carrier 'nothing'"),
        (["regenerate", "1"], 0, "has no artefacts"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_misuse_is_answered_in_one_line(book, arguments, status, message):
    result = fingers(book, *arguments)
    assert result.returncode == status, result.stdout + result.stderr
    assert message in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_outside_a_checkout_the_command_uses_the_one_it_was_installed_from(tmp_path):
    from thousand_fingers.book.project import find_project

    assert (find_project(tmp_path).root / "_toc.yml").is_file()


def test_what_a_newcomer_gets_wrong_is_named(tmp_path):
    project = demo.make_project(tmp_path / "book")
    (project.root / "_toc.yml").write_text("format: jb-book\nroot: chapters/index\n", encoding="utf-8")
    assert "is not in _toc.yml: add `- file: chapters/01_first`" in fingers(project, "check").stdout
    stray = project.chapters_dir / "3_Third.ipynb"
    stray.write_text("{}", encoding="utf-8")
    result = fingers(project, "list")
    assert result.returncode == 1
    assert "3_Third.ipynb is no name of a chapter" in result.stderr
    assert "run with the library of" in result.stderr
