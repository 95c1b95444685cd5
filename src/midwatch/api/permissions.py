"""Permissions of routes: each route declares its action, so that the guard can refuse a role before it reads the body.

The services decide; see `midwatch.services.authorization`. Here is only the way from a request to the action.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard, TypeVar

from starlette.routing import BaseRoute, Route, compile_path

from midwatch.services.authorization import Action

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

ACTION = "midwatch_action"
SURFACE = "midwatch_surface"


def needs(action: Action) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that declares the action of a route."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, ACTION, action)
        return endpoint

    return mark


def contains(surface: Callable[[], Iterable[BaseRoute]]) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator for a route that passes requests on to other routes, which `surface` returns.

    `surface` is called by the first request for one of these routes, so it may load them.
    """

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, SURFACE, surface)
        return endpoint

    return mark


class Permission(NamedTuple):
    """The action of a method and path. `path` has the parameters in braces, such as `/tasks/{task_id}`.

    HEAD is left out: it has the action of GET.
    """

    method: str
    path: str
    action: Action


def list_permissions(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[Permission]:
    """Yield the permission of every route, in the order of the routes. Raise TypeError if a route has no action."""
    for route in routes:
        endpoint = getattr(route, "endpoint", None)
        surface = getattr(endpoint, SURFACE, None)
        path = prefix + getattr(route, "path", "")
        if surface is not None:
            base = path.removesuffix("/{path:path}")
            inner = list_permissions(surface(), base)
            if base == path:  # the path of the surface itself, without a slash at the end
                inner = (each._replace(path=path) for each in inner if each.path == f"{path}/")
            yield from inner
            continue
        action: Action | None = getattr(endpoint, ACTION, None)
        if not isinstance(route, Route) or action is None:
            raise TypeError(f"the route {path or route} has no action; add `@needs(...)` to its function.")
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield Permission(method, path, action)


class Permissions:
    """Finds the action of a request by its method and path."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = tuple(routes)
        self._unread = [route for route in self._routes if _has_surface(route)]
        self._read(route for route in self._routes if not _has_surface(route))

    @property
    def all(self) -> tuple[Permission, ...]:
        """The permissions of all routes."""
        return tuple(dict.fromkeys(list_permissions(self._routes)))

    def _read(self, routes: Iterable[BaseRoute]) -> None:
        """Fill the tables with the permissions of routes."""
        permissions = dict.fromkeys(list_permissions(routes))
        self._open_paths = {path for _, path, action in permissions if action == "open" and path.startswith("/api/")}
        self._fixed: dict[tuple[str, str], Action] = {}
        self._patterns: dict[tuple[str, str], list[tuple[re.Pattern[str], Action]]] = defaultdict(list)
        for method, path, action in permissions:
            if "{" not in path:
                self._fixed.setdefault((method, path), action)
            else:
                self._patterns[method, _group(path)].append((compile_path(path)[0], action))

    def find(self, method: str, path: str) -> Action | None:
        """Return the action of a request, or None if there is no such route. HEAD has the action of GET.

        An open path of the API is open for every method, so that a wrong method gets 405 without a token, too.
        """
        method = "GET" if method == "HEAD" else method
        if any(route.path_regex.match(path) for route in self._unread):
            self._read(self._routes)  # all again, because the first route that fits a path decides
            self._unread = []  # only now: after a failure, no other route may decide about these paths
        if (method, path) in self._fixed:
            return self._fixed[method, path]
        for pattern, action in self._patterns.get((method, _group(path)), ()):
            if pattern.match(path):
                return action
        return "open" if path in self._open_paths else None


def _has_surface(route: BaseRoute) -> TypeGuard[Route]:
    return hasattr(getattr(route, "endpoint", None), SURFACE)


def _group(path: str) -> str:
    """Return the part of a path that names the noun: `/api/v1/tasks` or `/sessions`. It has no parameters."""
    parts = path.split("/", 4)
    return "/".join(parts[:4]) if parts[1:3] == ["api", "v1"] else "/".join(parts[:2])
