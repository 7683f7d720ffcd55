"""`megaboard import`: convert a configuration or a script to a job file, and report what became of every key."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.cli.output import DONE, print_json, print_problems, printable, table
from app.home import home_path, with_cluster
from app.jobfile import base_folder, read_json, read_text
from app.text import render_problem, t
from app.text.imports import line_json, reason_of, shown, target_of
from backend.engines import check_engine
from backend.engines.importing import ASSUMED, Imported, ImportedFile, ImportLine, import_source, read_source
from backend.job.mapping import dump_job, load_mapping, parse_job
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import check

_ORDER = ("kept", "changed", "renamed", "dropped", "passed_on", "default")


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `import`."""
    parser.add_argument("file", metavar="YAML", help=t(lang, "cli.import.file.help"))
    parser.add_argument("--accelerate", metavar="FILE", help=t(lang, "cli.import.accelerate.help"))
    parser.add_argument("--out", type=Path, metavar="FILE", help=t(lang, "cli.import.out.help"))
    parser.add_argument("--cluster", metavar="NAME", help=t(lang, "cli.import.cluster.help"))
    parser.add_argument("--gpu", help=t(lang, "cli.import.gpu.help", default=ASSUMED["gpu"]))
    parser.add_argument("--nodes", type=int, help=t(lang, "cli.import.nodes.help", default=ASSUMED["nodes"]))
    ranks = t(lang, "cli.import.gpus_per_node.help", default=ASSUMED["gpus_per_node"])
    parser.add_argument("--gpus-per-node", type=int, help=ranks)
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run_import)


def run_import(args: argparse.Namespace, lang: str) -> int:
    """Write the job file to --out and the report to standard output. Without --out: to standard output and error."""
    read_file = partial(find_file, folders=_folders(args.file))
    settings = _read_mapping(Path(args.accelerate)) if args.accelerate else None
    if args.accelerate and settings is None:
        values = {"path": args.accelerate}
        raise ProblemsError([Problem(code="import_file_missing", field="--accelerate", values=values)])
    source = read_source(read_text(args.file), read_file, settings)
    cluster, assumed = _cluster(args, source)
    imported = import_source(source, cluster, read_file)
    job, problems = parse_job(imported.mapping)
    if job is None:
        raise ProblemsError(problems)
    problems = [*assumed, *problems, *check(job), *check_engine(job)]
    if args.json:
        print_json(_to_json(imported, problems, lang))
        return DONE
    text = dump_job(job)
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")
    print(printable(report(imported.lines, lang)), file=sys.stderr if args.out is None else sys.stdout)
    print_problems(lang, problems)
    return DONE


def report(lines: Sequence[ImportLine], lang: str) -> str:
    """Return a table of the keys that were changed or have a reason, and the number of keys that were kept."""
    rows = [
        [t(lang, f"import.outcome.{line.outcome}"), line.key, shown(line.value), target_of(line), reason_of(line, lang)]
        for outcome in _ORDER
        for line in lines
        if line.outcome == outcome and not (outcome == "kept" and line.reason is None)
    ]
    in_file = [line for line in lines if line.outcome != "default"]
    kept = t(lang, "import.kept", count=sum(line.outcome == "kept" for line in in_file), all=len(in_file))
    head = [t(lang, f"import.column.{name}") for name in ("outcome", "key", "value", "became", "why")]
    return f"{table(head, rows, all_left=True)}\n{kept}" if rows else kept


def _to_json(imported: Imported, problems: Sequence[Problem], lang: str) -> dict[str, Any]:
    return {
        "job": imported.mapping,
        "lines": [line_json(line, lang) for line in imported.lines],
        "problems": [render_problem(lang, problem) for problem in problems],
    }


def _cluster(args: argparse.Namespace, source: ImportedFile) -> tuple[Mapping[str, Any], list[Problem]]:
    """Return the cluster that the options and the file describe, and a note if they describe none."""
    keys = ("gpu", "nodes", "gpus_per_node")
    options = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    if args.cluster:
        return {**with_cluster({"cluster": args.cluster}, home_path())["cluster"], **options}, []
    cluster = {**ASSUMED, **source.machines, **options}
    return cluster, [] if options else [
        Problem(code="import_cluster", field="cluster", severity="note", values=cluster)
    ]


def _folders(file: str) -> list[Path]:
    """Return the folders in which a relative path of the file is looked up: beside the file, the working directory, and
    the folders above the file, because LLaMA-Factory's examples name their files from the top of its repository."""
    beside = base_folder(file).absolute()
    return [beside, Path.cwd(), *beside.parents]


def find_file(path: str, folders: Sequence[Path]) -> Mapping[str, Any] | None:
    """Return the mapping in the first JSON or YAML file of this path in the folders; None if there is none."""
    return next((mapping for folder in folders if (mapping := _read_mapping(folder / path)) is not None), None)


def _read_mapping(path: Path) -> Mapping[str, Any] | None:
    try:
        if path.suffix in (".yaml", ".yml"):
            loaded, problem = load_mapping(read_text(str(path)))
            return None if problem else loaded
        loaded = read_json(path)
    except (OSError, ValueError, ProblemsError):
        return None
    return loaded if isinstance(loaded, dict) else None
