"""Test that a rule for hosts holds whatever an agent tries: other names, other forms of an address, hidden hosts."""

from __future__ import annotations

import time

import pytest

from judging import FREE, ask_about, judge, run
from midwatch.domain.agent import Question
from midwatch.domain.host_name import LONGEST_TEXT, find_hosts, fold_host


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


HERE = (
    "localhost", "LOCALHOST.", "127.0.0.1", "[::1]", "0.0.0.0", "127.1", "2130706433", "0x7f000001", "0177.0.0.1",
    "127.0.0.1.", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::1%25lo]", "a.localhost",
    "[64:ff9b::7f00:1]", "127\u30020\u30020\u30021", "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460", "localhost%2e",
    "ip6-localhost",
)  # fmt: skip


@pytest.mark.parametrize("host", HERE)
def test_this_machine_is_one_host_under_all_its_names(host: str) -> None:
    for rule in ("localhost", "127.0.0.1", "::1", "127.*"):
        deny = [{"host": rule}]
        assert judge(Question(text="?", kind="fetch", hosts=(host,)), deny=deny, **FREE) == "deny", rule
        assert judge(ask_about({"host": host}), deny=deny, **FREE) == "deny", rule
        for address in (f"http://{host}:80/x", f"https://user:word@{host}/"):
            assert judge(ask_about({"url": address}), deny=deny, **FREE) in ("deny", "ask"), rule
            assert judge(run(f"curl '{address}'"), "/tmp", deny=deny, **FREE) in ("deny", "ask"), rule
        assert judge(run(f"ssh {host}"), "/tmp", deny=deny, **FREE) in ("deny", "ask"), rule
    assert judge(ask_about({"host": host}), deny=[{"host": "example.org"}], **FREE) == "allow"


@pytest.mark.parametrize(
    ("rule", "host"),
    [
        ("b\xfccher.example", "xn--bcher-kva.example"), ("xn--bcher-kva.example", "B\xdcCHER.example"),
        ("b\xfccher.example", "bu\u0308cher.example"), ("b\xfc*.example", "xn--bcher-kva.example"),
        ("fa\xdf.example", "xn--fa-hia.example"), ("fa\xdf.example", "fass.example"),
        ("example.org", "exa\u200bmple.org"),
        ("example.org", "\uff45xample\u3002org"), ("example.org", "example%2eorg"),
        ("10.0.0.*", "10.0.0.0x1"),
        ("10.*", "167772165"), ("2001:db8::1", "[2001:0db8:0::1]"), ("2001:db8:0:0:0:0:0:1", "[2001:db8::1]"),
    ],
)  # fmt: skip
def test_a_host_is_denied_under_every_spelling(rule: str, host: str) -> None:
    for question in (
        Question(text="?", kind="fetch", hosts=(host,)), ask_about({"url": f"http://{host}/"}), ask_about({"h": host}),
    ):  # fmt: skip
        assert judge(question, deny=[{"host": rule}], **FREE) == "deny"
    assert judge(run(f"curl 'http://{host}/'"), "/tmp", deny=[{"host": rule}], **FREE) in ("deny", "ask")


def test_an_address_that_programs_read_in_different_ways_is_asked() -> None:
    deny = [{"host": "evil.org"}]
    for address in (
        "http://evil.org\\@ok.org/", "http:\\\\evil.org/", "http://ok.org:80:90/", "http://[evil.org]/", "http://4294967296/",
        "http://ok.org%00.evil.org/", "http://{ok,evil}.org/",
    ):  # fmt: skip
        assert judge(ask_about({"url": address}), deny=deny, **FREE) in ("ask", "deny"), address
        assert judge(run(f"curl '{address}'"), "/tmp", deny=deny, **FREE) in ("ask", "deny"), address
    for address in ("http://ok.org@x@evil.org/", "http://ok.org#@evil.org/"):
        assert judge(run(f"curl '{address}'"), "/tmp", deny=deny, **FREE) == "deny", address


def test_a_host_with_a_very_long_name_is_read_in_linear_time() -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 5000)))
    for host, effect in (
        (f"{letters}.org", "ask"), ("exa" + "\xad" * 5000 + "mple.org", "ask"), (f"[{':' * 19_000}", "ask"),
        (f"xn--{'a' * 9000}-{'b' * 9000}", "allow"),
    ):  # fmt: skip
        assert judge(ask_about({"url": f"http://{host}"}), deny=[{"host": "example.org"}], **FREE) == effect


def test_a_command_with_a_certain_host_or_without_a_host_is_not_asked() -> None:
    for command in (
        "curl ok.org", "curl -sSL -o f ok.org/x", "curl ok.org -X POST -d x", "wget -q ok.org/x -O f", "npm test",
        "psql -c 'select 1'", "pip list", "docker ps", "git remote -v", "git commit -m 'fetch and push'", "ls curl",
    ):  # fmt: skip
        assert judge(run(command), "/tmp", deny=[{"host": "evil.org"}], **FREE) == "allow", command
    for command in (
        "curl --foo evil ok.org", "curl -x evil ok.org", "curl ok.{org,evil}", "curl -K x ok.org", "curl",
        "npm install",        "psql -h evil.org", "psql -hevil.org", "go test ./...", "wget -i x ok.org",
        "docker -H x ps", "curl evil%2eorg", "wget --inp=x ok.org",
    ):  # fmt: skip
        assert judge(run(command), "/tmp", deny=[{"host": "evil.org"}], **FREE) in ("ask", "deny"), command


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
        ("evil.org", "curl 'http://evil.{org}/'"), ("evil.org", "curl 'http://ok.org\\@evil/'"),
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


@pytest.mark.parametrize("piece", ["a,b:", "a:", "a:@", "a@b:", "http://", "a://b@"])
def test_hosts_of_a_long_text_are_found_in_a_short_time(piece: str) -> None:
    text = (piece * LONGEST_TEXT)[:LONGEST_TEXT]
    began = time.process_time()
    for _ in range(10):
        list(find_hosts(text))
    assert time.process_time() - began < 0.7


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("http://a@b.org@c.org/", {"c.org"}), ("http://a@b.org@", {"b.org"}), ("http://a@b.org@'", {"b.org"}),
        ("http://a.org/@b.org", {"a.org"}), ("x a:b.org,http://c.org:80/d", {"b.org", "c.org"}),
    ],
)  # fmt: skip
def test_the_host_stands_behind_the_last_login(text: str, hosts: set[str]) -> None:
    assert hosts <= set(find_hosts(text)) <= {*hosts, "b.org"}


def test_a_rule_allows_only_its_hosts() -> None:
    def fetch(*hosts: str) -> str | None:
        return judge(Question(text="?", kind="fetch", hosts=hosts), allow=[{"kind": "fetch", "host": "*.example.org"}])

    assert fetch("docs.example.org") == fetch("a.b.example.org", "DOCS.example.org") == "allow"
    assert (
        fetch("example.org") is fetch("example.org.evil.net") is fetch("a.example.org", "evil.net") is fetch() is None
    )
