"""`megaboard model ID`: print the config.json of a preset, or of a model of the Hugging Face hub, for a job's
`model.hf_config`, and what torch counts in the model."""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.output import DONE, print_problems
from app.model_config import FILE, from_hub, pretty, read_config
from app.text import t
from backend.cluster.inventory.model_profile import refusal_of
from backend.cluster.node_programs import MODEL_PROFILE, node_program
from backend.cluster.program_answers.model_profile import ModelProfile
from backend.cluster.typed_json import answer_of
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.job import Model
from backend.job.model import ModelShape
from backend.job.preset_profiles import linear_names, preset_profile
from backend.job.presets import known_model, models
from backend.job.problems import Problem, ProblemsError
from backend.job.unestimated import UnestimatedModel

PROFILE_S = 300


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `model`."""
    parser.add_argument("id", metavar="ID", help=t(lang, "cli.model.id.help"))
    parser.add_argument("--python", metavar="PATH", help=t(lang, "cli.model.python.help"))
    parser.add_argument("--profile", metavar="FILE", type=Path, help=t(lang, "cli.model.profile.help"))
    parser.set_defaults(run=run_model)


def run_model(args: argparse.Namespace, lang: str) -> int:
    """Print the configuration. Print the model type and the number of parameters on standard error.

    Raises ProblemsError.
    """
    config, shape, profile = _read(args.id)
    counted = None
    if isinstance(shape, UnestimatedModel):
        print_problems(lang, [shape.reason])
    else:
        counted = model_parameters(model_layers(shape))
        billions = f"{counted / 1e9:.3f}"
        print(t(lang, "cli.model.read", id=args.id, type=shape.model_type, billions=billions), file=sys.stderr)
    source = args.python or args.id
    if args.python:
        profile = read_profile(args.python, config, measure=args.profile is not None)
    if args.profile and not profile:
        raise ProblemsError([Problem(code="profile_needs_python")])
    if profile:
        _print_profile(lang, profile, counted)
    if args.profile:
        args.profile.write_text(json.dumps(answer_of(source, ModelProfile, profile)), encoding="utf-8")
    print(pretty(config))
    return DONE


def _read(name: str) -> tuple[Mapping[str, Any], ModelShape | UnestimatedModel, Mapping[str, Any]]:
    """Return the configuration of a folder, a preset or a model of the hub, its shape, and the profile that ships with
    the preset; empty without one."""
    local = Path(name) / FILE
    if local.is_file():
        return *read_config(local.read_text(encoding="utf-8"), name), {}
    if name in models():
        return dict(models()[name].hf_config), known_model(Model(preset=name)), preset_profile(name)
    return *read_config(from_hub(name), name), {}


def read_profile(python: str, config: Mapping[str, Any], *, measure: bool = False) -> Mapping[str, Any]:
    """Return what transformers builds from a configuration (backend/node/model_profile).

    `python` is an interpreter with torch and transformers. `measure`: the layers also run, which gives their operators
    in the order of execution. Raises ProblemsError(no_model_profile).
    """
    command = [python, "-", json.dumps(config), *([] if measure else ["--no-measure"])]
    try:
        done = subprocess.run(
            command, input=node_program(MODEL_PROFILE), capture_output=True, timeout=PROFILE_S, check=False
        )
        answer: Mapping[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _no_profile(python, {"code": "profile_failed", "reason": str(error)}) from error
    if "problem" in answer:
        raise _no_profile(python, answer["problem"])
    return answer


def _no_profile(python: str, problem: Mapping[str, Any]) -> ProblemsError:
    values = refusal_of(python, problem)
    return ProblemsError([Problem(code="no_model_profile", field="model.hf_config", values=values)])


def _print_profile(lang: str, profile: Mapping[str, Any], counted: int | None) -> None:
    total = profile["parameters"]["total"]
    groups = ", ".join(f"{name} {number / 1e9:.3f}" for name, number in profile["parameters"]["groups"].items())
    values = {"version": profile["versions"]["transformers"], "type": profile["architecture"]}
    print(t(lang, "cli.model.built", **values, billions=f"{total / 1e9:.3f}", groups=groups), file=sys.stderr)
    for kind in profile["kinds"]:
        print(f"  {kind['count']} × {kind['class']}: {kind['parameters'] / 1e6:.1f} M", file=sys.stderr)
    if names := linear_names(profile):
        print(t(lang, "cli.model.linears", names=", ".join(names)), file=sys.stderr)
    print(t(lang, "cli.model.digest", digest=profile["digest"], torch=profile["versions"]["torch"]), file=sys.stderr)
    if counted is not None:
        difference = counted - total - profile["parameters"]["router_biases"]
        key = "cli.model.equal" if difference == 0 else "cli.model.differs"
        print(t(lang, key, difference=f"{difference:+,}"), file=sys.stderr)
