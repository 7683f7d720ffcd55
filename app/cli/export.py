"""`megaboard export`: export a run's checkpoint as a Hugging Face model, and print the commands that serve it."""

import argparse
import sys

from app.cli.common import find_run, open_services
from app.cli.output import DONE, print_problems, printable
from app.text import t
from app.text.exports import export_words


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `export`."""
    parser.add_argument("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--to", metavar="DIR", help=t(lang, "cli.export.to.help"))
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help=t(lang, "cli.export.checkpoint.help"))
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace, lang: str) -> int:
    """Export the model and show the converter's output. Then print its folder and the commands that serve it."""
    with open_services() as services:
        run = find_run(services, args.run_id)
        exported = services.controller.export(run, _show, to=args.to, checkpoint=args.checkpoint)
    print_problems(lang, exported.problems)
    print(export_words(exported, lang))
    print(t(lang, "export.serve"))
    for command in exported.serve:
        print(f"  {command}")
    return DONE


def _show(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
