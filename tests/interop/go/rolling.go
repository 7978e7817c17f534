package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// A producer and a consumer that go on while brokers are replaced: interop NAMESRV rolling TOPIC FILE. It sends numbered
// messages with the retries of the client alone until a line comes in, and takes all messages of the topic until its
// input ends. To the file it appends "sent go BODY STATUS", "failed go REASON" and "took go BODY".
func rolling(topic, path string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	note := func(line string) {
		_, _ = file.WriteString(strings.ReplaceAll(line, "\n", " ") + "\n")
	}
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName("rolling-go"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return err
	}
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			note("took go " + string(message.Body))
		}
		return consumer.ConsumeSuccess, nil
	}
	if err = reader.Subscribe(topic, consumer.MessageSelector{}, take); err != nil {
		return err
	}
	if err = reader.Start(); err != nil {
		return err
	}
	// It tries queue after queue, and asks for routes every 30 s only: enough to come to another broker.
	rolled, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName("rolling-go-sends"),
		producer.WithRetry(16),
	)
	if err != nil {
		return err
	}
	if err = rolled.Start(); err != nil {
		return err
	}
	var stopping atomic.Bool
	done := make(chan struct{})
	go func() {
		for number := 0; !stopping.Load(); number++ {
			body := fmt.Sprintf("go%d", number)
			result, err := rolled.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
			if err != nil {
				note("failed go " + err.Error())
			} else {
				note(fmt.Sprintf("sent go %s %d", body, result.Status))
			}
			time.Sleep(10 * time.Millisecond)
		}
		close(done)
	}()
	input := bufio.NewReader(os.Stdin)
	_, _ = input.ReadString('\n')
	stopping.Store(true)
	<-done
	fmt.Println("stopped")
	_, _ = input.ReadString('\n')
	return nil
}
