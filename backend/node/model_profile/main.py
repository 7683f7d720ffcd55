"""The profile of a model as one JSON object."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
import traceback
from typing import Any

from .build import build_model, freezing_keys, group_of, parameter_groups, read_config
from .cores import IMPLEMENTATIONS, set_implementation
from .measure import FIGURES, SIZES, MeasuredRun, install, run_model
from .parts import Kind, Tower, find_towers, outside
from .polynomials import fit
from .problem import ProfileError, reason
from .shapes import CostMeter
from .sources import read_source
from .static_operators import recurrence_parameters, static_operators
from .towers import call_alone, call_tower, owners_of, tower_calls

FORMAT = 1
CHUNK = 64
"""Common divisor of the sequence lengths of the runs."""
LARGEST_CHUNK = 1024
MEASURED = {
    "saved_bytes": "bytes of tensors that the backward pass of one layer needs, with its input, without weights",
    "shared_bytes": "saved bytes that are inputs of many layers: masks, rotary cosine and sine",
    "forward_peak_bytes": "largest sum of tensors alive in the forward pass of one layer, without its input",
    "backward_peak_bytes": "largest sum of tensors that the backward pass adds; a weight's gradient until accumulated",
    "recompute": "a checkpoint around the layer: its input is saved, and the backward pass runs it forward again",
    "flops": "matrix operations, a multiply-add as two; attention over the whole square, causal or not",
    "flash_attention_2": "saved tensors of the kernel: query, key, value, output, log-sum-exp in fp32",
    "figures": "constant + batch * (sequence + token * s + token_pair * s * s) + length * s + length_pair * s * s",
    "router": "every expert receives as many tokens as the others",
}


def main() -> int:
    """Print the profile or the problem, and return the exit code."""
    parser = argparse.ArgumentParser(prog="model_profile")
    parser.add_argument("model")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--no-measure", action="store_true")
    parser.add_argument("--token", default="")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Messages of libraries must not mix with the JSON.
    output, sys.stdout = sys.stdout, sys.stderr
    try:
        result, code = profile(options.model, options.trust_remote_code, not options.no_measure), 0
    except ProfileError as error:
        result, code = {"problem": error.problem}, 1
    except ImportError as error:
        result, code = {"problem": {"code": "package_missing", "reason": reason(error)}}, 1
    except Exception as error:
        result, code = {"problem": {"code": "profile_failed", "reason": reason(error)}}, 1
        if os.environ.get("MEGABOARD_TRACEBACK"):
            raise
    output.write(options.token)
    json.dump(result, output)
    output.write("\n")
    return code


def profile(name: str, trust_remote_code: bool = False, measure: bool = True) -> dict[str, Any]:
    """Return the profile of a model."""
    source = read_source(name)
    import torch
    import transformers

    started = time.process_time()
    config = read_config(source, trust_remote_code)
    model = build_model(config, trust_remote_code)
    keys = freezing_keys(model.config.model_type)
    towers, kinds = find_towers(model, lambda name: group_of(name, keys))
    around = outside(model, towers, lambda name: group_of(name, keys))
    parameters = parameter_groups(model, keys)
    result: dict[str, Any] = {
        "profile": FORMAT,
        "model_type": source.config["model_type"],
        "engine_model_type": model.config.model_type,
        "architecture": type(model).__name__,
        "digest": source.digest,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "parameters": parameters,
        "groups_from": "llamafactory" if keys else None,
        "lora_conflict": keys["lora_conflict"] if keys else [],
    }
    problems = measure_kinds(model, towers, kinds) if measure else []
    result["kinds"] = [_kind(kind) for kind in kinds]
    result["towers"] = [
        {"name": tower.name, "layers": len(tower.order), "order": tower.runs(), "problem": tower.problem}
        for tower in towers
    ]
    result["outside"] = around
    result.update(_ends(model, towers))
    result["measured"] = MEASURED if measure else None
    result["problems"] = problems
    result["cpu_seconds"] = round(time.process_time() - started, 2)
    return result


def _ends(model: Any, towers: list[Tower]) -> dict[str, Any]:
    """Return the embedding, the output head, and whether they share weights."""
    names = {id(module): name for name, module in model.named_modules()}

    def describe(module: Any) -> dict[str, Any] | None:
        weight = getattr(module, "weight", None)
        if weight is None:
            return None
        return {"module": names.get(id(module), ""), "rows": weight.shape[0], "width": weight.shape[1]}

    def module_of(name: str) -> Any:
        try:
            return getattr(model, name)()
        except (AttributeError, NotImplementedError):
            return None

    embedding, output = module_of("get_input_embeddings"), module_of("get_output_embeddings")
    mtp = [tower.name for tower in towers if "mtp" in tower.name or "nextn" in tower.name]
    text = model.config.get_text_config()
    return {
        "embedding": describe(embedding),
        "output": describe(output),
        "tied": getattr(embedding, "weight", None) is getattr(output, "weight", 0),
        "mtp": {"towers": mtp, "layers_in_config": getattr(text, "num_nextn_predict_layers", None) or 0},
    }


def _kind(kind: Kind) -> dict[str, Any]:
    layer = kind.layer
    figures = {}
    for implementation, samples in kind.samples.items():
        figures[implementation] = {
            name: fit(name, {size: sample[name] for size, sample in samples.items()}) for name in FIGURES
        }
    total = sum(parameter.numel() for parameter in layer.parameters())
    operators = kind.operators if kind.operators is not None else static_operators(layer, kind.group)
    if kind.operators is not None and total > _in_operators(operators):
        # Attention sinks, scales, and the experts of images, which do not run with text.
        share = "split" if kind.group == "language" else "whole"
        operators = [*operators, {"type": "Parameters", "count": total - _in_operators(operators), "share": share}]
    expert = sum(p.numel() for name, p in layer.named_parameters() if "experts." in name and "shared" not in name)
    return {
        "class": type(layer).__name__,
        "group": kind.group,
        "count": kind.count,
        "parameters": total,
        "expert_parameters": expert,
        "hidden": kind.hidden,
        "operators": operators,
        "in_execution_order": kind.operators is not None,
        "linears": _linears(layer),
        "figures": figures or None,
    }


def _in_operators(operators: list[dict[str, Any]]) -> int:
    """Return the parameters of operators."""
    total = 0
    for operator in operators:
        total += operator.get("parameters", 0)
        if operator["type"] == "Recurrence":
            total += recurrence_parameters(operator)
        if operator["type"] == "Linear":
            total += operator["copies"] * (operator["inputs"] * operator["outputs"] + operator["bias"])
            total += operator["whole_bias"]
    return total


def _linears(layer: Any) -> list[str]:
    """Return the names of the Linear modules that LoRA may target. All experts of a list have one name."""
    import torch

    names: dict[str, None] = {}
    for path, module in layer.named_modules():
        if isinstance(module, torch.nn.Linear):
            names[".".join("*" if part.isdigit() else part for part in path.split("."))] = None
    return list(names)


def measure_kinds(model: Any, towers: list[Tower], kinds: list[Kind]) -> list[dict[str, Any]]:
    """Run the model at several sizes and with each attention. Return the problems of the parts that could not run."""
    _complete_rotary(model.config)
    runs = _Runs(model, towers, kinds)
    reached = runs.reached
    problems = runs.measure("text", lambda batch, length: _call_text(model, batch, length))
    text = [tower.name for tower in towers if any(_is_text(kinds[index], reached) for index in tower.order)]
    for tower in towers:
        if any(id(kinds[index]) in reached for index in tower.order):
            continue
        failures: list[dict[str, Any]] = []
        for owner, way in [(o, w) for o in owners_of(model, tower, text) for w in range(tower_calls(o))]:
            failures = runs.measure(tower.name, lambda *size, o=owner, w=way: call_tower(o, w, *size))
            if any(id(kinds[index]) in reached for index in tower.order):
                problems += failures
                break
        if not any(id(kinds[index]) in reached for index in tower.order):
            tower.problem = failures[0] if failures else {"code": "not_run", "part": tower.name}
    for kind in kinds:
        lengths = {length for samples in kind.samples.values() for _, length in samples}
        if len(lengths) == 1 and kind.plain_call is not None:
            kind.samples = {}
            runs.measure(type(kind.layer).__name__, lambda *size, k=kind: call_alone(k, *size))
    return problems


class _Runs:
    """Runs of the parts of a model, in which its layers are measured."""

    def __init__(self, model: Any, towers: list[Tower], kinds: list[Kind]) -> None:
        self._config = model.config
        self._kinds = kinds
        self._meter = CostMeter()
        self._holder: list[Any] = [None]
        # Scans work in chunks. Only whole chunks follow a polynomial.
        self._unit = max(1, *(_chunk(module) // CHUNK for kind in kinds for module in kind.layer.modules()))
        self.reached: set[int] = set()
        """id() of the kinds that a run has measured."""
        order = [(layer, index) for tower in towers for layer, index in zip(tower.layers, tower.order)]
        install(kinds, order, self._holder)

    def measure(self, part: str, call: Any) -> list[dict[str, Any]]:
        """Run one part at every size and with each attention, and return its problems."""
        problems: list[dict[str, Any]] = []
        for implementation in IMPLEMENTATIONS:
            set_implementation(self._config, implementation)
            # The first run records the operators.
            sizes = (SIZES[0], *SIZES) if implementation == IMPLEMENTATIONS[0] else SIZES
            for size in [(batch, length * self._unit) for batch, length in sizes]:
                run = self._holder[0] = MeasuredRun(self._meter, implementation, size)
                # Kinds without attention cost the same with each implementation.
                run.seen |= {id(kind) for kind in self._kinds if _is_known(kind, implementation)}
                known = set(run.seen)
                try:
                    run_model(run, lambda size=size: call(*size))
                except Exception as error:
                    problem = {"code": "not_run", "part": part, "attention": implementation, "reason": reason(error)}
                    if all(other["attention"] != implementation for other in problems):
                        problems.append(problem)
                    if os.environ.get("MEGABOARD_TRACEBACK"):
                        traceback.print_exc()
                    if run.seen == known:
                        break
                self.reached.update(run.seen - known)
        return problems


def _complete_rotary(config: Any) -> None:
    """Add the sections of multimodal rotary embeddings that a shortened config.json lacks. They change no cost."""
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        rotary = getattr(part, "rope_parameters", None)
        if not isinstance(rotary, dict) or any(isinstance(value, dict) for value in rotary.values()):
            # Settings by type of layer have no sections. Heads then may differ in width (Gemma 4).
            continue
        if "mrope_section" not in rotary and getattr(part, "num_attention_heads", None):
            width = getattr(part, "head_dim", None) or part.hidden_size // part.num_attention_heads
            rotary["mrope_section"] = [width // 2 - 2 * (3 * width // 16), 3 * width // 16, 3 * width // 16]


def _chunk(module: Any) -> int:
    sizes = (getattr(module, name, 0) for name in ("chunk_size", "block_size"))
    return max((size for size in sizes if isinstance(size, int) and size <= LARGEST_CHUNK), default=0)


def _is_text(kind: Kind, reached: set[int]) -> bool:
    return id(kind) in reached if reached else kind.group == "language"


def _is_known(kind: Kind, implementation: str) -> bool:
    return kind.keeps_shape and bool(kind.samples) and implementation not in kind.samples and not _attends(kind)


def _attends(kind: Kind) -> bool:
    return kind.operators is None or any(op["type"] == "Attention" for op in kind.operators)


def _call_text(model: Any, batch: int, length: int) -> None:
    import torch

    names = inspect.signature(model.forward).parameters
    ids = torch.zeros((batch, length), dtype=torch.long)
    extra = {name: torch.zeros_like(ids) for name in ("token_type_ids", "mm_token_type_ids") if name in names}
    if "decoder_input_ids" in names:
        extra["decoder_input_ids"] = ids
    if "use_cache" in names:
        extra["use_cache"] = False
    model(input_ids=ids, **extra)


if __name__ == "__main__":
    sys.exit(main())
