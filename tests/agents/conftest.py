"""Each agent in each way; at the end a table of what holds. In CI four agents must pass everything."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container

import pytest

from agents.known import AGENTS, Known
from agents.rig import missing

FEWEST = 4
"""Agents that must pass everything in CI, each in one way at least."""
TOO_FEW = 6
"""The exit status that tells of fewer, which is none of pytest's own."""
PAIRS = [(known, way) for known in AGENTS for way in known.ways]
TERMINALS = [(known, "terminal") for known in AGENTS if known.name in ("claude", "codex", "gemini", "goose")]
LEDGER: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
"""By agent and way, what became of each case."""
SIGNS = {"passed": "yes", "failed": "NO", "skipped": "-"}


def pytest_configure(config: pytest.Config) -> None:
    """The marks of these tests."""
    config.addinivalue_line("markers", "asks: only for ways in which an agent can ask a person")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `known` and `way` runs for each pair."""
    if "known" in metafunc.fixturenames:
        asks = metafunc.definition.get_closest_marker("asks") is not None
        terminals = metafunc.module.__name__.endswith("test_terminals")
        pairs = TERMINALS if terminals else [(known, way) for known, way in PAIRS if way == "acp" or not asks]
        metafunc.parametrize(("known", "way"), pairs, ids=[f"{known.name}-{way}" for known, way in pairs])


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Whose test it is goes with its report. What is not installed is skipped."""
    known, way = request.getfixturevalue("known"), request.getfixturevalue("way")
    assert isinstance(known, Known)
    record_property("case", [known.name, way, request.node.originalname.removeprefix("test_")])
    if problem := missing(known, way):
        pytest.skip(problem)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst of a test's phases. The report may come from another process."""
    for name, value in report.user_properties:
        if name == "case" and (report.when == "call" or report.outcome != "passed"):
            agent, way, case = value
            LEDGER[agent, way][case] = report.outcome


def whole(agent: str, *, terminal: bool = False, states: Container[str] = ("passed",)) -> bool:
    """Whether everything passed, or came to one of these, with an agent in one way, or in its terminal."""
    ways = [cases for (name, way), cases in LEDGER.items() if name == agent and (way == "terminal") is terminal]
    return any(cases and all(state in states for state in cases.values()) for cases in ways)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table: what holds with which version of which agent."""
    cases = sorted({case for found in LEDGER.values() for case in found})
    line = terminalreporter.write_line
    line(f"{'agent':<10}{'version':<10}{'way':<10}" + "".join(f"{case[:22]:<24}" for case in cases))
    for known, way in (*PAIRS, *TERMINALS):
        found = LEDGER.get((known.name, way), {})
        signs = (SIGNS.get(found.get(case, "skipped"), "?") for case in cases)
        line(f"{known.name:<10}{known.version:<10}{way:<10}" + "".join(f"{sign:<24}" for sign in signs))
    good = [known.name for known in AGENTS if whole(known.name)]
    line(f"{len(good)} agents pass everything: {', '.join(good) or 'none'}.")
    good = [known.name for known in AGENTS if whole(known.name, terminal=True)]
    line(f"{len(good)} agents pass everything in their terminal: {', '.join(good) or 'none'}.")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI too few agents are a failure, also when nothing else failed. A case that failed is told of by itself, and
    may pass when it is run again."""
    some = session.config.option.keyword or any("::" in name for name in session.config.args)
    asked = os.environ.get("CI") and not hasattr(session.config, "workerinput") and not some
    tried = ("passed", "failed")
    counts = [sum(whole(known.name, terminal=at, states=tried) for known in AGENTS) for at in (False, True)]
    if asked and min(counts) < FEWEST:
        session.exitstatus = TOO_FEW
