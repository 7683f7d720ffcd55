"""Write docs/models.en.md and docs/models.zh.md: what is known of every model type that LLaMA-Factory loads.

    python -m tools.write_models                        (make docs)
    python -m tools.write_models --measure [--peaks] [--profiles] [--steps FILE]
    python -m tools.write_models --measure-newer

The pages are made from benchmarks/data/families.json; newer_types.json, for types that only a later transformers has;
and, for models with code of their own, own_code.json. `--measure-newer` writes newer_types.json anew. `--measure`
writes families.json anew: the number of parameters by benchmarks/families.py, and the operations by
benchmarks/flops_counted.py; with `--peaks` the memory of a step by benchmarks/step_peak.py (half an hour); with
`--profiles` a profile of every other type; with `--steps` the losses that tests/engines/test_families.py found, from a
file.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.text import LANGUAGES, t
from tools.programs import NEWER_PYTHON, NODE_PYTHON

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "data" / "families.json"
NEWER_TYPES = DATA.with_name("newer_types.json")
OWN_CODE = DATA.with_name("own_code.json")
_LANGUAGES = {"en": "English", "zh": "中文"}
_CHECKPOINTS, _NO_CHECKPOINTS, _LORA = "", ", no checkpointing", ", LoRA"
_COLUMNS = ("type", "parameters", "flops", "peak", "peak_none", "peak_lora", "peak_lora_none", "step")


def read_data() -> dict[str, Any]:
    """Return what was measured: `types`, `profiles`, `flops`, `peaks`, `steps`, each by model type."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def read_newer_types() -> dict[str, Any]:
    """Return the version of `transformers`, and of its types that families.json lacks: `types`, `flops`, `peaks`."""
    data: dict[str, Any] = json.loads(NEWER_TYPES.read_text(encoding="utf-8"))
    return data


def read_own_code() -> dict[str, dict[str, Any]]:
    """Return real models whose code is in their folder, by name."""
    models: dict[str, dict[str, Any]] = json.loads(OWN_CODE.read_text(encoding="utf-8"))
    return models


def count(data: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of types that the page and the README name."""
    types: Mapping[str, Mapping[str, Any]] = data["types"]
    newer = read_newer_types()["types"]
    exact, later = _exact(types), _exact(newer)
    by_profile, own = _by_profile(data), _types_of_own_code()
    counts = {
        "types": len(types),
        "exact": len(exact),
        "profile": len(by_profile),
        "own": len(own),
        "newer": len(later),
        "unknown": len(newer) - len(later),
        "rest": len(types.keys() - exact.keys() - {*by_profile} - own),
        "flops": len(data["flops"]),
        "peaks": len(data["peaks"]),
        "steps": len([loss for loss in data["steps"].values() if not isinstance(loss, str)]),
    }
    return counts | {"estimated": len(exact.keys() | later.keys() | own)}


def _exact(types: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: each for name, each in types.items() if each["status"] == "exact"}


def _by_profile(data: Mapping[str, Any]) -> list[str]:
    exact = _exact(data["types"])
    return sorted(name for name, code in data["profiles"].items() if code == "exact" and name not in exact)


def _types_of_own_code() -> set[str]:
    return {model["config"]["model_type"] for model in read_own_code().values()}


def page(lang: str, data: Mapping[str, Any]) -> str:
    """Return the page in one language, as Markdown."""
    other = next(name for name in LANGUAGES if name != lang)
    types: Mapping[str, Mapping[str, Any]] = data["types"]
    newer = read_newer_types()
    exact, later, by_profile = _exact(types), _exact(newer["types"]), _by_profile(data)
    unknown = sorted(newer["types"].keys() - later.keys())
    rest = {name: types[name] for name in types.keys() - exact.keys() - {*by_profile} - _types_of_own_code()}
    counts = {**count(data), "transformers": newer["transformers"]}
    return "\n\n".join(
        [
            f"# {t(lang, 'models.title')}",
            f"[{_LANGUAGES[other]}](models.{other}.md)",
            t(lang, "models.lead", **counts),
            t(lang, "models.made"),
            f"## {t(lang, 'models.exact', **counts)}",
            t(lang, "models.columns", **counts),
            _table(lang, _COLUMNS, _known(lang, exact, data)),
            f"## {t(lang, 'models.newer', **counts)}",
            t(lang, "models.newer.lead", **counts),
            _table(lang, _COLUMNS[:-1], [row[:-1] for row in _known(lang, later, newer | {"steps": {}})]),
            t(lang, "models.newer.rest", **counts),
            ", ".join(f"`{name}`" for name in unknown),
            f"## {t(lang, 'models.own', **counts)}",
            t(lang, "models.own.lead"),
            _table(lang, ("type", "model", "parameters", "checked", "published"), _own(lang, read_own_code())),
            f"## {t(lang, 'models.profile', **counts)}",
            t(lang, "models.profile.lead"),
            ", ".join(f"`{name}`" for name in by_profile),
            f"## {t(lang, 'models.rest', **counts)}",
            t(lang, "models.rest.lead"),
            _table(lang, ("type", "loader", "reason"), _unknown(lang, rest)),
        ]
    ) + "\n"  # fmt: skip


def _known(lang: str, exact: Mapping[str, Mapping[str, Any]], data: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, each in sorted(exact.items()):
        peaks, loss = data["peaks"].get(name, {}), data["steps"].get(name)
        step = "" if loss is None else t(lang, "models.refused") if isinstance(loss, str) else f"{loss:.2f}"
        cells = [
            _percent(peaks.get(method + kind)) for method in ("", _LORA) for kind in (_CHECKPOINTS, _NO_CHECKPOINTS)
        ]
        rows.append([f"`{name}`", f"{each['ours']:,}", _percent(data["flops"].get(name)), *cells, step])
    return rows


def _own(lang: str, models: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for name, each in sorted(models.items(), key=lambda item: (item[1]["config"]["model_type"], item[0])):
        published = t(lang, f"models.published.{each['published']}") if each["published"] else ""
        checked = t(lang, f"models.checked.{each['checked']}")
        rows.append([f"`{each['config']['model_type']}`", name, f"{each['parameters']:,}", checked, published])
    return rows


def _unknown(lang: str, rest: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return one row for each class and reason, with its types."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, each in sorted(rest.items()):
        reason = each["reason"] if each["status"] == "refused" else each["status"]
        groups.setdefault((each["loader"], reason), []).append(f"`{name}`")
    return [
        [", ".join(names), loader if loader != "remote code" else "-", t(lang, f"models.reason.{reason}")]
        for (loader, reason), names in sorted(groups.items())
    ]


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}".replace("-0.0%", "+0.0%")


def _table(lang: str, columns: tuple[str, ...], rows: list[list[str]]) -> str:
    head = [t(lang, f"models.column.{name}") for name in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def measure(peaks: bool, profiles: bool, steps: Path | None) -> None:
    """Write the data anew. What is not measured stays."""
    data = read_data() if DATA.exists() else {"peaks": {}, "profiles": {}, "steps": {}}
    data["types"] = _printed("benchmarks.families", "--json")
    if profiles:
        data["profiles"] = _printed("benchmarks.families", "--profiles")
    data["flops"] = _relative(_printed("benchmarks.flops_counted", "--json"))
    if peaks:
        lora = _printed("benchmarks.step_peak", "--families", "--lora", "--json")
        data["peaks"] = _errors({**_printed("benchmarks.step_peak", "--families", "--json"), **lora})
    if steps:
        data["steps"] = json.loads(steps.read_text(encoding="utf-8"))
    DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def measure_newer() -> None:
    """Write newer_types.json anew, in the environment of `make engines` that has the later transformers."""
    flops = _printed("benchmarks.flops_counted", "--newer", "--json", python=NEWER_PYTHON)
    peaks: dict[str, Any] = {}
    for options in ([], ["--lora"]):
        peaks |= _printed("benchmarks.step_peak", "--newer", *options, "--json", python=NEWER_PYTHON)
    data = _printed("benchmarks.families", "--newer", python=NEWER_PYTHON)
    data |= {"flops": _relative(flops), "peaks": _errors(peaks)}
    NEWER_TYPES.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _relative(counted: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    return {name: round(ours / torchs - 1, 4) + 0.0 for name, (torchs, ours) in counted.items()}


def _errors(peaks: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
    """Return model type -> {'', ', no checkpointing', ', LoRA' or both: our error}, from the lines of step_peak."""
    errors: dict[str, dict[str, float]] = {}
    for case, (torchs, ours) in peaks.items():
        kind = (_LORA if _LORA in case else "") + (_NO_CHECKPOINTS if case.endswith(_NO_CHECKPOINTS) else _CHECKPOINTS)
        errors.setdefault(case.partition(",")[0], {})[kind] = round(ours / torchs - 1, 4)
    return errors


def _printed(module: str, *arguments: str, python: Path = NODE_PYTHON) -> Any:
    command = [str(python), "-W", "ignore", "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def main() -> None:
    """Measure if asked to, and write the pages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--profiles", action="store_true")
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--measure-newer", action="store_true")
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.peaks, chosen.profiles, chosen.steps)
    if chosen.measure_newer:
        measure_newer()
    data = read_data()
    for language in LANGUAGES:
        (ROOT / "docs" / f"models.{language}.md").write_text(page(language, data), encoding="utf-8")


if __name__ == "__main__":
    main()
