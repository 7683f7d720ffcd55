"""The parameter reference is complete, agrees with the estimate, and equals the files in docs/."""

import re
from pathlib import Path

import pytest
import yaml

from app.text import LANGUAGES, catalogue
from app.text.reference import EFFECTS, SENTENCES, documented, entry, table
from backend.engines.keys import owned_keys
from backend.engines.known_keys import programs, versions
from backend.job.job import Job
from backend.job.mapping import parameters, parse_job, with_values
from backend.job.problems import ProblemsError
from backend.planning.effects import effects
from tools.write_reference import FOLDER, page

NAMES = yaml.safe_load(Path(__file__).with_name("parameter_names.yaml").read_text())
BASE = {"cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}, "model": {"preset": "qwen3-vl-8b"}}
JOBS = {
    "vision": {"parallel.tensor": 4},
    "pipeline": {"parallel.tensor": 2, "parallel.pipeline": 2, "parallel.recompute": "full"},
    "experts": {"model.preset": "qwen3-30b-a3b", "parallel.tensor": 2, "parallel.pipeline": 2, "parallel.expert": 8,
                "parallel.recompute": "selective"},
    "LoRA": {"model.preset": "qwen3-8b", "engine": "llamafactory-ddp", "training.method": "lora"},
    "ZeRO-3": {"model.preset": "qwen3-8b", "engine": "llamafactory-zero3-offload"},
    "FSDP": {"model.preset": "qwen3-8b", "engine": "llamafactory-fsdp"},
}  # fmt: skip


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_reference_in_docs_equals_the_generated_one(lang: str) -> None:
    written = (FOLDER / f"parameters.{lang}.md").read_text(encoding="utf-8")
    assert written == page(lang), "run `make docs`"


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("names", [list(parameters()), *NAMES.values()], ids=["job", *NAMES])
def test_the_reference_names_every_parameter(lang: str, names: list[str]) -> None:
    text = page(lang)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_parameter_says_how_to_set_it() -> None:
    words = catalogue(LANGUAGES[0])
    paths = [*parameters(), *(f"{part}.{name}" for part in ("extra", "environment") for name in documented(part))]
    assert [path for path in paths if f"param.{path}.set" not in words] == []


@pytest.mark.parametrize("path", [path for path in parameters() if path.startswith("parallel.")])
def test_every_parameter_of_a_plan_has_a_constraint_or_an_effect(path: str) -> None:
    assert {"constraint", *EFFECTS} & entry(path, LANGUAGES[0]).sentences.keys()


@pytest.mark.parametrize("path", NAMES["taught"])
def test_parameters_in_guides_have_a_use_a_constraint_and_an_effect(path: str) -> None:
    sentences = entry(path, LANGUAGES[0]).sentences
    assert {"set", "constraint"} <= sentences.keys()
    assert set(EFFECTS) & sentences.keys()


def test_no_text_is_about_an_unknown_parameter() -> None:
    # The parameter cluster.scheduler.constraint ends like a sentence.
    known = {*table(), "cluster.hosts.lines", "source", "cluster.scheduler"}
    known |= {f"{part}.{name}" for part in ("extra", "environment") for name in documented(part)}
    suffixes = "|".join(("help", *SENTENCES))
    spoken = {re.sub(rf"\.({suffixes})$", "", key.removeprefix("param."))
              for key in catalogue(LANGUAGES[0]) if key.startswith("param.")}  # fmt: skip
    assert {path for path in spoken if not path.startswith("source.")} - known == set()


def test_every_key_of_mcore_adapter_has_a_parameter_or_an_explanation() -> None:
    keys = programs()["mcore_adapter"].keys
    assert set(NAMES["mcore_adapter"]) == set(keys)
    assert keys.keys() - owned_keys("mcore_adapter").keys() - set(documented("extra")) == set()


def test_every_explained_engine_key_is_read_by_a_program() -> None:
    taken = set[str]().union(*(program.keys for program in programs().values()))
    assert set(documented("extra")) - taken == set()


def test_the_last_checked_version_is_the_one_of_the_known_keys() -> None:
    assert {name: known.examined[-1] for name, known in versions().items()} == {
        name: programs()[name].version for name in versions()
    }


@pytest.mark.parametrize("edits", JOBS.values(), ids=JOBS)
def test_an_effect_in_the_estimate_has_a_text(edits: dict[str, object]) -> None:
    job, problems = parse_job(BASE)
    assert job is not None, problems
    felt = {(path, effect) for path in parameters() for effect in effects_of(with_values(job, edits), path)}
    silent = {item for item in felt if item[1] not in entry(item[0], LANGUAGES[0]).sentences}
    assert silent == set()


def effects_of(job: Job, path: str) -> set[str]:
    """Return which of memory, bubble and speed change by a twentieth or more with another value."""
    try:
        result = effects(job, path) or ()
    except ProblemsError:
        return set()
    own = next((item for item in result if item.is_own), None)
    changed = set()
    for item in result:
        if own is None or item.problem is not None:
            continue
        if abs(item.memory_gib - own.memory_gib) > 0.05 * own.memory_gib:
            changed.add("memory")
        if abs(item.bubble_fraction - own.bubble_fraction) > 0.05:
            changed.add("bubble")
        if abs(item.tokens_per_s_per_gpu - own.tokens_per_s_per_gpu) > 0.05 * own.tokens_per_s_per_gpu:
            changed.add("speed")
    return changed
