"""Test clusters as people use them: servers and workers as processes, each with its own home, on one PostgreSQL."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.parse import quote

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from commands import run
from midwatch.cli import doctor
from midwatch.cli.app import load
from midwatch.cli.main import execute
from midwatch.stores import cluster, postgres
from midwatch.stores.sql import load_migrations
from postgres import Cluster
from servers import PROGRAM, environment, free_port, poll_until

ROOT = Path(__file__).parents[2]
CONFIG = """
port = 0
detect_agents = false
shutdown_grace = "1s"

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
on_crash = "rerun"
"""
SECRET = "s3cr3t/of@the:house"
PATIENCE = 120.0


def address(conninfo: str, **fields: str) -> str:
    """Return a database's address as people write it, with a password that must never be printed."""
    parts = {**conninfo_to_dict(conninfo), "password": SECRET, **fields}
    user, password = quote(str(parts["user"]), safe=""), quote(str(parts["password"]), safe="")
    return f"postgresql://{user}:{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"


@pytest.fixture
def url(database: str) -> str:
    return address(database)


class Machine:
    """A home and the commands run on it, whose output never contains the password."""

    def __init__(self, home: Path, db: str | None = None) -> None:
        self.home = home
        home.mkdir(parents=True)
        (home / "midwatch.toml").write_text(CONFIG)
        self.env = environment(home, **({"MIDWATCH_DB": db} if db else {}))

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = run(arguments, env=self.env, cwd=self.home, timeout=PATIENCE)
        assert SECRET not in done.stdout + done.stderr
        assert quote(SECRET, safe="") not in done.stdout + done.stderr
        return done

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run_refused(self, status: int, *arguments: str) -> str:
        done = self(*arguments)
        assert (done.returncode, done.stdout) == (status, ""), done
        return check_one_line(done.stderr)

    @contextmanager
    def process(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """Start a server or worker and yield the JSON it prints at the start. SIGTERM must end it with status 0."""
        with (self.home / "process.log").open("w+") as log:
            started = subprocess.Popen(
                [PROGRAM, *arguments, "--json"], env=self.env, cwd=self.home, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
            try:
                assert started.stdout is not None
                line = started.stdout.readline()
                assert line, (self.home / "process.log").read_text()
                yield json.loads(line)
            finally:
                started.send_signal(signal.SIGTERM)
                output, _ = started.communicate(timeout=PATIENCE)
            log.seek(0)
            all_output = line + output + log.read()
            assert started.returncode == 0, all_output
            assert SECRET not in all_output and quote(SECRET, safe="") not in all_output
            assert "Traceback" not in all_output

    def wait_for_end(self, task_id: str) -> dict[str, Any]:
        return poll_until(lambda: self.json("show", task_id), lambda task: task["status"] not in ("pending", "running"))


def check_one_line(error: str) -> str:
    assert error.startswith("midwatch: ")
    assert error.count("\n") == 1
    assert error.rstrip().endswith(".")
    return error


# -- servers and workers -----------------------------------------------------------------------------------------------


def test_a_server_and_a_worker_share_the_work(url: str, tmp_path: Path) -> None:
    first, second, third = Machine(tmp_path / "one"), Machine(tmp_path / "two", url), Machine(tmp_path / "three", url)
    with ExitStack() as running:
        server = running.enter_context(first.process("up", "--db", url))
        worker = running.enter_context(second.process("worker", "--agents", "shell", "--slots", "3"))
        assert (worker["role"], worker["agents"], worker["slots"]) == ("worker", ["shell"], 3)
        assert not (second.home / "run" / "server.json").exists()  # a worker serves no HTTP
        listed = poll_until(
            lambda: third.json("cluster"), lambda cluster: any(p["leader"] for p in cluster["processes"])
        )
        check_cluster(listed, server["pid"], worker)
        assert first.json("cluster")["processes"][0]["pid"] == server["pid"]  # the same over HTTP
        shown = third("cluster").stdout
        assert "leader" in shown and "0/3" in shown and " ago" in shown

        submitted = third("submit", "echo $MIDWATCH_HOME", "--agent", "shell", "--json")
        assert submitted.stderr == ""  # no server runs on that machine, but one runs elsewhere
        ran_in = third.wait_for_end(json.loads(submitted.stdout)["id"])["result"].strip()
        assert ran_in in (str(first.home), str(second.home))
        assert "other processes run tasks" in third("status").stdout
        check_doctor(third, worker["id"])
        check_other_database(first, tmp_path)
    assert third.json("cluster")["processes"] == []
    assert "No process runs tasks" in third("cluster").stdout
    warned = {check["what"]: check for check in third.json("doctor")["checks"] if check["state"] == "warn"}
    assert "midwatch worker" in warned["leader"]["remedy"]


def check_cluster(listed: dict[str, Any], server_pid: int, worker: dict[str, Any]) -> None:
    assert listed["store"]["kind"] == "postgres"
    processes = {process["id"]: process for process in listed["processes"]}
    assert len(processes) == 2
    mine = processes[worker["id"]]
    assert {name: mine[name] for name in ("role", "agents", "slots", "running", "live", "host", "pid")} == {
        "role": "worker", "agents": ["shell"], "slots": 3, "running": 0, "live": True, "host": worker["host"],
        "pid": worker["pid"],
    }  # fmt: skip
    (server,) = [process for process in processes.values() if process["id"] != worker["id"]]
    assert (server["role"], server["pid"], server["agents"]) == ("up", server_pid, ["demo", "shell"])
    assert all(process["heartbeat_age"] >= 0 and process["live"] for process in processes.values())
    assert sum(process["leader"] for process in processes.values()) == 1


def check_doctor(machine: Machine, worker_id: str) -> None:
    checks = {check["what"]: check for check in machine.json("doctor")["checks"]}
    assert checks["database"]["told"].startswith("PostgreSQL 1")
    assert f"schema {load_migrations('postgres')[-1][0]}" in checks["database"]["told"]
    assert (checks["clock"]["state"], checks["leader"]["state"]) == ("ok", "ok")
    assert "heartbeat" in checks[f"process {worker_id}"]["told"]
    assert checks[f"process {worker_id}"]["state"] == "ok"


def check_other_database(machine: Machine, tmp_path: Path) -> None:
    """Start a server that knows the database from its command line only, and check that other commands notice it."""
    assert "MIDWATCH_DB" in machine.run_refused(2, "backup", str(tmp_path / "wrong.db"))
    checked = machine("doctor")
    assert checked.returncode == 1
    assert "MIDWATCH_DB" in checked.stdout


def test_a_task_moves_to_another_worker_when_its_worker_is_stopped(url: str, tmp_path: Path) -> None:
    first, second = (Machine(tmp_path / name, url) for name in ("one", "two"))
    marks = tmp_path / "marks"
    script = f"echo $MIDWATCH_HOME >> {marks}; test $(wc -l < {marks}) -gt 1 || exec sleep 300"
    with first.process("worker"):
        task_id = first.json("submit", script, "--agent", "shell")["id"]
        poll_until(lambda: marks.exists() and marks.read_text(), bool)
        processes = first.json("cluster")["processes"]
        assert [process["running"] for process in processes] == [1]
    assert first.json("show", task_id)["status"] == "pending"
    with second.process("worker"):
        assert second.wait_for_end(task_id)["status"] == "done"
    assert marks.read_text().split() == [str(first.home), str(second.home)]


def test_a_detached_server_does_not_show_the_password(url: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home")
    pid = machine.json("up", "--detach", "--db", url)["pid"]
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        assert "midwatch" in command_line and "postgresql" not in command_line
        assert machine.json("cluster")["store"]["kind"] == "postgres"
    finally:
        machine("down")
    assert "Database: postgresql://" not in (machine.home / "log" / "midwatch.log").read_text().partition("Agents")[2]


def test_a_dead_worker_is_distinguished_from_a_live_one(url: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home", url)
    machine.json("cluster")  # creates the tables
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO instances VALUES ('i_old', 'worker', 'gone', '', 7, '[\"demo\"]', '{}', 2, 0, "
            "clock_timestamp() - interval '1 minute')"
        )
        connection.execute("UPDATE leader SET instance = 'i_old', renewed = clock_timestamp() - interval '1 minute'")
    (old,) = machine.json("cluster")["processes"]
    assert (old["live"], old["leader"]) == (False, False)
    assert old["heartbeat_age"] >= 60
    assert "dead" in machine("cluster").stdout
    assert "it has ended" in machine("doctor").stdout


def test_on_sqlite_there_is_one_server_and_no_worker(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home")
    error = machine.run_refused(2, "worker")
    assert "--db" in error and "midwatch migrate" in error
    with machine.process("up") as server:
        (only,) = machine.json("cluster")["processes"]
        assert (only["pid"], only["live"], only["leader"], only["heartbeat_age"]) == (server["pid"], True, True, None)
        assert "by lock" in machine("cluster").stdout
    assert machine.json("cluster")["processes"] == []


def test_unknown_agents_and_impossible_slots_are_refused(url: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home", url)
    assert "'nobody'" in machine.run_refused(2, "worker", "--agents", "shell,nobody")
    assert "--agents is empty" in machine.run_refused(2, "worker", "--agents", ", ")
    assert "--slots" in machine.run_refused(2, "worker", "--slots", "0")


# -- moving, backing up, restoring -------------------------------------------------------------------------------------


def test_a_desk_moves_to_postgres_and_back_from_its_backup(url: str, tmp_path: Path) -> None:
    machine, small = Machine(tmp_path / "home"), Machine(tmp_path / "small")
    done = json.loads(machine("run", "echo before", "--agent", "shell", "--json").stdout)
    waiting = machine.json("submit", "echo after", "--agent", "shell", "--key", "k")
    with machine.process("up"):
        assert machine.wait_for_end(waiting["id"])["status"] == "done"
        later = machine.json("submit", "echo later", "--agent", "shell", "--delay", "1s")["id"]
        error = machine.run_refused(4, "migrate", "--to", url)
        assert "midwatch down" in error
    moved = machine("migrate", "--to", url)
    assert moved.returncode == 0, moved.stderr
    assert 'db = "postgresql://' in moved.stdout
    assert "3 tasks" in moved.stdout
    assert machine.json("tasks")["tasks"][0]["id"] == later  # the file was not changed
    machine.env["MIDWATCH_DB"] = url
    log = machine("events", "--json").stdout
    with machine.process("up"):
        assert machine.wait_for_end(later)["result"].strip() == "later"
        assert machine.json("show", done["id"])["result"].strip() == "before"
        backed_up = machine.json("backup", str(tmp_path / "backup.db"))
        assert "exists already" in machine.run_refused(4, "backup", str(tmp_path / "backup.db"))
        assert "midwatch down" in machine.run_refused(4, "restore", str(tmp_path / "backup.db"), "--force")
    assert "has data" in machine.run_refused(4, "migrate", "--to", url)
    assert backed_up["rows"]["tasks"] == 3
    restored = small("restore", str(tmp_path / "backup.db"))
    assert "3 tasks" in restored.stdout
    assert small.json("show", later)["result"].strip() == "later"
    seqs = [json.loads(line)["seq"] for line in small("events", "--json").stdout.splitlines()]
    assert seqs == list(range(1, backed_up["last_seq"] + 1))
    assert small("events", "--json").stdout.startswith(log)
    assert "--force" in small.run_refused(4, "restore", str(tmp_path / "backup.db"))
    again = small("restore", str(tmp_path / "backup.db"), "--force")
    assert str(small.home / "midwatch.db.") in again.stdout


def test_progress_goes_to_standard_error_and_an_interrupted_backup_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home")
    machine.json("status")
    write_long_log(machine.home / "midwatch.db", 120_000)
    backup = machine("backup", str(tmp_path / "backup.db"))
    assert re.fullmatch(r"(file: \d+ %\n)+file: 100 %\ncheck: 0 %\ncheck: 100 %\n", backup.stderr)
    assert "the log up to seq 120000" in backup.stdout
    with open_nearly_full_pipe() as (ours, theirs, before):
        cut = subprocess.Popen(
            [PROGRAM, "backup", str(tmp_path / "cut.db")], env=machine.env, stdout=subprocess.PIPE, stderr=theirs,
            text=True,
        )  # fmt: skip
        theirs.close()
        poll_until(lambda: count_unread(ours), lambda unread: unread > before)
        cut.send_signal(signal.SIGINT)
        progress = ours.read()[before:]
    output, _ = cut.communicate(timeout=PATIENCE)
    assert progress.startswith(b"file: ")
    assert (cut.returncode, output) == (130, "")
    assert {path.name for path in tmp_path.iterdir()} == {"home", "backup.db"}


@contextmanager
def open_nearly_full_pipe() -> Iterator[tuple[BinaryIO, BinaryIO, int]]:
    """Yield both ends of a pipe with room for one line, and the number of bytes in it: the writer of a second line must
    wait for a reader.
    """
    ends = os.pipe()
    with os.fdopen(ends[0], "rb") as ours, os.fdopen(ends[1], "wb", buffering=0) as theirs:
        before = fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096) - len("file: 100 %\n")
        theirs.write(b"." * before)
        yield ours, theirs, before


def count_unread(pipe: BinaryIO) -> int:
    """Return the number of unread bytes."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def write_long_log(database: Path, events: int) -> None:
    connection = sqlite3.connect(database)
    rows = ((n, f"e_{n}", "task_progress", n, 1, "{}") for n in range(1, events + 1))
    connection.executemany("INSERT INTO events (seq, id, kind, time, version, payload) VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.execute("UPDATE event_head SET last_seq = ?", (events,))
    connection.commit()
    connection.close()


# -- bad input ---------------------------------------------------------------------------------------------------------


class InProcessCommands:
    """Commands run in this process, for the many cases that fail early."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self.patch = monkeypatch
        self.capsys = capsys
        for name in list(os.environ):
            if name.startswith("MIDWATCH_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("MIDWATCH_HOME", str(home))

    def run_refused(self, status: int, command: str, db: str) -> str:
        if "{url}" in command:
            self.patch.delenv("MIDWATCH_DB", raising=False)
        else:
            self.patch.setenv("MIDWATCH_DB", db)
        exit_status = execute([part.format(url=db) for part in shlex.split(command)])
        output = self.capsys.readouterr()
        assert (exit_status, output.out) == (status, ""), output
        assert SECRET not in output.err and quote(SECRET, safe="") not in output.err and "s3cr3t" not in output.err
        return check_one_line(output.err)


@pytest.fixture
def in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> InProcessCommands:
    commands = InProcessCommands(tmp_path / "home", monkeypatch, capsys)
    assert execute(["submit", "wait"]) == 0  # creates data to move
    capsys.readouterr()
    return commands


COMMANDS = ("up --port 0 --db {url}", "worker --db {url}", "worker", "migrate --to {url}", "status", "backup b.db")


def check_all_refused(
    in_process: InProcessCommands, status: int, db: str, says: str, commands: tuple[str, ...] = COMMANDS
) -> None:
    for command in commands:
        assert says in in_process.run_refused(status, command, db), command


@pytest.mark.parametrize(
    ("db", "says"),
    [
        (f"mysql://u:{SECRET}@127.0.0.1/x", "not a PostgreSQL address"),
        (SECRET, "not a PostgreSQL address"),
        (f"postgresql://u:{SECRET}@127.0.0.1/x", "special characters"),
        ("postgresql://u:s3cr3t@127.0.0.1:port/x", "special characters"),
        ("postgresql://u:s3cr3t@127.0.0.1/x?colour=blue", "special characters"),
    ],
)
def test_an_invalid_address_is_reported(in_process: InProcessCommands, db: str, says: str) -> None:
    check_all_refused(in_process, 2, db, says)


def test_an_address_without_a_database_is_reported(in_process: InProcessCommands) -> None:
    for host in (f"127.0.0.1:{free_port()}", "nowhere.invalid:5432"):
        check_all_refused(in_process, 7, f"postgresql://u:{quote(SECRET, safe='')}@{host}/x", "cannot be reached")


def test_a_missing_database_and_an_unknown_user_are_reported(in_process: InProcessCommands, database: str) -> None:
    check_all_refused(in_process, 7, address(database, dbname="nothing"), '"nothing" does not exist')
    check_all_refused(in_process, 7, address(database, user="stranger"), '"stranger"', COMMANDS[:1])


def test_a_wrong_password_is_reported_but_not_printed(
    in_process: InProcessCommands, postgres: Cluster | str, database: str
) -> None:
    if isinstance(postgres, str):
        pytest.skip("needs a cluster whose rules of access can be changed")
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'another'")
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
        admin.execute("SELECT pg_reload_conf()")
        try:
            poll_until(lambda: are_rules_active(database), bool)
            check_all_refused(in_process, 7, address(database, user="guarded"), "password authentication failed")
        finally:
            rules.write_text(before)
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("DROP ROLE guarded")


def are_rules_active(database: str) -> bool:
    """Return whether the new rules apply."""
    try:
        psycopg.connect(make_conninfo(database, user="guarded", password="wrong")).close()
    except psycopg.OperationalError:
        return True
    return False


def test_a_user_without_rights_is_reported(in_process: InProcessCommands, database: str) -> None:
    role = f"guest_{os.getpid()}"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        try:
            check_all_refused(in_process, 7, address(database, user=role), "no permission")
            create_tables(in_process, database)
            check_all_refused(in_process, 7, address(database, user=role), "no permission", ("status", "backup b.db"))
        finally:
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


def create_tables(in_process: InProcessCommands, database: str) -> None:
    """Create the tables as a user with the necessary rights."""
    in_process.patch.setenv("MIDWATCH_DB", database)
    assert execute(["status"]) == 0
    in_process.capsys.readouterr()


def test_a_newer_schema_is_reported_and_not_changed(in_process: InProcessCommands, database: str) -> None:
    create_tables(in_process, database)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE midwatch_schema SET version = 999")
    check_all_refused(in_process, 7, address(database), "schema 999")


def test_an_older_postgres_is_reported(
    in_process: InProcessCommands, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "OLDEST_SERVER", 990000)
    check_all_refused(in_process, 7, address(database), "needs 14 or newer")


def test_unusable_files_are_reported(in_process: InProcessCommands, database: str, tmp_path: Path) -> None:
    no_backup = tmp_path / "notes.txt"
    no_backup.write_text("nothing of the kind")
    db = address(database)
    assert "not a backup" in in_process.run_refused(7, f"restore {no_backup}", db)
    assert "no backup" in in_process.run_refused(3, f"restore {tmp_path / 'missing'}", db)
    assert "cannot be written" in in_process.run_refused(7, f"backup {no_backup}/b.db", db)
    assert "cannot be written" in in_process.run_refused(7, "backup /proc/b.db", db)


def test_a_wrong_clock_is_reported(
    in_process: InProcessCommands, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "time", SimpleNamespace(time=lambda: time.time() - 5))
    monkeypatch.setenv("MIDWATCH_DB", database)
    assert execute(["doctor", "--json"]) == 0
    (clock,) = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["what"] == "clock"]
    assert clock["state"] == "warn"
    match = re.fullmatch(r"this machine's clock is ([\d.]+) s behind", clock["told"])
    assert match and 4 < float(match[1]) < 6, clock["told"]  # exact to the duration of one query
    assert doctor.MOST_SKEW == 1.0


# -- containers --------------------------------------------------------------------------------------------------------


def test_the_compose_file_starts_a_database_a_server_and_two_workers() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert set(services) == {"database", "server", "worker"}
    assert services["worker"]["deploy"]["replicas"] == 2
    for name in ("server", "worker"):
        service = services[name]
        command, *options = service["command"]
        load(command).make_context(command, options)  # raises an error for a missing name
        assert service["depends_on"]["database"]["condition"] == "service_healthy"
        assert service["environment"]["MIDWATCH_DB"].endswith("@database:5432/midwatch")
    assert "healthcheck" in services["database"]
    assert services["server"]["ports"] == ["127.0.0.1:7171:7171"]  # reachable from this machine only
    for mounted in (*services["database"]["volumes"], *services["server"]["volumes"]):
        assert mounted.partition(":")[0] in yaml.safe_load((ROOT / "compose.yaml").read_text())["volumes"]


def test_the_image_has_the_program_and_a_home() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    instructions = {line.split()[0] for line in lines if line and line[0].isupper()}
    assert {"FROM", "COPY", "RUN", "USER", "ENV", "VOLUME", "ENTRYPOINT", "CMD"} <= instructions
    for line in lines:
        if line.startswith("COPY"):
            assert all((ROOT / name).exists() for name in line.split()[1:-1])
    assert '.[postgres]' in (ROOT / "Dockerfile").read_text()  # fmt: skip
