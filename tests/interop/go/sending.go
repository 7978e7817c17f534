package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// A producer that sends one message after the other, each again until it is acknowledged, while brokers fail: interop
// NAMESRV sending TOPIC FILE [SEND_MS]. Without a time the client's defaults count. With one each send has so long, and
// after a failed one comes a new producer: this client asks for routes every 30 s, and nothing changes that, but a new
// one asks at once. It ends when its input does. To the file it appends "sent go BODY QUEUE OFFSET MESSAGE_ID MS" (Unix
// time) and "failed go REASON".
func sending(arguments []string) error {
	topic := arguments[0]
	file, err := os.OpenFile(arguments[1], os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	limit := time.Duration(0)
	if len(arguments) > 2 {
		ms, err := strconv.Atoi(arguments[2])
		if err != nil {
			return err
		}
		limit = time.Duration(ms) * time.Millisecond
	}
	note := func(line string) {
		_, _ = file.WriteString(strings.ReplaceAll(line, "\n", " ") + "\n")
	}
	go func() {
		var made rocketmq.Producer
		for number, producers := 0, 0; ; time.Sleep(10 * time.Millisecond) {
			if made == nil {
				producers++
				if made, err = begun(producers); err != nil {
					note("failed go " + err.Error())
					made = nil
					continue
				}
			}
			body := fmt.Sprintf("go%d", number)
			result, err := sendWithin(made, limit, primitive.NewMessage(topic, []byte(body)))
			if err == nil && result.Status == primitive.SendOK {
				queue := result.MessageQueue.QueueId
				now := time.Now().UnixMilli()
				note(fmt.Sprintf("sent go %s %d %d %s %d", body, queue, result.QueueOffset, result.OffsetMsgID, now))
				number++
				continue
			}
			if err == nil {
				err = fmt.Errorf("status %d", result.Status)
			}
			note("failed go " + err.Error())
			if limit > 0 {
				go func(old rocketmq.Producer) { _ = old.Shutdown() }(made)
				made = nil
			}
		}
	}()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

func begun(number int) (rocketmq.Producer, error) {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName("sending-go"),
		producer.WithInstanceName(fmt.Sprint("sending-", number)),
	)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func sendWithin(with rocketmq.Producer, limit time.Duration, message *primitive.Message) (*primitive.SendResult, error) {
	ctx := context.Background()
	if limit > 0 {
		within, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = within
	}
	return with.SendSync(ctx, message)
}
