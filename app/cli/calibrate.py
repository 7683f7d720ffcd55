"""`megaboard benchmark` and `megaboard calibrate`: correct estimates by measurements of the cluster or of a run."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from app.calibration import KEY, as_mapping, find_cluster, keep_in_cluster, read_calibration, today
from app.cli.common import find_run, open_services, updated_snapshot
from app.cli.host_keys import add_host_key_option, ask_with_keys, print_host_keys
from app.cli.output import DONE, FAILED, number, print_json, print_problems, table
from app.home import home_path, named_cluster
from app.jobfile import read_job, refuse_errors
from app.services import Services
from app.text import render_problem, t
from app.text.intervals import range_words
from backend.cluster.benchmark import Speeds
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.launch_rules import check_nodes
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Measurement, RunMeasured, calibration_of_benchmark, calibration_of_run


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `benchmark` or `calibrate`."""
    option = parser.add_argument
    if name == "benchmark":
        option("file", metavar="FILE", help=t(lang, "cli.file.help"))
        add_host_key_option(parser, lang)
    else:
        option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--keep", metavar="CLUSTER", nargs="?", const="", help=t(lang, "cli.keep.help"))
    option("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run_benchmark if name == "benchmark" else run_calibrate)


def run_benchmark(args: argparse.Namespace, lang: str) -> int:
    """Measure the speed of the nodes. Save it in a named cluster with --keep, or print it as YAML."""
    job, problems = read_job(args.file, home_path())
    refuse_errors([*problems, *check_nodes(job)])
    with open_services() as services:
        name = None if args.keep is None else _cluster_name(services, args.keep, job)
        measured = ask_with_keys(services, services.controller.tasks.measure_speed, job, args.accept_host_key, lang)
        if measured.speeds is None:
            return _print_unknown_keys(measured, args, lang)
        calibration = calibration_of_benchmark(job, measured.speeds, today(services.clock()))
        if not args.json:
            print(speeds_text(measured.speeds, job, lang))
        figures = {"speeds": dataclasses.asdict(measured.speeds)}
        return _save(services, name, calibration, measured.problems, figures if args.json else None, lang)


def run_calibrate(args: argparse.Namespace, lang: str) -> int:
    """Compare a run with its estimate. Save the ratios in a named cluster with --keep, or print them as YAML."""
    with open_services() as services:
        run = find_run(services, args.run_id)
        updated_snapshot(services, run)
        job, _ = services.controller.measured(run)
        name = None if args.keep is None else _cluster_name(services, args.keep, job)
        current = read_calibration(named_cluster(services.home, name)[1]) if name else None
        job, measured = services.controller.measured(run, current)
        if not measured.is_useful:
            raise ProblemsError(measured.problems)
        calibration = calibration_of_run(job, measured, today(services.clock()))
        if not args.json:
            print(measured_text(measured, lang))
        figures = {field.name: getattr(measured, field.name) for field in dataclasses.fields(measured)}
        return _save(services, name, calibration, measured.problems, figures if args.json else None, lang)


def speeds_text(speeds: Speeds, job: Job, lang: str) -> str:
    """Return the speeds as text: TFLOP/s, bus bandwidths, and a table of bandwidths by message size."""
    values = {"device": speeds.device, "precision": speeds.precision, "tflops": number(speeds.matmul_tflops, 3)}
    lines = [t(lang, "cli.benchmark.product", ranks=job.world_size, **values)]
    for name, best in (("intra", speeds.intra_node_bus_gb_per_s), ("inter", speeds.inter_node_bus_gb_per_s)):
        if best is not None:
            lines.append(t(lang, f"cli.benchmark.{name}", best=number(best)))
    sizes = sorted({size for by_size in speeds.sizes.values() for size in by_size})
    if sizes:
        head = [
            t(lang, "cli.benchmark.size"),
            t(lang, "cli.benchmark.intra.short"),
            t(lang, "cli.benchmark.inter.short"),
        ]
        rows = [
            [f"{size} MiB", *(number(speeds.sizes[name].get(size)) for name in ("intra", "inter"))] for size in sizes
        ]
        lines.append(table(head, rows))
    return "\n".join(lines)


def measured_text(measured: RunMeasured, lang: str) -> str:
    """Return the measured and the predicted values, and their ratios, as text."""
    lines = [t(lang, "cli.calibrate.title", run=measured.run, steps=measured.steps)]
    if measured.step_s is not None and measured.predicted_step_s is not None:
        predicted = range_words(measured.predicted_step_s_low, measured.predicted_step_s_high, lang)
        values = {"predicted": predicted, "measured": number(measured.step_s, 3)}
        lines.append(t(lang, "cli.calibrate.time", **values))
    if measured.reserved_gib is not None:
        low, high = measured.predicted_reserved_gib_low, measured.predicted_reserved_gib_high
        predicted = number(measured.predicted_reserved_gib) if low is None else range_words(low, high, lang)
        values = {"predicted": predicted, "measured": number(measured.reserved_gib)}
        lines.append(t(lang, "cli.calibrate.memory", **values))
    if measured.time_ratio is not None:
        lines.append(t(lang, "cli.calibrate.time_ratio", ratio=number(measured.time_ratio, 3)))
    if measured.memory_ratio is not None:
        lines.append(t(lang, "cli.calibrate.memory_ratio", ratio=number(measured.memory_ratio, 3)))
    return "\n".join(lines)


def _cluster_name(services: Services, option: str, job: Job) -> str:
    """Return the cluster that --keep names, or else the only named cluster with the job's hosts.

    Raises ProblemsError.
    """
    name = option or find_cluster(services.home, job)
    if name is None:
        raise ProblemsError([Problem(code="no_cluster_of_hosts", field="--keep")])
    named_cluster(services.home, name)
    return name


def _save(
    services: Services,
    name: str | None,
    calibration: Calibration,
    problems: Sequence[Problem],
    figures: Mapping[str, Any] | None,
    lang: str,
) -> int:
    """Save the calibration in the cluster `name`, if any, and print the result: as JSON if there are `figures`.

    The calibration is printed even if it cannot be saved.
    """
    path: Path | None = None
    refused: tuple[Problem, ...] = ()
    if name is not None:
        try:
            services.audit.record("calibrate", cluster=name, **as_mapping(calibration))
            path = keep_in_cluster(services.home, name, calibration)
        except ProblemsError as error:
            refused = error.problems
    if figures is not None:
        rendered = [render_problem(lang, problem) for problem in (*problems, *refused)]
        print_json({**figures, KEY: as_mapping(calibration), "kept_in": name if path else None, "problems": rendered})
        print_problems(lang, refused)
    else:
        print_problems(lang, (*problems, *refused))
        print(t(lang, "cli.kept", cluster=name, path=path) if path else t(lang, "cli.not_kept"))
        if path is None:
            print(yaml.safe_dump({KEY: as_mapping(calibration)}, sort_keys=False), end="")
    return FAILED if refused else DONE


def _print_unknown_keys(measured: Measurement, args: argparse.Namespace, lang: str) -> int:
    if args.json:
        print_json({"problems": [render_problem(lang, problem) for problem in measured.problems]})
        return FAILED
    print_problems(lang, measured.problems)
    print_host_keys(measured.unknown_host_keys, lang)
    return FAILED
