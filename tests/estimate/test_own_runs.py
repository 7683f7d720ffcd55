"""Rows that benchmarks/gpu.py writes are taken by the benchmarks, with the estimate of their own job."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from backend.estimate import estimate
from backend.job.mapping import dump_mapping, parse_job, to_mapping
from backend.job.presets import intervals
from backend.job.problems import errors
from backend.job.rules import check
from benchmarks.gpu_grid import cases
from benchmarks.gpu_run import Bench, config_of, described, job_of, measured
from benchmarks.measured import measured_results
from benchmarks.own_runs import job_of_row
from benchmarks.shapes import DATA
from benchmarks.throughput import figures
from benchmarks.timed import timed_rows
from tests.e2e.engine_runs import EXTENSIONS

EIGHT = Bench(python=Path("/engine/bin/python"), folder=Path("/bench"), gpu="h100-80g", ranks=8)


def row(name: str, **values: Any) -> dict[str, Any]:
    """Return the row of a finished run of a case on eight H100."""
    case = next(case for case in cases(8, on_cpu=False) if case.name == name)
    job = job_of(EIGHT, case)
    return {**described(job, case, EIGHT), "job": dict(to_mapping(job)), "status": "done", **values}


@pytest.mark.parametrize(("ranks", "least"), [(1, 20), (8, 50)])
def test_every_case_of_the_grid_is_a_legal_job_that_is_estimated_to_fit_an_h100(ranks: int, least: int) -> None:
    bench = Bench(python=Path("/engine/bin/python"), folder=Path("/bench"), gpu="h100-80g", ranks=ranks)
    listed = cases(ranks, on_cpu=False)
    assert len({case.name for case in listed}) == len(listed) >= least
    for case in listed:
        job = job_of(bench, case)
        assert errors(check(job)) == [], case.name
        assert estimate(job).fit == "fits", case.name


def test_the_peaks_of_ten_runs_on_an_h200_are_estimated_as_the_docs_say() -> None:
    rows = json.loads((DATA / "own_h200.json").read_text())
    errors_of_peaks = [abs(estimate(job_of_row(row)).peak_gib / row["allocated_gib"] - 1) for row in rows]
    assert len(rows) == 10
    assert median(errors_of_peaks) < 0.02
    assert max(errors_of_peaks) < 0.1


def test_the_model_and_the_row_of_every_case_can_be_written_as_json() -> None:
    for case in cases(8, on_cpu=False):
        assert json.loads(json.dumps(config_of(case))) == config_of(case)
        assert json.loads(json.dumps(row(case.name)))["case"] == case.name


@pytest.mark.slow
def test_a_measured_peak_and_step_are_compared_with_the_estimate_of_the_job() -> None:
    name = "zero3-qwen3-8b-full"
    planned = estimate(job_of(EIGHT, next(case for case in cases(8, on_cpu=False) if case.name == name)))
    assert planned.iteration_s is not None
    half = planned.iteration_s / 2
    done = row(name, measured_mem_gb=2 * planned.reserved_gib, mem_kind="GiB reserved", measured_iter_s=half)
    (result,), skips = measured_results([done])
    assert (skips, result.error, result.family) == ([], pytest.approx(-0.5), "hugging_face")
    timed, skips = timed_rows([done])
    entry = figures(timed, skips)["own runs, h100-80g"]
    assert entry["median"] == pytest.approx(1.0), "the level of people's stacks is in the estimate"
    assert entry["covered_80"] == 0
    assert intervals().level["as_run"] > 1


def test_a_run_that_failed_is_skipped_with_its_reason() -> None:
    failed = row("ddp-qwen3-0.6b-full", status="failed: CUDA out of memory", measured_mem_gb=70.0)
    _, (skip,) = measured_results([failed])
    assert skip.reason == "run failed"


def test_the_rank_with_the_most_memory_and_the_median_step_after_the_first_three_are_kept() -> None:
    rank0 = [
        {"step": step, "step_s": 9.0 if step < 4 else 1.0 + step / 100, "reserved_gib": 20.0} for step in range(1, 9)
    ]
    rank1 = [{"step": step, "step_s": 5.0, "reserved_gib": 22.5, "allocated_gib": 21.0} for step in range(1, 9)]
    values = measured([rank0, rank1])
    assert (values["measured_mem_gb"], values["allocated_gib"], values["measured_iter_s"]) == (22.5, 21.0, 1.06)


@pytest.mark.slow
def test_the_program_lists_the_cases_of_a_machine() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--list", "--gpu", "cpu", "--ranks", "1"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert listed == [case.name for case in cases(1, on_cpu=True)]
    job, problems = parse_job(json.loads(json.dumps(row("ddp-qwen3-0.6b-full")["job"])))
    assert job is not None, problems
    assert dump_mapping(to_mapping(job))


def run_on_cpu(folder: Path, *options: str) -> dict[str, Any]:
    """Run one case with two processes and return its row."""
    output = folder / "rows.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--gpu", "cpu", "--ranks", "2", "--output", output]
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)}
    subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=True)
    (stored,) = json.loads(output.read_text())
    return dict(stored)


@pytest.mark.engines
def test_two_processes_train_with_zero3_from_the_files_of_the_run(tmp_path: Path) -> None:
    stored = run_on_cpu(tmp_path, "--only", "zero3-tiny")
    assert (stored["status"], stored["steps"]) == ("done", 15)
    assert stored["measured_iter_s"] > 0


@pytest.mark.engines
def test_a_run_that_takes_too_long_leaves_no_process(tmp_path: Path) -> None:
    stored = run_on_cpu(tmp_path, "--only", "ddp-tiny-full", "--limit", "4", "--folder", str(tmp_path))
    assert stored["status"] == "failed: no end within 4 s"
    assert processes_with(str(tmp_path)) == []


def processes_with(word: str) -> list[str]:
    """Return the command lines that hold a word."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # It has ended.
            commands.append(path.read_text())
    return [command for command in commands if word in command]
