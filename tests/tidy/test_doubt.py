"""No request is sent again beside `oncelogpb.doubt`: a lost answer cannot be forgotten.

Looked for, in client, connector and services: functions that catch an error of ours in a loop, or
that make the same call twice with an error of ours caught in between. Each of them keeps a Doubt,
or stands in EXEMPT with the reason why a lost answer leaves no doubt there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oncelogpb import errors

ROOT = Path(__file__).parents[2]
ROOMS: Final = (
    ROOT / "clients/python/src/oncelog",
    ROOT / "spark/src",
    ROOT / "services/oncelog_server",
)
OURS: Final = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.OncelogError)
}
# Function, by module and qualified name -> why nothing is in doubt.
EXEMPT: Final[dict[str, str]] = {
    "oncelog_server.partition_leader.reads:Reader._settled": "reads",
    "oncelog_server.runtime.replica.healing:Healing._ask_for": "reads",
    "oncelog_server.runtime.replica.healing:Healing._heal": "reads, of one donor after the other",
    "oncelog_server.runtime.replica.receiving:Receiving._part": "reads",
    "oncelog_server.runtime.replica.receiving:Receiving._work": "reads",
    "oncelog_server.runtime.storage.data_view:DataView.read": "reads a file",
    "oncelog_server.partition_leader.listing:_batches": "reads a log",
    "oncelog_server.runtime.replication.links:_Link._run": "a stream: each begins its dialogs anew",
    "oncelog._leaving:_flush_all": "each connection once, at the end",
    "oncelog.aio.log:Log.flush": "each producer once",
    "oncelog._metadata:Metadata.led_topic": "asks for metadata",
    "oncelog._metadata:Metadata._watch_suspects": "asks for metadata",
    "oncelog._first_answer:first_answer": "asks for metadata, one process after the other",
    "oncelog.aio.group_commits:_participant": "reads",
    "oncelog.aio.group_standing:fetched": "reads",
    "oncelog.aio.member:Member._named": "asks for metadata, topic by topic",
    "oncelog.aio.member:Member._beat": "says how things stand now, however often: what an answer "
    "that was lost changed, the next one says",
    "oncelog.aio.offsets:Offsets.give_sign": "a sign of life: from = to moves nothing, however "
    "often",
    "oncelog.aio.starting:Starting._start": "asks where partitions begin, once what it waited for "
    "is visible",
    "oncelog.aio.visibility:Visibility.wait": "reads",
    "oncelog.aio.starting:Starting._start_each": "after PENDING_TRANSACTION, which promises that "
    "nothing happened; where it begins is asked of the group again after any other refusal",
    "oncelog.aio.fetching:Prefetcher._receive": "reads; nothing is sent",
    "oncelog.aio.log:Log.start": "asks for metadata",
    "oncelog.aio.table_view:TableView._follow": "reads",
    "oncelog.aio.table_view:TableView._look_how_far": "reads",
    "oncelog.aio.log:Log.run_until": "a new transaction each time; what the last one left in doubt "
    "its consumer asks the group",
    "oncelog.aio.outcomes:_transact": "the gap is told only where no answer was lost (the call's "
    "own Doubt), so nothing of the first request can follow the second",
    "oncelog.aio.recorder:Recorder._describe": "asks for metadata",
    "oncelog.checker.recorder:RecordedLog.settle": "lists transactions",
    "src.oncelog_spark.agreement:_refuse": "ends each transaction once",
    "src.oncelog_spark.subscription:Subscription._list": "reads",
    "src.oncelog_spark.subscription:_described": "asks for metadata, topic by topic",
    "oncelog_server.coordinator.outbox:CoordinatorOutbox._bring": "nobody hears its failure: the "
    "answer is brought until it is durable, and brought twice it changes nothing",
    "oncelog_server.coordinator.service:CoordinatorService._decided": "the request is journaled: "
    "what refuses it is remembered of its number, and all else is UNKNOWN_OUTCOME",
    "oncelog_server.partition_leader.fetching:Fetching._require_now": "reads; nothing is sent",
    "oncelog_server.partition_leader.producing:Producing._judge_all": "judges; nothing is sent",
    "oncelog_server.runtime.rpc.call_stream:CallStream._read": "reads calls; nothing is sent",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
LOOPS: Final = (ast.While, ast.For, ast.AsyncFor)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """All, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Of this function, without the functions that are defined in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from inside(child)


def catches_ours(node: ast.AST) -> bool:
    return isinstance(node, ast.Try) and any(
        name in OURS
        for handler in node.handlers
        if handler.type is not None
        for part in ast.walk(handler.type)
        if (name := getattr(part, "attr", getattr(part, "id", ""))) in OURS
    )


def suppresses_ours(node: ast.AST) -> bool:
    """contextlib.suppress(SomeError)."""
    return isinstance(node, ast.With | ast.AsyncWith) and any(
        isinstance(call := item.context_expr, ast.Call)
        and ast.unparse(call.func).endswith("suppress")
        and any(ast.unparse(argument).split(".")[-1] in OURS for argument in call.args)
        for item in node.items
    )


def repeats(function: Function) -> bool:
    """Does it make a call again after an error?"""
    caught = [node for node in inside(function) if catches_ours(node) or suppresses_ours(node)]
    for loop in (node for node in inside(function) if isinstance(node, LOOPS)):
        if any(node in caught for node in inside(loop)):
            return True
    tried = {
        ast.unparse(call)
        for attempt in caught
        for call in ast.walk(attempt)
        if isinstance(call, ast.Call) and _asks_somebody(call)
    }
    made = [ast.unparse(call) for call in inside(function) if isinstance(call, ast.Call)]
    return any(made.count(call) > 1 for call in tried)


def _asks_somebody(call: ast.Call) -> bool:
    """One that is given a request."""
    return any(ast.unparse(argument).endswith("request") for argument in call.args)


def keeps_doubt(function: Function) -> bool:
    names = {ast.unparse(node).lower() for node in inside(function) if isinstance(node, ast.Name)}
    return any("doubt" in name for name in names)


def repeating_functions() -> Iterator[tuple[str, bool]]:
    """Those that repeat, and whether each keeps a Doubt."""
    for room in ROOMS:
        for file in sorted(room.rglob("*.py")):
            module = ".".join(file.relative_to(room.parent).with_suffix("").parts)
            for name, function in functions(ast.parse(file.read_text())):
                if repeats(function):
                    yield f"{module}:{name}", keeps_doubt(function)


def test_whoever_sends_a_request_again_keeps_its_doubt() -> None:
    found = dict(repeating_functions())
    careless = [name for name, keeps in found.items() if not keeps and name not in EXEMPT]
    assert not careless, (
        "keep a Doubt (oncelogpb/doubt.py) with the request, from its first sending on, or say in "
        f"EXEMPT why a lost answer leaves none: {careless}"
    )
    gone = [name for name in EXEMPT if name not in found or found[name]]
    assert not gone, f"they repeat nothing any more, or keep a Doubt: {gone}"


def test_the_look_finds_loops_and_second_calls() -> None:
    careless = """
async def again(self, request):
    for _ in range(3):
        try:
            return await self.call(request)
        except errors.UnknownOutcome:
            continue

def twice(protocol, request):
    try:
        return send(protocol, request)
    except UnknownOutcome:
        request.wait = 1
    return send(protocol, request)

def quietly(self):
    while True:
        with contextlib.suppress(OncelogError):
            self.call(request)
"""
    careful = """
def once(protocol, request):
    try:
        return send(protocol, request)
    except errors.StalePosition:
        raise

def other(self):
    for _ in range(3):
        try:
            return self.call(request)
        except OSError:
            continue
"""
    assert [repeats(function) for _, function in functions(ast.parse(careless))] == [True] * 3
    assert [repeats(function) for _, function in functions(ast.parse(careful))] == [False] * 2
