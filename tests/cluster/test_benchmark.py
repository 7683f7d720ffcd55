"""The cluster's speeds from the figures of its ranks, and the slow rank, node or port."""

import pytest

from backend.cluster.benchmark import summarise
from backend.node.benchmark import rounds


def rows_of(nodes=4, per_node=2, **changes):
    """Return rows of equal ranks. A change is {(node, local rank): value} by the name of the figure."""
    rows = []
    for node in range(nodes):
        around = {(node + 1) % nodes, (node - 1) % nodes} - {node} if nodes > 2 else set()
        for local in range(per_node):
            row = {
                "rank": node * per_node + local,
                "node": node,
                "local_rank": local,
                "device": "NVIDIA H100 80GB HBM3",
                "precision": "bf16",
                "matmul_tflops": 700.0,
                "intra": {"1": 90.0, "256": 360.0} if per_node > 1 else {},
                "inter": {"1": 8.0, "64": 40.0, "256": 39.0} if nodes > 1 else {},
                "pairs": {str(other): 42.0 for other in around},
            }
            rows.append({**row, **{name: by[node, local] for name, by in changes.items() if (node, local) in by}})
    return rows


def test_the_speeds_are_the_best_over_sizes():
    result = summarise(rows_of())
    assert (result.matmul_tflops, result.intra_node_bus_gb_per_s, result.inter_node_bus_gb_per_s) == (
        700.0,
        360.0,
        40.0,
    )
    assert result.sizes == {"intra": {1: 90.0, 256: 360.0}, "inter": {1: 8.0, 64: 40.0, 256: 39.0}}
    assert result.slow == ()


def test_a_collective_is_as_fast_as_its_slowest_rank_saw_it():
    result = summarise(rows_of(intra={(n, 0): {"256": 355.0} for n in range(4)}))
    assert result.intra_node_bus_gb_per_s == 355.0


def test_one_rank_a_node_or_one_node_leave_what_cannot_be_measured_open():
    assert summarise(rows_of(per_node=1)).intra_node_bus_gb_per_s is None
    assert summarise(rows_of(nodes=1)).inter_node_bus_gb_per_s is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"matmul_tflops": {(2, 1): 500.0}}, ("product", 2, 1, 500.0, 700.0)),
        ({"intra": {(1, 0): {"256": 200.0}, (1, 1): {"256": 201.0}}}, ("intra", 1, None, 200.0, 360.0)),
        ({"inter": {(node, 1): {"256": 20.0} for node in range(4)}}, ("port", None, 1, 20.0, 30.0)),
    ],
)
def test_who_is_below_four_fifths_of_the_median_is_named(changes, expected):
    (slow,) = summarise(rows_of(**changes)).slow
    assert (slow.what, slow.node, slow.local_rank, slow.measured, slow.median) == expected


def test_a_slow_node_is_distinguished_from_its_neighbours_by_being_slow_with_both():
    slow_with_2 = {(1, i): {"0": 42.0, "2": 9.0} for i in range(2)} | {(3, i): {"2": 9.0, "0": 42.0} for i in range(2)}
    (slow,) = summarise(rows_of(pairs={**slow_with_2, (2, 0): {"1": 9.0, "3": 9.0}, (2, 1): {"1": 9.0, "3": 9.0}})).slow
    assert (slow.what, slow.node, slow.measured, slow.median) == ("network", 2, 18.0, 84.0)


def test_a_rank_that_is_little_behind_is_not_named():
    assert summarise(rows_of(matmul_tflops={(2, 1): 600.0})).slow == ()


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 33])
def test_every_node_meets_both_neighbours_and_one_at_a_time(nodes):
    schedule = rounds(nodes)
    assert sorted(pair for part in schedule for pair in part) == sorted((k, (k + 1) % nodes) for k in range(nodes))
    for part in schedule:
        busy = [node for pair in part for node in pair]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_nodes_cannot_tell_which_of_them_is_slow(nodes):
    assert rounds(nodes) == []
