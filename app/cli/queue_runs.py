"""`megaboard queue`: list and reorder the queued runs, or queue an ended run again."""

import argparse
from typing import get_args

from app.cli.common import accepted_warnings, add_warnings_option, find_run, open_services, why_words
from app.cli.output import DONE, number, table
from app.text import t
from backend.runs.api import Move


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `queue`."""
    parser.add_argument("run_id", nargs="?", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("where", nargs="?", choices=get_args(Move), help=t(lang, "cli.queue.where.help"))
    add_warnings_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Queue an ended run again or move a queued one, if RUN is given. Then print the queue."""
    with open_services() as services:
        if args.run_id:
            run_id = find_run(services, args.run_id)
            if services.controller.snapshot(run_id).queue_place is None:
                services.controller.resume(run_id, queue=True, accepted_warnings=accepted_warnings(args))
            if args.where:
                services.controller.move(run_id, args.where)
        queued = {run.queue_place: run for run in services.controller.runs() if run.queue_place is not None}
        rows = [
            [number(place), run.id, number(run.nodes), run.engine, why_words(lang, run)]
            for place, run in sorted(queued.items())
        ]
        head = [t(lang, f"cli.status.{column}") for column in ("place", "run", "nodes", "engine", "why")]
        print(table(head, rows, left_columns={1, 4}) if rows else t(lang, "cli.queue.none"))
        return DONE
