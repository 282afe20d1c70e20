// Package oncelog is the thin part that a client of Oncelog needs beside the generated stubs: who
// leads what, what may be repeated, and why something was refused. docs/clients.md explains each step.
//
// It is an example, to be copied and grown: unary calls, one goroutine, connections in plain text.
package oncelog

import (
	"context"
	"errors"
	"log"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "oncelog.example/oncelogpb/v1"
)

const (
	messageBytesMax = 32 << 20        // A stock client takes 4 MiB; a reply may have 32.
	firstContact    = 3 * time.Second // Later calls wait longer: for who restarts, not for a wrong address.
	attemptTimeout  = 5 * time.Second
	callTimeout     = 60 * time.Second
	pauseFirst      = 20 * time.Millisecond
	pauseMax        = time.Second
)

// Stock values wait up to two minutes before they try a process that restarted, and 20 s for one that
// is stopped, not dead.
var connectParams = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 2 * time.Second,
}

// ------------------------------------------------------------------------------------------ errors

// Error says why a call was refused; docs/clients.md has a table of the reasons.
type Error struct {
	Reason, Message string
	Metadata        map[string]string
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Nothing happened, and the same call may succeed later or elsewhere.
var retriable = map[string]bool{
	"NOT_LEADER": true, "LOADING": true, "UNAVAILABLE": true, "THROTTLED": true, "DISK_FULL": true,
	"NOT_ENOUGH_REPLICAS": true, "PENDING_TRANSACTION": true, "CONCURRENT_TRANSACTION": true,
}

// A no that follows a lost answer says nothing of what became of the lost one, but for these: a
// transaction has one outcome for ever, and one owner. docs/clients.md knows more, call by call.
var facts = map[string]bool{"TRANSACTION_ENDED": true, "PRODUCER_MISMATCH": true}

// reasonOf reads the ErrorInfo of a status. One without ours promises nothing, whatever its code.
func reasonOf(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	told := status.Convert(err)
	for _, detail := range told.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "oncelog" {
			return &Error{info.Reason, told.Message(), info.Metadata}
		}
	}
	return &Error{"UNKNOWN_OUTCOME", told.Code().String() + ": " + told.Message(), nil}
}

// Must ends the program where there is an error.
func Must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// ------------------------------------------------------------------------------------ who leads what

// Log is a connection to a cluster.
type Log struct {
	known   []string // Addresses to ask: those that were given, then whoever was seen.
	conns   map[string]*grpc.ClientConn
	leaders map[target]string
}

// target is what somebody leads; only one of its fields is set, none for any partition leader.
type target struct {
	transactionGroup, consumerGroup string
	journal                         int // Partition of the transaction journal, plus one.
	topicID                         string
	partition                       uint32
}

// toJournal is for whatever has this producer id or TxId: the top 16 bits say whose it is.
func toJournal(id uint64) target { return target{journal: int(id>>48) + 1} }

func toPartition(p *pb.Partition) target {
	return target{topicID: string(p.TopicId), partition: p.Number}
}

// Connect takes HOST:PORT[,HOST:PORT] of any processes of the cluster. It fails with UNAVAILABLE where
// none of them answers within firstContact.
func Connect(addresses string) (*Log, error) {
	l := &Log{strings.Split(addresses, ","), map[string]*grpc.ClientConn{}, map[target]string{}}
	end := time.Now().Add(firstContact)
	for pause := pauseFirst; time.Now().Before(end); pause = min(2*pause, pauseMax) {
		for _, address := range l.known {
			ctx, cancel := context.WithTimeout(context.Background(), firstContact)
			err := l.ask(ctx, address, target{})
			cancel()
			if err == nil {
				return l, nil
			} else if failure := reasonOf(err); failure.Reason != "UNKNOWN_OUTCOME" && !retriable[failure.Reason] {
				return nil, failure
			}
		}
		time.Sleep(pause)
	}
	return nil, &Error{"UNAVAILABLE", "no process of Oncelog answers at " + addresses +
		": check the address, that one is started there, and that it takes plain text, not TLS", nil}
}

func (l *Log) conn(address string) *grpc.ClientConn {
	if l.conns[address] == nil {
		l.conns[address] = Must(grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)),
			grpc.WithConnectParams(connectParams)))
	}
	return l.conns[address]
}

// leaderOf asks one known process after the other. It fails with UNAVAILABLE: nothing was sent.
func (l *Log) leaderOf(ctx context.Context, whom target) (string, error) {
	why := "nobody leads it now"
	for _, address := range l.known {
		if leader := l.leaders[whom]; leader != "" {
			return leader, nil
		}
		if err := l.ask(ctx, address, whom); err != nil {
			why = address + ": " + reasonOf(err).Message
		}
	}
	if leader := l.leaders[whom]; leader != "" {
		return leader, nil
	}
	return "", &Error{"UNAVAILABLE", why, nil}
}

// ask learns what one process knows of a target.
func (l *Log) ask(ctx context.Context, address string, whom target) error {
	reply, err := pb.NewClusterClient(l.conn(address)).GetMetadata(ctx, question(whom))
	if err == nil {
		l.learn(reply)
	}
	return err
}

func question(whom target) *pb.GetMetadataRequest {
	switch {
	case whom.transactionGroup != "":
		return &pb.GetMetadataRequest{TransactionGroups: []string{whom.transactionGroup}}
	case whom.consumerGroup != "":
		return &pb.GetMetadataRequest{ConsumerGroups: []string{whom.consumerGroup}}
	case whom.journal != 0:
		return &pb.GetMetadataRequest{JournalPartitions: []uint32{uint32(whom.journal - 1)}}
	case whom.topicID != "":
		return &pb.GetMetadataRequest{TopicIds: [][]byte{[]byte(whom.topicID)}}
	}
	return &pb.GetMetadataRequest{}
}

func (l *Log) learn(reply *pb.GetMetadataReply) {
	for _, node := range reply.Nodes {
		address := net.JoinHostPort(node.Endpoint.Host, strconv.Itoa(int(node.Endpoint.Port)))
		if !strings.Contains(strings.Join(l.known, ",")+",", address+",") {
			l.known = append(l.known, address)
		}
		if strings.Contains(strings.Join(node.Roles, ","), "partition_leader") {
			l.leaders[target{}] = address
		}
	}
	for _, route := range reply.TransactionGroups {
		l.keep(target{transactionGroup: route.Group}, route.Leader)
	}
	for _, route := range reply.ConsumerGroups {
		l.keep(target{consumerGroup: route.Group}, route.Leader)
	}
	for _, route := range reply.JournalPartitions {
		l.keep(target{journal: int(route.Partition.Number) + 1}, route.Leader)
	}
	for _, topic := range reply.Topics {
		for _, p := range topic.Partitions {
			l.keep(target{topicID: string(topic.TopicId), partition: p.Number}, p.Leader)
		}
	}
}

// keep remembers a leader; absent, there is none now.
func (l *Log) keep(whom target, leader *pb.Leader) {
	if leader != nil {
		l.leaders[whom] = net.JoinHostPort(leader.Endpoint.Host, strconv.Itoa(int(leader.Endpoint.Port)))
	}
}

// ------------------------------------------------------------------------------------------- retries

// stub is one RPC: pb.CoordinatorClient.BeginTransaction is one.
type stub[Client, Request, Reply any] func(Client, context.Context, Request, ...grpc.CallOption) (Reply, error)

// call makes a call that may be repeated, until it is answered for good or callTimeout is over.
func call[Client, Request, Reply any](
	l *Log, whom target, client func(grpc.ClientConnInterface) Client, method stub[Client, Request, Reply], request Request,
) (Reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	lost := "" // How the answer to an attempt was lost, if one was.
	for pause := pauseFirst; ; pause = min(2*pause, pauseMax) {
		reply, err := attempt(ctx, l, whom, client, method, request)
		if err == nil {
			return reply, nil
		}
		failure := reasonOf(err)
		if failure.Reason == "UNKNOWN_OUTCOME" {
			lost = failure.Message
		}
		if ctx.Err() != nil || failure.Reason != "UNKNOWN_OUTCOME" && !retriable[failure.Reason] {
			if lost != "" && !facts[failure.Reason] {
				failure = &Error{"UNKNOWN_OUTCOME", lost + "; then " + failure.Error(), failure.Metadata}
			}
			return reply, failure
		}
		delete(l.leaders, whom)
		if host := failure.Metadata["leader_host"]; host != "" {
			l.leaders[whom] = net.JoinHostPort(host, failure.Metadata["leader_port"])
		}
		if wait, err := strconv.Atoi(failure.Metadata["retry_after_ms"]); err == nil {
			pause = time.Duration(wait) * time.Millisecond
		}
		time.Sleep(pause)
	}
}

func attempt[Client, Request, Reply any](
	ctx context.Context, l *Log, whom target, client func(grpc.ClientConnInterface) Client, method stub[Client, Request, Reply], request Request,
) (reply Reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	address, err := l.leaderOf(ctx, whom)
	if err != nil {
		return reply, err
	}
	return method(client(l.conn(address)), ctx, request)
}
