"""Examples in docstrings and the guide run; the notebook does, too; the stubs fit."""

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orate

ROOT = Path(__file__).resolve().parents[3]


def documented():
    yield "orate", orate
    for name in orate.__all__:
        thing = getattr(orate, name)
        yield name, thing
        if inspect.isclass(thing):
            public = [member for member in vars(thing) if member[0] != "_"]
            yield from ((f"{name}.{member}", vars(thing)[member]) for member in public)


def test_examples_in_docstrings_run():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name, thing in documented():
        runner.run(parser.get_doctest(thing.__doc__ or "", {}, name, None, None))
    assert runner.failures == 0 and runner.tries > 15


def test_everything_has_a_docstring():
    undocumented = [name for name, thing in documented() if not (thing.__doc__ or "").strip()]
    assert [name for name in undocumented if name != "__version__" and not name.endswith(".kind")] == []


def test_the_guides_examples_run(tmp_path, monkeypatch, recording):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    ours = [block for block in blocks if "supertonic" not in block and "chatterbox" not in block]
    scope = {}
    for block in ours:
        exec(compile(block, "docs/python.md", "exec"), scope)
    assert len(ours) == 6 and len(blocks) == 9
    assert (tmp_path / "hello.wav").exists() and (tmp_path / "speech.srt").read_text().startswith("1\n")
    for block in blocks:
        compile(block, "docs/python.md", "exec")


def test_the_notebook_runs(tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.read(ROOT / "examples/python/orate.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("<audio controls" in data.get("text/html", "") for data in shown)
    assert any("image/png" in data for data in shown)
    assert any("<progress" in data.get("text/html", "") for data in shown)
    assert any("<svg" in data.get("text/html", "") and ">morning</text>" in data["text/html"] for data in shown)


def test_stubs_fit():
    command = [sys.executable, "-m", "mypy.stubtest", "orate"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
