"""`oncelog acl`: who may do what. For operators."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncelog_server.cli.examples import examples
from oncelog_server.cli.late import Late
from oncelog_server.cli.output import print_fields, print_json, print_table, show_time
from oncelog_server.cli.session import Session, connected
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import cluster_pb2 as pb

# The client takes half a second to import: who asks for help does not wait for it.
if TYPE_CHECKING:
    from oncelog import access
    from oncelog.access import AccessRule
else:
    access = Late("oncelog.access")

WHAT = "[KIND:]NAME"
RULES_PER_CALL = 100


@click.group()
def acl() -> None:
    """Say who may do what (rules), and ask why.

    An identity is the name in a certificate: its SPIFFE id, else its common name. NAME is of a
    topic, or with a kind before it: topic:, group:, producer:, transaction: (by its producer's
    name). A `*` at the end of an identity or name stands for every continuation.

    \b
    topic        create, read, write, describe, alter, delete
    group        read (commit and fetch offsets), describe, alter (reset offsets), delete
    producer     write, fence (take the name over from another identity)
    transaction  describe, abort (of others; everybody may with his own)

    What no rule allows is refused, and a rule that denies stands before all that allow.
    """


@acl.command(
    name="list",
    epilog=examples("oncelog acl list", "oncelog acl list alice", "oncelog acl list --json"),
)
@click.argument("identity", required=False, default="")
@connected
def list_(session: Session, identity: str) -> None:
    """List rules: all, or those that are about an identity."""
    reply: pb.ListRulesReply = session.call(
        "cluster.list_rules", pb.ListRulesRequest(identity=identity)
    )
    rules = [access.rule_of(message) for message in reply.rules]
    if session.as_json:
        print_json([_json(rule) for rule in rules])
        return
    print_table(
        ["EFFECT", "IDENTITY", "VERB", "WHAT", "ADDED", "BY"],
        [
            [
                rule.effect,
                rule.identity,
                rule.verb,
                f"{rule.kind}:{rule.name}",
                show_time(rule.added_ms),
                rule.added_by or None,
            ]
            for rule in rules
        ],
        empty=f"no rule is about {identity}"
        if identity
        else "no rules: only operators may do anything",
    )


_deny = click.option("--deny", is_flag=True, help="A rule that denies.")
_literal = click.option(
    "--literal", is_flag=True, help="A `*` at the end is part of the identity and of the name."
)


@acl.command(
    epilog=examples(
        "oncelog acl add alice read,write payments",
        "oncelog acl add spiffe://prod/enricher read group:enricher",
        "oncelog acl add 'team-*' read 'topic:public-*'",
        "oncelog acl add intern all 'payments*' --deny",
        "oncelog acl add --file rules.json",
    )
)
@click.argument("identity", required=False)
@click.argument("verbs", required=False, metavar="VERB,...")
@click.argument("what", required=False, metavar=WHAT)
@_deny
@_literal
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rules as `acl list --json` prints them.",
)
@connected
def add(
    session: Session,
    identity: str | None,
    verbs: str | None,
    what: str | None,
    deny: bool,
    literal: bool,
    file: Path | None,
) -> None:
    """Add rules. Adding one again changes nothing. `all` stands for every verb."""
    rules = _wanted(identity, verbs, what, deny=deny, literal=literal, file=file)
    added = 0
    for chosen in _chunks(rules):
        reply: pb.AddRulesReply = session.call(
            "cluster.add_rules", pb.AddRulesRequest(rules=chosen)
        )
        added += reply.added
    if session.as_json:
        print_json({"added": added, "rules": [_json(rule) for rule in rules]})
        return
    for rule in rules:
        click.echo(str(rule))
    click.echo(f"{added} added, {len(rules) - added} were there; obeyed within seconds")


@acl.command(
    epilog=examples(
        "oncelog acl remove alice write payments",
        "oncelog acl remove intern all 'payments*' --deny",
        "oncelog acl remove --file rules.json",
    )
)
@click.argument("identity", required=False)
@click.argument("verbs", required=False, metavar="VERB,...")
@click.argument("what", required=False, metavar=WHAT)
@_deny
@_literal
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rules as `acl list --json` prints them.",
)
@connected
def remove(
    session: Session,
    identity: str | None,
    verbs: str | None,
    what: str | None,
    deny: bool,
    literal: bool,
    file: Path | None,
) -> None:
    """Remove rules, each exactly as it is listed."""
    rules = _wanted(identity, verbs, what, deny=deny, literal=literal, file=file)
    removed = 0
    for chosen in _chunks(rules):
        reply: pb.RemoveRulesReply = session.call(
            "cluster.remove_rules", pb.RemoveRulesRequest(rules=chosen)
        )
        removed += reply.removed
    if session.as_json:
        print_json({"removed": removed})
        return
    click.echo(f"{removed} removed, {len(rules) - removed} were not there; obeyed within seconds")


@acl.command(
    epilog=examples(
        "oncelog acl test alice write payments",
        "oncelog acl test alice read group:enricher",
        "oncelog acl test alice operate cluster:get_config --json",
    )
)
@click.argument("identity")
@click.argument("verb")
@click.argument("what", metavar=WHAT)
@connected
def test(session: Session, identity: str, verb: str, what: str) -> None:
    """Ask whether an identity may do something, and why.

    Prints yes or no, the rule that decides, and what would allow it. The exit code is 0 either way:
    the question was answered.
    """
    kind, name = access.place(what)
    access.require_verb(kind, verb)
    request = pb.TestAccessRequest(
        identity=identity,
        verb=access.verb_number(verb),
        kind=access.kind_number(kind),
        name=name,
    )
    verdict = access.verdict_of(session.call("cluster.test_access", request))
    if session.as_json:
        print_json(
            {
                "allowed": verdict.allowed,
                "because": verdict.because,
                "rule": None if verdict.rule is None else _json(verdict.rule),
                "would_allow": [_json(rule) for rule in verdict.would_allow],
                "mode": verdict.mode,
            }
        )
        return
    print_fields(
        [
            ("allowed", "yes" if verdict.allowed else "no"),
            ("because", verdict.because),
            ("rule", verdict.rule),
        ]
    )
    if not verdict.allowed:
        if verdict.rule is not None and verdict.rule.effect == "deny":
            click.echo(f"stands before all that allow: {_removal(verdict.rule)}")
        for rule in verdict.would_allow:
            click.echo(f"would allow it: oncelog acl add {_command(rule)}")
    if verdict.mode != "on":
        session.say(f"authorization.mode is {verdict.mode}: nothing is refused now")


def _wanted(
    identity: str | None,
    verbs: str | None,
    what: str | None,
    *,
    deny: bool,
    literal: bool,
    file: Path | None,
) -> list[AccessRule]:
    if file is not None:
        if identity is not None:
            raise click.UsageError("Give rules as words or as --file, not both.")
        return _from_file(file)
    if identity is None or verbs is None or what is None:
        raise click.UsageError(f"Say who, what and to what: IDENTITY VERB,... {WHAT}.")
    effect = "deny" if deny else "allow"
    rules = access.rules(effect, access.Pattern(identity) if literal else identity, verbs, what)
    if not literal:
        return rules
    _, name = access.place(what)
    return [
        access.AccessRule(rule.effect, rule.identity, rule.verb, rule.kind, access.Pattern(name))
        for rule in rules
    ]


def _from_file(file: Path) -> list[AccessRule]:
    try:
        return [_from_json(value) for value in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.UsageError(
            f"{file} does not hold rules as `oncelog acl list --json` prints them: {error}"
        ) from None


def _json(rule: AccessRule) -> dict[str, Any]:
    return {
        "effect": rule.effect,
        "identity": rule.identity.text,
        "identity_prefixed": rule.identity.prefixed,
        "verb": rule.verb,
        "kind": rule.kind,
        "name": rule.name.text,
        "name_prefixed": rule.name.prefixed,
        "added_by": rule.added_by,
        "added": show_time(rule.added_ms),
    }


def _from_json(value: dict[str, Any]) -> AccessRule:
    kind, verb = value["kind"], value["verb"]
    if kind not in access.VERBS or value["effect"] not in access.EFFECTS:
        raise InvalidArgument(f"no rule: {value}")
    access.require_verb(kind, verb)
    return access.AccessRule(
        value["effect"],
        access.Pattern(value["identity"], bool(value["identity_prefixed"])),
        verb,
        kind,
        access.Pattern(value["name"], bool(value["name_prefixed"])),
    )


def _chunks(rules: list[AccessRule]) -> list[list[pb.AccessRule]]:
    messages = [access.rule_message(rule) for rule in rules]
    return [
        messages[first : first + RULES_PER_CALL]
        for first in range(0, len(messages), RULES_PER_CALL)
    ]


def _removal(rule: AccessRule) -> str:
    return f"oncelog acl remove {_command(rule)} --deny"


def _command(rule: AccessRule) -> str:
    return shlex.join([str(rule.identity), rule.verb, f"{rule.kind}:{rule.name}"])
