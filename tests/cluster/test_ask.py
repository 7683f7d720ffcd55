"""The output of a node program is a complete answer, or none."""

import pytest

from backend.cluster.node import NodeError, Result, ask
from tests.fakes import FakeNode


@pytest.mark.parametrize("text", ['{"files": ["a', "{nonsense}", "{}{}", ""])
def test_an_answer_that_was_cut_is_no_answer(text: str) -> None:
    node = FakeNode("10.0.0.1").on(
        "look", reply=lambda argv, stdin: Result(code=137, out=f"{argv[-1]}{text}", err="Killed")
    )
    with pytest.raises(NodeError) as caught:
        ask(node, ["python", "-", "look"], timeout_s=1.0)
    assert (caught.value.code, caught.value.values["exit"], caught.value.values["detail"]) == (
        "bad_answer",
        137,
        "Killed",
    )


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 200_000, '{"a": NaN}', '{"a": ' + "1" * 5_000 + "}", '{"a": 1e999}'])
def test_an_answer_that_no_program_of_ours_gives_is_no_answer(text: str) -> None:
    node = FakeNode("10.0.0.1").on("look", reply=lambda argv, stdin: Result(code=0, out=f"{argv[-1]}{text}", err=""))
    with pytest.raises(NodeError) as caught:
        ask(node, ["python", "-", "look"], timeout_s=1.0)
    assert (caught.value.code, caught.value.node) == ("bad_answer", "10.0.0.1")
    assert len(str(caught.value)) < 1_000
