"""`python -m support.doomed SOCKET SEED BYTES`: a client with a random program that kills itself once it has sent so
many bytes, wherever in a message that is."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from support.programs import Program
from support.random_buffers import Mixture, ReadingClient


class Doomed(ReadingClient):
    """Has so many bytes to live."""

    left = 1 << 62

    def send_some(self, data: Any) -> int:
        sent = super().send_some(data[: self.left])
        self.left -= sent
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return sent


def main(socket: str, seed: str, size: str) -> None:
    client = Doomed(socket, timeout=60)
    program = Program(client, int(seed), Mixture(large=0.7))
    client.left = int(size)
    while True:
        program.burst(10)


if __name__ == "__main__":
    main(*sys.argv[1:])
