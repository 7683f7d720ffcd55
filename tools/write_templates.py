"""Write presets/templates.yaml: the chat templates of the LLaMA-Factory in .venv-node.

python -m tools.write_templates
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tools.programs import NODE_PYTHON

FILE = Path(__file__).parents[1] / "presets" / "templates.yaml"
HEAD = """\
# The chat templates that LLaMA-Factory registers (llamafactory/data/template.py). Written by tools/write_templates.py,
# which asks the installed package; test_real_parser.py compares.
"""
# The registry keeps no template for models without `Instruct` or `Chat` in the name, so its source is read.
_QUESTION = """
import ast, importlib.metadata, inspect, json
from llamafactory.data.template import TEMPLATES
from llamafactory.extras import constants

groups = {}
for call in ast.walk(ast.parse(inspect.getsource(constants))):
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "register_model_group":
        given = {key.arg: key.value for key in call.keywords}
        template = given["template"].value if "template" in given else None
        for sources in given["models"].values:
            hubs = {place.attr: hub.value for place, hub in zip(sources.keys, sources.values)}
            groups[hubs.get("DEFAULT")] = template
print(json.dumps({
    "version": importlib.metadata.version("llamafactory"), "templates": sorted(TEMPLATES), "groups": groups,
}))
"""


def ask_templates() -> dict[str, Any]:
    """Return version, templates, and groups: hub repository -> template of its model group."""
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", _QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    answer = ask_templates()
    kept = {"version": answer["version"], "templates": answer["templates"]}
    FILE.write_text(HEAD + yaml.safe_dump(kept, default_flow_style=None, sort_keys=False, width=110), encoding="utf-8")


if __name__ == "__main__":
    main()
