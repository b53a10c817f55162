"""Move a whole database to another one, of the same or another kind.

```
await copy_database("sqlite:///shop.db", "postgresql://localhost/shop")
```
"""

from perdure.copying.moving import CopiedTable, CopyReport, Progress, abort_copy, copy_database, plan_copy

__all__ = ["CopiedTable", "CopyReport", "Progress", "abort_copy", "copy_database", "plan_copy"]
