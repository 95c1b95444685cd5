"""The matrix of agents, kinds and cases: what is expected of each, and its tables on the page of agents.

`python -m agents.matrix OUTCOMES` writes the tables from the outcomes that `tests/run --outcomes` has written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from agents.gaps import CANNOT, GAPS
from agents.known import AGENTS, KINDS

CASES = {
    "three_turns": "three turns with memory",
    "two_tools": "one tool allowed, one denied",
    "expiring_question": "a question that nobody answers expires",
    "cancel": "cancel, then go on with memory",
    "usage_limit": "wait for the end of a usage limit",
    "not_signed_in": "not signed in: the error tells how to sign in",
    "killed_server": "the server is killed in mid-turn; go on with memory",
    "restarted_server": "second message after a restart, with memory",
    "worktree": "work in a worktree",
    "renamed_output": "renamed output is not taken for an answer",
    "sandbox": "sandbox with memory; settings are not changed",
    "api_error": "an error of the provider fails the task; a quoted error is an answer",
    "long_reply": "a reply of 2000 lines",
    "repeated_prompts": "equal prompts, and a prompt of 20 kB",
    "agentapi_client": "a client of agentapi",
}
"""The name of each test without `test_`, and its title in the tables."""
ON_SCREENS = ("long_reply", "repeated_prompts", "agentapi_client")
"""Cases of terminals alone."""
PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
MARKED = re.compile(r"(<!-- matrix -->\n).*?(<!-- end of matrix -->)", re.DOTALL)
NODE = re.compile(r"::test_(?P<case>\w+)\[(?P<agent>\w+)-(?P<kind>\w+)\]$")
Cell = tuple[str, str, str]
"""A case, an agent and a kind."""


def cases_of(kind: str) -> list[str]:
    """Return the cases of a kind."""
    return [case for case in CASES if kind == "terminal" or case not in ON_SCREENS]


def is_tried(case: str, kind: str) -> bool:
    """Return whether a case is run for a kind."""
    return case in cases_of(kind) and (case, kind) not in CANNOT


def why_not(cell: Cell) -> str | None:
    """Return the reason why this agent is not expected to pass this case, if there is one."""
    case, agent, kind = cell
    return CANNOT.get((case, kind)) or GAPS.get((case, agent, kind))


def expected() -> dict[Cell, str]:
    """Return the outcomes if everything is as expected."""
    cells = [(case, known.name, kind) for kind in KINDS for case in cases_of(kind) for known in AGENTS]
    return {cell: "skipped" if why_not(cell) else "passed" for cell in cells}


def read_outcomes(file: Path) -> dict[Cell, str]:
    """Return the outcomes of a run. A case that a kind cannot have counts as skipped."""
    found: dict[Cell, str] = {(case, known.name, kind): "skipped" for case, kind in CANNOT for known in AGENTS}
    for node, outcome in json.loads(file.read_text()).items():
        if match := NODE.search(node):
            found[match["case"], match["agent"], match["kind"]] = outcome
    return found


def write_cell(cell: Cell, outcome: str, notes: list[str]) -> str:
    """Return the text of a cell: yes, or no with the number of its reason."""
    if outcome == "passed":
        return "yes"
    reason = why_not(cell) if outcome == "skipped" else None
    if reason is None:
        return "**failed**" if outcome == "failed" else "**not tried**"
    if reason not in notes:
        notes.append(reason)
    return f"no ({notes.index(reason) + 1})"


def write_tables(outcomes: dict[Cell, str]) -> str:
    """Return a table for each kind, and below them the reasons."""
    notes: list[str] = []
    parts = []
    for kind in KINDS:
        versions = (f"{known.name} {known.version_of(kind)}" for known in AGENTS)
        rows = [" | ".join((f"`{kind}`", *versions)), "|".join(["---"] * (len(AGENTS) + 1))]
        for case in cases_of(kind):
            row = [(case, known.name, kind) for known in AGENTS]
            rows.append(
                " | ".join((CASES[case], *(write_cell(cell, outcomes.get(cell, "missing"), notes) for cell in row)))
            )
        parts.append("\n".join(f"| {row} |" if "---" not in row else f"|{row}|" for row in rows))
    reasons = "\n".join(f"{number}. {reason[0].upper()}{reason[1:]}." for number, reason in enumerate(notes, 1))
    return "\n\n".join((*parts, f"Why not:\n\n{reasons}"))


def write_page(outcomes: dict[Cell, str]) -> str:
    """Return the page with these outcomes."""
    return MARKED.sub(lambda match: f"{match[1]}{write_tables(outcomes)}\n{match[2]}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(write_page(read_outcomes(Path(sys.argv[1]))))
    print(f"{PAGE.name} has the results.")
