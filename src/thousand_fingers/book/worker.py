"""Execute one notebook with papermill, in a process of its own.

``python -m thousand_fingers.book.worker JOB.json`` reads the notebook and its
parameters from the job file, prints one JSON line per finished cell and, as
its last line, either where the executed notebook lies or what went wrong.
:mod:`thousand_fingers.book.execute` starts it in a fixed environment.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any


def main(job_file: str) -> int:
    """Run the job described by a file.

    Parameters
    ----------
    job_file : str
        JSON with ``source``, ``target``, ``parameters`` and ``cell_timeout``.

    Returns
    -------
    int
        0 when every cell ran, 1 otherwise.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    total = sum(
        cell["cell_type"] == "code" for cell in json.loads(Path(job["source"]).read_text("utf-8"))["cells"]
    )
    done = 0

    def after_cell(cell: Any, **_: Any) -> None:
        nonlocal done
        if cell["cell_type"] == "code":
            done += 1
            _say(cells=done, of=total)

    _say(cells=0, of=total)
    started = time.perf_counter()
    try:
        papermill.execute_notebook(
            job["source"],
            job["target"],
            parameters=job["parameters"],
            kernel_name="python3",
            progress_bar=False,
            log_output=False,
            execution_timeout=job["cell_timeout"],
            start_timeout=180,
            record_timing=False,
            on_cell_complete=after_cell,
        )
    except PapermillExecutionError as error:
        _say(
            error={
                "cell": error.exec_count,
                "source": error.source,
                "what": f"{error.ename}: {error.evalue}",
                "traceback": error.traceback,
            }
        )
        return 1
    except CellTimeoutError:
        limit = job["cell_timeout"]
        _say(
            error={
                "cell": done + 1,
                "source": "",
                "what": f"the cell ran longer than {limit} s",
                "traceback": [],
            }
        )
        return 1
    except DeadKernelError:
        _say(
            error={
                "cell": done + 1,
                "source": "",
                "what": "the kernel died (out of memory?)",
                "traceback": [],
            }
        )
        return 1
    _say(target=job["target"], seconds=time.perf_counter() - started)
    return 0


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
