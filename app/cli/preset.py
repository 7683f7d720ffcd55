"""`preset`: the user's own presets, and the recipes. `preset show NAME | megaboard plan -` plans one."""

import argparse

from app.cli.output import DONE, print_problems
from app.home import home_path, make_home
from app.jobfile import read_job
from app.own_presets import delete_preset, keep_preset, own_presets, read_preset, refuse_secrets
from app.text import t
from app.web.audit import Audit
from backend.job.mapping import dump_job, dump_mapping
from backend.job.presets import recipes


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    acts = parser.add_subparsers(metavar="ACT", required=True)
    for act, run in (("list", run_list), ("show", run_show), ("save", run_save), ("delete", run_delete)):
        words = t(lang, f"cli.preset.{act}.help")
        sub = acts.add_parser(act, help=words, description=words)
        if act == "list":
            sub.add_argument("--recipes", action="store_true", help=t(lang, "cli.preset.recipes.help"))
        else:
            sub.add_argument("name", metavar="NAME", help=t(lang, "cli.preset.name.help"))
        if act == "save":
            sub.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
            sub.add_argument("--replace", action="store_true", help=t(lang, "cli.preset.replace.help"))
        sub.set_defaults(run=run)


def run_list(args: argparse.Namespace, lang: str) -> int:
    """A name a line; of recipes also whose case it is."""
    if args.recipes:
        for name, recipe in recipes().items():
            print(f"{name}  {recipe['source']}")
    else:
        for name in own_presets(home_path()):
            print(name)
    return DONE


def run_show(args: argparse.Namespace, lang: str) -> int:
    """The job file of a preset, or of the recipe of that name."""
    home, name = home_path(), args.name
    recipe = recipes().get(name) if name not in own_presets(home) else None
    print(dump_mapping({"version": 1, "name": name, **recipe["job"]}) if recipe else read_preset(home, name), end="")
    return DONE


def run_save(args: argparse.Namespace, lang: str) -> int:
    """Keep a job file, with what it names of this machine (a cluster, a config.json) written out."""
    job, problems = read_job(args.file, home_path())
    print_problems(lang, problems)
    refuse_secrets(job)
    home = make_home(home_path())
    Audit(home).record("save_preset", name=args.name)
    keep_preset(home, args.name, dump_job(job), replace=args.replace)
    return DONE


def run_delete(args: argparse.Namespace, lang: str) -> int:
    """Forget the preset."""
    home = make_home(home_path())
    Audit(home).record("delete_preset", name=args.name)
    delete_preset(home, args.name)
    return DONE
