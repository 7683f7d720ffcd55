"""`megaboard logs`: what a node's processes have written, of any attempt of a run."""

import argparse
import sys

from app.cli.common import find_run, fresh, opened_services
from app.cli.output import DONE, FAILED, printable
from app.text import t
from backend.job.problems import Problem, ProblemsError
from backend.runs.records import RunSnapshot
from backend.runs.states import EventKind

LAUNCHER_LOG = "out.log"
LOG_KIB = 16


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `logs`."""
    option = parser.add_argument
    option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--attempt", type=int, metavar="N", help=t(lang, "cli.logs.attempt.help"))
    option("--node", type=int, metavar="RANK", help=t(lang, "cli.logs.node.help"))
    option("--file", help=t(lang, "cli.logs.file.help", file=LAUNCHER_LOG))
    option("--kib", type=int, default=LOG_KIB, help=t(lang, "cli.logs.kib.help", default=LOG_KIB))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """The end of one log of one node, in the newest attempt or in an older one."""
    if args.kib < 1:
        raise ProblemsError([Problem(code="too_small", field="--kib", values={"value": args.kib, "limit": 1})])
    with opened_services() as services:
        snapshot = fresh(services, find_run(services, args.run_id))
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


def _attempt(snapshot: RunSnapshot, asked: int | None) -> int:
    """The attempt that is meant. ProblemsError where there is no such one."""
    if asked is None or 1 <= asked <= snapshot.attempt:
        return snapshot.attempt if asked is None else asked
    values = {"run": snapshot.id, "attempt": asked, "newest": snapshot.attempt}
    raise ProblemsError([Problem(code="unknown_attempt", field="--attempt", values=values)])


def _first_failed(snapshot: RunSnapshot, attempt: int) -> int:
    """The node that an attempt failed by; 0 where that is not known."""
    if attempt < snapshot.attempt:
        failing = (EventKind.FAILING, EventKind.LOSING)
        found = (one.rank for one in snapshot.events if one.attempt == attempt and one.kind in failing)
        return next((rank for rank in found if rank is not None), 0)
    node = snapshot.cause.node if snapshot.cause else None
    return next((one.rank for one in snapshot.nodes if one.address == node), 0)
