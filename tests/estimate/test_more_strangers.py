"""Published runs of sources that only the level of times and the intervals are made with."""

import json

import pytest

from benchmarks.fits import published_rows
from benchmarks.shapes import DATA
from benchmarks.strangers import figures

FILE = "more_strangers.json"
OTHERS = ("strangers.json", "published_memory.json", "published_throughput.json")
ROWS = published_rows(FILE)
FIGURES = figures(ROWS)


def test_every_row_has_a_quote_an_address_what_was_guessed_and_a_figure():
    assert len({row["id"] for row in ROWS}) == len(ROWS) == 346
    for row in ROWS:
        assert row["quote"], row["id"]
        assert row["source_url"].startswith("https://"), row["id"]
        assert isinstance(row["blind"]["guessed"], list), row["id"]
        assert any(row.get(name) for name in (
            "measured_mem_gb", "measured_tokens_per_s_per_gpu", "measured_iter_s", "measured_tflops_per_gpu"
        )), row["id"]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_no_source_is_in_another_file_or_in_the_fitted_constants(name):
    sources = {row["source"] for row in ROWS}
    assert not sources & {row["source"] for row in published_rows(name)}
    assert not sources & set(json.loads((DATA / "leave_one_out.json").read_text()))


@pytest.mark.parametrize(("name", "rows", "median", "inside"), [("memory", 198, 0.11, 0.78), ("time", 216, 0.15, 0.80)])
def test_the_errors_are_not_larger_than_the_docs_say(name, rows, median, inside):
    entry = FIGURES[name]["all"]
    assert entry["rows"] == rows
    assert entry["median"] < median
    assert entry["inside"] > inside * rows


def test_no_run_that_ran_is_said_not_to_fit():
    assert FIGURES["judged"] > 100
    assert FIGURES["refused"] == 0
