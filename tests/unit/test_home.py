"""Test the home directory with real processes: the token, the locks and the server file."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from midwatch.base.errors import AlreadyRunning, HomeUnusable
from midwatch.base.home import Home, ServerInfo, boot_id

START = """
import sys
from pathlib import Path
from midwatch.base.home import Home
from midwatch.base.errors import MidwatchError
home = Home(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
"""
"""The start of every script below: it prints that it is ready and waits for a line."""

INFO = ServerInfo(pid=7, url="http://127.0.0.1:7171", version="1")


@contextmanager
def processes(home: Path, script: str, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that run `script` at the same moment, once all are ready."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", START + script, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    try:
        for process in started:
            assert read_line(process) == "ready"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def place(home: Path) -> Home:
    prepared_home = Home(home)
    prepared_home.prepare()
    return prepared_home


# -- creating ----------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_readable_by_its_owner_only(place: Home) -> None:
    for folder in (place.path, *place.lock_folders, place.work, place.log_file.parent):
        assert mode(folder) == 0o700, folder
    assert mode(place.token_file) == 0o600
    assert len(place.token()) >= 32
    assert not list(place.path.glob(".token*"))


def test_preparing_a_home_again_changes_nothing(place: Home) -> None:
    token = place.token()
    place.prepare()
    assert Home(place.path).token() == token == place.token_file.read_text().strip()


def test_concurrent_processes_agree_on_the_token(home: Path) -> None:
    """When several processes start at once, all use the token of the first."""
    with processes(home, "home.prepare()\nprint(home.token(), flush=True)", 6) as racing:
        tokens = {read_line(process) for process in racing}
    assert tokens == {(home / "token").read_text().strip()}
    assert not list(home.glob(".token*"))


def test_a_start_killed_while_making_the_token_does_no_harm(home: Path) -> None:
    home.mkdir()
    (home / f".token.{os.getpid()}").write_text("")  # in a container every start has the same pid
    Home(home).prepare()


@pytest.mark.parametrize("left", ["", "\n"])
def test_an_empty_token_file_is_replaced(home: Path, left: str) -> None:
    home.mkdir()
    (home / "token").write_text(left)
    with suppress(HomeUnusable):  # an error is acceptable too: the user sees it
        assert Home(home).token()


@pytest.mark.parametrize("blocked", ["", "run", "work", "log", "token"])
def test_a_home_that_cannot_be_created_is_reported_in_one_line(tmp_path: Path, blocked: str) -> None:
    if blocked == "token":
        (tmp_path / "home" / "token").mkdir(parents=True)
    else:
        (tmp_path / "home" / blocked).parent.mkdir(exist_ok=True)
        (tmp_path / "home" / blocked).write_text("a file is in the way")
    with pytest.raises(HomeUnusable, match="MIDWATCH_HOME") as caught:
        Home(tmp_path / "home").prepare()
    assert str(tmp_path / "home") in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_home_below_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeUnusable):
        Home(tmp_path / "file" / "home").prepare()


NOBODY = """
import os
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    home.prepare()
except MidwatchError as problem:
    print(type(problem).__name__, problem, flush=True)
"""


@pytest.mark.parametrize("part", ["", "run"])
def test_a_read_only_home_is_reported(part: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not below a directory that only root may enter
        Path(folder).chmod(0o755)
        home = Home(Path(folder) / "home")
        home.prepare()
        for entry in (home.path, *home.path.iterdir()):
            entry.chmod(0o777)
        (home.path / part).chmod(0o555)
        with processes(home.path, NOBODY) as (process,):
            assert read_line(process).startswith("HomeUnusable")
        (home.path / part).chmod(0o777)


# -- locks -------------------------------------------------------------------------------------------------------


def test_a_lock_has_one_holder(place: Home) -> None:
    first_lock, second_lock = place.lock("x"), place.lock("x")
    assert not first_lock.is_taken()
    assert not any(path.exists() for path in first_lock.paths)  # checking creates no files
    assert first_lock.acquire() and first_lock.acquire() and first_lock.is_held
    assert second_lock.is_taken() and first_lock.is_taken()
    assert not second_lock.acquire(0.05) and not second_lock.is_held
    first_lock.release()
    first_lock.release()
    assert not second_lock.is_taken()
    assert second_lock.acquire()
    second_lock.release()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_lock_that_was_not_acquired_leaks_no_descriptor(place: Home) -> None:
    held_lock = place.lock("x")
    assert held_lock.acquire()
    before = descriptors()
    for _ in range(20):
        assert not place.lock("x").acquire()
        assert place.lock("x").is_taken()
    assert descriptors() <= before
    held_lock.release()


def test_locks_of_other_names_and_homes_are_independent(place: Home, tmp_path: Path) -> None:
    other_home = Home(tmp_path / "other")
    other_home.prepare()
    locks = [place.lock("a"), place.lock("b"), other_home.lock("a")]
    assert all(lock.acquire() for lock in locks)
    for lock in locks:
        lock.release()


def test_an_owner_gets_its_lock_while_others_check_it(place: Home) -> None:
    stop = threading.Event()
    for path in place.lock("x").paths:
        path.touch()

    def look() -> None:
        while not stop.is_set():
            place.lock("x").is_taken()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(30):
            owner = place.lock("x")
            assert owner.acquire(60.0)
            owner.release()
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


@pytest.mark.parametrize("folder", [0, 1])
def test_a_lock_stays_when_one_of_its_folders_is_deleted(place: Home, folder: int) -> None:
    held = place.lock("x")
    assert held.acquire()
    shutil.rmtree(place.lock_folders[folder])
    assert place.lock("x").is_taken() and place.list_locks() == {"x"}
    assert not place.lock("x").acquire()
    assert place.lock("x").is_taken()
    held.remove()
    assert place.lock("x").acquire()


HOLD = """
lock = home.lock("x")
assert lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_until_its_process_ends(place: Home) -> None:
    with processes(place.path, HOLD) as (holder,):
        assert read_line(holder) == "held"
        assert place.lock("x").is_taken()
        os.kill(holder.pid, signal.SIGSTOP)
        assert place.lock("x").is_taken()  # a suspended process is alive
        assert not place.lock("x").acquire(0.05)
        holder.kill()
        holder.wait()
        assert not place.lock("x").is_taken()
        again = place.lock("x")
        assert again.acquire()
        again.release()


HOLD_WITH_CHILD = """
import subprocess
lock = home.lock("x")
assert lock.acquire()
child = subprocess.Popen([sys.executable, "-c", "import sys; print('alive', flush=True); sys.stdin.read()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_does_not_inherit_the_lock(place: Home) -> None:
    with processes(place.path, HOLD_WITH_CHILD) as (holder,):
        child = int(read_line(holder))
        os.kill(child, signal.SIGSTOP)  # so that it outlives its parent, whatever it reads
        try:
            assert place.lock("x").is_taken()
            holder.kill()
            holder.wait()
            assert Path(f"/proc/{child}").exists()
            assert not place.lock("x").is_taken()
        finally:
            os.kill(child, signal.SIGKILL)


# -- the server --------------------------------------------------------------------------------------------------

CLAIM = """
try:
    lock = home.claim_up()
    print("up", flush=True)
except MidwatchError as problem:
    print(type(problem).__name__, problem, flush=True)
sys.stdin.read()
"""


def test_of_concurrent_servers_one_starts(place: Home) -> None:
    with processes(place.path, CLAIM, 4) as racing:
        answers = [read_line(process) for process in racing]
        assert sorted(answer.split()[0] for answer in answers) == ["AlreadyRunning"] * 3 + ["up"]
        assert all("it is starting" in answer for answer in answers if answer != "up")
        place.announce(ServerInfo(pid=racing[answers.index("up")].pid, url=INFO.url, version="1"))
        winner = racing[answers.index("up")]
        with pytest.raises(AlreadyRunning, match=f"pid {winner.pid}, {INFO.url}") as caught:
            place.claim_up(0.1)
        assert "midwatch down" in str(caught.value)
        winner.kill()
        winner.wait()
        place.claim_up().release()


def test_the_server_file_is_valid_only_while_its_process_lives(place: Home) -> None:
    assert place.server() is None
    place.announce(INFO)
    assert place.server() is None  # an outdated file
    up = place.claim_up()
    assert not any(file.exists() for file in place.server_files)
    assert place.server() is None  # it has not announced its address yet
    place.announce(INFO)
    assert Home(place.path).server() == INFO
    assert sorted(place.path.glob("*/server*")) == sorted(place.server_files)
    up.release()
    assert place.server() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '{"pid": 1}', '{"pid": 1, "url": "x", "port": 2}'])
def test_a_broken_server_file_is_ignored(place: Home, text: str) -> None:
    up = place.claim_up()
    for file in place.server_files:
        file.write_text(text)
    assert place.server() is None
    up.release()


def test_a_refused_server_does_not_change_the_file_of_the_first(place: Home) -> None:
    up = place.claim_up()
    place.announce(INFO)
    with pytest.raises(AlreadyRunning):
        place.claim_up(0.1)
    assert place.server() == INFO
    up.release()


def test_the_boot_of_the_machine_has_an_id() -> None:
    assert boot_id() == boot_id() != ""
