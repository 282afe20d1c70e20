"""Bugs of several nodes, as operators meet them: what a node that is away has is neither lost nor
waited for, and what is offline is said; and of what the command reads."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "lines-without-an-end-are-read-on",
        "piece_bytes_max: input of `oncelog produce` that never ends a line does not fill memory",
        (
            Edit(
                "oncelog_server.cli.lines:_lines",
                "source.readline(PIECE_BYTES_MAX + len(LINE))",
                "source.readline()",
            ),
            Edit(
                "oncelog_server.cli.lines:_lines",
                "if len(line) > PIECE_BYTES_MAX and not",
                "if False and not",
            ),
        ),
        {
            unit(
                "cli/test_records",
                "test_a_piece_without_an_end_is_not_read_until_memory_is_gone",
            ): "b'123456789'"
        },
    ),
    Bug(
        "segments-beyond-their-index",
        "a setting that cannot work is refused at the start",
        (
            Edit(
                "oncelog_server.runtime.node_config:NodeConfig.validate",
                "if not SEGMENT_BYTES_LEAST <= self.segment_bytes <= SEGMENT_BYTES_MOST:",
                "if not SEGMENT_BYTES_LEAST <= self.segment_bytes:",
            ),
        ),
        {
            unit(
                "config/test_config", "test_a_node_setting_that_cannot_work_is_refused"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "nodes-away-are-forgotten",
        "I5: a node that once ran keeps its name, its data and its ports",
        (
            Edit(
                "oncelog_server.cli.layout:choose",
                "known = max(nodes, 0 if kept is None else 1 + len(kept.further))",
                "known = nodes",
            ),
        ),
        {
            unit(
                "cli/test_layout", "test_nodes_that_are_away_move_along_when_ports_are_moved"
            ): "== {2}"
        },
    ),
    Bug(
        "waits-for-nodes-that-are-away",
        "what lies on nodes that are not started is not waited for",
        (
            Edit(
                "oncelog_server.cli.readiness:missing",
                "CONTROL_PARTITIONS - only_away.get(topic, 0)",
                "CONTROL_PARTITIONS",
            ),
        ),
        {
            unit(
                "cli/test_layout",
                "test_ready_is_when_all_is_led_but_what_lies_on_nodes_that_are_away",
            ): "10 of 16 partitions"
        },
    ),
    Bug(
        "new-node-on-the-ports-of-one-away",
        "ports are those of one process, also while it is away",
        (
            Edit(
                "oncelog_server.cli.layout:_ports",
                "had = [] if kept is None else [kept.ports, *kept.further]",
                "had = [] if kept is None else [kept.ports] * (1 + len(kept.further))",
            ),
        ),
        {
            unit(
                "cli/test_layout",
                "test_free_ports_of_further_nodes_are_not_those_of_one_that_is_away",
            ): "== 15"
        },
    ),
    Bug(
        "etcd-draws-the-port-of-a-service",
        "ports are those of one process, also before it listens",
        (
            Edit(
                "oncelog_server.runtime.etcd.embedded:EmbeddedEtcd._choose_ports",
                "free_ports(2, promised=self._promised)",
                "free_ports(2)",
            ),
        ),
        {
            unit(
                "runtime/test_loopback_ports",
                "test_etcd_leaves_ports_on_which_services_will_listen",
            ): "etcd listens where a service will"
        },
    ),
    Bug(
        "etcd-keeps-the-port-of-a-service",
        "ports are those of one process, also before it listens",
        (
            Edit(
                "oncelog_server.runtime.etcd.embedded:EmbeddedEtcd._choose_ports",
                "self._promised.isdisjoint(last) and ",
                "",
            ),
        ),
        {
            unit(
                "runtime/test_loopback_ports",
                "test_etcd_leaves_ports_on_which_services_will_listen",
            ): "etcd keeps a port that it lost"
        },
    ),
    Bug(
        "port-drawn-twice-by-one-run",
        "a port that was drawn is somebody's, also before he listens",
        (
            Edit(
                "oncelog_server.runtime.loopback_ports:_claim",
                "if port in _CLAIMED:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_loopback_ports",
                "test_what_was_drawn_is_not_drawn_again_before_anybody_listens",
            ): "one run draws a port twice"
        },
    ),
    Bug(
        "port-drawn-by-two-runs",
        "a port that was drawn is somebody's, also before he listens",
        (
            Edit(
                "oncelog_server.runtime.loopback_ports:_claim",
                "if file is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_loopback_ports",
                "test_what_was_drawn_is_not_drawn_again_before_anybody_listens",
            ): "two runs draw the same port"
        },
    ),
    Bug(
        "offline-without-a-reason",
        "an offline partition names the node that must come back",
        (
            Edit(
                "oncelog_server.cli.replicas:why_offline",
                "if not here:",
                "if not partition.epoch and not here:",
            ),
        ),
        {unit("cli/test_replicas_shown", "test_why_a_partition_is_offline"): "nobody runs"},
    ),
    Bug(
        "fallen-behind-is-not-shown",
        "a partition with a replica that is not in sync is shown",
        (
            Edit(
                "oncelog_server.cli.partitions:ListedPartition.is_under_replicated",
                "min(len(self.partition.isr), self.running) < wanted",
                "len(self.partition.isr) < wanted",
            ),
        ),
        {
            unit(
                "cli/test_replicas_shown", "test_what_is_under_replicated"
            ): "two are counted, and one of them runs"
        },
    ),
    Bug(
        "added-copies-are-missing-ones",
        "a copy that is being added is not missing",
        (
            Edit(
                "oncelog_server.cli.partitions:ListedPartition.is_under_replicated",
                " - len(self.partition.adding)",
                "",
            ),
        ),
        {unit("cli/test_replicas_shown", "test_what_is_under_replicated"): "a copy is being added"},
    ),
    Bug(
        "silent-replica-shown-in-sync",
        "a replica that its leader does not hear of is told as silent",
        (
            Edit(
                "oncelog_server.cli.replicas:_Seen._following",
                "if not follower.has_dialog:",
                "if not follower.in_sync:",
            ),
        ),
        {unit("cli/test_replicas_shown", "test_what_a_replica_is"): "cut off from its leader"},
    ),
    Bug(
        "unfit-without-a-reason",
        "a replica that can neither lead nor follow says why",
        (
            Edit(
                "oncelog_server.runtime.replica.opening:Opening.unusable",
                "self.unfit = str(error)",
                "self.unfit = ''",
            ),
        ),
        {
            unit(
                "runtime/test_describing",
                "test_a_replica_that_cannot_be_opened_says_why_until_it_is",
            ): "segment 7 cannot be read"
        },
    ),
    Bug(
        "unknown-member-told-as-out-of-sync",
        "who is in sync under a name that no process tells may be on a node that does not run",
        (
            Edit(
                "oncelog_server.cli.replicas:_Seen._is_in_sync",
                "return None if set(self._partition.isr) - known else False",
                "return False",
            ),
        ),
        {
            unit(
                "cli/test_replicas_shown",
                "test_on_which_node_a_member_is_that_never_spoke_nobody_knows",
            ): "assert"
        },
    ),
    Bug(
        "frozen-process-hides-the-rest",
        "a process that does not answer is told as unreachable, and the rest is shown",
        (
            Edit(
                "oncelog_server.cli.asking:ask_each",
                "answers[name] = _unanswered(error, method, timeout_s)",
                "raise",
            ),
        ),
        {
            unit(
                "cli/test_cluster_status",
                "test_a_process_that_does_not_answer_is_unreachable_and_the_rest_is_shown",
            ): "assert"
        },
    ),
    Bug(
        "every-bad-request-is-another-process",
        "only who is asked by his boot id says by INVALID_ARGUMENT that he is another process",
        (
            Edit(
                "oncelog_server.cli.asking:_unanswered",
                "case grpc.StatusCode.INVALID_ARGUMENT if method == DESCRIBE_REPLICAS:",
                "case grpc.StatusCode.INVALID_ARGUMENT:",
            ),
        ),
        {
            unit("cli/test_asking", "test_why_a_process_gave_no_answer"): "no such rule",
        },
    ),
    Bug(
        "inside-addresses-told-outside",
        "who comes in from outside is told addresses that he reaches",
        (
            Edit(
                "oncelog_server.runtime.rpc.server:RpcServer._bind",
                "self._serving(service, handler, external)",
                "self._serving(service, handler, None)",
            ),
        ),
        {
            unit(
                "rpc/test_external", "test_each_caller_is_told_what_he_reaches_where_he_came_in"
            ): "n1.example.org:443"
        },
    ),
    Bug(
        "redirected-to-the-inside",
        "NOT_LEADER is followed at the address that the client was told of that node",
        (
            Edit(
                "oncelog._core.routing:Directory._named",
                "if node.node_id and node.node_id == leader:",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_routing",
                "test_not_leader_is_followed_at_the_address_that_we_were_told_of_that_node",
            ): "== Endpoint(host"
        },
    ),
    Bug(
        "a-lag-is-said-too-short",
        "operators see for how long what is readable has waited to be settled, or longer",
        (
            Edit(
                "oncelog_server.runtime.replica.settling_lag:Readable._thin_out",
                "(one[0], other[1])",
                "other",
            ),
        ),
        {
            unit(
                "runtime/test_settling_lag",
                "test_few_moments_are_remembered_and_a_lag_is_never_said_too_short",
            ): "assert lag_ms >="
        },
    ),
    Bug(
        "what-is-in-the-way-of-settling-is-not-told",
        "I29: operators are told why a journal cannot go",
        (
            Edit(
                "oncelog_server.runtime.replication.describing:_describe_settling",
                "settling.why_waits",
                '""',
            ),
        ),
        {
            unit(
                "partition_leader/test_settling_shown",
                "test_what_is_in_its_way_is_told_until_it_is_gone",
            ): "disk_free_floor"
        },
    ),
    Bug(
        "a-topic-that-is-settled-no-more-lags-for-ever",
        "an alarm ends once what it warns of is wanted no more",
        (
            Edit(
                "oncelog_server.runtime.replica.settling_lag:SettlingLag.report",
                "readable = settled.end if is_wanted else end",
                "readable = settled.end",
            ),
        ),
        {
            unit(
                "partition_leader/test_settling_shown",
                "test_a_topic_that_is_settled_no_more_has_no_lag",
            ): "== [0, 0, 0]"
        },
    ),
    Bug(
        "escapes-of-others-in-tables",
        "what others have named does not write elsewhere on an operator's terminal",
        (
            Edit(
                "oncelog_server.cli.output:print_table",
                "printable_lines(str(cell))",
                "str(cell)",
            ),
        ),
        {
            unit(
                "cli/test_output", "test_names_of_others_write_nowhere_else_on_a_terminal"
            ): "assert False",
        },
    ),
    Bug(
        "escapes-of-others-in-logs",
        "what others have named does not write elsewhere on an operator's terminal",
        (
            Edit(
                "oncelog_server.runtime.observe.logs:_on_one_line",
                'return printable(text.rstrip("\\n"))',
                'return text.rstrip("\\n").replace("\\n", "\\\\n")',
            ),
        ),
        {
            unit(
                "observe/test_logs", "test_names_of_others_write_nowhere_else_on_a_terminal"
            ): "isprintable",
        },
    ),
)
