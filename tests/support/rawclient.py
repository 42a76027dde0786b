"""A client that knows only docs/protocol.md: msgpack over a socket, none of vkqueue's own code."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack


class RemoteError(Exception):
    """An error response."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.data: dict[str, Any] | None = error.get("data")


class RawClient:
    """Blocking; requests may be pipelined with `send` and `wait`."""

    def __init__(self, path: Path | str, hello: bool = True, timeout: float = 30, **params: Any) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise
        self.unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1, strict_map_key=False)
        self.answers: dict[int, tuple[Any, Any]] = {}
        self.notices: list[Any] = []
        self.order: list[int] = []
        self.msgid = 0
        try:
            self.welcome = self.call("hello", protocol=1, client="raw", **params) if hello else None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send_message(self, message: Any) -> None:
        self.sock.sendall(msgpack.packb(message, use_bin_type=True))

    def send(self, method: str, **params: Any) -> int:
        self.msgid += 1
        self.send_message([0, self.msgid, method, [params] if params else []])
        return self.msgid

    def send_with(self, files: Sequence[int], method: str, **params: Any) -> int:
        """A request with descriptors, which are the caller's still."""
        self.msgid += 1
        data = msgpack.packb([0, self.msgid, method, [params]], use_bin_type=True)
        assert socket.send_fds(self.sock, [data], list(files)) == len(data)
        return self.msgid

    def receive(self) -> bool:
        """Read once; False at the end of the stream."""
        data = self.sock.recv(1 << 20)
        self.unpacker.feed(data)
        for message in self.unpacker:
            if message[0] == 1:
                self.answers[message[1]] = (message[2], message[3])
                self.order.append(message[1])
            else:
                self.notices.append(message)
        return bool(data)

    def wait(self, msgid: int) -> Any:
        while msgid not in self.answers:
            if not self.receive() and msgid not in self.answers:
                raise ConnectionError(f"closed before the answer to {msgid}; notices: {self.notices}")
        error, result = self.answers.pop(msgid)
        if error is not None:
            raise RemoteError(error)
        return result

    def call(self, method: str, **params: Any) -> Any:
        return self.wait(self.send(method, **params))

    def until_closed(self) -> list[Any]:
        """Read to the end; the notifications."""
        while self.receive():
            pass
        return self.notices
