"""`megaboard nodes`: the nodes that are kept out since a spare took their place, and how to use one again."""

import argparse

from app.cli.common import open_services
from app.cli.output import DONE, print_json
from app.text import render_problem, t


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `nodes`."""
    parser.add_argument("--clear", metavar="NODE", help=t(lang, "cli.nodes.clear.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Clear a node, or print the nodes that are kept out with their reasons."""
    with open_services() as services:
        if args.clear:
            services.controller.uncordon(args.clear)
        cordons = list(services.controller.cordons().values())
    words = [render_problem(lang, cordon.problem)["message"] for cordon in cordons]
    if args.json:
        print_json(
            [
                {
                    "node": cordon.node,
                    "run": cordon.run,
                    "time": cordon.time,
                    "code": cordon.problem.code,
                    "message": why,
                }
                for cordon, why in zip(cordons, words, strict=True)
            ]
        )
        return DONE
    for cordon, why in zip(cordons, words, strict=True):
        print(t(lang, "cli.nodes.kept_out", node=cordon.node, run=cordon.run, why=why))
    if not cordons:
        print(t(lang, "cli.nodes.none"))
    return DONE
