"""`megaboard render`: the files that launch a job without Megaboard, in a folder where nothing else's are touched."""

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.cli.output import DONE, print_problems
from app.home import home_path
from app.jobfile import read_job
from app.text import t
from backend.engines import check_engine, engine_notes, export
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import check

RECORD = ".megaboard-render.json"
"""In the folder: what was written there, file name -> SHA-256."""


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=t(lang, "cli.render.out.help"))
    parser.set_defaults(run=run_render)


def run_render(args: argparse.Namespace, lang: str) -> int:
    """Write the files that launch the job without Megaboard."""
    job, problems = read_job(args.file, home_path())
    print_problems(lang, problems)
    files = export(job, placeholders=True)
    print_problems(lang, [*check(job), *check_engine(job), *engine_notes(job)])
    print_problems(lang, write_files(args.out, files))
    for name in files:
        print(args.out / name)
    return DONE


def write_files(folder: Path, files: Mapping[str, str]) -> list[Problem]:
    """Write a job's files, and take away those of an earlier job that this one has not: `node3.sh` of two nodes.

    Only what was written here and is still as it was is taken away; the rest is told (render_left). Before anything is
    written: ProblemsError (render_in_the_way) where a file that is not in the folder's record would be overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = _record(folder)
    foreign = [name for name, text in files.items() if name not in written and _is_other(folder / name, text)]
    if foreign:
        values = {"names": ", ".join(foreign), "folder": str(folder)}
        raise ProblemsError([Problem(code="render_in_the_way", field="--out", values=values)])
    left = dict(_take_away(folder, {name: digest for name, digest in written.items() if name not in files}))
    record = {name: _digest(text.encode()) for name, text in files.items()} | left
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    values = {"names": ", ".join(left), "folder": str(folder)}
    return [Problem(code="render_left", severity="warning", field="--out", values=values)] if left else []


def _record(folder: Path) -> dict[str, str]:
    """What the folder's record says of files in it; nothing where it cannot be read."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    listed = found.items() if isinstance(found, dict) else ()
    return {name: str(digest) for name, digest in listed if name == Path(name).name}


def _is_other(path: Path, text: str) -> bool:
    return path.exists() and not (path.is_file() and path.read_bytes() == text.encode())


def _take_away(folder: Path, written: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Delete what is still as it was written; what was changed since, as name and digest."""
    for name, digest in written.items():
        path = folder / name
        if path.is_file() and not path.is_symlink() and _digest(path.read_bytes()) == digest:
            path.unlink()
        elif path.exists():
            yield name, digest


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
