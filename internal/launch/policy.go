package launch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/connlimit"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
)

// InForceFile exists while a policy is in force.
const InForceFile = job.InForceFile

// RunRequest is the word with which a user requests a run: UID run NAME RATION [visible=LIST] [project=PROJECT]. With
// waitAnswer at its end, it waits in root's queue while there is no room for the user's ration, if the user's rule lets programs wait.
const RunRequest = "run"

// TryRequest is RunRequest of a command that waits: if the run may be given later, the answer begins with BusyAnswer,
// and is no refusal. With waitAnswer at its end, it waits whatever the rule says.
const (
	TryRequest = "try"
	BusyAnswer = "busy"
)

// EndRequest is the word with which a launcher returns the part of a run that no process uses any more: UID end NAME.
const EndRequest = "end"

// errBusy is returned if the run may be given later.
var errBusy = errors.New("not now")

// runTimeout bounds the wait for a run, which usually takes milliseconds.
const runTimeout = 10 * time.Second

// joinUsers prepares a command of a user under a policy. The command is in the user's job, like all
// programs of the user. With limits of its own it is in a run, which takes them from the user's
// ration (docs/adr/0013-one-job-for-each-user.md).
func (p Plan) joinUsers(j *Job) (_ *Job, err error) {
	limited := p.Settings.Memory.IsSet()
	switch {
	case p.Keep:
		return nil, ruledError("--keep")
	case p.FakeGPU != "":
		return nil, ruledError("--fake-gpu")
	case p.Settings.Round != 0:
		return nil, ruledError("a round of its own")
	case p.Settings.WaitAlloc != 0:
		return nil, fmt.Errorf("%w: in the jobs of this machine's policy no request for memory waits (leave --wait-alloc out; --wait lets the command wait before it starts)", ErrNested)
	case !limited && (p.Settings.Compute.IsSet() || p.Settings.ComputeMax.IsSet()):
		return nil, ruledError("a share of its own and no --mem")
	case !limited && p.Settings.Priority != 0:
		return nil, ruledError("a priority of its own and no --mem")
	case !limited && p.SleepAfter != 0:
		return nil, fmt.Errorf("%w: this machine's policy puts all your programs into one job, which sleeps as the policy says (leave --sleep-after out; with --mem the command has a job of its own)", ErrNested)
	case !limited && p.Settings.Devices.IsSet():
		return nil, ruledError("a number of devices and no --mem")
	}
	if p.Name == proc.UserName(os.Getuid()) {
		return nil, fmt.Errorf("job %s: %w by all your programs (choose another --name)", p.Name, job.ErrInUse)
	}
	if j.path, err = findCommand(p.Command[0]); err != nil {
		return nil, err
	}
	if !limited && p.Sources.Misplaced {
		p.Warn(p.misplacedText())
	}
	j.environ, j.ruled, j.region = os.Environ(), true, job.OfUserPath(os.Getuid())
	if p.SleepFast {
		(*environment)(&j.environ).set(EnvSleepFast, "1")
	}
	if !limited && p.Name == "" && !p.Record {
		return j, nil
	}
	if p.Join && p.joinRun(j) {
		if j.Lock, err = job.JoinRecord(p.Name); err == nil { // otherwise the run ends now, and nobody asks how the command does
			j.Joined = true
		}
		return j, nil
	}
	if p.Name == "" {
		p.Name = runName(p.Command[0])
	}
	if limited {
		if err := p.checkLeast(); err != nil {
			return nil, err
		}
		if err := p.checkVisible(os.Getenv(visibleDevices)); err != nil && rationPlace().Count() == abi.Devices { // it numbers the ration's
			return nil, err
		}
		j.region = job.RunPath(os.Getuid(), p.Name)
	}
	if p.Wait != nil {
		return j, p.startWhenRoom(j)
	}
	return j, p.startByRule(j)
}

// startByRule is start of a command that waits if the user's rule says so. While it waits, the user's queue has its name.
func (p Plan) startByRule(j *Job) error {
	var t *job.Ticket
	defer func() {
		if t != nil {
			t.Leave() // after the run is made
		}
	}()
	return p.start(j, RunRequest, func(line string) (answer string, file *os.File, err error) {
		answer, file, _, err = (&service{patient: true}).ask(line, time.Time{}, func(why string) {
			p.Warn(waitsForRation + why)
			p.Wait = &Wait{}
			if w, err := p.runWaiter(); err == nil && t == nil {
				t, _ = p.enqueue(w) // without it the command waits without its name
			}
		})
		return answer, file, err
	})
}

// start takes a run, if the command has limits, and records the command. ask is as for takeRun. The record is last: a command
// that is refused, or ended while it waits, leaves none, and does not replace that of an earlier command of this name.
func (p Plan) start(j *Job, request string, ask asker) error {
	if p.Settings.Memory.IsSet() {
		if !p.Join {
			if err := job.CheckUnused(p.Name); err != nil {
				return err
			}
		}
		if err := p.takeRun(j, request, ask); err != nil {
			return err
		}
	}
	if err := p.record(j); err != nil {
		if j.run != nil {
			j.endRun(p.Name)
		}
		return err
	}
	return nil
}

// runWaiter returns a waiter for a run in the ration of the user.
func (p Plan) runWaiter() (*waiter, error) {
	driver, missing := KnownDevices()
	if missing != nil {
		return nil, fmt.Errorf("waiting for room: %w", missing)
	}
	defer driver.Close()
	limits, err := p.limits(driver, missing)
	if err != nil {
		return nil, err
	}
	at := rationPlace()
	limits = limits.Restrict(at)
	wants, err := p.wants(limits, driver, missing)
	if err != nil {
		return nil, err
	}
	w := p.newWaiter(wants, driver)
	if p.RationOn != nil && w.devices == 0 && at.Count() == abi.Devices { // the ration has no place yet
		w.devices = p.RationOn()
	}
	if w.devices >= len(wants) {
		w.devices = 0 // on all that the ration is on
	}
	return w, nil
}

// startWhenRoom is start as soon as the ration of the user has room for the run, for commands of the user in the order
// in which they came.
func (p Plan) startWhenRoom(j *Job) error {
	w, err := p.runWaiter()
	if wrong := (*limit.InputError)(nil); errors.As(err, &wrong) { // no wait helps: the service refuses it, and knows the ration
		return p.startByRule(j)
	}
	if err != nil {
		return err
	}
	t, err := p.enqueue(w)
	if err != nil {
		return err
	}
	defer t.Leave() // after the run is made
	if err := w.untilFirst(t); err != nil {
		return err
	}
	ask := job.Backoff{First: askFirst, Last: askService}
	for announced := false; ; announced = true {
		err := p.start(j, TryRequest, w.askPolicy)
		if !errors.Is(err, errBusy) {
			return err
		}
		if !announced {
			w.announced = true
			w.tell(fmt.Sprintf("waiting for %s of your ration: first in the queue; %v", humanfmt.OnGPUs(w.shown()), err))
		}
		select {
		case <-time.After(ask.After(0)):
		case <-w.expired:
			return w.noRoom("")
		}
	}
}

// joinRun lets the command join the run of that name, if there is one in use, and reports whether there is. The
// run lasts while its own command runs, or a process holds its region. If it ends before the command uses CUDA,
// the library refuses that, because the region's creation time is not the one in the environment.
func (p Plan) joinRun(j *Job) bool {
	path := job.RunPath(os.Getuid(), p.Name)
	created, is := job.StandingSince(job.Job{Name: p.Name, Path: path})
	if !is || !job.Running(job.Job{Name: p.Name, Path: filepath.Join(job.Folder(), p.Name, job.RegionName)}) {
		return false
	}
	if p.Settings.Memory.IsSet() {
		p.Warn(fmt.Sprintf("job %s is in use, and the command shares its limits: those given here do not count", p.Name))
	}
	j.region = path
	p.enterRun(j, strconv.FormatInt(created, 10))
	return true
}

// enterRun adds a run to the command's environment.
func (p Plan) enterRun(j *Job, created string) {
	env := (*environment)(&j.environ)
	env.set(EnvRegion, j.region)
	env.set(EnvJob, p.Name)
	env.set(EnvCreated, created)
	if p.chooses() { // among the variable's devices
		env.drop(func(key string) bool { return key == visibleDevices })
	}
}

// record makes a job without a region in the user's own folder. It records the command and how it ends, which
// the user cannot write into root's folder.
func (p Plan) record(j *Job) (err error) {
	joins := p.Join
	p.Join = false // joinRun has found no run of that name, and the record of another command is not shared
	err = p.lockJob(j)
	if joins && errors.Is(err, job.ErrInUse) {
		return fmt.Errorf("job %s: %w, and under this machine's policy a command joins only a run of yours (choose another --name)", p.Name, job.ErrInUse)
	}
	if err != nil {
		return err
	}
	placed := ""
	if j.run != nil {
		placed = job.InfoOf(j.Counted()).Placed
	}
	if err = j.Lock.WriteInfo(job.Info{Command: p.Command, Region: j.region, Placed: placed, Labels: p.Labels, SleepAfter: p.SleepAfter, WakeManual: p.WakeManual}); err == nil {
		err = j.Lock.Share()
	}
	if err != nil {
		j.Discard()
	}
	return err
}

// returnTimeout bounds the wait for the return of a run's part. The service returns it in any case, if later.
const returnTimeout = 2 * time.Second

// endRun ends this process's use of a run, and waits until its part is the user's again, so that what the user starts next
// can have it.
func (j *Job) endRun(name string) {
	_ = j.run.Close()
	c, err := dialPolicy(time.Now().Add(returnTimeout))
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%d %s %s\n", os.Getuid(), EndRequest, name); err == nil {
		_, _, _ = readAnswer(c)
	}
}

// runName returns a name for a run, from the command's name and PID.
func runName(command string) string {
	name := defaultName(command)
	if over := len(job.RunOfUser(os.Getuid(), name)) - limit.MaxName; over > 0 { // the PID is at the end of the name
		name = strings.TrimLeft(name[over:], ".-")
	}
	return name
}

func ruledError(what string) error {
	return fmt.Errorf("%w: this machine's policy puts all your programs into one job with one ration (ration policy show), and a job with %s would evade it (leave that out; --mem alone takes its limit out of your ration, and ration policy ask changes that)", ErrNested, what)
}

// asker sends a line to the policy's service. It may wait for room for the user's ration.
type asker func(line string) (answer string, file *os.File, err error)

// CheckProject returns an error for a project that a request for a run cannot name.
func CheckProject(project string) error {
	if strings.ContainsFunc(project, unicode.IsSpace) {
		return fmt.Errorf("%q cannot be the name of a project under this machine's policy (leave the space out)", project)
	}
	return nil
}

// reap returns the memory of dead processes of a region, if that can be done.
func reap(path string) {
	if r, err := region.Open(path, region.Options{NoCreate: true}); err == nil {
		_, _ = r.Reap()
		_ = r.Close()
	}
}

// takeRun requests a run, and adds it to the command's environment.
func (p Plan) takeRun(j *Job, how string, ask asker) error {
	if err := CheckProject(p.Labels[job.Project]); err != nil {
		return err
	}
	visible, err := p.visibleWord()
	if err != nil {
		return err
	}
	uid := os.Getuid()
	// Return the memory of dead processes first, because it would count as held outside the run.
	reap(job.OfUserPath(uid)) // the service checks how much is held
	request := fmt.Sprintf("%d %s %s %s%s", uid, how, p.Name, p.Settings.Limits, visible)
	if project := p.Labels[job.Project]; project != "" {
		request += " " + job.Project + "=" + project
	}
	answer, run, err := ask(request + " " + waitAnswer + "\n")
	if errors.Is(err, ErrNoRoom) {
		return err
	}
	if err != nil {
		return fmt.Errorf("asking for a ration for this run: %w", ServiceError(err))
	}
	if why, is := strings.CutPrefix(answer, BusyAnswer+" "); is {
		return fmt.Errorf("%w: %s", errBusy, why)
	}
	created, is := strings.CutPrefix(answer, "ok ")
	if !is || run == nil {
		return fmt.Errorf("%w: %s", ErrRefused, answer)
	}
	p.enterRun(j, created)
	j.run = run
	return nil
}

// WakeRequest is the word with which a user asks for the ration of a job that sleeps, which may be lent: UID wake [wait].
// While the client waits, it gets lines that begin with waitAnswer: one at once, and one whenever its place has become better.
const (
	WakeRequest = "wake"
	waitAnswer  = "wait"
)

// ReturnRation returns when the user's job has its ration again, so that it can wake. The ration is not lent again before
// the file is closed.
func (wait Wait) ReturnRation() (*os.File, error) {
	request := fmt.Sprintf("%d %s", os.Getuid(), WakeRequest)
	until := time.Now().Add(runTimeout)
	switch {
	case wait.Most > 0:
		until, request = time.Now().Add(wait.Most), request+" "+waitAnswer
	case wait.Most == 0:
		until, request = time.Time{}, request+" "+waitAnswer
	}
	began := time.Now()
	answer, promise, why, err := new(service).ask(request+"\n", until, func(why string) { wait.Tell("waiting for the ration: " + why) })
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && why != "":
		return nil, fmt.Errorf("%w for it after %s: %s", ErrNoRoom, humanfmt.Span(time.Since(began)), why)
	case err != nil:
		return nil, fmt.Errorf("asking for the ration: %w", ServiceError(err))
	case answer != "ok" || promise == nil:
		return nil, fmt.Errorf("%w: %s", ErrRefused, answer)
	}
	return promise, nil
}

// readInTurn reads the answer to a request that may wait. It calls tell when the request begins to wait; why says for what
// it waits.
func readInTurn(c *net.UnixConn, tell func(why string)) (answer string, file *os.File, why string, err error) {
	for answer == "" {
		var text string
		if text, file, err = readAnswer(c); err != nil {
			return "", nil, why, err
		}
		for line := range strings.Lines(text) { // several if this process was slow to read
			line = strings.TrimSpace(line)
			if reason, waits := strings.CutPrefix(line, waitAnswer+" "); waits {
				why = reason
				tell(why)
			} else {
				answer = line
			}
		}
	}
	return answer, file, why, nil
}

// ErrNoService is returned if nothing answers at the socket of the policy's service.
var ErrNoService = errors.New("the service of this machine's policy does not run, so no ration can be given or changed")

// ServiceError says what a user can do about an error of a connection to the policy's service.
func ServiceError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF):
		return fmt.Errorf("%w (programs that run already keep theirs; have root run: systemctl start ration-policy, or ration policy keep)", ErrNoService)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("the service of this machine's policy did not answer in time (try again; if it stays so, tell your administrator)")
	}
	return err
}

// ErrRefused is returned if the policy does not grant the run.
var ErrRefused = errors.New("refused")

// waitsForRation begins the line about a command that waits.
const waitsForRation = "waiting for your ration, in which the command has its part: "

// askPolicy is an asker, until the time of this waiter is over.
func (w *waiter) askPolicy(line string) (answer string, file *os.File, err error) {
	until := time.Time{}
	if w.most > 0 {
		until = w.began.Add(w.most)
	}
	var why string
	answer, file, why, err = w.service.ask(line, until, func(why string) {
		w.announced = true
		w.tell(waitsForRation + why)
	})
	if errors.Is(err, os.ErrDeadlineExceeded) && why == "" {
		err = w.noRoom(": the service of this machine's policy did not answer")
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		err = w.noRoom(", because there is none for your ration, of which that is a part: " + why)
	}
	return answer, file, err
}

// dialPolicy connects to the policy's service.
func dialPolicy(until time.Time) (*net.UnixConn, error) {
	c, err := connlimit.Dial(filepath.Join(job.RootFolder, job.PolicySocket), runTimeout)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(until)
	return c, nil
}

func readAnswer(c *net.UnixConn) (answer string, file *os.File, err error) {
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, nr, _, _, err := c.ReadMsgUnix(text, rights) // an answer is one write
	if err != nil || n == 0 {
		return "", nil, errors.Join(err, errors.New("no answer"))
	}
	if messages, err := unix.ParseSocketControlMessage(rights[:nr]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			file = os.NewFile(uintptr(fds[0]), "run")
		}
	}
	return strings.TrimSpace(string(text[:n])), file, nil
}
