"""The real agents: their configuration for the fake model, and the names of their programs.

Each gets its own HOME. None of them sees the configuration or the keys of this machine.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PINS = tomllib.loads((Path(__file__).parent / "pins.toml").read_text())
MODEL = "fake-model"
KEY = "fake-key"
BAD_KEY = "bad-key"
"""A key that the fake model refuses."""
KINDS = ("headless", "acp", "terminal")


def cache() -> Path:
    """Return the directory where `tests/agents/install` has put them."""
    folder = os.environ.get("MIDWATCH_AGENTS_DIR")
    return Path(folder) if folder else Path("~/.cache/midwatch/agents").expanduser()


def program(name: str) -> str | None:
    """Return the path of an installed program."""
    path = cache() / "bin" / name
    return str(path) if path.exists() else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _claude(home: Path, url: str, key: str) -> dict[str, str]:
    _write(home / ".claude.json", json.dumps({"hasCompletedOnboarding": True}))
    return {
        "ANTHROPIC_BASE_URL": url,
        "CLAUDE_CODE_OAUTH_TOKEN": key,
        "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }


def _codex(home: Path, url: str, key: str) -> dict[str, str]:
    config = f"""
model = "{MODEL}"
model_provider = "fake"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_API_KEY"
request_max_retries = 1
stream_max_retries = 1
[analytics]
enabled = false
"""
    _write(home / ".codex" / "config.toml", config)
    return {"CODEX_HOME": str(home / ".codex"), "FAKE_API_KEY": key}


def _opencode(home: Path, url: str, key: str) -> dict[str, str]:
    options = {"baseURL": f"{url}/v1", "apiKey": key}
    limits = {"context": 100000, "output": 8000}
    models = {MODEL: {"name": "Fake", "limit": limits, "tool_call": True, "cost": {"input": 3, "output": 15}}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": options, "models": models}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"fake/{MODEL}",
        "small_model": f"fake/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["fake"],
        "provider": {"fake": provider},
        "permission": {"bash": "ask", "edit": "ask"},
    }
    _write(home / ".config" / "opencode" / "opencode.json", json.dumps(config))
    return {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }


def _gemini(home: Path, url: str, key: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    _write(home / ".gemini" / "settings.json", json.dumps(settings))
    return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": key, "GEMINI_CLI_TRUST_WORKSPACE": "true"}


def _qwen(home: Path, url: str, key: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        "privacy": {"usageStatisticsEnabled": False},
    }
    _write(home / ".qwen" / "settings.json", json.dumps(settings))
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key, "OPENAI_MODEL": MODEL}


def _copilot(home: Path, url: str, key: str) -> dict[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_PROVIDER_API_KEY": key,
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_MODEL": MODEL,
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
    }


def _goose(home: Path, url: str, key: str) -> dict[str, str]:
    developer = {"enabled": True, "type": "platform", "name": "developer"}
    config = {"GOOSE_TELEMETRY_ENABLED": False, "extensions": {"developer": developer}}
    _write(home / ".config" / "goose" / "config.yaml", json.dumps(config))
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": MODEL,
        "OPENAI_HOST": url,
        "OPENAI_API_KEY": key,
        "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_TELEMETRY_ENABLED": "false",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One agent."""

    name: str
    prepare: Callable[[Path, str, str], dict[str, str]]
    """Writes its configuration into a HOME and returns the environment it needs."""
    acp: str
    """The program that supports ACP."""
    options: dict[str, str] = field(default_factory=dict)
    """The settings it needs besides the kind."""
    limits: dict[str, str] = field(default_factory=dict)
    """By kind, the script of the fake model that makes it report a usage limit, if not every limit does."""
    signed_in_by: str = ""
    """The variable without which it is not signed in, if there is one."""
    terminal: dict[str, Any] = field(default_factory=dict)
    """The settings it needs in a terminal besides the profile: there it must ask for permission."""
    forbid: dict[str, Any] = field(default_factory=dict)
    """The settings with which its headless program may not run commands, if it may by default."""
    refusal: str = "was not allowed to use"
    """What the error or the answer says about a command that the headless program may not run."""

    def environment(self, home: Path, url: str, key: str = KEY) -> dict[str, str]:
        """Return a whole environment for it."""
        scratch = home / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        path = f"{cache() / 'bin'}{os.pathsep}{os.environ['PATH']}"
        plain = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1"}
        plain["TMPDIR"] = str(scratch)  # codex makes no helpers, and so no sandbox, in a HOME below its TMPDIR
        return {**plain, "NO_PROXY": "127.0.0.1", **self.prepare(home, url, key)}

    def settings(self, kind: str) -> dict[str, Any]:
        """Return its settings in midwatch."""
        if kind == "terminal":
            return {"kind": kind, "profile": self.name, **self.terminal}
        return {"kind": kind, **self.options}

    def program(self, kind: str) -> str:
        """Return the program that must be installed."""
        return self.acp if kind == "acp" else self.name

    def limit_of(self, kind: str) -> str:
        """Return the script of a usage limit. A screen shows its end in minutes."""
        return self.limits.get(kind, "limit 3600 {name}" if kind == "terminal" else "limit 4 {name}")

    def version_of(self, kind: str) -> str:
        """Return the pinned version of the program that a kind starts."""
        return str(PINS[self.program(kind)]["version"])


HIDDEN = "No tool for escalate"
"""The answer of the fake model if a program hides tools that would need permission when nobody can be asked."""
AGENTS = (
    Known(name="claude", prepare=_claude, acp="claude-agent-acp", signed_in_by="CLAUDE_CODE_OAUTH_TOKEN"),
    Known(
        name="codex",
        prepare=_codex,
        acp="codex-acp",
        signed_in_by="FAKE_API_KEY",
        terminal={"args": ["-a", "on-request"]},
    ),
    Known(
        name="gemini",
        prepare=_gemini,
        acp="gemini",
        signed_in_by="GEMINI_API_KEY",
        options={"model": "gemini-2.5-pro"},
        terminal={"args": ["-m", "gemini-2.5-pro"]},
        refusal=HIDDEN,
    ),
    Known(
        name="opencode",
        prepare=_opencode,
        acp="opencode",
        limits=dict.fromkeys(
            KINDS, "limit 3600 {name}"
        ),  # it waits for all limits by itself; midwatch parks the task after a while
    ),
    Known(
        name="qwen",
        prepare=_qwen,
        acp="qwen",
        signed_in_by="OPENAI_API_KEY",
        refusal=HIDDEN,
        terminal={"args": ["--approval-mode", "default"]},
        limits={  # it waits for every limit by itself
            "headless": "limit 240 {name}",
            "acp": "limit 240 {name}",
            "terminal": "limit 4 {name}",
        },
    ),
    Known(
        name="copilot",
        prepare=_copilot,
        acp="copilot",
        limits=dict.fromkeys(KINDS, "limit 3600 {name}"),  # it waits for shorter limits by itself
    ),
    Known(
        name="goose",
        prepare=_goose,
        terminal={"env": {"GOOSE_MODE": "approve"}},
        acp="goose",
        signed_in_by="GOOSE_PROVIDER",
        forbid={"permissions": "read"},
        refusal="skipped in goose chat mode",
        limits=dict.fromkeys(KINDS, "quota 3600 {name}"),  # if the end is known it waits by itself, however long
    ),
)
