"""`oncelog group`: consumer groups, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_json, print_table, show_age, show_time
from oncelog_server.cli.places import Place
from oncelog_server.cli.resetting import reset_offsets
from oncelog_server.cli.session import Session, connected
from oncelog_server.core.printable import printable
from oncelogpb.ids import show_id

if TYPE_CHECKING:
    from oncelog.groups import GroupOffset, LastCommit, MemberInfo

# Producers without a name are many: one for each process that ever committed for the group.
_LAST_COMMITS_SHOWN: Final = 10


@click.group()
def group() -> None:
    """Look at consumer groups, and move where they stand."""


group.add_command(reset_offsets)


@group.command(name="list", epilog=examples("oncelog group list --prefix billing"))
@click.option("--prefix", default="", help="Only groups whose names begin so.")
@connected
def list_(session: Session, prefix: str) -> None:
    """List consumer groups."""
    groups = session.of_groups(lambda admin: admin.groups(prefix))
    if session.as_json:
        print_json(
            [
                {
                    "group": group.group,
                    "state": group.state or None,
                    "members": group.members,
                    "committed_partitions": group.committed_partitions,
                    "pending_partitions": group.pending_partitions,
                    "last_commit": show_time(group.last_commit_time_ms),
                }
                for group in groups
            ]
        )
        return
    print_table(
        ["GROUP", "STATE", "MEMBERS", "PARTITIONS", "PENDING", "LAST COMMIT"],
        [
            [
                group.group,
                group.state or None,
                group.members,
                group.committed_partitions,
                group.pending_partitions,
                show_time(group.last_commit_time_ms),
            ]
            for group in groups
        ],
        empty="there are no consumer groups",
    )


@group.command(
    epilog=examples("oncelog group describe enricher", "oncelog group describe g --json")
)
@click.argument("group", shell_complete=names.groups)
@connected
def describe(session: Session, group: str) -> None:
    """Show a group's members, where it stands, what waits for it, and what transactions hold.

    In every partition of the topics that it has offsets of, or members for: one that it never
    committed waits from its first record on.
    """
    found = session.of_groups(lambda admin: admin.describe_group(group))
    rows = [_described(offset) for offset in found.offsets]
    members = [_member(member) for member in found.members]
    if session.as_json:
        last = [
            {"producer_id": str(commit.producer_id), "tx_id": show_id(commit.tx_id)}
            for commit in found.last_commits
        ]
        print_json(
            {
                "group": group,
                "state": found.state or None,
                "generation": str(found.generation),
                "assignor": found.assignor,
                "members": members,
                "outgrown": [asdict(topic) for topic in found.outgrown],
                "claims": [asdict(claim) for claim in found.claims],
                "offsets": rows,
                "last_commits": last,
            }
        )
        return
    if members:
        _print_members(members)
        click.echo()
    _print_offsets(rows)
    if found.last_commits:
        click.echo()
        _print_last_commits(session, found.last_commits)
    for claim in found.claims:
        holder = printable(claim.holder)
        click.echo(f"\n{holder} commits for this group alone, and keeps members out of it.")
    for topic in found.outgrown:
        shared = f"the first {topic.shared_out}" if topic.shared_out else "none of them"
        click.echo(
            f"\n{topic.topic} has {topic.partitions} partitions, and the group shares out "
            f"{shared}: nobody reads what is beyond. Raise "
            "offset_manager.partitions_per_group_max, or use several groups."
        )


@group.command(
    name="remove-member",
    epilog=examples(
        "oncelog group remove-member enricher 5f0c1b8e --yes",
        "oncelog group remove-member enricher worker-3 --instance",
    ),
)
@click.argument("group", shell_complete=names.groups)
@click.argument("member")
@click.option("--instance", is_flag=True, help="MEMBER is an instance id, of a static member.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def remove_member(session: Session, group: str, member: str, instance: bool, yes: bool) -> None:
    """Take a member out of its group: what it owns is free at once.

    What it commits from now on is refused. If its process lives it joins again: stop it first.
    """
    if not yes:
        click.confirm(f"Take {member} out of group {group}?", abort=True, err=True)
    named = {"instance_id" if instance else "member_id": member}
    removed = session.of_groups(lambda admin: admin.remove_member(group, **named))
    if session.as_json:
        print_json({"group": group, "removed": removed})
    else:
        click.echo(f"took {removed} out of group {group}")


@group.command(epilog=examples("oncelog group delete enricher --yes"))
@click.argument("group", shell_complete=names.groups)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(session: Session, group: str, yes: bool) -> None:
    """Forget a group and its offsets.

    Refused while it has members, and while a transaction holds any of its offsets.
    """
    if not yes:
        click.confirm(f"Forget all offsets of group {group}?", abort=True, err=True)
    session.of_groups(lambda admin: admin.delete_group(group))
    if session.as_json:
        print_json({"group": group, "deleted": True})
    else:
        click.echo(f"forgot the offsets of group {group}")


def _print_members(members: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        ["MEMBER", "INSTANCE", "CLIENT", "HOST", "OWNS", "GETS", "LETS GO", "HEARD", "SESSION"],
        [
            [
                row["member_id"],
                row["instance_id"],
                row["client_id"],
                row["host"],
                len(row["owned"]),
                len(set(row["target"]) - set(row["owned"])) or None,
                len(set(row["owned"]) - set(row["target"])) or None,
                None if row["silent_ms"] is None else f"{show_age(row['silent_ms'])} ago",
                show_age(row["session_timeout_ms"]),
            ]
            for row in members
        ],
        empty="",
        only_where_told=("INSTANCE", "CLIENT", "GETS", "LETS GO"),
    )


def _print_last_commits(session: Session, commits: Sequence[LastCommit]) -> None:
    print_table(
        ["PRODUCER", "LAST COMMIT"],
        [
            [show_id(commit.producer_id), show_id(commit.tx_id)]
            for commit in commits[:_LAST_COMMITS_SHOWN]
        ],
        empty="",
    )
    if len(commits) > _LAST_COMMITS_SHOWN:
        session.say(f"... of {len(commits)} producers; --json tells all.")


def _print_offsets(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ["PARTITION", "OFFSET", "START", "END", "LAG", "PENDING UNDER", "COMMITTED"]
    print_table(
        [*columns, "OWNER", "METADATA"],
        [
            [
                row["partition"],
                row["offset"],
                row["start"],
                row["end"],
                row["lag"],
                row["pending_tx_id"],
                row["committed"],
                row["owner"],
                row["metadata"] or None,
            ]
            for row in rows
        ],
        empty="it has no offsets yet",
        only_where_told=("OWNER",),
    )


def _member(member: MemberInfo) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id or None,
        "host": member.host,
        "subscribed_topics": list(member.subscribed_topics),
        "assignor": member.assignor,
        "owned": [str(Place(*place)) for place in member.assignment],
        "target": [str(Place(*place)) for place in member.target],
        "session_timeout_ms": member.session_timeout_ms,
        "silent_ms": member.silent_ms,
    }


def _described(offset: GroupOffset) -> dict[str, Any]:
    return {
        "partition": str(Place(offset.topic, offset.partition)),
        "offset": offset.offset,
        "view": offset.view,
        "start": offset.start_offset,
        "end": offset.end_offset,
        "lag": offset.lag,
        "pending_tx_id": show_id(offset.pending_tx_id) if offset.pending_tx_id else None,
        "committed": show_time(offset.commit_time_ms),
        "owner": offset.owner,
        "metadata": offset.metadata,
    }
