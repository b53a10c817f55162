"""Test how a backend stores the definitions of workflows."""

import pytest

from perdure.errors import LimitError
from perdure.storage.contract import Storage


@pytest.mark.parametrize("versions", [{"": "h"}, {"x" * 300: "h"}, {"order": "h" * 65}])
async def test_invalid_definitions_are_rejected(storage: Storage, versions: dict[str, str]) -> None:
    with pytest.raises(LimitError):
        await storage.define_workflows({"fine": "h", **versions})
