"""What the parity suite calls equal: noise passes, a wrong gradient, a wrong loss and NaN do not."""

import math
from typing import Any

import pytest

from benchmarks.parity.cases import CASES, PAIRS
from benchmarks.parity.page import DOCS, with_tables
from benchmarks.parity.verdicts import difference


def steps(loss: float = 6.0, norm: float = 3.0, tower: float = 0.5) -> list[dict[str, Any]]:
    return [{"step": 1, "loss": loss, "grad_norm": norm, "parts": {"language": 8.75, "tower": tower**2, "router": 0.0}}]


def test_noise_is_equal_and_a_part_without_gradient_is_left_out() -> None:
    result = difference(steps(loss=6.0001), steps())
    assert result.within("bf16")
    assert result.parts == {"language": 1.0, "tower": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [steps(loss=6.1), steps(norm=3.1), steps(tower=0.25), steps(loss=math.nan)],
    ids=["loss", "norm", "part", "NaN"],
)
def test_a_difference_beyond_noise_is_found(wrong: list[dict[str, Any]]) -> None:
    assert not difference(wrong, steps()).within("bf16")


def test_a_run_with_other_steps_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="other steps"):
        difference(steps(), steps() * 2)


def test_every_case_and_pair_has_its_reference() -> None:
    assert {case.reference for case in CASES.values()} <= CASES.keys()
    assert {name for pair in PAIRS for name in (pair.case, pair.reference)} <= CASES.keys()


@pytest.mark.parametrize("language", [0, 1])
def test_tables_are_written_between_their_marks_and_nothing_else_changes(language: int) -> None:
    text = (DOCS / f"parity.{('en', 'zh')[language]}.md").read_text(encoding="utf-8")
    name = next(iter(CASES))
    results = {key: {"steps": steps(), "error": ""} for key in (name, CASES[name].reference)}
    written = with_tables(text, results, language)
    assert written.count("| 6.0000 → 6.0000 |") == 2
    assert written.partition("<!-- pairs -->")[0] == text.partition("<!-- pairs -->")[0]
    assert with_tables(written, results, language) == written
