"""Shared by all tests: engines of the built-in voice and of two small models with random weights."""

import os
from pathlib import Path

import pytest

import orate

ORACLE = Path(__file__).resolve().parents[3] / "oracle"
LONG = "\n\n".join(f"This is paragraph number {i}, which takes a while to speak." for i in range(200))


@pytest.fixture(scope="session")
def engine():
    return orate.Engine(device="cpu", threads=2)


@pytest.fixture(scope="session")
def supertonic():
    return orate.Engine(ORACLE / "supertonic/golden/tiny", device="cpu", threads=2)


@pytest.fixture(scope="session")
def chatterbox():
    """A model that clones and converts; `scripts/python-check` writes it."""
    return orate.Engine(os.environ["ORATE_TEST_CHATTERBOX"], device="cpu", threads=2)


@pytest.fixture
def recording():
    return ORACLE / "chatterbox/golden/ref.wav"


@pytest.fixture
def text():
    return "This is the first paragraph.\n\nAnd this is the second one."


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """No test touches the voices and models of the user."""
    monkeypatch.setenv("ORATE_VOICE_FOLDER", str(tmp_path / "voices"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for variable in ("ORATE_VOICE", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
