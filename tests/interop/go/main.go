// What a Go application does with the v2.1.2 client: interop NAMESRV BROKER runs sending and reading, one scenario
// after another, interop NAMESRV BROKER BROKERNAME all else (features.go).
// interop NAMESRV rolling TOPIC FILE is for brokers that are replaced (rolling.go), interop NAMESRV sending TOPIC FILE
// for brokers that fail (sending.go), interop drive for messages that go to clients by gRPC and come from them
// (driver.go).
// Prints one line per scenario: "scenario", its name, "ok" or what went wrong, separated by tabs.
// INTEROP_ACCOUNT has the access key and the secret key that all requests are signed with, separated by a colon, and
// INTEROP_SCENARIOS the names of those that run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	namesrv    []string
	brokerName string
	sender     rocketmq.Producer
	account    primitive.Credentials
)

func main() {
	rlog.SetLogLevel("error")
	if os.Args[1] == "drive" {
		drive()
		return
	}
	namesrv = strings.Split(os.Args[1], ";")
	if len(os.Args) > 4 && os.Args[2] == "sending" {
		if err := sending(os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	account.AccessKey, account.SecretKey, _ = strings.Cut(os.Getenv("INTEROP_ACCOUNT"), ":")
	var err error
	sender, err = rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName("go-producer"),
		producer.WithCredentials(account),
		producer.WithRetry(2),
	)
	if err == nil {
		err = sender.Start()
	}
	if err != nil {
		fmt.Println("scenario\tstart\t" + err.Error())
		os.Exit(1)
	}
	if len(os.Args) > 4 && os.Args[2] == "rolling" {
		if err = rolling(os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, beKilled())
		os.Exit(1)
	}
	if len(os.Args) > 3 {
		brokerName = os.Args[3]
		features()
		_ = sender.Shutdown()
		return
	}
	scenario("send", send)
	scenario("async", async)
	scenario("oneway", oneway)
	scenario("consume", consume)
	scenario("batch", batch)
	scenario("tags", tags)
	scenario("keys", keys)
	scenario("compressed", compressed)
	scenario("resumes", resumes)
	scenario("topics", topics)
	if os.Getenv("INTEROP_SCENARIOS") != "" {
		scenario("limited", limited)
	}
	_ = sender.Shutdown()
}

func scenario(name string, run func() error) {
	if chosen := os.Getenv("INTEROP_SCENARIOS"); chosen != "" && !strings.Contains(" "+chosen+" ", " "+name+" ") {
		return
	}
	outcome := "ok"
	if err := run(); err != nil {
		outcome = strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Println("scenario\t" + name + "\t" + outcome)
}

func put(message *primitive.Message) (*primitive.SendResult, error) {
	result, err := sender.SendSync(context.Background(), message)
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("status %v", result.Status)
	}
	return result, err
}

// receive consumes a topic as a group until all expected bodies were seen; more than those is an error. When the group
// goes on later, it leaves once it has taken note of as many messages in all.
func receive(group, topic, expression string, expected map[string]bool, inAll ...int) ([]*primitive.MessageExt, error) {
	var mutex sync.Mutex
	seen := map[string]*primitive.MessageExt{}
	done := make(chan struct{}, 1)
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(group),
		consumer.WithCredentials(account),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	err = member.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		missing := len(expected)
		for _, message := range messages {
			seen[string(message.Body)] = message
		}
		for body := range expected {
			if seen[body] != nil {
				missing--
			}
		}
		if missing == 0 {
			select {
			case done <- struct{}{}:
			default:
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	if err = member.Start(); err != nil {
		return nil, err
	}
	select {
	case <-done:
		for _, count := range inAll {
			err = consumed(group, topic, count)
		}
	case <-time.After(waitMax):
		err = errors.New("not all arrived")
	}
	if stopped := member.Shutdown(); err == nil {
		err = stopped
	}
	mutex.Lock()
	defer mutex.Unlock()
	var messages []*primitive.MessageExt
	for body, message := range seen {
		if !expected[body] {
			return nil, fmt.Errorf("unexpected body %q", body)
		}
		messages = append(messages, message)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %d of %d", err, len(messages), len(expected))
	}
	return messages, nil
}

func send() error {
	result, err := put(primitive.NewMessage("GoSend", []byte("one")))
	if err != nil {
		return err
	}
	if result.QueueOffset != 0 || len(result.OffsetMsgID) != 32 {
		return fmt.Errorf("queue offset %d, id %q", result.QueueOffset, result.OffsetMsgID)
	}
	return nil
}

func async() error {
	var wait sync.WaitGroup
	failures := make(chan error, 100)
	for i := 0; i < 100; i++ {
		wait.Add(1)
		err := sender.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				failures <- err
			}
			wait.Done()
		}, primitive.NewMessage("GoAsync", []byte(fmt.Sprint("a", i))))
		if err != nil {
			return err
		}
	}
	wait.Wait()
	close(failures)
	return <-failures
}

func oneway() error {
	if _, err := put(primitive.NewMessage("GoOneway", []byte("first"))); err != nil {
		return err
	}
	expected := map[string]bool{"first": true}
	for i := 0; i < 50; i++ {
		body := fmt.Sprint("o", i)
		expected[body] = true
		if err := sender.SendOneWay(context.Background(), primitive.NewMessage("GoOneway", []byte(body))); err != nil {
			return err
		}
	}
	_, err := receive("go-oneway", "GoOneway", "*", expected)
	return err
}

func consume() error {
	expected := map[string]bool{}
	for i := 0; i < 200; i++ {
		body := fmt.Sprint("c", i)
		expected[body] = true
		if _, err := put(primitive.NewMessage("GoConsume", []byte(body))); err != nil {
			return err
		}
	}
	_, err := receive("go-consume", "GoConsume", "*", expected)
	return err
}

func batch() error {
	expected := map[string]bool{}
	var messages []*primitive.Message
	for i := 0; i < 32; i++ {
		body := fmt.Sprint("b", i)
		expected[body] = true
		messages = append(messages, primitive.NewMessage("GoBatch", []byte(body)))
	}
	result, err := sender.SendSync(context.Background(), messages...)
	if err != nil {
		return err
	}
	if result.Status != primitive.SendOK || len(strings.Split(result.OffsetMsgID, ",")) != 32 {
		return fmt.Errorf("status %v, ids %q", result.Status, result.OffsetMsgID)
	}
	_, err = receive("go-batch", "GoBatch", "*", expected)
	return err
}

func tags() error {
	expected := map[string]bool{}
	for i := 0; i < 40; i++ {
		tag := []string{"A", "B", "C", "D"}[i%4]
		body := fmt.Sprint(tag, i)
		if tag == "A" || tag == "C" {
			expected[body] = true
		}
		if _, err := put(primitive.NewMessage("GoTags", []byte(body)).WithTag(tag)); err != nil {
			return err
		}
	}
	_, err := receive("go-tags", "GoTags", "A || C", expected)
	return err
}

func keys() error {
	message := primitive.NewMessage("GoKeys", []byte("keyed")).WithTag("T").WithKeys([]string{"k1", "k2"})
	message.WithProperty("region", "eu-1")
	message.Flag = 5
	if _, err := put(message); err != nil {
		return err
	}
	got, err := receive("go-keys", "GoKeys", "T", map[string]bool{"keyed": true})
	if err != nil {
		return err
	}
	if keys := strings.TrimSpace(got[0].GetKeys()); keys != "k1 k2" || got[0].GetProperty("region") != "eu-1" || got[0].Flag != 5 {
		return fmt.Errorf("keys %q, properties %v, flag %d", keys, got[0].GetProperties(), got[0].Flag)
	}
	return nil
}

func compressed() error {
	body := strings.Repeat("compress me ", 3000)
	if _, err := put(primitive.NewMessage("GoBig", []byte(body))); err != nil {
		return err
	}
	_, err := receive("go-big", "GoBig", "*", map[string]bool{body: true})
	return err
}

func resumes() error {
	for round := 0; round < 2; round++ {
		expected := map[string]bool{}
		for i := 0; i < 20; i++ {
			body := fmt.Sprint("r", round, "-", i)
			expected[body] = true
			if _, err := put(primitive.NewMessage("GoResume", []byte(body))); err != nil {
				return err
			}
		}
		if _, err := receive("go-resume", "GoResume", "*", expected, 20*(round+1)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

func topics() error {
	operator, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)), admin.WithCredentials(account))
	if err != nil {
		return err
	}
	defer operator.Close()
	broker := os.Args[2]
	err = operator.CreateTopic(context.Background(), admin.WithTopicCreate("GoTopic"), admin.WithBrokerAddrCreate(broker), admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3))
	if err != nil {
		return err
	}
	if _, err = put(primitive.NewMessage("GoTopic", []byte("x"))); err != nil {
		return err
	}
	queues, err := operator.FetchPublishMessageQueues(context.Background(), "GoTopic")
	if err != nil {
		return err
	}
	if len(queues) != 3 {
		return fmt.Errorf("%d queues", len(queues))
	}
	return operator.DeleteTopic(context.Background(), admin.WithTopicDelete("GoTopic"), admin.WithBrokerAddrDelete(broker), admin.WithNameSrvAddr(namesrv))
}
