package privsep

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
)

// fakeReader is the other end of attend.
type fakeReader struct {
	t      *testing.T
	conn   *net.UnixConn
	lines  *bufio.Scanner
	ended  chan error // says that its process has ended
	killed atomic.Bool
	result chan error // of attend
	stop   func()     // asks the parent to end
	events chan string
}

// attended begins a parent that has a reader, which this test is.
func attended(t *testing.T, reap func(context.Context, []string, int) error) *fakeReader {
	t.Helper()
	own, file, err := pair(unix.SOCK_STREAM)
	expect.OK(t, err)
	defer file.Close()
	theirs, err := net.FileConn(file)
	expect.OK(t, err)
	ctx, stop := context.WithCancel(context.Background())
	r := &fakeReader{t: t, conn: theirs.(*net.UnixConn), lines: bufio.NewScanner(theirs), ended: make(chan error, 1), result: make(chan error, 1), stop: stop, events: make(chan string, 256)}
	opts := Options{Reap: reap, Ready: func() { r.events <- "ready" }, Stopping: func() { r.events <- "stopping" }}
	go func() {
		r.result <- attend(ctx, own, opts, r.ended, func(os.Signal) error {
			r.killed.Store(true)
			_ = theirs.Close()
			r.ended <- nil
			return nil
		})
	}()
	t.Cleanup(func() {
		r.end()
		stop()
	})
	return r
}

// end is the end of the reader's process.
func (r *fakeReader) end() {
	_ = r.conn.Close()
	select {
	case r.ended <- nil:
	default:
	}
}

func (r *fakeReader) write(text string) {
	r.t.Helper()
	_, err := r.conn.Write([]byte(text))
	expect.Equal(r.t, err, nil)
}

// answer returns the next answer.
func (r *fakeReader) answer() (a answer) {
	r.t.Helper()
	expect.Must(r.t, r.lines.Scan(), "no answer", r.lines.Err())
	expect.OK(r.t, json.Unmarshal(r.lines.Bytes(), &a), r.lines.Bytes())
	return a
}

// ask returns what comes of a request.
func (r *fakeReader) ask(id uint64, uid any, paths ...string) string {
	r.t.Helper()
	line, err := json.Marshal(map[string]any{"id": id, "uid": uid, "paths": paths})
	expect.OK(r.t, err)
	r.write(string(line) + "\n")
	a := r.answer()
	expect.Equal(r.t, a.ID, id, "answer")
	return a.Error
}

const someRegion = "/run/user/1000/ration/train/region"

// What a hostile reader asks for is refused, and nothing is done of it.
func TestRefusesRequests(t *testing.T) {
	var done []string
	r := attended(t, func(_ context.Context, paths []string, uid int) error {
		done = append(done, fmt.Sprint(uid, paths))
		return nil
	})
	roots := job.RootFolder + "/train/region"
	for i, test := range []struct {
		uid   any
		paths []string
	}{
		{-1, []string{someRegion}},
		{int64(-1) << 40, []string{someRegion}},
		{int64(1)<<32 - 1, []string{someRegion}}, // -1 to the kernel
		{int64(1) << 32, []string{someRegion}},   // 0 in 32 bits
		{1000, nil},
		{1000, slices.Repeat([]string{someRegion}, MaxPaths+1)},
		{1000, []string{""}},
		{1000, []string{"region"}},
		{1000, []string{"--help"}},
		{1000, []string{"./region"}},
		{1000, []string{"/run/user/1000/../../../etc/region"}},
		{1000, []string{"/run//region"}},
		{1000, []string{"/run/region/"}},
		{1000, []string{"/etc/shadow"}},
		{1000, []string{someRegion, "/etc/shadow"}},
		{1000, []string{"/" + strings.Repeat("a", maxPath) + "/region"}},
		{0, []string{someRegion}},
		{0, []string{"/run/ration-1000/train/region"}},
		{0, []string{job.RootFolder + "/region"}},
		{0, []string{job.RootFolder + "/a/b/region"}},
		{0, []string{roots, someRegion}},
	} {
		if got := r.ask(uint64(i), test.uid, test.paths...); !strings.HasPrefix(got, ErrRefused.Error()) || len(got) > maxError {
			t.Errorf("%v of %.200q: %.200q", test.uid, test.paths, got)
		}
	}
	expect.Equal(t, len(done), 0, "did", done)
	// The same process goes on to do what may be asked for.
	longest := "/" + strings.Repeat("a", maxPath-len("//region")) + "/region"
	for i, got := range []string{r.ask(1, 1000, someRegion), r.ask(2, 0, roots), r.ask(3, int64(1)<<32-2, slices.Repeat([]string{longest}, MaxPaths)...)} {
		expect.Equal(t, got, "", i)
	}
	if len(done) != 3 || done[0] != fmt.Sprint(1000, []string{someRegion}) {
		t.Errorf("did %.500q", done)
	}
}

// What is no message is the end of the reader.
func TestBrokenReaderIsKilled(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":            "reap everything\n",
		"a list":             "[1, 2]\n",
		"other types":        `{"id":1,"uid":"root","paths":["/region"]}` + "\n",
		"a fraction":         `{"id":1,"uid":0.5,"paths":["/region"]}` + "\n",
		"a large number":     `{"id":1,"uid":99999999999999999999,"paths":["/region"]}` + "\n",
		"two in one line":    `{"ready":true}{"ready":true}` + "\n",
		"deep":               strings.Repeat("[", maxLine/2) + "\n",
		"a line without end": strings.Repeat(" ", maxLine+1),
	} {
		t.Run(name, func(t *testing.T) {
			r := attended(t, func(context.Context, []string, int) error { t.Error("it has done something"); return nil })
			_, _ = r.conn.Write([]byte(line)) // it may be killed before the end
			select {
			case err := <-r.result:
				expect.True(t, errors.Is(err, ErrBroken) && r.killed.Load(), err, "killed", r.killed.Load())
			case <-time.After(time.Minute):
				t.Error("it waits for more")
			}
		})
	}
}

// A reader that asks for more than may be at once waits until some of it is done.
func TestFloodWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, began int
		var mu sync.Mutex
		release := make(chan struct{})
		own, theirs := net.Pipe()
		served := make(chan error)
		go func() {
			served <- serve(t.Context(), own, Options{Ready: func() {}, Reap: func(ctx context.Context, _ []string, _ int) error {
				mu.Lock()
				now++
				began++
				mu.Unlock()
				select {
				case <-release:
				case <-ctx.Done():
				}
				mu.Lock()
				now--
				mu.Unlock()
				return nil
			}})
		}()
		asked := flood(t, theirs)
		answers := make(chan struct{})
		go func() {
			for lines := bufio.NewScanner(theirs); lines.Scan(); {
			}
			close(answers)
		}()
		for n := range 100 {
			synctest.Wait() // until nothing goes on by itself
			expect.Must(t, now == 4 && began == 4+n && asked.Load() <= int64(began)+maxLine/1000,
				now, "are under way of", began, "that began, and", asked.Load(), "were taken, after the end of", n)
			release <- struct{}{}
		}
		_ = theirs.Close()
		err := <-served
		expect.True(t, err == nil && now == 0, err, now, "go on")
		<-answers
	})
}

// flood sends 10,000 requests, and counts those that were taken.
func flood(t *testing.T, to net.Conn) *atomic.Int64 {
	t.Helper()
	line, err := json.Marshal(message{ID: 1, UID: 1000, Paths: slices.Repeat([]string{someRegion}, MaxPaths)})
	expect.OK(t, err)
	var taken atomic.Int64
	go func() {
		for range 10000 {
			if _, err := to.Write(append(line, '\n')); err != nil {
				return
			}
			taken.Add(1)
		}
	}()
	return &taken
}

// A reader that takes no answer waits for itself; its parent does no more for it, and ends when it is to.
func TestNoAnswerIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var done atomic.Int64
		own, theirs := net.Pipe()
		served := make(chan error)
		go func() {
			served <- serve(ctx, own, Options{Ready: func() {}, Reap: func(context.Context, []string, int) error { done.Add(1); return nil }})
		}()
		taken := flood(t, theirs)
		synctest.Wait()
		expect.True(t, done.Load() == MaxReaping && taken.Load() < maxLine/1000,
			done.Load(), "are done, and", taken.Load(), "were taken, of which nobody has taken an answer")
		stop()
		expect.Equal(t, <-served, nil)
		_ = theirs.Close()
	})
}

// Whatever keeps a reader from ending, its parent ends: after SIGQUIT, by which the log says what the reader was doing,
// and SIGKILL, and also if the kernel cannot end it.
func TestEndIsBounded(t *testing.T) {
	for name, endsBy := range map[string]os.Signal{"by itself": nil, "by SIGQUIT": unix.SIGQUIT, "by SIGKILL": unix.SIGKILL, "not at all": unix.SIGUSR1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				var got []os.Signal
				signal := func(s os.Signal) error {
					if got = append(got, s); s == endsBy {
						ended <- nil
					}
					return nil
				}
				if endsBy == nil {
					ended <- nil
				}
				began := time.Now()
				err := awaitEnd(signal, ended)
				expect.True(t, time.Since(began) <= endTimeout+2*killTimeout, "took", time.Since(began))
				if endsBy == nil {
					expect.True(t, err == nil && got == nil, err, got)
					return
				}
				expect.True(t, errors.Is(err, ErrLate) && slices.Equal(got, []os.Signal{unix.SIGQUIT, unix.SIGKILL}), err, got)
			})
		})
	}
}

// A reader that has ended is not late, also if this process did not run meanwhile.
func TestEndedIsNotLate(t *testing.T) {
	ended := make(chan error, 1)
	ended <- nil
	over, err := within(0, ended)
	expect.True(t, over && err == nil, over, err)
}

// Errors are handed on in part.
func TestErrorHasBound(t *testing.T) {
	r := attended(t, func(context.Context, []string, int) error { return errors.New(strings.Repeat("é", maxError)) })
	got := r.ask(1, 1000, someRegion)
	expect.True(t, len(got) == maxError && strings.Trim(got, "é") == "", len(got), "bytes", got)
}

// Ready is told once, whatever the reader says.
func TestReadyOnce(t *testing.T) {
	r := attended(t, func(context.Context, []string, int) error { return nil })
	r.write(strings.Repeat(`{"ready":true}`+"\n", 100))
	r.ask(1, 1000, someRegion)
	r.end()
	<-r.result
	a, b, more := <-r.events, <-r.events, len(r.events)
	expect.True(t, a == "ready" && b == "stopping" && more == 0, a, b, more)
}

// What is under way ends with the reader.
func TestReapingEndsWithReader(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	r := attended(t, func(ctx context.Context, _ []string, _ int) error {
		close(began)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	r.write(`{"id":1,"uid":1000,"paths":["` + someRegion + `"]}` + "\n")
	<-began
	r.end()
	<-r.result
	select {
	case <-ended:
	default:
		t.Error("attend returned before")
	}
}

// A reader that closes its end, and goes on, is asked to end.
func TestReaderThatClosesItsEnd(t *testing.T) {
	r := attended(t, nil)
	expect.OK(t, r.conn.CloseWrite())
	got := <-r.events
	expect.True(t, got == "stopping" && !r.lines.Scan(), got)
	r.end()
	expect.Equal(t, <-r.result, nil)
}

// The two ends understand each other: each gets the answer to its own request.
func TestChannel(t *testing.T) {
	r := attended(t, func(ctx context.Context, paths []string, uid int) error {
		switch uid {
		case 1:
			return nil
		case 2:
			<-ctx.Done()
			return ctx.Err()
		}
		return fmt.Errorf("%d %s", uid, paths)
	})
	c := newChannel(r.conn)
	c.Ready()
	expect.Equal(t, <-r.events, "ready")
	var all sync.WaitGroup
	for uid := 10; uid < 30; uid++ {
		all.Go(func() {
			err := c.Reap(context.Background(), []string{someRegion}, uid)
			expect.True(t, err != nil && err.Error() == fmt.Sprintf("%d [%s]", uid, someRegion), "user", uid, err)
		})
	}
	all.Wait()
	expect.Equal(t, c.Reap(context.Background(), []string{someRegion}, 1), nil)
	err := c.Reap(context.Background(), []string{"/etc/shadow"}, 1)
	expect.True(t, err != nil && strings.Contains(err.Error(), "refused"), err)
	err = c.Reap(context.Background(), slices.Repeat([]string{strings.Repeat("a", 2*maxPath)}, MaxPaths), 1)
	expect.True(t, errors.Is(err, ErrRefused), err)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(time.Millisecond, cancel)
	err = c.Reap(ctx, []string{someRegion}, 2)
	expect.True(t, errors.Is(err, context.Canceled), err)
	r.stop()
	<-c.Ended()
}
