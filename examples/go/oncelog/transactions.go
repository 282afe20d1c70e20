package oncelog

import (
	"context"
	"crypto/rand"
	"errors"
	"hash/crc32"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "oncelog.example/oncelogpb/v1"
)

// -------------------------------------------------------------------------------------------- topics

// Topic is the id of a topic: one that is created again under the same name is another.
type Topic []byte

func (t Topic) partition(number uint32) *pb.Partition {
	return &pb.Partition{TopicId: t, Number: number}
}

// Topic creates a topic, unless there is one of that name.
func (l *Log) Topic(name string, partitions uint32) (Topic, error) {
	create := &pb.CreateTopicRequest{Name: name, Partitions: partitions}
	created, err := call(l, target{}, pb.NewPartitionLeaderClient, pb.PartitionLeaderClient.CreateTopic, create)
	if err == nil {
		return created.Topic.TopicId, nil
	}
	if reason := reasonOf(err).Reason; reason != "TOPIC_EXISTS" && reason != "UNKNOWN_OUTCOME" {
		return nil, err
	}
	// Somebody else's, or ours whose answer was lost: a creation has no request id to know it by.
	describe := &pb.DescribeTopicsRequest{Names: []string{name}}
	found, err := call(l, target{}, pb.NewPartitionLeaderClient, pb.PartitionLeaderClient.DescribeTopics, describe)
	if err != nil {
		return nil, err
	}
	return found.Topics[0].TopicId, nil
}

// ------------------------------------------------------------------------------------------- reading

// Read gives the committed values of a partition, in commit order.
func (l *Log) Read(topic Topic, number uint32) ([]string, error) {
	values, _, err := l.readFrom(topic.partition(number), 0)
	return values, err
}

// Input is what a consumer group has not consumed yet.
type Input struct {
	Values []string

	group     string
	partition *pb.Partition
	from      *uint64 // Where the group stands; nil: it never committed a position.
	next      uint64
}

// Unread reads from where the group stands to the end.
func (l *Log) Unread(group string, topic Topic, number uint32) (Input, error) {
	input := Input{group: group, partition: topic.partition(number)}
	// Stable: PENDING_TRANSACTION while a transaction is about to move the position.
	request := &pb.FetchOffsetsRequest{Group: group, Partitions: []*pb.Partition{input.partition}, Stable: true}
	whom := target{consumerGroup: group}
	reply, err := call(l, whom, pb.NewOffsetManagerClient, pb.OffsetManagerClient.FetchOffsets, request)
	if err != nil {
		return input, err
	}
	input.from = reply.Offsets[0].Offset
	input.Values, input.next, err = l.readFrom(input.partition, reply.Offsets[0].GetOffset())
	return input, err
}

func (l *Log) readFrom(partition *pb.Partition, offset uint64) (values []string, next uint64, err error) {
	for {
		request := &pb.FetchRequest{
			Partitions: []*pb.FetchPartition{{Partition: partition, Offset: offset}},
			Isolation:  pb.Isolation_ISOLATION_COMMITTED,
			Format:     pb.Format_FORMAT_ROWS,
		}
		reply, err := call(l, toPartition(partition), pb.NewPartitionLeaderClient, fetch, request)
		if err != nil {
			return nil, 0, err
		}
		found := reply.Partitions[0]
		for _, batch := range found.Batches {
			var rows pb.Rows
			if checksum(batch.Payload) != batch.Crc32C {
				return nil, 0, errors.New("a batch does not match its checksum")
			} else if err := proto.Unmarshal(batch.Payload, &rows); err != nil {
				return nil, 0, err
			}
			for i, row := range rows.Rows {
				// Batches are not cut: the first may begin before the offset that was asked for.
				if batch.FirstOffset+uint64(i) >= offset {
					values = append(values, string(row.Value))
				}
			}
			offset = batch.FirstOffset + uint64(batch.RecordCount)
		}
		if offset >= found.EndOffset {
			return values, offset, nil
		}
	}
}

// fetch is Fetch with the error of its one partition, which stands in the reply, as its own.
func fetch(client pb.PartitionLeaderClient, ctx context.Context, request *pb.FetchRequest, options ...grpc.CallOption) (*pb.FetchReply, error) {
	reply, err := client.Fetch(ctx, request, options...)
	if err == nil {
		err = status.ErrorProto(reply.Partitions[0].Error)
	}
	return reply, err
}

// -------------------------------------------------------------------------------------- transactions

// Producer writes transactions, one after the other.
type Producer struct {
	log       *Log
	id        *pb.Producer
	requestID uint64
}

// Producer registers a producer, and fences whoever held this name before.
func (l *Log) Producer(name string) (*Producer, error) {
	instance := make([]byte, 16)
	if _, err := rand.Read(instance); err != nil {
		return nil, err
	}
	// The instance id is the same in each attempt: a repetition gets the same generation.
	request := &pb.InitProducerRequest{Name: name, InstanceId: instance}
	whom := target{transactionGroup: name}
	reply, err := call(l, whom, pb.NewCoordinatorClient, pb.CoordinatorClient.InitProducer, request)
	if err != nil {
		return nil, err
	}
	return &Producer{log: l, id: reply.Producer}, nil
}

// Tx is a transaction. Its first error is kept for its end, and Commit then aborts it.
type Tx struct {
	producer *Producer
	id       uint64
	written  map[target]*pb.Manifest_Topic // One part for each partition that takes part.
	err      error
}

// Begin opens a transaction.
func (p *Producer) Begin() *Tx {
	p.requestID++
	request := &pb.BeginTransactionRequest{Producer: p.id, RequestId: p.requestID}
	reply, err := call(p.log, toJournal(p.id.ProducerId), pb.NewCoordinatorClient, pb.CoordinatorClient.BeginTransaction, request)
	if err == nil && reply.Result != pb.BeginTransactionReply_RESULT_OPEN {
		err = &Error{"TRANSACTION_ENDED", "it ended before it was used: " + reply.Cause.String(), nil}
	}
	return &Tx{producer: p, id: reply.GetTxId(), written: map[target]*pb.Manifest_Topic{}, err: err}
}

// Send writes records to a partition. Nobody sees them before the commit.
func (tx *Tx) Send(topic Topic, number uint32, values ...string) {
	if tx.err != nil {
		return
	}
	partition := topic.partition(number)
	part := tx.part(partition)
	batch := rowsBatch(partition, values)
	// Sequences count records. By its sequence a repeated batch is known, and not stored twice.
	batch.BaseSequence = part.RecordCount[0]
	request := &pb.ProduceRequest{TxId: tx.id, Producer: tx.producer.id, Batches: []*pb.Batch{batch}}
	_, tx.err = call(tx.producer.log, toPartition(partition), pb.NewPartitionLeaderClient, produce, request)
	part.RecordCount[0] += uint64(len(values))
}

// Consumed moves the position of the input's consumer group with the transaction.
func (tx *Tx) Consumed(input Input) {
	if tx.err != nil {
		return
	}
	commit := &pb.OffsetCommit{Partition: input.partition, ToOffset: input.next}
	if input.from == nil {
		commit.From = &pb.OffsetCommit_FromNone{FromNone: true}
	} else {
		commit.From = &pb.OffsetCommit_FromOffset{FromOffset: *input.from}
	}
	request := &pb.CommitTransactionOffsetsRequest{
		TxId: tx.id, Producer: tx.producer.id,
		Offsets: &pb.GroupOffsets{Group: input.group, Offsets: []*pb.OffsetCommit{commit}},
	}
	whom := target{consumerGroup: input.group}
	reply, err := call(tx.producer.log, whom, pb.NewOffsetManagerClient, pb.OffsetManagerClient.CommitTransactionOffsets, request)
	if tx.err = err; err == nil {
		// A partition of __consumer_offsets takes part, with no records.
		tx.part(reply.Participant)
	}
}

// Commit returns when everything can be read.
func (tx *Tx) Commit() (*pb.CommitTransactionReply, error) {
	if tx.err != nil {
		tx.Abort()
		return nil, tx.err
	}
	manifest := &pb.Manifest{}
	for _, part := range tx.written {
		manifest.Topics = append(manifest.Topics, part)
	}
	request := &pb.CommitTransactionRequest{TxId: tx.id, Producer: tx.producer.id, Manifest: manifest, Wait: pb.Wait_WAIT_VISIBLE}
	return call(tx.producer.log, toJournal(tx.id), pb.NewCoordinatorClient, pb.CoordinatorClient.CommitTransaction, request)
}

// Abort drops everything that was sent.
func (tx *Tx) Abort() (*pb.AbortTransactionReply, error) {
	if tx.id == 0 {
		return nil, tx.err
	}
	request := &pb.AbortTransactionRequest{TxId: tx.id, Producer: tx.producer.id}
	for _, part := range tx.written {
		request.Parts = append(request.Parts, &pb.Partition{TopicId: part.TopicId, Number: part.Partition[0]})
	}
	return call(tx.producer.log, toJournal(tx.id), pb.NewCoordinatorClient, pb.CoordinatorClient.AbortTransaction, request)
}

// part is what the manifest says of a partition; all records are of writer 0.
func (tx *Tx) part(partition *pb.Partition) *pb.Manifest_Topic {
	whom := toPartition(partition)
	if tx.written[whom] == nil {
		tx.written[whom] = &pb.Manifest_Topic{
			TopicId: partition.TopicId, Partition: []uint32{partition.Number}, Writer: []uint64{0}, RecordCount: []uint64{0},
		}
	}
	return tx.written[whom]
}

// produce is Produce with the error of its one batch, which stands in the reply, as its own.
func produce(client pb.PartitionLeaderClient, ctx context.Context, request *pb.ProduceRequest, options ...grpc.CallOption) (*pb.ProduceReply, error) {
	reply, err := client.Produce(ctx, request, options...)
	if err == nil {
		err = status.ErrorProto(reply.Results[0].Error)
	}
	return reply, err
}

func rowsBatch(partition *pb.Partition, values []string) *pb.Batch {
	rows, now := &pb.Rows{}, time.Now().UnixMicro()
	for _, value := range values {
		rows.Rows = append(rows.Rows, &pb.Row{Value: []byte(value), TimestampUs: now})
	}
	payload := Must(proto.Marshal(rows))
	return &pb.Batch{
		Partition: partition, Encoding: pb.Encoding_ENCODING_ROWS, RecordCount: uint32(len(values)),
		Crc32C: checksum(payload), MaxTimestampUs: now, Payload: payload,
	}
}

func checksum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}
