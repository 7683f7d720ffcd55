"""Data that is tokenised once on one of two nodes: real sshd, supervisors, torchrun, LLaMA-Factory, on CPU."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from backend.cluster.demo_model import DATA_FOLDER
from tests.e2e.engine_runs import NODE_ENVIRONMENT, NODE_PYTHON, STEPS, Case, Site
from tests.nodes import ssh_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEXTS = """
import json, sys, datasets, tokenizers
tokenizer, rows = tokenizers.Tokenizer.from_file(sys.argv[2]), datasets.load_from_disk(sys.argv[1])["train"]
print(json.dumps([tokenizer.decode(row["input_ids"]) for row in rows]))
"""
SHUFFLED = Case(engine="llamafactory-ddp", values={"training.prepare.shuffle": True})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not (NODE_ENVIRONMENT / ".ready").exists():
        pytest.skip("no .venv-node: run `make environments`")
    with ssh_nodes(tmp_path_factory.mktemp("prepare"), nodes=2) as cluster:
        yield Site(cluster)


def test_one_node_tokenises_in_the_order_of_the_seed_and_all_ranks_load_it(site: Site) -> None:
    outcome = site.run("prepared", SHUFFLED)
    assert outcome.state == 0, outcome.output
    assert [row["step"] for row in outcome.steps[0]] == list(range(1, STEPS + 1))
    (first,) = site.folder.glob("run/*/1/node0")
    maker, waiter = (first.with_name(f"node{rank}") for rank in range(2))
    assert "Running tokenizer on dataset" in (maker / "out.log").read_text()
    for node in (maker, waiter):
        log = next(node.glob("rank*.log")).read_text()
        assert "Running tokenizer on dataset" not in log
        assert "Loaded tokenized dataset from" in log or node is waiter  # rank 0 alone logs it
    target = Path(yaml.safe_load((waiter / "config.yaml").read_text())["tokenized_path"])
    record = json.loads((target / "megaboard.json").read_text())
    assert (record["shuffle"], record["megatron"]) == (42, False)
    before = [row["instruction"] for row in json.loads((site.folder / DATA_FOLDER / "demo.json").read_text())]
    after = texts(target, site.model("text"))
    order = [next(number for number, text in enumerate(after) if f"user\n{question}" in text) for question in before]
    assert sorted(order) == list(range(len(before)))
    assert order != sorted(order)


def texts(data: Path, model: Path) -> list[str]:
    """Every sample as text, in order."""
    command = [NODE_PYTHON, "-c", TEXTS, str(data), str(model / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))
