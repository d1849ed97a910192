"""Regenerate chapters: what must run, where, in which order, and what came of it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from thousand_fingers.book.drift import ONE_MACHINE, without_cells
from thousand_fingers.book.execute import (
    BASELINE_CHECK,
    BASELINE_VECTORS,
    Execution,
    Failure,
    Interrupt,
    Job,
    execute,
)
from thousand_fingers.book.freshness import State, inputs_of, library_digest
from thousand_fingers.book.notebook import needs_of, notebook_bytes, read_notebook
from thousand_fingers.book.project import BookError, Chapter, Project, UsageError, write_atomically
from thousand_fingers.book.timings import Timings

#: The vector widths that a run can be asked for, beside the machine's own.
VARIANTS: dict[str, Mapping[str, str]] = {"baseline": BASELINE_VECTORS}


@dataclass(frozen=True)
class Outcome:
    """What became of one chapter."""

    chapter: Chapter
    state: str  # "fresh", "executed" or "failed"
    why: list[str]
    seconds: float = 0.0
    cells: int = 0
    isolation: str = ""
    failure: Failure | None = None


class Listener:
    """Told what happens during a run; the command line shows it."""

    def started(self, chapter: Chapter, why: list[str]) -> None:
        """Hear that a chapter was handed to a worker."""

    def progress(self, chapter: Chapter, done: int, of: int) -> None:
        """Hear that a cell finished (local runs only)."""

    def finished(self, outcome: Outcome) -> None:
        """Hear that a chapter is fresh, was executed, or failed."""


def run(
    project: Project,
    state: State,
    timings: Timings,
    chapters: Sequence[Chapter],
    *,
    scale: str = "ci",
    variant: str = "",
    fresh: bool = False,
    offline: bool = True,
    jobs: int = 2,
    executor: Executor | None = None,
    listener: Listener | None = None,
) -> list[Outcome]:
    """Execute the chapters that are not fresh.

    Parameters
    ----------
    project, state, timings
        The checkout and its memory.
    chapters : sequence of Chapter
    scale : str, default "ci"
        Passed to the notebooks as the parameter ``scale`` unless it is their
        default.
    variant : str, default ""
        A key of ``VARIANTS``: pretend to be another machine.
    fresh : bool, default False
        Execute even what is fresh.
    offline : bool, default True
        Without a network.
    jobs : int, default 2
        Local worker processes.
    executor : Executor, optional
        Anything that implements :class:`concurrent.futures.Executor`, such
        as a Dask client's; replaces the local workers.
    listener : Listener, optional

    Returns
    -------
    list of Outcome
        In the order of ``chapters``. A chapter that failed leaves its
        previous regenerated notebook, and the others' results, untouched.

    Raises
    ------
    BookError
        If a chapter cannot even be started.
    KeyboardInterrupt
        Passed on after every worker was ended; nothing is half-written.
    """
    listener = listener or Listener()
    outcomes: dict[str, Outcome] = {}
    waiting: list[tuple[Chapter, Job, list[str]]] = []
    inputs: dict[str, dict[str, str]] = {}
    for chapter in chapters:
        why = state.why_stale(chapter, scale, variant) or (["asked for"] if fresh else [])
        if why:
            # Before the run: what is edited while it runs must count as changed afterwards.
            inputs[chapter.name] = inputs_of(project, chapter, scale, variant)
            waiting.append((chapter, _job(chapter, scale, variant, offline), why))
        else:
            outcomes[chapter.name] = Outcome(chapter, "fresh", [])
            listener.finished(outcomes[chapter.name])
    # The memory-heavy ones wait for each other, so their chain starts at once; then the longest first, so that
    # the last worker to finish does not finish alone.
    waiting.sort(key=lambda item: (not item[1].heavy, -timings.seconds(item[0].key(scale, variant))))
    interrupt = Interrupt()
    pool = executor or ThreadPoolExecutor(max_workers=jobs)
    try:
        workers = jobs if executor is None else None
        for chapter, execution, why in _completed(pool, workers, waiting, interrupt, listener):
            outcomes[chapter.name] = _keep(
                project, state, timings, chapter, execution, scale, variant, why, inputs[chapter.name]
            )
            listener.finished(outcomes[chapter.name])
    except BaseException:
        interrupt.stop()
        raise
    finally:
        if executor is None:
            pool.shutdown(wait=True, cancel_futures=True)
    return [outcomes[chapter.name] for chapter in chapters]


def _completed(
    pool: Executor,
    workers: int | None,
    waiting: list[tuple[Chapter, Job, list[str]]],
    interrupt: Interrupt,
    listener: Listener,
) -> Iterator[tuple[Chapter, Execution, list[str]]]:
    """Submit in the given order, memory-heavy chapters one after another; yield as they finish.

    Local ``workers`` are handed a chapter when they are free for it; somebody else's executor (None) gets
    all that may run at once.
    """
    waiting = list(waiting)
    running: dict[Future[Execution], tuple[Chapter, Job, list[str]]] = {}

    def submit(item: tuple[Chapter, Job, list[str]]) -> None:
        chapter, job, why = item
        if workers is not None:

            def work() -> Execution:
                listener.started(chapter, why)
                return execute(job, lambda done, of: listener.progress(chapter, done, of), interrupt)

            running[pool.submit(work)] = item
        else:
            listener.started(chapter, why)
            running[pool.submit(execute, job)] = item

    def submit_what_may_run() -> None:
        for item in list(waiting):
            if len(running) == workers:
                return
            if item[1].heavy and any(job.heavy for _, job, _ in running.values()):
                continue
            waiting.remove(item)
            submit(item)

    submit_what_may_run()
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            chapter, job, why = running.pop(future)
            try:
                execution = future.result()
            except BookError as error:  # refused before a cell ran: the others go on
                execution = Execution(job.name, b"", 0.0, 0, "", Failure(0, "", str(error), ""))
            yield chapter, execution, why
        submit_what_may_run()


def _keep(
    project: Project,
    state: State,
    timings: Timings,
    chapter: Chapter,
    execution: Execution,
    scale: str,
    variant: str,
    why: list[str],
    inputs: dict[str, str],
) -> Outcome:
    if execution.failure:
        return Outcome(chapter, "failed", why, failure=execution.failure)
    target = project.executed(chapter, scale, variant)
    write_atomically(target, execution.notebook)
    state.remember(chapter, scale, variant, inputs, execution.notebook)
    cells, isolation = execution.cells, execution.isolation
    timings.keep(chapter.key(scale, variant), execution.seconds, cells=cells, isolation=isolation)
    return Outcome(chapter, "executed", why, execution.seconds, cells, isolation)


def _job(chapter: Chapter, scale: str, variant: str, offline: bool) -> Job:
    notebook = read_notebook(chapter.path)
    if variant:
        notebook = without_cells(notebook, ONE_MACHINE)
    return Job(
        name=chapter.name,
        notebook=notebook_bytes(notebook).decode("utf-8"),
        parameters={} if scale == "ci" else {"scale": scale},
        environment=VARIANTS[variant] if variant else {},
        source_hash=library_digest(),
        offline=offline,
        heavy=needs_of(notebook).get("memory") == "heavy",
        assertion=BASELINE_CHECK if variant else "",
    )


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Connect to a Dask cluster and yield its executor.

    Parameters
    ----------
    address : str
        ``tcp://`` on the loopback interface, or ``tls://`` anywhere (with the
        certificates that Dask's own configuration names): a scheduler runs
        whatever code it is sent, so it must not be open to others.

    Yields
    ------
    Executor

    Raises
    ------
    BookError
        If the address is neither, if Dask is not installed, or if nobody
        answers.
    """
    check_cluster_address(address)
    try:
        from distributed import Client, Security
    except ImportError:
        raise BookError("--executor needs Dask: pip install distributed") from None
    security = Security() if address.startswith("tls://") else None
    try:
        client = Client(address, security=security, timeout=10)
    except (OSError, TimeoutError) as error:
        raise BookError(f"no Dask scheduler answers at {address}: {error}") from None
    try:
        yield client.get_executor()
    finally:
        client.close()


def check_cluster_address(address: str) -> None:
    """Refuse the address of a scheduler that others could reach unencrypted.

    Parameters
    ----------
    address : str

    Raises
    ------
    UsageError
        If it is neither ``tls://`` nor loopback.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    try:
        port = parts.port
    except ValueError:
        port = None
    if not host or not port or not (parts.scheme == "tls" or (parts.scheme == "tcp" and loopback)):
        raise UsageError(
            f"--executor must be tls://HOST:PORT, or tcp:// on the loopback interface, got {address!r}"
        )
