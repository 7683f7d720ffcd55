"""`megaboard preset`: list, show, save and delete own presets. `preset show NAME | megaboard plan -` plans one."""

import argparse

from app.cli.output import DONE, print_problems
from app.home import home_path, make_home
from app.jobfile import read_job
from app.own_presets import delete_preset, own_presets, read_preset, refuse_secrets, save_preset
from app.text import t
from app.web.audit import Audit
from backend.job.mapping import dump_job, dump_mapping
from backend.job.presets import recipes


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the actions of `preset` and their options."""
    actions = parser.add_subparsers(metavar="ACT", required=True)
    for action, run in (("list", run_list), ("show", run_show), ("save", run_save), ("delete", run_delete)):
        text = t(lang, f"cli.preset.{action}.help")
        sub = actions.add_parser(action, help=text, description=text)
        if action == "list":
            sub.add_argument("--recipes", action="store_true", help=t(lang, "cli.preset.recipes.help"))
        else:
            sub.add_argument("name", metavar="NAME", help=t(lang, "cli.preset.name.help"))
        if action == "save":
            sub.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
            sub.add_argument("--replace", action="store_true", help=t(lang, "cli.preset.replace.help"))
        sub.set_defaults(run=run)


def run_list(args: argparse.Namespace, lang: str) -> int:
    """Print one name per line; for recipes also their source."""
    if args.recipes:
        for name, recipe in recipes().items():
            print(f"{name}  {recipe['source']}")
    else:
        for name in own_presets(home_path()):
            print(name)
    return DONE


def run_show(args: argparse.Namespace, lang: str) -> int:
    """Print the job file of an own preset, or of a recipe."""
    home, name = home_path(), args.name
    recipe = recipes().get(name) if name not in own_presets(home) else None
    print(dump_mapping({"version": 1, "name": name, **recipe["job"]}) if recipe else read_preset(home, name), end="")
    return DONE


def run_save(args: argparse.Namespace, lang: str) -> int:
    """Save a job file as a preset. A named cluster and a config.json are copied into it."""
    job, problems = read_job(args.file, home_path())
    print_problems(lang, problems)
    refuse_secrets(job)
    home = make_home(home_path())
    Audit(home).record("save_preset", name=args.name)
    save_preset(home, args.name, dump_job(job), replace=args.replace)
    return DONE


def run_delete(args: argparse.Namespace, lang: str) -> int:
    """Delete an own preset."""
    home = make_home(home_path())
    Audit(home).record("delete_preset", name=args.name)
    delete_preset(home, args.name)
    return DONE
