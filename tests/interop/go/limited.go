package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// limited sends as fast as it can to a broker that takes some requests a second. The client has no error of its own for
// code 2, only the broker's words. What is refused is sent again after a pause.
func limited() error {
	refused := 0
	expected := map[string]bool{}
	for i := 0; i < 60; i++ {
		body := fmt.Sprint("l", i)
		expected[body] = true
		for {
			_, err := put(primitive.NewMessage("GoLimited", []byte(body)))
			if err == nil {
				break
			}
			if !strings.Contains(err.Error(), "[RATE_LIMIT]system busy") {
				return err
			}
			refused++
			time.Sleep(200 * time.Millisecond)
		}
	}
	if refused == 0 {
		return errors.New("nothing was refused")
	}
	_, err := receive("go-limited", "GoLimited", "*", expected)
	return err
}
