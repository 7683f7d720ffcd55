"""The dataclasses of the formulas."""

from dataclasses import FrozenInstanceError

import pytest

from backend.estimate.frozen_dataclass import immutable_dataclass


def test_an_immutable_dataclass_refuses_changes() -> None:
    @immutable_dataclass
    class Result:
        seconds: float
        name: str = "step"

    result = Result(seconds=1.0)
    assert (result.seconds, result.name) == (1.0, "step")
    with pytest.raises(FrozenInstanceError):
        result.seconds = 2.0  # type: ignore[misc]
