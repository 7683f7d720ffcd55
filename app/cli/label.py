"""`megaboard label`: the tags and the note of a run, and whether the list hides it."""

import argparse
from dataclasses import replace

from app.cli.common import find_run, open_services
from app.cli.output import DONE, print_json
from app.text import t
from backend.runs.records import RunLabels


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `label`."""
    parser.add_argument("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    for option in ("tag", "untag"):
        parser.add_argument(
            f"--{option}", action="append", default=[], metavar="TAG", help=t(lang, f"cli.label.{option}.help")
        )
    parser.add_argument("--note", metavar="TEXT", help=t(lang, "cli.label.note.help"))
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--archive", action="store_true", help=t(lang, "cli.label.archive.help"))
    shown.add_argument("--unarchive", action="store_true", help=t(lang, "cli.label.unarchive.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Change what the options name, then print the labels."""
    with open_services() as services:
        run_id = find_run(services, args.run_id)
        before = next(one.labels for one in services.controller.runs() if one.id == run_id)
        labels = _changed(before, args)
        if labels != before:
            services.controller.set_labels(run_id, labels)
    if args.json:
        print_json({"run": run_id, "tags": list(labels.tags), "note": labels.note, "is_archived": labels.is_hidden})
        return DONE
    values = {"tags": ", ".join(labels.tags) or "-", "note": labels.note or "-"}
    print(t(lang, "cli.label.archived" if labels.is_hidden else "cli.label.shown", run=run_id, **values))
    return DONE


def _changed(before: RunLabels, args: argparse.Namespace) -> RunLabels:
    tags = dict.fromkeys(tag for tag in (*before.tags, *args.tag) if tag not in args.untag)
    return replace(
        before,
        tags=tuple(tags),
        note=before.note if args.note is None else args.note,
        is_hidden=args.archive or (before.is_hidden and not args.unarchive),
    )
