"""Execute chapters with papermill in a fixed environment, on any Executor.

:func:`execute` is one plain function from a :class:`Job` to an
:class:`Execution`, both picklable: a local pool of threads calls it (each call
runs a process of its own), and so does a Dask cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thousand_fingers.book.notebook import (
    Notebook,
    normalise,
    notebook_bytes,
    parse_notebook,
    tags_of,
)
from thousand_fingers.book.offline import ONLINE, isolation, offline_command
from thousand_fingers.book.project import BookError

#: What every execution sees, whatever the shell around it says. One thread, so
#: that sums are taken in one order; a fixed hash seed; no model hub; no GPU.
FIXED_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "JUPYTER_PLATFORM_DIRS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}

#: A processor without the wide vector instructions stands for another machine.
BASELINE_VECTORS = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
}
BASELINE_CHECK = """\
import warnings
from numpy._core._multiarray_umath import __cpu_features__ as features
wide = [name for name in ("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR") if features.get(name)]
assert not wide, f"NumPy still uses {wide}"
try:
    import torch
except ImportError:
    pass
else:
    capability = torch.backends.cpu.get_cpu_capability()
    assert capability == "DEFAULT", f"torch still uses {capability}"
"""


@dataclass(frozen=True)
class Job:
    """One notebook to execute, complete in itself so that it can travel.

    ``assertion`` is Python code that must pass in the job's environment before
    the notebook starts; ``source_hash`` names the library it was made with.
    """

    name: str
    notebook: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    cell_timeout: int = 600
    source_hash: str = ""
    offline: bool = True
    heavy: bool = False
    assertion: str = ""


@dataclass(frozen=True)
class Failure:
    """Where and how a chapter failed."""

    cell: int
    source: str
    what: str
    traceback: str


@dataclass(frozen=True)
class Execution:
    """An executed notebook in normal form, or the reason why there is none."""

    name: str
    notebook: bytes
    seconds: float
    cells: int
    isolation: str
    failure: Failure | None = None


class Interrupt:
    """Stops the running executions of one pool when the user presses Ctrl-C."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Remember a running process, or end it if it is too late."""
        with self._lock:
            self._processes.add(process)
            if self._stopped:
                _end(process)

    def forget(self, process: subprocess.Popen[str]) -> None:
        """Drop a process that has ended by itself."""
        with self._lock:
            self._processes.discard(process)

    def stop(self) -> None:
        """End everything that runs and everything that starts later."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                _end(process)


def declared_parameters(notebook: Notebook) -> dict[str, str]:
    """Return the names that the ``parameters`` cell of a notebook assigns.

    Parameters
    ----------
    notebook : dict

    Returns
    -------
    dict of str to str
        Name to the source of its default.

    Raises
    ------
    BookError
        If a notebook has no cell tagged ``parameters``: papermill would
        ignore whatever it is given.
    """
    import ast

    for cell in notebook["cells"]:
        if "parameters" in tags_of(cell):
            try:
                body = ast.parse(cell["source"]).body
            except SyntaxError as error:
                raise BookError(f"the cell tagged 'parameters' is no Python: {error}") from None
            return {
                target.id: ast.unparse(statement.value)
                for statement in body
                if isinstance(statement, ast.Assign)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
    raise BookError("the notebook has no cell tagged 'parameters'")


def check_parameters(notebook: Notebook, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook does not declare, or of another type.

    Parameters
    ----------
    notebook : dict
    parameters : mapping of str to object
        What shall be injected.

    Raises
    ------
    BookError
        On an unknown name (papermill only logs it), or on a text where the
        default is a number (YAML reads ``1e-5`` as a text).
    """
    import ast

    declared = declared_parameters(notebook)
    for name, value in parameters.items():
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise BookError(f"unknown parameter {name!r}; the notebook declares: {known}")
        with contextlib.suppress(ValueError):
            default = ast.literal_eval(declared[name])
            numbers = isinstance(default, int | float) and isinstance(value, int | float)
            if default is not None and not numbers and type(default) is not type(value):
                raise BookError(
                    f"parameter {name!r} must be of type {type(default).__name__} like its default {default!r}, "
                    f"got {value!r}"
                )


def execute(
    job: Job,
    on_progress: Callable[[int, int], None] | None = None,
    interrupt: Interrupt | None = None,
) -> Execution:
    """Execute one notebook from the first cell to the last.

    Parameters
    ----------
    job : Job
    on_progress : callable, optional
        Called with (finished cells, all cells) after each cell; only where
        the caller's process runs the job itself.
    interrupt : Interrupt, optional
        Lets the caller end the execution from another thread.

    Returns
    -------
    Execution
        With ``failure`` set, and no notebook, if a cell raised, ran too long
        or killed its kernel.

    Raises
    ------
    BookError
        If a parameter is not declared by the notebook, or if this machine's
        copy of the library is not the one that the job was made from.
    """
    notebook = parse_notebook(job.notebook)
    check_parameters(notebook, job.parameters)
    _same_library(job)
    with tempfile.TemporaryDirectory(prefix="fingers-") as folder:
        source, target = Path(folder, "source.ipynb"), Path(folder, "executed.ipynb")
        job_file = Path(folder, "job.json")
        source.write_bytes(notebook_bytes(_without_outputs(notebook)))
        job_file.write_text(
            json.dumps(
                {
                    "source": str(source),
                    "target": str(target),
                    "parameters": dict(job.parameters),
                    "cell_timeout": job.cell_timeout,
                }
            ),
            encoding="utf-8",
        )
        return _run(job, folder, job_file, on_progress, interrupt)


def execution_environment(extra: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the environment of an execution.

    Parameters
    ----------
    extra : mapping of str to str
        Added last, such as :data:`BASELINE_VECTORS`.
    folder : str
        A private folder for IPython's and Jupyter's own files, so that a
        user's start-up files cannot change a figure.

    Returns
    -------
    dict of str to str
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("PYTHON", "JUPYTER", "IPYTHON", "MPL", "ATEN_", "ONEDNN_", "NPY_", "MKL_", "OMP_")
        )
    }
    private = {
        "IPYTHONDIR": str(Path(folder, "ipython")),
        "JUPYTER_CONFIG_DIR": str(Path(folder, "jupyter")),
        "JUPYTER_RUNTIME_DIR": str(Path(folder, "runtime")),
    }
    return {**inherited, **FIXED_ENVIRONMENT, **private, **extra}


def _run(
    job: Job,
    folder: str,
    job_file: Path,
    on_progress: Callable[[int, int], None] | None,
    interrupt: Interrupt | None,
) -> Execution:
    environment = execution_environment(job.environment, folder)
    if job.assertion:
        _assert(job, environment)
    errors = Path(folder, "stderr.txt")
    how = isolation() if job.offline else ONLINE
    worker = [sys.executable, "-m", "thousand_fingers.book.worker", str(job_file)]
    command, guard = offline_command(worker, how)
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, **guard},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal reaches us, and we end it in order
        )
        if interrupt:
            interrupt.watch(process)
        try:
            last: dict[str, Any] = {}
            cells = done = 0
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    last = json.loads(line)
                if "cells" in last:
                    done, cells = last["cells"], last["of"]
                    if on_progress:
                        on_progress(done, cells)
            process.wait()
        finally:
            if process.poll() is None:
                _end(process)
            if interrupt:
                interrupt.forget(process)
    if "target" in last:
        executed = parse_notebook(Path(last["target"]).read_text(encoding="utf-8"))
        return Execution(job.name, notebook_bytes(normalise(executed)), last["seconds"], cells, how)
    error = last.get("error") or {
        "cell": min(done + 1, cells),
        "source": "",
        "what": f"the worker process ended with status {process.returncode}",
        "traceback": errors.read_text(encoding="utf-8", errors="replace").splitlines()[-15:],
    }
    failure = Failure(error["cell"], error["source"], error["what"], "\n".join(error["traceback"]))
    return Execution(job.name, b"", 0.0, cells, how, failure)


def _assert(job: Job, environment: Mapping[str, str]) -> None:
    checked = subprocess.run(
        [sys.executable, "-c", job.assertion], env=environment, capture_output=True, text=True, check=False
    )
    if checked.returncode:
        raise BookError(f"{job.name} does not run as asked: {checked.stderr.strip().splitlines()[-1]}")


def _end(process: subprocess.Popen[str]) -> None:
    # The kernel watches its parent and leaves when the worker is gone.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _same_library(job: Job) -> None:
    from thousand_fingers.book.freshness import library_digest

    if job.source_hash and job.source_hash != library_digest():
        raise BookError(
            f"this worker's copy of the library differs from the one that asked for {job.name}: "
            "install the same version on every machine of the cluster"
        )


def _without_outputs(notebook: Notebook) -> Notebook:
    bare: Notebook = json.loads(json.dumps(notebook))
    for position, cell in enumerate(bare["cells"]):
        cell.setdefault("id", f"cell-{position}")
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    bare["nbformat_minor"] = 5
    bare["metadata"].pop("papermill", None)
    return bare
