"""Run a command without a network, and say how.

Where the kernel allows it, the command gets a network namespace of its own in
which only the loopback interface is up. Elsewhere every Python process below it
loads a guard that refuses connections to anything but loopback.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NAMESPACE = "a network namespace with loopback only"
GUARD = "a socket guard in every Python process"
ONLINE = "none: the network was allowed"
_GUARD_DIR = Path(__file__).parent / "assets" / "socket_guard"

# Brings the loopback interface up with one ioctl (SIOCSIFFLAGS, IFF_UP | IFF_RUNNING),
# so that no `ip` command is needed, then becomes the command.
_ENTER = """\
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 0x41))
os.execv(sys.argv[1], sys.argv[1:])
"""


def isolation() -> str:
    """Return which isolation this machine allows: ``NAMESPACE`` or ``GUARD``."""
    unshare = shutil.which("unshare")
    if unshare:
        attempt = subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False)
        if attempt.returncode == 0:
            return NAMESPACE
    return GUARD


def offline_command(command: Sequence[str], how: str) -> tuple[list[str], dict[str, str]]:
    """Return a command and its additional environment that run without a network.

    Parameters
    ----------
    command : sequence of str
        The first entry is an absolute path.
    how : str
        ``NAMESPACE``, ``GUARD`` or ``ONLINE``, see :func:`isolation`.

    Returns
    -------
    tuple of list of str and dict of str to str
    """
    if how == NAMESPACE:
        return ["unshare", "-rn", sys.executable, "-c", _ENTER, *command], {}
    return list(command), {"PYTHONPATH": str(_GUARD_DIR)} if how == GUARD else {}
