"""The files of `midwatch agentapi server`: one with the conversation for the next start, one with the process id."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from midwatch.api.agentapi.bodies import ConversationRole, Time, check_text
from midwatch.base.clock import SECOND
from midwatch.base.errors import AlreadyRunning, Conflict, HomeUnusable
from midwatch.base.files import read_regular

VERSION = 1
PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
MAX_BAD_FILES = 1000
MAX_STATE_BYTES = 200_000_000
MAX_PID_BYTES = 100


def parse_time(value: Any) -> Any:
    """Convert a time of a state file to microseconds."""
    return int(datetime.fromisoformat(value).timestamp() * SECOND) if isinstance(value, str) else value


class SavedMessage(BaseModel):
    """A message in a state file."""

    id: int = 0
    message: Annotated[str, AfterValidator(check_text)]
    role: ConversationRole
    time: Annotated[Time, BeforeValidator(parse_time)]


class State(BaseModel):
    """A conversation in a state file of version 1."""

    version: int = VERSION
    messages: list[SavedMessage] = []
    initial_prompt: str = ""
    initial_prompt_sent: bool = False

    def to_json(self) -> str:
        """Return the state as the text of a state file."""
        return self.model_dump_json() + "\n"


class UnusableState(Exception):
    """Raised when a state file cannot be used."""


def parse_state(data: bytes) -> State:
    """Parse the content of a state file. Raise UnusableState if it is not valid."""
    try:
        fields = json.loads(data.decode())
        version = fields.get("version", 0)
        if version != VERSION:
            raise UnusableState(f"unsupported state file version {version} (expected {VERSION})")
        return State.model_validate({name: value for name, value in fields.items() if value is not None})
    except (ValueError, AttributeError, RecursionError) as problem:
        reason = problem.errors()[0]["msg"] if isinstance(problem, ValidationError) else problem
        raise UnusableState(f"failed to unmarshal state (corrupted or invalid JSON): {reason}") from None


class StateFile:
    """The state file of one server. An unusable file is renamed and never overwritten."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self.path = path
        self._writable = writable
        self._text = ""

    def load(self) -> State:
        """Read the state; it is empty if there is no file. Raise UnusableState if the file cannot be used."""
        try:
            data = read_regular(os.path.realpath(self.path), MAX_STATE_BYTES)  # it may be a link
        except FileNotFoundError:
            return State()
        except (OSError, Conflict) as problem:
            self._writable = False
            why = problem.strerror if isinstance(problem, OSError) else str(problem).rstrip(".")
            reason = f"failed to read state file: {why}; the file will not be written either"
            raise UnusableState(reason) from None
        try:
            state = parse_state(data)
        except UnusableState as problem:
            raise UnusableState(f"{problem}; {self._rename_bad_file()}") from None
        self._text = state.to_json()
        return state

    def _rename_bad_file(self) -> str:
        """Rename the unusable file. Return a text that tells the new name, or why the file could not be renamed."""
        names = (f"{self.path.name}.bad-{number}" for number in range(1, MAX_BAD_FILES))
        new_path = next((path for path in map(self.path.with_name, names) if not path.exists()), None)
        try:
            if new_path is not None:
                self.path.rename(new_path)
                return f"the file is kept as {new_path}"
            reason = "too many files were renamed before"
        except OSError as problem:
            reason = str(problem.strerror)
        self._writable = False
        return f"the file could not be renamed ({reason}) and will not be written"

    def save(self, state: State) -> None:
        """Write the state to the file if the state has changed. Raise OSError if the file cannot be written."""
        text = state.to_json()
        if text == self._text or not self._writable:
            return
        path = self.path.resolve()  # write the target of a symbolic link; the link itself stays
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.tmp")
        with os.fdopen(os.open(new, PRIVATE, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        self._text = text


def choose_prompt(prompt: str, state: State) -> State:
    """Return the state with `prompt` as its initial prompt. A prompt that is not the stored one is marked as unsent."""
    if not prompt or prompt == state.initial_prompt:
        return state
    return state.model_copy(update={"initial_prompt": prompt, "initial_prompt_sent": False})


def claim_pid_file(path: Path) -> None:
    """Write the id of this process to a file. Raise AlreadyRunning if the file has the id of another live process."""
    pid = _read_pid(path)
    if pid > 0 and pid != os.getpid() and _is_running(pid):
        raise AlreadyRunning(f"another instance is already running with PID {pid} (PID file: {path})")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, PRIVATE, 0o600), "w") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as problem:
        raise HomeUnusable(f"{path} cannot be written: {problem.strerror}; choose another --pid-file.") from None


def release_pid_file(path: Path) -> None:
    """Remove the file if it contains the id of this process."""
    if _read_pid(path) == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()


def _read_pid(path: Path) -> int:
    try:
        return int(read_regular(path, MAX_PID_BYTES))
    except (OSError, ValueError, Conflict):
        return 0


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
