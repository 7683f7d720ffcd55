"""Both languages have every text that the monitor's scripts and the server use."""

import re
from pathlib import Path

import pytest

from app.monitor import utilization
from app.text import LANGUAGES, catalogue
from backend.runs.states import EventKind, RunState

STATIC = Path(__file__).parents[2] / "static"
SCRIPTS = ("lib/*.js", "web/*.js", "monitor/*.js")
NODE_STATES = ("pending", "starting", "running", "unreachable", "stopping", "finished", "failed", "stopped", "lost")
REASONS = ("finished", "failed", "stopped", "stalled", "lock_held", "start_failed")
CURVES = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "step_s")


def _keys() -> set[str]:
    text = "".join(path.read_text(encoding="utf-8") for pattern in SCRIPTS for path in STATIC.glob(pattern))
    keys = set(re.findall(r'\bw\(\s*"([\w.]+)"', text))
    keys |= {f"state.{state}" for state in RunState} | {f"event.{kind}" for kind in EventKind}
    keys |= {f"node_state.{state}" for state in NODE_STATES} | {f"reason.{reason}" for reason in REASONS}
    keys |= {f"chart.{name}" for name in CURVES} | {f"series.{name}" for name in (*CURVES, "loss_smooth", "loss_bad")}
    keys |= {
        f"hang.{kind}"
        for kind in ("title", "unbegun", "waiting", "stuck", "silent", "behind", "earlier", "working", "idle", "none")
    }
    keys |= {f"usage.{kind}{name}" for kind in ("", "value.", "unit.") for name in utilization.MEASURES}
    keys |= {f"usage.{kind}.{name}" for kind in ("now", "worst", "note") for name in ("utilization", "memory", "power")}
    keys |= {f"usage.{name}" for name in ("node", "last", "lowest", "highest", "worst")}
    keys |= {f"trend.{trend}" for trend in ("falling", "rising", "flat", "none")}
    keys |= {"event.stop_requested_save", "event.failing_unstarted", "event.failing_slow"}
    for prefix, table in (("fact", "FACTS"), ("node", "COLUMNS"), ("heat", "MEASURES"), ("column", "NAMES")):
        listed = re.search(rf"const {table} = \[([^\]]+)\]", text)
        assert listed, table
        keys |= {f"{prefix}.{name}" for name in re.findall(r'"(\w+)"', listed[1])}
    return keys


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_key_has_a_text(lang):
    assert not {key for key in _keys() if f"monitor.{key}" not in catalogue(lang)}
