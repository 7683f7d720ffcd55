"""Import of every configuration and script in a folder: what was kept, changed and refused, and why.

    python -m benchmarks.imports FOLDER [--parse] [--verbose]

FOLDER is a checkout of LLaMA-Factory or ms-swift (github.com/hiyouga/LLaMA-Factory, github.com/modelscope/ms-swift), or
its examples. With --parse, LLaMA-Factory's own parser reads the original and what Megaboard renders of it, and both are
compared key by key: a difference must stand in the report. ms-swift's argument classes read what is rendered.
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.import_yaml import find_file
from app.text.imports import reason_of
from backend.engines import check_engine
from backend.engines.export import with_placeholders
from backend.engines.importing import ASSUMED, Imported, ImportedFile, import_source, read_source
from backend.engines.yaml_text import to_yaml
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check
from benchmarks.job_grid import case_of, is_same, with_model
from tools.programs import mcore_adapter_source, swift_python
from tools.real_parsers import parse_with_llamafactory, parse_with_swift

_SUFFIXES = (".yaml", ".yml", ".sh")
_NUMBER = re.compile(r"[0-9.]+e[-+]?[0-9]+")
"""Numbers that YAML 1.1 reads as text, and OmegaConf, which llamafactory-cli uses, as numbers."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file."""

    path: Path
    refused: tuple[Problem, ...] = ()
    """Why it is no job here."""
    source: ImportedFile | None = None
    imported: Imported | None = None
    job: Job | None = None
    problems: tuple[Problem, ...] = ()
    """Errors of the job: the user must decide something."""


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files that look like configurations or scripts."""
    yield from sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())


def outcome_of(path: Path) -> Outcome:
    """Return what becomes of a file, looked up as `megaboard import` does."""

    def read_file(name: str) -> Mapping[str, Any] | None:
        return find_file(name, [path.parent, Path.cwd(), *path.resolve().parents])

    try:
        source = read_source(path.read_text(encoding="utf-8"), read_file)
        imported = import_source(source, {**ASSUMED, **source.machines}, read_file)
    except ProblemsError as error:
        return Outcome(path=path, refused=tuple(error.problems))
    job, problems = parse_job(imported.mapping)
    if job is None:
        return Outcome(path=path, refused=tuple(problems))
    found = errors([*check(job), *check_engine(job)])
    return Outcome(path=path, source=source, imported=imported, job=job, problems=tuple(found))


def compared(outcomes: list[Outcome]) -> dict[Path, list[str]]:
    """Return the differences that no report tells, by file, of LLaMA-Factory's configurations without errors."""
    usable = [item for item in outcomes if item.job and item.source and item.source.kind == "llamafactory"]
    found: dict[Path, list[str]] = {}
    for megatron in (False, True):
        chosen = [item for item in usable if item.job and ("megatron" in item.job.engine) == megatron]
        source = mcore_adapter_source()
        if not chosen or (megatron and not source):
            continue
        variables = {"USE_MCA": "1", "PYTHONPATH": source or ""} if megatron else {}
        original, rendered = {}, {}
        for item in chosen:
            name, (job, config) = str(item.path), _rendered(item)
            original[name] = {"files": {"config.yaml": _original(item)}, "environment": {}}
            if job is not None:
                rendered[name] = config
        before, after = (parse_with_llamafactory(cases, variables) for cases in (original, rendered))
        for item in chosen:
            found[item.path] = _differences(item, before[str(item.path)], after.get(str(item.path)))
    return found


def compared_with_swift(outcomes: list[Outcome]) -> dict[Path, list[str]]:
    """Return the keys of ms-swift's files whose value its own argument classes do not end with, although no report
    tells. Files of jobs with errors are left out."""
    python = swift_python()
    chosen = [item for item in outcomes if item.job and item.job.engine.startswith("swift-")]
    if python is None or not chosen:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        cases = {}
        for number, item in enumerate(chosen):
            job, _ = _rendered(item)
            if job is not None:
                case = case_of(with_model(job, Path(folder) / str(number)))
                case.pop("ranks")
                cases[str(item.path)] = case
        answers = parse_with_swift(python, cases)
    return {item.path: _kept(item, answers[str(item.path)]) for item in chosen if str(item.path) in answers}


def _kept(item: Outcome, answer: Mapping[str, Any]) -> list[str]:
    assert item.imported is not None
    if answer["error"]:
        return [f"rendered: {answer['error']}"]
    arguments = answer["arguments"]
    kept = {line.key: line.value for line in item.imported.lines if line.outcome in ("kept", "passed_on")
            and line.reason is None and line.key not in _BY_NATURE}  # fmt: skip
    return [
        f"{key}: {value!r} -> {arguments[key]!r}"
        for key, value in kept.items()
        if key in arguments and not is_same(key, value, arguments[key]) and not _is_of_swift(key, kept)
    ]


def _is_of_swift(key: str, kept: Mapping[str, Any]) -> bool:
    """Return whether ms-swift itself gives the key another value: `max_steps` replaces the epochs, SimPO is a kind of
    its CPO, and YAML reads `no` as false."""
    return (
        (key == "num_train_epochs" and "max_steps" in kept)
        or (key == "rlhf_type" and kept[key] == "simpo")
        or (key == "eval_strategy" and kept[key] is False)
    )


def _original(item: Outcome) -> str:
    """Return the file's own configuration, without what starts programs and what lies beside it."""
    assert item.source is not None
    return to_yaml(
        {
            key: float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
            for key, value in item.source.config.items()
            if key not in ("deepspeed", "fsdp", "fsdp_config") and not key.isupper()
        }
    )


def _rendered(item: Outcome) -> tuple[Job | None, dict[str, Any]]:
    """Return the job with names for what it lacks, and what is rendered of it; no job if it has other errors."""
    assert item.job is not None
    job = with_placeholders(item.job)
    if job.model.preset is None and not job.model.hf_config:
        seen = item.source is not None and bool(_OF_VISION & item.source.config.keys())
        job = with_values(job, {"model.preset": "qwen3-vl-2b" if seen else "qwen3-0.6b"})
    if any(problem.severity == "error" for problem in (*check(job), *check_engine(job))):
        return None, {}
    case = case_of(job)
    case.pop("ranks")
    return job, case


_OF_VISION = frozenset({"image_max_pixels", "freeze_vit", "freeze_aligner", "freeze_vision_tower"})
"""Keys of configurations whose models take images."""
_BY_NATURE = frozenset(
    {
        "output_dir", "logging_dir", "model_name_or_path", "dataset", "dataset_dir", "template", "hf_deepspeed_config",
        "deepspeed", "fsdp", "fsdp_config", "deepspeed_plugin", "media_dir", "model_max_length", "run_name",
        "generation_max_length", "accelerator_config", "include_num_input_tokens_seen", "logging_nan_inf_filter",
        "gradient_checkpointing", "upcast_layernorm", "expert_tensor_parallel_size", "sequence_parallel", "loss_scale",
    }
)  # fmt: skip
"""Keys that belong to the run, or follow from other keys: LLaMA-Factory turns gradient checkpointing on by itself, the
report of QLoRA names upcast_layernorm, a missing ETP is TP, sequence parallel is off at TP 1, ms-swift extends its
loss_scale."""


def _differences(item: Outcome, before: Mapping[str, Any], after: Mapping[str, Any] | None) -> list[str]:
    assert item.imported is not None
    if before["error"]:
        return [f"original: {before['error']}"]
    if after is None:
        return []
    if after["error"]:
        return [f"rendered: {after['error']}"]
    told = {line.key for line in item.imported.lines if line.outcome != "kept" or line.reason is not None}
    keys = before["arguments"].keys() & after["arguments"].keys() - _BY_NATURE - told
    return [
        f"{key}: {before['arguments'][key]!r} -> {after['arguments'][key]!r}"
        for key in sorted(keys)
        if before["arguments"][key] != after["arguments"][key]
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parse", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    outcomes = [outcome_of(path) for path in files_of(args.folder)]
    refused = Counter(item.refused[0].code for item in outcomes if item.refused)
    lines = Counter(line.outcome for item in outcomes if item.imported for line in item.imported.lines)
    engines = Counter(item.job.engine for item in outcomes if item.job)
    open_jobs = Counter(problem.code for item in outcomes for problem in item.problems)
    print(f"{len(outcomes)} files, {sum(engines.values())} imported: {dict(engines)}")
    print(f"refused: {dict(refused)}")
    print(f"keys: {dict(lines)}")
    print(f"errors of the jobs: {dict(open_jobs)}")
    for item in outcomes if args.verbose else ():
        print(f"{item.path}: {item.job.engine if item.job else item.refused[0].code}")
        for line in item.imported.lines if item.imported else ():
            if line.reason is not None:
                print(f"  {line.outcome} {line.key}: {reason_of(line, 'en')}")
    if args.parse:
        differences = {**compared(outcomes), **compared_with_swift(outcomes)}
        print(f"compared: {len(differences)} files, {sum(map(bool, differences.values()))} with differences")
        for path, found in differences.items():
            for text in found:
                print(f"  {path}: {text}")


if __name__ == "__main__":
    main()
