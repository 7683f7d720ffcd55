"""`megaboard render`: write the files that launch a job without Megaboard. Other files in the folder stay."""

import argparse
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from app.cli.output import DONE, print_problems
from app.home import home_path
from app.jobfile import read_job
from app.text import t
from backend.engines import check_engine, engine_notes, export, export_kubernetes, export_slurm
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import check

TARGETS: Mapping[str, Callable[[Job], Mapping[str, str]]] = {
    "ssh": partial(export, placeholders=True),
    "slurm": export_slurm,
    "kubernetes": export_kubernetes,
}
"""Value of --for -> the function that returns the files."""
RECORD = ".megaboard-render.json"
"""File in the folder that lists what Megaboard wrote there: file name -> SHA-256."""


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `render`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    targets = tuple(TARGETS)
    parser.add_argument("--for", dest="target", choices=targets, default="ssh", help=t(lang, "cli.render.for.help"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=t(lang, "cli.render.out.help"))
    parser.set_defaults(run=run_render)


def run_render(args: argparse.Namespace, lang: str) -> int:
    """Write the files and print their paths. Problems of the job are printed on standard error."""
    job, problems = read_job(args.file, home_path())
    print_problems(lang, problems)
    files = TARGETS[args.target](job)
    print_problems(lang, [*check(job), *check_engine(job), *engine_notes(job)])
    print_problems(lang, write_files(args.out, files))
    for name in files:
        print(args.out / name)
    return DONE


def write_files(folder: Path, files: Mapping[str, str]) -> list[Problem]:
    """Write a job's files, and delete files of an earlier job that this job lacks, such as `node3.sh`.

    A file is deleted only if Megaboard wrote it and nobody changed it; changed ones get a warning (render_left).
    Raises ProblemsError(render_in_the_way) before the first write if a file of somebody else would be overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recorded = _read_record(folder)
    foreign = [name for name, text in files.items() if name not in recorded and _differs(folder / name, text)]
    if foreign:
        values = {"names": ", ".join(foreign), "folder": str(folder)}
        raise ProblemsError([Problem(code="render_in_the_way", field="--out", values=values)])
    changed = _delete_unchanged(folder, {name: digest for name, digest in recorded.items() if name not in files})
    record = {name: _digest(text.encode()) for name, text in files.items()} | changed
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    values = {"names": ", ".join(changed), "folder": str(folder)}
    return [Problem(code="render_left", severity="warning", field="--out", values=values)] if changed else []


def _read_record(folder: Path) -> dict[str, str]:
    """Return the digests in the folder's record by file name; empty if it cannot be read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    items = record.items() if isinstance(record, dict) else ()
    return {name: str(digest) for name, digest in items if name == Path(name).name}


def _differs(path: Path, text: str) -> bool:
    return path.exists() and not (path.is_file() and path.read_bytes() == text.encode())


def _delete_unchanged(folder: Path, recorded: Mapping[str, str]) -> dict[str, str]:
    """Delete the recorded files that nobody changed. Returns the record of those that were changed."""
    changed = {}
    for name, digest in recorded.items():
        path = folder / name
        if path.is_file() and not path.is_symlink() and _digest(path.read_bytes()) == digest:
            path.unlink()
        elif path.exists():
            changed[name] = digest
    return changed


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
