"""The rows of an evaluation as a file."""

import csv
import io

from app.monitor.evaluation import to_csv


def test_the_file_has_a_column_for_each_model_and_no_cell_is_a_formula():
    row = {"prompt": "3, plus\n4", "reference": "=1+1", "answers": {"tuned": "-7", "base": "七"}}
    text = to_csv({"rows": [row], "metrics": {"tuned": {}, "base": {}}, "missing": []})
    assert list(csv.reader(io.StringIO(text))) == [
        ["prompt", "reference", "tuned", "base"],
        ["3, plus\n4", "'=1+1", "'-7", "七"],
    ]
