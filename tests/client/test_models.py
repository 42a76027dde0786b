"""Models by both clients: what is checked before it is sent, what is sent, what comes back, and how one is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client.either import Runner, ready, submitted
from client.fake_models import STATS, SUMS

import vkqueue
from vkqueue import errors
from vkqueue.client import model_source
from vkqueue.models import safetensors
from vkqueue.models.source import Weight

I32, F32 = np.int32, np.float32
TVM = (6).to_bytes(8, "little") + b"vulkan"
X = np.arange(12, dtype=I32).reshape(3, 4)


def sent(daemon: Any, method: str) -> list[dict[str, Any]]:
    return [params for name, params in daemon[0].log if name == method]


def test_a_call_with_one_output_gives_the_array(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums"))
        y = await ready(model.infer(x=X))
        assert y.dtype == F32 and np.array_equal(y, 2 * X.sum(-1, keepdims=True)) and y.flags.writeable
        assert np.array_equal(await ready(model.infer({"x": X.tolist()})), y)
        future = await submitted(model.submit(x=X, priority=2, timeout=0.25, outputs=["y"], timing=True))
        value, timing = await ready(future)
        assert np.array_equal(value, y)
        assert timing == vkqueue.InferTiming(queued_us=5, batch=3, device_us=None, total_us=9)

    run(body, daemon[1])
    first, _, last = sent(daemon, "model.infer")
    assert first == {"name": "sums", "inputs": {"x": {"shape": [3, 4], "data": X.tobytes()}}}
    assert last == first | {"outputs": ["y"], "priority": 2, "timeout_us": 250_000, "timing": True}


def test_several_outputs_are_a_dict_and_names_need_not_be_keywords(run: Runner, daemon: Any) -> None:
    a, b = np.ones((2, 3), F32), np.zeros(2, np.uint16)

    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("pair", 7))
        found = await ready(model.infer({"b-bits": b}, a=a))
        assert [*found] == ["p", "q"] and np.array_equal(found["q"], 2 * a)
        assert np.array_equal(await ready(model.infer({"b-bits": b, "a": a}, outputs=["q"])), 2 * a)

    run(body, daemon[1])
    assert sent(daemon, "model.infer")[0]["version"] == 7


def test_what_a_model_says_of_itself(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums", version=1))
        assert (model.name, model.version, model.max_batch_size) == ("sums", 1, 4)
        assert model.config == SUMS
        assert [*model.inputs] == ["x"]
        assert model.inputs["x"].shape == ("batch", "seq") and model.inputs["x"].batch_axis == 0
        assert repr(model).endswith("Model 'sums' 1: x: int32 (batch, seq) → y: float32 (batch, 1)>")
        assert str((await ready(gpu.model("pair"))).inputs["b-bits"]) == "b-bits: bfloat16 (n,)"
        first = {"name": "sums", "version": 1, "state": "READY", "inference_count": 10, **STATS}
        assert (await ready(model.statistics())) == first
        assert [one["version"] for one in await ready(gpu.model_statistics())] == [3, 2, 1]
        latest = await ready((await ready(gpu.model("sums"))).statistics())
        assert (latest["version"], latest["inference_count"]) == (2, 20)  # 3 could not be loaded: no request goes there
        sums, _, broken = await ready(gpu.models())
        assert sums == vkqueue.ModelInfo("sums", 1, "READY", device=0)
        assert (broken.state, broken.reason) == ("UNAVAILABLE", "no config.toml")
        for missing in (gpu.model, gpu.unload_model, gpu.load_model):
            with pytest.raises(errors.NotFoundError, match="'other'"):
                await ready(missing("other"))
        await ready(gpu.unload_model("sums"))
        with pytest.raises(errors.NotFoundError):
            await ready(model.infer(x=X))

    run(body, daemon[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"the input 'x' is missing. It takes x: int32 \(batch, seq\)"),
        ({"x": X, "z": 1}, "has no input 'z'"),
        ({"xx": X}, "Did you mean 'x'"),
        ({"x": X, "lengths": [4]}, "has no input 'lengths': the daemon makes it"),
        ({"x": X.astype(np.int64)}, r"takes int32, got an array of int64; use .astype\(numpy.int32\)"),
        ({"x": X.astype(F32)}, "takes int32, got an array of float32"),
        ({"x": [[1.5]]}, "takes int32, got float64"),
        ({"x": [["a"]]}, "takes int32"),
        ({"x": [[2**40]]}, "outside of what int32 has"),
        ({"x": [[1, 2], [3]]}, "send each by a request of its own"),
        ({"x": X[0]}, r"the batch dimension is missing: for one sample give x\[None, :\]"),
        ({"x": X[None]}, r"got the shape \(1, 3, 4\)"),
        ({"x": np.zeros((5, 4), I32)}, r"a request has 1 to 4 samples \(max_batch_size\)"),
        ({"x": np.zeros((0, 4), I32)}, "a request has 1 to 4 samples"),
        ({"x": np.zeros((1, 9), I32)}, "axis 1 has 9: seq may be 1 to 8"),
        ({"x": np.zeros((1, 0), I32)}, "seq may be 1 to 8"),
        ({"x": X, "timeout": 0}, "timeout: expected seconds above 0"),
        ({"x": X, "outputs": ["z"]}, "has no output 'z'; it has y"),
        ({"x": X, "outputs": "y"}, "expected a list of names"),
        ({"x": X, "outputs": {"y": X}}, "is to be a device array"),
    ],
)
def test_what_does_not_fit_is_said_before_it_is_sent(
    run: Runner, daemon: Any, given: dict[str, Any], message: str
) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums"))
        with pytest.raises(errors.InvalidError, match=message):
            await ready(model.infer(**given))

    run(body, daemon[1])
    assert not sent(daemon, "model.infer")


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((2, 4), F32), np.zeros(2, np.uint16), "axis 1 has 4: expected 3"),
        (np.ones((2, 3), F32), np.zeros(3, np.uint16), "axis 0 has 3: another input has n = 2"),
        (np.ones((101, 3), F32), np.zeros(3, np.uint16), "n may be 1 to 100"),
    ],
)
def test_inputs_have_to_agree(run: Runner, daemon: Any, a: Any, b: Any, message: str) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("pair"))
        with pytest.raises(errors.InvalidError, match=message):
            await ready(model.infer({"a": a, "b-bits": b}))

    run(body, daemon[1])


def test_device_arrays_stay_where_they_are(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums"))
        x, y = await ready(gpu.array(np.vstack([X, X]))), await ready(gpu.zeros((8, 1), "float32"))
        assert await ready(model.infer(x=x[3:], outputs={"y": y[2:5]})) is None
        assert (await ready(y.numpy()))[:, 0].tolist() == [0, 0, *(2 * X.sum(-1)), 0, 0, 0]
        for wrong, message in (
            ({"x": x}, "1 to 4 samples"),
            ({"x": x[:3].view("float32")}, r"got a device array of float32; .*array.view\('int32'\)"),
            ({"x": x[:2], "outputs": {"y": y[:3]}}, r"will have the shape \(2, 1\), the device array has \(3, 1\)"),
        ):
            with pytest.raises(errors.InvalidError, match=message):
                await ready(model.infer(**wrong))
        freed = await ready(gpu.zeros((1, 4), "int32"))
        freed.free()
        with pytest.raises(errors.InvalidError, match="was freed"):
            await ready(model.infer(x=freed))

    run(body, daemon[1])
    (infer,) = sent(daemon, "model.infer")
    assert infer["inputs"] == {"x": {"shape": [3, 4], "buffer": 1, "offset": 48}}
    assert infer["outputs"] == {"y": {"buffer": 2, "offset": 8}}


def test_an_array_of_another_connection(run: Runner, daemon: Any) -> None:
    with vkqueue.connect(daemon[1], timeout=30) as other:
        array = other.zeros((1, 4), "int32")

        async def body(gpu: Any) -> None:
            model = await ready(gpu.model("sums"))
            with pytest.raises(errors.InvalidError, match="of another connection"):
                await ready(model.infer(x=array))

        run(body, daemon[1])


def test_what_writes_a_device_array_is_waited_for(run: Runner, daemon: Any) -> None:
    """The daemon takes a buffer as it is when the request comes; the client sends it once what fills it is answered."""

    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums"))
        x = await ready(gpu.array(X))
        assert np.array_equal(await ready(model.infer(x=x)), 2 * X.sum(-1, keepdims=True))
        with pytest.raises(errors.QuotaError):  # the reason, not that there is no such handle
            await ready(model.infer(x=(await ready(gpu.zeros((1 << 20, 4), "int32")))[:4]))

    daemon[0].max_memory = 1 << 20
    order: list[str] = []
    answer = vkqueue.client.call.Creation.answered

    def noted(self: Any, error: Any, result: Any) -> None:
        order.append("made")
        answer(self, error, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vkqueue.client.call.Creation, "answered", noted)
        start = vkqueue.client.core.Core.request

        def request(self: Any, method: str, *args: Any) -> Any:
            order.append(method)
            return start(self, method, *args)

        patch.setattr(vkqueue.client.core.Core, "request", request)
        run(body, daemon[1])
    assert order == ["hello", "made", "model.infer", "made"]


def test_requests_that_read_one_array_do_not_wait_for_each_other(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums"))
        x, y = await ready(gpu.array(X)), await ready(gpu.zeros((3, 1), "float32"))
        await ready(gpu.flush())
        with daemon[0].hold():
            first = await submitted(model.submit(x=x))
            second = await submitted(model.submit(x=x, outputs={"y": y}))
            assert not gpu.core.settling([x.handle])
            assert gpu.core.settling([], [x.handle]) == [first, second]  # to write it is another matter
            assert gpu.core.settling([y.handle]) == [second]
        assert np.array_equal(await ready(first), 2 * X.sum(-1, keepdims=True))
        await ready(second)

    run(body, daemon[1])


def test_more_than_a_message_carries(run: Runner, start: Any) -> None:
    daemon = start(max_message_bytes=1 << 16)

    async def body(gpu: Any) -> None:
        config = {
            "max_batch_size": 1 << 20,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
        }
        model = await ready(gpu.load_model("wide", config))
        with pytest.raises(errors.TooLargeError, match="as device arrays"):
            await ready(model.infer(x=np.zeros((1 << 13, 4), F32)))

    run(body, daemon[1])


def test_cancel(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.model("sums"))
        with daemon[0].hold():
            future = await submitted(model.submit(x=X))
            assert await ready(future.cancel())
        with pytest.raises(errors.JobCancelledError):
            await ready(future)

    run(body, daemon[1])


# Loading


def test_load_from_the_daemons_repository(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        model = await ready(gpu.load_model("stored", version=3, device=0))
        assert (model.name, model.version) == ("stored", 3)

    run(body, daemon[1])
    assert sent(daemon, "model.load") == [{"name": "stored", "version": 3, "device": 0}]


def test_load_with_modules_and_arrays(run: Runner, daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "c.hlsl").write_text("int a;")

    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(b"fake:copy"))
        held = await ready(gpu.array(np.ones(3, F32)))
        await ready(gpu.flush())
        model = await ready(
            gpu.load_model(
                "own",
                {key: SUMS[key] for key in ("max_batch_size", "dimensions", "input", "output")},
                kernels={"a": module, "b": b"fake:axpy", "c": tmp_path / "c.hlsl"},
                weights={"w": np.ones((2, 2), F32), "raw": b"12345", "held": held[1:], "one": 2.5},
            )
        )
        assert (model.name, model.version, model.max_batch_size) == ("own", 1, 4)
        await ready(gpu.ping())

    run(body, daemon[1])
    (load,) = sent(daemon, "model.load")
    assert load["kernels"] == [
        {"name": "a", "module": 1}, {"name": "b", "code": b"fake:axpy", "language": "spirv"},
        {"name": "c", "code": "int a;", "language": "hlsl"},
    ]  # fmt: skip
    assert load["weights"] == {
        "w": np.ones(4, F32).tobytes(), "raw": b"12345", "one": np.float64(2.5).tobytes(), "held": [2, 4, 8],
    }  # fmt: skip
    assert not sent(daemon, "module.unload")


def folder(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    model = tmp_path / "net"
    (model / "2").mkdir(parents=True)
    (model / "config.toml").write_text(
        "max_batch_size = 4\n"
        "[[input]]\nname = 'x'\ndata_type = 'TYPE_FP32'\ndims = [1]\n"
        "[[output]]\nname = 'y'\ndata_type = 'TYPE_FP32'\ndims = [1]\n"
        "[[kernel]]\nname = 'k'\nfile = 'k.spv'\n"
        "[weights]\nfile = 'w.safetensors'\n"
    )
    (model / "k.spv").write_bytes(b"fake:copy")
    data = {name: bytes([number]) * (30_001 * number) for number, name in enumerate("abcd")}
    weights = {name: Weight("U8", (len(value),), value) for name, value in data.items()}
    safetensors.write(model / "2" / "w.safetensors", weights)
    return model, data


@pytest.mark.parametrize("max_message_bytes", [1 << 20, 1 << 16])
def test_load_from_a_folder(
    run: Runner, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_message_bytes: int
) -> None:
    """Its weights go along, or, where they are too many, by buffers and in pieces."""
    daemon = start(max_message_bytes=max_message_bytes)
    monkeypatch.setattr(model_source, "_CHUNK_BYTES", 100_000)
    path, data = folder(tmp_path)

    async def body(gpu: Any) -> None:
        model = await ready(gpu.load_model(str(path)))
        assert (model.name, model.version, model.max_batch_size) == ("net", 2, 4)
        assert daemon[0].call(lambda: daemon[0].sessions[0].weights["net"]) == data
        assert daemon[0].buffers() == 0
        await ready(gpu.load_model(path, version=2))

    run(body, daemon[1])
    load = sent(daemon, "model.load")[0]
    assert (load["name"], load["version"], load["kernels"]) == (
        "net", 2, [{"name": "k", "code": b"fake:copy", "language": "spirv"}],
    )  # fmt: skip
    buffers = sent(daemon, "buffer.create")
    assert len(buffers) == (0 if max_message_bytes == 1 << 20 else 4)  # two loads, two chunks each
    for params in sent(daemon, "buffer.create"):
        assert params["size"] <= 100_000
    for weight in load["weights"].values():
        assert isinstance(weight, (bytes, bytearray, memoryview)) or weight[1] % 256 == 0


def test_nothing_is_left_of_a_load_that_failed(run: Runner, start: Any, tmp_path: Path) -> None:
    daemon = start(max_message_bytes=1 << 16, max_memory=70_000)
    path, _ = folder(tmp_path)

    async def body(gpu: Any) -> None:
        with pytest.raises(errors.QuotaError):
            await ready(gpu.load_model(path))
        await ready(gpu.ping())
        assert daemon[0].buffers() == 0

    run(body, daemon[1])
    assert not sent(daemon, "model.load")


def test_what_cannot_be_loaded(run: Runner, daemon: Any, tmp_path: Path) -> None:
    async def body(gpu: Any) -> None:
        for wrong, error, message in (
            (lambda: gpu.load_model("x", weights={}), errors.InvalidError, "go with a config"),
            (lambda: gpu.load_model("./x"), errors.NotFoundError, "there is no folder x"),
            (lambda: gpu.load_model(tmp_path), errors.NotFoundError, "config.toml"),
            (lambda: gpu.load_model(tmp_path, {}), errors.InvalidError, "name as a string"),
            (
                lambda: gpu.load_model("x", {}, weights={"w": ["a"]}),
                errors.InvalidError,
                "weight 'w': expected numbers",
            ),
            (lambda: gpu.load_model("x", {}, kernels={"k": 3}), errors.InvalidError, "by its path or its bytes"),
            (lambda: gpu.load_model("x", {}, kernels={"k": b"?"}), errors.InvalidError, "no SPIR-V"),
            (lambda: gpu.load_model("x", {}, kernels={"k": TVM}), errors.InvalidError, "'k': a model takes SPIR-V"),
        ):
            with pytest.raises(error, match=message):
                await ready(wrong())

    run(body, daemon[1])
