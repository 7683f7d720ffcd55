"""The throughput benchmark: errors stay within their limits, skips depend only on arguments, and no row breaks it."""

import json
import statistics
from dataclasses import asdict

import pytest

from backend.estimate.time.efficiency import default_efficiency
from backend.job.presets import efficiency_figures
from benchmarks.fit import fit, halves, loss, single_node_rows
from benchmarks.shapes import DATA
from benchmarks.throughput import figures, kendall_tau
from benchmarks.timed import FIGURES, timed_rows

ROWS = json.loads((DATA / "published_throughput.json").read_text())["rows"]
DEEPEST = 16
"""Deeper pipelines take longer to schedule than a unit test may."""


SHALLOW = [row for row in ROWS if (row.get("pp") or 1) <= 2]


def rows_of(source, step=1):
    result = [row for row in ROWS if row["source"].startswith(source) and (row.get("pp") or 1) <= DEEPEST]
    return result[::step]


def errors(rows, families=("dense", "moe")):
    timed, skips = timed_rows(rows)
    assert not skips
    efficiency = default_efficiency()
    return [abs(row.seconds(efficiency) / row.measured_s - 1) for row in timed if row.family in families]


@pytest.mark.parametrize(
    ("source", "step", "limit"),
    [
        ("Megatron-LM README", 1, 0.052),
        ("MosaicML llm-foundry", 4, 0.12),
        ("Narayanan et al. SC21", 1, 0.08),
        ("Korthikanti", 1, 0.12),
        ("SimuMax v1.2 B200", 2, 0.08),
        ("Megatron-Bridge", 2, 0.12),
        ("vTrain measured multi-node", 2, 0.08),
        # Never fitted to: LoRA, QLoRA and full fine-tuning on Hugging Face's modules.
        ("Qwen fine-tuning", 1, 0.12),
        ("IBM fms-acceleration", 1, 0.15),
        ("ms-swift documentation", 1, 0.13),
        ("Hugging Face blog", 1, 0.13),
        ("Answer.AI", 1, 0.12),
    ],
)
def test_published_steps_are_within_what_was_promised(source, step, limit):
    assert statistics.median(errors(rows_of(source, step))) <= limit


def test_single_node_steps_are_within_what_was_promised():
    assert statistics.median(errors(single_node_rows()[::13])) <= 0.07


def test_flops_of_a_token_are_within_one_percent_of_what_megatron_bridge_counts():
    timed, _ = timed_rows(rows_of("Megatron-Bridge performance", 3))
    flops_errors = [row.flops_error for row in timed if row.flops_error is not None]
    assert len(flops_errors) >= 20
    assert statistics.median(flops_errors) < 0.01


def test_a_row_is_skipped_or_not_whatever_was_measured():
    rows = ROWS[::4]
    _, skips = timed_rows(rows)
    changed = [{**row, **{figure: 1.0 for figure in FIGURES if row.get(figure)}} for row in rows]
    _, again = timed_rows(changed)
    assert [skip.reason for skip in skips] == [skip.reason for skip in again]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "value"), list(enumerate([None, "x", -1, 0.5, float("nan"), []])))
def test_no_field_of_a_row_breaks_the_benchmark(number, value):
    picked = SHALLOW[number :: len(SHALLOW) // 2]
    check_every_row_counts([{**row, key: value} for row in picked for key in row if key not in FIGURES])


@pytest.mark.slow
def test_no_field_is_so_needed_that_a_row_without_it_breaks_the_benchmark():
    picked = SHALLOW[:: len(SHALLOW) // 3]
    check_every_row_counts([{name: row[name] for name in row if name != key} for row in picked for key in row])


def check_every_row_counts(rows):
    timed, skips = timed_rows(rows)
    assert len(timed) + len(skips) > len(rows) / 2
    assert all(skip.reason for skip in skips)
    assert figures(timed, skips)


def test_interleaving_with_too_few_micro_batches_is_skipped():
    row = {key: value for key, value in ROWS[0].items() if key not in ("dp", "cp")}
    timed, [skip] = timed_rows([{**row, "pp": 2, "vpp": 2, "gbs": 1, "gpus": 2, "tp": 1, "mbs": 1}])
    assert not timed
    assert "micro-batches" in skip.reason


def test_a_case_counts_once():
    timed, skips = timed_rows([ROWS[0], {**ROWS[0], "measured_iter_s": 9.0}])
    assert len(timed) == 1
    assert [skip.reason for skip in skips] == ["the same case again"]


def test_an_unknown_source_is_replayed_as_megatron():
    row = next(row for row in ROWS if "SimuMax" in row["source"])
    [timed], _ = timed_rows([{**row, "source": "someone's cluster"}])
    assert timed.source == "someone's cluster"
    assert timed.seconds(default_efficiency()) > 0


def test_a_row_with_activations_in_host_memory_is_refused():
    row = {**rows_of("Qwen fine-tuning")[0], "notes": "FSDP 2, activations offloaded"}
    timed, skips = timed_rows([row])
    assert not timed
    assert skips[0].reason == "activations in host memory"


def test_attention_of_a_row_is_fused_unless_its_notes_or_its_gpu_say_otherwise():
    row = {**rows_of("Qwen fine-tuning")[0], "notes": ""}
    edits = ({}, {"notes": "eager attention"}, {"hardware": "V100-32GB"})
    kinds = [timed_rows([row | edit])[0][0].time_context.plan.attention for edit in edits]
    assert kinds == ["fused", "scores", "scores"]


def test_no_group_of_plans_is_on_both_sides_of_the_fit():
    timed, _ = timed_rows([*ROWS[::2], *single_node_rows()[::40]])
    observed, held = halves(timed)
    assert not {row.group for row in observed} & {row.group for row in held}
    assert 0.3 < len(held) / len(timed) < 0.7


def test_the_figures_have_the_schema_of_the_memory_benchmark_and_more(monkeypatch):
    monkeypatch.setattr("benchmarks.throughput.fit_rows", lambda: timed_rows(rows_of("Megatron-LM README"))[0])
    timed, skips = timed_rows(rows_of("Megatron-LM README"))
    [entry] = figures(timed, skips).values()
    assert {"rows", "skipped", "mean", "median", "p90", "max", "baseline_median"} <= entry.keys()
    assert {"in_sample_median", "held_out_median", "left_out_median", "ranking"} <= entry.keys()
    assert entry["rows"] == 8


def test_kendall_tau_counts_pairs():
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1
    assert kendall_tau([1, 2, 3], [30, 20, 10]) == -1
    assert kendall_tau([1, 2, 3], [10, 30, 20]) == pytest.approx(1 / 3)


def test_there_are_at_most_twelve_constants_and_their_error_is_kept():
    stored = efficiency_figures()
    assert set(stored.constants) == set(asdict(default_efficiency()))
    assert len(stored.constants) <= 12
    assert 0 < stored.typical_error < 0.2
    assert 0 < stored.typical_error_of_experts < 0.2
    assert {"in_sample", "held_out"} <= stored.rows.keys()


@pytest.mark.parametrize("pipeline", [1, 2])
def test_constants_can_be_fitted_to_runs_with_any_number_of_stages(pipeline):
    rows, _ = timed_rows([row for row in single_node_rows() if row["pp"] == pipeline][::100])
    assert loss(fit(rows, start=default_efficiency()), rows) <= loss(default_efficiency(), rows)
