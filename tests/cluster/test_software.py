import json
import time

import pytest

from backend.cluster.inventory.software import (
    NodeFacts,
    ask_software,
    needed_modules,
    python_command,
    read_all_software,
    read_software,
)
from backend.cluster.node import NodeError, Result
from backend.cluster.program_answers.checks import Facts
from backend.job.cluster import Environment
from backend.job.mapping import with_values
from tests.cluster.jobs import make_job
from tests.fakes import FakeNode

ENVIRONMENT = Environment(python="/opt/lf/bin/python")


def facts(**more: object) -> dict[str, object]:
    return {
        "home": "/home/train",
        "hostname": "gpu1",
        "python": "3.11.2",
        "machine": "4c1f",
        "modules": {"torch": "2.13.0", "transformers": "5.6.0", "llamafactory": "0.9.5"},
        "origins": {"torch": {"version": "2.13.0"}, "llamafactory": {}},
        "cuda": "12.8",
        "nccl": "2.27.3",
        "interface": "ib0",
        "time": time.time(),
        **more,
    }


def test_facts_are_read_from_one_command() -> None:
    node = FakeNode().on("facts", reply=facts(has_pip=False))
    read = read_software(node, ENVIRONMENT, master="10.0.0.1", modules={"torch": "torch"})
    assert (read.home, read.interface, read.has_pip) == ("/home/train", "ib0", False)
    (argv,) = node.ran
    assert argv[:3] == ("/opt/lf/bin/python", "-", "facts")
    assert json.loads(argv[3]) == {"master": "10.0.0.1", "modules": {"torch": "torch"}}


def test_packages_of_the_metrics_are_read_on_node_0_and_do_not_count_as_the_engine_s() -> None:
    found = {"torch": "2.13.0", "transformers": "5.6.0", "llamafactory": "0.9.5"}
    nodes = {rank: FakeNode(f"n{rank}").on("facts", reply=facts(modules={**found, "jieba": "0.42"})) for rank in (0, 1)}
    first, second = (read_all_software(make_job(nodes=2), nodes)[rank] for rank in (0, 1))
    assert isinstance(first, NodeFacts)
    assert isinstance(second, NodeFacts)
    assert (first.modules, first.metrics) == (found, {"jieba": "0.42", "nltk": None, "rouge_chinese": None})
    assert (second.modules, second.metrics) == (found, {})
    assert "jieba" not in first.versions()


def test_the_clock_offset_is_the_nodes_time_minus_ours() -> None:
    began = time.time()
    read = read_software(FakeNode().on("facts", reply=facts(time=began + 100)), ENVIRONMENT)
    took = time.time() - began
    assert read.clock_offset_s == pytest.approx(100, abs=took + 0.01)
    assert 0 <= read.clock_error_s <= took


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (Result(code=127, out="", err="timeout: failed to run command '/opt/lf/bin/python'"), "no_python"),
        (Result(code=126, out="", err="permission denied"), "no_python"),
        (Result(code=1, out="", err="SyntaxError: future feature annotations is not defined"), "bad_python"),
        (Result(code=0, out="hello\n", err=""), "bad_python"),
    ],
)
def test_an_interpreter_that_does_not_run_is_named_with_its_field(result: Result, code: str) -> None:
    job = make_job(nodes=1)
    node = FakeNode().on("facts", reply=result).on("true", reply=Result(code=0, out="", err=""))
    error = read_all_software(job, {0: node})[0]
    assert isinstance(error, NodeError)
    assert (error.problem.code, error.problem.field) == (code, "cluster.environments.llamafactory.python")
    assert error.problem.values["python"] == "/opt/lf/bin/python"


def test_a_node_with_an_environment_of_its_own_is_probed_by_that_one() -> None:
    own = {"llamafactory": {"python": "/own/python"}}
    job = make_job(nodes=1, cluster={"hosts": [{"address": "10.0.0.1", "environments": own}]})
    node = FakeNode().on("facts", reply=Result(code=127, out="", err="none"))
    error = read_all_software(job, {0: node})[0]
    assert isinstance(error, NodeError)
    assert error.problem.field == "cluster.hosts[0].environments.llamafactory.python"
    assert node.ran[0][0] == "/own/python"


def test_one_broken_node_does_not_hide_the_others() -> None:
    good, broken = FakeNode().on("facts", reply=facts()), FakeNode("10.0.0.2")
    broken.broken = NodeError("lost", "10.0.0.2", detail="gone")
    software = read_all_software(make_job(), {0: good, 1: broken})
    assert isinstance(software[0], NodeFacts)
    assert software[1] is broken.broken


@pytest.mark.parametrize(
    ("engine", "modules"),
    [
        ("llamafactory-ddp", {"torch", "transformers", "llamafactory"}),
        ("llamafactory-zero3", {"torch", "transformers", "llamafactory", "deepspeed"}),
        (
            "llamafactory-megatron",
            {"torch", "transformers", "llamafactory", "mcore_adapter", "megatron", "transformer_engine"},
        ),
        ("swift-megatron", {"torch", "transformers", "swift", "datasets", "peft", "megatron", "transformer_engine"}),
    ],
)
def test_each_engine_asks_for_what_it_imports(engine: str, modules: set[str]) -> None:
    assert set(needed_modules(make_job(engine=engine))) == modules
    assert "transformer_engine" not in needed_modules(make_job(engine=engine, cluster={"gpu": "cpu"}))


@pytest.mark.parametrize(("preset", "is_needed"), [("qwen3-vl-8b", True), ("qwen3-8b", False)])
def test_ms_swift_needs_a_package_of_its_own_for_qwen_with_images(preset: str, is_needed: bool) -> None:
    job = with_values(make_job(engine="swift-ddp"), {"model.preset": preset})
    assert ("qwen_vl_utils" in needed_modules(job)) == is_needed
    assert "qwen_vl_utils" not in needed_modules(with_values(job, {"engine": "llamafactory-ddp"}))


def test_setup_is_sourced_first_and_the_home_folder_is_the_nodes() -> None:
    plain = python_command(Environment(python="/p"), ["-"])
    home = python_command(Environment(python="~/lf/bin/python"), ["-"])
    both = python_command(Environment(python="/p", setup="/env.sh"), ["-"])
    assert plain == ["/p", "-"]
    assert home == ["sh", "-c", 'exec "$HOME/$0" "$@"', "lf/bin/python", "-"]
    assert both[0] == "bash"
    assert both[3:] == ["/env.sh", "/p", "-"]


@pytest.mark.parametrize("text", ["a!b", "x\\y", "\\\\!", 'say "hi"\n', "\\u4e2d\\n", "数据"])
def test_what_a_program_is_asked_holds_nothing_that_csh_or_fish_reads_in_quotes(text: str) -> None:
    """csh expands `!` even in quotes, and fish reads two backslashes as one."""
    node = FakeNode().on("facts", reply=facts())
    ask_software(node, ENVIRONMENT, Facts, "facts", {"name": text, text: [text]})
    argument = node.ran[0][node.ran[0].index("facts") + 1]
    assert json.loads(argument) == {"name": text, text: [text]}
    assert "!" not in argument
    assert "\\\\" not in argument
