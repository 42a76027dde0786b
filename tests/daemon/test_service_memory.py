"""What a connection holds, and that it comes back: device memory and its quota, cached launches, kernels, modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.inprocess import AXPY, HISTOGRAM, KERNELS, Rig, ServiceError, axpy

from vkqueue.daemon import device as device_file
from vkqueue.daemon import dispatch as dispatch_file
from vkqueue.errors import CompileError, InternalError
from vkqueue.gpu.fake_info import fake_info
from vkqueue.model import CREATE, FREE, Batch

MATMUL = (KERNELS / "matmul.spv").read_bytes()


async def test_rule_4_a_buffer_is_released_behind_the_last_batch_that_uses_it(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    launch, free = client.burst(("dispatch", axpy(module, x, y)), ("buffer.free", {"buffer": y}))
    assert client.result(free) == {}
    [*_, batch, release] = rig.thread.posted
    assert isinstance(batch, Batch)
    assert [row[1] for row in batch.rows] == [launch]
    assert not isinstance(release, Batch)
    assert client.session.memory_bytes == 512  # until the launch is done
    rig.thread.finish()
    assert client.session.memory_bytes == 256
    assert client.result(launch) == {"outputs": []}


async def test_rule_4_a_free_waits_its_turn_while_the_device_is_full(rig: Rig) -> None:
    """With all batches in flight the launch is still queued when the free comes, so the release waits as well."""
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    z = client.buffer()
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    for _ in range(3):
        client.launch(module, x, y)
    queued = client.launch(module, x, z)
    assert client.result(client.send("buffer.free", buffer=z)) == {}
    assert len(rig.thread.batches) == 3
    assert not rig.thread.releases
    rig.settle()
    assert client.result(queued) == {"outputs": []}
    assert len(rig.thread.releases) == 1


async def test_a_free_that_waits_is_not_lost_with_its_connection(rig: Rig) -> None:
    """The handle is dead, so the connection does not own the buffer any more; it must be released all the same."""
    client, other = rig.client(), rig.client()
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    for _ in range(3):
        client.launch(module, x, y)
    client.launch(module, x, y)
    client.send("buffer.free", buffer=y)
    assert len(rig.thread.batches) == 3
    client.close()
    rig.settle()
    assert rig.thread.created <= rig.thread.released
    assert other.call("stats")["jobs_queued"] == 0


async def test_a_connection_that_closes_frees_what_is_queued_running_and_idle(rig: Rig) -> None:
    client = rig.client()
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    client.buffer()
    for _ in range(5):
        client.send("buffer.create", size=64)
    assert len(rig.thread.batches) == 3
    client.close()
    while rig.turn():
        pass
    assert rig.thread.created <= rig.thread.released
    assert rig.service.devices[0].memory_bytes == 0


async def test_memory_quota_counts_until_the_last_use(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_memory_bytes": 1000}})
    client = rig.client()
    assert client.welcome["limits"]["max_memory_bytes"] == 1000
    buffer = client.buffer(1000)
    read = client.send("buffer.read", buffer=buffer)
    client.send("buffer.free", buffer=buffer)
    with pytest.raises(ServiceError) as error:
        client.call("buffer.create", size=1)
    assert error.value.code == "quota"
    assert error.value.data == {"quota": "max_memory_bytes", "limit": 1000, "used": 1000, "asked": 1}
    rig.settle()
    assert client.code(read) is None
    assert client.buffer(1000)


async def test_buffer_quota_counts_until_the_last_use(make_rig: Callable[..., Rig]) -> None:
    """Else ever new buffers, freed while the device is busy, would be more than the quota."""
    rig = make_rig(config={"limits": {"max_buffers": 2}})
    client = rig.client()
    buffers = [client.buffer(0), client.buffer(0)]
    read = client.send("buffer.read", buffer=buffers[0])
    client.send("buffer.free", buffer=buffers[0])
    with pytest.raises(ServiceError) as error:
        client.call("buffer.create", size=0)
    assert (error.value.code, error.value.data) == ("quota", {"quota": "max_buffers", "limit": 2})
    rig.settle()
    assert client.code(read) is None
    assert client.buffer(0)


async def test_module_quota(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_modules": 2}})
    client = rig.client()
    modules = [client.load(), client.load(HISTOGRAM)]
    with pytest.raises(ServiceError) as error:
        client.load(MATMUL)
    assert (error.value.code, error.value.data) == ("quota", {"quota": "max_modules", "limit": 2})
    client.call("module.unload", module=modules[0])
    assert client.load(MATMUL)


async def test_total_memory_is_bounded_over_all_connections(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"total_memory_bytes": 1000}})
    first, second = rig.client(), rig.client()
    buffer = first.buffer(600)
    with pytest.raises(ServiceError) as error:
        second.buffer(500)
    assert (error.value.code, error.value.data) == ("out_of_memory", {"asked": 500, "used": 600, "left": 400})
    first.call("buffer.free", buffer=buffer)
    assert second.buffer(500)
    second.close()
    assert first.buffer(1000)


async def test_a_quota_is_half_of_the_device_by_default(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(infos=[fake_info(memory_bytes=4096)])
    client = rig.client()
    assert client.welcome["limits"]["max_memory_bytes"] == 2048
    client.buffer(2048)
    assert client.code(client.send("buffer.create", size=1)) == "quota"


async def test_rule_6_a_size_over_the_device_is_one_clear_error(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(infos=[fake_info(memory_bytes=2**40)], config={"limits": {"max_memory_bytes": 2**50}})
    client = rig.client()
    for size, limit in ((2**31 + 1, "maxBufferSize"), (2**63 - 1, "maxBufferSize")):
        with pytest.raises(ServiceError) as error:
            client.buffer(size)
        assert error.value.code == "too_large"
        assert limit in error.value.message
        assert str(size) in error.value.message
        assert str(2**31) in error.value.message
    assert client.buffer(4)


# Cached launches


async def test_buffers_that_come_and_go_leave_nothing_with_one_that_stays(rig: Rig) -> None:
    """Weights that stay, inputs that are new each time: nothing may grow."""
    client = rig.client()
    module, weights = client.load(), client.buffer()
    for _ in range(50):
        y = client.buffer()
        client.call("dispatch", **axpy(module, weights, y))
        client.call("dispatch", **axpy(module, weights, y))
        client.call("buffer.free", buffer=y)
    session = client.session
    assert session.cached_launches == 0
    assert not session.objects[weights].launches  # type: ignore[union-attr]
    assert all(not kernel.tokens and not kernel.launches for kernel in session.kernels.values())


async def test_modules_that_come_and_go_leave_nothing_with_a_buffer_that_stays(rig: Rig) -> None:
    client = rig.client()
    x, y = client.buffer(), client.buffer()
    for _ in range(20):
        module = client.load()
        client.call("dispatch", **axpy(module, x, y))
        client.call("module.unload", module=module)
    session = client.session
    assert (session.cached_launches, len(session.kernels), session.modules) == (0, 0, 0)
    assert not session.objects[x].launches  # type: ignore[union-attr]
    [kernel] = rig.service.devices[0].kernels.values()
    assert kernel.users == 0


async def test_ever_new_ranges_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_file, "_MAX_LAUNCHES", 10)
    client = rig.client()
    module, x, y = client.load(), client.buffer(4096), client.buffer(4096)
    for offset in range(0, 4096 - 256, 16):
        client.call("dispatch", **axpy(module, [x, offset, 256], y))
        session = client.session
        assert session.cached_launches <= 10
        assert len(session.objects[x].launches) == session.cached_launches  # type: ignore[union-attr]


async def test_a_buffer_bound_twice_is_forgotten_once(rig: Rig) -> None:
    client = rig.client()
    module, x = client.load(), client.buffer()
    client.call("dispatch", **axpy(module, x, x))
    assert client.session.cached_launches == 1
    client.call("buffer.free", buffer=x)
    assert client.session.cached_launches == 0
    with pytest.raises(ServiceError) as error:
        client.call("dispatch", **axpy(module, x, x))
    assert error.value.code == "not_found"


async def test_rule_28_a_repeated_launch_is_checked_anew_when_a_buffer_is_gone(rig: Rig) -> None:
    """Byte for byte the request that has just succeeded, many times."""
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    for _ in range(5):
        client.call("dispatch", **axpy(module, x, y))
    launch, free, dead = client.burst(
        ("dispatch", axpy(module, x, y)), ("buffer.free", {"buffer": x}), ("dispatch", axpy(module, x, y))
    )
    assert client.code(dead) == "not_found"
    rig.settle()
    assert client.code(launch) is None
    assert client.code(free) is None


async def test_rule_28_a_repeated_launch_is_checked_anew_when_its_module_is_gone(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    for _ in range(5):
        client.call("dispatch", **axpy(module, x, y))
    launch, unload, dead = client.burst(
        ("dispatch", axpy(module, x, y)), ("module.unload", {"module": module}), ("dispatch", axpy(module, x, y))
    )
    assert client.code(dead) == "not_found"
    rig.settle()
    assert client.code(launch) is None
    assert client.code(unload) is None


# Kernels and pipelines


async def test_S5_one_pipeline_is_built_however_many_ask_for_it(rig: Rig) -> None:
    clients = [rig.client() for _ in range(8)]
    ready = [(client.load(), client.buffer(), client.buffer()) for client in clients]
    msgids = [client.launch(*arguments) for client, arguments in zip(clients, ready, strict=True)]
    assert len(rig.thread.specs) == 1
    assert len([asked for asked in rig.helper.asked if asked[0] == "analyse"]) == 1
    rig.settle()
    assert [client.code(msgid) for client, msgid in zip(clients, msgids, strict=True)] == [None] * 8
    assert rig.service.stats()["devices"][0]["pipelines_built"] == 1


async def test_S5_specializations_and_entry_points_have_pipelines_of_their_own(rig: Rig) -> None:
    client = rig.client()
    x, y = client.buffer(), client.buffer()
    client.call("dispatch", **axpy(client.load(AXPY), x, y))
    client.call("dispatch", **axpy(client.load(AXPY), x, y))
    client.call("dispatch", module=client.load(HISTOGRAM), args=[x, client.buffer(1024)], scalars=[64], grid=[1])
    assert rig.service.stats()["devices"][0]["pipelines_built"] == 2


async def test_rule_15_a_compile_error_fails_those_that_wait_and_is_said_again(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    waiting = [client.launch(module, x, y) for _ in range(3)]
    rig.thread.build(CompileError("line 3"))
    assert [client.code(msgid) for msgid in waiting] == ["compile"] * 3
    with pytest.raises(ServiceError) as error:
        client.call("dispatch", **axpy(module, x, y))
    assert (error.value.code, error.value.message) == ("compile", "line 3")
    assert not rig.thread.specs


async def test_a_kernel_that_does_not_build_counts_once_however_often_it_is_asked_for(
    make_rig: Callable[..., Rig]
) -> None:
    """Beside others, at the bound of a connection's pipelines; the rig looks at the count in the end."""
    rig = make_rig(config={"limits": {"max_pipelines": 2}})
    client = rig.client()
    module, histogram, x, y = client.load(), client.load(HISTOGRAM), client.buffer(), client.buffer(1024)
    client.call("dispatch", module=histogram, args=[x, y], scalars=[64], grid=[1])
    client.launch(module, x, y)
    rig.thread.build(CompileError("line 3"))
    for offset in range(0, 80, 16):  # other arguments each time, so that each is looked at in full
        assert client.code(client.launch(module, x, [y, offset, 256])) == "compile"
    assert sorted(kernel.users for kernel in rig.service.devices[0].kernels.values()) == [1, 1]


async def test_rule_15_a_build_that_failed_for_another_reason_is_tried_again(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    first = client.launch(module, x, y)
    rig.thread.build(InternalError("scripted"))
    assert client.code(first) == "internal"
    assert client.call("dispatch", **axpy(module, x, y)) == {"outputs": []}


async def test_the_least_recently_used_pipeline_of_a_connection_makes_room(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_pipelines": 1}})
    client = rig.client()
    x, y, counts = client.buffer(), client.buffer(), client.buffer(1024)
    module, histogram = client.load(), client.load(HISTOGRAM)
    client.call("dispatch", **axpy(module, x, y))
    client.call("dispatch", module=histogram, args=[x, counts], scalars=[64], grid=[1])
    released = [id for release in rig.thread.releases for id in release.pipelines]
    assert len(released) == 1
    assert client.call("dispatch", **axpy(module, x, y)) == {"outputs": []}  # built anew
    assert rig.service.stats()["devices"][0]["pipelines_built"] == 3


async def test_a_pipeline_that_another_connection_uses_stays(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_pipelines": 1}})
    client, other = rig.client(), rig.client()
    other.call("dispatch", **axpy(other.load(), other.buffer(), other.buffer()))
    x, y, counts = client.buffer(), client.buffer(), client.buffer(1024)
    client.call("dispatch", **axpy(client.load(), x, y))
    client.call("dispatch", module=client.load(HISTOGRAM), args=[x, counts], scalars=[64], grid=[1])
    assert not [id for release in rig.thread.releases for id in release.pipelines]


@pytest.mark.parametrize("held", [False, True])
async def test_a_pipeline_with_queued_jobs_is_not_taken_away(make_rig: Callable[..., Rig], held: bool) -> None:
    """Neither under jobs that are ready nor under those that wait for something else."""
    rig = make_rig(config={"limits": {"max_device_pipelines": 1}})
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    client, other = rig.client(), rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    histogram, counts = other.load(HISTOGRAM), other.buffer(1024)
    data = other.buffer()
    client.call("dispatch", **axpy(module, x, y))
    running = [client.launch(module, x, y) for _ in range(3)]
    queued = client.launch(module, x, y, after=running[-1:] if held else [])
    late = other.send("dispatch", module=histogram, args=[data, counts], scalars=[64], grid=[1])
    pipeline = next(iter(rig.service.devices[0].kernels.values())).pipeline
    assert not any(pipeline in release.pipelines for release in rig.thread.releases)
    rig.settle()
    assert client.code(queued) is None
    assert other.code(late) is None


async def test_an_old_request_does_not_make_its_pipeline_look_unused(make_rig: Callable[..., Rig]) -> None:
    """A launch that had to wait comes with the stamp of its receipt, which is older than that of launches before it."""
    rig = make_rig()
    client, other = rig.client(), rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    rig.helper.holding = True
    client.send("module.load", spirv=MATMUL)
    client.send("module.inspect", module=client.session.next_handle - 1, format="json")
    old = client.launch(module, x, y)
    other_module = other.send("module.load", spirv=AXPY)
    new = other.launch(other.result(other_module)["module"], *[other.call("buffer.create", size=256)["buffer"]] * 2)
    [kernel] = rig.service.devices[0].kernels.values()
    stamp = kernel.last_used
    rig.helper.answer()
    assert kernel.last_used == stamp
    rig.settle()
    assert (client.code(old), other.code(new)) == (None, None)


async def test_plans_that_nobody_uses_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that fails its check has made a plan, and no pipeline that would be evicted some day."""
    monkeypatch.setattr(device_file, "_FEW_KERNELS", 4)
    rig.service.devices[0]._trim_at = 4
    client = rig.client()
    for generator in range(40):
        module = client.load(AXPY[:8] + generator.to_bytes(4, "little") + AXPY[12:])  # another module each time
        assert client.code(client.launch(module, 99, 99)) == "not_found"
        client.call("module.unload", module=module)
    assert len(rig.service.devices[0].kernels) < 10


async def test_modules_that_nobody_holds_are_forgotten_past_a_bound(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkqueue.daemon import modules

    monkeypatch.setattr(modules, "_KEEP_CODES", 3)
    client = rig.client()
    kept = client.load()
    for patch in range(10):
        module = client.load(AXPY[:8] + patch.to_bytes(4, "little") + AXPY[12:])
        client.call("module.unload", module=module)
    assert len(rig.service.modules._codes) <= 5
    asked = len(rig.helper.asked)
    assert client.load() != kept  # still known, since it is held
    assert len(rig.helper.asked) == asked


async def test_release_of_a_failed_creation_comes_behind_its_batch(rig: Rig) -> None:
    """A creation that is taken back while it is queued was never posted; the release names what is not there."""
    client = rig.client()
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    for _ in range(3):
        client.send("buffer.create", size=64)
    queued = client.send("buffer.create", size=64)
    assert client.call("cancel", msgid=queued) == {"cancelled": True}
    assert client.code(queued) == "cancelled"
    created = {row[4] for batch in rig.thread.batches for row in batch.rows if row[2] == CREATE}
    assert not created & rig.thread.released
    assert all(row[2] != FREE for batch in rig.thread.batches for row in batch.rows)
