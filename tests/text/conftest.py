"""Fixtures of the comparisons: the driver, the model, its metadata."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import driver  # noqa: E402


@pytest.fixture(scope="session")
def model_path():
    path = driver.model()
    if not path:
        pytest.skip("the starter model is not in the cache")
    return path


@pytest.fixture(scope="session")
def ours(model_path):
    d = driver.Driver(model_path)
    yield d
    d.close()


@pytest.fixture(scope="session")
def metadata(model_path):
    return driver.read_gguf(model_path)
