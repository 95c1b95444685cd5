"""Test which changed files of a worktree run code when somebody uses them."""

from __future__ import annotations

import pytest

from midwatch.domain.worktree import Change, find_code


@pytest.mark.parametrize(
    "path",
    [
        ".githooks/pre-commit", ".husky/_/x", "web/.husky/pre-push", ".pre-commit-config.yaml", "lefthook-local.yml",
        ".gitattributes", "docs/.gitattributes", ".gitmodules", ".github/workflows/ci.yml", ".GitHub/Workflows/ci.yml",
        ".github/actions/build/action.yml", ".gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile.nightly",
        "azure-pipelines.yml", ".travis.yml", "bitbucket-pipelines.yml", ".woodpecker/test.yaml", ".drone.yml",
        ".forgejo/workflows/x.yml", ".buildkite/pipeline.yml", ".claude/settings.json", ".claude/hooks/x.sh",
        ".codex/config.toml", ".gemini/settings.json", ".mcp.json", ".cursor/mcp.json", "opencode.json",
        ".vscode/tasks.json", ".vscode/settings.json", ".idea/workspace.xml", ".envrc", "sub/.envrc",
    ],
)  # fmt: skip
def test_a_file_that_runs_code_is_found(path: str) -> None:
    (found,) = find_code([Change("a.txt"), Change(path)])
    assert found.path == path
    assert found.why


@pytest.mark.parametrize(
    "path",
    [
        "CLAUDE.md", "AGENTS.md", "Makefile", "package.json", "hooks/x", ".github/CODEOWNERS", "a.gitattributes",
        ".claude", "src/workflows/ci.yml", ".vscode/extensions.json", "my.envrc", "x/Jenkins", ".github/workflows",
    ],
)  # fmt: skip
def test_other_files_are_not_found(path: str) -> None:
    assert find_code([Change(path)]) == ()


def test_a_submodule_and_the_configured_hooks_are_found() -> None:
    changes = [Change("vendor/x", submodule=True), Change("tools/hooks/pre-push"), Change("tools/hook")]
    assert [file.path for file in find_code(changes, "tools/hooks/")] == ["vendor/x", "tools/hooks/pre-push"]
    assert [file.path for file in find_code(changes, "/etc/hooks")] == ["vendor/x"]
