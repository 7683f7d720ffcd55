"""Models that Megaboard launches but cannot estimate: what their config.json says, and why there are no figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.job.model import ModelShape, parse_model
from backend.job.model.model_profile import profiled_shape
from backend.job.problems import Problem, ProblemsError

_REASONS = frozenset({"unsupported_model_type", "unsupported_model_key", "missing_model_key"})
_PROFILE_REASONS = frozenset(
    {
        "profile_of_other_config",
        "profile_has_towers",
        "profile_has_unknown_layer",
        "profile_not_run",
        "profile_incomplete",
    }
)
_IDENTITY = ("model_type", "architectures", "auto_map")
"""Keys by which transformers finds the class of a model."""
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys of which every configuration of a language model has one. A file of adapters or of generation has none."""
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts")
_VISION_WORDS = ("vision", "visual", "image", "vit_")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnestimatedModel:
    """A model whose shape is not known."""

    model_type: str
    """Hugging Face's name of the architecture; empty if the configuration does not have it."""
    experts: int
    """Routed experts per layer, as the configuration says; 0 if it says nothing."""
    names_vision: bool
    """Whether the configuration has a part or a key for images."""
    reason: Problem
    """The warning model_not_estimated."""

    @property
    def vision(self) -> bool:
        """Return True: whether there is a vision tower is not known, so engines get the job's choices for one."""
        return True


def shape_or_reason(
    hf_config: Mapping[str, Any], profile: Mapping[str, Any] | None = None
) -> ModelShape | UnestimatedModel:
    """Return the shape in a config.json, else in the model's profile, or why there is none.

    Raises ProblemsError if the file is broken: if a size is not a number, if a part is not a mapping, or if neither
    sizes nor a class are named; bad_model_profile if the profile is broken.
    """
    try:
        return parse_model(hf_config)
    except ProblemsError as error:
        problem = error.problems[0]
        is_named = any(part.get(key) for part in _parts(hf_config) for key in _IDENTITY)
        if problem.code == "missing_model_key" and not is_named:
            if not any(key in part for part in _parts(hf_config) for key in _SIZES):
                problem = replace(problem, values={"key": "model_type"})
            raise ProblemsError([problem]) from error
        if problem.code not in _REASONS:
            raise
    if profile:
        try:
            return profiled_shape(profile, hf_config)
        except ProblemsError as error:
            problem = error.problems[0]
            if problem.code not in _REASONS | _PROFILE_REASONS:
                raise
    case = "profiled" if problem.code in _PROFILE_REASONS - {"profile_of_other_config"} else ""
    values = {"reason_code": problem.code, "case": case, **problem.values}
    reason = Problem(code="model_not_estimated", field=problem.field, severity="warning", values=values)
    types = (str(part["model_type"]) for part in _parts(hf_config) if part.get("model_type"))
    experts = (part.get(key) for part in _parts(hf_config) for key in _EXPERT_KEYS)
    counts = [count for count in experts if isinstance(count, int) and not isinstance(count, bool)]
    return UnestimatedModel(
        model_type=next(types, ""),
        experts=max(counts, default=0),
        names_vision=any(word in str(key) for part in _parts(hf_config) for key in part for word in _VISION_WORDS),
        reason=reason,
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the configuration, and its parts that are configurations themselves: text_config, thinker_config."""
    yield config
    for name, section in config.items():
        if isinstance(section, Mapping) and str(name).endswith("_config"):
            yield from _parts(section)


class ShapeUnknownError(Exception):
    """A rule has read the shape of a model that has none."""


class UnknownShape:
    """Replaces the shape of an UnestimatedModel in the rules. A rule that reads another attribute is skipped."""

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    def __getattr__(self, name: str) -> Any:
        raise ShapeUnknownError(name)


def is_known(shape: object) -> bool:
    """Return whether a rule got the shape of its model; if not, its edit can respect GPUs and batch sizes only."""
    return not isinstance(shape, UnknownShape)
