// The official Go client of RocketMQ 5, unmodified, driven by tests/interop/grpc5/driver.py, which
// says what the lines mean.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

type said struct {
	ID          int               `json:"id"`
	Do          string            `json:"do"`
	Name        string            `json:"name"`
	Endpoint    string            `json:"endpoint"`
	TLS         bool              `json:"tls"`
	Key         string            `json:"key"`
	Secret      string            `json:"secret"`
	Topics      []string          `json:"topics"`
	Topic       string            `json:"topic"`
	Group       string            `json:"group"`
	Body        string            `json:"body"`
	Tag         string            `json:"tag"`
	Keys        []string          `json:"keys"`
	Properties  map[string]string `json:"properties"`
	At          int64             `json:"at"`
	Transaction bool              `json:"transaction"`
	How         string            `json:"how"`
	Expression  string            `json:"expression"`
	SQL         bool              `json:"sql"`
	Failures    int32             `json:"failures"`
	Count       int32             `json:"count"`
	Invisible   int               `json:"invisible"`
	N           int64             `json:"n"`
	Seconds     int               `json:"seconds"`
}

// A machine that is busy with other tests may answer late.
const requestMax = 10 * time.Second

type facts map[string]any

var (
	ctx          = context.Background()
	clients      sync.Map
	transactions sync.Map
	received     sync.Map
	numbers      atomic.Int64
	writing      sync.Mutex
	// The library has one switch for all: a start by TLS is alone.
	starting sync.RWMutex
)

func tell(line facts) {
	writing.Lock()
	defer writing.Unlock()
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(text, '\n'))
}

func config(given *said) *rmq.Config {
	account := &credentials.SessionCredentials{AccessKey: given.Key, AccessSecret: given.Secret}
	return &rmq.Config{Endpoint: given.Endpoint, ConsumerGroup: given.Group, Credentials: account}
}

// startable is any client.
type startable interface {
	SetRequestTimeout(time.Duration)
	Start() error
}

func started(given *said, made startable) (any, error) {
	made.SetRequestTimeout(requestMax)
	clients.Store(given.Name, made)
	if given.TLS {
		starting.Lock()
		defer starting.Unlock()
		rmq.EnableSsl = true
		defer func() { rmq.EnableSsl = false }()
	} else {
		starting.RLock()
		defer starting.RUnlock()
	}
	return nil, made.Start()
}

func factsOf(message *rmq.MessageView) facts {
	number := numbers.Add(1)
	received.Store(number, message)
	tag, group, at := "", "", int64(0)
	if message.GetTag() != nil {
		tag = *message.GetTag()
	}
	if message.GetMessageGroup() != nil {
		group = *message.GetMessageGroup()
	}
	if message.GetDeliveryTimestamp() != nil {
		at = message.GetDeliveryTimestamp().UnixMilli()
	}
	return facts{
		"n": number, "id": message.GetMessageId(), "topic": message.GetTopic(),
		"body": string(message.GetBody()), "tag": tag, "keys": append([]string{}, slices.Sorted(slices.Values(message.GetKeys()))...),
		"properties": message.GetProperties(), "group": group, "at": at,
		"attempt": message.GetDeliveryAttempt(),
	}
}

func producer(given *said) (any, error) {
	check := func(message *rmq.MessageView) rmq.TransactionResolution {
		body := string(message.GetBody())
		tell(facts{"event": "checked", "name": given.Name, "body": body})
		switch body {
		case "commit":
			return rmq.COMMIT
		case "rollback":
			return rmq.ROLLBACK
		}
		return rmq.UNKNOWN
	}
	made, err := rmq.NewProducer(config(given), rmq.WithTopics(given.Topics...),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	if err != nil {
		return nil, err
	}
	return started(given, made.(startable))
}

func send(given *said) (any, error) {
	message := &rmq.Message{Topic: given.Topic, Body: []byte(given.Body)}
	if given.Tag != "" {
		message.SetTag(given.Tag)
	}
	message.SetKeys(given.Keys...)
	for name, value := range given.Properties {
		message.AddProperty(name, value)
	}
	if given.Group != "" {
		message.SetMessageGroup(given.Group)
	}
	if given.At != 0 {
		message.SetDelayTimestamp(time.UnixMilli(given.At))
	}
	sender := client[rmq.Producer](given)
	var receipts []*rmq.SendReceipt
	var err error
	if given.Transaction {
		transaction := sender.BeginTransaction()
		transactions.Store(given.Body, transaction)
		receipts, err = sender.SendWithTransaction(ctx, message, transaction)
	} else {
		receipts, err = sender.Send(ctx, message)
	}
	if err != nil {
		return nil, err
	}
	return facts{"id": receipts[0].MessageID, "recall": ""}, nil
}

func client[T any](given *said) T {
	found, _ := clients.Load(given.Name)
	return found.(T)
}

func end(given *said) (any, error) {
	found, _ := transactions.Load(given.Body)
	if given.How == "commit" {
		return nil, found.(rmq.Transaction).Commit()
	}
	return nil, found.(rmq.Transaction).RollBack()
}

func filters(given *said) map[string]*rmq.FilterExpression {
	filter := rmq.NewFilterExpression(given.Expression)
	if given.SQL {
		filter = rmq.NewFilterExpressionWithType(given.Expression, rmq.SQL92)
	}
	return map[string]*rmq.FilterExpression{given.Topic: filter}
}

func simple(given *said) (any, error) {
	made, err := rmq.NewSimpleConsumer(config(given), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(filters(given)))
	if err != nil {
		return nil, err
	}
	return started(given, made.(startable))
}

func receive(given *said) (any, error) {
	invisible := time.Duration(given.Invisible) * time.Second
	messages, err := client[rmq.SimpleConsumer](given).Receive(ctx, given.Count, invisible)
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) && status.Code == int32(v2.Code_MESSAGE_NOT_FOUND) {
		err = nil
	}
	found := make([]facts, 0, len(messages))
	for _, each := range messages {
		found = append(found, factsOf(each))
	}
	return found, err
}

func message(given *said) *rmq.MessageView {
	found, _ := received.Load(given.N)
	return found.(*rmq.MessageView)
}

func ack(given *said) (any, error) {
	return nil, client[rmq.SimpleConsumer](given).Ack(ctx, message(given))
}

func change(given *said) (any, error) {
	seconds := time.Duration(given.Seconds) * time.Second
	return nil, client[rmq.SimpleConsumer](given).ChangeInvisibleDuration(message(given), seconds)
}

func push(given *said) (any, error) {
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		tell(facts{"event": "consumed", "name": given.Name, "message": factsOf(message)})
		fails := strings.HasPrefix(string(message.GetBody()), "fail")
		if fails && message.GetDeliveryAttempt() <= given.Failures {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	made, err := rmq.NewPushConsumer(config(given), rmq.WithPushSubscriptionExpressions(filters(given)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	if err != nil {
		return nil, err
	}
	return started(given, made.(startable))
}

func closed(given *said) (any, error) {
	return nil, client[interface{ GracefulStop() error }](given).GracefulStop()
}

var calls = map[string]func(*said) (any, error){
	"producer": producer, "send": send, "end": end, "simple": simple, "receive": receive,
	"ack": ack, "change": change, "push": push, "close": closed,
}

func answer(given *said) {
	defer func() {
		if fault := recover(); fault != nil {
			tell(facts{"id": given.ID, "error": fmt.Sprint(fault)})
		}
	}()
	call, ok := calls[given.Do]
	if !ok {
		tell(facts{"id": given.ID, "error": "the client has no " + given.Do})
		return
	}
	value, err := call(given)
	if err != nil {
		tell(facts{"id": given.ID, "error": err.Error()})
		return
	}
	tell(facts{"id": given.ID, "value": value})
}

func main() {
	rmq.EnableSsl = false
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16*1024*1024)
	for lines.Scan() {
		given := &said{}
		if err := json.Unmarshal(lines.Bytes(), given); err != nil {
			panic(err)
		}
		go answer(given)
	}
}
