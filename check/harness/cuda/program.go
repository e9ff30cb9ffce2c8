package cuda

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/internal/region"
)

// Program is a running CUDA program. It executes commands, one per line, and answers each with a
// line; check/programs/workload/workload.c describes them.
type Program struct{ *harness.Process }

// Answer is a program's answer to a command.
type Answer struct {
	OutOfMemory bool
	Numbers     []int64       // all numbers of the answer; the last is Slowest
	Slowest     time.Duration // the longest driver call of the command
}

// Start starts a program inside the job or outside.
func (m *StandIn) Start(inJob bool) (*Program, error) { return m.start(in(inJob)) }

// StartNative starts a program outside the job with the same context size as inside.
func (m *StandIn) StartNative() (*Program, error) { return m.start(native) }

func (m *StandIn) start(where place) (*Program, error) {
	m.started++
	cmd := exec.Command(m.program)
	cmd.Env = m.environ(where)
	p, err := harness.Start(harness.Spec{Name: fmt.Sprintf("program %d", m.started), Cmd: cmd})
	if err != nil {
		return nil, err
	}
	return &Program{p}, nil
}

// TellInit makes programs initialise the driver, all at the same instant.
func TellInit(all []*Program) error {
	// The instant is in the future: otherwise the first programs would begin before the last ones
	// get the command.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("reading the clock: %w", err)
	}
	at := now.Nano() + int64(5*time.Millisecond) + int64(len(all))*int64(50*time.Microsecond)
	for _, p := range all {
		p.Tell("init %d", at)
	}
	return nil
}

// Answer waits for the answer to the oldest command without one.
func (p *Program) Answer(within time.Duration) (a Answer, err error) {
	line, err := p.Line(within)
	if err != nil {
		return a, err
	}
	words := strings.Fields(line)
	if len(words) < 2 || words[0] == "error" {
		return a, fmt.Errorf("pid %d: driver returned an error: %s: %s", p.PID(), line, p.Log())
	}
	a.OutOfMemory = words[0] == "oom"
	for _, word := range words[1:] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return a, fmt.Errorf("reading an answer of pid %d: %w", p.PID(), err)
		}
		a.Numbers = append(a.Numbers, n)
	}
	a.Slowest = time.Duration(a.Numbers[len(a.Numbers)-1])
	return a, nil
}

// Do sends the program a command and waits for the answer.
func (p *Program) Do(within time.Duration, format string, args ...any) (Answer, error) {
	p.Tell(format, args...)
	return p.Answer(within)
}

// roles are the library's log messages for how a process attached to the region.
var roles = map[string]region.Role{
	"ready, on the fast path":                               region.FastPath,
	"ready, after waiting for its initialiser":              region.Waited,
	"initialised in place of a process that did not finish": region.Helped,
	"initialised by this process":                           region.Initialiser,
}

// Role returns how the program attached to the region, from the library's log.
func (p *Program) Role() (region.Role, error) {
	log := p.Log()
	for message, role := range roles {
		if strings.Contains(log, fmt.Sprintf(": %s (pid %d)", message, p.PID())) {
			return role, nil
		}
	}
	return 0, fmt.Errorf("pid %d: the library did not log how it attached to the region: %s", p.PID(), log)
}

// Used returns how many bytes of the device are in use, as reported to a program outside the job.
// It can be compared with other counts only while no program allocates or frees.
func (p *Program) Used(within time.Duration) (uint64, error) {
	a, err := p.Do(within, "info")
	if err != nil {
		return 0, err
	}
	if len(a.Numbers) != 3 {
		return 0, fmt.Errorf("pid %d: info answered with %d numbers, not 3", p.PID(), len(a.Numbers))
	}
	return uint64(a.Numbers[1] - a.Numbers[0]), nil
}
