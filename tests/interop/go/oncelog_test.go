// What of the example's helper, and of the protos, the example itself does not reach. Built into the
// package of examples/go/oncelog by tests/interop, and run there.
package oncelog

import (
	"bytes"
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	pb "oncelog.example/oncelogpb/v1"
)

// ------------------------------------------------------------------------------- against a real cluster

func cluster(t *testing.T) *Log {
	address := os.Getenv("ONCELOG_BOOTSTRAP")
	if address == "" {
		t.Skip("ONCELOG_BOOTSTRAP says which cluster to test against")
	}
	return Must(Connect(address))
}

// TestOneShot writes to two partitions in one message, and again under the same request number.
func TestOneShot(t *testing.T) {
	l := cluster(t)
	orders, audit := Must(l.Topic("one-shot-orders", 1)), Must(l.Topic("one-shot-audit", 1))
	producer := Must(l.Producer("one-shots"))
	transact := &pb.TransactRequest{
		Producer:      producer.id,
		RequestNumber: 1,
		Batches: []*pb.Batch{
			rowsBatch(orders.partition(0), []string{"third"}),
			rowsBatch(audit.partition(0), []string{"one order"}),
		},
		Wait: pb.Wait_WAIT_VISIBLE,
	}
	var txIDs []uint64
	for range 2 {
		whom := toJournal(producer.id.ProducerId)
		reply := Must(call(l, whom, pb.NewCoordinatorClient, pb.CoordinatorClient.Transact, transact))
		txIDs = append(txIDs, reply.TxId)
		if reply.TxId == 0 || !reply.Visible {
			t.Fatalf("Transact answered %v", reply)
		}
	}
	if txIDs[0] != txIDs[1] {
		t.Fatalf("the repetition is another transaction: %x", txIDs)
	}
	expect(t, Must(l.Read(orders, 0)), "third")
	expect(t, Must(l.Read(audit, 0)), "one order")
}

// TestReasons: an error of a call is a gRPC status, one of a batch a google.rpc.Status beside it; both
// hold an ErrorInfo with the reason.
func TestReasons(t *testing.T) {
	l := cluster(t)
	topic := Must(l.Topic("reasons", 1))
	create := &pb.CreateTopicRequest{Name: "reasons"}
	_, err := call(l, target{}, pb.NewPartitionLeaderClient, pb.PartitionLeaderClient.CreateTopic, create)
	expectReason(t, err, "TOPIC_EXISTS")

	producer := Must(l.Producer("reasons"))
	tx := producer.Begin()
	tx.Send(topic, 0, "in time")
	Must(tx.Commit())
	_, err = tx.Abort()
	if outcome := expectReason(t, err, "TRANSACTION_ENDED").Metadata["outcome"]; outcome != "committed" {
		t.Fatalf("the outcome is %q, not committed", outcome)
	}
	tx.Send(topic, 0, "too late")
	ended := expectReason(t, tx.err, "TRANSACTION_ENDED")
	if shown := strconv.FormatUint(tx.id, 16); !strings.HasSuffix(ended.Metadata["tx_id"], shown) || len(ended.Metadata["tx_id"]) != 16 {
		t.Fatalf("tx_id is %q, not %s with 16 digits", ended.Metadata["tx_id"], shown)
	}

	Must(l.Producer("reasons")) // Another instance of the name.
	expectReason(t, producer.Begin().err, "PRODUCER_FENCED")
}

// TestReadsWhatOthersWrote prints the records of READ_TOPIC, which may be Arrow: the service makes rows
// of them.
func TestReadsWhatOthersWrote(t *testing.T) {
	l := cluster(t)
	for _, value := range Must(l.Read(Must(l.Topic(os.Getenv("READ_TOPIC"), 0)), 0)) {
		os.Stdout.WriteString("value " + value + "\n")
	}
}

// ----------------------------------------------------------------------- against services that misbehave

// services answers GetMetadata with itself, and BeginTransaction with one answer after the other.
type services struct {
	pb.UnimplementedClusterServer
	pb.UnimplementedCoordinatorServer
	leader  *pb.Leader
	answers []error
	asked   []*pb.BeginTransactionRequest
}

func (s *services) GetMetadata(_ context.Context, asked *pb.GetMetadataRequest) (*pb.GetMetadataReply, error) {
	reply := &pb.GetMetadataReply{}
	for _, number := range asked.JournalPartitions {
		route := &pb.Route{Partition: &pb.Partition{Number: number}, Leader: s.leader}
		reply.JournalPartitions = append(reply.JournalPartitions, route)
	}
	return reply, nil
}

func (s *services) BeginTransaction(_ context.Context, request *pb.BeginTransactionRequest) (*pb.BeginTransactionReply, error) {
	s.asked = append(s.asked, request)
	if len(s.asked) <= len(s.answers) && s.answers[len(s.asked)-1] != nil {
		return nil, s.answers[len(s.asked)-1]
	}
	large := bytes.Repeat([]byte("x"), 5<<20) // In a field that nobody knows: above what a stock client takes.
	reply := &pb.BeginTransactionReply{Result: pb.BeginTransactionReply_RESULT_OPEN, TxId: 7}
	reply.ProtoReflect().SetUnknown(append([]byte{0xfa, 0x01, 0x80, 0x80, 0xc0, 0x02}, large...))
	return reply, nil
}

// serve starts them on a free port, which is that of the leader unless it has one.
func serve(t *testing.T, s *services) *Producer {
	listener := Must(net.Listen("tcp", "127.0.0.1:0"))
	server := grpc.NewServer()
	pb.RegisterClusterServer(server, s)
	pb.RegisterCoordinatorServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	port := listener.Addr().(*net.TCPAddr).Port
	if s.leader == nil {
		s.leader = &pb.Leader{Endpoint: &pb.Endpoint{Host: "127.0.0.1", Port: uint32(port)}}
	}
	return &Producer{log: Must(Connect(listener.Addr().String())), id: &pb.Producer{ProducerId: 1, Generation: 1}}
}

var transportFailed = status.Error(codes.Unavailable, "connection reset")

func TestALostAnswerIsAskedForAgainUnderTheSameRequest(t *testing.T) {
	s := &services{answers: []error{transportFailed, status.Error(codes.DeadlineExceeded, "too late"), nil}}
	tx := serve(t, s).Begin()
	if tx.err != nil || tx.id != 7 || len(s.asked) != 3 {
		t.Fatalf("%v after %d attempts", tx.err, len(s.asked))
	}
	for _, request := range s.asked {
		if request.RequestId != 1 {
			t.Fatalf("request id %d in a repetition", request.RequestId)
		}
	}
}

func TestANoAfterALostAnswerProvesNothingUnlessItIsAFact(t *testing.T) {
	for reason, told := range map[string]string{
		"PRODUCER_FENCED": "UNKNOWN_OUTCOME", "PERMISSION_DENIED": "UNKNOWN_OUTCOME",
		"TRANSACTION_ENDED": "TRANSACTION_ENDED", "PRODUCER_MISMATCH": "PRODUCER_MISMATCH",
	} {
		no := reasonStatus(codes.PermissionDenied, reason, nil)
		expectReason(t, serve(t, &services{answers: []error{no}}).Begin().err, reason)
		expectReason(t, serve(t, &services{answers: []error{transportFailed, no}}).Begin().err, told)
		// The doubt stays, whatever comes between.
		later := &services{answers: []error{transportFailed, reasonStatus(codes.Unavailable, "LOADING", nil), no}}
		expectReason(t, serve(t, later).Begin().err, told)
	}
}

func TestAFinalRefusalIsNotRepeated(t *testing.T) {
	s := &services{answers: []error{reasonStatus(codes.PermissionDenied, "PRODUCER_FENCED", nil)}}
	expectReason(t, serve(t, s).Begin().err, "PRODUCER_FENCED")
	if len(s.asked) != 1 {
		t.Fatalf("%d attempts", len(s.asked))
	}
}

func TestAnotherLeaderThatIsNamedIsAskedAtOnce(t *testing.T) {
	there := &services{}
	_ = serve(t, there)
	named := map[string]string{"leader_host": "127.0.0.1", "leader_port": strconv.Itoa(int(there.leader.Endpoint.Port))}
	here := &services{answers: []error{reasonStatus(codes.Unavailable, "NOT_LEADER", named)}}
	if tx := serve(t, here).Begin(); tx.err != nil || len(here.asked) != 1 || len(there.asked) != 1 {
		t.Fatalf("%v; %d attempts here, %d there", tx.err, len(here.asked), len(there.asked))
	}
}

func TestWhatIsRetriableIsTriedAgain(t *testing.T) {
	for reason := range retriable {
		s := &services{answers: []error{reasonStatus(codes.Unavailable, reason, map[string]string{"retry_after_ms": "1"})}}
		if tx := serve(t, s).Begin(); tx.err != nil || len(s.asked) != 2 {
			t.Fatalf("%s: %v after %d attempts", reason, tx.err, len(s.asked))
		}
	}
}

// --------------------------------------------------------------------------------------------- pieces

func reasonStatus(code codes.Code, reason string, metadata map[string]string) error {
	info := Must(anypb.New(&errdetails.ErrorInfo{Reason: reason, Domain: "oncelog", Metadata: metadata}))
	return status.ErrorProto(&rpcstatus.Status{Code: int32(code), Message: "why", Details: []*anypb.Any{info}})
}

func expect(t *testing.T, found []string, wanted ...string) {
	t.Helper()
	if strings.Join(found, "|") != strings.Join(wanted, "|") {
		t.Fatalf("read %q, not %q", found, wanted)
	}
}

func expectReason(t *testing.T, err error, reason string) *Error {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, not %s", reason)
	}
	told := reasonOf(err)
	if told.Reason != reason {
		t.Fatalf("%v, not %s", told, reason)
	}
	return told
}
