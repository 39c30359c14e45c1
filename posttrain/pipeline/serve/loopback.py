"""A port that only this machine can reach."""

from __future__ import annotations

import socket
from typing import Final

from posttrain.errors import PipelineError

HOST: Final = "127.0.0.1"


def listening(port: int) -> socket.socket:
    """Return a socket that listens on the port; 0 chooses a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        fix = "Choose another --port; 0 means any free port"
        raise PipelineError(what=f"the port cannot be used ({error})", where=f"--port {port}", fix=fix) from error
    return listener
