"""Tells the guard what each RPC needs, and the rules as etcd has them from now on."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_server.core.needs import Entry
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.etcd.access_view import ACCESS
from oncelog_server.runtime.etcd.cluster_view import ClusterView


def instruct(
    guard: Guard, tables: Mapping[str, Mapping[str, Entry]], view: ClusterView, reporter: Reporter
) -> None:
    """Before anybody can call."""
    guard.serve(tables)
    _learn(guard, view, reporter)

    def changed(changed: frozenset[str]) -> None:
        if any(key.startswith(ACCESS) for key in changed):
            _learn(guard, view, reporter)

    view.on_change(changed)


def _learn(guard: Guard, view: ClusterView, reporter: Reporter) -> None:
    access = view.access
    guard.learn(
        (stored.rule for stored in access.rules.values()),
        (stored.quota for stored in access.quotas.values()),
    )
    for key, error in access.unreadable.items():
        reporter.event("access rule not understood", level="error", key=key, error=error)
