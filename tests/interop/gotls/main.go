// The Go client with TLS and accounts, one case after the other in one process. Each line of the input is a case: what is
// done (send, push, all), and then NAME=VALUE each (namesrv, topic, group, tls, accessKey, secretKey), separated by tabs.
// To each comes one line: "outcome", and "ok" or what went wrong. This client believes any server.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const waitMax = 60 * time.Second

var (
	given  map[string]string
	number int
)

func main() {
	rlog.SetLogLevel("fatal")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), "\t")
		given = map[string]string{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			given[name] = value
		}
		number++
		outcome := "ok"
		if err := run(words[0]); err != nil {
			outcome = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println("outcome\t" + outcome)
	}
}

func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: given["accessKey"], SecretKey: given["secretKey"]}
}

// Clients of one name share connections.
func instance() string {
	return fmt.Sprint("case", number)
}

func run(what string) error {
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{given["namesrv"]}),
		producer.WithGroupName("go-secured"),
		producer.WithInstanceName(instance()),
		producer.WithCredentials(credentials()),
		producer.WithTls(given["tls"] == "true"),
		producer.WithRetry(0),
	)
	if err != nil {
		return err
	}
	if err = sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	switch what {
	case "send":
		_, err = send(sender, "one")
		return err
	case "push":
		return push(sender, false)
	case "all":
		if err = push(sender, true); err != nil {
			return err
		}
		return transaction()
	}
	return errors.New("no such case: " + what)
}

func send(sender rocketmq.Producer, what string) (string, error) {
	body := fmt.Sprint("go", number, what)
	result, err := sender.SendSync(context.Background(), primitive.NewMessage(given["topic"], []byte(body)))
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("status %v", result.Status)
	}
	return body, err
}

func push(sender rocketmq.Producer, many bool) error {
	wanted := map[string]bool{}
	count := 1
	if many {
		count = 100
	}
	for i := 0; i < count; i++ {
		body, err := send(sender, fmt.Sprint("-", i))
		if err != nil {
			return err
		}
		wanted[body] = true
	}
	if many {
		large := strings.Repeat("large", 100_000)
		wanted[fmt.Sprint("go", number, large)] = true
		if _, err := send(sender, large); err != nil {
			return err
		}
	}
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{given["namesrv"]}),
		consumer.WithGroupName(given["group"]),
		consumer.WithInstance(instance()),
		consumer.WithCredentials(credentials()),
		consumer.WithTls(given["tls"] == "true"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return err
	}
	seen := make(chan string, 1024)
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			seen <- string(message.Body)
		}
		return consumer.ConsumeSuccess, nil
	}
	if err = member.Subscribe(given["topic"], consumer.MessageSelector{}, listen); err != nil {
		return err
	}
	if err = member.Start(); err != nil {
		return err
	}
	defer member.Shutdown()
	late := time.After(waitMax)
	for len(wanted) > 0 {
		select {
		case body := <-seen:
			delete(wanted, body)
		case <-late:
			return fmt.Errorf("%d never came", len(wanted))
		}
	}
	return nil
}

type undecided struct{ asked atomic.Bool }

func (*undecided) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return primitive.UnkonwnState
}

func (u *undecided) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	u.asked.Store(true)
	return primitive.CommitMessageState
}

// A half message that the broker has to ask about.
func transaction() error {
	listener := &undecided{}
	sender, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNameServer([]string{given["namesrv"]}),
		producer.WithGroupName("go-transactions"),
		producer.WithInstanceName(instance()+"t"),
		producer.WithCredentials(credentials()),
		producer.WithTls(given["tls"] == "true"),
	)
	if err != nil {
		return err
	}
	if err = sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	message := primitive.NewMessage(given["topic"], []byte("half"))
	if _, err = sender.SendMessageInTransaction(context.Background(), message); err != nil {
		return err
	}
	for late := time.Now().Add(waitMax); !listener.asked.Load(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			return errors.New("the broker never asked")
		}
	}
	return nil
}
