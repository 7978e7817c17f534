package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// limited sends as fast as it can to a broker that takes some requests a second. The client has no error of its own for
// code 2, only the broker's words. What is refused is sent again after a pause.
func limited() error {
	// So many at once, again until some were too many: one after the other, a slow machine sends less
	// than it may. The first one alone: sends that all look for the route fail where one has begun.
	var refused atomic.Int64
	expected := map[string]bool{}
	for refused.Load() == 0 {
		failed := make(chan error, 60)
		for i := 0; i < cap(failed); i++ {
			body := fmt.Sprint("l", len(expected))
			expected[body] = true
			send := func() { failed <- putOnce(body, &refused) }
			if i == 0 {
				send()
			} else {
				go send()
			}
		}
		for i := 0; i < cap(failed); i++ {
			if err := <-failed; err != nil {
				return err
			}
		}
	}
	_, err := receive("go-limited", "GoLimited", "*", expected)
	return err
}

// putOnce sends until it is taken, and counts how often that was too much.
func putOnce(body string, refused *atomic.Int64) error {
	for {
		_, err := put(primitive.NewMessage("GoLimited", []byte(body)))
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "[RATE_LIMIT]system busy") {
			return err
		}
		refused.Add(1)
		time.Sleep(200 * time.Millisecond)
	}
}
