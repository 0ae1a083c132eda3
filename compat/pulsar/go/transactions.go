package main

import (
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// states is what Java calls a transaction's states.
var states = map[pulsar.TxnState]string{
	pulsar.TxnOpen: "OPEN", pulsar.TxnCommitting: "COMMITTING", pulsar.TxnAborting: "ABORTING",
	pulsar.TxnCommitted: "COMMITTED", pulsar.TxnAborted: "ABORTED", pulsar.TxnError: "ERROR",
	pulsar.TxnTimeout: "TIME_OUT",
}

func (kept *driver) begin(given *call) (any, error) {
	ttl := time.Minute
	if given.TTLMs > 0 {
		ttl = time.Duration(given.TTLMs) * time.Millisecond
	}
	transaction, err := named[pulsar.Client](kept, given.Client).NewTransaction(ttl)
	if err != nil {
		return nil, err
	}
	id := transaction.GetTxnID()
	return map[string]any{
		"number": kept.keep(transaction), "most": id.MostSigBits, "least": id.LeastSigBits,
	}, nil
}

// transaction is the one that a call is in, or nil.
func (kept *driver) transaction(given *call) pulsar.Transaction {
	if given.Transaction == 0 {
		return nil
	}
	return named[pulsar.Transaction](kept, given.Transaction)
}

func acknowledge(
	consumer pulsar.Consumer, message pulsar.Message, in pulsar.Transaction, isCumulative bool,
) error {
	switch {
	case in != nil && isCumulative:
		return fmt.Errorf("no cumulative acknowledgement in a transaction in Go")
	case in != nil:
		return consumer.AckWithTxn(message, in)
	case isCumulative:
		return consumer.AckCumulative(message)
	}
	return consumer.Ack(message)
}
