package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Scenarios of features.go in which the application pulls.

func pullConsumer(group, topic string, selector consumer.MessageSelector) (rocketmq.PullConsumer, error) {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(group),
		consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	if err = made.Subscribe(topic, selector); err != nil {
		return nil, err
	}
	return made, made.Start()
}

func pull() error {
	if err := sendBodies("GoFeatPull", "warm"); err != nil {
		return err
	}
	sender, err := queueSender("feat-pull-sender")
	if err != nil {
		return err
	}
	defer sender.Shutdown()
	made, err := pullConsumer("go-feat-pull", "GoFeatPull", consumer.MessageSelector{Type: consumer.TAG, Expression: "*"})
	if err != nil {
		return err
	}
	defer made.Shutdown()
	queue := &primitive.MessageQueue{Topic: "GoFeatPull", BrokerName: brokerName, QueueId: 3}
	code, _, body, err := ask(202, map[string]string{"topic": "GoFeatPull"})
	if err != nil || code != 0 {
		return fmt.Errorf("code %d, %s, %v", code, body, err)
	}
	first := 0
	for i := 0; i < 6; i++ {
		if err = toQueue(sender, "GoFeatPull", 3, fmt.Sprint("p", i)); err != nil {
			return err
		}
	}
	result, err := made.PullFrom(context.Background(), queue, 0, 32)
	if err != nil {
		return err
	}
	got := &inbox{}
	for _, message := range result.GetMessageExts() {
		if string(message.Body) == "warm" {
			first = 1
			continue
		}
		got.add(string(message.Body))
	}
	if seen := strings.Join(got.all(), " "); seen != "p0 p1 p2 p3 p4 p5" || result.NextBeginOffset != int64(first+6) {
		return fmt.Errorf("saw %s, next %d", seen, result.NextBeginOffset)
	}
	result, err = made.PullFrom(context.Background(), queue, int64(first+2), 2)
	if err != nil || len(result.GetMessageExts()) != 2 || string(result.GetMessageExts()[0].Body) != "p2" {
		return fmt.Errorf("from 2: %v, %v", result, err)
	}
	// beyond the end: told where the end is
	result, err = made.PullFrom(context.Background(), queue, 1000, 32)
	if err != nil || result.Status != primitive.PullOffsetIllegal || result.NextBeginOffset != int64(first+6) {
		return fmt.Errorf("beyond the end: %v, %v", result, err)
	}
	return nil
}

func pullFiltered() error {
	operator, err := oneQueue("GoFeatPullSql")
	if err != nil {
		return err
	}
	defer operator.Close()
	for i := 0; i < 10; i++ {
		message := primitive.NewMessage("GoFeatPullSql", []byte(fmt.Sprint("p", i))).WithTag([]string{"even", "odd"}[i%2])
		message.WithProperty("n", fmt.Sprint(i))
		if _, err = put(message); err != nil {
			return err
		}
	}
	queue := &primitive.MessageQueue{Topic: "GoFeatPullSql", BrokerName: brokerName, QueueId: 0}
	for expression, expected := range map[consumer.MessageSelector]string{
		{Type: consumer.SQL92, Expression: "n BETWEEN 3 AND 5 OR TAGS = 'odd' AND n > 8"}: "p3 p4 p5 p9",
		{Type: consumer.TAG, Expression: "odd"}:                                           "p1 p3 p5 p7 p9",
	} {
		made, err := pullConsumer("go-feat-pull-"+strings.ToLower(string(expression.Type)), "GoFeatPullSql", expression)
		if err != nil {
			return err
		}
		defer made.Shutdown()
		result, err := made.PullFrom(context.Background(), queue, 0, 32)
		if err != nil {
			return err
		}
		got := &inbox{}
		for _, message := range result.GetMessageExts() {
			got.add(string(message.Body))
		}
		if seen := strings.Join(got.all(), " "); seen != expected || result.NextBeginOffset != 10 {
			return fmt.Errorf("%s: saw %s, next %d", expression.Expression, seen, result.NextBeginOffset)
		}
	}
	return nil
}

// pullFromStored goes where the application puts the group's offset: what this client has for a seek.
func pullFromStored() error {
	operator, err := oneQueue("GoFeatStored")
	if err != nil {
		return err
	}
	defer operator.Close()
	if err = sendBodies("GoFeatStored", "s0", "s1", "s2", "s3", "s4", "s5"); err != nil {
		return err
	}
	made, err := pullConsumer("go-feat-stored", "GoFeatStored", consumer.MessageSelector{Type: consumer.TAG, Expression: "*"})
	if err != nil {
		return err
	}
	defer made.Shutdown()
	queue := &primitive.MessageQueue{Topic: "GoFeatStored", BrokerName: brokerName, QueueId: 0}
	for _, offset := range []int64{4, 1} {
		err = eventually("the stored offset", func() bool {
			// only offsets of queues that the client has by then are stored
			err := made.UpdateOffset(queue, offset)
			if err == nil {
				err = made.PersistOffset(context.Background(), "GoFeatStored")
			}
			code, _, body, asked := ask(208, map[string]string{"consumerGroup": "go-feat-stored", "topic": "GoFeatStored"})
			stored := []byte(fmt.Sprintf(`"consumerOffset":%d`, offset))
			return err == nil && asked == nil && code == 0 && bytes.Contains(body, stored)
		})
		if err != nil {
			return err
		}
		result, err := made.Pull(context.Background(), 2)
		for err == nil && result.MaxOffset == 0 {
			// the client takes all its queues in turn, and the empty one of the retry topic is among them
			result, err = made.Pull(context.Background(), 2)
		}
		if err != nil || len(result.GetMessageExts()) != 2 {
			return fmt.Errorf("from %d: %v, %v", offset, result, err)
		}
		if body := string(result.GetMessageExts()[0].Body); body != fmt.Sprint("s", offset) || result.NextBeginOffset != offset+2 {
			return fmt.Errorf("from %d: %s, next %d", offset, body, result.NextBeginOffset)
		}
	}
	return nil
}

// oneQueue makes a topic of one queue.
func oneQueue(topic string) (admin.Admin, error) {
	operator, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)))
	if err != nil {
		return nil, err
	}
	return operator, operator.CreateTopic(context.Background(), admin.WithTopicCreate(topic),
		admin.WithBrokerAddrCreate(os.Args[2]), admin.WithReadQueueNums(1), admin.WithWriteQueueNums(1))
}

func poll() error {
	bodies := []string{"q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7"}
	if err := sendBodies("GoFeatPoll", bodies...); err != nil {
		return err
	}
	made, err := pullConsumer("go-feat-poll", "GoFeatPoll", consumer.MessageSelector{Type: consumer.TAG, Expression: "*"})
	if err != nil {
		return err
	}
	defer made.Shutdown()
	got := &inbox{}
	return eventually("all polled", func() bool {
		request, err := made.Poll(context.Background(), time.Second)
		if err != nil {
			return false
		}
		for _, message := range request.GetMsgList() {
			got.add(string(message.Body))
		}
		made.ACK(context.Background(), request, consumer.ConsumeSuccess)
		return got.set() == sorted(append([]string(nil), bodies...)...)
	})
}
