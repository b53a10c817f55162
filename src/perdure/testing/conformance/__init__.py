"""Test a storage backend for conformance with the contract (`perdure.storage.Storage`); one module per aggregate.

A test module holds a storage of your own to the whole contract. It imports the suite and provides the fixture
`harness`, an object with the three methods of `perdure.testing.conformance.harness.Harness`:

    import pytest
    from perdure.testing.conformance.suite import *

    class MyHarness:
        async def open(self): ...                     # an open storage; called again, another one on the same data
        def shift_clock(self, storage, shift): ...    # how far its clock is ahead of the real time
        async def close(self): ...                    # remove the data

    @pytest.fixture
    def harness():
        return MyHarness()

docs/howto/own-storage.md has a complete example. `perdure.testing.conformance.locks` and its siblings have the tests
of one aggregate each. The tests use nothing but the contract; those in `perdure.testing.conformance.tables` run SQL on
the tables of perdure and are for its own storages.

The tests are written for pytest with pytest-asyncio, which only the modules of this package import. They
use a marker that your pytest configuration has to register:

    markers = ["pitfall(number): a known fault of other systems"]
"""

from importlib.util import find_spec
from pkgutil import iter_modules

if find_spec("pytest") is None:
    raise ModuleNotFoundError(
        "perdure.testing.conformance needs pytest and pytest-asyncio, which are not installed; "
        "install them with: pip install 'perdure[testing]'",
        name="pytest",
    )

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))  # says what differs
