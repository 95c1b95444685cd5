"""Test that the documents agree with the code: listed names exist, existing names are listed, and examples run."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from click import Context

import midwatch
import midwatch.testing
from agents import matrix
from midwatch.agents.command import CommandAgent
from midwatch.agents.demo import DemoAgent
from midwatch.agents.function import FunctionAgent
from midwatch.agents.known import KNOWN
from midwatch.agents.profiles import TERMS
from midwatch.agents.registry import KINDS as AGENT_KINDS
from midwatch.agents.terminal.kind import TerminalAgent
from midwatch.api.app import create_app
from midwatch.api.bodies import MAX_WAIT_SECONDS, AutomationBody, AutomationPatch, GoalBody, HandoffBody
from midwatch.base.home import Home
from midwatch.channels.registry import KINDS as CHANNEL_KINDS
from midwatch.cli.app import app, load
from midwatch.client import Client
from midwatch.desk.build import build_agents, build_channels
from midwatch.desk.config import Settings
from midwatch.desk.tables import AgentSettings, ChannelSettings
from midwatch.domain import (
    alert,
    approval,
    automation,
    automation_step,
    channel,
    goal,
    goal_step,
    handoff,
    session,
    task,
    worktree,
)
from midwatch.domain.agent import YES_NO, AgentTerms
from midwatch.domain.event import KINDS, VERSION, Event
from midwatch.domain.hook import ACTIONS, FIELDS, SEAMS
from midwatch.domain.hook_patch import PATCHABLE
from midwatch.domain.hook_subject import make_example
from midwatch.domain.requests import PRIORITY, Submission
from midwatch.runtime.runtime import Runtime
from midwatch.services.automations import KEPT_SECONDS
from midwatch.wire.automations import AutomationInfo, RunInfo
from midwatch.wire.goals import GoalInfo
from midwatch.wire.handoffs import HandoffInfo
from midwatch.wire.tasks import TaskInfo
from records import a_task
from servers import PROGRAM, environment, eventually

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/midwatch"
DOCS = ROOT / "docs"
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*.md"), *SOURCE.rglob("*.md")})
COMMANDS: Mapping[str, Any] = {name: load(name) for name in app.commands}
SECONDS = 120


def read(page: str) -> str:
    return (DOCS / page).read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Block(NamedTuple):
    """A block of code in a page. `note` is the HTML comment directly above it."""

    page: Path
    line: int
    language: str
    code: str
    note: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"(?:^<!-- ([^>]*) -->\n)?^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield Block(page, text[: match.start(3)].count("\n") + 1, match[2], match[3], match[1] or "")


BLOCKS = [block for page in PAGES for block in blocks(page)]


def find_blocks(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    level = heading.split()[0]
    match = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.M | re.S)
    assert match, heading
    return match[1]


def first_cells(text: str) -> list[str]:
    """Return the texts in backticks in the first column of all tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def run(arguments: list[str], home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env=environment(home, **env), cwd=home.parent, capture_output=True, text=True, timeout=SECONDS
    )


# -- pages made from the code ------------------------------------------------------------------------------------------

GENERATOR = runpy.run_path(str(DOCS / "generate.py"))


@pytest.mark.parametrize("page", GENERATOR["PAGES"])
def test_generated_pages_are_up_to_date(page: str) -> None:
    assert read(page) == GENERATOR["fresh"](page), f"docs/{page} is stale; run: make docs"


def test_every_event_error_and_setting_is_on_its_page() -> None:
    assert re.findall(r"^### (\w+)$", read("events.md"), re.M) == list(KINDS)
    codes = {error.code for error in vars(midwatch.base.errors).values() if hasattr(error, "exit_status")}
    assert {
        cells.split("|")[1].strip(" `") for cells in re.findall(r"^\| `\w+` (\|.*)", read("errors.md"), re.M)
    } == codes
    nested = {"agents", "calendars", "channels", "day_budget", "event_logs", "goals", "handoffs", "prices", "retention"}
    top = set(Settings.model_fields) - nested
    assert top <= set(first_cells(section(read("settings.md"), "## Top-level settings")))


def test_the_tables_of_real_agents_have_every_case_and_version() -> None:
    assert matrix.PAGE.read_text() == matrix.write_page(matrix.expected()), "run: make test-agents-all"


# -- links and paths ---------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_targets(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith(("http://", "https://")):
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_every_page_is_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)\s]+)\)", text)}
    missing = [name_of(page) for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md")) if page not in linked]
    assert missing == ["README.md"]


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("examples/*.py")], ids=name_of)
def test_documents_contain_no_local_paths(page: Path) -> None:
    assert not re.findall(r"(?<![\w.$}])/(?:home|Users|root|work|tmp|private|opt)/", page.read_text())


@pytest.mark.parametrize("page", [ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", DOCS / "design.md"], ids=name_of)
def test_named_files_exist(page: Path) -> None:
    for name in re.findall(r"`(\w[\w./]*(?:\.(?:py|md|sql)|/\w+))`", page.read_text()):
        assert any((base / name).exists() for base in (ROOT, SOURCE, DOCS)), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M):
        bench = line.removeprefix("bench-")
        assert line in targets or (ROOT / "benchmarks" / f"{bench}.py").exists(), f"make {line}"


# -- code --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("block", find_blocks("python"), ids=str)
def test_python_in_the_documents_runs(block: Block, home: Path) -> None:
    """A block below the comment `not run` is only compiled."""
    compile(block.code, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if block.note != "not run":
        home.mkdir()
        ran = run([sys.executable, "-W", "error", "-c", block.code], home)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("block", find_blocks("toml"), ids=str)
def test_toml_in_the_documents_is_a_valid_configuration(block: Block, home: Path) -> None:
    home.mkdir()
    tomllib.loads(block.code)
    (home / "midwatch.toml").write_text(block.code)
    settings = Settings.load(home)
    build_agents(settings, {})
    build_channels(settings)


@pytest.mark.parametrize("block", find_blocks("json"), ids=str)
def test_json_in_the_documents_is_valid(block: Block) -> None:
    json.loads(block.code)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_documents_exist_with_their_options(page: Path) -> None:
    text = page.read_text()
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    lines = [line for block in blocks(page) if block.language in ("sh", "") for line in block.code.splitlines()]
    for snippet in (*spans, *lines):
        for command, arguments in re.findall(r"(?:^|[\s/])midwatch ([a-z]+)\b([^|#\n]*)", snippet):
            assert command in COMMANDS, snippet
            click_command = COMMANDS[command]
            if below := getattr(click_command, "commands", None):
                click_command = below.get(next(iter(arguments.split()), ""), click_command)
            options = {option for param in click_command.get_params(Context(click_command)) for option in param.opts}
            assert set(re.findall(r"(?<=\s)--[a-z-]+", arguments)) <= options, snippet


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.py")), ids=name_of)
def test_examples_run(example: Path, home: Path) -> None:
    home.mkdir()
    ran = run([sys.executable, "-W", "error", str(example)], home)
    assert (ran.returncode, ran.stderr) == (0, "")
    last = {"background": "midwatch agents", "watch": "done", "function_agent": "kept notes.txt plan.txt"}
    assert last[example.stem] in ran.stdout.splitlines()[-1]


# -- the readme --------------------------------------------------------------------------------------------------------


def test_the_readme_shows_code_early_and_the_library_in_ten_lines() -> None:
    page = ROOT / "README.md"
    code_blocks = list(blocks(page))
    assert code_blocks[0].line <= 30
    (library,) = [block.code for block in code_blocks if block.language == "python"]
    assert library == (ROOT / "examples/background.py").read_text()
    assert len([line for line in library.splitlines() if line.strip()]) <= 10


@pytest.mark.slow
async def test_the_first_commands_of_the_readme_work(home: Path) -> None:
    home.mkdir()
    (story,) = [block.code for block in blocks(ROOT / "README.md") if block.note == "first minute"]
    server_home, outputs = Home(home), {}
    env = {"PATH": f"{PROGRAM.parent}:/usr/bin:/bin", "MIDWATCH_PORT": "0", "MIDWATCH_SHUTDOWN_GRACE": "0"}
    try:
        for line in story.splitlines():
            if "PID" in line.partition("#")[0]:
                await wait_for_start(server_home)
                server = server_home.server()
                assert server is not None
                line = line.replace("PID", str(server.pid), 1)
            ran = run(["sh", "-c", line], home, **env)
            assert ran.returncode == 0, ran.stderr
            outputs[line.split()[1]] = ran.stdout
            if line.startswith("kill"):
                assert await eventually(lambda: not server_home.lock("up").is_taken())
        await wait_for_start(server_home, attempt=2)
        log = run([str(PROGRAM), "events"], home).stdout
    finally:
        run([str(PROGRAM), "down"], home)
    assert "This is the demo agent" in outputs["run"]
    assert "(pid " in outputs["status"]
    assert log.index("task_rescued") < log.rindex("task_started")


async def wait_for_start(home: Home, attempt: int = 1) -> None:
    """Wait until the sleeping demo has started."""
    async with Client.for_home(home.path) as client:
        async for event in client.follow(0, kinds=["task_progress"]):
            if event["attempt"] == attempt:
                return


# -- design ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noun", "first", "states"),
    [
        ("Task", ("pending",), task.TRANSITIONS),
        ("Approval", ("pending",), approval.TRANSITIONS),
        ("Delivery", ("pending",), channel.TRANSITIONS),
        ("Automation", ("active",), automation.TRANSITIONS),
        ("Goal", ("active", "waiting_for_session"), goal.TRANSITIONS),
        ("Worktree", ("making",), worktree.TRANSITIONS),
        ("Alert", ("found",), alert.TRANSITIONS),
        ("Handoff", ("pending",), handoff.TRANSITIONS),
    ],
)
def test_the_diagrams_have_the_transitions_of_the_tables(
    noun: str, first: tuple[str, ...], states: Mapping[str, frozenset[str]]
) -> None:
    drawn = re.findall(r"^ +(\S+) --> ([^:\s]+)", section(read("design.md"), f"### {noun}"), re.M)
    arrows = [(before, after) for before, afters in states.items() for after in afters]
    ends = [(state, "[*]") for state, afters in states.items() if not afters]
    assert sorted(drawn) == sorted([*(("[*]", state) for state in first), *arrows, *ends])


def test_the_picture_of_the_layers_matches_the_contract() -> None:
    (picture,) = [block.code for block in blocks(DOCS / "design.md") if block.note == "layers"]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert picture.splitlines() == layers


def test_the_tree_has_a_line_for_every_module() -> None:
    (tree,) = [block.code for block in blocks(DOCS / "design.md") if block.code.startswith("src/midwatch/")]
    folders: list[str] = []
    listed: list[str] = []
    for line in tree.splitlines()[1:]:
        depth, name = (len(line) - len(line.lstrip())) // 2 - 1, line.split()[0]
        del folders[depth:]
        if name.endswith("/"):
            folders.append(name)
        else:
            assert len(line.split()) > 1, f"{name} is not explained"
            listed.append("".join(folders) + name)
    assert sorted(listed) == sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


# -- tables compared with the code -------------------------------------------------------------------------------------


def test_the_tasks_page_lists_every_field() -> None:
    text = section(read("tasks.md"), "## Fields")
    shown, inside = text.split("Kept inside", 1)
    snapshot = a_task().snapshot()
    assert sorted(first_cells(shown)) == sorted(snapshot) == sorted(TaskInfo.__annotations__)
    assert sorted(first_cells(inside)) == sorted(set(task.Task._fields) - set(snapshot))


def test_the_tasks_page_lists_options_waits_outcomes_and_rules() -> None:
    text = read("tasks.md")
    options = section(text, "## Options of a task")
    assert sorted(first_cells(options)) == sorted(Submission.__annotations__)
    assert sorted(first_cells(section(text, "## Waiting"))) == sorted(task.WAITS)
    ends = re.findall(r"^\| `(\w+)` \| (\w+) \|", section(text, "## How a task ends"), re.M)
    assert dict(ends) == task.STATUS_OF
    rules = section(text, "## When the process dies")
    assert sorted(first_cells(rules)) == sorted(get_args(task.OnCrash))
    (stops,) = re.findall(r"^\| `stop_requested` \| (.*), while", text, re.M)
    assert re.split(r", | or ", stops) == list(get_args(task.Stop))


def test_the_automations_page_lists_every_field_option_status_and_policy() -> None:
    text = read("automations.md")
    whole, run_fields = section(text, "## Fields").split("A run in its history", 1)
    assert sorted(first_cells(whole)) == sorted(AutomationInfo.__annotations__)
    assert sorted(first_cells(run_fields)) == sorted(RunInfo.__annotations__)
    options = first_cells(section(text, "## Options"))
    assert sorted(options) == sorted(set(AutomationBody.model_fields) - {"prompt"})
    assert sorted(set(options) - only_when_made(text)) == sorted(
        set(AutomationPatch.model_fields) - {"prompt", "revision", "keep_anchor"}
    )
    assert first_cells(section(text, "## States")) == list(automation.TRANSITIONS)
    assert sorted(first_cells(section(text, "### Missed runs"))) == sorted(get_args(automation.Missed))
    for name in re.findall(r"`(\{\{\w+\}\})`", text):
        assert automation_step.render(name, 0, "UTC") != name, name


def only_when_made(text: str) -> set[str]:
    rows = re.findall(r"^\| (`.*) \|.*Only at creation \|$", text, re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_the_goals_page_lists_every_field_option_signal_and_status() -> None:
    text = read("goals.md")
    shown, inside = section(text, "## Fields").split("Kept inside", 1)
    assert sorted(first_cells(shown)) == sorted(GoalInfo.__annotations__)
    field_names = {field.name for field in fields(goal.Goal)} - set(GoalInfo.__annotations__)
    assert sorted(first_cells(inside)) == sorted(field_names)
    assert sorted(first_cells(section(text, "## Options"))) == sorted(set(GoalBody.model_fields) - {"objective"})
    assert sorted(first_cells(section(text, "## How it ends or pauses"))) == sorted(goal.TRANSITIONS)
    for value in get_args(goal.Work):
        assert value in shown


def test_the_handoffs_page_lists_every_field_option_limit_and_status() -> None:
    text = read("handoffs.md")

    def names(head: str) -> list[str]:
        return [name for cell in re.findall(r"^\| (`.*?) \|", section(text, head), re.M) for name in words(cell)]

    def words(cell: str) -> list[str]:
        return re.findall(r"`(\w+)`", cell)

    assert sorted(names("## Fields")) == sorted(HandoffInfo.__annotations__)
    assert names("## Options") == list(HandoffBody.model_fields)
    assert names("## States") == list(handoff.TRANSITIONS)
    limits = re.findall(r"\| `(\w+)` \| (\d+) \|", section(text, "## Limits"))
    defaults = Settings().handoffs.model_dump(exclude={"nest_history"})
    assert {name: float(value) for name, value in limits} == defaults
    on_one_line = " ".join(text.split())
    assert f"{handoff.MAX_INPUT} characters at most" in on_one_line
    assert f"{handoff.MAX_RETRIES} at most" in on_one_line
    assert f"{MAX_WAIT_SECONDS:g} at most" in on_one_line and f"`wait` (0 to {MAX_WAIT_SECONDS:g})" in read("api.md")


def test_the_hooks_page_lists_seams_decisions_and_their_fields() -> None:
    text = read("hooks.md")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", section(text, "## Seams"), re.M)
    assert [seam for seam, _, _ in rows] == list(SEAMS)
    for seam, subject, changed in rows:
        assert tuple(re.findall(r"`(\w+)`", changed)) == PATCHABLE.get(seam, ()), seam
        if seam not in ("observe", "approve_tool"):
            assert re.findall(r"`(\w+)`", subject) == list(make_example(seam, "x", {}, "")), seam
    decisions = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section(text, "## Decisions"), re.M)
    for action, seams in decisions:
        named = SEAMS[:-1] if seams == "all except `observe`" else re.findall(r"`(\w+)`", seams)
        assert [seam for seam in SEAMS if action in ACTIONS[seam]] == list(named), action
    assert [action for action, _ in decisions] == list(FIELDS)


def test_the_pages_of_sessions_approvals_and_events_list_every_field() -> None:
    text = read("sessions.md")
    empty = session.View(session.Session(key="k", agent="a", gate_key="k"))
    assert sorted(first_cells(section(text, "## Fields"))) == sorted(empty.snapshot())
    message = session.Message(session_key="k", role="user", text="", time=0)
    assert sorted(first_cells(section(text, "## Messages"))) == sorted(message.snapshot())
    for value in (*get_args(session.Role), *get_args(session.Status)):
        assert f"`{value}`" in text
    question = approval.Approval(
        id="a", task_id="t", attempt=1, session_key="k", agent="a", question="?", choices=YES_NO
    )
    assert sorted(first_cells(section(read("approvals.md"), "## Fields"))) == sorted(question.snapshot())
    envelope = section(read("events.md"), "## The envelope")
    assert sorted(first_cells(envelope)) == sorted(Event._fields)


def test_numbers_in_the_text_match_the_code() -> None:
    default = Settings()
    plain, retention = AgentTerms(), default.retention
    assert plain.timeout_seconds is not None and TERMS.timeout_seconds is not None
    pages = {
        "tasks.md": (
            f"`max_open` ({default.max_open})",
            f"`slots` ({default.slots})",
            f"{DemoAgent.terms.slots} for the demo, {FunctionAgent.terms.slots} for functions",
            f"{CommandAgent.terms.slots} for commands",
            f"-{PRIORITY} to {PRIORITY}",
            f"The default is {plain.timeout_seconds / 60:g} minutes",
            f"{TERMS.timeout_seconds / 3600:g} hours for agent programs",
            f"`max_attempts` ({plain.max_attempts})",
            f"is rescued {task.MAX_RESCUES} times at most",
            f"`shutdown_grace` ({default.shutdown_grace:g} seconds)",
            f"the newest {retention.tasks:,}, for {retention.task_age / 86400:g} days".replace(",", " ", 1),
        ),
        "approvals.md": (
            f"`max_waiting` ({default.max_waiting})",
            f"`approval_expiry` ({default.approval_expiry / 3600:g} hours)",
        ),
        "sessions.md": (f"1 to {session.MAX_KEY} printable characters",),
        "automations.md": (
            f"{automation_step.MOST_FAILURES} runs failed in a row",
            f"more than {automation_step.LATE_SECONDS:g} seconds late",
            f"| {automation.WINDOW_SECONDS / 3600:g} hours |",
            f"is removed after {KEPT_SECONDS / 86400:g} days",
            f"{automation.MAX_TITLE} characters at most",
            f"words for filtering, {automation.MAX_TAGS} at most",
            "30 seconds, 1, 5, 15 and 60 minutes" if task.AUTOMATION_PAUSES == (30, 60, 300, 900, 3600) else "",
        ),
        "goals.md": (
            f"The default is {default.goals.deadline / 3600:g} hours",
            f"{goal_step.SHORTEST_DELAY / 60:g} minute to {goal_step.LONGEST_DELAY / 3600:g} hours",
            f"after {goal_step.MOST_ERRORS} failures in a row",
            f"When {goal_step.MOST_ALIKE} steps in a row end with the same words",
        ),
        "events.md": (f"of envelope and payloads: {VERSION}",),
    }
    for page, phrases in pages.items():
        text = " ".join(read(page).split())
        assert [phrase for phrase in phrases if phrase not in text] == [], page


def kind_terms() -> dict[str, AgentTerms]:
    """Return the terms of each kind of agent without any option."""
    targets = (target.partition(":")[::2] for target in AGENT_KINDS.values())
    classes = {name: getattr(importlib.import_module(module), name) for module, name in targets}
    return {kind.kind: kind.terms for kind in classes.values()}


def test_crash_rules_list_the_kinds_that_use_them_by_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", section(read("tasks.md"), "## When the process dies"), re.M)
    of: dict[str, list[str]] = {rule: [] for rule in get_args(task.OnCrash)}
    for kind, terms in kind_terms().items():
        of[terms.on_crash].append(kind)
    assert {rule: re.findall(r"`(\w+)`", kinds.partition(";")[0]) for rule, kinds in rows} == of
    descriptions = dict(rows)
    assert "a `command` with a `resume_argv`" in descriptions[CommandAgent.terms_for({"resume_argv": ["x"]}).on_crash]
    assert (
        "a `terminal` whose program can resume" in descriptions[TerminalAgent.terms_for({"profile": "claude"}).on_crash]
    )
    assert "a found program that runs as a command" in descriptions[TERMS.on_crash]


def test_the_agents_page_lists_the_terms_of_every_kind() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) (min|h) \| `(\w+)`.*? \| (\d+) \| (\d+) \|$", read("agents.md"), re.M)
    listed = {
        kind: (int(number) * {"min": 60, "h": 3600}[unit], on_crash, int(attempts), int(slots))
        for kind, number, unit, on_crash, attempts, slots in rows
    }
    assert listed == {
        kind: (terms.timeout_seconds, terms.on_crash, terms.max_attempts, terms.slots)
        for kind, terms in kind_terms().items()
    }


def test_the_kinds_documented_to_report_a_limit_raise_it() -> None:
    (row,) = re.findall(r"^\| `limit` \|.*; (.*) report it", section(read("tasks.md"), "## Waiting"), re.M)
    raising = {
        path.relative_to(SOURCE / "agents").parts[0].removesuffix(".py")
        for path in (SOURCE / "agents").rglob("*.py")
        if re.search(r"(UsageLimit|make_error)\(", path.read_text())
    }
    assert set(re.findall(r"`(\w+)`", row)) == raising - {"streams"}


def test_every_kind_of_agent_is_on_the_settings_page() -> None:
    assert first_cells(section(read("settings.md"), "### Kinds of agents")) == list(AGENT_KINDS)


def test_commands_kinds_and_programs_are_documented() -> None:
    listed = re.findall(r"^\| `midwatch (\w+)", section(read("cli.md"), "## Commands"), re.M)
    assert listed == list(COMMANDS)
    for kind in AGENT_KINDS:
        assert f"`{kind}`" in read("agents.md"), kind
    for kind in CHANNEL_KINDS:
        assert f"### {kind}" in read("channels.md"), kind
    readme = (ROOT / "README.md").read_text()
    assert [name for name in KNOWN if f"`{name}`" not in readme] == []


async def routes(home: Path) -> set[str]:
    async with Runtime.open(home, work=False) as runtime:
        paths = create_app(runtime).openapi()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


async def test_every_route_is_documented(home: Path) -> None:
    listed = re.findall(r"^\| `((?:GET|POST|PATCH|DELETE) [^`]+)`", section(read("api.md"), "## Routes"), re.M)
    known_routes = {re.sub(r"\{\w+\}", "{}", route.replace("/api/v1", "")) for route in await routes(home)}
    assert {re.sub(r"\{\w+\}", "{}", route) for route in listed} == known_routes


# -- the library -------------------------------------------------------------------------------------------------------


def test_the_library_page_lists_every_public_name() -> None:
    text = read("library.md")
    assert sorted(first_cells(section(text, "## Names"))) == sorted(midwatch.__all__)
    assert sorted(first_cells(section(text, "## Tests"))) == sorted(midwatch.testing.__all__)
    arguments = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", section(text, "# The library").split("## ")[0], re.M)
    assert arguments == list(inspect.signature(Runtime.open).parameters)


async def test_the_services_on_the_library_page_exist(home: Path) -> None:
    services = first_cells(section(read("library.md"), "## The desk"))
    async with Runtime.open(home, work=False) as desk:
        assert services and all(hasattr(desk, name.removeprefix("desk.")) for name in services)


USERS_PAGES = [page for page in (*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md") if page.stem != "design"]


@pytest.mark.parametrize("page", [*USERS_PAGES, *ROOT.glob("examples/*.*")], ids=name_of)
def test_user_pages_name_only_public_modules(page: Path) -> None:
    """Only `midwatch` and `midwatch.testing` are public."""
    rooms = {entry.name for entry in SOURCE.iterdir() if entry.is_dir()} - {"testing", "__pycache__"}
    assert rooms.isdisjoint(re.findall(r"\bmidwatch\.(\w+)", page.read_text()))


# -- coverage ----------------------------------------------------------------------------------------------------------

NAMES_TO_COVER = [
    "AgentRunner", "AgentRunner.Run", "ChannelNotifier", "ChannelNotifier.SendMessage", "Manager",
    "NewManager", "NewManager.runner", "NewManager.notify", "NewManager.maxTasks", "NewManager.taskTimeout",
    "NewManager.logger", "Manager.Cancel", "Manager.List", "Manager.Result", "Manager.Shutdown",
    "Manager.Status", "Manager.Submit", "Monitor", "NewMonitor", "Monitor.ActiveCount", "Monitor.Summary",
    "MonitorSummary", "MonitorSummary.Total", "MonitorSummary.Pending", "MonitorSummary.Running",
    "MonitorSummary.Done", "MonitorSummary.Failed", "MonitorSummary.Cancelled", "Notification",
    "NewNotification", "Notification.Notify", "Notification.NotifyStart", "Notification.StartTyping",
    "Origin", "Status", "Status.Pending", "Status.Running", "Status.Done", "Status.Failed",
    "Status.Cancelled", "Task", "Task.ID", "Task.Status", "Task.Prompt", "Task.Result", "Task.Error",
    "Task.OriginChannel", "Task.OriginSession", "Task.StartedAt", "Task.CompletedAt", "Task.TokensUsed",
    "Task.Cancel", "Task.SetRunning", "Task.Snapshot", "TaskSnapshot", "TaskSnapshot.id",
    "TaskSnapshot.status", "TaskSnapshot.status_text", "TaskSnapshot.prompt", "TaskSnapshot.result",
    "TaskSnapshot.error", "TaskSnapshot.origin_channel", "TaskSnapshot.origin_session",
    "TaskSnapshot.started_at", "TaskSnapshot.completed_at", "TaskSnapshot.tokens_used", "TypingIndicator",
    "EventType", "EventTypeMessageUpdate", "EventTypeStatusChange", "EventTypeScreenUpdate", "EventTypeError",
    "AgentStatus", "AgentStatusRunning", "AgentStatusStable", "AgentStatusValues", "AgentStatus.Schema",
    "MessageUpdateBody", "MessageUpdateBody.Id", "MessageUpdateBody.Role", "MessageUpdateBody.Message",
    "MessageUpdateBody.Time", "StatusChangeBody", "StatusChangeBody.Status", "StatusChangeBody.AgentType",
    "ScreenUpdateBody", "ScreenUpdateBody.Screen", "ErrorBody", "ErrorBody.Message", "ErrorBody.Level",
    "ErrorBody.Time", "Event", "Event.Type", "Event.Payload", "EventEmitter", "EventEmitter.mu",
    "EventEmitter.messages", "EventEmitter.status", "EventEmitter.agentType", "EventEmitter.chans",
    "EventEmitter.chanIdx", "EventEmitter.subscriptionBufSize", "EventEmitter.screen", "EventEmitter.errors",
    "EventEmitter.clock", "convertStatus", "defaultSubscriptionBufSize", "maxStoredErrors", "EventEmitterOption",
    "WithSubscriptionBufSize", "WithAgentType", "WithClock", "NewEventEmitter", "EventEmitter.notifyChannels",
    "EventEmitter.EmitMessages", "EventEmitter.EmitStatus", "EventEmitter.EmitScreen", "EventEmitter.EmitError",
    "EventEmitter.currentStateAsEvents", "EventEmitter.Subscribe", "EventEmitter.unsubscribeInner",
    "EventEmitter.Unsubscribe",
    "automation.ErrTaskNotFound", "automation.ErrGoalNotFound", "automation.NextRunAt",
    "automation.SetGoalTemplates", "automation.ValidateTask", "automation.ValidateGoal", "automation.NormalizeTask",
    "automation.NormalizeGoal", "automation.ParseStatusFilter", "automation.Actor", "automation.Actor.UserID",
    "automation.Actor.OpenID", "automation.Actor.Name", "automation.Actor.PreferredID", "automation.Engine",
    "automation.Engine.ExecuteGoal", "automation.Engine.RegisterSystemTask", "automation.Engine.Run",
    "automation.Engine.RunWatchdogOnce", "automation.Engine.SetLLMRunner", "automation.Engine.SetRunEnv",
    "automation.Engine.SetSessionActivityChecker", "automation.Engine.SetUserTaskCompletionHook",
    "automation.Engine.SetUserTaskTimeout", "automation.UserTaskCompletionHook", "automation.SystemTaskFunc",
    "automation.LLMRunner", "automation.Sender", "automation.GoalStatus", "automation.GoalStatus.Active",
    "automation.GoalStatus.Paused", "automation.GoalStatus.Complete", "automation.GoalStatus.Timeout",
    "automation.GoalStatus.WaitingForSession", "automation.GoalStatus.IsTerminal", "automation.GoalTask",
    "automation.GoalTask.ID", "automation.GoalTask.Objective", "automation.GoalTask.Status",
    "automation.GoalTask.DeadlineAt", "automation.GoalTask.ThreadID", "automation.GoalTask.Route",
    "automation.GoalTask.Creator", "automation.GoalTask.SessionKey", "automation.GoalTask.CreatedAt",
    "automation.GoalTask.UpdatedAt", "automation.GoalTask.Revision", "automation.GoalTask.Scope",
    "automation.GoalTask.Running", "automation.ManageMode", "automation.ManageMode.CreatorOnly",
    "automation.ManageMode.ScopeAll", "automation.Route", "automation.Schedule", "automation.Scope",
    "automation.ScopeKind", "automation.SessionActivityChecker", "automation.SessionActivityGate",
    "automation.SessionActivityGate.TryAcquireSession", "automation.SessionActivityGate.ReleaseSession",
    "automation.SessionThreadProvider", "automation.Snapshot", "automation.Store", "automation.Store.ClaimDueTasks",
    "automation.Store.CreateTask", "automation.Store.GetTask", "automation.Store.ListTasks",
    "automation.Store.PatchTask", "automation.Store.UnclaimTask", "automation.Store.RecordTaskResult",
    "automation.Store.RecordTaskResumeThreadID", "automation.Store.RecordTaskSourceMessageID",
    "automation.Store.ResetRunningTasks", "automation.Store.ScanWatchdogAlerts", "automation.Store.Path",
    "automation.Store.ReplaceGoal", "automation.Store.GetGoal", "automation.Store.ListGoals",
    "automation.Store.PatchGoal", "automation.Store.DeleteGoal", "automation.Store.ResetRunningGoals",
    "automation.Task", "automation.Task.ID", "automation.Task.Title", "automation.Task.Prompt",
    "automation.Task.Fresh", "automation.Task.Schedule", "automation.Task.Route", "automation.Task.Creator",
    "automation.Task.ManageMode", "automation.Task.SessionKey", "automation.Task.ResumeThreadID",
    "automation.Task.SourceMessageID", "automation.Task.Status", "automation.Task.MaxRuns",
    "automation.Task.RunCount", "automation.Task.CreatedAt", "automation.Task.UpdatedAt",
    "automation.Task.NextRunAt", "automation.Task.LastRunAt", "automation.Task.DeletedAt",
    "automation.Task.LastResult", "automation.Task.ConsecutiveFailures", "automation.Task.Revision",
    "automation.Task.Scope", "automation.Task.Running", "automation.TaskStatus", "automation.TaskStatus.Active",
    "automation.TaskStatus.Paused", "automation.TaskStatus.Deleted", "automation.TaskWatchdogAlert",
    "automation.TaskWatchdogAlertKind", "automation.TaskWatchdogAlertKind.Overdue",
    "automation.TaskWatchdogAlertKind.Stuck",
    "agent.EventKind", "agent.EventKind.TurnStart", "agent.EventKind.TurnEnd", "agent.EventKind.LLMRequest",
    "agent.EventKind.LLMResponse", "agent.EventKind.ToolExecStart", "agent.EventKind.ToolExecEnd",
    "agent.EventKind.Error", "agent.eventKindCount", "agent.eventKindNames", "agent.EventKind.String", "agent.Event",
    "agent.Event.Kind", "agent.Event.Time", "agent.Event.Meta", "agent.Event.Payload", "agent.EventMeta",
    "agent.EventMeta.AgentID", "agent.EventMeta.TurnID", "agent.EventMeta.ParentTurnID", "agent.EventMeta.SessionKey",
    "agent.EventMeta.Iteration", "agent.EventMeta.TracePath", "agent.EventMeta.Source", "agent.TurnEndStatus",
    "agent.TurnEndStatus.Completed", "agent.TurnEndStatus.Error", "agent.TurnStartPayload",
    "agent.TurnStartPayload.Channel", "agent.TurnStartPayload.ChatID", "agent.TurnStartPayload.UserMessage",
    "agent.TurnStartPayload.MediaCount", "agent.TurnEndPayload", "agent.TurnEndPayload.Status",
    "agent.TurnEndPayload.Iterations", "agent.TurnEndPayload.Duration", "agent.TurnEndPayload.FinalContentLen",
    "agent.LLMRequestPayload", "agent.LLMRequestPayload.Model", "agent.LLMRequestPayload.MessagesCount",
    "agent.LLMRequestPayload.ToolsCount", "agent.LLMRequestPayload.MaxTokens", "agent.LLMRequestPayload.Temperature",
    "agent.LLMResponsePayload", "agent.LLMResponsePayload.ContentLen", "agent.LLMResponsePayload.ToolCalls",
    "agent.LLMResponsePayload.HasReasoning", "agent.ToolExecStartPayload", "agent.ToolExecStartPayload.Tool",
    "agent.ToolExecStartPayload.Arguments", "agent.ToolExecEndPayload", "agent.ToolExecEndPayload.Tool",
    "agent.ToolExecEndPayload.Duration", "agent.ToolExecEndPayload.ForLLMLen", "agent.ToolExecEndPayload.ForUserLen",
    "agent.ToolExecEndPayload.IsError", "agent.ToolExecEndPayload.Async", "agent.ErrorPayload",
    "agent.ErrorPayload.Stage", "agent.ErrorPayload.Message",
    "handoff.AgentCapability", "handoff.AgentCapability.Name", "handoff.AgentCapability.Description",
    "handoff.AgentCapability.TaskTypes", "handoff.AgentCapability.Priority", "handoff.Handoff", "handoff.Handoff.ID",
    "handoff.Handoff.FromAgentID", "handoff.Handoff.ToAgentID", "handoff.Handoff.ToolName",
    "handoff.Handoff.ToolDescription", "handoff.Handoff.TransferMessage", "handoff.Handoff.Task",
    "handoff.Handoff.Status", "handoff.Handoff.Context", "handoff.Handoff.Result", "handoff.Handoff.CreatedAt",
    "handoff.Handoff.AcceptedAt", "handoff.Handoff.CompletedAt", "handoff.Handoff.Timeout",
    "handoff.Handoff.RetryCount", "handoff.Handoff.MaxRetries", "handoff.HandoffAgent", "handoff.HandoffAgent.ID",
    "handoff.HandoffAgent.Capabilities", "handoff.HandoffAgent.CanHandle", "handoff.HandoffAgent.AcceptHandoff",
    "handoff.HandoffAgent.ExecuteHandoff", "handoff.HandoffContext", "handoff.HandoffContext.ConversationID",
    "handoff.HandoffContext.Messages", "handoff.HandoffContext.Variables", "handoff.HandoffContext.ParentHandoff",
    "handoff.HandoffEnabledFunc", "handoff.HandoffHistoryMapper", "handoff.HandoffHook", "handoff.HandoffInputData",
    "handoff.HandoffInputData.InputHistory", "handoff.HandoffInputData.PreHandoff",
    "handoff.HandoffInputData.NewMessages", "handoff.HandoffInputData.InputMessages",
    "handoff.HandoffInputData.Context", "handoff.HandoffInputData.Clone", "handoff.HandoffInputFilter",
    "handoff.HandoffManager", "handoff.NewHandoffManager", "handoff.HandoffManager.FindAgent",
    "handoff.HandoffManager.GetHandoff", "handoff.HandoffManager.Handoff", "handoff.HandoffManager.RegisterAgent",
    "handoff.HandoffManager.UnregisterAgent", "handoff.HandoffOptions", "handoff.HandoffOptions.FromAgentID",
    "handoff.HandoffOptions.ToAgentID", "handoff.HandoffOptions.Task", "handoff.HandoffOptions.Context",
    "handoff.HandoffOptions.Timeout", "handoff.HandoffOptions.MaxRetries", "handoff.HandoffOptions.Wait",
    "handoff.HandoffOptions.OnHandoff", "handoff.HandoffOptions.InputFilter", "handoff.HandoffOptions.Enabled",
    "handoff.HandoffOptions.EnableFunc", "handoff.HandoffOptions.ToolNameOverride",
    "handoff.HandoffOptions.ToolDescriptionOverride", "handoff.HandoffOptions.NestHistory",
    "handoff.HandoffOptions.HistoryMapper", "handoff.HandoffResult", "handoff.HandoffResult.Output",
    "handoff.HandoffResult.Error", "handoff.HandoffResult.Duration", "handoff.HandoffStatus",
    "handoff.HandoffStatus.StatusPending", "handoff.HandoffStatus.StatusAccepted",
    "handoff.HandoffStatus.StatusRejected", "handoff.HandoffStatus.StatusInProgress",
    "handoff.HandoffStatus.StatusCompleted", "handoff.HandoffStatus.StatusFailed", "handoff.Task", "handoff.Task.Type",
    "handoff.Task.Description", "handoff.Task.Input", "handoff.Task.Priority", "handoff.Task.Metadata",
]  # fmt: skip


OPEN = re.compile(r"open \((?:channels|automations|later)\)")
"""The text of a row without a test: its name exists but is not implemented yet."""


class CoverageRow(NamedTuple):
    """A name of another system: its counterpart here, and the tests that show it."""

    there: str
    here: list[str]
    tests: str


def coverage() -> Iterator[CoverageRow]:
    for row in re.findall(r"^\| `.*\|$", read("contributing/coverage.md"), re.M):
        there, here, _, tests = re.split(r" *\| *", row)[1:-1]
        places = re.findall(r"(setting )?`([^`]+)`", here)
        yield CoverageRow(there.strip("`"), [setting + name for setting, name in places], tests)


def test_every_name_is_listed_once() -> None:
    assert sorted(row.there for row in coverage()) == sorted(NAMES_TO_COVER)


def test_every_name_has_a_test_or_is_open() -> None:
    defined: dict[str, set[str]] = {}
    for row in coverage():
        if OPEN.fullmatch(row.tests):
            continue
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.tests)
        assert named and row.tests == ", ".join(f"`{file}::{test}`" for file, test in named), row
        for file, test in named:
            if file not in defined:
                defined[file] = set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / file).read_text(), re.M))
            assert test in defined[file], f"{row.there}: there is no {test} in {file}"


async def test_every_name_exists_where_documented(home: Path) -> None:
    known_routes = await routes(home)
    for there, locations, _ in coverage():
        assert locations, there
        for location in locations:
            if location.startswith("setting "):
                assert is_setting(location.removeprefix("setting ")), f"{there}: {location}"
            elif location.startswith("midwatch "):
                assert location.split()[1] in COMMANDS, f"{there}: {location}"
            elif location.startswith("midwatch."):
                resolve(location)
            else:
                assert location in known_routes, f"{there}: {location}"


def is_setting(path: str) -> bool:
    head, *rest = path.split(".")
    if rest:
        nested = {"agents": AgentSettings, "channels": ChannelSettings}
        return rest[0] == "NAME" and rest[1] in nested[head].model_fields
    return head in Settings.model_fields


def resolve(path: str) -> Any:
    """Return the object that a dotted path names; the key of a typed dictionary counts as its attribute."""
    module, *names = path.split(".")
    value: Any = midwatch
    while names and hasattr(value, "__path__") and importlib.util.find_spec(f"{module}.{names[0]}"):
        module = f"{module}.{names.pop(0)}"
        value = importlib.import_module(module)
    for name in names:
        keys = getattr(value, "__annotations__", {})
        assert hasattr(value, name) or name in keys, f"{path}: there is no {name}"
        value = getattr(value, name, None) or keys[name]
    return value


def test_the_default_timeout_equals_that_of_the_reference() -> None:
    assert AgentTerms().timeout_seconds == 30 * 60


# -- words -------------------------------------------------------------------------------------------------------------

NEEDED = [
    "agent", "approval", "attempt", "channel", "claim", "delivery", "event", "fence", "gate", "home",
    "instance", "leader", "lease", "notice", "origin", "outcome", "rescue", "route", "session", "slot",
    "task", "turn", "automation", "goal", "step",
]  # fmt: skip


def test_the_glossary_is_sorted_and_complete() -> None:
    terms = re.findall(r"^\| (\w+) \| .+ \|$", read("glossary.md"), re.M)[1:]
    assert terms == sorted(set(terms))
    assert [term for term in NEEDED if term not in terms] == []


def test_the_changelog_has_an_unreleased_section() -> None:
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[0] == "Unreleased"
