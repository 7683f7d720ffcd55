"""`megaboard delete`: delete an ended run from the database, and archive it first on request."""

import argparse
import sys
from pathlib import Path

from app.cli.common import find_run, open_services
from app.cli.output import DONE, WRONG_INPUT, print_json, printable, to_json_data
from app.services import Services
from app.text import t
from app.text.storage import folders_on_nodes, kind_words, size_words


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `delete`."""
    option = parser.add_argument
    option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--archive", nargs="?", type=Path, const=Path(), metavar="DIR", help=t(lang, "cli.delete.archive.help"))
    option("--yes", action="store_true", help=t(lang, "cli.delete.yes.help"))
    option("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Print which data is deleted and which files stay, ask for confirmation, and delete the run."""
    with open_services() as services:
        run = find_run(services, args.run_id)
        folder = _archive_folder(services, args.archive)
        services.retention.refuse_unless_over(run)
        print(_deletion_text(services, run, folder, lang), file=sys.stderr)
        if not args.yes and not _confirmed(lang):
            return WRONG_INPUT
        record = services.retention.delete(run, by="command", archive_to=folder)
    if args.json:
        print_json(to_json_data(record))
    else:
        rows = sum(record.row_counts.values())
        print(t(lang, "cli.delete.done", run=run, rows=f"{rows:,}"))
        if record.archive:
            print(t(lang, "cli.delete.archived", path=record.archive, sha256=record.sha256))
    return DONE


def _archive_folder(services: Services, option: Path | None) -> Path | None:
    if option is None:
        return None
    return services.retention.default_archive() if option == Path() else option.expanduser().absolute()


def _deletion_text(services: Services, run: str, folder: Path | None, lang: str) -> str:
    size = services.retention.run_size(run)
    lines = [t(lang, "cli.delete.goes", run=run, size=size_words(size.total))]
    lines += [f"  {line}" for line in kind_words(size.kinds, lang)]
    if folder is not None:
        lines.append(t(lang, "cli.delete.first", folder=folder))
    with services.database.read() as reader:
        files = folders_on_nodes(reader, run)
    lines += [t(lang, "cli.delete.stays"), *(f"  {printable(file)}" for file in files)]
    return "\n".join(lines)


def _confirmed(lang: str) -> bool:
    if not sys.stdin.isatty():
        print(t(lang, "cli.delete.needs_yes"), file=sys.stderr)
        return False
    print(t(lang, "cli.delete.sure"), end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes", "是")
