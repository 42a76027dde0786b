"""`vkqueue run`: arguments to their places, results to files and the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon

from vkqueue.cli.results import named
from vkqueue.cli.run import arrange
from vkqueue.client.signature import Binding
from vkqueue.errors import InvalidError

KERNELS = Path(__file__).parents[3] / "vkqueue/cli/kernels"


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], Path]:
    """A file of the fake daemon's kernels."""

    def write(names: str) -> Path:
        path = tmp_path / f"{names}.spv"
        path.write_bytes(f"fake:{names}".encode())
        return path

    return write


@pytest.fixture
def run(vkqueue: Callable[..., Any], fake: Any, module: Callable[[str], Path]) -> Callable[..., Any]:
    """`vkqueue run` on the fake daemon; the first word names kernels of its."""
    return lambda names, *words: vkqueue("run", module(names), *words, "--socket", fake.path)


class TestResults:
    def test_shown_and_written(self, run: Callable[..., Any], tmp_path: Path) -> None:
        ended = run(
            "axpy", "x=0:10:float32", "y=ones:10:float32", "-s", "n=10", "-s", "a=2", "--elements", 10,
            "--out", f"y={tmp_path}/y", "--timing",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        expected = 1 + 2 * np.arange(10, dtype="float32")
        assert np.array_equal(np.load(tmp_path / "y"), expected)
        assert "1.0 3.0 5.0 7.0 9.0 11.0 13.0 15.0 …" in ended.out and "float32" in ended.out
        assert "queued" in ended.out and "round trip" in ended.out

    def test_as_json(self, run: Callable[..., Any]) -> None:
        report = run(
            "axpy,fill", "--kernel", "axpy", "0:4:float32", "1,inf,nan,1:float32", "-s", "n=4", "-s", "a=0.1",
            "--grid", 1, "--repeat", 3, "--json", "--head", 3,
        ).json  # fmt: skip
        (result,) = report["results"]
        assert result["head"] == [1.0, "inf", "nan"] and result["not_finite"] == 2
        assert result["shape"] == [4] and result["min"] == 1.0 and result["max"] == 1.3
        assert report["runs"] == 3 and report["kernel"] == "axpy"
        times = report["timing"]["round_trip_us"]
        assert 0 < times["min"] <= times["median"] <= times["max"]

    def test_every_repeat_starts_from_the_argument(self, run: Callable[..., Any]) -> None:
        words = ("0:4:float32", "zeros:4:float32", "-s", "n=4", "-s", "a=1", "--grid", 1, "--json")
        once, often = (run("axpy", *words, "--repeat", n).json["results"] for n in (1, 3))
        assert once == often

    def test_a_result_of_its_own(self, run: Callable[..., Any]) -> None:
        report = run("fill", "out:2x3:float32", "-s", "value=4", "--elements", 6, "--json").json
        assert report["results"][0]["head"] == [4.0] * 6 and report["results"][0]["name"] == "0"

    def test_a_uniform_block_and_an_array_of_descriptors(self, run: Callable[..., Any]) -> None:
        block = run(
            "affine", 'params={"scale": 2, "bounds": [0, 5]}', "1,2,3:float32", "--grid", 1, "--json"
        ).json  # fmt: skip
        assert block["results"][0]["head"] == [2.0, 4.0, 5.0]
        parts = "[ones:2:float32;full:2:2:float32;full:2:3:float32;zeros:2:float32]"
        picked = run("pick", "out:2:float32", f"xs={parts}", "-s", "which=2", "--grid", 1, "--json").json
        assert picked["results"][0]["head"] == [3.0, 3.0]

    def test_nothing_written(self, run: Callable[..., Any]) -> None:
        assert "the kernel writes nothing" in run("nothing", "--grid", 1).out

    def test_results_of_an_array_of_descriptors_have_names(self) -> None:
        bindings = [Binding(0, 0, access="read"), Binding(0, 1, access="write", name="ys", count=2)]
        found = list(named(bindings, (np.zeros(1), np.ones(1))))
        assert [(r.name, r.place, r.element) for r in found] == [("ys[0]", 1, 0), ("ys[1]", 1, 1)]


class TestOptions:
    def test_they_arrive(self, run: Callable[..., Any], fake: Any) -> None:
        ended = run("sized", "out:8:float32", "--spec", "block=32", "--grid", "2x3", "--device", 0)
        assert ended.code == 0, ended.err
        (sent,) = [params for method, params in fake.log if method == "dispatch"]
        assert sent["specialization"] == {"block": 32} and sent["grid"] == [2, 3]
        ended = run("tvm", "out:8:float32", "-s", "n=8", "-s", "value=1", "--launch", "1,64")
        assert ended.code == 0, ended.err
        assert fake.log[-1][1]["launch"] == [1, 64]

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (["axpy", "0:4:float32", "0:4:float32"], 2, "give one of --grid (work groups), --elements"),
            (["axpy", "--grid", "1", "--elements", "4"], 2, "give one of --grid"),
            (["axpy", "--grid", "a"], 2, "expected one to 3 sizes"),
            (["axpy", "-s", "n", "--grid", "1"], 2, "expected NAME=VALUE, got 'n'"),
            (["axpy", "0:4:float32", "--grid", "1"], 1, "takes 2 arguments, got 1. They are 0: x: read"),
            (["axpy", "z=0:4", "0:4", "--grid", "1"], 1, "no argument 'z'; it has 0 (x), 1 (y)."),
            (["axpy", "x=0:4", "0=0:4", "--grid", "1"], 1, "argument 'x' (set 0, binding 0) is given twice"),
            (["axpy", "0:4:float32", "0:4:float32", "-s", "m=1", "--grid", "1"], 1, "no scalar 'm'; it has n, a."),
            (["axpy", "0:4:float32", "0:4:float32", "-s", "n=1.5", "--grid", "1"], 1, "scalar 'n' (uint32): expected"),
            (["axpy", "0:4:float32", "0:4:float32", "-s", "n=1", "--grid", "1"], 1, "needs the scalar a"),
            (["sized", "out:8:float32", "--spec", "blok=1", "--grid", "1"], 1, "Did you mean 'block'?"),
            (["fill", "out:8:float32", "-s", "value=1", "--grid", "1", "--out", "1=f"], 1, "no argument '1'"),
            (["copy", "0:4:int32", "out:4:int32", "--grid", "1", "--out", "src=f"], 1, "does not write argument 0; it"),
            (["axpy", "absent.npy", "0:4:float32", "--grid", "1"], 1, "vkqueue: absent.npy: No such file"),
            (["axpy,fill", "--grid", "1"], 1, "the module has 2 kernels, choose one: axpy, fill"),
            (["refused", "0:4:int32", "--grid", "1"], 1, "no device can run a kernel"),
        ],
    )
    def test_wrong_ones(self, run: Callable[..., Any], words: list[str], code: int, text: str) -> None:
        ended = run(*words)
        assert ended.code == code and text in ended.err
        assert "Traceback" not in ended.err


def test_what_has_no_name_goes_to_the_places_that_are_left() -> None:
    bindings = [Binding(0, n, name=name) for n, name in enumerate(("a", "", "c"))]
    given = arrange(["c=3:int8", "1:int8", "1=2:int8"], bindings, {})
    assert [int(value[0]) for value in given] == [1, 2, 3]
    with pytest.raises(InvalidError, match="takes 3 arguments, got 4"):
        arrange(["1:int8"] * 4, bindings, {})


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for the tests of this file; they leave nothing behind in it."""
    running = Daemon(tmp_path_factory.mktemp("daemon"), validation=False)
    yield running
    assert running.stop() == 0


@pytest.mark.gpu
class TestForReal:
    def test_dtypes_come_from_the_module(self, vkqueue: Callable[..., Any], daemon: Any, tmp_path: Path) -> None:
        data = np.random.default_rng(1).integers(0, 256, 400, dtype=np.uint8)
        (tmp_path / "data.bin").write_bytes(data.tobytes())
        report = vkqueue(
            "run", KERNELS / "histogram.spv", f"@{tmp_path}/data.bin", "zeros:256", "-s", "words=100", "--grid", 1,
            "--out", f"1={tmp_path}/counts.npy", "--json", "--socket", daemon.path,
        ).json  # fmt: skip
        assert report["results"][0]["dtype"] == "uint32"
        assert np.array_equal(np.load(tmp_path / "counts.npy"), np.bincount(data, minlength=256))

    def test_devices_inspect_and_stats(self, vkqueue: Callable[..., Any], daemon: Any) -> None:
        devices = vkqueue("devices", "--socket", daemon.path, "--json").json["devices"]
        seen = vkqueue("inspect", KERNELS / "axpy.spv", "--socket", daemon.path, "--json").json["kernels"]["main"]
        assert [(d["index"], d["unsupported"]) for d in seen["devices"]] == [(d["index"], None) for d in devices]
        assert "works" in vkqueue("stats", "--socket", daemon.path).out
