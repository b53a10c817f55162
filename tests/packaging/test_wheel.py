"""The wheel and the sdist: their content, and that the wheel works with only its dependencies installed."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USES_PERDURE = """
from perdure import App, activity, workflow

@activity
async def charge(order_id: str) -> float:
    return 9.5

@workflow
async def order(order_id: str) -> float:
    reveal_type(await charge(order_id))
    return await charge(order_id)

async def main() -> None:
    async with App("sqlite:///orders.db"):
        handle = await order.start("A-1")
        reveal_type(await handle.result())
        await charge(1)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist."""
    directory = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(directory), cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a new environment that has the wheel and its dependencies."""
    environment = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    python = str(environment / "bin" / "python")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(_only(built, "*.whl")))
    return python


def test_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(_only(built, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {str(path.relative_to(ROOT / "src")) for path in _files(ROOT / "src")}
    assert "perdure/py.typed" in names
    assert {Path(name).suffix for name in names} == {".py", ".sql", ".typed", ".html", ".css", ".js", ".svg"}


def test_sdist_holds_what_the_tests_need(built: Path) -> None:
    with tarfile.open(_only(built, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = [path for name in "src tests docs examples benchmarks scripts".split() for path in _files(ROOT / name)]
    wanted += [ROOT / name for name in "Makefile pyproject.toml README.md CHANGELOG.md CONTRIBUTING.md LICENSE".split()]
    assert {str(path.relative_to(ROOT)) for path in wanted} <= names


def test_metadata_names_extras_addresses_and_no_upper_bound_of_python(built: Path) -> None:
    metadata = _metadata(_only(built, "*.whl"))
    assert metadata["Requires-Python"] == ">=3.11"
    extras = "postgres mysql cron cli http dashboard webhooks nats rabbitmq kafka redis crypto otel prometheus".split()
    assert set(metadata.get_all("Provides-Extra", [])) == {*extras, "all", "testing"}
    labels = {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert labels == {"Repository", "Documentation", "Changelog", "Issues"}


def test_readme_quick_start_runs_from_the_wheel(python: str, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"^```python\n(.*?)^```\n\nIt prints:\n\n```text\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert found is not None
    code, printed = found.groups()
    assert _run(python, "-W", "error", "-c", code, cwd=tmp_path) == printed


def test_encryption_without_cryptography_names_the_extra(python: str, tmp_path: Path) -> None:
    done = _done(python, "-c", "from perdure.codecs import Encrypted; Encrypted({'k': bytes(32)})", cwd=tmp_path)
    assert done.returncode == 1
    assert 'needs the package cryptography: pip install "perdure[crypto]"' in done.stderr


def test_testing_imports_without_test_dependencies(python: str, tmp_path: Path) -> None:
    code = "import perdure.testing.reference, perdure.testing.servers, sys; print('pytest' in sys.modules)"
    assert _run(python, "-c", code, cwd=tmp_path) == "False\n"


def test_conformance_suite_without_pytest_names_the_extra(python: str, tmp_path: Path) -> None:
    done = _done(python, "-c", "import perdure.testing.conformance.locks", cwd=tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: perdure.testing.conformance needs pytest" in done.stderr
    assert "pip install 'perdure[testing]'" in done.stderr


def test_command_line_without_its_extra_prints_the_version_and_names_the_extra(python: str, tmp_path: Path) -> None:
    program = str(Path(python).parent / "perdure")
    assert re.fullmatch(r"perdure \d+\.\d+\.\d+\n", _run(program, "--version", cwd=tmp_path))
    done = _done(program, "runs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        'perdure: the command line needs further packages: pip install "perdure[cli]"\n',
    )


def test_mypy_finds_the_types_of_the_installed_package(python: str, tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(USES_PERDURE)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", python)
    done = _done(*mypy, "orders.py", cwd=tmp_path)
    revealed, also_revealed, refused = re.findall(r"^orders\.py:\d+: (.*)$", done.stdout, re.MULTILINE)
    assert revealed == also_revealed == 'note: Revealed type is "float"'
    assert refused.startswith("error: Argument 1 to")
    assert refused.endswith('"int"; expected "str"  [arg-type]')


def test_strict_pyright_finds_the_types_of_the_installed_package(python: str, tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(USES_PERDURE)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = _done(sys.executable, "-m", "pyright", "--pythonpath", python, cwd=tmp_path)
    revealed, also_revealed, refused = re.findall(r"orders\.py:\d+:\d+ - (.*)$", done.stdout, re.MULTILINE)
    assert revealed.endswith('is "float"')
    assert also_revealed.endswith('is "float"')
    assert refused.startswith('error: Argument of type "Literal[1]" cannot be assigned to parameter "order_id"')


def _run(*command: str, cwd: Path | None = None) -> str:
    done = _done(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _done(*command: str, cwd: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a command that sees nothing of this source tree."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, check=False)


def _only(directory: Path, pattern: str) -> Path:
    (path,) = directory.glob(pattern)
    return path


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))
