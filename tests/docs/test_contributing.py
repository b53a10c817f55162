"""CONTRIBUTING.md names files and folders that exist, and all packages."""

import re

import pytest

from tests.docs.marks import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
TREES: list[tuple[str, str]] = re.findall(r"```\n(src/perdure/|tests/)\n(.*?)```", PAGE, re.DOTALL)


def test_every_folder_of_the_maps_exists() -> None:
    assert [root for root, _ in TREES] == ["src/perdure/", "tests/"]
    for root, tree in TREES:
        folders = re.findall(r"^  (\w+)/", tree, re.MULTILINE)
        assert len(folders) > 5
        assert [name for name in folders if not (ROOT / root / name).is_dir()] == []


def test_every_folder_is_in_the_maps() -> None:
    for root, tree in TREES:
        folders = {each.parent.name for each in (ROOT / root).glob("*/*.py")}
        assert folders - set(re.findall(r"^  (\w+)/", tree, re.MULTILINE)) == set(), root


@pytest.mark.parametrize(
    "package",
    ["brokers", "bulk", "cli", "codecs", "copying", "dashboard", "http", "inspection", "integrations", "views"],
)
def test_every_module_of_a_package_is_mapped(package: str) -> None:
    found = re.search(rf"^  {package}/(?: .*)?\n((?:^    .*\n)+)", dict(TREES)["src/perdure/"], re.MULTILINE)
    assert found is not None
    modules = {each.stem for each in (ROOT / "src" / "perdure" / package).glob("*.py")}
    assert modules - set(re.findall(r"\w+", found[1])) - {"__init__", "__main__"} == set()


def test_every_package_of_the_engine_is_mapped_with_all_its_modules() -> None:
    engine = ROOT / "src" / "perdure" / "engine"
    tree = dict(TREES)["src/perdure/"]
    part = tree[tree.index("  engine/") : tree.index("  integrations/")]
    packages = re.findall(r"^    (\w+)/ .*\n((?:^      .*\n)+)", part, re.MULTILINE)
    assert {name for name, _ in packages} == {each.parent.name for each in engine.glob("*/__init__.py")}
    for name, lines in packages:
        modules = {each.stem for each in (engine / name).glob("*.py")} - {"__init__"}
        named = set(re.findall(r"\w+", " ".join(line.split("   ")[2] for line in lines.splitlines())))
        assert modules - named == set(), name
