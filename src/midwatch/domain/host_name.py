"""Names of hosts: find them in texts and commands, and bring them into one form, so that rules can be compared."""

from __future__ import annotations

import re
import socket
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

from midwatch.domain.hidden_code.git import split_git
from midwatch.domain.hidden_code.program import program_of

ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]{0,30}:/{0,3}(?:[^\s/?#]*@)?(\[[^\]\s]*\]|[^\s/?#:@'\"<>()\\|;,]+)", re.IGNORECASE
)
"""An address such as https://user@example.org:8080/x. Some programs also read `https:example.org`."""
LOGIN = re.compile(r"[^\s@/:='\"]{1,64}@(\[[^\]\s]+\]|[A-Za-z0-9._-]+)")
"""A login such as git@example.org:project."""
NAME = re.compile(r"(?:[\w-]+(?:[.\u3002\uff0e\uff61][\w-]+)+|localhost)[.\u3002\uff0e\uff61]*", re.IGNORECASE)
NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]+|\d+)){0,3}", re.IGNORECASE)
SMALL = re.compile(r"[1-9]\d{0,6}")
"""A number that is no address of a machine, such as 8080."""
PLAIN = re.compile(r"(?=.*[a-z_])[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f.]*:[0-9a-f:.]*|\d+\.\d+\.\d+\.\d+")
"""A name or an address whose meaning is certain."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that end with the IPv4 address that they stand for."""
NETWORK = frozenset({
    "curl", "wget", "ssh", "scp", "sftp", "rsync", "ftp", "telnet", "nc", "ncat", "netcat", "socat", "ping", "ping6",
    "traceroute", "dig", "nslookup", "host", "whois", "http", "https", "httpie", "xh", "aria2c", "lynx", "w3m", "links",
    "npm", "npx", "pnpm", "yarn", "pip", "pip3", "pipx", "uv", "uvx", "poetry", "cargo", "gem", "bundle", "go",
    "docker", "podman", "kubectl", "helm", "gh", "glab", "hub", "apt", "apt-get", "dnf", "yum", "apk", "brew", "pacman",
    "aws", "gcloud", "az", "doctl", "terraform", "mail", "sendmail", "svn", "hg", "rclone", "mosh", "nmap", "openssl",
    "lftp", "axel", "bun", "bunx", "deno", "composer", "mvn", "gradle", "ansible", "gsutil", "s3cmd", "sshfs",
    "autossh", "tftp", "ldapsearch", "smbclient", "ssh-copy-id", "ssh-keyscan", "psql", "mysql", "mariadb", "mongosh",
    "redis-cli",
})  # fmt: skip
"""Programs that reach other machines, even if their arguments name no host."""
DATABASES = frozenset({"psql", "mysql", "mariadb", "mongosh", "redis-cli"})
"""Programs that reach only this machine if their arguments name no host."""
LOCAL = {
    **dict.fromkeys(["npm", "pnpm", "yarn", "bun"], frozenset({"test", "t", "run", "run-script", "start", "ls"})),
    **dict.fromkeys(["pip", "pip3"], frozenset({"list", "show", "freeze", "check", "--version"})),
    **dict.fromkeys(["docker", "podman"], frozenset({"ps", "images", "logs", "inspect", "version", "stop", "rm"})),
    "go": frozenset({"fmt", "env", "version", "help", "doc"}),
    "cargo": frozenset({"fmt", "--version", "help", "clean"}),
    "uv": frozenset({"--version", "version", "help"}),
    "openssl": frozenset({"version", "rand", "dgst", "enc", "x509", "genrsa", "rsa"}),
}
"""For programs that reach other machines, the commands that reach none by themselves."""
GIT_NETWORK = frozenset({"fetch", "pull", "push", "clone", "ls-remote", "submodule", "remote", "archive", "send-email"})
GIT_LOCAL = {
    "remote": frozenset({"-v", "get-url", "rename", "remove", "rm"}),
    "submodule": frozenset({"status", "summary", "deinit"}),
}
CERTAIN = re.compile(r"[a-z]://|[^\s@/:='\"]@[A-Za-z0-9\[]", re.IGNORECASE)
"""The beginning of an address or a login. Any other word of a command may be a host or a file."""
CHANGED = re.compile(
    r"://[^\s/]*(?:[{%\\]|\[(?![0-9a-f:.]*:[0-9a-f:.]*\]))|\b(?:https?|ftp|wss?|ssh|git):[\\/]*\\",
    re.IGNORECASE,
)
"""An address whose host the program changes, such as `http://{a,b}.org` for curl, or reads in its own way."""
COLONS = re.compile(r"://(?:[^\s/?#]*@)?[^\s/?#\[\]:@]*:[^\s/?#:@]*:")
"""An address with two colons after the host; it may be an IPv6 address."""
ELSEWHERE = {
    "curl": re.compile(r"-[a-zA-Z]*K.*|--conf.*|--connect-to.*|--resolve.*|--doh.*"),
    **dict.fromkeys(["wget", "aria2c"], re.compile(r"-[a-zA-Z]*i.*|--input.*|--conf.*|-e.*|--exec.*")),
    **dict.fromkeys(["ssh", "scp", "sftp"], re.compile(r"-[a-zA-Z]*F.*")),
}
"""Options that name a file with hosts, or another host than the address."""
WEB_OPTIONS = {
    "curl": (
        re.compile(
            r"-[fgGiIjJkLnNOqsSvV#0-3]*[AbcCdDFHmoQrTuwXyYz]|--(?:request|header|data(?:-raw|-binary|-urlencode)?|json|"
            r"output|user-agent|user|form|max-time|connect-timeout|retry|retry-delay|cookie|cookie-jar|write-out|"
            r"range|upload-file|output-dir|limit-rate|cacert|max-redirs)"
        ),
        re.compile(
            r"-[fgGiIjJkLnNOqsSvV#0-3]+|--(?:silent|show-error|location|fail|fail-with-body|head|include|insecure|"
            r"verbose|compressed|remote-name|remote-header-name|get|http1\.1|http2|no-buffer|progress-bar|create-dirs)"
        ),
    ),
    "wget": (
        re.compile(r"-[qvcNSrnd]*[OPoaTtUl]|--(?:output-document|directory-prefix|header|timeout|tries|user-agent)"),
        re.compile(
            r"-[qvcNSrnd]+|--(?:quiet|continue|no-verbose|server-response|spider|timestamping|[\w-]+=[^\s:/@]*)"
        ),
    ),
}
"""For programs that take every other word as an address: options with a value, and options without one."""
LONGEST_TEXT = 20_000


def fold_host(host: str) -> str:
    """Return a host's name in one form: lower case, ASCII, without a final dot; a number as an address.

    An IPv6 address that stands for an IPv4 address becomes this address.
    """
    return _fold(host[:LONGEST_TEXT])


@lru_cache(2000)
def _fold(host: str) -> str:
    name = unquote(host) if "%" in host else host
    name = name.strip().strip("[]").rstrip(".\u3002\uff0e\uff61").lower()
    if ":" in name:
        return _fold_ip(name)
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii").lower()
        except UnicodeError:
            name = unicodedata.normalize("NFKC", name)
    if NUMBER.fullmatch(name):
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except OSError:
            return name
    return name


def _fold_ip(name: str) -> str:
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return name
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(inner or address)


@lru_cache(2000)
def forms_of_host(host: str) -> frozenset[str]:
    """Return every form of a host that a rule which denies is compared with.

    All names and addresses of this machine are one host. A name with other letters than ASCII also has its older and
    its newer form, and the name as people write it.
    """
    name = fold_host(host)
    forms = {name, *_spell(unicodedata.normalize("NFKC", host.strip().lower()).rstrip(".")), *_spell(name)}
    address: IPv4Address | IPv6Address | None
    try:
        address = ip_address(name)
    except ValueError:
        address = None
    if isinstance(address, IPv6Address):
        inner = address.sixtofour or (address.teredo or (None, None))[1]
        if address in TRANSLATED or int(address) >> 32 == 0:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        forms |= {str(inner)} if inner and int(address) > 1 else set()
        address = inner if inner and int(address) > 1 else address
    here = address is not None and (address.is_loopback or address.is_unspecified)
    if here or name in LOCAL_NAMES or name.endswith(".localhost"):
        forms.update(LOOPBACK)
    return frozenset(form for form in forms if form)


def _spell(name: str) -> Iterator[str]:
    """Yield a name with all letters, and with each label in the newer ASCII form."""
    labels = re.split(r"[.\u3002]", name)
    yield ".".join(map(_decode, labels))
    yield ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode('ascii')}" for label in labels)


def _decode(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        return label[4:].encode("ascii").decode("punycode")
    except UnicodeError:
        return label


def is_clear_host(host: str) -> bool:
    """Return whether all programs read a host's name, in its one form, alike."""
    return PLAIN.fullmatch(host) is not None


def find_hosts(text: str) -> Iterator[str]:
    """Yield the hosts of all addresses and logins in a text, in one form."""
    for pattern in (ADDRESS, LOGIN):
        for match in pattern.finditer(text[:LONGEST_TEXT]):
            if host := fold_host(match[1]):
                yield host


def has_unclear_address(text: str) -> bool:
    """Return whether a text has an address whose host cannot be read for certain."""
    return bool(CHANGED.search(text[:LONGEST_TEXT]) or COLONS.search(text[:LONGEST_TEXT]))


def find_host_names(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a command that may be the name of a host, such as `example.org` or `example.org:8080/x`."""
    for word in words:
        for part in {word, *re.split(r"[=,@]", word)}:
            name = part.removeprefix("//").partition("/")[0]
            name = f"{name.partition(']')[0]}]" if name.startswith("[") else name
            if name.count(":") > 1:
                if is_clear_host(folded := fold_host(name)):
                    yield folded
                continue
            name = name.partition(":")[0]
            folded = name if name.isascii() and "%" not in name else fold_host(name)
            number = NUMBER.fullmatch(folded) and not SMALL.fullmatch(folded)
            if number or NAME.fullmatch(folded) or folded in LOCAL_NAMES:
                yield fold_host(folded)


def find_bare_names(parts: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield every part of the words of commands that reach other machines. Each may be the name of a host."""
    for part in parts:
        if uses_network([part]):
            for word in part:
                option = [word[2:]] if re.match(r"-[A-Za-z]", word) else []  # `-hexample.org`
                for piece in [*re.split(r"[=,@:]", word.partition("://")[2] or word), *option]:
                    if name := fold_host(piece.partition("/")[0]):
                        yield name


def hides_hosts(command: str, parts: Sequence[Sequence[str]], argv: Sequence[str] | None = None) -> bool:
    """Return whether a command that reaches other machines may reach one that it does not name for certain.

    `argv` are the words of the command, if it could be parsed with certainty.
    """
    if has_unclear_address(command):
        return True
    program = argv[0].rpartition("/")[2] if argv else ""
    if program in DATABASES:
        return False
    if not CERTAIN.search(command[:LONGEST_TEXT]) and not _names_addresses(program, argv or ()):
        return True
    for part in parts:
        for at, word in enumerate(part):
            options = ELSEWHERE.get(word.rpartition("/")[2].casefold())
            if options and any(map(options.fullmatch, part[at + 1 :])):
                return True
    return False


def _names_addresses(program: str, argv: Sequence[str]) -> bool:
    """Return whether this is curl or wget with known options only, so that every other word is an address."""
    if program not in WEB_OPTIONS:
        return False
    with_value, without = WEB_OPTIONS[program]
    found, words = False, iter(argv[1:])
    for word in words:
        if with_value.fullmatch(word):
            next(words, None)
        elif not word.startswith("-"):
            name = word.partition("/")[0].partition(":")[0]
            if not (NAME.fullmatch(name) and name.isascii()) or re.search(r"[\[\]{}%\\@]", word):
                return False
            found = True
        elif not without.fullmatch(word):
            return False
    return found


def uses_network(parts: Sequence[Sequence[str]], argv: Sequence[str] | None = None) -> bool:
    """Return whether one of these commands runs a program that is known to reach other machines.

    `argv` are the words of the command, if it could be parsed with certainty.
    """
    if argv and _stays_here(argv):
        return False
    return any(_reaches(word, part) for part in parts for word in part)


def _stays_here(argv: Sequence[str]) -> bool:
    """Return whether it is certain that a command reaches no other machine by itself."""
    program, words, takes_text = program_of(argv)
    if program == "git":
        command = [*split_git(words)[1], "", ""]
        return command[1] in GIT_LOCAL.get(command[0], ()) or (takes_text and command[0] not in GIT_NETWORK)
    if program in LOCAL:
        return bool(words) and words[0] in LOCAL[program]
    return takes_text and program not in NETWORK


def _reaches(word: str, part: Sequence[str]) -> bool:
    program = word.rpartition("/")[2].casefold()
    return program in NETWORK or (program == "git" and any(other.casefold() in GIT_NETWORK for other in part))
