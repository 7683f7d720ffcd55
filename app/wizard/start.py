"""The top of step 1: where a job may come from, a recipe, a preset of one's own, or a file that somebody has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app import home
from app.demo.job import demo_name
from app.home import with_cluster
from app.own_presets import delete_preset, keep_preset, read_preset, refuse_secrets
from app.services import Services
from app.text import has, t
from app.wizard.draft_state import read
from app.wizard.texts import read_texts
from backend.engines.importing import ASSUMED, ImportLine, import_llamafactory, is_llamafactory
from backend.job.job import Job
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
"""What another job replaces as a whole, and what stands there where it says nothing."""
_SIZES = {"tensor": "TP", "pipeline": "PP", "virtual_pipeline": "VPP", "expert": "EP"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """Edits of the draft, and for an imported configuration its report."""

    edits: Mapping[str, Any]
    name: str = ""
    lines: Sequence[ImportLine] = ()


DEMO = "demo"
"""The key of the demo's job among the recipes."""


def recipe_list(lang: str, demo: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
    """Every recipe by key, with a name made from its contents; the demo's job, if there is one, is first."""
    found = [{"key": DEMO, "name": demo_name(demo, lang)}] if demo else []
    for key, recipe in recipes().items():
        job, _ = parse_job(recipe["job"])
        if job is not None:
            found.append({"key": key, "name": _name_of(job, lang)})
    return found


def from_recipe(key: str, demo: Mapping[str, Any] | None = None) -> Begun:
    """Apply the recipe to the draft: machines, model, training and plan. The nodes and their folders stay.

    The demo's job replaces the whole draft, because it includes its nodes and folders.
    """
    if key == DEMO and demo:
        return Begun(edits={"name": demo["name"], "cluster": demo["cluster"], **_parts(demo)})
    if key not in recipes():
        raise ProblemsError([Problem(code="unknown_recipe", values={"key": key})])
    mapping = recipes()[key]["job"]
    cluster = {f"cluster.{name}": value for name, value in mapping["cluster"].items()}
    kept = {"environment", "extra"} - mapping.keys()
    return Begun(edits={**{part: value for part, value in _parts(mapping).items() if part not in kept}, **cluster})


def from_text(services: Services, text: str) -> Begun:
    """A job file, or a LLaMA-Factory configuration on the draft's machines. Raises ProblemsError."""
    mapping, problem = load_mapping(text)
    if problem:
        raise ProblemsError([problem])
    if not is_llamafactory(mapping):
        job, problems = parse_job(mapping)
        if job is None and not isinstance(mapping.get("cluster"), str):
            raise ProblemsError(problems)
        own = {key: mapping[key] for key in ("name", "cluster") if key in mapping}
        return Begun(edits={**own, **_parts(mapping)}, name=str(mapping.get("name", "")))
    made = import_llamafactory(mapping, _machines(services))
    name = str(made.mapping["name"])
    return Begun(edits={"name": name, **_parts(made.mapping)}, name=name, lines=made.lines)


def from_preset(services: Services, name: str) -> Begun:
    """The whole job of a preset, machines and nodes with it. Raises ProblemsError."""
    return from_text(services, read_preset(services.home, name))


def keep_draft(services: Services, name: str, *, replace: bool) -> None:
    """Keep the draft as a preset. Raises ProblemsError where the name is taken, or the draft cannot be read."""
    mapping, problems = read_texts(services.draft.job_mapping())
    _keep(services, name, mapping, problems, replace=replace)


def keep_text(services: Services, name: str, text: str, *, replace: bool) -> str:
    """Keep a job file as a preset, under the job's name where none is given; the name it got. Raises ProblemsError."""
    mapping, problem = load_mapping(text)
    if problem is None and is_llamafactory(mapping):
        problem = Problem(code="preset_is_llamafactory")
    name = name or str(mapping.get("name", ""))
    _keep(services, name, mapping, [problem] if problem else [], replace=replace)
    return name


def forget_preset(services: Services, name: str) -> None:
    """Delete a preset. Raises ProblemsError."""
    services.audit.record("delete_preset", name=name)
    delete_preset(services.home, name)


def keep_cluster(services: Services, name: str, *, replace: bool) -> None:
    """Keep the draft's machines and nodes under a name, which the draft then has. Raises ProblemsError."""
    job = _readable(services, *read_texts(services.draft.job_mapping()))
    services.audit.record("save_cluster", name=name)
    home.keep_cluster(services.home, name, to_mapping(job)["cluster"], replace=replace)


def forget_cluster(services: Services, name: str) -> dict[str, Any]:
    """Delete a named cluster; a draft that has it gets its content, as edits. Raises ProblemsError."""
    mapping = services.draft.job_mapping()
    edits = {"cluster": with_cluster(mapping, services.home)["cluster"]} if mapping.get("cluster") == name else {}
    services.audit.record("delete_cluster", name=name)
    home.forget_cluster(services.home, name)
    return edits


def _keep(
    services: Services, name: str, mapping: Mapping[str, Any], problems: Sequence[Problem], *, replace: bool
) -> None:
    refuse_secrets(_readable(services, mapping, problems))
    services.audit.record("save_preset", name=name)
    keep_preset(services.home, name, dump_mapping(mapping), replace=replace)


def _readable(services: Services, mapping: Mapping[str, Any], problems: Sequence[Problem]) -> Job:
    """The job of a mapping; ProblemsError with what was known of it before, and what is wrong with it."""
    job, found = (None, []) if problems else parse_job(with_cluster(mapping, services.home))
    if job is None:
        raise ProblemsError([*problems, *errors(found)])
    return job


def _machines(services: Services) -> Mapping[str, Any]:
    """The draft's cluster, or one to start from while that cannot be read."""
    job = read(services.draft.job_mapping(), services.home).job
    cluster: Mapping[str, Any] = to_mapping(job)["cluster"] if job else ASSUMED
    return cluster


def _parts(mapping: Mapping[str, Any]) -> dict[str, Any]:
    default = {**_PARTS, "engine": parameters()["engine"].default}
    return {part: mapping.get(part, value) for part, value in default.items()}


def _name_of(job: Job, lang: str) -> str:
    """Model, machines, method, engine and sizes in one line."""
    gpu = gpus()[job.cluster.gpu].name if isinstance(job.cluster.gpu, str) else ""
    key = f"choice.engine.{job.engine}"
    method = t(lang, f"choice.training.method.{job.training.method}")
    sizes = [f"{name}{size}" for path, name in _SIZES.items() if (size := getattr(job.parallel, path)) > 1]
    parts = [models()[job.model.preset or ""].name, f"{job.cluster.nodes} × {job.cluster.gpus_per_node} {gpu}", method,
             t(lang, key) if has(lang, key) else job.engine, " ".join(sizes)]  # fmt: skip
    return " · ".join(part for part in parts if part)
