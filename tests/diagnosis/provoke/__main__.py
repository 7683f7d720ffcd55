"""Command line of the package."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from app.demo import tiny_model
from tests.diagnosis.provoke.causes import CAUSES
from tests.diagnosis.provoke.gang import ROOT, Gang, run_node_python
from tests.diagnosis.provoke.healthy import HEALTHY
from tools import tiny_data

TESTS = ROOT / "tests" / "diagnosis"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.diagnosis.provoke", description="Provoke real failures")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "provoked-failures")
    options = parser.parse_args()
    if unknown := set(options.names) - CAUSES.keys() - HEALTHY.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if not (work / tiny_model.MODEL_FOLDER).exists():
        run_node_python(tiny_model.__file__, work)
        tiny_data.write_datasets(work)
    return max([provoke(work, name) for name in options.names or [*CAUSES, *HEALTHY]])


def provoke(work: Path, name: str) -> int:
    """Run one cause and keep its logs. Return 1 if it did not end as expected."""
    gang = Gang(work, name, CAUSES.get(name) or HEALTHY[name])
    for folder in (gang.run, work / "out" / name):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        gang.start()
    finally:
        exits = gang.finish()
    print(name, exits, flush=True)
    if any(exits.values()) == gang.cause.ends_well:
        return 1
    if name in HEALTHY:
        gang.keep_healthy(TESTS / "healthy")
    else:
        shutil.rmtree(TESTS / "provoked" / name, ignore_errors=True)
        gang.keep(TESTS / "provoked" / name, exits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
