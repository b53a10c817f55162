"""Count the lines of code of the storage package, and of the database layer underneath it.

Lines of Python and SQL with code are counted: no blank lines, comments, docstrings or migrations. What is not counted
is printed below the total.
"""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

STORAGE = Path(__file__).resolve().parent.parent / "src" / "perdure" / "storage"
DATABASE = STORAGE.parent / "database"
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}


@dataclass(frozen=True, slots=True)
class Size:
    """Count lines with code, and lines that hold only a docstring."""

    code: int = 0
    docs: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.code + other.code, self.docs + other.docs)


def measure(path: Path) -> Size:
    text = path.read_text(encoding="utf-8")
    return _measure_sql(text) if path.suffix == ".sql" else _measure_python(text)


def _measure_python(text: str) -> Size:
    docstrings = _docstring_positions(ast.parse(text))
    lines = text.splitlines()
    code: set[int] = set()
    docs: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            found = docs if token.start in docstrings else code
            found.update(n for n in range(token.start[0], token.end[0] + 1) if lines[n - 1].strip())
    return Size(len(code), len(docs - code))


def _docstring_positions(tree: ast.Module) -> set[tuple[int, int]]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, owners) and ast.get_docstring(node, clean=False)]
    return {(body[0].lineno, body[0].col_offset) for body in bodies}


def _measure_sql(text: str) -> Size:
    bare = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return Size(sum(1 for line in bare.splitlines() if line.strip() and not line.lstrip().startswith("--")))


def measure_all(files: list[Path]) -> dict[str, Size]:
    """Return the size by path below the storage folder, and by folder; folders end with a slash."""
    sizes: dict[str, Size] = {}
    for path in files:
        size, relative = measure(path), path.relative_to(STORAGE)
        sizes[relative.as_posix()] = size
        if len(relative.parts) > 1:
            folder = f"{relative.parts[0]}/"
            sizes[folder] = sizes.get(folder, Size()) + size
    return sizes


def main() -> None:
    files = sorted(path for path in STORAGE.rglob("*") if path.suffix in {".py", ".sql"})
    migrations = [path for path in files if "migrations" in path.relative_to(STORAGE).parts]
    counted = [path for path in files if path not in migrations]
    for name, size in sorted(measure_all(counted).items()):
        depth = name.rstrip("/").count("/")
        print(f"{'  ' * depth + name:<48}{size.code:>8,}")
    total = sum(map(measure, counted), Size())
    left_out = sum(map(measure, migrations), Size())
    print(f"{'the storage package':<48}{total.code:>8,}")
    print(f"{'with docstrings':<48}{total.code + total.docs:>8,}")
    print(f"{'migrations, not counted':<48}{left_out.code:>8,}")
    database = sum(map(measure, DATABASE.rglob("*.py")), Size())
    print(f"{'the database layer underneath, not counted':<48}{database.code:>8,}")
    print(f"{'both':<48}{total.code + database.code:>8,}")


if __name__ == "__main__":
    main()
