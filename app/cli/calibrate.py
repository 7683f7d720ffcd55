"""`megaboard probe` and `megaboard calibrate`: what the cluster's own machines and runs say about its estimates."""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from app.calibration import KEY, as_mapping, cluster_of, keep_in_cluster, read_calibration, today
from app.cli.common import find_run, fresh, opened_services
from app.cli.host_keys import accepted, add_host_key_option, print_host_keys
from app.cli.output import DONE, FAILED, number, print_json, print_problems, table
from app.home import home_path, named_cluster
from app.jobfile import read_job, refuse_errors
from app.services import Services
from app.text import render_problem, t
from backend.cluster.benchmark import Speeds
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.launch_rules import check_nodes
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Measurement, RunMeasured, calibration_of_benchmark, calibration_of_run


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    option = parser.add_argument
    if name == "probe":
        option("file", metavar="FILE", help=t(lang, "cli.file.help"))
        add_host_key_option(parser, lang)
    else:
        option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--keep", metavar="CLUSTER", nargs="?", const="", help=t(lang, "cli.keep.help"))
    option("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run_probe if name == "probe" else run_calibrate)


def run_probe(args: argparse.Namespace, lang: str) -> int:
    """Measure the nodes' speed; it is kept with a named cluster where --keep says so, else shown as YAML."""
    job, problems = read_job(args.file, home_path())
    refuse_errors([*problems, *check_nodes(job)])
    with opened_services() as services:
        name = None if args.keep is None else _target(services, args.keep, job)
        found = accepted(services, services.controller.measure_speed, job, args.accept_host_key, lang)
        if found.speeds is None:
            return _ask_for_keys(found, args, lang)
        calibration = calibration_of_benchmark(job, found.speeds, today(services.clock()))
        if not args.json:
            print(speeds_text(found.speeds, job, lang))
        figures = {"speeds": dataclasses.asdict(found.speeds)}
        return _keep(services, name, calibration, found, figures if args.json else None, lang)


def run_calibrate(args: argparse.Namespace, lang: str) -> int:
    """What a run measured beside what was predicted; kept with a named cluster where --keep says so."""
    with opened_services() as services:
        run = find_run(services, args.run_id)
        fresh(services, run)
        job, _ = services.controller.measured(run)
        name = None if args.keep is None else _target(services, args.keep, job)
        known = read_calibration(named_cluster(services.home, name)[1]) if name else None
        job, found = services.controller.measured(run, known)
        if not found.is_useful:
            raise ProblemsError(found.problems)
        calibration = calibration_of_run(job, found, today(services.clock()))
        if not args.json:
            print(measured_text(found, lang))
        figures = {item.name: getattr(found, item.name) for item in dataclasses.fields(found)}
        return _keep(services, name, calibration, found, figures if args.json else None, lang)


def speeds_text(speeds: Speeds, job: Job, lang: str) -> str:
    """The speeds as lines for a terminal: product, bandwidths, and these by size."""
    values = {"device": speeds.device, "precision": speeds.precision, "tflops": number(speeds.matmul_tflops, 3)}
    lines = [t(lang, "cli.probe.product", ranks=job.world_size, **values)]
    for name, best in (("intra", speeds.intra_node_bus_gb_per_s), ("inter", speeds.inter_node_bus_gb_per_s)):
        if best is not None:
            lines.append(t(lang, f"cli.probe.{name}", best=number(best)))
    sizes = sorted({size for by_size in speeds.sizes.values() for size in by_size})
    if sizes:
        head = [t(lang, "cli.probe.size"), t(lang, "cli.probe.intra.short"), t(lang, "cli.probe.inter.short")]
        rows = [
            [f"{size} MiB", *(number(speeds.sizes[name].get(size)) for name in ("intra", "inter"))] for size in sizes
        ]
        lines.append(table(head, rows))
    return "\n".join(lines)


def measured_text(found: RunMeasured, lang: str) -> str:
    """Measured beside predicted, and the ratios."""
    lines = [t(lang, "cli.calibrate.title", run=found.run, steps=found.steps)]
    if found.step_s is not None and found.predicted_step_s is not None:
        values = {"predicted": number(found.predicted_step_s, 3), "measured": number(found.step_s, 3)}
        lines.append(t(lang, "cli.calibrate.time", **values))
    if found.reserved_gib is not None:
        values = {"predicted": number(found.predicted_reserved_gib), "measured": number(found.reserved_gib)}
        lines.append(t(lang, "cli.calibrate.memory", **values))
    if found.time_ratio is not None:
        lines.append(t(lang, "cli.calibrate.time_ratio", ratio=number(found.time_ratio, 3)))
    if found.memory_ratio is not None:
        lines.append(t(lang, "cli.calibrate.memory_ratio", ratio=number(found.memory_ratio, 3)))
    return "\n".join(lines)


def _target(services: Services, given: str, job: Job) -> str:
    """The named cluster that is meant: the one that was given, or the only one with the job's hosts."""
    name = given or cluster_of(services.home, job)
    if name is None:
        raise ProblemsError([Problem(code="no_cluster_of_hosts", field="--keep")])
    named_cluster(services.home, name)
    return name


def _keep(
    services: Services,
    name: str | None,
    calibration: Calibration,
    found: Measurement | RunMeasured,
    figures: Mapping[str, Any] | None,
    lang: str,
) -> int:
    """Keep it where a cluster is named, then tell what came of it: as JSON with the figures, where there are such.

    What was measured is told, too, when it cannot be kept.
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
        problems = [render_problem(lang, one) for one in (*found.problems, *refused)]
        print_json({**figures, KEY: as_mapping(calibration), "kept_in": name if path else None, "problems": problems})
        print_problems(lang, refused)
    else:
        print_problems(lang, (*found.problems, *refused))
        print(t(lang, "cli.kept", cluster=name, path=path) if path else t(lang, "cli.not_kept"))
        if path is None:
            print(yaml.safe_dump({KEY: as_mapping(calibration)}, sort_keys=False), end="")
    return FAILED if refused else DONE


def _ask_for_keys(found: Measurement, args: argparse.Namespace, lang: str) -> int:
    if args.json:
        print_json({"problems": [render_problem(lang, one) for one in found.problems]})
        return FAILED
    print_problems(lang, found.problems)
    print_host_keys(found.unknown_host_keys, lang)
    return FAILED
