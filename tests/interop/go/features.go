package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Order, filters, delay, retry, broadcast, pulls, transactions, requests, positions and what operators ask.
// All scenarios run at the same time, each with topics, groups and instances of its own, since most of them wait.
//
// The broker must have enablePropertyFilter=true, accessMessageInMemoryMaxRatio=0 (a group without offset then
// starts where the client wants), delay levels of about a second and frequent transaction checks.

const waitMax = 60 * time.Second

func features() {
	scenarios := map[string]func() error{
		"orderly":          orderly,
		"orderly_retry":    orderlyRetry,
		"orderly_kill":     orderlyKill,
		"sql92":            sql92,
		"delay":            delay,
		"timed":            timed,
		"retry_to_dlq":     retryToDeadLetters,
		"broadcast":        broadcast,
		"pull":             pull,
		"poll":             poll,
		"pull_filtered":    pullFiltered,
		"pull_from_stored": pullFromStored,
		"transactions":     transactions,
		"request_reply":    requestReply,
		"from_last":        fromLast,
		"from_time":        fromTime,
		"directly":         directly,
		"reset":            reset,
		"trace":            trace,
	}
	var wait sync.WaitGroup
	for name, run := range scenarios {
		wait.Add(1)
		go func(name string, run func() error) {
			defer wait.Done()
			start := time.Now()
			scenario(name, run)
			fmt.Fprintln(os.Stderr, name, "took", time.Since(start))
		}(name, run)
	}
	wait.Wait()
}

// -- helpers ----------------------------------------------------------------------------------------------------------

// inbox keeps the bodies that consumers saw, in their order.
type inbox struct {
	mutex  sync.Mutex
	bodies []string
}

func (b *inbox) add(body string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.bodies = append(b.bodies, body)
}

func (b *inbox) all() []string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return append([]string(nil), b.bodies...)
}

// set gives the bodies once each, sorted.
func (b *inbox) set() string {
	seen := map[string]bool{}
	for _, body := range b.all() {
		seen[body] = true
	}
	var bodies []string
	for body := range seen {
		bodies = append(bodies, body)
	}
	sort.Strings(bodies)
	return strings.Join(bodies, " ")
}

func sorted(bodies ...string) string {
	sort.Strings(bodies)
	return strings.Join(bodies, " ")
}

func eventually(what string, fact func() bool) error {
	deadline := time.Now().Add(waitMax)
	for !fact() {
		if time.Now().After(deadline) {
			return errors.New("never: " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

type handler func(*primitive.MessageExt) consumer.ConsumeResult

func member(instance, group, topic string, selector consumer.MessageSelector, handle handler, more ...consumer.Option) (rocketmq.PushConsumer, error) {
	options := []consumer.Option{
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	made, err := rocketmq.NewPushConsumer(append(options, more...)...)
	if err != nil {
		return nil, err
	}
	err = made.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if result := handle(message); result != consumer.ConsumeSuccess {
				return result, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

// collector is a member that keeps what it sees.
func collector(instance, group, topic string, selector consumer.MessageSelector, more ...consumer.Option) (rocketmq.PushConsumer, *inbox, error) {
	got := &inbox{}
	made, err := member(instance, group, topic, selector, func(message *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(message.Body))
		return consumer.ConsumeSuccess
	}, more...)
	return made, got, err
}

func sendBodies(topic string, bodies ...string) error {
	for _, body := range bodies {
		if _, err := put(primitive.NewMessage(topic, []byte(body))); err != nil {
			return err
		}
	}
	return nil
}

// queueSender sends to the queue that the message's QUEUE property names.
func queueSender(instance string) (rocketmq.Producer, error) {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName(instance),
		producer.WithInstanceName(instance),
		producer.WithQueueSelector(producer.NewManualQueueSelector()),
	)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func toQueue(sender rocketmq.Producer, topic string, queue int, body string) error {
	message := primitive.NewMessage(topic, []byte(body))
	message.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: brokerName, QueueId: queue}
	_, err := sender.SendSync(context.Background(), message)
	return err
}

// ask sends a request as an operator's tool would; the client has no such interface.
func ask(code int, fields map[string]string) (int, string, []byte, error) {
	header, err := json.Marshal(map[string]any{
		"code": code, "flag": 0, "language": "GO", "opaque": 1, "version": 433, "serializeTypeCurrentRPC": "JSON", "extFields": fields,
	})
	if err != nil {
		return 0, "", nil, err
	}
	connection, err := net.DialTimeout("tcp", os.Args[2], 5*time.Second)
	if err != nil {
		return 0, "", nil, err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(30 * time.Second))
	var frame bytes.Buffer
	_ = binary.Write(&frame, binary.BigEndian, uint32(4+len(header)))
	_ = binary.Write(&frame, binary.BigEndian, uint32(len(header)))
	frame.Write(header)
	if _, err = connection.Write(frame.Bytes()); err != nil {
		return 0, "", nil, err
	}
	var lengths [2]uint32
	if err = binary.Read(connection, binary.BigEndian, &lengths); err != nil {
		return 0, "", nil, err
	}
	data := make([]byte, lengths[0]-4)
	if _, err = io.ReadFull(connection, data); err != nil {
		return 0, "", nil, err
	}
	var answer struct {
		Code      int               `json:"code"`
		Remark    string            `json:"remark"`
		ExtFields map[string]string `json:"extFields"`
	}
	size := lengths[1] & 0xFFFFFF
	if err = json.Unmarshal(data[:size], &answer); err != nil {
		return 0, "", nil, err
	}
	return answer.Code, answer.Remark, data[size:], nil
}

// topicQueues says how many queues of a topic the name server knows.
func topicQueues(topic string) (int, error) {
	operator, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)))
	if err != nil {
		return 0, err
	}
	queues, err := operator.FetchPublishMessageQueues(context.Background(), topic)
	return len(queues), err
}

var clientIDPattern = regexp.MustCompile(`"clientId":"([^"]+)"`)

// onlineMember gives the client id of a group's only member.
func onlineMember(group string) (string, error) {
	var id string
	err := eventually("member of "+group, func() bool {
		code, _, body, err := ask(203, map[string]string{"consumerGroup": group})
		found := clientIDPattern.FindSubmatch(body)
		if err != nil || code != 0 || found == nil {
			return false
		}
		id = string(found[1])
		return true
	})
	return id, err
}

// consumed waits until a group's only member has taken note of as many messages of a topic: it does so after its
// listener returned, and what it has noted when it leaves is what it stores.
func consumed(group, topic string, count int) error {
	id, err := onlineMember(group)
	if err != nil {
		return err
	}
	noted := regexp.MustCompile(`\{[^{}]*"topic":"` + topic + `"[^{}]*\}:\{[^{}]*"commitOffset":(\d+)`)
	return eventually(fmt.Sprint(count, " messages noted"), func() bool {
		code, _, body, err := ask(307, map[string]string{"consumerGroup": group, "clientId": id, "jstackEnable": "false"})
		sum := 0
		for _, found := range noted.FindAllSubmatch(body, -1) {
			offset, _ := strconv.Atoi(string(found[1]))
			sum += offset
		}
		return err == nil && code == 0 && sum == count
	})
}

// pulling waits until a group's only member pulls from all four queues of a topic.
func pulling(group, topic string) error {
	id, err := onlineMember(group)
	if err != nil {
		return err
	}
	return eventually("four queues", func() bool {
		code, _, body, err := ask(307, map[string]string{"consumerGroup": group, "clientId": id, "jstackEnable": "false"})
		return err == nil && code == 0 && bytes.Count(body, []byte(`"topic":"`+topic+`","`)) >= 4 && !bytes.Contains(body, []byte(`"lastPullTimestamp":0`))
	})
}

// -- filters, delay, retry --------------------------------------------------------------------------------------------
func sql92() error {
	for i := 0; i < 20; i++ {
		message := primitive.NewMessage("GoFeatSql", []byte(fmt.Sprint("m", i))).WithTag([]string{"even", "odd"}[i%2])
		message.WithProperty("price", fmt.Sprint(i))
		if _, err := put(message); err != nil {
			return err
		}
	}
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "TAGS = 'odd' AND price BETWEEN 5 AND 11 OR price = 0"}
	made, got, err := collector("feat-sql", "go-feat-sql", "GoFeatSql", selector)
	if err != nil {
		return err
	}
	err = eventually("five messages", func() bool { return len(got.all()) >= 5 })
	if stopped := made.Shutdown(); err == nil {
		err = stopped
	}
	if seen := got.set(); seen != sorted("m0", "m5", "m7", "m9", "m11") {
		return errors.New("saw " + seen)
	}
	return err
}

// inTime sends messages, of which some have a moment, to a topic that has one; none may come early.
func inTime(feature, group, topic string, send func(due map[string]time.Time) error) error {
	if err := sendBodies(topic, "now"); err != nil {
		return err
	}
	var mutex sync.Mutex
	arrived, due := map[string]time.Time{}, map[string]time.Time{}
	made, err := member(feature, group, topic, consumer.MessageSelector{}, func(message *primitive.MessageExt) consumer.ConsumeResult {
		mutex.Lock()
		defer mutex.Unlock()
		arrived[string(message.Body)] = time.Now()
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return err
	}
	if err = send(due); err != nil {
		return err
	}
	err = eventually("all that wait", func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(arrived) == 4
	})
	if stopped := made.Shutdown(); err == nil {
		err = stopped
	}
	for body, at := range due {
		if err == nil && arrived[body].Before(at) {
			err = fmt.Errorf("%s came %s early", body, at.Sub(arrived[body]))
		}
	}
	return err
}

func delay() error {
	return inTime("feat-delay", "go-feat-delay", "GoFeatDelay", func(due map[string]time.Time) error {
		for level, seconds := range map[int]int{1: 1, 4: 1, 18: 3} {
			body := fmt.Sprint("level", level)
			due[body] = time.Now().Add(time.Duration(seconds) * time.Second).Truncate(time.Millisecond)
			if _, err := put(primitive.NewMessage("GoFeatDelay", []byte(body)).WithDelayTimeLevel(level)); err != nil {
				return err
			}
		}
		return nil
	})
}

// timed: the client knows no moments, but sends any property.
func timed() error {
	return inTime("feat-timed", "go-feat-timed", "GoFeatTimed", func(due map[string]time.Time) error {
		now := time.Now().Truncate(time.Millisecond)
		moment := now.Add(2300 * time.Millisecond)
		for name, given := range map[string]struct {
			value int64
			at    time.Time
		}{
			"TIMER_DELIVER_MS": {moment.UnixMilli(), moment},
			"TIMER_DELAY_MS":   {1700, now.Add(1700 * time.Millisecond)},
			"TIMER_DELAY_SEC":  {2, now.Add(2 * time.Second)},
		} {
			due[name] = given.at
			message := primitive.NewMessage("GoFeatTimed", []byte(name))
			message.WithProperty(name, fmt.Sprint(given.value))
			if _, err := put(message); err != nil {
				return err
			}
		}
		return nil
	})
}

func retryToDeadLetters() error {
	if err := sendBodies("GoFeatRetry", "warm"); err != nil {
		return err
	}
	tagged := consumer.MessageSelector{Type: consumer.TAG, Expression: "T"}
	// The client looks for a retry topic when it starts, and then every 30 s only: have an early member make it.
	early, err := member("feat-retry-early", "go-feat-retry", "GoFeatRetry", tagged, nil)
	if err != nil {
		return err
	}
	if _, err = onlineMember("go-feat-retry"); err == nil {
		err = early.Shutdown()
	}
	if err != nil {
		return err
	}
	for _, body := range []string{"r0", "r1"} {
		if _, err = put(primitive.NewMessage("GoFeatRetry", []byte(body)).WithTag("T")); err != nil {
			return err
		}
	}
	got := &inbox{}
	made, err := member("feat-retry", "go-feat-retry", "GoFeatRetry", tagged, func(message *primitive.MessageExt) consumer.ConsumeResult {
		body := string(message.Body)
		got.add(fmt.Sprint(body, "-", message.ReconsumeTimes))
		if body == "r0" && message.ReconsumeTimes == 1 {
			return consumer.ConsumeSuccess
		}
		return consumer.ConsumeRetryLater
	}, consumer.WithMaxReconsumeTimes(2))
	if err != nil {
		return err
	}
	defer made.Shutdown()
	err = eventually("the dead letter", func() bool {
		code, _, body, err := ask(202, map[string]string{"topic": "%DLQ%go-feat-retry"})
		return err == nil && code == 0 && bytes.Contains(body, []byte(`"maxOffset":1`))
	})
	if err != nil {
		return fmt.Errorf("%w; saw %s", err, got.set())
	}
	if seen := got.set(); seen != sorted("r0-0", "r0-1", "r1-0", "r1-1", "r1-2") {
		return errors.New("saw " + seen)
	}
	if err = eventually("its route", func() bool {
		queues, err := topicQueues("%DLQ%go-feat-retry")
		return err == nil && queues > 0
	}); err != nil {
		return err
	}
	_, err = receive("go-feat-dead", "%DLQ%go-feat-retry", "*", map[string]bool{"r1": true})
	return err
}

func broadcast() error {
	if err := sendBodies("GoFeatBroadcast", "before"); err != nil {
		return err
	}
	var inboxes []*inbox
	for i := 0; i < 2; i++ {
		// the offsets of broadcasts are kept in files of the instance, in the home folder
		instance := fmt.Sprint("feat-broadcast-", i, "-", os.Getpid())
		made, got, err := collector(instance, "go-feat-broadcast", "GoFeatBroadcast", consumer.MessageSelector{}, consumer.WithConsumerModel(consumer.BroadCasting))
		if err != nil {
			return err
		}
		defer made.Shutdown()
		inboxes = append(inboxes, got)
	}
	if err := sendBodies("GoFeatBroadcast", "b0", "b1", "b2", "b3"); err != nil {
		return err
	}
	return eventually("everything at both", func() bool {
		for _, got := range inboxes {
			if seen := got.set(); !strings.HasPrefix(seen, "b0 b1 b2 b3") {
				return false
			}
		}
		return true
	})
}

// -- transactions, requests -------------------------------------------------------------------------------------------
type listener struct{ asked inbox }

func (l *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch {
	case strings.HasPrefix(string(message.Body), "commit"):
		return primitive.CommitMessageState
	case strings.HasPrefix(string(message.Body), "rollback"):
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.asked.add(string(message.Body))
	if strings.Contains(string(message.Body), "commit") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transactions() error {
	decides := &listener{}
	sender, err := rocketmq.NewTransactionProducer(decides, producer.WithNameServer(namesrv),
		producer.WithGroupName("go-feat-tran-producer"), producer.WithInstanceName("feat-tran-producer"))
	if err != nil {
		return err
	}
	if err = sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	var expected, unclear []string
	for i := 0; i < 12; i++ {
		kind := []string{"commit", "rollback", "later-commit", "later-rollback"}[i%4]
		body := fmt.Sprint(kind, i)
		if _, err = sender.SendMessageInTransaction(context.Background(), primitive.NewMessage("GoFeatTran", []byte(body))); err != nil {
			return err
		}
		if strings.Contains(kind, "commit") {
			expected = append(expected, body)
		}
		if strings.HasPrefix(kind, "later") {
			unclear = append(unclear, body)
		}
	}
	made, got, err := collector("feat-tran", "go-feat-tran", "GoFeatTran", consumer.MessageSelector{})
	if err != nil {
		return err
	}
	defer made.Shutdown()
	wanted := sorted(expected...)
	if err = eventually("all commits", func() bool { return got.set() == wanted }); err != nil {
		return fmt.Errorf("%w; saw %s", err, got.set())
	}
	// when the machine is busy, the broker may ask about others too before it hears of them
	err = eventually("all questions", func() bool {
		asked := " " + decides.asked.set() + " "
		for _, body := range unclear {
			if !strings.Contains(asked, " "+body+" ") {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if len(got.all()) != len(expected) {
		return errors.New("saw " + strings.Join(got.all(), " "))
	}
	return nil
}

func requestReply() error {
	if err := sendBodies("GoFeatAsk", "warm"); err != nil {
		return err
	}
	server, err := member("feat-serve", "go-feat-serve", "GoFeatAsk", consumer.MessageSelector{Type: consumer.TAG, Expression: "request"}, func(message *primitive.MessageExt) consumer.ConsumeResult {
		reply, err := consumer.CreateReplyMessage(message, nil)
		if err == nil {
			// this version of the client takes the body for properties
			reply.Body = []byte(strings.ToUpper(string(message.Body)))
			_, err = sender.SendSync(context.Background(), reply)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "reply:", err)
		}
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	asker, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName("go-feat-asker"), producer.WithInstanceName("feat-asker"))
	if err != nil {
		return err
	}
	if err = asker.Start(); err != nil {
		return err
	}
	defer asker.Shutdown()
	// The client greets brokers a second after its start, and sends requests before that too: the reply would find nobody.
	if _, err = asker.SendSync(context.Background(), primitive.NewMessage("GoFeatAsk", []byte("hello"))); err != nil {
		return err
	}
	err = eventually("the asker is known", func() bool {
		code, _, _, err := ask(204, map[string]string{"producerGroup": "go-feat-asker"})
		return err == nil && code == 0
	})
	if err != nil {
		return err
	}
	for i := 0; i < 10; i++ {
		body := fmt.Sprint("question ", i)
		message := primitive.NewMessage("GoFeatAsk", []byte(body)).WithTag("request")
		reply, err := asker.Request(context.Background(), 20*time.Second, message)
		if err != nil {
			return err
		}
		if string(reply.Body) != strings.ToUpper(body) {
			return fmt.Errorf("reply %q", reply.Body)
		}
	}
	got := &inbox{}
	message := primitive.NewMessage("GoFeatAsk", []byte("later")).WithTag("request")
	err = asker.RequestAsync(context.Background(), 20*time.Second, func(_ context.Context, reply *primitive.Message, err error) {
		if err != nil {
			got.add(err.Error())
			return
		}
		got.add(string(reply.Body))
	}, message)
	if err != nil {
		return err
	}
	return eventually("the reply to the callback", func() bool { return got.set() == "LATER" })
}

// -- where a group starts ---------------------------------------------------------------------------------------------
func fromLast() error {
	if err := sendBodies("GoFeatLast", "old0", "old1", "old2", "old3"); err != nil {
		return err
	}
	made, got, err := collector("feat-last", "go-feat-last", "GoFeatLast", consumer.MessageSelector{}, consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset))
	if err != nil {
		return err
	}
	defer made.Shutdown()
	// Its pulls are held once it knows where it starts: what it asks for then is what is new.
	if err = pulling("go-feat-last", "GoFeatLast"); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	if err = sendBodies("GoFeatLast", "new0", "new1", "new2", "new3"); err != nil {
		return err
	}
	err = eventually("all new", func() bool { return strings.Contains(got.set(), "new0 new1 new2 new3") })
	if seen := got.set(); err != nil || seen != "new0 new1 new2 new3" {
		return fmt.Errorf("saw %s, %v", seen, err)
	}
	return nil
}

func fromTime() error {
	if err := sendBodies("GoFeatTime", "old0", "old1", "old2", "old3"); err != nil {
		return err
	}
	// The client's time has seconds only, and means UTC. The broker takes the message nearest to it: the old ones have
	// to be further away than the sends of the new ones may take.
	second := time.Now().Truncate(time.Second).Add(5 * time.Second)
	time.Sleep(time.Until(second.Add(10 * time.Millisecond)))
	if err := sendBodies("GoFeatTime", "new0", "new1", "new2", "new3"); err != nil {
		return err
	}
	made, got, err := collector("feat-time", "go-feat-time", "GoFeatTime", consumer.MessageSelector{},
		consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp), consumer.WithConsumeTimestamp(second.UTC().Format("20060102150405")))
	if err != nil {
		return err
	}
	defer made.Shutdown()
	err = eventually("all new", func() bool { return strings.Contains(got.set(), "new0 new1 new2 new3") })
	if seen := got.set(); err != nil || seen != "new0 new1 new2 new3" {
		return fmt.Errorf("saw %s, %v", seen, err)
	}
	return nil
}

// -- what operators ask -----------------------------------------------------------------------------------------------
func directly() error {
	sent, err := put(primitive.NewMessage("GoFeatDirect", []byte("again")))
	if err != nil {
		return err
	}
	made, got, err := collector("feat-direct", "go-feat-direct", "GoFeatDirect", consumer.MessageSelector{})
	if err != nil {
		return err
	}
	defer made.Shutdown()
	if err = eventually("the message", func() bool { return len(got.all()) == 1 }); err != nil {
		return err
	}
	id, err := onlineMember("go-feat-direct")
	if err != nil {
		return err
	}
	fields := map[string]string{"consumerGroup": "go-feat-direct", "clientId": id, "msgId": sent.OffsetMsgID}
	code, remark, body, err := ask(309, fields)
	if err != nil || code != 0 || !bytes.Contains(body, []byte(`"consumeResult":0`)) {
		return fmt.Errorf("309: code %d, %s, %s, %v", code, remark, body, err)
	}
	if seen := strings.Join(got.all(), " "); seen != "again again" {
		return errors.New("saw " + seen)
	}
	code, remark, body, err = ask(307, map[string]string{"consumerGroup": "go-feat-direct", "clientId": id, "jstackEnable": "false"})
	if err != nil || code != 0 || !bytes.Contains(body, []byte("GoFeatDirect")) {
		return fmt.Errorf("307: code %d, %s, %s, %v", code, remark, body, err)
	}
	return nil
}

func reset() error {
	if err := sendBodies("GoFeatReset", "a0", "a1", "a2", "a3"); err != nil {
		return err
	}
	first, _, err := collector("feat-reset-first", "go-feat-reset", "GoFeatReset", consumer.MessageSelector{})
	if err != nil {
		return err
	}
	// Its shutdown stores the offsets; only a group that has some can be reset.
	err = consumed("go-feat-reset", "GoFeatReset", 4)
	if stopped := first.Shutdown(); err == nil {
		err = stopped
	}
	if err != nil {
		return err
	}
	made, got, err := collector("feat-reset", "go-feat-reset", "GoFeatReset", consumer.MessageSelector{})
	if err != nil {
		return err
	}
	defer made.Shutdown()
	if err = pulling("go-feat-reset", "GoFeatReset"); err != nil {
		return err
	}
	fields := map[string]string{"topic": "GoFeatReset", "group": "go-feat-reset", "timestamp": "0", "isForce": "true"}
	code, remark, body, err := ask(222, fields)
	if err != nil || code != 0 {
		return fmt.Errorf("222: code %d, %s, %s, %v", code, remark, body, err)
	}
	// The client rests for ten seconds and takes its queues anew with the next rebalance: a second member calls for one.
	time.Sleep(10500 * time.Millisecond)
	other, again, err := collector("feat-reset-other", "go-feat-reset", "GoFeatReset", consumer.MessageSelector{})
	if err != nil {
		return err
	}
	defer other.Shutdown()
	// what moves to the second member before it was committed comes twice
	err = eventually("all again", func() bool {
		both := &inbox{bodies: append(got.all(), again.all()...)}
		return both.set() == "a0 a1 a2 a3"
	})
	if err != nil {
		return fmt.Errorf("%w; saw %s and %s", err, got.all(), again.all())
	}
	return nil
}

// -- traces -----------------------------------------------------------------------------------------------------------
// trace prints the id of a message that was sent and consumed with traces: who runs this reads them.
func trace() error {
	config := &primitive.TraceConfig{GroupName: "go-feat-trace", NamesrvAddrs: namesrv, Access: primitive.Local}
	traced, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName("go-feat-traced"),
		producer.WithInstanceName("feat-traced"), producer.WithTrace(config))
	if err != nil {
		return err
	}
	if err = traced.Start(); err != nil {
		return err
	}
	message := primitive.NewMessage("GoFeatTrace", []byte("traced")).WithTag("tag").WithKeys([]string{"key1", "key2"})
	sent, err := traced.SendSync(context.Background(), message)
	if err != nil {
		return err
	}
	// both run on to the end: a dispatcher that is closed drops what comes from then on
	_, got, err := collector("feat-trace", "go-feat-trace", "GoFeatTrace", consumer.MessageSelector{}, consumer.WithTrace(config))
	if err != nil {
		return err
	}
	fmt.Println("message\t" + sent.MsgID)
	return eventually("the message", func() bool { return len(got.all()) == 1 })
}
