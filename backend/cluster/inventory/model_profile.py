"""Profile of a job's model, made on one node by the engine's Python. It needs no GPU and no weights."""

from collections.abc import Mapping
from typing import Any

from backend.cluster.inventory.software import needed_environment, one_argument, python_command
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.node_programs import MODEL_PROFILE, node_program
from backend.cluster.program_answers.model_profile import ModelProfile
from backend.cluster.typed_json import answer_of
from backend.job.job import Job

PROFILE_S = 240.0
"""torch and transformers import for up to a minute from a slow shared disk. Then most models take seconds."""
ANSWER_BYTES = 4 << 20
REASONS = (
    "model_type_unknown", "model_type_missing", "remote_code", "no_model_class", "config_refused", "model_not_built",
    "folder_missing", "config_missing", "config_invalid_json", "package_missing",
)  # fmt: skip
"""Reasons of the node's program (backend/node/model_profile) that have a text of their own."""


def model_profile_on(node: Node, job: Job, rank: int) -> Mapping[str, Any]:
    """Return the profile of the job's model for `model.profile`.

    The code in the model's folder runs only if the job says `trust_remote_code`. Raises NodeError: no_environment,
    no_model_profile with the values of refusal_of.
    """
    environment = needed_environment(job, rank, node)
    is_trusted = job.extra.get("trust_remote_code") is True and job.model.path is not None
    source = [str(job.model.path), "--trust-remote-code"] if is_trusted else [one_argument(job.model.hf_config)]
    answer = ask(
        node,
        python_command(environment, ["-", *source]),
        timeout_s=PROFILE_S,
        stdin=node_program(MODEL_PROFILE),
        max_bytes=ANSWER_BYTES,
    )
    profile = answer_of(node.name, ModelProfile, answer)
    if "problem" in profile:
        values = refusal_of(f"{node.name}: {environment.python}", profile["problem"])
        raise NodeError("no_model_profile", node.name, field="model.hf_config", **values)
    return profile


def refusal_of(python: str, problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a problem no_model_profile, from the answer of the node's program.

    `reason_code` is one of REASONS with `profile_` before it, and `case` chooses the fix.
    """
    code, reason = str(problem["code"]), str(problem.get("reason", ""))
    known = code if code in REASONS else "failed"
    words = reason if code in (*REASONS, "profile_failed") else f"{code}: {reason}".rstrip(": ")
    values = {name: problem.get(name, "") for name in ("model_type", "version")}
    return {"python": python, "reason_code": f"profile_{known}", "case": known, "reason": words, **values}
