"""`megaboard metrics`: show every number that a run logs, or write them as CSV."""

import argparse
import sys
from pathlib import Path
from typing import Any

from app.cli.common import find_run, open_services
from app.cli.output import DONE, number, print_json, printable, table
from app.metrics_csv import csv_lines
from app.monitor import metrics
from app.services import Services
from app.text import t
from backend.job.problems import Problem, ProblemsError

_COLUMNS = ("metric", "count", "step", "last", "lowest", "highest")


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `metrics`."""
    parser.add_argument("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--name", action="append", default=[], metavar="NAME", help=t(lang, "cli.metrics.name.help"))
    parser.add_argument("--csv", metavar="FILE", help=t(lang, "cli.metrics.csv.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Print the metrics of a run, or write all its numbers as CSV."""
    with open_services() as services:
        run_id = find_run(services, args.run_id)
        if args.csv:
            _write(services, run_id, args.csv, args.name)
            return DONE
        rows = [row for row in summaries(services, run_id) if not args.name or row["name"] in args.name]
    if args.json:
        print_json(rows)
    elif rows:
        head = [t(lang, f"cli.metrics.{column}") for column in _COLUMNS]
        print(table(head, [_cells(row) for row in rows], left_columns={0}))
    else:
        print(t(lang, "cli.metrics.none"))
    return DONE


def summaries(services: Services, run_id: str) -> list[dict[str, Any]]:
    """Return each metric of a run with its number of values, the newest one and the extremes, in the page's order."""
    with services.database.read() as reader:
        known = reader.metrics(run_id)
        answer = []
        for described in metrics.ordered(known):
            metric = known[described.name]
            extremes = reader.metric_extremes(metric)
            row = {"name": metric.name, "count": metric.count, "step": metric.last_step}
            row |= {"last": metric.last if metric.last - metric.last == 0 else None}
            row |= {"lowest": extremes and extremes.lowest, "highest": extremes and extremes.highest}
            answer.append({**row, "better": described.better})
    return answer


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [number(row[name]) for name in ("last", "lowest", "highest")]
    return [printable(row["name"]), str(row["count"]), str(row["step"]), *numbers]


def _write(services: Services, run_id: str, target: str, names: list[str]) -> None:
    parts = csv_lines(services.database, run_id, names)
    if target == "-":
        for part in parts:
            print(part, end="")
        sys.stdout.flush()
        return
    try:
        with Path(target).open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as error:
        values = {"path": target, "reason": error.strerror}
        raise ProblemsError([Problem(code="cannot_write", values=values)]) from error
