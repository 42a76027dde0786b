"""A definition in numbers."""

from __future__ import annotations

from typing import Any

import pytest
from models.test_definition import config

from vkqueue.errors import InvalidError, TooLargeError
from vkqueue.models.definition import Definition
from vkqueue.models.instantiate import instantiate
from vkqueue.wire.messages import check


def made(batch: int = 3, seq: int = 16, weights: dict[str, int] | None = None, **changes: Any) -> dict[str, Any]:
    definition = Definition.from_map(config(**changes))
    return instantiate(definition, batch, {"seq": seq}, {"table": 5} if weights is None else weights)


def test_the_graph_of_a_shape() -> None:
    graph = made()
    assert graph == {
        "inputs": {"ids": 3 * 16 * 4, "lengths": 3 * 4},
        "outputs": {"out": 3 * 16 * 4 * 4},
        "temporaries": {"hidden": 3 * 16 * 16},
        "nodes": [
            {"fill": "hidden", "value": 7},
            {
                "kernel": "embed",
                "args": ["ids", "lengths", 5, ["hidden", 0, 3 * 16 * 16]],
                "scalars": {"rows": 48, "scale": 0.5},
                "grid": [1, 1],
                "specialization": {"width": 16},
            },
            {"copy": ["hidden", "out"]},
        ],
    }
    assert check("graph.create", graph) == graph


def test_each_shape_has_its_numbers() -> None:
    graph = made(8, 32)
    assert graph["nodes"][1]["grid"] == [4, 1]
    assert graph["temporaries"] == {"hidden": 8 * 32 * 16}


def test_a_weight_that_is_not_there() -> None:
    with pytest.raises(
        InvalidError, match=r"node\[1\]: weights.table: no weight is called 'table'; did you mean 'tabel'"
    ):
        made(weights={"tabel": 1})


def test_an_expression_without_a_value_names_its_node_and_shape() -> None:
    node = [{"kernel": "embed", "args": ["ids", "out"], "grid": ["batch * seq / 64"]}]
    with pytest.raises(InvalidError) as error:
        made(node=node)
    assert "node[0]: grid: expression 'batch * seq / 64'" in error.value.message
    assert "48 / 64 leaves a remainder" in error.value.message
    assert "seq = 16, batch = 3" in error.value.message
    node = [{"kernel": "embed", "args": ["ids", "out"], "grid": ["batch - 4"]}]
    with pytest.raises(InvalidError, match="'batch - 4' is -1 for seq = 16, batch = 3; it must be at least 0"):
        made(node=node)


def test_a_size_beyond_all_bounds() -> None:
    wide = [{"name": "out", "data_type": "TYPE_FP32", "dims": [2**30, 2**30]}]
    with pytest.raises(TooLargeError, match="'out' would have"):
        made(output=wide)
