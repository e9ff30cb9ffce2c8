package policy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/termtext"
)

// ErrKept is returned if another process runs the service of the policy.
var ErrKept = errors.New("another process runs the policy's service")

// Socket is where users request their jobs.
var Socket = filepath.Join(job.RootFolder, job.PolicySocket)

// atRequest is a request for a job on certain devices, from a process that has initialised the driver
// with these.
const atRequest = "at"

// moveRequest is a request for a job on other devices: UID move [LIST].
const moveRequest = "move"

// roomRequest asks where the user's ration can be had now: UID room. The answer has a list of devices.
const roomRequest = "room"

const (
	requestTimeout = 5 * time.Second
	maxRequest     = 2048
	maxRequests    = 512 // of all users at once, also those that wait; a user without a request may always make one
	maxOfUser      = 32  // of one user at once
	acceptPause    = 50 * time.Millisecond
)

// keeper is the service of a policy.
type keeper struct {
	log     *slog.Logger
	lines   *connlimit.Lines // of log, because of requests
	records *connlimit.Lines // refusals that have an entry of their own

	sending sync.RWMutex // held for reading while a file is sent

	queue  queue             // users that wait for room
	idle   idleProcesses     // that put jobs to sleep
	turn   turn              // held while jobs are made or changed
	policy *Policy           // in force; guarded by turn
	stays  map[int]time.Time // of rations; guarded by turn
	behind behind            // users that may not have the ration of their rule: no room, or on other devices; only for Keep
}

// turn is a lock that serves the first caller first. A sync.Mutex may serve a later caller before one
// that waits.
type turn chan struct{}

// A send that waits on a full channel is completed by the next receive, in the order of the sends.
func (t turn) lock()   { t <- struct{}{} }
func (t turn) unlock() { <-t }

// maxLines bounds how many lines the log gets in logSpan because of one user's requests: a user can make any
// number.
const (
	logSpan  = time.Minute
	maxLines = 120
)

// maxRecords bounds how many refusals of one user get an entry of their own in logSpan. The last entry
// is the latest of the rest, which are counted.
const maxRecords = 6

func newKeeper(log *slog.Logger, p *Policy) *keeper {
	return &keeper{log: log, policy: p, turn: make(turn, 1), stays: map[int]time.Time{}, queue: queue{users: map[int]*waitingUser{}}, records: connlimit.NewLines(maxRecords, logSpan, func(string, int) {}), lines: connlimit.NewLines(maxLines, logSpan, func(owner string, n int) {
		log.Warn(fmt.Sprintf("%d lines about requests of user %s were not written: there were more than %d in %v", n, owner, maxLines, logSpan), "left_out", n)
	})}
}

// mayLog reports whether one more line may be written because of a user's request.
func (k *keeper) mayLog(uid int) bool {
	return k.lines.Allow(proc.Account(uid), strconv.Itoa(uid), time.Now())
}

// Keep runs the service of the policy in force, until the context or the policy ends. It creates
// jobs for users that need one, and puts the operator's file in force when it changes. Existing
// jobs do not depend on the service. Keep calls ready when it accepts requests.
func Keep(ctx context.Context, log *slog.Logger, ready func()) error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	p, err := InForce()
	if err != nil {
		return err
	}
	if err := makeRunFolder(); err != nil {
		return err
	}
	changes, stop, err := watchFolder(Folder)
	if err != nil {
		return err
	}
	defer stop()
	listener, err := listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	silent.Store(&map[int]error{})
	go watchDevices(ctx)
	look.warnTo(func(text string) { log.Warn(text) })
	k := newKeeper(log, p)
	defer k.lines.Close()
	k.resume()
	k.resumeQueue()
	k.publishQueue()
	k.reload() // the file may have changed earlier
	go k.serve(listener)
	go k.sleepIdle(ctx)
	go k.uncoverAll(ctx)
	ready()
	flush := time.NewTicker(logSpan)
	defer flush.Stop()
	again := time.NewTicker(behindEvery)
	defer again.Stop()
	for {
		select {
		case now := <-flush.C:
			k.lines.Flush(now)
		case <-again.C:
			k.leaveFailed()
			k.catchUp()
		case <-ctx.Done():
			return nil
		case events, open := <-changes:
			if !open {
				return errors.New("watching " + Folder + ": its changes cannot be read")
			}
			if _, err := os.Lstat(InForceFile); errors.Is(err, os.ErrNotExist) {
				log.Info("the policy has been disabled")
				return nil
			}
			if slices.ContainsFunc(events, mayChangeConfig) {
				k.reload()
			}
			if slices.ContainsFunc(events, mayBeApplied) {
				k.noteBehind() // also if only the groups of users have changed
			}
		}
	}
}

// serve answers requests until the listener is closed. It continues after any other error, such as
// too many open files: otherwise all new users would be refused from then on.
func (k *keeper) serve(socket net.Listener) {
	l := connlimit.Listen(socket, connlimit.New(maxOfUser, maxRequests))
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			k.log.Error("accepting a request", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		go func() {
			defer c.Close()
			k.answer(c.(*connlimit.Conn))
		}()
	}
}

// answer answers one request: it reads a line with the user and the request, and writes ok or an error.
func (k *keeper) answer(c *connlimit.Conn) {
	_ = c.SetDeadline(time.Now().Add(requestTimeout))
	line, err := bufio.NewReader(io.LimitReader(c, maxRequest)).ReadString('\n')
	if err != nil {
		return
	}
	var text string
	var held *os.File
	c.User.Begin()
	request, waits := strings.CutSuffix(strings.TrimSuffix(line, "\n"), " "+waitWord)
	handle := func(waits bool) error {
		c.User.Do(func() { text, held, err = k.handle(c.User, c.UID, request, waits) })
		return err
	}
	var full *mustWait
	if errors.As(handle(waits), &full) {
		if err = k.wait(c, full, func() error { return handle(false) }); errors.Is(err, errGone) {
			return
		}
	}
	_ = c.SetDeadline(time.Now().Add(requestTimeout)) // also after a request that took longer
	var later *notNow
	switch {
	case err != nil:
		if !errors.As(err, &later) && k.mayLog(c.UID) {
			k.log.Warn("refused", "user", proc.UserName(c.UID), "uid", c.UID, "error", err)
		}
		_, _ = fmt.Fprintf(c, "%s\n", answerText(err))
	case held != nil:
		k.handOver(c, text, held)
	default:
		_, _ = io.WriteString(c, text)
	}
}

// answerText returns an error as the user reads it.
func answerText(err error) string {
	if errors.Is(err, region.ErrNoSpace) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return "no space is left in " + job.RootFolder + ", where the jobs of all users are (tell your administrator)" // the log has the rest
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// handOver sends a file whose lock keeps a run or a job. If the client does not receive it, closing it here ends the use.
func (k *keeper) handOver(c *connlimit.Conn, text string, held *os.File) {
	k.sending.RLock()
	defer k.sending.RUnlock()
	_, _, _ = c.Conn.(*net.UnixConn).WriteMsgUnix([]byte(text), unix.UnixRights(int(held.Fd())), nil)
	passed("sent")
	_ = held.Close()
}

// awaitSent returns when the files that were sent are closed here. A client can have ended its run before that.
func (k *keeper) awaitSent() {
	k.sending.Lock()
	defer k.sending.Unlock()
}

// handle handles a request of user peer, and returns the answer. If the client waits, the error may be a mustWait. held is a
// file whose lock keeps the run or the user's job until its last copy is closed.
func (k *keeper) handle(user *connlimit.User, peer int, line string, waits bool) (answer string, held *os.File, err error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", nil, errors.New("empty request")
	}
	// A set-uid program of root may make a request for the user that it runs for. Other users may
	// make requests only for themselves, because each job uses memory.
	uid, err := strconv.Atoi(words[0])
	if err != nil || uid < 0 || peer != 0 && uid != peer {
		return "", nil, fmt.Errorf("user %d asked for a job of user %s", peer, words[0])
	}
	if len(words) > 1 && words[1] == launch.EndRequest {
		k.awaitSent()
	}
	err = k.withRations(user, func(r *rations) error {
		answer, held, err = k.answerTo(r, uid, words, waits)
		if !r.unread {
			k.record(uid, err)
		}
		return err
	})
	return answer, held, err
}

// answerTo is handle for a request of a user, with the lock of lockJobs.
func (k *keeper) answerTo(r *rations, uid int, words []string, waits bool) (answer string, held *os.File, err error) {
	has := usable(uid)
	if !has || len(words) > 1 && (words[1] == launch.RunRequest || words[1] == launch.TryRequest) {
		if err := checkSubordinate(uid); err != nil {
			return "", nil, err
		}
	}
	const ok = "ok\n"
	var at region.Place
	if len(words) == 3 && (words[1] == atRequest || words[1] == moveRequest) {
		if at, err = region.ParsePlace(words[2]); err != nil {
			return "", nil, err
		}
	}
	switch {
	case len(words) == 1 || at != 0 && words[1] == atRequest:
		switch {
		case has:
			err = checkPlace(uid, at)
		case waits:
			err = r.ensureOrWait(&mustWait{uid: uid, at: at})
		default:
			// A program that starts CUDA says that it can wait (shim/attach.c). This one only looks at the GPU, which needs no
			// ration: its refusal is not recorded, so the error is none of those that record knows.
			if err = r.ensureNow(uid, at); err != nil {
				err = errors.New(err.Error())
			}
		}
		if err == nil {
			held, err = promise(uid)
		}
		return ok, held, err
	case words[1] == launch.WakeRequest && len(words) == 2:
		held, err = r.wake(uid, waits)
		return ok, held, err
	case words[1] == roomRequest && len(words) == 2:
		at, err = r.room(uid)
		return "ok " + at.List() + "\n", nil, err
	case words[1] == moveRequest && (len(words) == 2 || at != 0):
		_, is := placed(uid)
		if at, err = r.relocate(uid, at); errors.Is(err, ErrOverbooked) {
			if err = (moveError{err}); !is { // no refusal of a ration: the user has asked for none
				err = fmt.Errorf("%w: you have none, and there is %s; a CUDA program, or ration run --mem 4g, asks for one", ErrMove, whyFull(err))
			}
		}
		return "ok " + at.List() + "\n", nil, err
	case words[1] == launch.EndRequest && len(words) == 3:
		return ok, nil, r.returnRun(uid, words[2])
	case (words[1] == launch.RunRequest || words[1] == launch.TryRequest) && len(words) > 3:
		tries := words[1] == launch.TryRequest
		// A run is a part of the user's ration. While there is no room for that, the user waits with a ticket: without
		// one, all users that come later would be served before.
		if waits && (!has || lent(uid)) {
			if at, err = r.couldCarve(uid, words[3:]); err == nil {
				err = r.ensureOrWait(&mustWait{uid: uid, at: at, asked: tries})
			}
		}
		if err == nil {
			answer, held, err = k.handleRun(r, uid, words[2], words[3:])
		}
		return answer, held, unlessLater(err, tries)
	}
	ration, err := limit.ParseLimits(strings.Join(words[1:], " "))
	if err == nil {
		err = r.ask(uid, ration)
	}
	return ok, nil, err
}

// maxHolders bounds the users that a recorded refusal names.
const maxHolders = 8

// record records that a user was refused a ration, for ration why, events and ps. Malformed requests are
// not recorded. The caller holds the lock of lockJobs.
func (k *keeper) record(uid int, refused error) {
	known := []error{ErrOverbooked, ErrTooMuch, ErrRun, ErrRule, ErrPlaced}
	if !slices.ContainsFunc(known, func(e error) bool { return errors.Is(refused, e) }) {
		return
	}
	d := job.Denied{Time: time.Now().UTC(), UID: uid, User: proc.UserName(uid), Device: -1, Text: termtext.Printable(refused.Error())}
	d.Unknown = errors.Is(refused, ErrRule)
	d.Own = !errors.Is(refused, ErrOverbooked) && !d.Unknown
	if errors.Is(refused, ErrRun) {
		d.What, d.Text = "a run", strings.TrimPrefix(d.Text, ErrRun.Error()+": ")
	} else if errors.As(refused, &moveError{}) {
		d.What = "another GPU"
	} else if errors.Is(refused, ErrTooMuch) || errors.Is(refused, ErrOverbooked) && usable(uid) && !lent(uid) {
		d.What = "a larger ration"
	}
	var room *noRoom
	if errors.As(refused, &room) {
		d.Device, d.Asked, d.Held, d.Total = room.device, uint64(room.asked), uint64(room.held), uint64(room.total)
		d.Holders = room.holders[:min(len(room.holders), maxHolders)]
	}
	if err := job.AddDenied(d, k.records.Allow(proc.Account(uid), strconv.Itoa(uid), d.Time)); err != nil {
		k.log.Error("a refusal could not be recorded", "uid", uid, "error", err)
	}
}

// resume ends the runs without processes, returns their rations to the users' jobs, and waits for the end of the others.
func (k *keeper) resume() {
	lookAround()
	r, done, err := k.open()
	if err != nil {
		k.log.Error("reading the runs", "error", err)
		return
	}
	defer done()
	for _, run := range job.RunsOf(-1) {
		if r.endRun(run) != nil {
			uid, _, _ := job.RunOf(run.Name)
			created, _ := ready(run)
			go k.awaitEnd(uid, run, created)
		}
	}
	for _, uid := range Users() { // also those whose run the service that died has ended
		if lent(uid) {
			continue
		}
		if err := r.ensureUsable(uid); err != nil {
			k.log.Error("the ration of a run could not be given back", "uid", uid, "error", err)
		}
	}
}

// awaitEnd waits until a run has no process, and returns its ration to the user's job. It blocks a
// thread, because it waits for locks.
func (k *keeper) awaitEnd(uid int, run job.Job, created int64) {
	wait := func() error {
		_, _, err := job.Wait(run)
		return err
	}
	waited, err := endWhenUnused(wait, func() error { return k.giveBack(uid, run, created) }, time.Sleep)
	switch {
	case !waited:
		k.log.Error("waiting for a run failed; its ration is returned when the service starts again", "run", run.Name, "error", err)
	case err != nil:
		k.log.Error("the ration of a run could not be given back", "run", run.Name, "error", err)
	default:
		_, name, _ := job.RunOf(run.Name)
		k.note(uid, "run "+runTitle(uid, name)+" has ended, and its part is the user's again")
	}
}

// endWhenUnused waits until a run is unused and ends it. It tries again if a process has joined the
// run in between. By taking and dropping a lock, a user can make every wait return at once and
// every end fail. Each try takes the lock of all users' jobs, so the tries become less frequent.
// waited is false if waiting failed.
func endWhenUnused(wait, end func() error, sleep func(time.Duration)) (waited bool, err error) {
	again := job.Backoff{First: 10 * time.Millisecond, Last: 10 * time.Second}
	for {
		began := time.Now()
		if err := wait(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		took := time.Since(began)
		if err := end(); !errors.Is(err, job.ErrLiving) && !errors.Is(err, job.ErrInUse) {
			return true, err
		}
		sleep(again.After(took))
	}
}

// giveBack ends a run without processes, and returns its ration to the user's job.
func (k *keeper) giveBack(uid int, run job.Job, created int64) error {
	return k.twice(nil, func(r *rations) error {
		if now, is := ready(run); is && now != created {
			return nil // it was ended for its launcher, and the next run has its name
		}
		if err := r.endRun(run); err != nil {
			return err
		}
		return r.ensureUsable(uid)
	})
}

// open takes the locks that protect the jobs of users. done releases them.
func (k *keeper) open() (r *rations, done func(), err error) {
	k.turn.lock()
	lock, err := lockJobs()
	if err == nil {
		if r, err = k.policy.open(func(string) {}); err != nil {
			_ = lock.Close()
		}
	}
	if err != nil {
		k.turn.unlock()
		return nil, nil, err
	}
	r.note, r.stays = k.note, k.stays
	return r, func() {
		r.close()
		_ = lock.Close()
		k.turn.unlock()
	}, nil
}
