"""Git repositories for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(place: Path | str, *words: str, ok: bool = True) -> str:
    """Run git in a directory and return its output."""
    done = subprocess.run(("git", "-C", str(place), *words), capture_output=True, text=True, check=False, timeout=60)
    assert not ok or done.returncode == 0, done.stderr
    return done.stdout.strip()


def a_repository(place: Path) -> Path:
    """Make a repository with a commit on branch main, a file `a.txt` and a directory `-sub`."""
    place.mkdir(parents=True)
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "config", "user.name", "Ann")
    git(place, "config", "user.email", "ann@example.org")
    (place / "a.txt").write_text("one\ntwo\n")
    (place / "-sub").mkdir()
    (place / "-sub" / "b.txt").write_text("b\n")
    commit(place, "first")
    return place


def commit(place: Path, message: str) -> str:
    """Commit all changes and return the id of the commit."""
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "-m", message)
    return git(place, "rev-parse", "HEAD")
