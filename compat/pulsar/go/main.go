// Pulsar's Go client, driven from outside: a line of JSON per call, a line of JSON per answer
// ("ok", or "error" with the name of the client's error and "message"). What a call makes is kept
// under a number, by which later calls name it. A call with "later" is answered at once by a
// number; "join" waits for it. ../README.md has the calls; Java's driver has the same.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

// call is a call's arguments, those that any call has.
type call struct {
	Call     string `json:"call"`
	Later    bool   `json:"later"`
	Client   int    `json:"client"`
	Producer int    `json:"producer"`
	Consumer int    `json:"consumer"`
	Reader   int    `json:"reader"`
	View     int    `json:"view"`
	Object   int    `json:"object"`
	Job      int    `json:"job"`
	// Of what is made in one, or what ends it.
	Transaction int `json:"transaction"`

	URL                string `json:"url"`
	Trust              string `json:"trust"`
	Login              *login `json:"login"`
	OperationTimeoutMs int64  `json:"operation_timeout_ms"`
	HasTransactions    bool   `json:"has_transactions"`
	TTLMs              int64  `json:"ttl_ms"`
	Topic              string `json:"topic"`
	Schema             *typed `json:"schema"`
	ProducerName       string `json:"producer_name"`
	IsBatched          bool   `json:"is_batched"`
	BatchDelayMs       int64  `json:"batch_delay_ms"`
	BatchMessages      uint   `json:"batch_messages"`
	IsByKey            bool   `json:"is_by_key"`
	IsChunking         bool   `json:"is_chunking"`
	IsRoundRobin       bool   `json:"is_round_robin"`
	Compression        string `json:"compression"`
	Access             string `json:"access"`
	SendTimeoutMs      int64  `json:"send_timeout_ms"`
	PublicKey          string `json:"public_key"`

	Subscription string      `json:"subscription"`
	Topics       []string    `json:"topics"`
	Pattern      string      `json:"pattern"`
	Type         string      `json:"type"`
	ConsumerName string      `json:"consumer_name"`
	IsEarliest   bool        `json:"is_earliest"`
	IsInclusive  bool        `json:"is_inclusive"`
	IsTransient  bool        `json:"is_transient"`
	IsReceipted  bool        `json:"is_receipted"`
	IsByIndex    bool        `json:"is_by_index"`
	IsOutOfOrder bool        `json:"is_out_of_order"`
	GiveBackMs   int64       `json:"give_back_ms"`
	Queue        int         `json:"queue"`
	HasRetries   bool        `json:"has_retries"`
	DeadLetter   *deadLetter `json:"dead_letter"`
	Ranges       [][2]int    `json:"ranges"`
	PrivateKey   string      `json:"private_key"`

	Start        string          `json:"start"`
	ID           string          `json:"id"`
	Time         *int64          `json:"time"`
	Count        int             `json:"count"`
	WithinMs     int64           `json:"within_ms"`
	Acknowledge  bool            `json:"acknowledge"`
	IsCumulative bool            `json:"is_cumulative"`
	DelayMs      int64           `json:"delay_ms"`
	Force        bool            `json:"force"`
	Message      int             `json:"message"`
	Messages     json.RawMessage `json:"messages"`
}

type deadLetter struct {
	After        uint32 `json:"after"`
	Topic        string `json:"topic"`
	RetryTopic   string `json:"retry_topic"`
	Subscription string `json:"subscription"`
}

// driver keeps what calls have made.
type driver struct {
	mutex    sync.Mutex
	last     int
	made     map[int]any
	received map[int]pulsar.Message
	events   map[int]*listener
}

type job struct {
	done   chan struct{}
	answer any
	err    error
}

// errNotDone is what a join gives that was too short.
var errNotDone = errors.New("not done yet")

func main() {
	kept := &driver{
		made:     map[int]any{},
		received: map[int]pulsar.Message{},
		events:   map[int]*listener{},
	}
	calls := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for {
		line, err := calls.ReadBytes('\n')
		if err != nil {
			return
		}
		var given call
		err = json.Unmarshal(line, &given)
		var answer any
		if err == nil && given.Later {
			answer = kept.later(&given)
		} else if err == nil {
			answer, err = kept.call(&given)
		}
		shown := map[string]any{"ok": answer}
		if err != nil {
			shown = map[string]any{"error": nameOf(err), "message": err.Error()}
		}
		if answers.Encode(shown) != nil {
			return
		}
	}
}

// nameOf is what stands for an exception's class: the client's own code, or the broker's, which its
// text has behind "error:".
func nameOf(err error) string {
	for _, before := range []string{"server error: ", "ack response error: "} {
		if _, found, is := strings.Cut(err.Error(), before); is {
			name, _, _ := strings.Cut(found, ":")
			return name
		}
	}
	var ours *pulsar.Error
	if errors.As(err, &ours) {
		_, name, _ := strings.Cut(ours.Error(), ": ")
		return name
	}
	return fmt.Sprintf("%T", err)
}

func (kept *driver) keep(object any) int {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	kept.last++
	kept.made[kept.last] = object
	return kept.last
}

func (kept *driver) later(given *call) int {
	started := &job{done: make(chan struct{})}
	go func() {
		started.answer, started.err = kept.call(given)
		close(started.done)
	}()
	return kept.keep(started)
}

// named is what has that number; the driver ends if it is something else.
func named[T any](kept *driver, number int) T {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	return kept.made[number].(T)
}

func (kept *driver) call(given *call) (any, error) {
	switch given.Call {
	case "client":
		return kept.client(given)
	case "producer":
		return kept.producer(given)
	case "send":
		return kept.send(given)
	case "sequence":
		return named[pulsar.Producer](kept, given.Producer).LastSequenceID(), nil
	case "consumer":
		return kept.consumer(given)
	case "receive":
		return kept.receive(given)
	case "acknowledge":
		return nil, kept.acknowledge(given)
	case "give_back":
		return nil, kept.eachMessage(given, func(consumer pulsar.Consumer, message pulsar.Message) error {
			consumer.Nack(message)
			return nil
		})
	case "reconsume_later":
		delay := time.Duration(given.DelayMs) * time.Millisecond
		named[pulsar.Consumer](kept, given.Consumer).ReconsumeLater(kept.received[given.Message], delay)
		return nil, nil
	case "seek":
		return nil, kept.seek(given)
	case "unsubscribe":
		consumer := named[pulsar.Consumer](kept, given.Consumer)
		if given.Force {
			return nil, consumer.UnsubscribeForce()
		}
		return nil, consumer.Unsubscribe()
	case "last_ids":
		ids, err := named[pulsar.Consumer](kept, given.Consumer).GetLastMessageIDs()
		shown := []any{}
		for _, each := range ids {
			shown = append(shown, showID(each))
		}
		return shown, err
	case "begin":
		return kept.begin(given)
	case "commit":
		return nil, kept.transaction(given).Commit(context.Background())
	case "abort":
		return nil, kept.transaction(given).Abort(context.Background())
	case "state":
		return states[kept.transaction(given).GetState()], nil
	case "events":
		return kept.events[given.Consumer].told(), nil
	case "reader":
		return kept.reader(given)
	case "read":
		return kept.read(given)
	case "available":
		return named[pulsar.Reader](kept, given.Reader).HasNext(), nil
	case "view":
		return kept.view(given)
	case "entries":
		return entries(named[pulsar.TableView](kept, given.View)), nil
	case "partitions":
		return named[pulsar.Client](kept, given.Client).TopicPartitions(given.Topic)
	case "join":
		waited := named[*job](kept, given.Job)
		select {
		case <-waited.done:
			return waited.answer, waited.err
		case <-time.After(time.Duration(given.WithinMs) * time.Millisecond):
			return nil, errNotDone
		}
	case "close":
		named[interface{ Close() }](kept, given.Object).Close()
		return nil, nil
	}
	return nil, fmt.Errorf("no such call in Go: %s", given.Call)
}

func (kept *driver) client(given *call) (any, error) {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel) // to stderr
	options := pulsar.ClientOptions{
		URL:                   given.URL,
		OperationTimeout:      time.Duration(given.OperationTimeoutMs) * time.Millisecond,
		EnableTransaction:     given.HasTransactions,
		TLSTrustCertsFilePath: given.Trust,
		Logger:                log.NewLoggerWithLogrus(logger),
	}
	if given.Login != nil {
		how, err := given.Login.authentication()
		if err != nil {
			return nil, err
		}
		options.Authentication = how
	}
	client, err := pulsar.NewClient(options)
	if err != nil {
		return nil, err
	}
	return kept.keep(client), nil
}

// How a client logs in.
type login struct {
	Method      string `json:"method"`
	TokenFile   string `json:"token_file"` // read each time that the token is asked for
	User        string `json:"user"`
	Password    string `json:"password"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

func (how *login) authentication() (pulsar.Authentication, error) {
	switch how.Method {
	case "token":
		return pulsar.NewAuthenticationTokenFromFile(how.TokenFile), nil
	case "basic":
		return pulsar.NewAuthenticationBasic(how.User, how.Password)
	default:
		return pulsar.NewAuthenticationTLS(how.Certificate, how.Key), nil
	}
}

func encoded(raw []byte) string {
	return base64.StdEncoding.EncodeToString(raw)
}

func decoded(text string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(text)
}

func showID(id pulsar.MessageID) map[string]any {
	return map[string]any{
		"ledger": id.LedgerID(), "entry": id.EntryID(), "partition": id.PartitionIdx(),
		"batch_index": id.BatchIdx(), "bytes": encoded(id.Serialize()),
	}
}

func readID(text string) (pulsar.MessageID, error) {
	switch text {
	case "earliest":
		return pulsar.EarliestMessageID(), nil
	case "latest":
		return pulsar.LatestMessageID(), nil
	}
	raw, err := decoded(text)
	if err != nil {
		return nil, err
	}
	return pulsar.DeserializeMessageID(raw)
}
