package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ration/check/expect"
	"ration/internal/agent/privsep"
	"ration/machine"
)

// stopTest is a stopper with the time of a synctest bubble.
type stopTest struct {
	*stopper
	t    *testing.T
	log  bytes.Buffer
	did  []string // signals, with their users and PIDs
	fail error
}

func newStopTest(t *testing.T) *stopTest {
	s := &stopTest{t: t}
	s.stopper = newStopper(func(_ context.Context, r privsep.Stop) (pids []int, err error) {
		for _, p := range r.Processes {
			pids = append(pids, p.PID)
		}
		if s.fail != nil {
			pids = pids[:0]
		}
		s.did = append(s.did, fmt.Sprint(r.Signal(), " ", r.UID, " ", pids))
		return pids, s.fail
	}, 30*time.Second, func(string) {}, slog.New(slog.NewTextHandler(&s.log, nil)))
	return s
}

// scan is a scan, a while after the last one, that finds these jobs over their limits.
func (s *stopTest) scan(after time.Duration, escapes ...machine.Escape) {
	time.Sleep(after)
	s.check(escapes, time.Now())
	synctest.Wait()
}

// want checks what was done since the last call.
func (s *stopTest) want(want ...string) {
	s.t.Helper()
	expect.Equal(s.t, strings.Join(s.did, ", "), strings.Join(want, ", "))
	s.did = nil
}

func escape(pids ...int) machine.Escape {
	e := machine.Escape{Job: machine.JobID{Path: "/run/ration/train/region"}, Title: "train", Over: 5 << 30}
	for _, pid := range pids {
		e.Processes = append(e.Processes, machine.Escapee{PID: pid, Started: uint64(10 * pid), UID: 1000 + pid/100})
	}
	return e
}

// A job over its limit gets a grace period, then SIGTERM, then SIGKILL. Each process gets each signal once.
func TestStopper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStopTest(t)
		defer s.close()
		s.scan(0, escape(1, 2, 101))
		s.scan(29*time.Second, escape(1, 2, 101))
		s.want()
		s.scan(time.Second, escape(1, 2, 101))
		s.want("terminated 1000 [1 2]", "terminated 1001 [101]")
		s.scan(time.Second, escape(1, 2, 101))
		s.scan(27*time.Second, escape(1, 3)) // a new process gets no grace period
		s.want("terminated 1000 [3]")
		s.scan(3*time.Second, escape(1, 3))
		s.want("killed 1000 [1 3]")
		s.scan(time.Second, escape(1, 3, 4))
		s.want("killed 1000 [4]")
		events := s.take()
		expect.Must(t, len(events) == 6, events)
		first, second := events[0], events[1]
		expect.True(t, first.Stop.Signal == "" && len(first.Stop.PIDs) == 3 && first.Text == "job train is over its limit by 5 GiB, and the agent will end its processes in 30s", first)
		expect.True(t, second.Stop.Signal == "SIGTERM" && second.Stop.Over == 5<<30 && second.Text == "job train was over its limit by 5 GiB, and the agent has sent SIGTERM to 2 processes (1, 2)", second)
		expect.Equal(t, len(s.take()), 0)
	})
}

// A job that is within its limit for moments gains nothing by that; one that stays within it is forgotten.
func TestStopperWithBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStopTest(t)
		defer s.close()
		for range 6 {
			s.scan(5*time.Second, escape(1))
			s.scan(5 * time.Second)
			s.scan(5 * time.Second)
		}
		s.want("terminated 1000 [1]", "killed 1000 [1]")
		s.scan(20 * time.Second)
		expect.Equal(t, len(s.over), 0)
		s.scan(time.Second, escape(1))
		s.scan(29*time.Second, escape(1))
		s.want()
	})
}

// A stop that fails is tried again later, does not hold up other stops, and is logged once.
func TestStopperFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStopTest(t)
		defer s.close()
		s.scan(0, escape(1))
		s.fail = errors.New("process 1: refused")
		s.scan(30*time.Second, escape(1))
		s.scan(time.Second, escape(1, 2))
		s.want("terminated 1000 []", "terminated 1000 []")
		s.scan(8*time.Second, escape(1, 2))
		s.want()
		s.fail = nil
		s.scan(2*time.Second, escape(1, 2))
		s.want("terminated 1000 [1 2]")
		expect.Equal(t, strings.Count(s.log.String(), "could not be ended"), 1, s.log.String())
	})
}

// A job with more processes than a request can have is ended in several.
func TestStopperMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStopTest(t)
		defer s.close()
		e := escape(make([]int, 150)...)
		for i := range e.Processes {
			e.Processes[i] = machine.Escapee{PID: i + 1, Started: 1, UID: 7}
		}
		s.scan(0, e)
		for range 4 {
			s.scan(30*time.Second/3+time.Millisecond, e)
		}
		n := 0
		for _, did := range s.did {
			n += len(strings.Fields(did)) - 2
		}
		expect.True(t, len(s.did) == 2 && n == 2*privsep.MaxStop, s.did)
		for range 2 * maxTried / privsep.MaxStop {
			s.scan(time.Second, e)
		}
		expect.True(t, len(s.over[e.Job].tried) == 150, len(s.over[e.Job].tried))
	})
}

// Without the choice nothing is ended, nor remembered.
func TestStopperIsOff(t *testing.T) {
	s := newStopper(nil, time.Second, func(string) {}, nil)
	defer s.close()
	s.check([]machine.Escape{escape(1)}, time.Now())
	expect.True(t, len(s.over) == 0 && len(s.take()) == 0)
}
