"""The program, and the folder of these tests on the path."""
import os
import pathlib
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "tiers"))
sys.path.insert(0, str(TOP / "tests" / "parity"))


@pytest.fixture(scope="session")
def program():
    path = pathlib.Path(os.environ.get("INGLE_PROGRAM") or TOP / os.environ.get("B", "build") / "ingle")
    if not path.exists():
        pytest.skip(f"skipped, because there is no {path}")
    return path.resolve()
