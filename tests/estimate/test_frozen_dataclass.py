"""The dataclasses of the formulas, and the functions that create them."""

from dataclasses import FrozenInstanceError, field

import pytest

from backend.estimate.frozen_dataclass import constructor, frozen_dataclass, immutable_dataclass


@frozen_dataclass
class Sizes:
    tensor: int
    data: int = 2
    ranks: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", self.tensor * self.data)


new_sizes = constructor(Sizes)


def test_a_constructor_does_what_the_class_does() -> None:
    assert new_sizes(tensor=4) == Sizes(tensor=4)
    assert new_sizes(data=3, tensor=4) == Sizes(data=3, tensor=4)
    assert new_sizes(tensor=4).ranks == 8
    assert type(new_sizes(tensor=4)) is Sizes


@pytest.mark.parametrize("arguments", [{}, {"tensor": 1, "pipeline": 2}, {"tensor": 1, "ranks": 2}])
def test_a_constructor_refuses_missing_and_unknown_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        new_sizes(**arguments)


def test_an_immutable_dataclass_refuses_changes() -> None:
    @immutable_dataclass
    class Result:
        seconds: float
        name: str = "step"

    result = Result(seconds=1.0)
    assert (result.seconds, result.name) == (1.0, "step")
    with pytest.raises(FrozenInstanceError):
        result.seconds = 2.0  # type: ignore[misc]
