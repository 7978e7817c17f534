package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// -- order ------------------------------------------------------------------------------------------------------------
func orderly() error {
	if err := sendBodies("GoFeatOrder", "warm", "warm", "warm", "warm"); err != nil {
		return err
	}
	sender, err := queueSender("feat-order-sender")
	if err != nil {
		return err
	}
	defer sender.Shutdown()
	var mutex sync.Mutex
	last := map[int]int{}
	done, wrong := 0, ""
	all := consumer.MessageSelector{}
	handle := func(message *primitive.MessageExt) consumer.ConsumeResult {
		var queue, number int
		if count, _ := fmt.Sscanf(string(message.Body), "%d:%d", &queue, &number); count == 2 {
			mutex.Lock()
			defer mutex.Unlock()
			// one that was being handled when its member left comes again; none may be left out
			if number > last[queue]+1 {
				wrong = fmt.Sprintf("%d after %d in queue %d", number, last[queue], queue)
			}
			if number == last[queue]+1 {
				last[queue] = number
				done++
			}
		}
		return consumer.ConsumeSuccess
	}
	first, err := member("feat-order-1", "go-feat-order", "GoFeatOrder", all, handle, consumer.WithConsumerOrder(true))
	if err != nil {
		return err
	}
	for i := 0; i < 200; i++ {
		if err = toQueue(sender, "GoFeatOrder", i%4, fmt.Sprintf("%d:%d", i%4, i/4+1)); err != nil {
			return err
		}
	}
	err = eventually("200 in order", func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return done == 200
	})
	if stopped := first.Shutdown(); err == nil {
		err = stopped
	}
	if err == nil && wrong != "" {
		err = errors.New(wrong)
	}
	return err
}

// Numbers of each queue as members take them, in whatever process.
type turns struct {
	mutex sync.Mutex
	last  map[string]int
	taken map[string]int
	done  int
	wrong string
}

func (t *turns) take(member, body string) {
	queue, text, found := strings.Cut(body, ":")
	number, err := strconv.Atoi(text)
	if !found || err != nil {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.taken[member]++
	// one that was being handled when its member left comes again; none may be left out
	if number > t.last[queue]+1 {
		t.wrong = fmt.Sprintf("%s: %d after %d in queue %s", member, number, t.last[queue], queue)
	}
	if number == t.last[queue]+1 {
		t.last[queue] = number
		t.done++
	}
}

func (t *turns) by(member string) int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.taken[member]
}

func orderlyMember(name string, take func(member, body string)) (rocketmq.PushConsumer, error) {
	handle := func(message *primitive.MessageExt) consumer.ConsumeResult {
		take(name, string(message.Body))
		return consumer.ConsumeSuccess
	}
	return member("feat-kill-"+name, "go-feat-kill", "GoFeatKill", consumer.MessageSelector{}, handle,
		consumer.WithConsumerOrder(true), consumer.WithRebalanceLockInterval(500*time.Millisecond))
}

// beKilled says what it consumes, before the broker knows.
func beKilled() error {
	_, err := orderlyMember("victim", func(_, body string) { fmt.Println(body) })
	if err == nil {
		select {}
	}
	return err
}

// lockLives is longer than the broker keeps the locks of who does not renew them. This client asks for a queue when
// the group changes, so whoever joins before that gets nothing: it gives no lock back before it leaves.
const lockLives = 2000 * time.Millisecond

func orderlyKill() error {
	if err := sendBodies("GoFeatKill", "warm", "warm", "warm", "warm"); err != nil {
		return err
	}
	seen := &turns{last: map[string]int{}, taken: map[string]int{}}
	victim := exec.Command(os.Args[0], os.Args[1], os.Args[2], os.Args[3], "victim")
	output, err := victim.StdoutPipe()
	if err == nil {
		err = victim.Start()
	}
	if err != nil {
		return err
	}
	defer victim.Process.Kill()
	read := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			seen.take("victim", lines.Text())
		}
		close(read)
	}()
	var count atomic.Int32
	var failed atomic.Value
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		failed.Store(fmt.Sprint(sendInOrder(&count, stop)))
	}()
	// each member joins when the locks of what the last change took away are over
	story := []struct {
		joins, gets string
		kills       bool
	}{{"", "victim", false}, {"first", "victim", false}, {"second", "first", false}, {"third", "second", true}}
	for _, part := range story {
		if part.kills {
			_ = victim.Process.Kill()
			<-read
		}
		if part.joins != "" {
			time.Sleep(lockLives)
			made, err := orderlyMember(part.joins, seen.take)
			if err != nil {
				return err
			}
			defer made.Shutdown()
		}
		before := seen.by(part.gets)
		if err = eventually(part.gets+" gets some", func() bool { return seen.by(part.gets) >= before+10 }); err != nil {
			return err
		}
	}
	close(stop)
	<-stopped
	err = eventually("all in order", func() bool {
		seen.mutex.Lock()
		defer seen.mutex.Unlock()
		return seen.done == int(count.Load())
	})
	if err == nil && seen.wrong != "" {
		err = errors.New(seen.wrong)
	}
	if text := failed.Load(); err == nil && text != "<nil>" {
		err = fmt.Errorf("sending: %v", text)
	}
	return err
}

func sendInOrder(count *atomic.Int32, stop chan struct{}) error {
	sender, err := queueSender("feat-kill-sender")
	if err != nil {
		return err
	}
	defer sender.Shutdown()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
		if err = toQueue(sender, "GoFeatKill", i%4, fmt.Sprintf("%d:%d", i%4, i/4+1)); err != nil {
			return err
		}
		count.Add(1)
	}
}

func orderlyRetry() error {
	if err := sendBodies("GoFeatOrderRetry", "warm", "warm", "warm", "warm"); err != nil {
		return err
	}
	sender, err := queueSender("feat-order-retry-sender")
	if err != nil {
		return err
	}
	defer sender.Shutdown()
	for i := 0; i < 4; i++ {
		if err = toQueue(sender, "GoFeatOrderRetry", 1, fmt.Sprint("o", i)); err != nil {
			return err
		}
	}
	got, tries := &inbox{}, 0
	handle := func(message *primitive.MessageExt) consumer.ConsumeResult {
		body := string(message.Body)
		if body == "warm" {
			return consumer.ConsumeSuccess
		}
		got.add(body)
		if body == "o1" {
			if tries++; tries < 3 {
				return consumer.SuspendCurrentQueueAMoment
			}
		}
		return consumer.ConsumeSuccess
	}
	made, err := member("feat-order-retry", "go-feat-order-retry", "GoFeatOrderRetry", consumer.MessageSelector{}, handle,
		consumer.WithConsumerOrder(true), consumer.WithSuspendCurrentQueueTimeMillis(20*time.Millisecond))
	if err != nil {
		return err
	}
	err = eventually("o3", func() bool { return strings.Contains(got.set(), "o3") })
	if stopped := made.Shutdown(); err == nil {
		err = stopped
	}
	if seen := strings.Join(got.all(), " "); err == nil && seen != "o0 o1 o1 o1 o2 o3" {
		err = errors.New("saw " + seen)
	}
	return err
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

func delay() error {
	if err := sendBodies("GoFeatDelay", "now"); err != nil {
		return err
	}
	var mutex sync.Mutex
	arrived, due := map[string]time.Time{}, map[string]time.Time{}
	made, err := member("feat-delay", "go-feat-delay", "GoFeatDelay", consumer.MessageSelector{}, func(message *primitive.MessageExt) consumer.ConsumeResult {
		mutex.Lock()
		defer mutex.Unlock()
		arrived[string(message.Body)] = time.Now()
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return err
	}
	for level, seconds := range map[int]int{1: 1, 4: 1, 18: 3} {
		body := fmt.Sprint("level", level)
		due[body] = time.Now().Add(time.Duration(seconds) * time.Second).Truncate(time.Millisecond)
		if _, err = put(primitive.NewMessage("GoFeatDelay", []byte(body)).WithDelayTimeLevel(level)); err != nil {
			return err
		}
	}
	err = eventually("all delayed", func() bool {
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

// -- pull -------------------------------------------------------------------------------------------------------------
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
	id, err := onlineMember("go-feat-last")
	if err != nil {
		return err
	}
	err = eventually("four queues", func() bool {
		code, _, body, err := ask(307, map[string]string{"consumerGroup": "go-feat-last", "clientId": id, "jstackEnable": "false"})
		return err == nil && code == 0 && bytes.Count(body, []byte(`"topic":"GoFeatLast"`)) >= 4 && !bytes.Contains(body, []byte(`"lastPullTimestamp":0`))
	})
	if err != nil {
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
	// the client's time has seconds only, and means UTC
	second := time.Now().Truncate(time.Second).Add(2 * time.Second)
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
	first, got, err := collector("feat-reset-first", "go-feat-reset", "GoFeatReset", consumer.MessageSelector{})
	if err != nil {
		return err
	}
	// Its shutdown stores the offsets; only a group that has some can be reset.
	err = eventually("four messages", func() bool { return len(got.all()) == 4 })
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
	if _, err = onlineMember("go-feat-reset"); err != nil {
		return err
	}
	time.Sleep(time.Second)
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
	err = eventually("all again", func() bool { return sorted(append(got.all(), again.all()...)...) == "a0 a1 a2 a3" })
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
