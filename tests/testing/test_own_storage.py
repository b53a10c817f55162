"""The page about own storages: its test module runs the whole contract, and a wrong storage fails."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from perdure.testing.conformance.suite import AGGREGATES, contract_tests

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "own-storage.md").read_text("utf-8")
LINES_MAX = 20

# One operation each that a storage gets wrong, and the aggregate whose tests must notice it.
WRONG = {
    "release_lock": ("locks", "return None"),
    "fire_timer": ("timers", "return True"),
    "publish_messages": ("channels", "return (await super().publish_messages(*args, **options))[::-1]"),
}


def _module() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(code)


def _run(folder: Path, code: str, *options: str) -> dict[str, set[str]]:
    """Run a test module as its author would, elsewhere; return the outcomes of each test, without its parameters."""
    (folder / "test_storage.py").write_text(code)
    report = folder / "report.xml"
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, f"--junitxml={report}", *options, "test_storage.py"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # its author may have no plugin but this one
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcomes = {child.tag for child in case if child.tag in ("failure", "error", "skipped")} or {"passed"}
        found.setdefault(case.attrib["name"].partition("[")[0], set()).update(outcomes)
    return found


def test_the_test_module_on_the_page_is_short_and_imports_public_names_only() -> None:
    lines = [line for line in _module().splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX
    assert not re.search(r"[ .]_[a-z]", _module())


def test_every_test_of_the_contract_passes_on_the_reference(tmp_path: Path) -> None:
    found = _run(tmp_path, _module())
    assert set(found) == set(contract_tests())
    assert {name: outcomes for name, outcomes in found.items() if outcomes != {"passed"}} == {}


@pytest.mark.parametrize("operation", WRONG)
def test_a_storage_with_one_wrong_operation_fails(tmp_path: Path, operation: str) -> None:
    aggregate, body = WRONG[operation]
    wrong = f"class Wrong(Reference):\n    async def {operation}(self, *args, **options):\n        {body}\n\n\n"
    code = _module().replace("return Reference(", "return Wrong(").replace("class Ref", f"{wrong}class Ref", 1)
    found = _run(tmp_path, code, "-k", f"test_{aggregate}_", "-x")
    assert any("failure" in outcomes for outcomes in found.values())


def test_only_the_conformance_suite_imports_pytest() -> None:
    code = "import sys, perdure.testing.reference, perdure.testing.servers; print('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_suite_has_every_aggregate() -> None:
    folder = ROOT / "src" / "perdure" / "testing" / "conformance"
    modules = {path.stem for path in folder.glob("*.py") if "\nasync def test_" in path.read_text("utf-8")}
    assert set(AGGREGATES) == modules
    assert all("sql" not in test.__annotations__ for test in contract_tests().values())
