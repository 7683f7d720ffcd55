"""`megaboard storage`: the size of the database, the rules of retention, and how to free space."""

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from app.cli.common import opened_services
from app.cli.output import DONE, plain, print_json, table
from app.services import Services
from app.text import t
from app.text.storage import size_words
from backend.runs.retention import Rules

NEVER = "never"
_FILES = ("database", "reusable", "spare", "archives", "flight_records", "disk_free")


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `storage`."""
    option = parser.add_argument
    for one in ("raw", "run"):
        # SUPPRESS: None stands for "never"
        option(
            f"--{one}-days",
            type=_days,
            default=argparse.SUPPRESS,
            metavar=f"N|{NEVER}",
            help=t(lang, f"cli.storage.{one}_days.help"),
        )
    option("--archive-first", choices=("yes", "no"), help=t(lang, "cli.storage.archive_first.help"))
    option("--apply", action="store_true", help=t(lang, "cli.storage.apply.help"))
    option("--compact", action="store_true", help=t(lang, "cli.storage.compact.help"))
    option("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Set the rules, apply them and compact the database as asked; then print the sizes."""
    with opened_services() as services:
        rules = services.retention.rules()
        wanted = _wanted(args, rules)
        if wanted != rules:
            services.retention.set_rules(wanted)
        if args.apply:
            thinned, deleted = services.retention.apply_rules()
            print(t(lang, "cli.storage.applied", thinned=thinned, deleted=deleted), file=sys.stderr)
        if args.compact:
            services.retention.compact()
        if args.json:
            print_json(_as_json(services))
        else:
            _print(services, lang)
    return DONE


def _days(text: str) -> int | None:
    return None if text == NEVER else int(text)


def _wanted(args: argparse.Namespace, rules: Rules) -> Rules:
    """The rules, changed by the options that were given."""
    changes: dict[str, Any] = {}
    for name in ("raw_days", "run_days"):
        if name in args:
            changes[name] = getattr(args, name)
    if args.archive_first:
        changes["archive"] = args.archive_first == "yes"
    return replace(rules, **changes)


def _as_json(services: Services) -> dict[str, Any]:
    retention = services.retention
    runs = [{**plain(one), "total": one.total} for one in retention.run_sizes()]
    found = plain(retention.storage())
    return {
        **found,
        "rules": asdict(retention.rules()),
        "runs": runs,
        "deleted": [plain(one) for one in retention.deleted()],
    }


def _print(services: Services, lang: str) -> None:
    found, rules = services.retention.storage(), services.retention.rules()
    rows = [[t(lang, f"monitor.storage.{name}"), size_words(getattr(found, name))] for name in _FILES]
    growth = found.growth_per_day
    told = t(lang, "monitor.storage.growth.unknown")
    if growth is not None:
        told = t(lang, "monitor.storage.growth.of", size=size_words(growth), hours=f"{found.growth_over_s / 3600:.1f}")
    rows.append([t(lang, "monitor.storage.growth"), told])
    for name in ("raw_days", "run_days"):
        days = getattr(rules, name)
        rows.append([t(lang, f"cli.storage.{name}"), t(lang, "cli.storage.never") if days is None else str(days)])
    if rules.run_days is not None:
        rows.append([t(lang, "cli.storage.archive_first"), t(lang, f"cli.storage.{'yes' if rules.archive else 'no'}")])
    print(table([t(lang, "monitor.storage"), ""], rows))
    runs = services.retention.run_sizes()
    if runs:
        kinds = ("curves", "other_ranks", "logs")
        head = [t(lang, "cli.status.run"), t(lang, "monitor.storage.total")]
        head += [t(lang, f"monitor.storage.kind.{kind}") for kind in kinds]
        sizes = [
            [one.run, *(size_words(size) for size in (one.total, *(one.kinds[kind] for kind in kinds)))] for one in runs
        ]
        print(f"\n{t(lang, 'monitor.storage.estimated')}\n{table(head, sizes)}")
