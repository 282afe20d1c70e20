import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import io.grpc.CallOptions;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ClientCalls;
import java.security.SecureRandom;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.zip.CRC32C;
import oncelogpb.v1.*;

/**
 * The thin part that a client of Oncelog needs beside the generated stubs: who leads what, what may be
 * repeated, and why something was refused. docs/clients.md explains each step.
 *
 * <p>It is an example, to be copied and grown: unary calls, one thread, connections in plain text.
 */
public final class Oncelog implements AutoCloseable {
  private static final int MESSAGE_BYTES_MAX = 32 << 20; // A stock client takes 4 MiB.
  // Later calls wait longer: for who restarts, not for a wrong address.
  private static final long FIRST_CONTACT_MS = 3_000;
  private static final long ATTEMPT_MS = 5_000;
  private static final long CALL_MS = 60_000;
  private static final long PAUSE_FIRST_MS = 20;
  private static final long PAUSE_MAX_MS = 1_000;

  // ---------------------------------------------------------------------------------------- errors

  /** Why a call was refused; docs/clients.md has a table of the reasons. */
  public static final class Refused extends RuntimeException {
    public final String reason;
    public final transient Map<String, String> metadata;

    Refused(String reason, String message, Map<String, String> metadata) {
      super(reason + ": " + message);
      this.reason = reason;
      this.metadata = metadata;
    }
  }

  /** Nothing happened, and the same call may succeed later or elsewhere. */
  private static final Set<String> RETRIABLE =
      Set.of(
          "NOT_LEADER", "LOADING", "UNAVAILABLE", "THROTTLED", "DISK_FULL", "NOT_ENOUGH_REPLICAS",
          "PENDING_TRANSACTION", "CONCURRENT_TRANSACTION");

  /**
   * A no that follows a lost answer says nothing of what became of the lost one, but for these: a
   * transaction has one outcome for ever, and one owner. docs/clients.md knows more, call by call.
   */
  private static final Set<String> FACTS = Set.of("TRANSACTION_ENDED", "PRODUCER_MISMATCH");

  /** Reads the ErrorInfo of a status. One without ours promises nothing, whatever its code. */
  private static Refused reasonOf(Status status) {
    for (var detail : status.getDetailsList()) {
      try {
        if (detail.is(ErrorInfo.class)) {
          var info = detail.unpack(ErrorInfo.class);
          if (info.getDomain().equals("oncelog")) {
            return new Refused(info.getReason(), status.getMessage(), info.getMetadataMap());
          }
        }
      } catch (InvalidProtocolBufferException error) {
        break;
      }
    }
    return new Refused("UNKNOWN_OUTCOME", status.getMessage(), Map.of());
  }

  // ----------------------------------------------------------------------------------- who leads what

  /** What somebody leads: how it is remembered, and what to ask for it. */
  private record Target(String key, GetMetadataRequest ask) {}

  private static final Target ANY_LEADER =
      new Target("any partition leader", GetMetadataRequest.getDefaultInstance());

  private static Target toProducers(String group) {
    var ask = GetMetadataRequest.newBuilder().addTransactionGroups(group).build();
    return new Target("transaction group " + group, ask);
  }

  private static Target toGroup(String group) {
    var ask = GetMetadataRequest.newBuilder().addConsumerGroups(group).build();
    return new Target("consumer group " + group, ask);
  }

  /** For whatever has this producer id or TxId: the top 16 bits say whose it is. */
  private static Target toJournal(long id) {
    var number = (int) (id >>> 48);
    var ask = GetMetadataRequest.newBuilder().addJournalPartitions(number).build();
    return new Target("journal " + number, ask);
  }

  private static Target toPartition(Partition partition) {
    var ask = GetMetadataRequest.newBuilder().addTopicIds(partition.getTopicId()).build();
    return new Target("partition " + partition, ask);
  }

  private static Partition partition(ByteString topicId, int number) {
    return Partition.newBuilder().setTopicId(topicId).setNumber(number).build();
  }

  private static String addressOf(String host, String port) {
    return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
  }

  /** Addresses to ask: those that were given, then whoever was seen. */
  private final Set<String> known;

  private final Map<String, String> leaders = new HashMap<>();
  private final Map<String, ManagedChannel> channels = new HashMap<>();

  private Oncelog(Set<String> known) {
    this.known = known;
  }

  /**
   * Takes HOST:PORT[,HOST:PORT] of any processes of the cluster. Fails with UNAVAILABLE where none of
   * them answers within FIRST_CONTACT_MS.
   */
  public static Oncelog connect(String addresses) {
    var log = new Oncelog(new LinkedHashSet<>(List.of(addresses.split(","))));
    var end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(FIRST_CONTACT_MS);
    for (var pause = PAUSE_FIRST_MS;
        System.nanoTime() < end;
        pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      if (log.meet()) {
        return log;
      }
      sleep(pause);
      log.channels.values().forEach(ManagedChannel::resetConnectBackoff);
    }
    log.close();
    var check = ": check the address, that one is started there, and that it takes plain text, not TLS";
    throw new Refused(
        "UNAVAILABLE", "no process of Oncelog answers at " + addresses + check, Map.of());
  }

  /** Whether any of those that were given answers. */
  private boolean meet() {
    for (var address : List.copyOf(known)) {
      try {
        var question = ANY_LEADER.ask();
        learn(send(address, ClusterGrpc.getGetMetadataMethod(), question, FIRST_CONTACT_MS));
        return true;
      } catch (Refused failure) {
        if (!failure.reason.equals("UNKNOWN_OUTCOME") && !RETRIABLE.contains(failure.reason)) {
          throw failure;
        }
      }
    }
    return false;
  }

  @Override
  public void close() {
    channels.values().forEach(ManagedChannel::shutdownNow);
  }

  private ManagedChannel channel(String address) {
    return channels.computeIfAbsent(
        address,
        where ->
            Grpc.newChannelBuilder(where, InsecureChannelCredentials.create())
                .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                .build());
  }

  /** Sends a request once. */
  private <Q, R> R send(
      String address, MethodDescriptor<Q, R> method, Q request, long timeoutMs) {
    var options = CallOptions.DEFAULT.withDeadlineAfter(timeoutMs, TimeUnit.MILLISECONDS);
    try {
      return ClientCalls.blockingUnaryCall(channel(address), method, options, request);
    } catch (StatusRuntimeException error) {
      throw reasonOf(StatusProto.fromThrowable(error));
    }
  }

  /** Asks one known process after the other. Fails with UNAVAILABLE: nothing was sent. */
  private String leaderOf(Target whom) {
    var why = "nobody leads it now";
    for (var address : List.copyOf(known)) {
      if (leaders.containsKey(whom.key())) {
        break;
      }
      try {
        learn(send(address, ClusterGrpc.getGetMetadataMethod(), whom.ask(), ATTEMPT_MS));
      } catch (Refused error) {
        why = address + ": " + error.getMessage();
      }
    }
    if (leaders.containsKey(whom.key())) {
      return leaders.get(whom.key());
    }
    throw new Refused("UNAVAILABLE", why, Map.of());
  }

  private void learn(GetMetadataReply reply) {
    for (var node : reply.getNodesList()) {
      known.add(addressOf(node.getEndpoint().getHost(), "" + node.getEndpoint().getPort()));
      if (node.getRolesList().contains("partition_leader")) {
        keep(ANY_LEADER, true, node.getEndpoint());
      }
    }
    for (var route : reply.getTransactionGroupsList()) {
      keep(toProducers(route.getGroup()), route.hasLeader(), route.getLeader().getEndpoint());
    }
    for (var route : reply.getConsumerGroupsList()) {
      keep(toGroup(route.getGroup()), route.hasLeader(), route.getLeader().getEndpoint());
    }
    for (var route : reply.getJournalPartitionsList()) {
      var whom = toJournal((long) route.getPartition().getNumber() << 48);
      keep(whom, route.hasLeader(), route.getLeader().getEndpoint());
    }
    for (var topic : reply.getTopicsList()) {
      for (var one : topic.getPartitionsList()) {
        var whom = toPartition(partition(topic.getTopicId(), one.getNumber()));
        keep(whom, one.hasLeader(), one.getLeader().getEndpoint());
      }
    }
  }

  private void keep(Target whom, boolean hasLeader, Endpoint endpoint) {
    if (hasLeader) {
      leaders.put(whom.key(), addressOf(endpoint.getHost(), "" + endpoint.getPort()));
    }
  }

  // ------------------------------------------------------------------------------------------ retries

  private <Q, R> R call(Target whom, MethodDescriptor<Q, R> method, Q request) {
    return call(whom, method, request, reply -> Status.getDefaultInstance());
  }

  /**
   * Makes a call that may be repeated, until it is answered for good or CALL_MS are over. `item` takes
   * the error out of a reply whose only item may have failed by itself.
   */
  private <Q, R> R call(
      Target whom, MethodDescriptor<Q, R> method, Q request, Function<R, Status> item) {
    var end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CALL_MS);
    var lost = ""; // How the answer to an attempt was lost, if one was.
    for (var pause = PAUSE_FIRST_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      try {
        var reply = send(leaderOf(whom), method, request, ATTEMPT_MS);
        if (item.apply(reply).getCode() != 0) {
          throw reasonOf(item.apply(reply));
        }
        return reply;
      } catch (Refused failure) {
        var isLost = failure.reason.equals("UNKNOWN_OUTCOME");
        lost = isLost ? failure.getMessage() : lost;
        if (System.nanoTime() > end || !(isLost || RETRIABLE.contains(failure.reason))) {
          if (!lost.isEmpty() && !FACTS.contains(failure.reason)) {
            var both = lost + "; then " + failure.getMessage();
            throw new Refused("UNKNOWN_OUTCOME", both, failure.metadata);
          }
          throw failure;
        }
        leaders.remove(whom.key());
        // Stock channels wait up to two minutes before they try a process that restarted.
        channels.values().forEach(ManagedChannel::resetConnectBackoff);
        if (failure.metadata.containsKey("leader_host")) {
          var host = failure.metadata.get("leader_host");
          leaders.put(whom.key(), addressOf(host, failure.metadata.get("leader_port")));
        }
        sleep(Long.parseLong(failure.metadata.getOrDefault("retry_after_ms", "" + pause)));
      }
    }
  }

  private static void sleep(long milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(error);
    }
  }

  // ----------------------------------------------------------------------------- topics and reading

  /**
   * Creates a topic, unless there is one of that name. It is known by its id: one that is created again
   * under the same name is another.
   */
  public ByteString topic(String name, int partitions) {
    var create = CreateTopicRequest.newBuilder().setName(name).setPartitions(partitions).build();
    try {
      return call(ANY_LEADER, PartitionLeaderGrpc.getCreateTopicMethod(), create)
          .getTopic()
          .getTopicId();
    } catch (Refused error) {
      if (!Set.of("TOPIC_EXISTS", "UNKNOWN_OUTCOME").contains(error.reason)) {
        throw error;
      }
    }
    // Somebody else's, or ours whose answer was lost: a creation has no request id to know it by.
    var describe = DescribeTopicsRequest.newBuilder().addNames(name).build();
    return call(ANY_LEADER, PartitionLeaderGrpc.getDescribeTopicsMethod(), describe)
        .getTopics(0)
        .getTopicId();
  }

  /** The committed values of a partition, in commit order. */
  public List<String> read(ByteString topicId, int number) {
    var values = new ArrayList<String>();
    readFrom(partition(topicId, number), 0, values);
    return values;
  }

  /** What a consumer group has not consumed yet; `from` is null where it never committed a position. */
  public record Input(
      List<String> values, String group, Partition partition, Long from, long next) {}

  /** Reads from where the group stands to the end. */
  public Input unread(String group, ByteString topicId, int number) {
    var partition = partition(topicId, number);
    // Stable: PENDING_TRANSACTION while a transaction is about to move the position.
    var request =
        FetchOffsetsRequest.newBuilder()
            .setGroup(group)
            .addPartitions(partition)
            .setStable(true)
            .build();
    var committed =
        call(toGroup(group), OffsetManagerGrpc.getFetchOffsetsMethod(), request).getOffsets(0);
    var values = new ArrayList<String>();
    var next = readFrom(partition, committed.getOffset(), values);
    var from = committed.hasOffset() ? committed.getOffset() : null;
    return new Input(values, group, partition, from, next);
  }

  private long readFrom(Partition partition, long offset, List<String> values) {
    while (true) {
      var request =
          FetchRequest.newBuilder()
              .addPartitions(
                  FetchPartition.newBuilder().setPartition(partition).setOffset(offset))
              .setIsolation(Isolation.ISOLATION_COMMITTED)
              .setFormat(Format.FORMAT_ROWS)
              .build();
      var found =
          call(
                  toPartition(partition),
                  PartitionLeaderGrpc.getFetchMethod(),
                  request,
                  reply -> reply.getPartitions(0).getError())
              .getPartitions(0);
      for (var batch : found.getBatchesList()) {
        var rows = rowsOf(batch).getRowsList();
        // Batches are not cut: the first may begin before the offset that was asked for.
        for (var row : rows.subList((int) (offset - batch.getFirstOffset()), rows.size())) {
          values.add(row.getValue().toStringUtf8());
        }
        offset = batch.getFirstOffset() + batch.getRecordCount();
      }
      if (offset >= found.getEndOffset()) {
        return offset;
      }
    }
  }

  private static Rows rowsOf(FetchedBatch batch) {
    try {
      if (checksum(batch.getPayload()) == batch.getCrc32C()) {
        return Rows.parseFrom(batch.getPayload());
      }
    } catch (InvalidProtocolBufferException error) {
      throw new IllegalStateException(error);
    }
    throw new IllegalStateException("a batch does not match its checksum");
  }

  // ------------------------------------------------------------------------------------ transactions

  /** Registers a producer, and fences whoever held this name before. */
  public TransactionalProducer producer(String name) {
    var instance = new byte[16];
    new SecureRandom().nextBytes(instance);
    // The instance id is the same in each attempt: a repetition gets the same generation.
    var request =
        InitProducerRequest.newBuilder()
            .setName(name)
            .setInstanceId(ByteString.copyFrom(instance))
            .build();
    var reply = call(toProducers(name), CoordinatorGrpc.getInitProducerMethod(), request);
    return new TransactionalProducer(reply.getProducer());
  }

  /** Writes transactions, one after the other. */
  public final class TransactionalProducer {
    private final Producer id;
    private long requestId;

    private TransactionalProducer(Producer id) {
      this.id = id;
    }

    public Transaction begin() {
      var request =
          BeginTransactionRequest.newBuilder().setProducer(id).setRequestId(++requestId).build();
      var whom = toJournal(id.getProducerId());
      var reply = call(whom, CoordinatorGrpc.getBeginTransactionMethod(), request);
      if (reply.getResult() != BeginTransactionReply.Result.RESULT_OPEN) {
        throw new Refused("TRANSACTION_ENDED", "it ended before it was used", Map.of());
      }
      return new Transaction(id, reply.getTxId());
    }
  }

  /** One transaction. */
  public final class Transaction {
    private final Producer producer;
    private final long txId;
    // Records that each partition got; a partition of __consumer_offsets takes part with none.
    private final Map<Partition, Long> written = new HashMap<>();

    private Transaction(Producer producer, long txId) {
      this.producer = producer;
      this.txId = txId;
    }

    /** Writes records to a partition. Nobody sees them before the commit. */
    public void send(ByteString topicId, int number, List<String> values) {
      if (values.isEmpty()) {
        return;
      }
      var partition = partition(topicId, number);
      // Sequences count records. By its sequence a repeated batch is known, and not stored twice.
      var sequence = written.getOrDefault(partition, 0L);
      var request =
          ProduceRequest.newBuilder()
              .setTxId(txId)
              .setProducer(producer)
              .addBatches(batch(values).setPartition(partition).setBaseSequence(sequence))
              .build();
      call(
          toPartition(partition),
          PartitionLeaderGrpc.getProduceMethod(),
          request,
          reply -> reply.getResults(0).getError());
      written.put(partition, sequence + values.size());
    }

    /** Moves the position of the input's consumer group with the transaction. */
    public void consumed(Input input) {
      var step =
          OffsetCommit.newBuilder().setPartition(input.partition()).setToOffset(input.next());
      if (input.from() == null) {
        step.setFromNone(true);
      } else {
        step.setFromOffset(input.from());
      }
      var request =
          CommitTransactionOffsetsRequest.newBuilder()
              .setTxId(txId)
              .setProducer(producer)
              .setOffsets(GroupOffsets.newBuilder().setGroup(input.group()).addOffsets(step))
              .build();
      var method = OffsetManagerGrpc.getCommitTransactionOffsetsMethod();
      written.put(call(toGroup(input.group()), method, request).getParticipant(), 0L);
    }

    /** Returns when everything can be read. */
    public void commit() {
      var manifest = Manifest.newBuilder();
      // The columns of a Manifest.Topic are parallel; all records are of writer 0.
      written.forEach(
          (partition, records) ->
              manifest
                  .addTopicsBuilder()
                  .setTopicId(partition.getTopicId())
                  .addPartition(partition.getNumber())
                  .addWriter(0)
                  .addRecordCount(records));
      var request =
          CommitTransactionRequest.newBuilder()
              .setTxId(txId)
              .setProducer(producer)
              .setManifest(manifest)
              .setWait(Wait.WAIT_VISIBLE)
              .build();
      call(toJournal(txId), CoordinatorGrpc.getCommitTransactionMethod(), request);
    }

    /** Drops everything that was sent. */
    public void abort() {
      var request =
          AbortTransactionRequest.newBuilder()
              .setTxId(txId)
              .setProducer(producer)
              .addAllParts(written.keySet())
              .build();
      call(toJournal(txId), CoordinatorGrpc.getAbortTransactionMethod(), request);
    }
  }

  private static Batch.Builder batch(List<String> values) {
    var nowUs = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    var rows = Rows.newBuilder();
    for (var value : values) {
      rows.addRowsBuilder().setValue(ByteString.copyFromUtf8(value)).setTimestampUs(nowUs);
    }
    var payload = rows.build().toByteString();
    return Batch.newBuilder()
        .setEncoding(Encoding.ENCODING_ROWS)
        .setRecordCount(values.size())
        .setCrc32C(checksum(payload))
        .setMaxTimestampUs(nowUs)
        .setPayload(payload);
  }

  private static int checksum(ByteString payload) {
    var crc = new CRC32C();
    crc.update(payload.asReadOnlyByteBuffer());
    return (int) crc.getValue();
  }
}
