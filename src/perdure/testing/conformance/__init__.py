"""Test a storage backend for conformance with the contract; one module per aggregate.

To check a backend of your own, import the tests of each module into a test module and provide the fixtures they
require:

    from perdure.testing.conformance.locks import *

They are written for pytest with pytest-asyncio. They use a marker that your pytest configuration has to register:

    markers = ["pitfall(number): a known fault of other systems"]
"""

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ModuleNotFoundError(
        "perdure.testing.conformance needs pytest and pytest-asyncio, which are not installed; "
        "install them with: pip install 'perdure[testing]'",
        name="pytest",
    )
