"""The default socket: the same for both ends."""

from vkqueue.address import SYSTEM_SOCKET, default_socket


def test_without_a_runtime_folder() -> None:
    assert default_socket({}, 0) == SYSTEM_SOCKET
    assert default_socket({}, 1000) == "/tmp/vkqueue-1000/vkqueue.sock"
    assert default_socket({"XDG_RUNTIME_DIR": ""}, 1000) == "/tmp/vkqueue-1000/vkqueue.sock"
