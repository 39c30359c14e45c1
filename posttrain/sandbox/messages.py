"""Messages over a socket: the length, then the bytes."""

from __future__ import annotations

import socket
import struct
from typing import Final

LARGEST_MESSAGE: Final = 4 * 2**20


def send(connection: socket.socket, message: bytes) -> None:
    """Send a message."""
    connection.sendall(struct.pack("<I", len(message)) + message)


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message; None if the other end hung up."""
    head = _read(connection, 4)
    if head is None:
        return None
    size = struct.unpack("<I", head)[0]
    if size > LARGEST_MESSAGE:
        raise ValueError(f"it has {size:,} bytes, more than {LARGEST_MESSAGE:,}")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(size - len(received), 2**20))
        if not part:
            return None
        received += part
    return bytes(received)
