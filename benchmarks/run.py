"""Run every comparison with a peer, one after another, each in a process of its own.

``make bench`` calls this in ``.venv-bench``. Each script checks first that both
sides give equal results, then prints ratios of times taken in one run: seconds
depend on the machine, ratios much less.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    scripts = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    failed = []
    for script in scripts:
        print(f"\n== {script.stem}", flush=True)
        if subprocess.run([sys.executable, str(script)], env=environment, check=False).returncode:
            failed.append(script.stem)
    if failed:
        print(f"\nnot equal, or not run: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
