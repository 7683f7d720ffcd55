"""A pipeline layout is read as Megatron-Core reads it, and written so that it reads the same."""

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.job.pipeline_layout import LayoutError, even_layers, layers_of, layout_of, with_mtp, without_mtp
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

READ = {
    "EttttL": (4,),
    "Et*3|t*4|t*4|t*3L": (3, 4, 4, 3),
    "E,t*8|t*10|t*10|t*8,L": (8, 10, 10, 8),
    "Et*3|(tt|)*29,t|L": (3, *[2] * 29, 1, 0),
    "E|(t|)*2L": (0, 1, 1, 0),
    "E(tt|t)*2L": (2, 3, 1),
}
MEGATRON = """
import json, sys
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

parse = PipelineParallelLayerLayout.parse_str_to_list
names = [[[layer.name for layer in piece] for piece in parse(text)] for text in json.loads(sys.argv[1])]
print(json.dumps([[[piece.count("decoder") for piece in text], text[-1].count("mtp")] for text in names]))
"""


@pytest.mark.parametrize(("text", "layers"), READ.items())
def test_a_layout_says_the_layers_of_each_piece(text, layers):
    assert layers_of(text) == layers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Et*3|m|t*3L", "letters"),
        ("Et*3|(t*2|t*3L", "letters"),
        ("E((t|)*2)*2L", "letters"),
        ("t*4|t*4L", "ends"),
        ("Et*4|t*4", "ends"),
        ("Et*4|Et*4L", "ends"),
        ("", "ends"),
        ("E(t*9999)*9999L", "long"),
        ("Et*9999L", "long"),
        ("Et*99999L", "long"),
    ],
)
def test_what_is_no_layout_says_why(text, reason):
    with pytest.raises(LayoutError) as raised:
        layers_of(text)
    assert raised.value.reason == reason


@pytest.mark.parametrize("text", ["Et*3|t*3mL", "Et*3|t*3,m*2,L", "Et*3|t*3mmL"])
def test_layers_for_multi_token_prediction_are_not_in_the_jobs_layout(text):
    assert layers_of(without_mtp(text)) == (3, 3)


def test_the_engine_gets_layers_for_multi_token_prediction_before_the_output_layer():
    assert with_mtp("Et*3|t*3L", 0) == "Et*3|t*3L"
    assert with_mtp("Et*3|t*3L", 2) == "Et*3|t*3mmL"
    assert without_mtp(with_mtp("E,t*3|t*3,L", 1)) == "E,t*3|t*3L"


@given(st.integers(1, 200), st.integers(1, 64))
def test_an_even_layout_holds_every_layer_and_no_piece_has_two_more_to_do_than_another(layers, pieces):
    result = even_layers(layers, pieces)
    if result is None:
        assert pieces == 1 or layers + 2 < 2 * pieces
        return
    assert (sum(result), len(result)) == (layers, pieces)
    assert min(result) > 0
    work = [result[0] + 1, *result[1:-1], result[-1] + 1]
    assert max(work) - min(work) <= 1
    assert layers_of(layout_of(result)) == result


@pytest.mark.e2e
@needs_node_environment
def test_megatron_reads_the_same():
    written = [layout_of(result) for pieces in (2, 4, 7, 16) if (result := even_layers(61, pieces))]
    texts = [*READ, *written]
    predicting = [with_mtp(text, 2) for text in texts]
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", MEGATRON, json.dumps([*texts, *predicting])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read == [[list(layers_of(text)), predictors] for predictors in (0, 2) for text in texts]
