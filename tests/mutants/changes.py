"""One small change of a text."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """Replace a part of a text.

    `place` says which tests execute it: the line of a Python statement (0 if the import executes it), or for SQL the
    name of a statement with the dialect of an override.
    """

    operator: str
    start: int
    end: int
    new: str
    place: int | str

    def apply(self, text: str) -> str:
        """Return the text with the change."""
        return text[: self.start] + self.new + text[self.end :]

    def line(self, text: str) -> str:
        """Return the line where the change begins."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.start)
        return text[first : last if last >= 0 else len(text)].strip()

    def number(self, text: str) -> int:
        """Return the number of that line."""
        return text.count("\n", 0, self.start) + 1

    def key(self, text: str) -> str:
        """Return a name that stays the same when other lines change."""
        content = "\0".join([self.line(text), text[self.start : self.end], self.new])
        return f"{self.operator}:{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    def show(self, text: str) -> str:
        """Return what is replaced by what, each in one line."""
        old, new = (" ".join(part.split()) or "nothing" for part in (text[self.start : self.end], self.new))
        return f"{old}  →  {new}"
