// A client of Oncelog in another language, made from nothing but the protos and gRPC. It is what a
// newcomer with Go would write: unary calls, rows instead of Arrow, no library of ours.
//
//	interop HOST:PORT[,HOST:PORT] READ_TOPIC
//
// It creates two topics, writes to both in one transaction, writes to both again in one Transact,
// reads both back as READ_COMMITTED, provokes errors and reads their reasons, and then prints as
// rows what somebody else wrote to READ_TOPIC, maybe as Arrow. Each step prints one line; the first
// thing that is not as the protos say ends the program with a message and exit code 1.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "oncelog.example/interop/oncelogpb"
)

const (
	deadline    = 30 * time.Second
	leaderPause = 20 * time.Millisecond
)

func main() {
	if len(os.Args) != 3 {
		fail("usage: interop HOST:PORT[,HOST:PORT] READ_TOPIC")
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client := connect(ctx, strings.Split(os.Args[1], ",")[0])
	orders := client.createTopic("go-orders")
	audit := client.createTopic("go-audit")
	fmt.Println("topics created")

	producer := client.initProducer("go-app")
	txID := client.transaction(producer, orders, audit)
	expect(client.read(orders), "first", "second")
	expect(client.read(audit), "two orders")
	fmt.Println("transaction committed and read")

	client.transact(producer, orders, audit)
	expect(client.read(orders), "first", "second", "third")
	expect(client.read(audit), "two orders", "one order")
	fmt.Println("one-shot committed and read")

	client.refusals(producer, txID, orders)
	fmt.Println("errors have their reasons")

	topics, err := client.leader.DescribeTopics(ctx, &pb.DescribeTopicsRequest{Names: os.Args[2:]})
	must(err)
	for number := range topics.Topics[0].Partitions {
		where := &pb.Partition{TopicId: topics.Topics[0].TopicId, Number: uint32(number)}
		for _, value := range client.read(where) {
			fmt.Println("value " + value)
		}
	}
}

// ------------------------------------------------------------------------------------- finding who

// client knows the process of each role. A real one asks again after NOT_LEADER.
type client struct {
	ctx         context.Context
	coordinator pb.CoordinatorClient
	leader      pb.PartitionLeaderClient
}

// connect asks any process for the whole cluster.
func connect(ctx context.Context, address string) *client {
	metadata, err := pb.NewClusterClient(dial(address)).GetMetadata(ctx, &pb.GetMetadataRequest{})
	must(err)
	byRole := map[string]*grpc.ClientConn{}
	for _, node := range metadata.Nodes {
		port := strconv.Itoa(int(node.Endpoint.Port))
		conn := dial(net.JoinHostPort(node.Endpoint.Host, port))
		for _, role := range node.Roles {
			byRole[role] = conn
		}
	}
	return &client{
		ctx:         ctx,
		coordinator: pb.NewCoordinatorClient(byRole["coordinator"]),
		leader:      pb.NewPartitionLeaderClient(byRole["partition_leader"]),
	}
}

func dial(address string) *grpc.ClientConn {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	must(err)
	return conn
}

// ------------------------------------------------------------------------------------------- steps

// createTopic returns its only partition, once that has a leader.
func (c *client) createTopic(name string) *pb.Partition {
	_, err := c.leader.CreateTopic(c.ctx, &pb.CreateTopicRequest{Name: name, Partitions: 1})
	must(err)
	for {
		reply, err := c.leader.DescribeTopics(c.ctx, &pb.DescribeTopicsRequest{Names: []string{name}})
		must(err)
		if reply.Topics[0].Partitions[0].Leader != nil {
			return &pb.Partition{TopicId: reply.Topics[0].TopicId}
		}
		time.Sleep(leaderPause)
	}
}

func (c *client) initProducer(name string) *pb.Producer {
	instance := make([]byte, 16)
	_, err := rand.Read(instance)
	must(err)
	reply, err := c.coordinator.InitProducer(c.ctx, &pb.InitProducerRequest{Name: name, InstanceId: instance})
	must(err)
	return reply.Producer
}

// transaction is Begin, Produce, Commit. Nothing of it can be seen before the commit.
func (c *client) transaction(producer *pb.Producer, orders, audit *pb.Partition) uint64 {
	begun, err := c.coordinator.BeginTransaction(c.ctx, &pb.BeginTransactionRequest{Producer: producer, RequestId: 1})
	must(err)
	if begun.Result != pb.BeginTransactionReply_RESULT_OPEN {
		fail("BeginTransaction answered %v", begun.Result)
	}
	c.produce(begun.TxId, producer, batch(orders, "first", "second"), batch(audit, "two orders"))
	expect(c.read(orders))
	committed, err := c.coordinator.CommitTransaction(c.ctx, &pb.CommitTransactionRequest{
		TxId:     begun.TxId,
		Producer: producer,
		Manifest: &pb.Manifest{Topics: []*pb.Manifest_Topic{part(orders, 2), part(audit, 1)}},
		Wait:     pb.Wait_WAIT_VISIBLE,
	})
	must(err)
	if !committed.Visible || len(committed.Exposed) != 2 {
		fail("CommitTransaction answered %v", committed)
	}
	return begun.TxId
}

func (c *client) produce(txID uint64, producer *pb.Producer, batches ...*pb.Batch) {
	reply, err := c.leader.Produce(c.ctx, &pb.ProduceRequest{TxId: txID, Producer: producer, Batches: batches})
	must(err)
	for _, result := range reply.Results {
		if result.Error != nil {
			fail("a batch was refused: %v", result.Error)
		}
	}
}

// transact is the same in one message.
func (c *client) transact(producer *pb.Producer, orders, audit *pb.Partition) {
	reply, err := c.coordinator.Transact(c.ctx, &pb.TransactRequest{
		Producer:      producer,
		RequestNumber: 1,
		Batches:       []*pb.Batch{batch(orders, "third"), batch(audit, "one order")},
		Wait:          pb.Wait_WAIT_VISIBLE,
	})
	must(err)
	if reply.TxId == 0 || !reply.Visible {
		fail("Transact answered %v", reply)
	}
}

// read gives all values of a partition, as rows and in commit order.
func (c *client) read(partition *pb.Partition) []string {
	var values []string
	for offset := uint64(0); ; {
		reply, err := c.leader.Fetch(c.ctx, &pb.FetchRequest{
			Partitions: []*pb.FetchPartition{{Partition: partition, Offset: offset}},
			Isolation:  pb.Isolation_ISOLATION_COMMITTED,
			Format:     pb.Format_FORMAT_ROWS,
		})
		must(err)
		found := reply.Partitions[0]
		if found.Error != nil {
			fail("Fetch: %v", found.Error)
		}
		for _, fetched := range found.Batches {
			if checksum(fetched.Payload) != fetched.Crc32C {
				fail("a batch does not match its CRC32C")
			}
			var rows pb.Rows
			must(proto.Unmarshal(fetched.Payload, &rows))
			for _, row := range rows.Rows {
				values = append(values, string(row.Value))
			}
			offset = fetched.FirstOffset + uint64(fetched.RecordCount)
		}
		if offset >= found.EndOffset {
			return values
		}
	}
}

// refusals: an error of a call is a gRPC status, one of a batch a google.rpc.Status beside it; both
// hold an ErrorInfo with the reason.
func (c *client) refusals(producer *pb.Producer, ended uint64, orders *pb.Partition) {
	_, err := c.leader.CreateTopic(c.ctx, &pb.CreateTopicRequest{Name: "go-orders"})
	call := status.Convert(err)
	expectReason(call.Proto(), codes.AlreadyExists, "TOPIC_EXISTS")

	_, err = c.coordinator.AbortTransaction(c.ctx, &pb.AbortTransactionRequest{TxId: ended, Producer: producer})
	info := expectReason(status.Convert(err).Proto(), codes.Aborted, "TRANSACTION_ENDED")
	if info.Metadata["outcome"] != "committed" {
		fail("the outcome is %q, not committed", info.Metadata["outcome"])
	}

	reply, err := c.leader.Produce(c.ctx, &pb.ProduceRequest{
		TxId: ended, Producer: producer, Batches: []*pb.Batch{batch(orders, "too late")},
	})
	must(err)
	expectReason(reply.Results[0].Error, codes.Aborted, "TRANSACTION_ENDED")
}

// ------------------------------------------------------------------------------------------ pieces

func batch(partition *pb.Partition, values ...string) *pb.Batch {
	now := time.Now().UnixMicro()
	rows := &pb.Rows{}
	for _, value := range values {
		rows.Rows = append(rows.Rows, &pb.Row{Value: []byte(value), TimestampUs: now})
	}
	payload, err := proto.Marshal(rows)
	must(err)
	return &pb.Batch{
		Partition:      partition,
		Encoding:       pb.Encoding_ENCODING_ROWS,
		RecordCount:    uint32(len(values)),
		Crc32C:         checksum(payload),
		MaxTimestampUs: now,
		Payload:        payload,
	}
}

func part(partition *pb.Partition, records uint64) *pb.Manifest_Topic {
	return &pb.Manifest_Topic{
		TopicId:     partition.TopicId,
		Partition:   []uint32{partition.Number},
		Writer:      []uint64{0},
		RecordCount: []uint64{records},
	}
}

func checksum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

func expect(found []string, wanted ...string) {
	if strings.Join(found, "|") != strings.Join(wanted, "|") {
		fail("read %q, not %q", found, wanted)
	}
}

func expectReason(got *rpcstatus.Status, code codes.Code, reason string) *errdetails.ErrorInfo {
	if got == nil || got.Code != int32(code) {
		fail("status %v, not %v", got, code)
	}
	for _, detail := range got.Details {
		var info errdetails.ErrorInfo
		if detail.UnmarshalTo(&info) == nil && info.Domain == "oncelog" && info.Reason == reason {
			return &info
		}
	}
	fail("no ErrorInfo with reason %s in %v", reason, got)
	return nil
}

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(1)
}
