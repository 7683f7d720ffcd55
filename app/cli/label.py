"""`megaboard label`: show or change the tags and the note of a run, and whether the list of runs hides it."""

import argparse

from app.cli.common import find_run, open_services
from app.cli.output import DONE, print_json, printable
from app.monitor.runs import labels as labels_json
from app.text import t
from backend.runs.records import RunLabels


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `label`."""
    parser.add_argument("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help=t(lang, "cli.label.tag.help"))
    parser.add_argument("--untag", action="append", default=[], metavar="TAG", help=t(lang, "cli.label.untag.help"))
    parser.add_argument("--note", metavar="TEXT", help=t(lang, "cli.label.note.help"))
    hidden = parser.add_mutually_exclusive_group()
    hidden.add_argument("--hide", dest="hidden", action="store_true", help=t(lang, "cli.label.hide.help"))
    hidden.add_argument("--unhide", dest="hidden", action="store_false", help=t(lang, "cli.label.unhide.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run, hidden=None)


def run(args: argparse.Namespace, lang: str) -> int:
    """Change the labels that the options name, and print the labels of the run."""
    with open_services() as services:
        run_id = find_run(services, args.run_id)
        with services.database.read() as reader:
            before = reader.snapshot(run_id, services.clock()).labels
        labels = RunLabels(
            tags=tuple(dict.fromkeys(tag for tag in (*before.tags, *args.tag) if tag not in args.untag)),
            note=before.note if args.note is None else args.note,
            is_hidden=before.is_hidden if args.hidden is None else args.hidden,
        )
        if labels != before:
            services.controller.set_labels(run_id, labels)
    if args.json:
        print_json({"run": run_id, **labels_json(labels)})
        return DONE
    print(t(lang, "cli.label.tags", tags=printable(", ".join(labels.tags)) or "-"))
    print(t(lang, "cli.label.note", note=printable(labels.note) or "-"))
    if labels.is_hidden:
        print(t(lang, "cli.label.hidden"))
    return DONE
