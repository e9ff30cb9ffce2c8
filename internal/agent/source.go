package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ration/internal/fleet"
	"ration/internal/node"
	"ration/machine"
)

// findInterval is how often a Source without an agent tries to find one. Tests set it.
var findInterval = 2 * time.Second

// Source gives a page the machine as an agent sees it. While no agent answers, it runs an agent in
// this process. The page continues when the agent ends or another one starts.
type Source struct {
	ctx     context.Context
	own     Options // options of the agent in this process
	noAgent bool
	warn    func(error)
	ended   chan struct{}
	feed    *fleet.Feed
	ring    *eventRing // drops events that another agent has sent already

	mu      sync.Mutex // guards the fields below
	machine *machine.Machine
	events  []machine.Event
	history func() (node.History, error)
	local   bool // the agent is in this process
	silent  bool // an agent exists but does not answer
}

// NewSource returns a Source that has a first snapshot. It lasts until the context ends. With
// noAgent it connects to no other agent. It calls warn when an agent does not answer.
func NewSource(ctx context.Context, own Options, noAgent bool, warn func(error)) (*Source, error) {
	s := &Source{ctx: ctx, own: own, noAgent: noAgent, warn: warn, ended: make(chan struct{}), feed: fleet.NewFeed(), ring: newEventRing()}
	first := make(chan error, 1)
	go s.run(sync.OnceFunc(func() { first <- nil }), first)
	return s, <-first
}

// Close waits until the agent in this process has ended. The context must have ended.
func (s *Source) Close() { <-s.ended }

// run follows an agent while one answers, and otherwise an agent in this process.
func (s *Source) run(begun func(), first chan<- error) {
	defer close(s.ended)
	defer begun()
	stop := func() {} // stops the agent in this process
	defer func() { stop() }()
	local := false
	for s.ctx.Err() == nil {
		err := ErrNone
		if !s.noAgent {
			err = s.follow(func() {
				stop()
				stop, local = func() {}, false
			}, begun)
		}
		silent := errors.Is(err, ErrSilent)
		if silent && !local && s.ctx.Err() == nil {
			s.warn(fmt.Errorf("%w: the page shows the machine as this process sees it", err))
		}
		s.mu.Lock()
		s.silent = silent
		s.mu.Unlock()
		if !local && s.ctx.Err() == nil {
			end, err := s.start(begun)
			if err != nil {
				first <- err
				return
			}
			stop, local = end, true
		}
		wait := findInterval
		if silent {
			wait = Rest
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(wait):
		}
	}
}

// follow follows an agent until that agent ends. It calls answers at the first answer.
func (s *Source) follow(answers, begun func()) error {
	c, err := Find()
	if err != nil {
		return err
	}
	first := sync.OnceFunc(answers)
	for u, err := range c.Watch(s.ctx) {
		if err != nil {
			return err
		}
		first()
		s.set(u, c.History, false)
		begun()
	}
	return nil
}

// start starts an agent in this process and follows it until stop is called.
func (s *Source) start(begun func()) (stop func(), err error) {
	a, err := New(s.own)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var all sync.WaitGroup
	ready := make(chan struct{})
	all.Go(func() { _ = a.Run(ctx, func() { close(ready) }) }) // New has returned every error that is possible
	<-ready
	all.Go(func() {
		for u := range a.Watch(ctx) {
			s.set(u, a.History, true)
			begun()
		}
	})
	return func() {
		cancel()
		all.Wait()
	}, nil
}

func (s *Source) set(u Update, history func() (node.History, error), local bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring.add(u.Events)) > 0 {
		s.events, _ = s.ring.since(0)
	}
	s.machine, s.history, s.local = u.Machine, history, local
	s.feed.Advance()
}

// Latest returns the machine, the latest events, and a channel that is closed when either changes.
// Neither is modified later.
func (s *Source) Latest() (*machine.Machine, []machine.Event, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, next := s.feed.Latest()
	return s.machine, s.events, next
}

// History returns the history of the last minutes.
func (s *Source) History() (node.History, error) {
	s.mu.Lock()
	history := s.history
	s.mu.Unlock()
	return history()
}

// Note returns a remark for the page if there is no agent, because the history is shorter then.
func (s *Source) Note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.local || s.noAgent:
		return ""
	case s.silent:
		return "The agent does not answer: the history begins with this page."
	}
	return "No agent runs: the history begins with this page."
}
