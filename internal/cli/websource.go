package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"ration/internal/agent"
	"ration/internal/node"
	"ration/machine"
)

// agentAgain is how often it is looked whether there is an agent.
const agentAgain = 2 * time.Second

// webSource is the machine for a page: as an agent sees it, where there is one, and otherwise as
// one in this process does. It goes from one to the other when an agent ends or begins, and the
// page goes on.
type webSource struct {
	ctx     context.Context
	noAgent bool
	own     func() (*agent.Agent, error) // makes the one in this process
	warn    func(error)
	ended   chan struct{}

	mu     sync.Mutex
	client *agent.Client    // under mu, as all below; nil: own
	mirror *agent.Mirror    // of what the client asks; used by who draws, one at a time
	local  *agent.Agent     // nil: there is none
	silent bool             // there is an agent that does not answer
	last   *machine.Machine // what an agent said last
	next   chan struct{}    // closed when there is something new
}

func newWebSource(ctx context.Context, f webFlags, warn func(error)) (*webSource, error) {
	// It has no log, so that it may not say of an event that it was told: no Folder.
	opts := agent.Options{Version: version, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Reap: reapAs}
	if f.readOnly {
		opts.Reap = nil
	}
	s := &webSource{ctx: ctx, noAgent: f.noAgent, own: func() (*agent.Agent, error) { return agent.New(opts) },
		warn: warn, ended: make(chan struct{}), next: make(chan struct{}), last: &machine.Machine{}}
	first := make(chan error, 1)
	go s.run(first)
	return s, <-first
}

func (s *webSource) close() { <-s.ended }

// run follows an agent while there is one that answers, and otherwise looks itself. first is told when
// there is something to show.
func (s *webSource) run(first chan<- error) {
	defer close(s.ended)
	tell := sync.OnceFunc(func() { first <- nil })
	for s.ctx.Err() == nil {
		if c, err := agent.Find(); err == nil && !s.noAgent {
			follow := sync.OnceFunc(func() { s.set(c, nil) }) // when it answers, and not before
			err := c.Changes(s.ctx, func() { follow(); s.changed(); tell() })
			if s.ctx.Err() != nil {
				break
			}
			if s.setSilent(errors.Is(err, agent.ErrSilent)) {
				s.warn(fmt.Errorf("%w: the page shows the machine as this process sees it", err))
			}
		}
		local, err := s.own()
		if err != nil {
			first <- err
			return
		}
		s.look(local, tell)
	}
	tell()
}

// setSilent notes whether there is an agent that does not answer.
func (s *webSource) setSilent(is bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = is
	return is
}

// answers reports whether there is an agent, and it answers.
func (s *webSource) answers() bool {
	c, err := agent.Find()
	is := err == nil && c.Answers()
	s.setSilent(err == nil && !is)
	return is
}

// look looks at the machine in this process, until there is an agent that does.
func (s *webSource) look(local *agent.Agent, tell func()) {
	ctx, stop := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(ended)
		_ = local.Run(ctx, func() { close(ready) })
	}()
	defer func() {
		stop()
		<-ended
	}()
	<-ready
	s.set(nil, local)
	tell()
	again := time.NewTimer(agentAgain)
	defer again.Stop()
	answered := make(chan bool, 1)
	for next := local.Changed(); ; {
		select {
		case <-s.ctx.Done():
			return
		case <-next:
			next = local.Changed() // before it is told, so that nothing is missed
			s.changed()
		case <-again.C:
			if !s.noAgent { // beside this, as it may take a while
				go func() { answered <- s.answers() }()
			}
		case is := <-answered:
			if is {
				return
			}
			again.Reset(s.pause())
		}
	}
}

func (s *webSource) set(c *agent.Client, local *agent.Agent) {
	s.mu.Lock()
	s.client, s.local, s.mirror = c, local, nil
	if c != nil {
		s.mirror = agent.NewMirror(c)
	}
	s.mu.Unlock()
	s.changed()
}

// changed says that there is something new.
func (s *webSource) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.next)
	s.next = make(chan struct{})
}

// Changed returns a channel that is closed when there is something new.
func (s *webSource) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// Machine returns the machine. Where an agent does not answer, which ends a moment before this
// process looks itself, it is what it was.
func (s *webSource) Machine() (*machine.Machine, error) {
	s.mu.Lock()
	mirror, local, last := s.mirror, s.local, s.last
	s.mu.Unlock()
	if mirror == nil {
		return local.Machine(), nil
	}
	m, err := mirror.Machine()
	if err != nil {
		return last, nil
	}
	s.mu.Lock()
	s.last = m
	s.mu.Unlock()
	return m, nil
}

// History returns the last minutes.
func (s *webSource) History() (node.History, error) {
	s.mu.Lock()
	c, local := s.client, s.local
	s.mu.Unlock()
	if c == nil {
		return local.History(), nil
	}
	return c.History()
}

// pause returns after how long it is looked for an agent again.
func (s *webSource) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent {
		return agent.Rest
	}
	return agentAgain
}

// note says that there is no agent: the history is shorter then.
func (s *webSource) note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.client != nil || s.noAgent:
		return ""
	case s.silent:
		return "The agent does not answer: the history begins with this page."
	}
	return "No agent runs: the history begins with this page."
}
