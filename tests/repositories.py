"""Git repositories for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path | str, *arguments: str, ok: bool = True) -> str:
    """Run git in a directory and return its output."""
    done = subprocess.run(
        ("git", "-C", str(folder), *arguments), capture_output=True, text=True, check=False, timeout=60
    )
    assert not ok or done.returncode == 0, done.stderr
    return done.stdout.strip()


def a_repository(folder: Path) -> Path:
    """Make a repository with a commit on branch main, a file `a.txt` and a directory `-sub`."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "Ann")
    git(folder, "config", "user.email", "ann@example.org")
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "-sub").mkdir()
    (folder / "-sub" / "b.txt").write_text("b\n")
    commit(folder, "first")
    return folder


def commit(folder: Path, message: str) -> str:
    """Commit all changes and return the id of the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")
