"""Test the test runner `tests/run` with small generated suites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "run"
SETTINGS = """
[pytest]
addopts = -q -p xdist -p no:cacheprovider --import-mode=importlib
"""
FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""The plugins take longer to load than these suites run."""
HEAD = """
import os
import pytest
from pathlib import Path

def first(name):
    seen = Path(name).exists()
    Path(name).touch()
    return not seen
"""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class RunReport:
    status: int
    lines: list[str]

    def find(self, label: str) -> list[str]:
        """Return the tests or problems that were printed after the label."""
        matches = [re.fullmatch(rf"{label}: (.*)", line) for line in self.lines]
        return sorted(match[1] for match in matches if match)


def run(folder: Path, *parts: str, **files: str) -> RunReport:
    """Run parts of a suite that consists of the files."""
    (folder / "pytest.ini").write_text(SETTINGS)
    for name, text in files.items():
        file = folder / "tests" / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + text)
    done = subprocess.run(
        [sys.executable, RUN, *parts], cwd=folder, env=os.environ | FEW_PLUGINS, capture_output=True, text=True
    )
    return RunReport(done.returncode, done.stdout.splitlines())


def test_a_test_that_fails_once_is_flaky_and_passes(tmp_path: Path) -> None:
    report = run(tmp_path, "most", "chaos", test_a="""
def test_well(): pass
def test_left_out(): pytest.skip()
def test_by_call(): assert not first("call")
def test_by_death():
    if first("death"): os._exit(1)
@pytest.fixture
def ending():
    yield
    assert not first("teardown")
def test_by_teardown(ending): pass
""", chaos__test_b="def test_killing(): pass")  # fmt: skip
    assert report.find("flaky") == [f"tests/test_a.py::test_by_{way}" for way in ("call", "death", "teardown")]
    assert report.lines[-1] == "tests: 5 passed, 0 failed, 1 skipped"
    assert (report.status, report.find("failed"), report.find("problem")) == (0, [], [])


def test_a_test_that_fails_again_or_kills_servers_or_cannot_be_loaded_fails_the_run(tmp_path: Path) -> None:
    report = run(
        tmp_path, "most+chaos",
        test_a="def test_well(): pass\ndef test_wrong(): assert False",
        test_b="import no_such_module",
        chaos__test_c="def test_killing(): assert not first('killing')",
    )  # fmt: skip
    assert report.find("failed") == [
        "tests/chaos/test_c.py::test_killing",
        "tests/test_a.py::test_wrong",
        "tests/test_b.py",
    ]
    assert report.lines[-2:] == ["no test was flaky", "tests: 1 passed, 3 failed, 0 skipped"]
    assert report.status == 1


def test_more_than_three_flaky_tests_fail_the_run(tmp_path: Path) -> None:
    report = run(tmp_path, "most", test_a="\n".join(f"def test_{n}(): assert not first('{n}')" for n in range(4)))
    assert len(report.find("flaky")) == 4
    assert report.find("problem") == ["4 tests are flaky, more than 3"]
    assert (report.status, report.lines[-1]) == (1, "tests: 4 passed, 0 failed, 0 skipped")


def test_many_failures_are_not_run_again_and_an_empty_part_fails(tmp_path: Path) -> None:
    wrong = "@pytest.mark.parametrize('n', range(21))\ndef test_wrong(n): assert not first(str(n))"
    report = run(tmp_path, "most", "chaos", test_a=wrong, chaos__test_b="")
    assert report.find("problem") == [
        "21 tests failed, too many to run them again",
        "chaos: pytest ended with status 5",
    ]
    assert len(report.find("failed")) == 21
    assert (report.status, report.lines[-1]) == (1, "tests: 0 passed, 21 failed, 0 skipped")
