"""Two devices: the same driver twice, so that even their UUIDs are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import affine
from support.daemon import LAVAPIPE, Daemon, two_devices
from support.e2e import code, create, load, read, refused

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if not Path(LAVAPIPE).exists():
        pytest.skip("lavapipe is not installed here")
    folder = tmp_path_factory.mktemp("two")
    daemon = Daemon(folder, **two_devices(folder))
    yield daemon
    assert daemon.stop() == 0
    assert not daemon.complaints()


def test_devices_are_told_apart_by_their_index(two: Daemon) -> None:
    with two.client() as client:
        devices = client.call("devices")
        assert [device["index"] for device in devices] == [0, 1]
        assert devices[0]["uuid"] == devices[1]["uuid"]


def test_connections_spread_over_the_devices(two: Daemon) -> None:
    with two.client() as first, two.client() as second, two.client() as third, two.client() as fourth:
        chosen = [client.welcome["device"] for client in (first, second, third, fourth)]
        assert sorted(chosen) == [0, 0, 1, 1]
    with two.client(device=1) as first, two.client() as second:
        assert (first.welcome["device"], second.welcome["device"]) == (1, 0)


@pytest.mark.parametrize("own", [0, 1])
def test_a_job_runs_where_its_buffers_are(two: Daemon, own: int) -> None:
    with two.client(device=own) as client:
        module = load(client, "mix")
        for device in (0, 1):
            x, y = (create(client, np.full(64, n, np.uint32), device=device) for n in (3, 2))
            params = {"module": module, "args": [x, y], "scalars": [64, 5], "grid": [1], "timing": True}
            assert client.call("dispatch", **params)["device"] == device
            assert client.call("dispatch", **params, device=device)["device"] == device
            error = refused(client, "dispatch", **params, device=1 - device)
            assert error.code == "invalid"
            assert str(x) in error.message
            assert (read(client, y, np.uint32) == 31 * 70 + 8).all()


def test_without_buffers_it_runs_on_device_or_on_that_of_the_connection(two: Daemon) -> None:
    with two.client(device=1) as client:
        module = load(client, "fill")
        params = {"module": module, "args": [{"out": 256}], "scalars": [1], "grid": [1], "timing": True}
        for _ in range(2):
            assert client.call("dispatch", **params)["device"] == 1
            for device in (0, 1):
                answer = client.call("dispatch", **params, device=device)
                assert answer["device"] == device
                assert (np.frombuffer(answer["outputs"][0], np.uint32) == np.arange(1, 65)).all()


def test_buffers_of_two_devices_in_one_job_are_invalid(two: Daemon) -> None:
    with two.client() as client:
        module = load(client, "mix")
        here, there = create(client, 256, device=0), create(client, 256, device=1)
        for args in ([here, there], [there, here], [[here, 0, 256], there]):
            error = refused(client, "dispatch", module=module, args=args, scalars=[64, 1], grid=[1])
            assert error.code == "invalid"
            assert str(here) in error.message
            assert str(there) in error.message
        assert refused(client, "buffer.copy", source=here, target=there).code == "invalid"
        array = load(client, "array")
        mixed = {"array": [here, there, here]}
        assert refused(client, "dispatch", module=array, args=[mixed, {"out": 4}], grid=[1]).code == "invalid"


def test_after_reaches_across_devices(two: Daemon) -> None:
    with two.client() as client:
        module = load(client, "mix")
        sides = [[create(client, 256, device=device) for _ in range(2)] for device in (0, 1)]
        last: list[int] = []
        msgids = []
        for step in range(100):
            params = {"module": module, "args": sides[step % 2], "scalars": [64, 1], "grid": [1], "after": last}
            last = [client.send("dispatch", **params)]
            msgids += last
        for msgid in msgids:
            assert client.wait(msgid) == {"outputs": []}
        assert [msgid for msgid in client.order if msgid in msgids] == msgids
        failed = client.send("dispatch", module=module, args=[99, 99], scalars=[64, 1], grid=[1])
        behind = client.send("dispatch", module=module, args=sides[1], scalars=[64, 1], grid=[1], after=[failed])
        assert (code(client, failed), code(client, behind)) == ("not_found", "dependency")


def test_work_on_both_at_once_and_everything_freed(two: Daemon) -> None:
    with two.client() as observer:
        with two.client(device=0) as first, two.client(device=1) as second:
            for client in (first, second):
                module = load(client, "mix")
                x, y = create(client, np.full(64, 1, np.uint32)), create(client, 256)
                value = np.uint32(0)
                msgids = []
                for k in range(200):
                    launch = {"module": module, "args": [x, y], "scalars": [64, k], "grid": [1]}
                    msgids.append(client.send("dispatch", **launch))
                    with np.errstate(over="ignore"):
                        value = np.uint32(31) * value + np.uint32(1 + k)
                for msgid in msgids:
                    client.wait(msgid)
                assert (read(client, y, np.uint32) == value).all()
            stats = observer.call("stats")
            assert [one["buffers"] for one in stats["devices"]] == [2, 2]
            assert stats["buffers"] == 4
        while observer.call("stats")["buffers"]:
            pass


@pytest.mark.parametrize("own", [0, 1])
def test_a_model_is_where_it_was_asked_to_be(two: Daemon, own: int) -> None:
    with two.client(device=own) as client, two.client(device=1 - own) as other:
        affine.load(client, "here")
        affine.load(client, "there", device=1 - own)
        assert {f["name"]: f["device"] for f in client.call("model.list")} == {"here": own, "there": 1 - own}
        for name in ("here", "there"):
            for each in (client, other):
                affine.check(each.wait(affine.infer(each, [[1, 2]], name)), [[1, 2]])
        buffer = create(client, np.float32([1, 2]), device=own)
        given = {"x": {"shape": [1, 2], "buffer": buffer}}
        affine.check(client.call("model.infer", name="here", inputs=given), [[1, 2]])
        error = refused(client, "model.infer", name="there", inputs=given)
        assert error.code == "invalid"
        assert f"is on device {own}" in error.message
        for name in ("here", "there"):
            client.call("model.unload", name=name)
