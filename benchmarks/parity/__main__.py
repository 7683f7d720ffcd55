"""Run the parity suite, keep the result of each case as it ends, and write docs/parity.*.md from all that are kept.

    python -m benchmarks.parity FOLDER [WORD ...] [--docs]

Only cases whose name has one of the words run; with --docs none runs. FOLDER gets models, data, logs and
`results.json`. Needs .venv-node with .venv-node/extra; Megatron needs MEGABOARD_MCORE_ADAPTER (tools/programs.py).
"""

import argparse
import json
from pathlib import Path

from benchmarks.parity.cases import CASES, MEGATRON
from benchmarks.parity.page import write_pages
from benchmarks.parity.runs import ParityRuns
from tools.programs import mcore_adapter_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    kept = given.folder / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    chosen = {
        name: case
        for name, case in CASES.items()
        if (not given.words or any(word in name for word in given.words))
        and (case.engine != MEGATRON or mcore_adapter_source())
    }
    for name, result in ParityRuns(given.folder).run({} if given.docs else chosen):
        results[name] = result
        kept.write_text(json.dumps(results, indent=1))
        print(
            name, result["error"], [(step["loss"], round(step["grad_norm"], 5)) for step in result["steps"]], flush=True
        )
    if given.docs:
        write_pages(results)


if __name__ == "__main__":
    main()
