"""A stored property is computed once, and a changed copy computes its own."""

from dataclasses import dataclass, replace

from backend.job.stored_property import stored_property


@dataclass(frozen=True)
class Square:
    side: int
    asked: list[int]

    @stored_property
    def area(self) -> int:
        """Return the area."""
        self.asked.append(self.side)
        return self.side**2


def test_it_is_computed_on_the_first_access_only() -> None:
    square = Square(3, [])
    assert square.asked == []
    assert (square.area, square.area, square.asked) == (9, 9, [3])


def test_a_copy_with_another_field_computes_its_own() -> None:
    square = Square(3, [])
    assert (square.area, replace(square, side=4).area) == (9, 16)


def test_it_is_no_part_of_equality() -> None:
    asked, other = Square(3, []), Square(3, [])
    assert asked.area == 9
    asked.asked.clear()
    assert asked == other
