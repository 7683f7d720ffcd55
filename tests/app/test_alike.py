"""Problems of several nodes as one."""

from app.text.alike import as_one, by_likeness
from backend.job.problems import Problem


def on(node: str | None, **values: object) -> Problem:
    return Problem(code="clock_off", field=f"cluster.hosts[{node}].address", node=node, values={"node": node, **values})


def test_problems_that_differ_only_in_their_node_are_one_that_names_all_nodes() -> None:
    lists = by_likeness([on("1", seconds=3, address="n1"), on("2", seconds=4), on("3", seconds=3, address="n3")])
    assert [[problem.node for problem in alike] for alike in lists] == [["1", "3"], ["2"]]
    assert [as_one(alike).values["node"] for alike in lists] == ["1, 3", "2"]
    assert as_one(lists[0]).values["address"] == "n1, n3"


def test_the_same_fault_of_two_fields_stays_two_problems() -> None:
    missing = [Problem(code="required", field=field) for field in ("model.path", "training.dataset")]
    assert by_likeness(missing) == [[missing[0]], [missing[1]]]
