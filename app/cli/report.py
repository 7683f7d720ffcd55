"""`megaboard report`: write what others need to find out why a run failed, without secrets, addresses and names."""

import argparse
from pathlib import Path

from app.cli.common import find_run, open_services
from app.cli.output import DONE
from app.failure_report import failure_report
from app.text import t
from backend.job.problems import Problem, ProblemsError


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `report`."""
    parser.add_argument("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--to", type=Path, metavar="FILE", help=t(lang, "cli.report.to.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Write the report and print its path."""
    with open_services() as services:
        run_id = find_run(services, args.run_id)
        packed = failure_report(services, run_id)
    path: Path = args.to or Path(f"{run_id}.zip")
    try:
        path.write_bytes(packed)
    except OSError as error:
        raise ProblemsError([Problem(code="cannot_write", values={"path": path, "reason": error.strerror})]) from error
    print(t(lang, "cli.report.written", path=path))
    return DONE
