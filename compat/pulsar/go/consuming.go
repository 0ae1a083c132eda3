package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

var types = map[string]pulsar.SubscriptionType{
	"": pulsar.Exclusive, "Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared,
	"Failover": pulsar.Failover, "Key_Shared": pulsar.KeyShared,
}

// listener notes what a consumer is told of being active.
type listener struct {
	mutex sync.Mutex
	words []string
}

func (to *listener) note(word string, partition int32) {
	to.mutex.Lock()
	defer to.mutex.Unlock()
	to.words = append(to.words, fmt.Sprintf("%s %d", word, partition))
}

func (to *listener) told() []string {
	to.mutex.Lock()
	defer to.mutex.Unlock()
	return append([]string{}, to.words...)
}

func (to *listener) BecameActive(_ pulsar.Consumer, _ string, partition int32) {
	to.note("active", partition)
}

func (to *listener) BecameInactive(_ pulsar.Consumer, _ string, partition int32) {
	to.note("inactive", partition)
}

func (kept *driver) consumer(given *call) (any, error) {
	schema, err := given.Schema.schema()
	if err != nil {
		return nil, err
	}
	told := &listener{}
	options := pulsar.ConsumerOptions{
		SubscriptionName:               given.Subscription,
		Type:                           types[given.Type],
		Name:                           given.ConsumerName,
		Schema:                         schema,
		EventListener:                  told,
		AckWithResponse:                given.IsReceipted,
		EnableBatchIndexAcknowledgment: given.IsByIndex,
		StartMessageIDInclusive:        given.IsInclusive,
		ReceiverQueueSize:              given.Queue,
		RetryEnable:                    given.HasRetries,
		NackRedeliveryDelay:            time.Duration(given.GiveBackMs) * time.Millisecond,
	}
	switch {
	case given.Pattern != "":
		options.TopicsPattern = given.Pattern
	case len(given.Topics) == 1:
		options.Topic = given.Topics[0]
	default:
		options.Topics = given.Topics
	}
	if given.IsEarliest {
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	}
	if given.IsTransient {
		options.SubscriptionMode = pulsar.NonDurable
	}
	if dead := given.DeadLetter; dead != nil {
		options.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries: dead.After, DeadLetterTopic: dead.Topic,
			RetryLetterTopic: dead.RetryTopic, InitialSubscriptionName: dead.Subscription,
		}
	}
	if given.Ranges != nil {
		ranges := []int{}
		for _, each := range given.Ranges {
			ranges = append(ranges, each[0], each[1])
		}
		options.KeySharedPolicy, err = pulsar.NewKeySharedPolicySticky(ranges)
		if err != nil {
			return nil, err
		}
	} else if given.IsOutOfOrder {
		options.KeySharedPolicy = &pulsar.KeySharedPolicy{AllowOutOfOrderDelivery: true}
	}
	if given.PrivateKey != "" {
		options.Decryption = &pulsar.MessageDecryptionInfo{
			KeyReader: crypto.NewFileKeyReader("", given.PrivateKey),
		}
	}
	consumer, err := named[pulsar.Client](kept, given.Client).Subscribe(options)
	if err != nil {
		return nil, err
	}
	number := kept.keep(consumer)
	kept.events[number] = told
	return number, nil
}

func (kept *driver) receive(given *call) (any, error) {
	consumer := named[pulsar.Consumer](kept, given.Consumer)
	found := []any{}
	for len(found) < given.Count {
		message, err := next(consumer.Receive, given.WithinMs)
		if err != nil {
			return nil, err
		}
		if message == nil {
			break
		}
		shown := show(message, given.Schema)
		if given.Acknowledge {
			if err := acknowledge(consumer, message, kept.transaction(given), false); err != nil {
				return nil, err
			}
		} else {
			kept.last++
			kept.received[kept.last] = message
			shown["number"] = kept.last
		}
		found = append(found, shown)
	}
	return found, nil
}

// next is a message that comes within that time, or nil.
func next(
	receive func(context.Context) (pulsar.Message, error), withinMs int64,
) (pulsar.Message, error) {
	within, done := context.WithTimeout(context.Background(), time.Duration(withinMs)*time.Millisecond)
	defer done()
	message, err := receive(within)
	if errors.Is(err, context.DeadlineExceeded) || within.Err() != nil {
		return nil, nil
	}
	return message, err
}

func (kept *driver) eachMessage(
	given *call, act func(pulsar.Consumer, pulsar.Message) error,
) error {
	var numbers []int
	if err := json.Unmarshal(given.Messages, &numbers); err != nil {
		return err
	}
	consumer := named[pulsar.Consumer](kept, given.Consumer)
	for _, each := range numbers {
		if err := act(consumer, kept.received[each]); err != nil {
			return err
		}
	}
	return nil
}

func (kept *driver) acknowledge(given *call) error {
	return kept.eachMessage(given, func(consumer pulsar.Consumer, message pulsar.Message) error {
		return acknowledge(consumer, message, kept.transaction(given), given.IsCumulative)
	})
}

// seeker is a consumer or a reader.
type seeker interface {
	Seek(pulsar.MessageID) error
	SeekByTime(time.Time) error
}

func (kept *driver) seek(given *call) error {
	of := named[seeker](kept, given.Consumer+given.Reader) // one of them is 0
	if given.Time != nil {
		return of.SeekByTime(time.UnixMilli(*given.Time))
	}
	id, err := readID(given.ID)
	if err != nil {
		return err
	}
	return of.Seek(id)
}

func (kept *driver) reader(given *call) (any, error) {
	start, err := readID(given.Start)
	if err != nil {
		return nil, err
	}
	reader, err := named[pulsar.Client](kept, given.Client).CreateReader(pulsar.ReaderOptions{
		Topic: given.Topic, StartMessageID: start, StartMessageIDInclusive: given.IsInclusive,
	})
	if err != nil {
		return nil, err
	}
	return kept.keep(reader), nil
}

func (kept *driver) read(given *call) (any, error) {
	reader := named[pulsar.Reader](kept, given.Reader)
	found := []any{}
	for len(found) < given.Count {
		message, err := next(reader.Next, given.WithinMs)
		if err != nil {
			return nil, err
		}
		if message == nil {
			break
		}
		found = append(found, show(message, nil))
	}
	return found, nil
}

func (kept *driver) view(given *call) (any, error) {
	view, err := named[pulsar.Client](kept, given.Client).CreateTableView(pulsar.TableViewOptions{
		Topic: given.Topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: bytesType,
	})
	if err != nil {
		return nil, err
	}
	return kept.keep(view), nil
}

func show(message pulsar.Message, schema *typed) map[string]any {
	shown := map[string]any{
		"topic": message.Topic(), "id": showID(message.ID()), "value": encoded(message.Payload()),
		"key": nil, "ordering_key": nil, "properties": message.Properties(),
		"publish_time": message.PublishTime().UnixMilli(), "event_time": 0,
		"producer_name": message.ProducerName(), "redelivery_count": message.RedeliveryCount(),
		"schema_version": nil,
	}
	// An empty key is like none here.
	if message.Key() != "" {
		shown["key"] = encoded([]byte(message.Key()))
	}
	if message.OrderingKey() != "" {
		shown["ordering_key"] = encoded([]byte(message.OrderingKey()))
	}
	if message.Properties() == nil {
		shown["properties"] = map[string]string{}
	}
	if at := message.EventTime().UnixMilli(); at > 0 {
		shown["event_time"] = at
	}
	if version := message.SchemaVersion(); len(version) > 0 {
		shown["schema_version"] = encoded(version)
	}
	if schema != nil {
		value, err := schema.read(message)
		if err != nil {
			value = err.Error()
		}
		shown["decoded"] = value
	}
	return shown
}
