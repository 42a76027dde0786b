"""Both clients against a daemon: one body each."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client.either import Runner, ready, submitted

import vkqueue
from vkqueue import errors

F32 = np.float32


def test_what_the_daemon_says_of_itself(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        assert gpu.server == "fake/1"
        assert gpu.device.name == "NumPy"
        assert gpu.limits.max_queued_jobs == 4096
        assert [d.index for d in await ready(gpu.devices())] == [0]
        assert (await ready(gpu.stats()))["clients"] == 1
        await ready(gpu.ping())
        assert "NumPy" in repr(gpu)
        gpu.close()
        assert gpu.closed
        assert "closed" in repr(gpu)
        gpu.close()

    run(body, daemon[1], client_name="me", device=0)
    assert daemon[0].log[0] == ("hello", {"protocol": 1, "client": "me", "device": 0})


def test_a_module(run: Runner, daemon: Any, tmp_path: Path) -> None:
    path = tmp_path / "many.spv"
    path.write_bytes(b"fake:axpy,fill")

    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(path))
        assert module.name == "many"
        assert list(module) == list(module.kernels) == ["axpy", "fill"]
        assert len(module) == 2
        assert "axpy" in module
        assert "axpy, fill" in repr(module)
        kernel = module["axpy"]
        assert [b.name for b in kernel.bindings] == ["x", "y"]
        assert [s.name for s in kernel.scalars] == ["n", "a"]
        assert kernel.local_size == (64, 1, 1)
        assert kernel.specialization == ()
        assert kernel.unsupported == ""
        assert "axpy(x, y, n=uint32, a=float32" in repr(kernel)
        with pytest.raises(errors.NotFoundError, match="'axpi'.*Did you mean 'axpy'"):
            module["axpi"]
        with pytest.raises(errors.InvalidError, match="2 kernels, choose one: axpy, fill"):
            _ = module.kernel
        assert await ready(module.inspect()) == "spirv-asm of axpy,fill"
        assert await ready(module.inspect("json")) == "json of axpy,fill"
        saved = await ready(module.save(layout="0.24"))
        assert saved == vkqueue.Saved(b"tvm0.24")
        saved = await ready(module.save("tvm_file"))
        assert saved == vkqueue.Saved(b"tvm_file", "{}")
        module.unload()
        with pytest.raises(errors.InvalidError, match="'many' was freed"):
            await ready(module.inspect())
        with pytest.raises(errors.InvalidError, match="was freed"):
            await ready(kernel(1, 2))
        assert "unloaded" in repr(module)

    run(body, daemon[1])
    assert daemon[0].log[1] == ("module.load", {"spirv": b"fake:axpy,fill", "name": "many", "as": 1})


def test_saved_modules_as_files(tmp_path: Path) -> None:
    vkqueue.Saved(b"bytes").write(tmp_path / "a.tvm")
    vkqueue.Saved(b"file", "{}").write(tmp_path / "b.vulkan")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        "a.tvm": b"bytes", "b.vulkan": b"file", "b.tvm_meta.json": b"{}",
    }  # fmt: skip


def test_modules_of_tvm_and_sources(run: Runner, daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "net.vulkan").write_bytes(b"\x27\x00\x70\x02rest")
    (tmp_path / "net.tvm_meta.json").write_text("{}")
    as_bytes = (6).to_bytes(8, "little") + b"vulkan"

    async def body(gpu: Any) -> None:
        for source in (tmp_path / "net.vulkan", as_bytes):
            with pytest.raises(errors.InvalidError, match="no SPIR-V"):
                await ready(gpu.load(source, entry="f"))
        with pytest.raises(errors.InvalidError, match=r"\.tvm_meta\.json"):
            await ready(gpu.load(b"\x27\x00\x70\x02rest"))
        with pytest.raises(errors.InvalidError, match="path or its bytes, got 5"):
            await ready(gpu.load(5))
        with pytest.raises(FileNotFoundError):
            await ready(gpu.load(tmp_path / "none.spv"))
        with pytest.raises(errors.CompileError, match="undeclared identifier") as caught:
            await ready(gpu.compile("foo", "glsl", defines={"N": 4}, includes={"a.h": ""}, target_env="vulkan1.1"))
        assert caught.value.code == "compile"
        assert caught.value.data == {"language": "glsl"}

    run(body, daemon[1])
    loads = [params for method, params in daemon[0].log if method == "module.load"]
    assert loads == [
        {"tvm_file": b"\x27\x00\x70\x02rest", "tvm_meta": "{}", "entry": "f", "name": "net", "as": 1},
        {"tvm": as_bytes, "entry": "f", "as": 2},
        {
            "source": "foo", "language": "glsl", "defines": {"N": 4}, "includes": {"a.h": ""},
            "target_env": "vulkan1.1", "as": 3,
        },
    ]  # fmt: skip


def test_numpy_in_and_out(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(b"fake:axpy,copy,fill,swap,nothing"))
        x, y = np.arange(100, dtype=F32), np.ones(100, F32)
        result = await ready(module["axpy"](x, y, a=2.0, n=100, elements=100))
        assert np.array_equal(result, 2 * np.arange(100) + 1)
        assert result.flags.writeable
        assert np.array_equal(y, np.ones(100))
        result = await ready(module["axpy"](x[::2], y=y[::-2], scalars=[50, 1], grid=(1, 1, 1)))
        assert np.array_equal(result, x[::2] + 1)
        same = await ready(module["axpy"](x, y, a=2.0, n=100, elements=100, inplace=True))
        assert same is y
        assert y[99] == 199
        result = await ready(module["copy"](x, np.empty((10, 10), F32), elements=100))
        assert np.array_equal(result, x.reshape(10, 10))
        result = await ready(module["copy"](x, vkqueue.out((4, 25), np.int32), elements=100))
        assert np.array_equal(result, x.view(np.int32).reshape(4, 25))
        result = await ready(module["copy"](x.tobytes(), 400, elements=100))
        assert result.tobytes() == x.tobytes()
        left, right = await ready(module["swap"](x, x + 1, grid=1))
        assert np.array_equal(left, x + 1)
        assert np.array_equal(right, x)
        assert await ready(module["nothing"](grid=0)) is None
        assert (await ready(module["fill"](vkqueue.out(0, F32), value=1, grid=1))).shape == (0,)

    run(body, daemon[1])


def test_write_only_templates_are_not_sent(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        fill = (await ready(gpu.load(b"fake:fill"))).kernel
        y = np.full(100, 5, F32)
        assert (await ready(fill(y, value=1, grid=1)))[99] == 0
        assert y[0] == 5
        await ready(fill(y, value=1, grid=1, inplace=True))
        assert y[0] == 1
        assert y[99] == 5

    run(body, daemon[1])
    kinds = [next(iter(params["args"][0])) for method, params in daemon[0].log if method == "dispatch"]
    assert kinds == ["out", "inout"]


def test_device_arrays(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        axpy = (await ready(gpu.load(b"fake:axpy"))).kernel
        x = await ready(gpu.array(np.arange(100, dtype=F32)))
        y = await ready(gpu.zeros(100, F32))
        for _ in range(3):
            assert await ready(axpy(x, y, a=1.0, n=100, elements=100)) is None
        assert np.array_equal(await ready(y.get()), 3 * np.arange(100))
        await ready(y.set(np.ones(100, np.float16)))
        host = await ready(axpy(np.ones(100, F32), y, a=1.0, n=100, elements=100))
        assert host is None
        values = await ready(y.numpy())
        assert np.array_equal(values, np.full(100, 2))
        values[:] = 0
        assert "(100,) float32" in repr(y)
        assert len(y) == 100
        assert (y.ndim, y.size, y.nbytes, y.itemsize) == (1, 100, 400, 4)
        with pytest.raises(errors.InvalidError, match="shape"):
            await ready(y.set(np.ones(99, F32)))
        with pytest.raises(errors.InvalidError, match="float64 do not convert to int32"):
            await ready((await ready(gpu.empty(3, np.int32))).set(np.ones(3)))
        empty = await ready(gpu.array([], np.int16))
        assert (await ready(empty.get())).shape == (0,)
        scalar = await ready(gpu.array(np.float64(2.5)))
        assert (await ready(scalar.get())) == 2.5

    run(body, daemon[1])


def test_views(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        axpy = (await ready(gpu.load(b"fake:axpy"))).kernel
        grid = await ready(gpu.array(np.arange(32, dtype=F32).reshape(8, 4)))
        row = grid[3]
        assert np.array_equal(await ready(row.get()), [12, 13, 14, 15])
        part = grid[2:4]
        await ready(part.set(np.zeros((2, 4), F32)))
        await ready(axpy(grid[0], grid[-1], a=1, n=4, grid=1))
        del grid
        gc.collect()
        assert np.array_equal(await ready(part.reshape(8).get()), np.zeros(8))
        assert np.array_equal(await ready(part.view(np.uint8).get()), np.zeros(32))
        assert "at byte 32" in repr(part)
        whole = await ready(gpu.array(np.arange(8, dtype=F32)))
        with pytest.raises(errors.InvalidError, match="starts at byte 4 .* multiples of 16"):
            await ready(axpy(whole[1:5], whole[4:], a=1, n=4, grid=1))

    run(body, daemon[1])
    [args] = [params["args"] for method, params in daemon[0].log if method == "dispatch"]
    assert args == [[2, 0, 16], [2, 112, 16]]


def test_uniform_blocks_and_descriptor_arrays(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(b"fake:affine,pick"))
        y = np.arange(4, dtype=F32)
        params = {"scale": F32(2), "bounds": np.array([1, 5])}
        assert np.array_equal(await ready(module["affine"](params, y, grid=1)), [1, 2, 4, 5])
        block = np.array([2, 1, 5], F32)
        for given in (block, block.tobytes(), await ready(gpu.array(block))):
            assert np.array_equal(await ready(module["affine"](given, y, grid=1)), [1, 2, 4, 5])
        xs = [np.full(3, i, F32) for i in range(3)] + [await ready(gpu.array(np.full(3, 3, F32)))]
        for which in (1, 3):
            picked = await ready(module["pick"](vkqueue.out(3, F32), xs, which=which, grid=1))
            assert picked.tolist() == [which] * 3

    run(body, daemon[1])


def test_freeing(run: Runner, daemon: Any) -> None:
    fake, path = daemon

    async def body(gpu: Any) -> None:
        axpy = (await ready(gpu.load(b"fake:axpy"))).kernel
        first = await ready(gpu.zeros(16, F32))
        with await ready(gpu.zeros(16, F32)) as second:
            await ready(axpy(first, second, a=1, n=1, grid=1))
            view = second[:4]
            assert fake.buffers() == 2
        await ready(gpu.ping())
        assert fake.buffers() == 1
        second.free()
        for dead in (second, view):
            with pytest.raises(errors.InvalidError, match="was freed"):
                await ready(dead.get())
        with pytest.raises(errors.InvalidError, match="argument 'y' .*was freed"):
            await ready(axpy(first, second, a=1, n=1, grid=1))
        assert "freed" in repr(second)
        view = first[4:]
        del first
        gc.collect()
        await ready(gpu.flush())
        assert fake.buffers() == 1
        await ready(view.get())
        del view
        gc.collect()
        await ready(gpu.flush())
        assert fake.buffers() == 0
        del axpy
        gc.collect()
        await ready(gpu.flush())
        assert fake.methods()[-1] == "module.unload"

    run(body, path)
    assert fake.methods().count("buffer.free") == 2


@pytest.mark.parametrize("size", [0, 1, 100, 5_000, 100_000])
def test_large_data_goes_in_pieces(run: Runner, start: Any, size: int) -> None:
    """Messages hold 16 KiB here: arrays, arguments and results that are larger need several."""
    fake, path = start(max_message_bytes=16 * 1024)

    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(b"fake:axpy,swap,copy"))
        values = np.random.default_rng(size).random(size, F32)
        array = await ready(gpu.array(values))
        assert np.array_equal(await ready(array.get()), values)
        await ready(array.set(values + 1))
        assert np.array_equal(await ready(array.get()), values + 1)
        result = await ready(module["axpy"](values, array, a=1, n=size, elements=size))
        assert result is None
        assert np.array_equal(await ready(array.get()), values + 1 + values)
        small = np.arange(2, dtype=F32)
        left, right = await ready(module["swap"](values, values * 2, grid=1))
        assert np.array_equal(left, values * 2)
        assert np.array_equal(right, values)
        result, timing = await ready(module["copy"](values, vkqueue.out(size, F32), elements=size, timing=True))
        assert np.array_equal(result, values)
        assert timing == vkqueue.Timing(1, None, 2, 0)
        assert (await ready(module["copy"](small, np.empty_like(values), elements=size))).shape == (size,)
        del array
        gc.collect()
        await ready(gpu.flush())

    run(body, path)
    assert fake.methods().count("buffer.create") == fake.methods().count("buffer.free")


def test_more_calls_than_the_daemon_queues(run: Runner, start: Any) -> None:
    fake, path = start(max_queued_jobs=4)

    async def body(gpu: Any) -> None:
        axpy = (await ready(gpu.load(b"fake:axpy"))).kernel
        x, y = await ready(gpu.array(np.ones(4, F32))), await ready(gpu.zeros(4, F32))
        await ready(axpy(x, y, a=1, n=4, grid=1))
        futures = [await submitted(axpy.submit(x, y, a=1, n=4, grid=1)) for _ in range(50)]
        for future in futures:
            assert await ready(future) is None
        assert np.array_equal(await ready(y.get()), [51] * 4)

    run(body, path)


def test_futures(run: Runner, daemon: Any) -> None:
    fake, path = daemon

    async def body(gpu: Any) -> None:
        copy = (await ready(gpu.load(b"fake:copy"))).kernel
        x = np.arange(4, dtype=F32)
        with fake.hold():
            first = await submitted(copy.submit(x, x, grid=1))
            x[:] = 7  # it was sent
            second = await submitted(copy.submit(x, x, grid=1, label="second", priority=5, deadline=0.2505))
            assert not first.done()
            assert "under way" in repr(first)
            assert await ready(second.cancel())
            with pytest.raises(errors.JobCancelledError):
                await ready(second)
            assert second.done()
            assert not await ready(second.cancel())
            assert isinstance(await ready(second.exception()), errors.JobCancelledError)
            assert "failed: cancelled" in repr(second)
        assert np.array_equal(await ready(first), [0, 1, 2, 3])
        assert await ready(first.exception()) is None
        assert not await ready(first.cancel())
        await ready(first.wait())

    run(body, path)
    sent = [params for method, params in fake.log if method == "dispatch"][1]
    assert (sent["label"], sent["priority"], sent["deadline_ms"]) == ("second", 5, 251)


def test_after(run: Runner, daemon: Any) -> None:
    fake, path = daemon

    async def body(gpu: Any) -> None:
        copy = (await ready(gpu.load(b"fake:copy"))).kernel
        x = np.ones(4, F32)
        with fake.hold():
            first = await submitted(copy.submit(x, x, grid=1))
            second = await submitted(copy.submit(x, x, grid=1, after=[first]))
            third = await submitted(copy.submit(x, x, grid=1, after=second))
            assert await ready(first.cancel())
        for future in (second, third):
            with pytest.raises(errors.DependencyError):
                await ready(future)
        # A failure that the client has seen long ago.
        with pytest.raises(errors.DependencyError, match="cancelled"):
            await ready(copy(x, x, grid=1, after=first))
        assert np.array_equal(await ready(copy(x, x, grid=1, after=[])), x)
        with pytest.raises(errors.InvalidError, match="after"):
            await ready(copy(x, x, grid=1, after=[3]))

    run(body, path)


def test_a_creation_that_fails_is_told_to_the_users(run: Runner, start: Any) -> None:
    _, path = start(max_memory=1000)

    async def body(gpu: Any) -> None:
        axpy = (await ready(gpu.load(b"fake:axpy"))).kernel
        good = await ready(gpu.zeros(100, F32))
        bad = await ready(gpu.array(np.zeros(1000, F32)))
        with pytest.raises(errors.QuotaError) as caught:
            await ready(axpy(good, bad, a=1, n=1, grid=1))
        assert caught.value.data == {"quota": "max_memory_bytes"}
        with pytest.raises(errors.QuotaError):  # now it is known before anything is sent
            await ready(bad.get())
        with pytest.raises(errors.QuotaError):
            await ready(gpu.flush())
        await ready(gpu.flush())
        await ready(axpy(good, good, a=1, n=1, grid=1))

    run(body, path)


def test_errors_carry_code_message_and_data(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        with pytest.raises(errors.UnsupportedError, match="no device can run"):
            await ready(gpu.load(b"fake:refused"))
        module = await ready(gpu.load(b"fake:refused,axpy"))
        with pytest.raises(errors.UnsupportedError, match="shaderFloat64"):
            await ready(module["refused"](np.zeros(1), grid=1))
        assert module["refused"].unsupported == "the device has no shaderFloat64"
        with pytest.raises(errors.InvalidError, match="cannot be sent"):
            await ready(module["axpy"](np.zeros(1, F32), np.zeros(1, F32), a=1, n=1, grid=1, label=object()))
        with pytest.raises(errors.InvalidError, match="priority") as caught:
            await ready(module["axpy"](np.zeros(1, F32), np.zeros(1, F32), a=1, n=1, grid=1, priority=101))
        assert caught.value.code == "invalid"
        assert caught.value.data == {"parameter": "priority"}

    run(body, daemon[1])


def test_a_dropped_connection_fails_everything(run: Runner, daemon: Any) -> None:
    fake, path = daemon

    async def body(gpu: Any) -> None:
        copy = (await ready(gpu.load(b"fake:copy"))).kernel
        x = np.ones(4, F32)
        array = await ready(gpu.zeros(4, F32))
        with fake.hold():
            futures = [await submitted(copy.submit(x, x, grid=1)) for _ in range(3)]
            fake.drop()
            for future in futures:
                with pytest.raises(errors.ConnectionLostError, match="closed the connection"):
                    await ready(future)
        assert gpu.closed
        with pytest.raises(errors.ConnectionLostError):
            await ready(copy(x, x, grid=1))
        with pytest.raises(errors.ConnectionLostError):
            await ready(gpu.flush())
        with array:
            pass  # nothing to free any more

    run(body, path)


def test_a_protocol_fault_is_the_reason(run: Runner, daemon: Any) -> None:
    fake, path = daemon

    async def body(gpu: Any) -> None:
        copy = (await ready(gpu.load(b"fake:copy"))).kernel
        with fake.hold():
            future = await submitted(copy.submit(b"1234", 4, grid=1))
            fake.send_raw(b"\xc1")
            with pytest.raises(errors.ConnectionLostError, match="cannot be read") as caught:
                await ready(future)
        assert isinstance(caught.value.__cause__, errors.ProtocolError)

    run(body, path)


def test_another_protocol(run: Runner, start: Any) -> None:
    async def body(gpu: Any) -> None:
        raise AssertionError("not reached")

    with pytest.raises(errors.UnsupportedError, match="version 2 of the protocol, this client 1"):
        run(body, start(protocol=2)[1])


def test_scalars_of_all_kinds(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(b"fake:mixed,tvm"))
        out = vkqueue.out(7, F32)
        expected = [1, 1, 2, -3, 1.5, 7, 9]
        named = {"on": True, "v": (1, 2, -3), "h": 1.5, "big": np.int64(7), "small": 9}
        assert (await ready(module["mixed"](out, **named, grid=1))).tolist() == expected
        assert (await ready(module["mixed"](out, scalars=named, grid=1))).tolist() == expected
        for given in ([7, 1, [1, 2, -3], 1.5, 9], [7, 1, 1, 2, -3, 1.5, 9]):
            assert (await ready(module["mixed"](out, scalars=given, grid=1))).tolist() == expected
        assert (await ready(module["tvm"](out, n=3, value=2.0, launch=[1, 64]))).tolist() == [2.0] * 7

    run(body, daemon[1])
    last = daemon[0].log[-1][1]
    assert (last["scalars"], last["launch"]) == ([3, 2.0], [1, 64])


def test_specialization(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        sized = (await ready(gpu.load(b"fake:sized"))).kernel
        assert [c.name for c in sized.specialization] == ["block"]
        await ready(sized(16, elements=100, specialization={"block": np.uint32(8)}))
        await ready(sized(16, elements=100, specialization={3: 10}))
        await ready(sized(16, elements=100))

    run(body, daemon[1])
    sent = [(p["grid"], p.get("specialization")) for m, p in daemon[0].log if m == "dispatch"]
    assert sent == [([13], {"block": 8}), ([10], {"3": 10}), ([2], None)]
