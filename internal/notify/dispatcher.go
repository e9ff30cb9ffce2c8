package notify

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxQueued bounds the notifications that wait for one rule.
	maxQueued = 64
	// A rule sends one notification in sendEvery, after a quiet time up to sendAtOnce without a pause.
	sendEvery  = 10 * time.Second
	sendAtOnce = 10
	// maxTries is how often a URL is tried, with pauses from firstPause on, each twice as long as the last.
	maxTries = 6
)

// firstPause is a variable for tests.
var firstPause = time.Second

// Dispatcher sends notifications by rules. It never blocks its caller.
type Dispatcher struct {
	log    *slog.Logger
	stop   context.CancelFunc
	ended  sync.WaitGroup
	queues []*queue
}

// queue has the notifications that wait for a rule.
type queue struct {
	rule *Rule
	wait chan Notification

	dropped int // because the queue was full. Only the caller of Send uses it
}

// NewDispatcher starts a worker for each rule.
func NewDispatcher(rules []Rule, log *slog.Logger) *Dispatcher {
	ctx, stop := context.WithCancel(context.Background())
	d := &Dispatcher{log: log, stop: stop}
	for i := range rules {
		q := &queue{rule: &rules[i], wait: make(chan Notification, maxQueued)}
		d.queues = append(d.queues, q)
		d.ended.Go(func() { d.work(ctx, q) })
	}
	return d
}

// Send queues a notification for each rule that wants it. If a queue is full, it drops the notification. Only
// one goroutine may call it.
func (d *Dispatcher) Send(n Notification) {
	for _, q := range d.queues {
		if !q.rule.wants(n.Kind) {
			continue
		}
		select {
		case q.wait <- n:
			if q.dropped > 0 {
				d.log.Warn("notifications were dropped: too many were waiting", "to", q.rule.Title(), "dropped", q.dropped)
				q.dropped = 0
			}
		default:
			if q.dropped++; q.dropped == 1 {
				d.log.Warn("notifications are dropped from now on: too many are waiting", "to", q.rule.Title(), "waiting", maxQueued)
			}
		}
	}
}

// Close ends all workers. It logs how many notifications were not sent.
func (d *Dispatcher) Close() {
	d.stop()
	d.ended.Wait()
	for _, q := range d.queues {
		if n := len(q.wait) + q.dropped; n > 0 {
			d.log.Warn("notifications were dropped: ration notify ends, or its file has changed", "to", q.rule.Title(), "dropped", n)
		}
	}
}

// work sends the notifications of a queue until the context ends.
func (d *Dispatcher) work(ctx context.Context, q *queue) {
	limit := rate.NewLimiter(rate.Every(sendEvery), sendAtOnce)
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-q.wait:
			err := limit.Wait(ctx)
			if err == nil {
				err = q.rule.retry(ctx, &n)
			}
			if err != nil {
				d.log.Error("a notification was not sent", "to", q.rule.Title(), "kind", n.Kind, "text", n.Text, "error", err)
			}
		}
	}
}

// retry sends a notification, and tries again after an error that may pass.
func (r *Rule) retry(ctx context.Context, n *Notification) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := r.Send(ctx, n)
		if !errors.Is(err, errPasses) || try == maxTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
			pause *= 2
		}
	}
}
