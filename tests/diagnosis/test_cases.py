"""The kept logs of provoked failures and healthy runs have the form that the tests of the diagnosis expect."""

import re
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
CASES = sorted((HERE / "provoked").iterdir())
LOGS = [*HERE.glob("provoked/*/node*/*.log"), *HERE.glob("healthy/*.log")]
MACHINE_PATH = re.compile(r"/root/|/work/|/tmp/(?!torchelastic|pip|torch_)|_tmp_|\.pyenv")


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_case_says_what_was_done_and_blames_a_node_that_has_logs(folder: Path) -> None:
    case = yaml.safe_load((folder / "case.yaml").read_text())
    assert case.keys() == {"category", "how", "node", "rank", "exits", "versions"}
    assert case["how"].endswith(".")
    assert {path.name for path in folder.glob("node*")} == case["exits"].keys()
    assert all((folder / node / "out.log").exists() for node in case["exits"])
    assert case["node"] is None or f"node{case['node']}" in case["exits"]
    assert case["rank"] is None or case["node"] is not None


def test_kept_logs_are_short_and_name_no_path_of_the_machine_that_made_them() -> None:
    assert not [log for log in LOGS if log.stat().st_size > 40 * 1024]
    foreign = {log: match[0] for log in LOGS if (match := MACHINE_PATH.search(log.read_text()))}
    assert not foreign
