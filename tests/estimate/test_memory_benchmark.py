"""The memory benchmark: errors stay within their limits, skips depend only on arguments, and each case counts once."""

import json
import math
from pathlib import Path

import pytest

from backend.estimate import accuracy_of
from backend.job.presets import accuracy, resolve_model
from benchmarks.errors import Result, Skip, by_group, summary
from benchmarks.golden import ABOVE_STATIC, PEAK, SMALL_PEAK, golden_results, replay, within_tolerance
from benchmarks.measured import measured_results
from benchmarks.shapes import DATA
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
        ("torchtitan Llama 3.1 benchmarks 2024-12", 5, "median", 0.05),
        ("ms-swift example script header", 41, "median", 0.07),
        ("QwenLM Qwen README", 33, "median", 0.05),
        ("fsdp_qlora benchmarks 2024-03", 17, "median", 0.12),
        ("IBM fms-acceleration benchmarks", 26, "max", 0.04),
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


def test_runs_with_experts_and_packs_of_pairs_on_megatron_are_within_ten_percent():
    results, _ = measured_results(MEASURED)
    megatron = [result for result in results if result.family == "megatron"]
    experts = [result for result in megatron if result.kind == "moe"]
    pairs = [result for result in megatron if "packing=true" in result.case and "rlhf_type=dpo" in result.case]
    assert (len(experts), len(pairs)) == (15, 3)
    assert max(abs(result.error) for result in (*experts, *pairs)) < 0.10


def test_megatrons_own_readings_are_covered_and_close(golden):
    results, skips, _ = golden
    assert len(GOLDEN) - len(skips) >= 400
    assert within_tolerance(results) >= 0.90
    result = summary(results, skips)
    assert result[PEAK]["median"] <= 0.06
    assert result[SMALL_PEAK]["median"] <= 0.03


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
    results = [Result(source="s", case=str(n), measured=1.0, ours=1 + n / 100, baseline=2.0) for n in range(11)]
    result = summary(results, [Skip(source="s", case="x", reason="why")])["s"]
    assert result["rows"] == 11
    assert result["skipped"] == {"why": 1}
    assert result["median"] == pytest.approx(0.05)
    assert result["p90"] == pytest.approx(0.09)
    assert result["max"] == pytest.approx(0.10)
    assert result["baseline_median"] == 1


def test_the_data_lies_in_the_project():
    assert Path(DATA).is_dir()


def test_the_page_quotes_the_errors_of_this_benchmark():
    results = [*measured_results(MEASURED)[0], *golden_results(GOLDEN)[0]]
    groups = by_group(results)
    assert set(accuracy()) == set(groups)
    for group, figures in groups.items():
        stored = accuracy()[group]
        assert (stored.rows, stored.median, stored.max) == pytest.approx(
            (figures["rows"], figures["median"], figures["max"]), abs=1e-4
        ), "run: python -m benchmarks.memory --write presets/accuracy.yaml"


@pytest.mark.parametrize(
    ("engine", "preset", "method", "group"),
    [
        ("llamafactory-megatron", "qwen3-8b", "full", "megatron-dense"),
        ("swift-megatron", "qwen3-30b-a3b", "full", "megatron-moe"),
        ("swift-megatron", "qwen3-30b-a3b", "lora", "megatron-lora"),
        ("llamafactory-ddp", "qwen3-8b", "qlora", "hugging_face-lora"),
        ("llamafactory-zero3", "qwen3-8b", "full", "hugging_face-dense"),
        # Too few runs of these kinds were published.
        ("llamafactory-megatron", "qwen3-vl-8b", "full", "megatron"),
        ("llamafactory-zero3", "qwen3-30b-a3b", "full", "hugging_face"),
    ],
)
def test_the_error_quoted_is_that_of_runs_like_the_job(engine, preset, method, group):
    tried = job(engine=engine, model__preset=preset, training__method=method)
    known = accuracy_of(tried, resolve_model(tried.model))
    assert known == accuracy()[group]
    assert known.rows >= 5


ODD = (None, "", "x", -1, 0, 1.5, 10**12, [], {}, [1], True, float("nan"), float("inf"))


@pytest.mark.parametrize(
    ("rows", "read"),
    [(GOLDEN[5], golden_results), (GOLDEN[200], golden_results), (MEASURED[0], measured_results),
     (next(row for row in MEASURED if "ms-swift" in row["source"]), measured_results)],
    ids=["dense", "experts", "SimuMax", "ms-swift"],
)  # fmt: skip
def test_a_row_with_odd_fields_is_a_result_or_a_skip_and_never_a_crash(rows, read):
    fields = [(row, key) for row in (rows, rows.get("args") or {}, rows.get("model_arch") or {}) for key in row]
    for owner, key in fields:
        changed = [{**owner, key: value} for value in ODD] + [{k: v for k, v in owner.items() if k != key}]
        if owner is rows.get("args"):
            changed = [{**rows, "args": item} for item in changed]
        elif owner is rows.get("model_arch"):
            changed = [{**rows, "model_arch": item} for item in changed]
        for item in changed:
            results, skips, *_ = read([item])
            assert all(math.isfinite(result.error) and math.isfinite(result.baseline) for result in results)
            assert all(skip.reason for skip in skips)


@pytest.mark.parametrize("read", [golden_results, measured_results])
def test_what_is_no_row_at_all_is_skipped(read):
    _, skips, *_ = read([None, [], "x", 3])
    assert len(skips) == 4


def test_releases_without_a_published_world_size_are_compared_without_their_optimizer(golden):
    results, skips, _ = golden
    above = [result for result in results if result.source == ABOVE_STATIC]
    assert len(above) == 7
    assert summary(results, skips)[ABOVE_STATIC]["median"] <= 0.07
    row = next(row for row in GOLDEN if row["case"].startswith("mixtral_8x22b"))
    results_, known = replay(row), replay({**row, "world": 128})
    assert results_.above_static_bytes == known.above_static_bytes
