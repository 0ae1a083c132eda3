package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

type message struct {
	Value          *string           `json:"value"`
	Typed          *typed            `json:"typed"`
	Key            string            `json:"key"`
	OrderingKey    string            `json:"ordering_key"`
	Properties     map[string]string `json:"properties"`
	EventTime      int64             `json:"event_time"`
	SequenceID     *int64            `json:"sequence_id"`
	DeliverAt      int64             `json:"deliver_at"`
	DeliverAfterMs int64             `json:"deliver_after_ms"`
}

var codecs = map[string]pulsar.CompressionType{
	"": pulsar.NoCompression, "none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib,
	"zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
}

var accesses = map[string]pulsar.ProducerAccessMode{
	"": pulsar.ProducerAccessModeShared, "Shared": pulsar.ProducerAccessModeShared,
	"Exclusive":        pulsar.ProducerAccessModeExclusive,
	"WaitForExclusive": pulsar.ProducerAccessModeWaitForExclusive,
}

func (kept *driver) producer(given *call) (any, error) {
	schema, err := given.Schema.schema()
	if err != nil {
		return nil, err
	}
	options := pulsar.ProducerOptions{
		Topic:                   given.Topic,
		Name:                    given.ProducerName,
		Schema:                  schema,
		DisableBatching:         !given.IsBatched,
		BatchingMaxPublishDelay: 20 * time.Millisecond,
		BatchingMaxMessages:     given.BatchMessages,
		EnableChunking:          given.IsChunking,
		CompressionType:         codecs[given.Compression],
		ProducerAccessMode:      accesses[given.Access],
		SendTimeout:             time.Duration(given.SendTimeoutMs) * time.Millisecond,
	}
	if given.BatchDelayMs > 0 {
		options.BatchingMaxPublishDelay = time.Duration(given.BatchDelayMs) * time.Millisecond
	}
	if given.IsByKey {
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	if given.PublicKey != "" {
		options.Encryption = &pulsar.ProducerEncryptionInfo{
			KeyReader: crypto.NewFileKeyReader(given.PublicKey, ""), Keys: []string{"k"},
		}
	}
	producer, err := named[pulsar.Client](kept, given.Client).CreateProducer(options)
	if err != nil {
		return nil, err
	}
	return map[string]any{"number": kept.keep(producer), "name": producer.Name()}, nil
}

// send hands all of them over, then waits for the receipt of each.
func (kept *driver) send(given *call) (any, error) {
	producer := named[pulsar.Producer](kept, given.Producer)
	var messages []message
	if err := json.Unmarshal(given.Messages, &messages); err != nil {
		return nil, err
	}
	type receipt struct {
		place int
		id    pulsar.MessageID
		err   error
	}
	receipts := make(chan receipt, len(messages))
	for place, each := range messages {
		sent, err := each.made()
		if err != nil {
			return nil, err
		}
		sent.Transaction = kept.transaction(given)
		place := place
		told := func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			receipts <- receipt{place, id, err}
		}
		producer.SendAsync(context.Background(), sent, told)
	}
	if err := producer.Flush(); err != nil {
		return nil, err
	}
	ids := make([]any, len(messages))
	for range messages {
		select {
		case each := <-receipts:
			if each.err != nil {
				return nil, each.err
			}
			ids[each.place] = showID(each.id)
		case <-time.After(30 * time.Second):
			return nil, fmt.Errorf("no receipt within 30 s")
		}
	}
	return ids, nil
}

func (given *message) made() (*pulsar.ProducerMessage, error) {
	made := &pulsar.ProducerMessage{
		Key: given.Key, Properties: given.Properties, SequenceID: given.SequenceID,
		DeliverAfter: time.Duration(given.DeliverAfterMs) * time.Millisecond,
	}
	if given.OrderingKey != "" {
		ordering, err := decoded(given.OrderingKey)
		if err != nil {
			return nil, err
		}
		made.OrderingKey = string(ordering)
	}
	if given.EventTime != 0 {
		made.EventTime = time.UnixMilli(given.EventTime)
	}
	if given.DeliverAt != 0 {
		made.DeliverAt = time.UnixMilli(given.DeliverAt)
	}
	if given.Typed != nil {
		value, err := given.Typed.value()
		made.Value = value
		return made, err
	}
	if given.Value == nil {
		return nil, fmt.Errorf("Go's client has no messages without a value")
	}
	payload, err := decoded(*given.Value)
	made.Payload = payload
	return made, err
}
