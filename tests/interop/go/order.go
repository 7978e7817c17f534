package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Scenarios of features.go that are about order.

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
	scenario := []struct {
		joins, gets string
		kills       bool
	}{{"", "victim", false}, {"first", "victim", false}, {"second", "first", false}, {"third", "second", true}}
	for _, part := range scenario {
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
