"""A gang that makes no progress, and the nodes that it probably waits for.

static/monitor/hang.js shows it on the page. `lines` shows it on the command line and in messages.
"""

import time
from typing import Any

from app.text import t
from backend.runs.api import Stuck, stuck_words
from backend.runs.records import RunSnapshot

DAY = "%Y-%m-%d %H:%M:%S"


def values(run: RunSnapshot) -> dict[str, Any] | None:
    """Return plain values for the browser, or None while the run makes steps. Times are epoch seconds.

    Each suspect has a node, and `names` for its text. Nodes without a heartbeat are one suspect.
    """
    hang = run.standstill
    if hang is None:
        return None
    suspects = [
        *(_stuck(node) for node in hang.stuck),
        *([{"kind": "silent", "node": hang.silent[0], "nodes": hang.silent}] if hang.silent else ()),
        *(
            {"kind": "behind", "node": rank.node, "rank": rank.rank, "step": rank.step, "usual": rank.usual}
            for rank in hang.behind
        ),
        *({"kind": "earlier", "node": node.node, "since": node.wrote, "others": node.usual} for node in hang.earlier),
        *({"kind": "working", "node": rank.node, "rank": rank.rank} for rank in hang.working),
        *({"kind": "idle", "node": gpu.node, "gpu": gpu.gpu} for gpu in hang.idle),
    ]
    addresses = {node.rank: node.address for node in run.nodes}

    def named(suspect: dict[str, Any]) -> dict[str, Any]:
        nodes = suspect.get("nodes", [suspect["node"]])
        names = ", ".join(f"{node} · {addresses[node]}" for node in nodes)
        return {**suspect, "address": addresses[suspect["node"]], "names": names}

    return {
        "title": "title" if hang.step is not None else "unbegun" if hang.stuck else "waiting",
        "since": hang.since,
        "wrote": hang.wrote,
        "step": hang.step,
        "step_s": hang.step_s,
        "is_due": hang.is_due,
        "ends_at": hang.ends_at,
        "suspects": [named(suspect) for suspect in suspects],
    }


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """Return the same as lines of text, with local times. Empty while the run makes steps."""
    hang = values(run)
    if hang is None:
        return []
    head = [t(lang, f"monitor.hang.{hang['title']}", at=_moment(hang["since"], DAY))]
    if hang["step"] is not None:
        head.append(t(lang, "monitor.hang.usual", step=hang["step"], seconds=f"{hang['step_s'] or 0:.3g}"))
    elif hang["wrote"] is not None:
        head.append(t(lang, "monitor.hang.wrote", at=_moment(hang["wrote"])))
    suspects = [
        t(
            lang,
            f"monitor.hang.{suspect['kind']}",
            **{
                **suspect,
                "node": suspect["names"],
                "at": _moment(suspect.get("since")),
                "others": _moment(suspect.get("others")),
            },
        )
        for suspect in hang["suspects"]
    ]
    return [*head, *(f"- {words}" for words in suspects or [t(lang, "monitor.hang.none")])]


def _moment(epoch: float | None, pattern: str = "%H:%M:%S") -> str:
    return "" if epoch is None else time.strftime(pattern, time.localtime(epoch))


def _stuck(node: Stuck) -> dict[str, Any]:
    ranks = [rank for _, _, _, *ranks in node.processes for rank in ranks if rank is not None]
    return {
        "kind": "stuck",
        "node": node.node,
        "processes": stuck_words(node.processes),
        "ids": " ".join(str(process[0]) for process in node.processes if process[2] != "D"),
        "waits": any(process[2] == "D" for process in node.processes),
        "since": node.since,
        "rank": ranks[0] if ranks else None,
    }
