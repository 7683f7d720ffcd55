"""Run the node program engine_args.py for ms-swift without Transformer Engine, with empty classes in place of it.

    python swift_without_gpu.py parse|keys JSON --token T

Every name of transformer_engine and triton is an empty class. After that, engine_args.py runs as it does on a node.
"""

import importlib.machinery
import importlib.metadata
import runpy
import sys
import types
from pathlib import Path

ABSENT = ("transformer_engine", "transformer_engine_torch", "triton")


class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return empty(name)


def empty(name):
    """Return a class that accepts every argument. Its objects are decorators that change nothing."""
    parts = {
        "__init__": lambda self, *arguments, **keywords: None,
        "__call__": lambda self, *arguments, **keywords: arguments[0] if arguments else self,
        "__module__": ABSENT[0],
    }
    return Anything(name, (), parts)


class Absent(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, empty(name))
        return getattr(self, name)


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        module.__version__, module.__file__ = "2.9.0", __file__


def version(name, real=importlib.metadata.version):
    return "2.9.0" if name.replace("-", "_").startswith(ABSENT[0]) else real(name)


def install():
    """Let every later import of an absent name find an empty class."""
    sys.meta_path.insert(0, Finder())
    importlib.metadata.version = version


if __name__ == "__main__":
    install()
    # Last, because modules of ms-swift's environment come first.
    sys.path.append(str(Path(__file__).parents[1]))
    runpy.run_module("backend.node.checks.engine_args", run_name="__main__", alter_sys=True)
