"""Names of hosts: find them in texts and commands, and bring them into one form, so that rules can be compared."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Sequence

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:/{0,3}(?:[^\s/?#@]*@)?(\[[^\]\s]*\]|[^\s/?#:@'\"<>()\\|;,]+)", re.IGNORECASE)
"""An address such as https://user@example.org:8080/x. Some programs also read `https:example.org`."""
LOGIN = re.compile(r"[^\s@/:='\"]+@(\[[^\]\s]+\]|[A-Za-z0-9._-]+)")
"""A login such as git@example.org:project."""
NAME = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)+|localhost)\.?", re.IGNORECASE)
NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]+|\d+)){0,3}", re.IGNORECASE)
NETWORK = frozenset({
    "curl", "wget", "ssh", "scp", "sftp", "rsync", "ftp", "telnet", "nc", "ncat", "netcat", "socat", "ping", "ping6",
    "traceroute", "dig", "nslookup", "host", "whois", "http", "https", "httpie", "xh", "aria2c", "lynx", "w3m", "links",
    "npm", "npx", "pnpm", "yarn", "pip", "pip3", "pipx", "uv", "uvx", "poetry", "cargo", "gem", "bundle", "go",
    "docker", "podman", "kubectl", "helm", "gh", "glab", "hub", "apt", "apt-get", "dnf", "yum", "apk", "brew", "pacman",
    "aws", "gcloud", "az", "doctl", "terraform", "mail", "sendmail", "svn", "hg", "rclone", "mosh", "nmap", "openssl",
})  # fmt: skip
"""Programs that reach other machines, even if their arguments name no host."""
GIT_NETWORK = frozenset({"fetch", "pull", "push", "clone", "ls-remote", "submodule", "remote", "archive", "send-email"})
CERTAIN = re.compile(r"[a-z][a-z0-9+.-]*://|[^\s@/:='\"]+@[A-Za-z0-9\[]", re.IGNORECASE)
"""The beginning of an address or a login. Any other word of a command may be a host or a file."""
CHANGED = re.compile(r"://[^\s/]*(?:[{%]|\[(?![0-9a-f:.]*:[0-9a-f:.]*\]))", re.IGNORECASE)
"""An address whose host the program changes, such as `http://{a,b}.org` for curl."""
ELSEWHERE = {
    "curl": re.compile(r"-[a-zA-Z]*K.*|--conf.*|--connect-to.*|--resolve.*|--doh.*"),
    **dict.fromkeys(["wget", "aria2c"], re.compile(r"-[a-zA-Z]*i.*|--input.*|--conf.*|-e.*|--exec.*")),
    **dict.fromkeys(["ssh", "scp", "sftp"], re.compile(r"-[a-zA-Z]*F.*")),
}
"""Options that name a file with hosts, or another host than the address."""
LONGEST_TEXT = 20_000


def fold_host(host: str) -> str:
    """Return a host's name in one form: lower case, ASCII, without a final dot; numbers as a dotted address."""
    name = host.strip().strip("[]").rstrip(".").lower()
    if NUMBER.fullmatch(name):
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except OSError:
            return name
    try:
        return name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        return name


def find_hosts(text: str) -> Iterator[str]:
    """Yield the hosts of all addresses and logins in a text, in one form."""
    for pattern in (ADDRESS, LOGIN):
        for match in pattern.finditer(text[:LONGEST_TEXT]):
            if host := fold_host(match[1]):
                yield host


def find_host_names(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a command that may be the name of a host, such as `example.org` or `example.org:8080/x`."""
    for word in words:
        for part in re.split(r"[=,@]", word):
            name = part.partition("/")[0].partition(":")[0] if not part.startswith("[") else part.partition("]")[0]
            if NAME.fullmatch(name) or NUMBER.fullmatch(name):
                yield fold_host(name)


def find_bare_names(parts: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield every part of the words of commands that reach other machines. Each may be the name of a host."""
    for part in parts:
        if uses_network([part]):
            for word in part:
                for piece in re.split(r"[=,@:]", word.partition("://")[2] or word):
                    if name := fold_host(piece.partition("/")[0]):
                        yield name


def hides_hosts(command: str, parts: Sequence[Sequence[str]]) -> bool:
    """Return whether a command that reaches other machines may reach one that it does not name for certain."""
    if not CERTAIN.search(command[:LONGEST_TEXT]) or CHANGED.search(command[:LONGEST_TEXT]):
        return True
    for part in parts:
        for at, word in enumerate(part):
            options = ELSEWHERE.get(word.rpartition("/")[2].casefold())
            if options and any(map(options.fullmatch, part[at + 1 :])):
                return True
    return False


def uses_network(parts: Sequence[Sequence[str]]) -> bool:
    """Return whether one of these commands runs a program that is known to reach other machines."""
    return any(_reaches(word, part) for part in parts for word in part)


def _reaches(word: str, part: Sequence[str]) -> bool:
    program = word.rpartition("/")[2].casefold()
    return program in NETWORK or (program == "git" and any(other.casefold() in GIT_NETWORK for other in part))
