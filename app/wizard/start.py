"""The start of step 1: a job from a recipe, from the user's own preset, or from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app import home
from app.demo.job import demo_name
from app.home import with_cluster
from app.own_presets import delete_preset, read_preset, refuse_secrets, save_preset
from app.services import Services
from app.text import has, t
from app.wizard.draft_state import read
from app.wizard.texts import read_texts
from backend.engines.importing import ASSUMED, ImportLine, import_source, is_job, read_source
from backend.job.job import Job
from backend.job.job_secrets import check_containers
from backend.job.mapping import dump_mapping, load_mapping, parameters, parse_job, to_mapping
from backend.job.presets import gpus, models, recipes
from backend.job.problems import Problem, ProblemsError, errors

_PARTS: Mapping[str, Any] = {
    "model": {},
    "training": {},
    "engine": None,
    "parallel": {},
    "environment": {},
    "extra": {},
}
"""Sections of the draft that another job replaces, with their defaults."""
_SIZES = {"tensor": "TP", "pipeline": "PP", "virtual_pipeline": "VPP", "expert": "EP"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEdits:
    """Edits of the draft from another job. `lines` is the report of an import."""

    edits: Mapping[str, Any]
    name: str = ""
    lines: Sequence[ImportLine] = ()


DEMO = "demo"
"""The key of the demo's job among the recipes."""


def recipe_list(lang: str, demo: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
    """Return the key and name of every recipe. The demo's job, if there is one, is first."""
    listed = [{"key": DEMO, "name": demo_name(demo, lang)}] if demo else []
    for key, recipe in recipes().items():
        job, _ = parse_job(recipe["job"])
        if job is not None:
            listed.append({"key": key, "name": _name_of(job, lang)})
    return listed


def from_recipe(key: str, demo: Mapping[str, Any] | None = None) -> JobEdits:
    """Apply the recipe to the draft: machines, model, training and plan. The nodes and their folders stay.

    The demo's job replaces the whole draft, because it includes its nodes and folders.
    """
    if key == DEMO and demo:
        return JobEdits(edits={"name": demo["name"], "cluster": demo["cluster"], **_parts(demo)})
    if key not in recipes():
        raise ProblemsError([Problem(code="unknown_recipe", values={"key": key})])
    mapping = recipes()[key]["job"]
    cluster = {f"cluster.{name}": value for name, value in mapping["cluster"].items()}
    omitted = {"environment", "extra"} - mapping.keys()
    parts = {part: value for part, value in _parts(mapping).items() if part not in omitted}
    return JobEdits(edits={**parts, **cluster})


def from_text(services: Services, text: str) -> JobEdits:
    """Return the edits of a job file, or of a configuration or script on the draft's machines. Raises ProblemsError."""
    source = read_source(text)
    if source.kind == "job":
        mapping = source.config
        job, problems = parse_job(mapping)
        if job is None and not isinstance(mapping.get("cluster"), str):
            raise ProblemsError(problems)
        own = {key: mapping[key] for key in ("name", "cluster") if key in mapping}
        return JobEdits(edits={**own, **_parts(mapping)}, name=str(mapping.get("name", "")))
    imported = import_source(source, _machines(services))
    name = str(imported.mapping["name"])
    return JobEdits(edits={"name": name, **_parts(imported.mapping)}, name=name, lines=imported.lines)


def from_preset(services: Services, name: str) -> JobEdits:
    """Return the edits of a preset: the whole job with machines and nodes. Raises ProblemsError."""
    return from_text(services, read_preset(services.home, name))


def save_draft(services: Services, name: str, *, replace: bool) -> None:
    """Save the draft as a preset. Raises ProblemsError if the name exists or the draft cannot be read."""
    mapping, problems = read_texts(services.draft.job_mapping())
    _save(services, name, mapping, problems, replace=replace)


def save_text(services: Services, name: str, text: str, *, replace: bool) -> str:
    """Save a job file as a preset and return its name. The default name is the job's. Raises ProblemsError."""
    mapping, problem = load_mapping(text)
    if problem is None and not is_job(mapping):
        problem = Problem(code="preset_is_llamafactory")
    name = name or str(mapping.get("name", ""))
    _save(services, name, mapping, [problem] if problem else [], replace=replace)
    return name


def remove_preset(services: Services, name: str) -> None:
    """Delete a preset. Raises ProblemsError."""
    services.audit.record("delete_preset", name=name)
    delete_preset(services.home, name)


def save_cluster(services: Services, name: str, *, replace: bool) -> None:
    """Save the draft's machines and nodes as a named cluster. Raises ProblemsError."""
    job = _readable(services, *read_texts(services.draft.job_mapping()))
    if problems := check_containers(job.cluster):
        raise ProblemsError(problems)
    services.audit.record("save_cluster", name=name)
    home.save_cluster(services.home, name, to_mapping(job)["cluster"], replace=replace)


def remove_cluster(services: Services, name: str) -> dict[str, Any]:
    """Delete a named cluster. Return the edits that copy it into a draft that uses it. Raises ProblemsError."""
    mapping = services.draft.job_mapping()
    edits = {"cluster": with_cluster(mapping, services.home)["cluster"]} if mapping.get("cluster") == name else {}
    services.audit.record("delete_cluster", name=name)
    home.delete_cluster(services.home, name)
    return edits


def _save(
    services: Services, name: str, mapping: Mapping[str, Any], problems: Sequence[Problem], *, replace: bool
) -> None:
    refuse_secrets(_readable(services, mapping, problems))
    services.audit.record("save_preset", name=name)
    save_preset(services.home, name, dump_mapping(mapping), replace=replace)


def _readable(services: Services, mapping: Mapping[str, Any], problems: Sequence[Problem]) -> Job:
    """Return the job of a mapping. Raises ProblemsError with `problems` and the job's own errors."""
    job, job_problems = (None, []) if problems else parse_job(with_cluster(mapping, services.home))
    if job is None:
        raise ProblemsError([*problems, *errors(job_problems)])
    return job


def _machines(services: Services) -> Mapping[str, Any]:
    """Return the draft's cluster, or an assumed cluster if the draft cannot be read."""
    job = read(services.draft.job_mapping(), services.home).job
    cluster: Mapping[str, Any] = to_mapping(job)["cluster"] if job else ASSUMED
    return cluster


def _parts(mapping: Mapping[str, Any]) -> dict[str, Any]:
    default = {**_PARTS, "engine": parameters()["engine"].default}
    return {part: mapping.get(part, value) for part, value in default.items()}


def _name_of(job: Job, lang: str) -> str:
    """Return model, machines, stage (unless it is sft), method, engine and sizes in one line."""
    gpu = gpus()[job.cluster.gpu].name if isinstance(job.cluster.gpu, str) else ""
    key = f"choice.engine.{job.engine}"
    method = t(lang, f"choice.training.method.{job.training.method}")
    sizes = [f"{name}{size}" for path, name in _SIZES.items() if (size := getattr(job.parallel, path)) > 1]
    stage = "" if job.training.stage == "sft" else t(lang, f"choice.training.stage.{job.training.stage}")
    machines = f"{job.cluster.nodes} × {job.cluster.gpus_per_node} {gpu}"
    parts = [models()[job.model.preset or ""].name, machines, stage, method,
             t(lang, key) if has(lang, key) else job.engine, " ".join(sizes)]  # fmt: skip
    return " · ".join(part for part in parts if part)
