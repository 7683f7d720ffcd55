"""`megaboard model ID`: the config.json of a model of the Hugging Face hub, for a job's `model.hf_config`."""

import argparse
import sys

from app.cli.output import DONE, print_problems
from app.model_config import from_hub, pretty, read_config
from app.text import t
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.unestimated import UnestimatedModel


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    parser.add_argument("id", metavar="ID", help=t(lang, "cli.model.id.help"))
    parser.set_defaults(run=run_model)


def run_model(chosen: argparse.Namespace, lang: str) -> int:
    """Print the configuration, and on standard error what it was understood as; ProblemsError where it is none."""
    config, shape = read_config(from_hub(chosen.id), chosen.id)
    if isinstance(shape, UnestimatedModel):
        print_problems(lang, [shape.reason])
        print(pretty(config))
        return DONE
    billions = model_parameters(model_layers(shape)) / 1e9
    print(t(lang, "cli.model.read", id=chosen.id, type=shape.model_type, billions=f"{billions:.3f}"), file=sys.stderr)
    print(pretty(config))
    return DONE
