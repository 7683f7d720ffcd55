"""A gang that makes no progress: who the others wait for, as far as can be told. On the page static/monitor/hang.js
says it, on the command line `lines`.
"""

import time
from typing import Any

from app.text import t
from backend.runs.api import Stuck, stuck_words
from backend.runs.records import RunSnapshot

DAY = "%Y-%m-%d %H:%M:%S"


def standstill(run: RunSnapshot) -> dict[str, Any] | None:
    """Plain values for the browser; times are epochs. `suspects`: each with its kind and its node."""
    found = run.standstill
    if found is None:
        return None
    suspects = [
        *(_stuck(one) for one in found.stuck),
        *({"kind": "silent", "node": rank} for rank in found.silent),
        *(
            {"kind": "behind", "node": one.node, "rank": one.rank, "step": one.step, "usual": one.usual}
            for one in found.behind
        ),
        *({"kind": "earlier", "node": one.node, "since": one.wrote, "others": one.usual} for one in found.earlier),
        *({"kind": "working", "node": one.node, "rank": one.rank} for one in found.working),
        *({"kind": "idle", "node": one.node, "gpu": one.gpu} for one in found.idle),
    ]
    addresses = {node.rank: node.address for node in run.nodes}
    return {
        "title": "title" if found.step is not None else "unbegun" if found.stuck else "waiting",
        "since": found.since,
        "wrote": found.wrote,
        "step": found.step,
        "step_s": found.step_s,
        "is_due": found.is_due,
        "ends_at": found.ends_at,
        "suspects": [{**one, "address": addresses[one["node"]]} for one in suspects],
    }


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """The same in words, with this machine's times; empty while there are steps."""
    found = standstill(run)
    if found is None:
        return []
    head = [t(lang, f"monitor.standstill.{found['title']}", at=_moment(found["since"], DAY))]
    if found["step"] is not None:
        head.append(t(lang, "monitor.standstill.usual", step=found["step"], seconds=f"{found['step_s'] or 0:.3g}"))
    elif found["wrote"] is not None:
        head.append(t(lang, "monitor.standstill.wrote", at=_moment(found["wrote"])))
    told = [
        t(
            lang,
            f"monitor.standstill.{one['kind']}",
            **{
                **one,
                "node": f"{one['node']} · {one['address']}",
                "at": _moment(one.get("since")),
                "others": _moment(one.get("others")),
            },
        )
        for one in found["suspects"]
    ]
    return [*head, *(f"- {words}" for words in told or [t(lang, "monitor.standstill.none")])]


def _moment(epoch: float | None, shape: str = "%H:%M:%S") -> str:
    return "" if epoch is None else time.strftime(shape, time.localtime(epoch))


def _stuck(one: Stuck) -> dict[str, Any]:
    ranks = [rank for _, _, _, *ranks in one.processes for rank in ranks if rank is not None]
    return {
        "kind": "stuck",
        "node": one.node,
        "processes": stuck_words(one.processes),
        "ids": " ".join(str(process[0]) for process in one.processes if process[2] != "D"),
        "waits": any(process[2] == "D" for process in one.processes),
        "since": one.since,
        "rank": ranks[0] if ranks else None,
    }
