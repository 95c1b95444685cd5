"""Run each case with each agent of each kind, and print a table of the results. In CI four agents must pass everything.

Cases with the mark `matrix` and known gaps belong only to `make test-agents-all`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable

import pytest

from agents.known import AGENTS, KINDS, Known
from agents.matrix import CASES, is_tried, why_not
from agents.rig import missing

FEWEST = 4
"""The number of agents that must pass everything in CI, in each kind."""
TOO_FEW_STATUS = 6
"""The exit status if there are fewer; pytest itself does not use it."""
SLOW = (("usage_limit", "opencode"), ("usage_limit", "qwen"))
"""Cases and agents for `make test-agents-all` alone: these programs tell only after a while that they wait."""
RESULTS: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
"""The result of each case by agent and kind."""
SIGNS = {"passed": "yes", "failed": "NO", "gap": "no", "skipped": "-"}


def pytest_configure(config: pytest.Config) -> None:
    """Add the marks of these tests."""
    config.addinivalue_line("markers", "matrix: only for `make test-agents-all`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for each agent and each kind for which its case makes sense. A known gap must fail."""
    if "known" in metafunc.fixturenames and not hasattr(metafunc.module, "known"):
        case = metafunc.definition.originalname.removeprefix("test_")
        assert case in CASES, f"add {case} to the cases of agents/matrix.py"
        pairs = []
        for known in AGENTS:
            for kind in KINDS:
                reason = why_not((case, known.name, kind))
                marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
                marks += [pytest.mark.matrix] if reason or (case, known.name) in SLOW else []
                if is_tried(case, kind):
                    pairs.append(pytest.param(known, kind, id=f"{known.name}-{kind}", marks=marks))
        metafunc.parametrize(("known", "kind"), pairs)


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Record the agent in the report of its test, and skip the test if it is not installed."""
    known, kind = request.getfixturevalue("known"), request.getfixturevalue("kind")
    assert isinstance(known, Known)
    record_property("case", [known.name, kind, request.node.originalname.removeprefix("test_")])
    if problem := missing(known, kind):
        pytest.skip(problem)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst result of a test's phases. The report may come from another process."""
    for name, value in report.user_properties:
        if name == "case" and (report.when == "call" or report.outcome != "passed"):
            agent, kind, case = value
            RESULTS[agent, kind][case] = "gap" if hasattr(report, "wasxfail") else report.outcome


def pass_all(kind: str, states: tuple[str, ...]) -> list[str]:
    """Return the agents of which all cases of a kind ended in one of the states."""
    found = {known.name: RESULTS.get((known.name, kind), {}) for known in AGENTS}
    return [name for name, cases in found.items() if cases and all(state in states for state in cases.values())]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results of each agent of each kind."""
    cases = [case for case in CASES if any(case in results for results in RESULTS.values())]
    line = terminalreporter.write_line
    line(f"{'agent':<10}{'version':<10}{'kind':<10}" + "".join(f"{case:<{len(case) + 2}}" for case in cases))
    for known in AGENTS:
        for kind in KINDS:
            if results := RESULTS.get((known.name, kind)):
                signs = (f"{SIGNS[results.get(case, 'skipped')]:<{len(case) + 2}}" for case in cases)
                line(f"{known.name:<10}{known.version_of(kind):<10}{kind:<10}" + "".join(signs))
    for kind in KINDS:
        good = pass_all(kind, ("passed", "gap"))
        line(f"{kind}: {len(good)} agents pass everything except known gaps: {', '.join(good) or 'none'}.")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail in CI if too few agents were tried, also when nothing else failed. A failed case has its own report, and may
    pass when it is run again.
    """
    some = session.config.option.keyword or any("::" in name for name in session.config.args)
    enforced = os.environ.get("CI") and not hasattr(session.config, "workerinput") and not some
    if enforced and min(len(pass_all(kind, ("passed", "failed", "gap"))) for kind in KINDS) < FEWEST:
        session.exitstatus = TOO_FEW_STATUS
