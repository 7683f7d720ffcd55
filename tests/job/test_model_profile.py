"""A job's model profile: what it describes, and what is refused."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.estimate.estimate import estimate
from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.mapping import parse_job
from backend.job.model import ModelShape, parse_model
from backend.job.model.model_profile import config_digest
from backend.job.problems import ProblemsError
from backend.job.rules import check
from backend.job.unestimated import UnestimatedModel, shape_or_reason

CONFIG: Mapping[str, Any] = {"model_type": "strange", "hidden_size": 64}
KNOWN = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320}  # fmt: skip


def linear(name: str, inputs: int, outputs: int, parts: int = 1, **fields: Any) -> dict[str, Any]:
    return {"type": "Linear", "name": name, "inputs": inputs, "outputs": outputs, "share": "split", "parts": parts,
            **fields}  # fmt: skip


def profile(config: Mapping[str, Any] = CONFIG) -> dict[str, Any]:
    """Llama's layers as a node's profile describes them."""
    norm = {"type": "Norm", "width": 64, "parameters": 64}
    operators = [
        norm,
        linear("qkv", 64, 128, 3, after_norm=True),
        {"type": "Attention", "heads": 4, "kv_heads": 2, "key_dim": 16, "value_dim": 16},
        linear("o", 64, 64),
        norm,
        linear("up", 64, 192, 2, after_norm=True),
        {"type": "Activation", "width": 96, "gated": True, "module": "mlp"},
        linear("down", 96, 64),
    ]
    kind = {"class": "Layer", "group": "language", "hidden": 64, "in_execution_order": True, "operators": operators}
    matrix = {"rows": 320, "width": 64}
    outside = [("embedding", 20480), ("norm", 64), ("output", 20480)]
    return {
        "profile": 1, "digest": config_digest(config), "kinds": [kind], "embedding": matrix, "output": matrix,
        "tied": False, "towers": [{"name": "layers", "order": [[0, 4]]}],
        "outside": [{"role": role, "group": "language", "parameters": count} for role, count in outside],
    }  # fmt: skip


def reason(changed: Mapping[str, Any], config: Mapping[str, Any] = CONFIG) -> str:
    known = shape_or_reason(config, changed)
    assert isinstance(known, UnestimatedModel)
    return str(known.reason.values["reason_code"])


def test_a_profile_describes_the_same_layers_as_a_known_configuration() -> None:
    shape = shape_or_reason(CONFIG, profile())
    assert isinstance(shape, ModelShape)
    known = model_layers(parse_model(KNOWN))
    assert [kind.operators for kind in model_layers(shape).kinds] == [kind.operators for kind in known.kinds]
    assert (shape.heads, shape.kv_heads, shape.ffn, shape.layers) == (4, 2, 96, 4)
    assert model_parameters(model_layers(shape)) == model_parameters(known)


def test_a_job_with_a_profile_has_the_figures_of_the_known_model() -> None:
    def figures(model: Mapping[str, Any]) -> Any:
        mapping = {"version": 1, "name": "a", "engine": "llamafactory-ddp", "model": model,
                   "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8}}  # fmt: skip
        job, problems = parse_job(mapping)
        assert job is not None, problems
        computed = estimate(job)
        return computed.stages, computed.iteration_s, computed.time_s

    assert figures({"hf_config": CONFIG, "profile": profile()}) == figures({"hf_config": KNOWN})


def test_what_a_layer_saves_beyond_its_operators_is_kept() -> None:
    given = profile()
    known = layer_saved_bytes(given)
    given["kinds"][0]["figures"] = {"flash_attention_2": {"saved_bytes": {"token": known + 320}}}
    assert layer_saved_bytes(given) == known + 320
    given["kinds"][0]["figures"] = {"sdpa": {"saved_bytes": {"token": known - 320}}}
    assert layer_saved_bytes(given) == known


def layer_saved_bytes(given: Mapping[str, Any]) -> float:
    shape = shape_or_reason(CONFIG, given)
    assert isinstance(shape, ModelShape)
    return eager_bytes(model_layers(shape).kinds[0], EagerForm())


def test_a_layer_without_a_known_function_has_an_estimate() -> None:
    given = profile()
    del given["kinds"][0]["operators"][6]
    mapping = {"version": 1, "name": "a", "engine": "llamafactory-ddp",
               "model": {"hf_config": CONFIG, "profile": given},
               "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8}}  # fmt: skip
    job, problems = parse_job(mapping)
    assert job is not None, problems
    assert estimate(job).peak_gib > 0


def test_a_known_configuration_needs_no_profile() -> None:
    assert shape_or_reason(KNOWN, {"profile": "damaged"}) == parse_model(KNOWN)


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (("digest",), "0" * 64, "profile_of_other_config"),
        (("kinds", 0, "operators", 2, "type"), "Spiral", "profile_has_unknown_layer"),
        (("kinds", 0, "in_execution_order"), False, "profile_not_run"),
        (("kinds", 0, "hidden"), 32, "profile_incomplete"),
        (("kinds", 0, "operators"), [], "profile_incomplete"),
        (("kinds", 0, "group"), "audio", "profile_has_towers"),
        (("towers",), [], "profile_has_towers"),
        (("embedding",), None, "profile_incomplete"),
        (("outside", 1, "parameters"), 5 * 64, "profile_incomplete"),
        (("outside", 1, "role"), "other", "profile_incomplete"),
    ],
)
def test_a_profile_that_cannot_describe_the_model_is_a_reason(path: tuple[Any, ...], value: object, code: str) -> None:
    assert reason(changed(path, value)) == code


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("profile",), 2),
        (("kinds",), {}),
        (("kinds", 0), 1),
        (("kinds", 0, "operators", 1), []),
        (("kinds", 0, "operators", 1, "inputs"), -1),
        (("kinds", 0, "operators", 1, "inputs"), True),
        (("kinds", 0, "operators", 1, "inputs"), 1e300),
        (("kinds", 0, "operators", 1, "share"), "all"),
        (("kinds", 0, "operators", 1, "colour"), "red"),
        (("kinds", 0, "operators", 2), {"type": "Attention"}),
        (("towers", 0, "order"), [[9, 4]]),
        (("towers", 0, "order"), [[0, 10**9]]),
        (("towers", 0, "order"), "ab"),
        (("embedding", "rows"), "many"),
        (("kinds", 0, "figures"), {"sdpa": 1}),
        (("kinds", 0, "figures"), {"sdpa": {"saved_bytes": {"token": "x"}}}),
    ],
)
def test_a_damaged_profile_names_the_key(path: tuple[Any, ...], value: object) -> None:
    with pytest.raises(ProblemsError) as refusal:
        shape_or_reason(CONFIG, changed(path, value))
    assert [problem.code for problem in refusal.value.problems] == ["bad_model_profile"]


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    result: Any = profile()
    part = result
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = copy.deepcopy(value)
    return dict(result)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in parts for found in paths(part, (*path, key)))]


@given(st.sampled_from(paths(profile())[1:]), JSON)
def test_no_value_of_a_profile_is_a_crash(path: tuple[Any, ...], value: object) -> None:
    mapping = {"version": 1, "name": "a", "engine": "llamafactory-zero3",
               "model": {"hf_config": CONFIG, "profile": changed(path, value)},
               "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8}}  # fmt: skip
    job, problems = parse_job(mapping)
    assert job is not None, problems
    with suppress(ProblemsError):
        assert estimate(job).peak_gib >= 0
        return
    assert {problem.code for problem in check(job)} & {"bad_model_profile", "model_not_estimated"}


MIXING = {"type": "Mixing", "name": "Scan", "parameters": 50, "flops": 640.5, "saved_bytes": 256.0, "moved_bytes": 900,
          "kernels": 3}  # fmt: skip


def test_an_operator_that_is_no_product_counts_with_what_was_measured() -> None:
    plain = shape_or_reason(CONFIG, profile())
    changed = profile()
    changed["kinds"][0]["operators"][2] = MIXING
    scanned = shape_or_reason(CONFIG, changed)
    assert isinstance(plain, ModelShape)
    assert isinstance(scanned, ModelShape)
    assert scanned.kinds[0].attention is None
    assert model_parameters(model_layers(scanned)) == model_parameters(model_layers(plain)) + 4 * 50
    before, after = (eager_bytes(model_layers(shape).kinds[0], EagerForm()) for shape in (plain, scanned))
    attention = 2 * (4 + 2) * (16 + 16) + 4 * 4
    assert after == before - attention + 256


def test_a_layer_that_saves_bytes_for_every_pair_of_tokens_has_no_estimate() -> None:
    changed = profile()
    changed["kinds"][0]["figures"] = {"sdpa": {"saved_bytes": {"token": 100, "token_pair": 16}}}
    assert reason(changed) == "profile_incomplete"
