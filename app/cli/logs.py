"""`megaboard logs`: print the end of a node's log, of any attempt of a run."""

import argparse
import sys

from app.cli.common import find_run, open_services, updated_snapshot
from app.cli.output import DONE, FAILED, printable
from app.text import t
from backend.job.problems import Problem, ProblemsError
from backend.runs.records import RunSnapshot
from backend.runs.states import EventKind

LAUNCHER_LOG = "out.log"
LOG_KIB = 16


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `logs`."""
    option = parser.add_argument
    option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--attempt", type=int, metavar="N", help=t(lang, "cli.logs.attempt.help"))
    option("--node", type=int, metavar="RANK", help=t(lang, "cli.logs.node.help"))
    option("--file", help=t(lang, "cli.logs.file.help", file=LAUNCHER_LOG))
    option("--kib", type=int, default=LOG_KIB, help=t(lang, "cli.logs.kib.help", default=LOG_KIB))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Print the end of one log file of one node."""
    if args.kib < 1:
        raise ProblemsError([Problem(code="too_small", field="--kib", values={"value": args.kib, "limit": 1})])
    with open_services() as services:
        snapshot = updated_snapshot(services, find_run(services, args.run_id))
        attempt = _attempt(snapshot, args.attempt)
        node = _first_failed(snapshot, attempt) if args.node is None else args.node
        with services.database.read() as reader:
            files = reader.log_files(snapshot.id, attempt, node)
        file = args.file or next((name for name in sorted(files) if name.startswith("rank")), LAUNCHER_LOG)
        if file not in files:
            print(t(lang, "cli.logs.missing", node=node, file=file, files=files or "-"), file=sys.stderr)
            return FAILED
        print(printable(services.controller.log(snapshot.id, node, file, size=args.kib << 10, attempt=attempt)))
        return DONE


def _attempt(snapshot: RunSnapshot, requested: int | None) -> int:
    """Return the requested attempt, or the newest. Raises ProblemsError(unknown_attempt)."""
    if requested is None or 1 <= requested <= snapshot.attempt:
        return requested or snapshot.attempt
    values = {"run": snapshot.id, "attempt": requested, "newest": snapshot.attempt}
    raise ProblemsError([Problem(code="unknown_attempt", field="--attempt", values=values)])


def _first_failed(snapshot: RunSnapshot, attempt: int) -> int:
    """Return the rank of the node that failed first in an attempt; 0 if unknown."""
    if attempt < snapshot.attempt:
        failing = (EventKind.FAILING, EventKind.LOSING)
        ranks = (event.rank for event in snapshot.events if event.attempt == attempt and event.kind in failing)
        return next((rank for rank in ranks if rank is not None), 0)
    address = snapshot.cause.node if snapshot.cause else None
    return next((node.rank for node in snapshot.nodes if node.address == address), 0)
