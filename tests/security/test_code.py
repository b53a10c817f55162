"""The package never loads code or objects from data, runs a shell, or imports a name from a row."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure

SOURCE = Path(perdure.__file__).parent
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}

UNSAFE = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "ruamel", "jsonpickle",
          "xml", "runpy", "code", "codeop", "imp", "pty", "commands", "dbm"}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
CALLS = {"os.system", "os.popen", "os.spawnl", "os.spawnv", "os.posix_spawn", "subprocess.getoutput",
         "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "importlib.__import__", "builtins.eval",
         "builtins.exec", "tempfile.mktemp", "logging.config.listen", "pydoc.locate",
         "pkgutil.resolve_name"}  # fmt: skip

EXPLAINED = {
    # The client libraries of brokers, by their names in the modules of the brokers.
    "brokers/extras.py": ["import_module of a name that is not written here"],
    # The module of the user's workflows, which the user names as an argument or in pyproject.toml.
    "cli/apps.py": ["import_module of a name that is not written here"],
    # The shell for which a completion script is printed.
    "cli/commands/completion.py": ["build().generate_completion(shell=…)"],
    # The package of a connection that the caller has made and hands over.
    "integrations/connections.py": ["import_module of a name that is not written here"],
    # The modules of the suite, by their names in the same file.
    "testing/conformance/suite.py": ["import_module of a name that is not written here"],
}


def findings(tree: ast.Module, module: str) -> list[str]:
    """Everything in a module that this package does without."""
    found = []
    for node in ast.walk(tree):
        names = list(_imported(node))
        found += [f"imports {name}" for name in names if name.partition(".")[0] in UNSAFE or name in CALLS]
        if "subprocess" in {name.partition(".")[0] for name in names} and not module.startswith("testing/"):
            found.append("imports subprocess")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in BUILTINS:
            found.append(f"uses {node.id}")  # a field of that name is no use
        if isinstance(node, ast.Attribute) and ast.unparse(node) in CALLS:
            found.append(f"uses {ast.unparse(node)}")
        if isinstance(node, ast.Call):
            found += [f"{ast.unparse(node.func)}(shell=…)" for word in node.keywords if word.arg == "shell"]
            if _loads_code(node):
                found.append(f"{ast.unparse(node.func)} of a name that is not written here")
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or ""
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _loads_code(call: ast.Call) -> bool:
    """An import by a name that is computed."""
    called = ast.unparse(call.func).rpartition(".")[2]
    return called == "import_module" and not all(isinstance(each, ast.Constant) for each in call.args)


@pytest.mark.parametrize("module", MODULES)
def test_package_never_loads_code_from_data(module: str) -> None:
    assert findings(ast.parse(MODULES[module].read_text("utf-8")), module) == EXPLAINED.get(module, [])


def test_check_covers_every_module() -> None:
    assert len(MODULES) > 80
    known = {
        "engine/history/codec.py",
        "engine/history/failures.py",
        "storage/stores.py",
        "integrations/connections.py",
    }
    assert known <= set(MODULES)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml",
        "from os import system",
        "eval('1')",
        "exec(row)",
        "run = eval",
        "compile(row, '', 'exec')",
        "__import__(row)",
        "import os\nos.system('ls')",
        "import subprocess",
        "from subprocess import run",
        "run('ls', shell=True)",
        "import_module(row)",
        "importlib.import_module(f'{row}')",
        "asyncio.create_subprocess_shell(row)",
        "import xml.etree.ElementTree",
    ],
)
def test_check_finds_each_kind_of_unsafe_code(text: str) -> None:
    assert findings(ast.parse(text), "engine/x.py")


def test_importing_perdure_loads_nothing_unsafe() -> None:
    """Also not by a library that it needs: a row could only use what is loaded."""
    import subprocess

    script = "import sys, perdure, perdure.engine.history.codec, perdure.storage; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert {"perdure.engine.api.app", "msgspec"} <= set(loaded.split())
    assert not {"yaml", "dill", "cloudpickle", "shelve", "jsonpickle"} & set(loaded.split())
