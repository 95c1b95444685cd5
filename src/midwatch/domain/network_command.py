"""Commands that reach other machines: which programs do so, and whether they name all their hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from midwatch.domain.commandline import option_ends
from midwatch.domain.hidden_code.git import split_git
from midwatch.domain.hidden_code.long_option import is_long_option
from midwatch.domain.hidden_code.program import TEXT_COMMANDS, program_of
from midwatch.domain.host_name import LONGEST_TEXT, NAME, fold_host, has_unclear_address

NETWORK_PROGRAMS = frozenset({
    "curl", "wget", "ssh", "scp", "sftp", "rsync", "ftp", "telnet", "nc", "ncat", "netcat", "socat", "ping", "ping6",
    "traceroute", "dig", "nslookup", "host", "whois", "http", "https", "httpie", "xh", "aria2c", "lynx", "w3m", "links",
    "npm", "npx", "pnpm", "yarn", "pip", "pip3", "pipx", "uv", "uvx", "poetry", "cargo", "gem", "bundle", "go",
    "docker", "podman", "kubectl", "helm", "gh", "glab", "hub", "apt", "apt-get", "dnf", "yum", "apk", "brew", "pacman",
    "aws", "gcloud", "az", "doctl", "terraform", "mail", "sendmail", "svn", "hg", "rclone", "mosh", "nmap", "openssl",
    "lftp", "axel", "bun", "bunx", "deno", "composer", "mvn", "gradle", "ansible", "gsutil", "s3cmd", "sshfs",
    "autossh", "tftp", "ldapsearch", "smbclient", "ssh-copy-id", "ssh-keyscan", "psql", "mysql", "mariadb", "mongosh",
    "redis-cli", "mtr", "tracepath", "grpcurl", "websocat", "wscat", "curlie", "wget2", "drill", "fping", "iperf3",
})  # fmt: skip
"""Programs that reach other machines, even if their arguments name no host."""
DATABASES = frozenset({"psql", "mysql", "mariadb", "mongosh", "redis-cli"})
"""Programs that reach only this machine if their arguments name no host."""
LOCAL_COMMANDS = {
    **dict.fromkeys(["npm", "pnpm", "yarn", "bun"], frozenset({"test", "t", "run", "run-script", "start", "ls"})),
    **dict.fromkeys(["pip", "pip3"], frozenset({"list", "show", "freeze", "check", "--version"})),
    "docker": TEXT_COMMANDS["docker"],
    "podman": TEXT_COMMANDS["podman"],
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
ADDRESS_OR_LOGIN = re.compile(r"[a-z]://|[^\s@/:='\"]@[A-Za-z0-9\[]", re.IGNORECASE)
"""The beginning of an address or a login. Any other word of a command may be a host or a file."""
NOTHING = re.compile(r"(?!)")
OTHER_HOST_OPTIONS = {
    "curl": (("config", "connect-to", "doh-url", "resolve", "variable"), re.compile(r"-[a-zA-Z]*K.*")),
    **dict.fromkeys(
        ["wget", "aria2c"], (("conf-path", "config", "execute", "input-file"), re.compile(r"-[a-zA-Z]*i.*|-e.*"))
    ),
    **dict.fromkeys(["ssh", "scp", "sftp"], ((), re.compile(r"-[a-zA-Z]*F.*"))),
}
"""Long and short options that name a file with hosts, or another host than the address."""
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


def uses_network(parts: Sequence[Sequence[str]], argv: Sequence[str] | None = None) -> bool:
    """Return whether one of these commands runs a program that is known to reach other machines.

    `argv` are the words of the command, if it could be parsed with certainty.
    """
    if argv and _stays_here(argv):
        return False
    return any(map(_has_network_program, parts))


def _stays_here(argv: Sequence[str]) -> bool:
    """Return whether it is certain that a command reaches no other machine by itself."""
    program, words, takes_text = program_of(argv)
    if program == "git":
        command = [*split_git(words)[1], "", ""]
        return command[1] in GIT_LOCAL.get(command[0], ()) or (takes_text and command[0] not in GIT_NETWORK)
    if program in LOCAL_COMMANDS:
        return bool(words) and words[0] in LOCAL_COMMANDS[program]
    return takes_text and program not in NETWORK_PROGRAMS


def _has_network_program(part: Sequence[str]) -> bool:
    programs = {word.rpartition("/")[2].casefold() for word in part}
    if not NETWORK_PROGRAMS.isdisjoint(programs):
        return True
    return "git" in programs and not GIT_NETWORK.isdisjoint(word.casefold() for word in part)


def find_bare_names(parts: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield every part of the words of commands that reach other machines. Each may be the name of a host."""
    for part in parts:
        if uses_network([part]):
            for word in part:
                values = [word[start:] for start in option_ends(word)]  # `-hexample.org`
                for piece in [*re.split(r"[=,@:]", word.partition("://")[2] or word), *values]:
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
    if not ADDRESS_OR_LOGIN.search(command[:LONGEST_TEXT]) and not _names_all_hosts(program, argv or ()):
        return True
    for part in parts:
        for at, word in enumerate(part):
            long_options, short_options = OTHER_HOST_OPTIONS.get(word.rpartition("/")[2].casefold(), ((), NOTHING))
            if any(is_long_option(after, long_options) or short_options.match(after) for after in part[at + 1 :]):
                return True
    return False


def _names_all_hosts(program: str, argv: Sequence[str]) -> bool:
    """Return whether this is curl or wget with known options only, so that every other word is an address."""
    if program not in WEB_OPTIONS:
        return False
    with_value, without = WEB_OPTIONS[program]
    names_host, words = False, iter(argv[1:])
    for word in words:
        if with_value.fullmatch(word):
            next(words, None)
        elif not word.startswith("-"):
            name = word.partition("/")[0].partition(":")[0]
            if not (NAME.fullmatch(name) and name.isascii()) or re.search(r"[\[\]{}%\\@]", word):
                return False
            names_host = True
        elif not without.fullmatch(word):
            return False
    return names_host
