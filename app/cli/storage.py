"""`megaboard storage`: show the size of stored data, set the retention rules, and free space."""

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from app.cli.common import open_services
from app.cli.output import DONE, print_json, table, to_json_data
from app.services import Services
from app.text import t
from app.text.storage import size_words
from backend.runs.retention import Rules

NEVER = "never"
_FILES = ("database", "reusable", "spare", "archives", "flight_records", "disk_free")


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `storage`."""
    option = parser.add_argument
    for data in ("raw", "run"):
        # SUPPRESS, because None means "never" here.
        option(
            f"--{data}-days",
            type=_days,
            default=argparse.SUPPRESS,
            metavar=f"N|{NEVER}",
            help=t(lang, f"cli.storage.{data}_days.help"),
        )
    option("--archive-first", choices=("yes", "no"), help=t(lang, "cli.storage.archive_first.help"))
    option("--apply", action="store_true", help=t(lang, "cli.storage.apply.help"))
    option("--compact", action="store_true", help=t(lang, "cli.storage.compact.help"))
    option("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Set the rules, apply them and compact the database, as the options request. Then print the sizes."""
    with open_services() as services:
        rules = services.retention.rules()
        new_rules = _changed(rules, args)
        if new_rules != rules:
            services.retention.set_rules(new_rules)
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


def _changed(rules: Rules, args: argparse.Namespace) -> Rules:
    """Return the rules with the changes that the options request."""
    changes: dict[str, Any] = {}
    for name in ("raw_days", "run_days"):
        if name in args:
            changes[name] = getattr(args, name)
    if args.archive_first:
        changes["archive"] = args.archive_first == "yes"
    return replace(rules, **changes)


def _as_json(services: Services) -> dict[str, Any]:
    retention = services.retention
    return {
        **to_json_data(retention.storage()),
        "rules": asdict(retention.rules()),
        "runs": [{**to_json_data(run), "total": run.total} for run in retention.run_sizes()],
        "deleted": [to_json_data(run) for run in retention.deleted()],
    }


def _print(services: Services, lang: str) -> None:
    sizes, rules = services.retention.storage(), services.retention.rules()
    rows = [[t(lang, f"monitor.storage.{name}"), size_words(getattr(sizes, name))] for name in _FILES]
    growth = sizes.growth_per_day
    growth_text = t(lang, "monitor.storage.growth.unknown")
    if growth is not None:
        hours = f"{sizes.growth_over_s / 3600:.1f}"
        growth_text = t(lang, "monitor.storage.growth.of", size=size_words(growth), hours=hours)
    rows.append([t(lang, "monitor.storage.growth"), growth_text])
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
        rows = [
            [run.run, *(size_words(size) for size in (run.total, *(run.kinds[kind] for kind in kinds)))] for run in runs
        ]
        print(f"\n{t(lang, 'monitor.storage.estimated')}\n{table(head, rows)}")
