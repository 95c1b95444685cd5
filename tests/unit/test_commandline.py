"""Test the parser of command lines: it accepts one plain command only, and finds every denied command."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from midwatch.domain.commandline import LONGEST, CommandPattern, argv_of, parts_of, places

GIT_LOG = ("git", "log")


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("git log", GIT_LOG),
        ("git  log", GIT_LOG),
        ("\tgit\tlog ", GIT_LOG),
        ("git log\n", GIT_LOG),
        ('"git" log', GIT_LOG),
        ("g'i't log", GIT_LOG),
        ("/usr/bin/git log", ("/usr/bin/git", "log")),
        ("git log -5 --format='%h; %s'", ("git", "log", "-5", "--format=%h; %s")),
        ('git commit -m "it\'s done"', ("git", "commit", "-m", "it's done")),
        ("echo 'größer'", ("echo", "größer")),
        ("echo ''", ("echo", "")),
        ('bash -lc "git log"', GIT_LOG),
        ("bash -c 'git log'", GIT_LOG),
        ("/bin/sh -c 'git log'", GIT_LOG),
        ("zsh -l -c 'git log'", GIT_LOG),
        ("bash -lc 'bash -lc \"git log\"'", GIT_LOG),
        ("bash script.sh", ("bash", "script.sh")),
        ("bash -c 'git log' x", ("bash", "-c", "git log", "x")),
        (shlex.join(["bash", "-lc", "echo 'it'"]), ("echo", "it")),
    ],
)
def test_a_plain_command_is_parsed(command: str, argv: tuple[str, ...]) -> None:
    assert argv_of(command) == argv


NOT_PLAIN = [
    "git log; rm -rf .", "git log;", "git log && x", "git log || x", "git log | sh", "git log |& sh", "git log &",
    "git log > /etc/x", "git log >> x", "git log < x", "git log 2>&1", "git log <<< x", "git log <(x)",
    "git log $(x)", "git log `x`", "git log $X", "git log ${X}", 'git log "$(x)"', 'git log "$X"', 'git log "`x`"',
    "git log $'x'", "git log *", "git log ?", "git log [a]", "git log {a,b}", "git log ~", "git log ~root/x",
    "git log # x", "git log !x", 'git log "!x"', "(git log)", "{ git log; }", "git log \\; x", "git lo\\g",
    "git log\nrm -rf .", "git log\r\nrm", "git log\x0brm", "git log\x0crm", "git log\u2028rm", "git log\x85rm",
    "git\u00a0log", "git\u3000log", "git log\u202e", "git log\0", "git log 'a\nb'",
    "GIT_PAGER=x git log", "A= git log", "=git log", "git =log", "git log 'x", 'git log "x', "git log \\",
    "", " ", "''", "'' log", "git log ^x", "\u0261it log",
    "bash -lc 'git log; rm -rf .'", 'bash -lc "git log && x"', "bash -c 'X=y git log'", "sh -c ''",
    "sh -c \"sh -c \\\"sh -c 'git log'\\\"\"", "git " + "x" * LONGEST,
]  # fmt: skip


@pytest.mark.parametrize("command", NOT_PLAIN)
def test_more_than_one_plain_command_is_not_parsed(command: str) -> None:
    assert argv_of(command) is None


OPERATORS = (";", "&", "|", "<", ">", "(", ")", "$", "`", "\n", "*", "?", "[", "{", "~", "#", "\\", "!")


@given(
    before=st.text(st.sampled_from("ab -/.=:'\""), max_size=12),
    operator=st.sampled_from(OPERATORS),
    after=st.text(st.sampled_from("ab -/.=:'\"$;&"), max_size=12),
)
def test_no_command_with_an_operator_outside_quotes_is_allowed(before: str, operator: str, after: str) -> None:
    assume(not _is_inside_quotes(before) and (operator != "\n" or after.strip(" ")))
    assert argv_of(f"git log {before}{operator}{after}") is None


def _is_inside_quotes(text: str) -> bool:
    """Return whether the text after `text` would be inside quotes."""
    inside = ""
    for sign in text:
        if inside:
            inside = "" if sign == inside else inside
        elif sign in "'\"":
            inside = sign
    return bool(inside)


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.text(st.sampled_from("ab;|&<>$`(){}[]*?~#!=%@^+\\ \t\n'\"/.-_,:"), max_size=25))
def test_a_shell_parses_a_command_the_same_way(tail: str) -> None:
    argv = argv_of(f"args {tail}")
    assume(argv is not None and len(argv) > 1)
    assert argv is not None
    script = f'args() {{ printf "%s\\n" "$@"; }}; args {tail}'
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "".join(f"{argument}\n" for argument in argv[1:])


# -- patterns ------------------------------------------------------------------------------------------------------


def anywhere(_: str) -> bool:
    return True


def inside(path: str) -> bool:
    return not path.startswith(("/", "..", "~"))


@pytest.mark.parametrize(
    ("pattern", "command", "within", "allowed"),
    [
        ("git log", "git log", anywhere, True),
        ("git log", "git log -5", anywhere, False),
        ("git log", "git", anywhere, False),
        ("git log", "/usr/bin/git log", anywhere, False),
        ("git log", "./git log", anywhere, False),
        ("git log", "git -c core.pager=x log", anywhere, False),
        ("git log", "gitlog", anywhere, False),
        ("git log *", "git log", anywhere, True),
        ("git log *", "git log main src", inside, True),
        ("git log *", "git log -5", anywhere, False),
        ("git log *", "git log --output=/etc/x", anywhere, False),
        ("git log *", "git log main --output=x", anywhere, False),
        ("git log *", "git log -- src", anywhere, False),
        ("git log *", "git log /etc/passwd", inside, False),
        ("git log *", "git log ../other", inside, False),
        ("git log **", "git log -5 --stat", inside, True),
        ("git log **", "git log --output=/etc/x", inside, False),
        ("git log **", "git log -o/etc/x", inside, False),
        ("git log **", "git show -5", anywhere, False),
        ("find . **", "find . -name a -exec rm x", anywhere, True),
        ("curl **", "curl -d @/etc/passwd x", inside, False),
        ("npm test", "npm test", anywhere, True),
        ("npm test --", "npm test --", anywhere, True),
        ("git log *", "bash -lc 'git log main'", inside, True),
    ],
)
def test_a_pattern_allows_its_words_and_wildcards(
    pattern: str, command: str, within: Callable[[str], bool], allowed: bool
) -> None:
    parsed_pattern, argv = CommandPattern.parse(pattern), argv_of(command)
    assert parsed_pattern is not None and argv is not None
    assert parsed_pattern.allows(argv, within) is allowed


@pytest.mark.parametrize("pattern", ["*", "**", "", "git * log", "git log; x", "git log ***", "X=y git", "git log $X"])
def test_a_pattern_must_be_one_plain_command(pattern: str) -> None:
    assert CommandPattern.parse(pattern) is None


DENIED = [
    "git push", "git push --force", "git -C . push", "git -c x=y push origin", "/usr/bin/git push", "git log; git push",
    "git log && git push", "true | git push", "$(git push)", "echo `git push`", "x=$(git push)", "g'i't pu\"sh\"",
    "g\\it push", "git \\\n push", "git pu\\\nsh", "bash -lc 'git push'", "sudo git push", "env A=b git push",
    "GIT_DIR=x git push", "git${IFS}push", "git\u00a0push", "(git push)", "{ git push; }", "git <x push", "GIT push",
    "git $(echo push)", "eval 'git push'", "xargs git push", "nohup git push &",
]  # fmt: skip


@pytest.mark.parametrize("command", DENIED)
@pytest.mark.parametrize("pattern", ["git push", "git push *", "git push **"])
def test_a_denied_command_is_found_wherever_it_hides(pattern: str, command: str) -> None:
    parsed_pattern = CommandPattern.parse(pattern)
    assert parsed_pattern is not None and parsed_pattern.may_be_in(parts_of(command), argv_of(command))


@pytest.mark.parametrize("command", ["git pull", "push git", "git log; docker push", "gitx push", "", "echo"])
def test_other_commands_are_not_denied(command: str) -> None:
    pattern = CommandPattern.parse("git push")
    assert pattern is not None and not pattern.may_be_in(parts_of(command), argv_of(command))


def test_parts_and_paths_of_a_command_are_found() -> None:
    assert parts_of("a b; c|d") == [["a", "b"], ["c"], ["d"]]
    assert set(places("--output=/etc/x")) >= {"/etc/x"}
    assert set(places("-o/etc/x")) >= {"/etc/x"}
    assert set(places("HEAD:/etc/x,/b")) >= {"/etc/x,/b", "/b"}
    assert list(places("")) == []
