"""Which sockets are tried, and what is said when none answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import vkqueue
from vkqueue.client import address
from vkqueue.errors import ConnectionLostError


def test_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VKQUEUE_SOCKET", "/a")
    assert address.candidates(None) == ["/a"]
    assert address.candidates(tmp_path) == [str(tmp_path)]


def test_the_users_own_then_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VKQUEUE_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/5")
    assert address.candidates(None) == ["/run/user/5/vkqueue/vkqueue.sock", "/run/vkqueue/vkqueue.sock"]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert address.candidates(None) == ["/run/vkqueue/vkqueue.sock"]


def test_a_folder_in_tmp_has_to_be_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    stat = os.stat("/")
    monkeypatch.setattr(os, "stat", lambda path: stat)
    assert address.distrusted("/tmp/vkqueue-4711/vkqueue.sock") == "its folder belongs to user 0"
    assert address.distrusted("/run/vkqueue/vkqueue.sock") is None


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VKQUEUE_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(address, "SYSTEM_SOCKET", str(tmp_path / "system"))
    with pytest.raises(ConnectionLostError) as caught:
        vkqueue.connect()
    text = str(caught.value)
    assert f"{tmp_path}/vkqueue/vkqueue.sock (No such file or directory)" in text
    assert f"{tmp_path}/system (No such file or directory)" in text
    assert "vkqueue serve" in text
    assert caught.value.data == {"tried": [f"{tmp_path}/vkqueue/vkqueue.sock", f"{tmp_path}/system"]}


def test_by_environment(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQUEUE_SOCKET", daemon[1])
    with vkqueue.connect() as gpu:
        gpu.ping()
    assert daemon[0].log[0][1]["client"].endswith(f"[{os.getpid()}]")
