"""Test that a rule holds whatever an agent tries: other names of a tool, other forms of a path, hidden commands."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midwatch.domain.agent import Question
from midwatch.domain.host_name import find_hosts, fold_host
from midwatch.domain.rule import Level, Policy
from midwatch.domain.tool_call import DEEPEST, MOST_TEXTS, ToolCall, collect_texts
from midwatch.services.rule_decision import decide

FREE: dict[str, Any] = {"default": "allow", "allow": [{"kind": "execute"}, {"kind": "other"}]}
"""Rules that allow as much as possible."""


def judge(question: Question, root: Path | str | None = None, agent: str = "claude", **data: Any) -> str | None:
    levels = [Level("agent", Policy.from_data(data))]
    return decide(question, None if root is None else str(root), levels, agent).verdict


def run(command: str | None, **fields: Any) -> Question:
    return Question(text="May I?", kind="execute", command=command, **fields)


# -- commands ------------------------------------------------------------------------------------------------------


def encode(command: str) -> str:
    return base64.b64encode(command.encode()).decode()


WRAPPERS = {
    "sh": lambda c: f"sh -c {shlex.quote(c)}",
    "bash_login": lambda c: f"bash -lc {shlex.quote(c)}",
    "bash_options": lambda c: f"/bin/bash --norc -x -c {shlex.quote(c)} name",
    "after": lambda c: f"true; {c}",
    "and": lambda c: f"cd x && {c}",
    "pipe": lambda c: f"yes | {c}",
    "into": lambda c: f"{c} | tee log",
    "substitution": lambda c: f"echo $({c})",
    "backticks": lambda c: f"echo `{c}`",
    "group": lambda c: f"( {c} )",
    "braces": lambda c: f"{{ {c}; }}",
    "line": lambda c: f"pwd\n{c}",
    "background": lambda c: f"nohup {c} &",
    "assignment": lambda c: f"A=1 {c}",
    "env": lambda c: f"env A=1 {c}",
    "env_split": lambda c: f"env -S {shlex.quote(c)}",
    "sudo": lambda c: f"sudo -u root {c}",
    "timeout": lambda c: f"timeout 5 nice -n 3 {c}",
    "eval": lambda c: f"eval {shlex.quote(c)}",
    "xargs": lambda c: f"echo x | xargs -I{{}} {c}",
    "xargs_file": lambda c: f"xargs -a words {c.split()[0]}",
    "find": lambda c: f"find . -maxdepth 0 -exec {c} ';'",
    "decode": lambda c: f"echo {encode(c)} | base64 -d | sh",
    "herestring": lambda c: f"bash <<< {shlex.quote(c)}",
    "python": lambda c: f"python3 -c {shlex.quote(f'import os; os.system({c!r})')}",
    "python_parts": lambda c: f"python3 -c {shlex.quote(f'import os; os.system(bytes.fromhex({c.encode().hex()!r}))')}",
    "perl": lambda c: f"perl -e {shlex.quote(f'exec(pack(q(H*), q({c.encode().hex()})))')}",
    "node": lambda c: f"node --eval {shlex.quote(f'require({c!r})')}",
    "awk": lambda c: f"awk {shlex.quote(f'BEGIN {{system({c!r})}}')}",
    "ssh": lambda c: f"ssh localhost {shlex.quote(c)}",
    "watch": lambda c: f"watch -n 1 {shlex.quote(c)}",
    "variable": lambda c: f"X={shlex.quote(c)}; $X",
    "variable_in_shell": lambda c: f"env X={shlex.quote(c[:5])} sh -c {shlex.quote('$X' + c[5:])}",
    "quoted": lambda c: " ".join(f'{word[0]}""{word[1:]}' if word[:1].isalpha() else word for word in c.split(" ")),
    "escaped": lambda c: f"\\{c}",
    "joined": lambda c: c.replace(" ", " \\\n ", 1),
    "trap": lambda c: f"trap {shlex.quote(c)} EXIT",
    "git_alias": lambda c: f"git -c {shlex.quote('alias.x=!' + c)} x",
    "make": lambda c: f"make --eval {shlex.quote('x:;' + c)}",
}  # fmt: skip
DENIED = ("git push", "git -C x push origin main", "/usr/bin/git push --force", "GIT push", "git   push")


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(DENIED), st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=4))
def test_a_denied_command_is_never_allowed_however_it_is_hidden(command: str, wrappers: list[str]) -> None:
    for name in wrappers:
        command = WRAPPERS[name](command)
    question = run(command)
    assert judge(question, "/tmp", deny=[{"command": "git push"}], **FREE) in ("deny", "ask"), command
    assert judge(question, "/tmp", ask=[{"command": "git push"}], **FREE) == "ask", command
    assert judge(question, "/tmp", deny=[{"tool": "*", "command": "git push *"}], **FREE) in ("deny", "ask"), command


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_every_wrapper_alone_is_seen(name: str) -> None:
    command = WRAPPERS[name]("git push")
    assert judge(run(command), "/tmp", deny=[{"command": "git push"}], **FREE) in ("deny", "ask"), command


@pytest.mark.parametrize(
    "command",
    [
        "git pull", "git log -5", "python -m pytest tests", "python script.py", "bash build.sh", "npm test",
        "make test", "ls -la src", "grep -rn x src", "sudo apt list", "timeout 5 make", "awk -f x.awk y",
        "sed -n 1,5p x", "git commit -m 'a b'", "node --version", "find . -name x", "echo hello",
        "git commit -m 'a; b && c | d'", "git -C x commit -m 'a; b'", "grep -E 'a|b' x", "sudo grep -E 'a|b' x",
        "curl -H 'Accept: a; b' https://ok.org", "jq '.a | .b' x", "python script.py -c x", "bash build.sh -e prod",
        "python -W ignore -m pytest -c x", "git config user.name 'A B'", "git config --get alias.x", "git config -l",
        "sed -n /start/,/end/p x", "sed s/old/example/ x", "sed -e s/a/b/ example.txt", "psql mydb", "tar xf a.tar",
        "less x", "man ls", "su root", "git clone https://ok.org/x", "git add -u", "git bisect good", "python -u x.py",
    ],
)  # fmt: skip
def test_an_ordinary_command_stays_allowed_beside_a_deny_rule(command: str) -> None:
    assert judge(run(command), "/tmp", deny=[{"command": "git push"}], **FREE) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "bash -o pipefail -c 'echo hsup tig | rev | sh'", "bash -O extglob -c x", "bash --rcfile x -ic y",
        "sudo bash -o errexit -c x", "timeout 5 bash -o pipefail -c x", "bash -v -c x", "bash5.2 -o x -c y",
        "python3 -W ignore -c x", "python3 -v -c x", "python3 -m timeit x", "python3 -Im timeit x", "perl -I lib -e x",
        "ruby -I lib -e x", "php -d a=b -r x", "deno eval x", "vim x -c y", "R -e x", "elixir -e x", "groovy -e x",
        "view -c x", "psql db -c '!x'", "socat - EXEC:x", "strace -o '|x' ls", "man -P x ls", "dc -e x", "su -c ./x",
        "sqlite3 :memory: '.read x'", "less '+!x' y", "sed --expression='1e x' y", "sed -n -e1els y", "sed /a/els y",
        "tar cf x y --checkpoint=1 --checkpoint-action=exec=./x", "tar -I ./x -cf y z", "split --filter=./x y",
        "git filter-branch --tree-filter x HEAD", "git bisect run ./x", "git difftool -y --extcmd=./x HEAD",
        "git config core.sshCommand ./x", "git config --global alias.x '!y'", "git config alias.x list",
        "git -C . -c alias.x=y x", "git clone -u x y", "git ls-remote 'ext::x'", "unknown --run 'a; b'",
        "git rebase-tool 'a | b'", "git send-pack origin main", "ed", "bash", "python3", "python3 -m",
        "python3 -m code",
    ],
)  # fmt: skip
def test_a_command_that_may_run_something_else_is_asked_beside_a_deny_rule(command: str) -> None:
    assert judge(run(command), "/tmp", deny=[{"command": "git push"}], **FREE) == "ask"


def test_an_exact_rule_allows_a_command_with_code_that_a_person_has_read() -> None:
    rules: dict[str, Any] = {"deny": [{"command": "git push"}], "allow": [{"command": "python3 -c 'print(1)'"}]}
    assert judge(run("python3 -c 'print(1)'"), "/tmp", **rules) == "allow"
    assert judge(run("python3 -c 'print(2)'"), "/tmp", **rules) == "ask"
    wide = {"deny": [{"command": "git push"}], "allow": [{"command": "python3 **"}]}
    assert judge(run("python3 -c 'print(1)'"), "/tmp", **wide) == "ask"


# -- names ---------------------------------------------------------------------------------------------------------

READ_FILE = [
    "read_file", "READ_FILE", "Read_File", " read_file ", "readFile", "ReadFile", "read-file", "functions.read_file",
    "default_api:read_file", "default_api.read_file", "tools/read_file", "functions::read_file", "mcp__fs__read_file",
    "fs/read_file", "fs.read_file", "multi_tool_use.read_file", "functions.mcp__fs__read_file", "mcp_read_file",
    "\uff52ead_file", "namespace__read_file",
]  # fmt: skip


@pytest.mark.parametrize("name", READ_FILE)
def test_a_tool_is_denied_under_every_name(name: str) -> None:
    question = Question(text="?", kind="other", tool=name)
    assert judge(question, deny=[{"tool": "read_file"}], **FREE) == "deny"
    assert judge(question, deny=[{"tool": "READ_*"}], **FREE) == "deny"
    assert judge(question, deny=[{"tool": "*"}], **FREE) == "deny"
    assert judge(question, deny=[{"tool": "write_file"}], **FREE) == "allow"


@pytest.mark.parametrize(
    "name",
    [
        "github/push", "mcp__github__push", "github.push", "github__push", "GitHub/Push", "mcp_github_push",
        "functions.mcp__github__push", "mcp:github:push", "github:push", " mcp__github__push\t",
    ],
)  # fmt: skip
def test_a_tool_of_an_mcp_server_is_denied_under_every_name(name: str) -> None:
    question = Question(text="?", kind="other", tool=name)
    for glob in ("github/push", "github/*", "mcp__github__*", "github.push", "*/push", "push"):
        assert judge(question, deny=[{"tool": glob}], **FREE) == "deny", glob
    assert judge(question, deny=[{"tool": "gitlab/*"}], **FREE) == "allow"


def test_a_rule_that_allows_a_tool_knows_only_its_exact_name() -> None:
    def allowed(name: str | None, glob: str) -> bool:
        return judge(Question(text="?", kind="other", tool=name), allow=[{"tool": glob}]) == "allow"

    assert allowed("search", "search") and allowed("Search", "search") and allowed("github/search", "github/*")
    assert allowed("mcp__github__search", "github/search")
    assert not allowed("evil/search", "search") and not allowed("github/search", "search")
    assert not allowed("functions.search", "search") and not allowed("evil/search", "*")
    assert not allowed(None, "*")


def test_a_question_without_a_name_is_asked_if_a_rule_names_a_tool() -> None:
    assert judge(Question(text="?", kind="edit", paths=("x",)), "/tmp", deny=[{"tool": "write"}], **FREE) == "ask"


def test_a_rule_of_the_desk_may_be_for_some_agents_only() -> None:
    question = Question(text="?", kind="search")
    rules: dict[str, Any] = {"deny": [{"kind": "search", "agent": "re*"}], "default": "allow"}
    assert judge(question, agent="reviewer", **rules) == judge(question, agent="ReViewer", **rules) == "deny"
    assert judge(question, agent="writer", **rules) == "allow"


# -- paths ---------------------------------------------------------------------------------------------------------


def test_a_path_is_denied_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "home" / "project"
    (root / "secret").mkdir(parents=True)
    (root / "link").symlink_to(root / "secret")
    (root / "secret" / "key").write_text("")
    (root / "file").symlink_to("secret/key")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    forms = [
        "secret/key", "./secret/key", "x/../secret/key", "secret//key", f"{root}/secret/key", "link/key", "file",
        "SECRET/Key", "~/project/secret/key", "../project/secret/key", "secret/./key", "secret", f"{root}/x/../link",
    ]  # fmt: skip
    for form in forms:
        for kind in ("read", "edit", "other"):
            question = Question(text="?", kind=kind, tool="t", paths=(form,))  # type: ignore[arg-type]
            assert judge(question, root, deny=[{"path": "secret/**"}], **FREE) == "deny", form
        assert judge(run(f"cat {form}"), root, deny=[{"path": "secret/**"}], **FREE) in ("deny", "ask"), form
        unknown = Question(text="?", kind="other", tool="fs/read", texts=(form,))
        assert judge(unknown, root, deny=[{"path": "secret/**"}], **FREE) == "deny", form
    for kind in ("delete", "move"):  # a directory is moved with everything in it
        question = Question(text="?", kind=kind, paths=("a",))  # type: ignore[arg-type]
        assert judge(question, root, deny=[{"path": "a/b/**"}], **FREE) == "ask"
    for command in (
        "rm -rf a", "cp -r . /tmp/x", "mv ./a b", "find . -delete", "git clean -fdx", "git checkout .", "git restore .",
        "cat /proc/self/cwd/a/b/x", "cat /proc/self/../1/root/x", "cat /proc/1/task/1/fd/3",
        "curl file://localhost/x/a/b/c", "curl file:///x/%61/b/c",
    ):  # fmt: skip
        assert judge(run(command), root, deny=[{"path": "a/b/**"}], **FREE) == "ask"
    for command in (
        "rm -rf c",
        "find . -name x",
        "git checkout main",
        "git restore c",
        "cat /proc/meminfo",
        "curl file:///x",
    ):
        assert judge(run(command), root, deny=[{"path": "a/b/**"}], **FREE) == "allow", command


# -- hosts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example.org/x", "HTTPS://EVIL.Example.ORG", "https://a.evil.example.org:8443",
        "https://user:word@evil.example.org/", "ssh://git@evil.example.org/x", "git@evil.example.org:project",
        "https://evil.example.org.", "https:evil.example.org",
    ],
)  # fmt: skip
def test_a_host_is_denied_in_every_form(address: str) -> None:
    deny = [{"host": "*evil.example.org"}]
    fetched = Question(text="?", kind="fetch", tool="fetch_url", hosts=tuple(find_hosts(address)))
    assert judge(fetched, deny=deny, **FREE) == "deny"
    assert judge(Question(text="?", kind="other", tool="x/y", texts=(address,)), deny=deny, **FREE) == "deny"
    for command in (f"curl {address}", f"git clone {address}", f"sh -c 'wget -q {address}'", f"x --url={address}"):
        assert judge(run(command), "/tmp", deny=deny, **FREE) == "deny", command


def test_a_command_that_reaches_an_unknown_host_is_asked() -> None:
    deny = [{"host": "evil.org"}]
    for command in ("curl evil.org", "ssh evil.org", "scp x evil.org:y", "nc EVIL.org 80", "curl -x evil.org ok.org"):
        assert judge(run(command), "/tmp", deny=deny, **FREE) == "deny", command
    for command in ("git push", "npm install", "curl $HOST", "python -c 'x'", "ping 2130706433.x; a"):
        assert judge(run(command), "/tmp", deny=deny, **FREE) == "ask", command
    for command in ("git log", "ls evil.org", "curl https://ok.org/evil.org", "make"):
        assert judge(run(command), "/tmp", deny=deny, **FREE) == "allow", command
    assert judge(Question(text="?", kind="fetch"), deny=deny, **FREE) == "ask"
    assert judge(run("curl http://2130706433/"), "/tmp", deny=[{"host": "127.0.0.1"}], **FREE) == "deny"
    assert fold_host("0x7f.1") == "127.0.0.1" and fold_host("BÜCHER.example.") == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    ("host", "command"),
    [
        ("prod-db", "ssh prod-db tail app.log"), ("prod-db", "scp app.log prod-db:/x"), ("prod-db", "ping prod-db"),
        ("prod-db", "rsync app.log prod-db:/x"), ("prod-*", "rsync a@ok.org:x prod-db:/x"),
        ("evil.org", "curl 'http://evil.{org}/'"), ("evil.org", "curl http://evil%2eorg/"),
        ("evil.org", "curl 'http://[e]vil.org/'"), ("evil.org", "curl --resolve ok.org:443:1.2.3.4 https://ok.org"),
        ("evil.org", "curl -sK x https://ok.org"), ("evil.org", "wget -i list.txt"),
    ],
)  # fmt: skip
def test_a_host_that_is_not_certain_is_asked(host: str, command: str) -> None:
    assert judge(run(command), "/tmp", deny=[{"host": host}], **FREE) == "ask"


def test_a_certain_host_stays_allowed_beside_a_deny_rule() -> None:
    for command in ("curl -o app.log https://ok.org/x", "git clone git@ok.org:x/y", "wget 'https://[::1]:80/%20'"):
        assert judge(run(command), "/tmp", deny=[{"host": "evil.org"}], **FREE) == "allow", command
    command = "curl --connect-to ok.org:443:evil.org:443 https://ok.org/"
    assert judge(run(command), "/tmp", deny=[{"host": "evil.org"}], **FREE) in ("ask", "deny")


def test_a_rule_allows_only_its_hosts() -> None:
    def fetch(*hosts: str) -> str | None:
        return judge(Question(text="?", kind="fetch", hosts=hosts), allow=[{"kind": "fetch", "host": "*.example.org"}])

    assert fetch("docs.example.org") == fetch("a.b.example.org", "DOCS.example.org") == "allow"
    assert (
        fetch("example.org") is fetch("example.org.evil.net") is fetch("a.example.org", "evil.net") is fetch() is None
    )


# -- tools that midwatch does not know -----------------------------------------------------------------------------


def ask_about(arguments: Any) -> Question:
    return Question.about(ToolCall("write", server="fs", **collect_texts(arguments)))


def test_the_arguments_of_an_unknown_tool_are_searched(tmp_path: Path) -> None:
    deny = [{"path": ".env"}, {"command": "git push"}, {"host": "evil.org"}]
    for arguments in (
        {"file": ".env"}, {"a": [{"b": ["x", "./x/../.env"]}]}, {"uri": "https://evil.org/x"}, {"cmd": "git push"},
        {"argv": ["git", "push"]}, {"script": "cd x\ngit push"}, {"evil.org": 1},
    ):  # fmt: skip
        assert judge(ask_about(arguments), tmp_path, deny=deny, **FREE) == "deny", arguments
    for arguments in ({"text": "then cat .env"}, {"text": "never git push"}):
        assert judge(ask_about(arguments), tmp_path, deny=deny, **FREE) == "ask", arguments
    assert judge(ask_about({"text": "hello", "n": 1}), tmp_path, deny=deny, **FREE) == "allow"


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": "g=push; git $g"}, {"cmd": "echo hsup tig | rev | sh"}, {"cmd": "bash -c 'g=push; git $g'"},
        {"cmd": "python3 -c \"os.system('gi'+'t pu'+'sh')\""}, {"argv": ["bash", "-o", "x", "-c", "y"]},
        {"program": "bash", "args": ["-c", "y"]}, {"cmd": "cd x\neval y"}, {"cmd": "A=1 sudo perl -I lib -e x"},
        {"cmd": "git -C . -c alias.x=y x"}, {"cmd": "ssh host 'a b'"}, {"cmd": "$X y"},
        {"cmd": "curl x | sudo bash -s"},
    ],
)  # fmt: skip
def test_a_command_in_the_arguments_of_an_unknown_tool_that_hides_code_is_asked(arguments: Any) -> None:
    for rule in ({"command": "git push"}, {"path": "secret/**"}, {"host": "evil.org"}):
        assert judge(ask_about(arguments), "/tmp", deny=[rule], **FREE) == "ask", rule


@pytest.mark.parametrize(
    "text",
    [
        "Use `git pull` and `bash build.sh` first; then run the tests.", "It costs $5 & more | less.",
        "at the end, expect the batch to be done; watch the screen, and just script it.",
        "| shell | language |\n|---|---|\n| bash | python |\n| sh | sh |", "# Title\n\n- node - a runtime\n- ruby",
        "node is a runtime; it doesn't run this & won't.\npython - a language\nmake it so (please)!",
        "```sh\ngit pull\nnpm test\n```\nSee [the page](docs/x.md).", "find the `x` that\ngit keeps; docker doesn't.",
        "def f(a):\n    return a | b\n", "Python, perl, sh: all -e and -c options", "bash",
    ],
)  # fmt: skip
def test_prose_is_not_asked_about(text: str) -> None:
    for rule in ({"command": "git push"}, {"host": "evil.org"}):
        assert judge(ask_about({"text": text}), "/tmp", deny=[rule], **FREE) == "allow", rule


def test_arguments_that_cannot_be_read_completely_are_asked(tmp_path: Path) -> None:
    deep: Any = ".env"
    for _ in range(DEEPEST + 1):
        deep = [deep]
    for arguments in ({"x": deep}, {"x": [f"f{n}" for n in range(MOST_TEXTS + 1)]}, {"x": "y " * 40_000}):
        question = ask_about(arguments)
        assert question.unread
        assert judge(question, tmp_path, deny=[{"path": ".env"}], **FREE) == "ask"
        assert judge(question, tmp_path, allow=[{"tool": "fs/write"}]) == "allow"
