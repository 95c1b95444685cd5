"""Test settings: from the file, the environment and the call; an invalid setting is reported in one line with its
location.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import midwatch
from midwatch.base.errors import BadConfig
from midwatch.desk.config import Settings
from midwatch.domain.agent import AgentCapability
from midwatch.domain.handoff import Limits
from midwatch.domain.rule import Pattern, Policy
from midwatch.wire import flaws


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MIDWATCH_"):
            monkeypatch.delenv(name)


def write(home: Path, text: str | bytes) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    file = home / "midwatch.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def load_refused(home: Path) -> str:
    with pytest.raises(BadConfig) as caught:
        Settings.load(home)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert caught.value.exit_status != 0
    return text


# -- sources of settings -----------------------------------------------------------------------------------------


def test_without_a_file_everything_has_a_default(home: Path) -> None:
    settings = Settings.load(home)
    assert (settings.home, settings.port, settings.slots, settings.default_agent) == (home, 7171, 64, "demo")
    assert (settings.retention.tasks, settings.agents, settings.channels) == (10_000, {}, {})
    assert not home.exists()  # reading creates no files


def test_every_setting_is_described() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_the_environment_overrides_the_file_and_arguments_override_both(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, 'port = 1\nslots = 2\nlog_level = "debug"\n')
    monkeypatch.setenv("MIDWATCH_SLOTS", "3")
    monkeypatch.setenv("MIDWATCH_LOG_LEVEL", "warning")
    settings = Settings.load(home, log_level="error")
    assert (settings.port, settings.slots, settings.log_level) == (1, 3, "error")


def test_the_home_comes_from_the_argument_the_environment_or_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert Settings.load().home == tmp_path / "me" / ".midwatch"
    monkeypatch.setenv("MIDWATCH_HOME", str(tmp_path / "one"))
    assert Settings.load().home == tmp_path / "one"
    assert Settings.load(tmp_path / "two").home == tmp_path / "two"
    monkeypatch.chdir(tmp_path)
    assert Settings.load("three").home == tmp_path / "three"
    assert Settings.load("~/four").home == tmp_path / "me" / "four"


def test_a_home_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("MIDWATCH_HOME", raising=False)
    assert Settings().home == Path("/home/somebody/.midwatch")
    assert Settings(home=Path("~/night")).home == Path("/home/somebody/night")
    with pytest.raises(BadConfig, match="home: the user after `~` is not known"):
        Settings.load("~nobody-at-all/night")


def test_two_homes_have_their_own_files(tmp_path: Path) -> None:
    write(tmp_path / "a", "port = 1")
    write(tmp_path / "b", "port = 2")
    assert [Settings.load(tmp_path / name).port for name in "abab"] == [1, 2, 1, 2]


def test_nested_settings_of_file_and_environment_are_merged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, '[retention]\ntasks = 5\ntask_age = "2d"\n')
    monkeypatch.setenv("MIDWATCH_RETENTION__TASKS", "7")
    monkeypatch.setenv("MIDWATCH_RETENTION__EVENT_AGE", "1h30m")
    retention = Settings.load(home).retention
    assert (retention.tasks, retention.task_age, retention.event_age, retention.events) == (
        7,
        172800.0,
        5400.0,
        1_000_000,
    )


def test_the_agents_table_of_the_documentation_is_valid(home: Path) -> None:
    write(
        home,
        """
        [agents.shell]
        kind = "command"
        argv = ["sh", "-c", "{prompt}"]
        timeout = "10m"
        on_crash = "rerun"
        slots = 4
        """,
    )
    shell = Settings.load(home).agents["shell"]
    assert (shell.kind, shell.timeout, shell.on_crash, shell.slots) == ("command", 600.0, "rerun", 4)
    assert shell.options() == {"argv": ["sh", "-c", "{prompt}"]}
    assert (shell.max_attempts, shell.description) == (None, "")


def test_an_agent_can_be_set_in_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, '[agents.shell]\nkind = "command"\nargv = ["sh"]\n')
    monkeypatch.setenv("MIDWATCH_AGENTS__SHELL__SLOTS", "9")
    monkeypatch.setenv("MIDWATCH_CHANNELS", '{"phone": {"kind": "apprise", "urls": ["x"]}}')
    settings = Settings.load(home)
    assert (settings.agents["shell"].slots, settings.agents["shell"].options()) == (9, {"argv": ["sh"]})
    assert settings.channels["phone"].options() == {"urls": ["x"]}


def test_a_variable_of_a_table_is_merged_with_variables_of_its_settings(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDWATCH_RETENTION__TASKS", "7")
    monkeypatch.setenv("MIDWATCH_RETENTION", '{"tasks": 5, "events": 5000}')
    retention = Settings.load(home).retention
    assert (retention.tasks, retention.events) == (7, 5000)


@pytest.mark.parametrize("text", ['{"tasks": 5', "[1]", "[" * 100_000])
def test_a_table_that_is_no_json_is_not_hidden_by_variables_of_its_settings(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("MIDWATCH_RETENTION", text)
    monkeypatch.setenv("MIDWATCH_RETENTION__EVENTS", "5000")
    with pytest.raises(BadConfig, match=r"MIDWATCH_RETENTION is not a table in JSON, but MIDWATCH_RETENTION__EVENTS"):
        Settings.load(home)


def test_only_lists_and_tables_in_the_environment_are_json(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, '[channels.hook]\nkind = "webhook"\n')
    monkeypatch.setenv("MIDWATCH_HOSTS", ' ["desk.example.org"]')
    monkeypatch.setenv("MIDWATCH_HOST", "[::1]")
    monkeypatch.setenv("MIDWATCH_GOALS__CONTINUE_PROMPT", "{objective} until {deadline}")
    monkeypatch.setenv("MIDWATCH_CHANNELS__HOOK__SECRET", "12345")
    settings = Settings.load(home)
    assert (settings.hosts, settings.host) == (["desk.example.org"], "[::1]")
    assert settings.goals.continue_prompt == "{objective} until {deadline}"
    assert settings.channels["hook"].options() == {"secret": "12345"}


def test_variables_that_name_no_setting_are_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Settings.load(home)
    for name in ("MIDWATCH_URL", "MIDWATCH_", "MIDWATCH___X", "MIDWATCH_PORTS", "PORT", "OTHER_MIDWATCH_PORT"):
        monkeypatch.setenv(name, "1")
    assert Settings.load(home) == before


def test_settings_built_in_code_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDWATCH_SLOTS", "3")
    assert (Settings().slots, Settings(slots=5).slots) == (64, 5)


@pytest.mark.parametrize(("text", "expected"), [("90", 90.0), ('"90s"', 90.0), ('"1h30m"', 5400.0), ("0.5", 0.5)])
def test_durations_are_numbers_or_text(home: Path, text: str, expected: float) -> None:
    write(home, f"shutdown_grace = {text}")
    assert Settings.load(home).shutdown_grace == expected


def test_approval_policies_of_agents_are_read(home: Path) -> None:
    rules = 'allow = [{kind = "edit", path = "src/**"}]\ndeny = [{command = "git push"}]'
    desk = '[approvals]\nask = [{tool = "github/*"}]'
    write(home, f'[agents.shell.approvals]\nexpires = "2h"\n{rules}\n{desk}')
    settings = Settings.load(home)
    policy = settings.policies()["shell"]
    assert (policy.default, policy.expires, len(policy.allow), len(policy.deny)) == (None, 7200.0, 1, 1)
    assert settings.agents["shell"].options() == {}
    assert settings.approvals.policy() == Policy(ask=(Pattern(tool="github/*"),))


# -- invalid settings --------------------------------------------------------------------------------------------

INVALID = [
    ("port = 70000", "port"),
    ("port = -1", "port"),
    ('port = "many"', "port"),
    ("slots = 0", "slots"),
    ("slots = 1.5", "slots"),
    ("max_open = 0", "max_open"),
    ('log_level = "loud"', "log_level"),
    ('shutdown_grace = "soon"', "shutdown_grace"),
    ("shutdown_grace = -1", "shutdown_grace"),
    ("approval_expiry = 0", "approval_expiry"),
    ("approval_expiry = nan", "approval_expiry"),
    ("retention = 5", "retention"),
    ("[retention]\ntask = 5", "retention.task"),
    ("[retention]\nevents = 5", "retention.events"),
    ('[retention]\ntask_age = "x"', "retention.task_age"),
    ("[agents.shell]\nslots = 0", "agents.shell.slots"),
    ('[agents.shell]\ntimeout = "-5s"', "agents.shell.timeout"),
    ('[agents.shell]\non_crash = "panic"', "agents.shell.on_crash"),
    ("[agents.shell]\nmax_attempts = 1000", "agents.shell.max_attempts"),
    ('[agents.shell.approvals]\ndefault = "yes"', "agents.shell.approvals.default"),
    ("[agents.shell.approvals]\nalow = []", "agents.shell.approvals.alow"),
    ("[agents.shell.approvals]\nexpires = 0", "agents.shell.approvals.expires"),
    ('[agents.shell.approvals]\nallow = [{command = "a; b"}]', "agents.shell.approvals"),
    ('[agents.shell.approvals]\nallow = [{kind = "edit", path = "/etc"}]', "agents.shell.approvals"),
    ('[agents.shell]\nsandbox = "docker"', "agents.shell.sandbox: "),
    ('[agents."a b"]\nkind = "demo"', "agents.a b"),
    ("[agents.program]\nslots = 0", "agents.program.slots: "),
    ('[agents.bool]\nsandbox = "docker"', "agents.bool.sandbox: "),
    ('hooks = [{argv = ["x"], seams = ["observe"], priority = "high"}]', "hooks.0.priority: "),
    ('hooks = [{argv = ["x"], seams = ["observe"], program = 1}]', "hooks.0.program: "),
    ('hooks = ["a:B", {argv = ["x"]}]', "hooks.1.seams: it is missing"),
    ('proxy_header = "the user"', "proxy_header: the name of a header has 1 to 60 letters, digits or `-`. "),
    ("agents = []", "agents"),
    ('[channels.phone]\nurl = "x"', "channels.phone.kind"),
]


@pytest.mark.parametrize(("text", "place"), INVALID)
def test_a_wrong_value_is_reported_with_its_location_and_file(home: Path, text: str, place: str) -> None:
    file = write(home, text)
    message = load_refused(home)
    assert message.startswith(f"setting {place}")
    assert str(file) in message


def test_every_pattern_of_a_setting_or_request_is_explained_in_words() -> None:
    code = "".join(file.read_text() for file in Path(midwatch.__file__).parent.rglob("*.py"))
    assert {getattr(flaws, name) for name in re.findall(r"\bpattern=([^,)]+)", code)} == set(flaws.PATTERNS)


@pytest.mark.parametrize("text", ["prot = 1", "[agent.shell]\nkind = 'demo'", "MIDWATCH_PORT = 1"])
def test_a_misspelt_setting_is_refused_with_the_known_ones(home: Path, text: str) -> None:
    write(home, text)
    message = load_refused(home)
    assert "unknown setting" in message
    assert "agents" in message and "retention" in message


@pytest.mark.parametrize("text", ["port = ", "[agents", "a = 1\na = 2", "port = 1 2", "= 3"])
def test_invalid_toml_is_reported_with_its_location(home: Path, text: str) -> None:
    file = write(home, f"\n\n{text}")
    message = load_refused(home)
    assert f"{file} is not valid TOML" in message
    assert "(at " in message


def test_a_file_that_is_no_text_is_reported(home: Path) -> None:
    file = write(home, b"port = 1 # gr\xfc\xdfe")
    assert str(file) in load_refused(home)


def test_an_unreadable_file_is_reported(home: Path) -> None:
    (home / "midwatch.toml").mkdir(parents=True)
    assert "cannot be read" in load_refused(home)


def test_a_wrong_value_in_the_environment_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDWATCH_RETENTION__TASKS", "all")
    assert "retention.tasks" in load_refused(home)


@pytest.mark.parametrize("name", ["AGENTS", "RETENTION", "HOSTS", "AGENTS__SHELL__CAPABILITIES"])
def test_a_list_or_table_in_the_environment_that_is_no_json_is_reported(
    home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MIDWATCH_{name}", f"{{kind: {SECRET}")
    message = load_refused(home)
    assert message.startswith(f"setting {name.lower().replace('__', '.')}: ")
    assert "as JSON in a MIDWATCH_* variable" in message
    assert SECRET not in message


INFINITE = ["approval_expiry = inf", "[retention]\ntask_age = inf", "[agents.shell]\ntimeout = inf"]


@pytest.mark.parametrize("text", INFINITE)
def test_a_duration_must_be_finite(home: Path, text: str) -> None:
    write(home, text)
    load_refused(home)


def test_a_home_in_the_file_is_refused(home: Path) -> None:
    write(home, 'home = "/somewhere/else"')
    load_refused(home)


def test_a_misspelt_override_is_refused(home: Path) -> None:
    with pytest.raises((BadConfig, TypeError)):
        Settings.load(home, slot=3)


# -- secrets -----------------------------------------------------------------------------------------------------

SECRET = "hunter2-very-secret"
LEAKS = [
    f'[channels.hook]\nsecret = "{SECRET}"\nurl = "https://{SECRET}@example.org"',
    f'[channels.hook]\nkind = ["{SECRET}"]',
    f'[agents.shell]\nslots = "{SECRET}"\nenv = {{ KEY = "{SECRET}" }}',
    f'[agents.shell]\non_crash = "{SECRET}"',
    f'log_level = "{SECRET}"',
    f'[channels.hook]\nsecret = "{SECRET}',
    f'notify = ["{SECRET}"]',
]


@pytest.mark.parametrize("text", LEAKS)
def test_errors_contain_no_value_of_the_file(home: Path, text: str) -> None:
    write(home, text)
    with pytest.raises(BadConfig) as caught:
        Settings.load(home)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_errors_contain_no_value_of_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDWATCH_PORT", SECRET)
    assert SECRET not in load_refused(home)


# -- handoffs ----------------------------------------------------------------------------------------------------


def test_capabilities_and_limits_of_handoffs_are_read(home: Path) -> None:
    write(
        home,
        "[handoffs]\ndepth = 3\ntotal = 9\ntimeout = '2m'\nnest_history = true\n"
        "[agents.coder]\nkind = 'demo'\nhandoffs = false\n"
        "[[agents.coder.capabilities]]\nname = 'coding'\ntask_types = ['code', 'test']\npriority = 5\n"
        "[[agents.coder.capabilities]]\nname = 'anything'\n",
    )
    settings = Settings.load(home)
    assert settings.handoffs.limits() == Limits(depth=3, revisits=0, total=9)
    assert (settings.handoffs.timeout, settings.handoffs.nest_history) == (120.0, True)
    (coding, anything) = (capability.capability() for capability in settings.agents["coder"].capabilities)
    assert coding == AgentCapability(name="coding", task_types=("code", "test"), priority=5)
    assert anything == AgentCapability(name="anything")
    assert not settings.agents["coder"].handoffs


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[handoffs]\ndepth = 0\n", "handoffs.depth"),
        ("[handoffs]\ntimeout = 0\n", "handoffs.timeout"),
        ("[[agents.a.capabilities]]\ntask_types = ['x']\n", "agents.a.capabilities.0.name"),
        ("[[agents.a.capabilities]]\nname = 'x'\ntypes = ['x']\n", "agents.a.capabilities.0.types"),
    ],
)
def test_a_wrong_setting_of_handoffs_is_named(home: Path, text: str, place: str) -> None:
    write(home, text)
    assert place in load_refused(home)
