// The thin part that a client of Oncelog needs beside the protos: who leads what, what may be repeated,
// and why something was refused. docs/clients.md explains each step.
//
// It is an example, to be copied and grown: unary calls, one at a time, connections in plain text. Ids,
// generations and offsets are strings: a number of JavaScript holds 53 bits, an id has 64.

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const PROTOS = fileURLToPath(new URL("../../protos", import.meta.url));
const FILES = ["cluster", "coordinator", "offset_manager", "partition_leader"];
const types = loader.loadSync(
  [...FILES.map((name) => `oncelogpb/v1/${name}.proto`), "google/rpc/error_details.proto"],
  { includeDirs: [PROTOS], longs: String, enums: String, arrays: true },
);
const services = grpc.loadPackageDefinition(types).oncelogpb.v1;
const { "google.rpc.Status": Status, "google.rpc.ErrorInfo": ErrorInfo, "oncelogpb.v1.Rows": Rows } = types;

const CHANNEL = {
  "grpc.max_receive_message_length": 32 << 20, // A stock client takes 4 MiB; a reply may have 32.
  // Stock values wait up to two minutes before they try a process that restarted.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
};
const FIRST_CONTACT_MS = 3_000; // Later calls wait longer: for who restarts, not for a wrong address.
const ATTEMPT_MS = 5_000;
const CALL_MS = 60_000;
const PAUSE_FIRST_MS = 20;
const PAUSE_MAX_MS = 1_000;

// ----------------------------------------------------------------------------------------- errors

/** Why a call was refused; docs/clients.md has a table of the reasons. */
export class OncelogError extends Error {
  constructor(reason, message, metadata = {}) {
    super(`${reason}: ${message}`);
    Object.assign(this, { reason, metadata });
  }
}

// Nothing happened, and the same call may succeed later or elsewhere.
const RETRIABLE = new Set([
  "NOT_LEADER", "LOADING", "UNAVAILABLE", "THROTTLED", "DISK_FULL", "NOT_ENOUGH_REPLICAS",
  "PENDING_TRANSACTION", "CONCURRENT_TRANSACTION",
]);
// A no that follows a lost answer says nothing of what became of the lost one, but for these: a
// transaction has one outcome for ever, and one owner. docs/clients.md knows more, call by call.
const FACTS = new Set(["TRANSACTION_ENDED", "PRODUCER_MISMATCH"]);

/** Ends the program: for who cannot go on after an error. */
export function end(error) {
  console.error(error.message);
  process.exit(1);
}

/** The ErrorInfo of a google.rpc.Status. One without ours promises nothing, whatever its code. */
function reasonOf(status) {
  for (const detail of status?.details ?? []) {
    if (detail.type_url.endsWith("/google.rpc.ErrorInfo")) {
      const info = ErrorInfo.deserialize(detail.value);
      if (info.domain === "oncelog") return new OncelogError(info.reason, status.message, info.metadata);
    }
  }
  return new OncelogError("UNKNOWN_OUTCOME", status?.message ?? "no answer");
}

/** What a call failed with: gRPC carries our Status in its trailers. */
function failureOf(error) {
  if (error instanceof OncelogError) return error;
  const [details] = error.metadata?.get("grpc-status-details-bin") ?? [];
  return reasonOf(details ? Status.deserialize(details) : { message: error.message });
}

/** An item of a reply, unless its own error says that it was refused. */
function sound(item) {
  if (item.error) throw reasonOf(item.error);
  return item;
}

// ------------------------------------------------------------------------------------ who leads what

const anyLeader = { key: "any partition leader", ask: {} };
const toProducers = (group) => ({ key: `transaction group ${group}`, ask: { transactionGroups: [group] } });
const toGroup = (group) => ({ key: `consumer group ${group}`, ask: { consumerGroups: [group] } });
const keyOf = ({ topicId, number }) => `${topicId.toString("hex")}/${number}`;
const toPartition = (partition) => ({ key: keyOf(partition), ask: { topicIds: [partition.topicId] } });
/** For whatever has this producer id or TxId: the top 16 bits say whose it is. */
function toJournal(id) {
  const number = Number(BigInt(id) >> 48n);
  return { key: `journal ${number}`, ask: { journalPartitions: [number] } };
}

const addressOf = ({ host, port }) => (host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`);

/** Takes HOST:PORT[,HOST:PORT] of any processes of the cluster. Fails with UNAVAILABLE where none of
 * them answers within FIRST_CONTACT_MS. */
export async function connect(addresses) {
  const log = new Log(addresses.split(","));
  const end = Date.now() + FIRST_CONTACT_MS;
  for (let pause = PAUSE_FIRST_MS; Date.now() < end; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
    if (await log.meet()) return log;
    await sleep(pause);
  }
  log.close();
  throw new OncelogError(
    "UNAVAILABLE",
    `no process of Oncelog answers at ${addresses}: check the address, that one is started there, ` +
      "and that it takes plain text, not TLS",
  );
}

class Log {
  constructor(known) {
    this.known = new Set(known); // Addresses to ask: those that were given, then whoever was seen.
    this.leaders = new Map();
    this.clients = new Map();
  }

  close() {
    for (const client of this.clients.values()) client.close();
  }

  /** Whether any of those that were given answers. */
  async meet() {
    for (const address of [...this.known]) {
      try {
        this.learn(await this.send(address, "Cluster", "getMetadata", {}, FIRST_CONTACT_MS));
        return true;
      } catch (error) {
        const failure = failureOf(error);
        if (failure.reason !== "UNKNOWN_OUTCOME" && !RETRIABLE.has(failure.reason)) throw failure;
      }
    }
    return false;
  }

  /** Sends a request once. */
  send(address, service, method, request, timeoutMs = ATTEMPT_MS) {
    const key = `${service} ${address}`;
    if (!this.clients.has(key)) {
      this.clients.set(key, new services[service](address, grpc.credentials.createInsecure(), CHANNEL));
    }
    const client = this.clients.get(key);
    const deadline = Date.now() + timeoutMs;
    return new Promise((resolve, reject) => {
      client[method](request, { deadline }, (error, reply) => (error ? reject(error) : resolve(reply)));
    });
  }

  /** Asks one known process after the other. Fails with UNAVAILABLE: nothing was sent. */
  async leaderOf(whom) {
    let why = "nobody leads it now";
    for (const address of this.known) {
      if (this.leaders.has(whom.key)) break;
      try {
        this.learn(await this.send(address, "Cluster", "getMetadata", whom.ask));
      } catch (error) {
        why = `${address}: ${error.message}`;
      }
    }
    if (this.leaders.has(whom.key)) return this.leaders.get(whom.key);
    throw new OncelogError("UNAVAILABLE", why);
  }

  learn(reply) {
    const keep = (key, leader) => leader && this.leaders.set(key, addressOf(leader.endpoint));
    for (const node of reply.nodes) {
      this.known.add(addressOf(node.endpoint));
      if (node.roles.includes("partition_leader")) keep(anyLeader.key, node);
    }
    for (const route of reply.transactionGroups) keep(toProducers(route.group).key, route.leader);
    for (const route of reply.consumerGroups) keep(toGroup(route.group).key, route.leader);
    for (const route of reply.journalPartitions) keep(`journal ${route.partition.number ?? 0}`, route.leader);
    for (const { topicId, partitions } of reply.topics) {
      for (const { number = 0, leader } of partitions) keep(keyOf({ topicId, number }), leader);
    }
  }

  /** Makes a call that may be repeated, until it is answered for good or CALL_MS are over. `judge` sees
   * the reply: what it throws counts as the call's failure. */
  async call(whom, service, method, request, judge = (reply) => reply) {
    const end = Date.now() + CALL_MS;
    let lost = ""; // How the answer to an attempt was lost, if one was.
    for (let pause = PAUSE_FIRST_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
      try {
        return judge(await this.send(await this.leaderOf(whom), service, method, request));
      } catch (error) {
        const failure = failureOf(error);
        const isLost = failure.reason === "UNKNOWN_OUTCOME";
        if (isLost) lost = failure.message;
        if (Date.now() > end || !(isLost || RETRIABLE.has(failure.reason))) {
          if (lost && !FACTS.has(failure.reason)) {
            throw new OncelogError("UNKNOWN_OUTCOME", `${lost}; then ${failure.message}`, failure.metadata);
          }
          throw failure;
        }
        const { leader_host: host, leader_port: port, retry_after_ms: wait } = failure.metadata;
        this.leaders.delete(whom.key);
        if (host) this.leaders.set(whom.key, addressOf({ host, port }));
        await sleep(wait ? Number(wait) : pause);
      }
    }
  }

  // ----------------------------------------------------------------------------- topics and reading

  /** Creates a topic, unless there is one of that name. It is known by its id: one that is created
   * again under the same name is another. */
  async topic(name, partitions) {
    try {
      const created = await this.call(anyLeader, "PartitionLeader", "createTopic", { name, partitions });
      return created.topic.topicId;
    } catch (error) {
      if (!["TOPIC_EXISTS", "UNKNOWN_OUTCOME"].includes(error.reason)) throw error;
    }
    // Somebody else's, or ours whose answer was lost: a creation has no request id to know it by.
    const found = await this.call(anyLeader, "PartitionLeader", "describeTopics", { names: [name] });
    return found.topics[0].topicId;
  }

  /** The committed values of a partition, in commit order. */
  async read(topicId, number) {
    return (await this.readFrom({ topicId, number }, 0n)).values;
  }

  /** What a consumer group has not consumed yet: from where it stands to the end. */
  async unread(group, topicId, number) {
    const partition = { topicId, number };
    // Stable: PENDING_TRANSACTION while a transaction is about to move the position.
    const request = { group, partitions: [partition], stable: true };
    const reply = await this.call(toGroup(group), "OffsetManager", "fetchOffsets", request);
    const from = reply.offsets[0].offset; // Absent where the group never committed a position.
    return { group, partition, from, ...(await this.readFrom(partition, BigInt(from ?? 0))) };
  }

  async readFrom(partition, next) {
    const values = [];
    for (;;) {
      const request = {
        partitions: [{ partition, offset: String(next) }],
        isolation: "ISOLATION_COMMITTED",
        format: "FORMAT_ROWS",
      };
      const found = await this.call(toPartition(partition), "PartitionLeader", "fetch", request, (reply) =>
        sound(reply.partitions[0]),
      );
      for (const batch of found.batches) {
        if (crc32c(batch.payload) !== batch.crc32c) throw new Error("a batch does not match its checksum");
        const first = BigInt(batch.firstOffset ?? 0);
        const { rows } = Rows.deserialize(batch.payload);
        // Batches are not cut: the first may begin before the offset that was asked for.
        const wanted = rows.filter((_, index) => first + BigInt(index) >= next);
        values.push(...wanted.map((row) => row.value.toString()));
        next = first + BigInt(batch.recordCount);
      }
      if (next >= BigInt(found.endOffset ?? 0)) return { values, next };
    }
  }

  // ----------------------------------------------------------------------------------- transactions

  /** Registers a producer, and fences whoever held this name before. */
  async producer(name) {
    // The instance id is the same in each attempt: a repetition gets the same generation.
    const request = { name, instanceId: randomBytes(16) };
    const reply = await this.call(toProducers(name), "Coordinator", "initProducer", request);
    return new Producer(this, reply.producer);
  }
}

/** Writes transactions, one after the other. */
class Producer {
  constructor(log, id) {
    Object.assign(this, { log, id, requestId: 0 });
  }

  async begin() {
    const request = { producer: this.id, requestId: ++this.requestId };
    const whom = toJournal(this.id.producerId);
    const reply = await this.log.call(whom, "Coordinator", "beginTransaction", request);
    if (reply.result !== "RESULT_OPEN") throw new OncelogError("TRANSACTION_ENDED", "it ended before it was used");
    return new Transaction(this.log, this.id, reply.txId);
  }
}

class Transaction {
  constructor(log, producer, txId) {
    Object.assign(this, { log, producer, txId, written: new Map() });
  }

  /** Writes records to a partition. Nobody sees them before the commit. */
  async send(topicId, number, ...values) {
    if (values.length === 0) return;
    const partition = { topicId, number };
    const part = this.part(partition);
    // Sequences count records. By its sequence a repeated batch is known, and not stored twice.
    const batch = { partition, baseSequence: part.recordCount[0], ...rowsOf(values) };
    const request = { txId: this.txId, producer: this.producer, batches: [batch] };
    await this.log.call(toPartition(partition), "PartitionLeader", "produce", request, (reply) =>
      sound(reply.results[0]),
    );
    part.recordCount[0] += values.length;
  }

  /** Moves the position of the input's consumer group with the transaction. */
  async consumed({ group, partition, from, next }) {
    const start = from === undefined ? { fromNone: true } : { fromOffset: from };
    const offsets = { group, offsets: [{ partition, toOffset: String(next), ...start }] };
    const request = { txId: this.txId, producer: this.producer, offsets };
    const reply = await this.log.call(toGroup(group), "OffsetManager", "commitTransactionOffsets", request);
    // A partition of __consumer_offsets takes part, with no records.
    this.part(reply.participant);
  }

  /** Returns when everything can be read. */
  async commit() {
    const manifest = { topics: [...this.written.values()] };
    const request = { txId: this.txId, producer: this.producer, manifest, wait: "WAIT_VISIBLE" };
    return this.log.call(toJournal(this.txId), "Coordinator", "commitTransaction", request);
  }

  /** Drops everything that was sent. */
  async abort() {
    const parts = [...this.written.values()].map(({ topicId, partition }) => ({ topicId, number: partition[0] }));
    const request = { txId: this.txId, producer: this.producer, parts };
    return this.log.call(toJournal(this.txId), "Coordinator", "abortTransaction", request);
  }

  /** What the manifest says of a partition: its columns are parallel. All records are of writer 0. */
  part({ topicId, number = 0 }) {
    const key = keyOf({ topicId, number });
    if (!this.written.has(key)) {
      this.written.set(key, { topicId, partition: [number], writer: ["0"], recordCount: [0] });
    }
    return this.written.get(key);
  }
}

function rowsOf(values) {
  const timestampUs = String(Date.now() * 1000);
  const payload = Rows.serialize({ rows: values.map((value) => ({ value: Buffer.from(value), timestampUs })) });
  return {
    encoding: "ENCODING_ROWS",
    recordCount: values.length,
    crc32c: crc32c(payload),
    maxTimestampUs: timestampUs,
    payload,
  };
}

const CASTAGNOLI = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});

function crc32c(bytes) {
  let crc = ~0;
  for (const byte of bytes) crc = CASTAGNOLI[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}
