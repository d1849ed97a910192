"""Run every comparison with a peer, one after another, each in a process of its own.

``make bench`` calls this in ``.venv-bench``. Each script checks first that both
sides give equal results, then prints ratios of times taken in one run: seconds
depend on the machine, ratios much less. A peer whose pins fight with the other
peers' has an environment of its own: ``flower.txt`` names what ``flower.py``
needs, and ``.venv-bench-flower`` is made from it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent


def python_for(script: Path) -> str | None:
    """Return the interpreter that a script needs, or ``None`` if its environment cannot be made."""
    needs = script.with_suffix(".txt")
    if not needs.exists():
        return sys.executable
    home = HERE.parent / f".venv-bench-{script.stem}"
    python = home / "bin" / "python"
    if not (home / ".ready").exists():
        venv.create(home, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, "-e", HERE.parent, "-r", needs], check=False).returncode:
            return None
        (home / ".ready").touch()
    return str(python)


def main() -> int:
    scripts = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    failed = []
    for script in scripts:
        print(f"\n== {script.stem}", flush=True)
        python = python_for(script)
        if python is None or subprocess.run([python, str(script)], env=environment, check=False).returncode:
            failed.append(script.stem)
    if failed:
        print(f"\nnot equal, or not run: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
