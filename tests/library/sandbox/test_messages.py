"""Messages over a socket."""

from __future__ import annotations

import socket
import struct

import pytest

from posttrain.sandbox.messages import LARGEST_MESSAGE, receive, send


def test_messages_arrive_whole_until_the_other_end_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        send(theirs, b"one")
        send(theirs, b"")
        theirs.sendall(struct.pack("<I", 9) + b"cut")
        theirs.close()
        assert (receive(ours), receive(ours), receive(ours)) == (b"one", b"", None)


def test_a_message_that_is_too_large() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", LARGEST_MESSAGE + 1))
        with pytest.raises(ValueError, match=r"it has 4,194,305 bytes, more than 4,194,304"):
            receive(ours)
