"""The memory benchmark: errors stay within what was promised, skips come from arguments alone, cases count once."""

import json
from pathlib import Path

import pytest

from backend.estimate import accuracy_of
from backend.job.presets import accuracy
from benchmarks.golden import PEAK, SMALL_PEAK, golden_results, replay, within_tolerance
from benchmarks.measured import measured_results
from benchmarks.shapes import DATA
from benchmarks.statistics import Result, Skip, by_family, summary
from tests.estimate.cases import job

GOLDEN = json.loads((DATA / "megatron_golden.json").read_text())
MEASURED = json.loads((DATA / "published_memory.json").read_text())["rows"]


@pytest.fixture(scope="module")
def measured():
    results, skips = measured_results(MEASURED)
    return summary(results, skips)


@pytest.fixture(scope="module")
def golden():
    return golden_results(GOLDEN)


@pytest.mark.parametrize(
    ("source", "rows", "figure", "limit"),
    [
        ("SimuMax v1.2 B200 release summary", 19, "max", 0.0075),
        ("Megatron-Bridge", 4, "median", 0.06),
        ("torchtitan Llama 3.1 benchmarks 2024-12", 5, "median", 0.10),
        ("ms-swift example script header", 30, "median", 0.12),
    ],
)
def test_published_rows_are_within_what_was_promised(measured, source, rows, figure, limit):
    assert measured[source]["rows"] >= rows
    assert measured[source][figure] <= limit


def test_qwen3_30b_on_16_h100_is_within_three_percent():
    results, _ = measured_results(MEASURED)
    [row] = [result for result in results if result.source == "Megatron-Bridge" and "Qwen3-30B-A3B" in result.case]
    assert row.measured == 62.166
    assert abs(row.error) < 0.03


def test_megatrons_own_readings_are_covered_and_close(golden):
    results, skips, _ = golden
    assert len(GOLDEN) - len(skips) >= 380
    assert within_tolerance(results) >= 0.90
    found = summary(results, skips)
    assert found[PEAK]["median"] <= 0.06
    assert found[SMALL_PEAK]["median"] <= 0.03


def test_a_golden_row_is_skipped_or_not_whatever_was_measured():
    for row in GOLDEN[::7]:
        changed = {**row, "mem_allocated_bytes": 1, "mem_max_allocated_bytes": 2}
        assert isinstance(replay(row), Skip) == isinstance(replay(changed), Skip)


def test_a_measured_row_is_skipped_or_not_whatever_was_measured():
    _, skips = measured_results(MEASURED)
    _, again = measured_results([{**row, "measured_mem_gb": 1.0} for row in MEASURED])
    assert [skip.reason for skip in skips] == [skip.reason for skip in again]


def test_a_case_counts_once():
    results, skips = measured_results([MEASURED[0], {**MEASURED[0], "gbs": 64}])
    assert [result.source for result in results].count(MEASURED[0]["source"]) == 1
    assert [skip.reason for skip in skips] == ["the same case again"]


def test_the_summary_has_the_figures_of_each_source():
    made = [Result(source="s", case=str(n), measured=1.0, ours=1 + n / 100, baseline=2.0) for n in range(11)]
    found = summary(made, [Skip(source="s", case="x", reason="why")])["s"]
    assert found["rows"] == 11
    assert found["skipped"] == {"why": 1}
    assert found["median"] == pytest.approx(0.05)
    assert found["p90"] == pytest.approx(0.09)
    assert found["max"] == pytest.approx(0.10)
    assert found["baseline_median"] == 1


def test_the_data_lies_in_the_project():
    assert Path(DATA).is_dir()


def test_the_page_quotes_the_errors_of_this_benchmark():
    results = [*measured_results(MEASURED)[0], *golden_results(GOLDEN)[0]]
    for family, figures in by_family(results).items():
        kept = accuracy()[family]
        assert (kept.rows, kept.median, kept.max) == pytest.approx(
            (figures["rows"], figures["median"], figures["max"]), abs=1e-4
        ), "run: python -m benchmarks.memory --write presets/accuracy.yaml"
    assert accuracy_of(job()) == accuracy()["megatron"]
    assert accuracy_of(job(engine="llamafactory-zero3")) == accuracy()["hugging_face"]
