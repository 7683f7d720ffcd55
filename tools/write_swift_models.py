"""Write presets/swift_models.yaml: the models and chat templates that ms-swift registers.

    python -m tools.write_swift_models

Needs an interpreter with ms-swift (tools/programs.py).
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tools.programs import swift_python

FILE = Path(__file__).parents[1] / "presets" / "swift_models.yaml"
HEAD = """\
# The models that ms-swift registers (https://pypi.org/project/ms-swift/ swift/model/models/*.py). Written by
# tools/write_swift_models.py, which asks the installed package; tests/engines/test_swift_models.py compares.
# templates: the chat templates of each of its model types; types: architecture, or Hugging Face model type, ->
# its model type; models: names on hubs, in small letters, by its model type and template; transformers: the versions
# that it asks for in the log, by its model type, where 4.55 to 5.6 are not all of them.
"""
# If several of its types have an architecture, it asks for one. Most are models for embeddings, or old chat models.
_QUESTION = """
import json, re, swift
from swift.model import MODEL_MAPPING
from transformers.models.auto import modeling_auto as auto

def likeliest(found, name):
    plain = [kind for kind in found if not re.search("emb|reranker|gte|gme|openbuddy|codellama", kind)]
    return name if name in found else (plain or found)[0]

def asked(meta):
    # The versions of transformers, unless they are all of the usual ones.
    from packaging.requirements import Requirement
    found = [Requirement(text).specifier for text in meta.requires if text.startswith("transformers")]
    usual = ("4.55.0", "4.57.6", "5.0.0", "5.5.4", "5.6.0", "5.19.0")
    return [str(spec) for spec in found if not all(spec.contains(version, prereleases=True) for version in usual)]

templates, architectures, models, transformers = {}, {}, {}, {}
for kind, meta in MODEL_MAPPING.items():
    groups = [(group.template or meta.template, group) for group in meta.model_groups]
    templates[kind] = list(dict.fromkeys(name for name in [meta.template, *(name for name, _ in groups)] if name))
    if asked(meta):
        [transformers[kind]] = asked(meta)
    for architecture in meta.architectures:
        architectures.setdefault(architecture, []).append(kind)
    for template, group in groups:
        for model in group.models:
            for place in (model.ms_model_id, model.hf_model_id):
                if place:
                    models.setdefault(place.rsplit("/", 1)[-1].lower(), (kind, template))
# Of a text and of a whole model, the whole one.
classes = {**auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
types = {name: likeliest(architectures[class_name], name) for name, class_name in classes.items()
         if isinstance(class_name, str) and class_name in architectures}
types.update({name: likeliest(found, "") for name, found in architectures.items() if name != "null"})
print("ANSWER" + json.dumps({"version": swift.__version__, "templates": templates, "types": types, "models": models,
                            "transformers": transformers}))
"""


def ask_models(python: str) -> dict[str, Any]:
    """Return version, templates, types, models as name -> (model type, template), and versions of transformers."""
    command = [python, "-W", "ignore", "-c", _QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
    return answer


def kept(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer in the form of the file."""
    models: dict[str, dict[str, list[str]]] = {}
    for name, (kind, template) in answer["models"].items():
        models.setdefault(kind, {}).setdefault(template, []).append(name)
    return {**answer, "models": models}


def main() -> None:
    python = swift_python()
    if python is None:
        raise SystemExit("no ms-swift here (tools/programs.py)")
    text = yaml.safe_dump(kept(ask_models(python)), default_flow_style=None, sort_keys=False, width=118)
    FILE.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
