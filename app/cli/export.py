"""`megaboard export`: a Hugging Face model of what a run has saved, and how to serve it."""

import argparse
import sys

from app.cli.common import find_run, opened_services
from app.cli.output import DONE, print_problems, printable
from app.text import t
from app.text.exports import export_words


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    parser.add_argument("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--to", metavar="DIR", help=t(lang, "cli.export.to.help"))
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help=t(lang, "cli.export.checkpoint.help"))
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace, lang: str) -> int:
    """Export, with the converter's newest line as it works, then say where it is and how to serve it."""
    with opened_services() as services:
        run = find_run(services, args.run_id)
        made = services.controller.export(run, _tell, to=args.to, checkpoint=args.checkpoint)
    print_problems(lang, made.problems)
    print(export_words(made, lang))
    print(t(lang, "export.serve"))
    for command in made.serve:
        print(f"  {command}")
    return DONE


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
