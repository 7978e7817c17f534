package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// interop drive: driven by tests/interop/grpc5/driver.py, which says what the lines mean.

type said struct {
	ID         int               `json:"id"`
	Do         string            `json:"do"`
	Name       string            `json:"name"`
	Endpoint   string            `json:"endpoint"`
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	Body       string            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	At         int64             `json:"at"`
	Level      int               `json:"level"`
	Expression string            `json:"expression"`
}

type line map[string]any

var (
	drivenProducers sync.Map
	telling         sync.Mutex
)

func tell(told line) {
	telling.Lock()
	defer telling.Unlock()
	text, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(text, '\n'))
}

func factsOf(message *primitive.MessageExt) line {
	properties := message.GetProperties()
	at, _ := strconv.ParseInt(properties["TIMER_DELIVER_MS"], 10, 64)
	keys := strings.Fields(message.GetKeys())
	slices.Sort(keys)
	return line{
		"id": message.MsgId, "topic": message.Topic, "body": string(message.Body),
		"tag": message.GetTags(), "keys": keys, "properties": properties,
		"group": properties["__SHARDINGKEY"], "at": at, "attempt": message.ReconsumeTimes + 1,
	}
}

func driveProducer(given *said) (any, error) {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{given.Endpoint}),
		producer.WithGroupName(given.Name),
		producer.WithInstanceName(given.Name),
	)
	if err != nil {
		return nil, err
	}
	drivenProducers.Store(given.Name, made)
	return nil, made.Start()
}

func driveSend(given *said) (any, error) {
	message := primitive.NewMessage(given.Topic, []byte(given.Body))
	message.WithProperties(given.Properties)
	if given.Tag != "" {
		message.WithTag(given.Tag)
	}
	if len(given.Keys) > 0 {
		message.WithKeys(given.Keys)
	}
	if given.At != 0 {
		message.WithProperty("TIMER_DELIVER_MS", fmt.Sprint(given.At))
	}
	if given.Level != 0 {
		message.WithDelayTimeLevel(given.Level)
	}
	found, _ := drivenProducers.Load(given.Name)
	sent, err := found.(rocketmq.Producer).SendSync(context.Background(), message)
	if err != nil {
		return nil, err
	}
	return line{"id": sent.MsgID, "recall": ""}, nil
}

func drivePush(given *said) (any, error) {
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{given.Endpoint}),
		consumer.WithGroupName(given.Group),
		consumer.WithInstance(given.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(true),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: given.Expression}
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			tell(line{"event": "consumed", "name": given.Name, "message": factsOf(message)})
		}
		return consumer.ConsumeSuccess, nil
	}
	if err = made.Subscribe(given.Topic, selector, take); err != nil {
		return nil, err
	}
	return nil, made.Start()
}

func drive() {
	rlog.SetLogLevel("fatal") // lines of its own would be among the answers
	calls := map[string]func(*said) (any, error){
		"producer": driveProducer, "send": driveSend, "push": drivePush,
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16*1024*1024)
	for lines.Scan() {
		given := &said{}
		if err := json.Unmarshal(lines.Bytes(), given); err != nil {
			panic(err)
		}
		go func() {
			value, err := calls[given.Do](given)
			if err != nil {
				tell(line{"id": given.ID, "error": err.Error()})
				return
			}
			tell(line{"id": given.ID, "value": value})
		}()
	}
}
