"""Two ends of a TCP connection over the loopback."""

from __future__ import annotations

import socket


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return dialled, accepted
