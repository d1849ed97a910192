"""Refuse connections to anything but loopback in this Python process."""

import ipaddress
import socket


def _refuse_outside(address: object) -> None:
    if not isinstance(address, tuple):  # a Unix socket has a path
        return
    host = address[0]
    if host in ("", "localhost"):
        return
    try:
        inside = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise OSError(f"the book is executed without a network: connection to {host!r} refused")


class _Guarded(socket.socket):
    def connect(self, address):  # type: ignore[no-untyped-def]
        _refuse_outside(address)
        return super().connect(address)

    def connect_ex(self, address):  # type: ignore[no-untyped-def]
        _refuse_outside(address)
        return super().connect_ex(address)

    def sendto(self, data, *rest):  # type: ignore[no-untyped-def]
        _refuse_outside(rest[-1])
        return super().sendto(data, *rest)


socket.socket = _Guarded  # type: ignore[misc]
