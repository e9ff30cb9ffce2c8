package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/usage"
	"ration/machine"
)

// A file that is damaged while the agent runs, or before it starts, is set aside, and a new one is begun.
func TestDamagedAccounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "usage.db")
	log := slog.New(slog.DiscardHandler)
	a, failed := openAccounts(path, log), false
	a.write(&failed)
	text, err := os.ReadFile(path)
	expect.OK(t, err)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	expect.OK(t, err)
	for at := 8192; at < len(text); at += 4096 { // all but the two pages that say where the others are
		_, err := file.WriteAt([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}, int64(at))
		expect.OK(t, err)
	}
	expect.OK(t, file.Close())
	a.write(&failed)
	expect.True(t, !failed, "no new file was begun")
	_, err = os.Stat(path + ".damaged")
	expect.OK(t, err)
	a.write(&failed)
	expect.True(t, !failed, "the new file was not written")
	expect.OK(t, a.store.Load().Close())

	expect.OK(t, os.WriteFile(path, text[:len(text)/2], 0o600))
	a = openAccounts(path, log)
	expect.True(t, a.store.Load() != nil, "a file that was cut short keeps the agent from accounts")
	_, err = a.store.Load().Report(time.Now().Add(-time.Hour), time.Now(), usage.ByUser, func(int) bool { return true })
	expect.OK(t, err)
	expect.OK(t, a.store.Load().Close())
}

// A report that is being read from the file when the agent starts does not keep it from accounts for good.
func TestAccountsInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.db")
	made, err := usage.Open(path)
	expect.OK(t, err)
	expect.OK(t, made.Close())
	report, err := usage.OpenReadOnly(path)
	expect.OK(t, err)
	a, failed := openAccounts(path, slog.New(slog.DiscardHandler)), false
	expect.True(t, a.store.Load() == nil, "accounts that are being read are open for writing")
	expect.OK(t, report.Close())
	a.write(&failed)
	expect.Must(t, a.store.Load() != nil && !failed, "no accounts are kept after the report")
	expect.OK(t, a.store.Load().Close())
}

// A look that took long is followed by a rest, in which scans find changes without it. A short one is made at each scan.
// The rest is never so long that what was held meanwhile would not count.
func TestLookRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, looks := &Agent{}, 0
		look := func(takes time.Duration) {
			a.account(func() { looks++; time.Sleep(takes) })
		}
		look(0)
		look(100 * time.Millisecond)
		expect.Equal(t, looks, 2, "looks of which the first took no time")
		time.Sleep(time.Second - time.Millisecond)
		look(0)
		expect.Equal(t, looks, 2, "looks before a second has passed since one that took a tenth of that")
		time.Sleep(time.Millisecond)
		look(time.Minute)
		expect.Equal(t, looks, 3, "looks after a second")
		time.Sleep(maxLookRest)
		look(0)
		expect.Equal(t, looks, 4, "looks after one that took a minute, and the longest rest")
	})
}

// What happens in a step is in the accounts of that step, whenever the agent was started: a report since a time has all from
// then on, and little from before.
func TestAccountsOfAStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.db")
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().Truncate(usage.Step)
		time.Sleep(8 * time.Second)
		a := openAccounts(path, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx, func() *snapshot { return &snapshot{} }, node.NewIdleness(0))
		}()
		for range 34 {
			a.meter.Look(&machine.Machine{}, time.Now())
			time.Sleep(time.Second)
		}
		stop()
		<-done
		store, err := usage.OpenReadOnly(path)
		expect.OK(t, err)
		defer store.Close()
		for step, want := range []float64{2, 10, 10, 10} {
			from := began.Add(time.Duration(step) * usage.Step)
			r, err := store.Report(from, from.Add(usage.Step), usage.ByUser, func(int) bool { return true })
			expect.OK(t, err)
			expect.True(t, r.Watched >= want-1 && r.Watched <= want+1, "step", step, "has", r.Watched, "seconds, want", want)
		}
	})
}

// What the accounts have not looked at yet is written when the agent ends.
func TestLooksAtItsEnd(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	path := filepath.Join(t.TempDir(), "usage.db")
	a, err := New(Options{Usage: path, Log: slog.New(slog.DiscardHandler)})
	expect.OK(t, err)
	a.usage.meter.Look(&machine.Machine{}, time.Now().Add(-time.Second))
	a.lookDue = time.Now().Add(time.Hour)
	ctx, stop := context.WithCancel(t.Context())
	expect.OK(t, a.Run(ctx, stop))
	store, err := usage.OpenReadOnly(path)
	expect.OK(t, err)
	defer store.Close()
	report, err := store.Report(time.Now().Add(-time.Hour), time.Now().Add(time.Minute), usage.ByUser, func(int) bool { return true })
	expect.OK(t, err)
	expect.True(t, report.Watched >= 1, "seconds in the accounts:", report.Watched)
}

// A user gets a report and a plot of that user's accounts only; root gets all.
func TestAccountsOfOthers(t *testing.T) {
	a := openAccounts(filepath.Join(t.TempDir(), "usage.db"), slog.New(slog.DiscardHandler))
	defer a.store.Load().Close()
	now := time.Now()
	expect.OK(t, a.store.Load().Add(usage.Period{At: now.Add(-time.Minute), Watched: usage.Step, Sums: map[usage.Subject]usage.Sums{
		{UID: 1000, Owner: "ada", Job: "train", Device: "GPU-0"}:       {Held: 100},
		{UID: 1001, Owner: "bob", Job: "secret-name", Device: "GPU-0"}: {Held: 7},
	}}))
	ask := func(p peer, query string) (r usage.Report, text string) {
		request := httptest.NewRequest("GET", "/v1/usage?"+query+"&from="+now.Add(-time.Hour).UTC().Format(time.RFC3339)+"&to="+now.UTC().Add(time.Second).Format(time.RFC3339), nil)
		answer := httptest.NewRecorder()
		a.serve(answer, request.WithContext(context.WithValue(request.Context(), peerKey{}, p)))
		expect.OK(t, json.Unmarshal(answer.Body.Bytes(), &r), answer.Body.String())
		return r, answer.Body.String()
	}
	for _, by := range usage.Ways {
		for _, query := range []string{"by=" + by, "by=" + by + "&plot"} {
			r, text := ask(peer{uid: 1000}, query)
			expect.True(t, r.Total.Held == 100 && len(r.Lines) == 1 && !strings.Contains(text, "bob") && !strings.Contains(text, "secret-name"), query, text)
			if r.Plot != nil {
				held := uint64(0)
				for _, p := range r.Plot.All {
					held += p.Held
				}
				expect.True(t, held >= 99 && held <= 100, query, held)
			}
			expect.Equal(t, r.Plot != nil, strings.HasSuffix(query, "plot"), query)
			r, _ = ask(peer{uid: 0, all: true}, query)
			expect.Equal(t, r.Total.Held, 107, query)
			r, _ = ask(peer{uid: -1}, query)
			expect.Equal(t, r.Total.Held, 0, query)
		}
	}
}

// A bounded number of reports is made at once. The next one waits, and a client that has gone does not.
func TestReportsAtOnce(t *testing.T) {
	a := openAccounts(filepath.Join(t.TempDir(), "usage.db"), slog.New(slog.DiscardHandler))
	defer a.store.Load().Close()
	ask := func(ctx context.Context) int {
		r := httptest.NewRequestWithContext(ctx, "GET", "/v1/report?by=user&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z", nil)
		w := httptest.NewRecorder()
		a.serve(w, r)
		return w.Code
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range maxReports {
		expect.Equal(t, ask(t.Context()), http.StatusOK)
		a.reading <- struct{}{}
	}
	expect.Equal(t, ask(gone), http.StatusInternalServerError, "a report beside all that may be made")
	<-a.reading
	expect.Equal(t, ask(t.Context()), http.StatusOK)
	expect.Equal(t, len(a.reading), maxReports-1, "reports being made after the last one")
}

// The agent ends although its accounts cannot be closed: a report of them is still being read, or the disk does not answer.
func TestEndsBesideReport(t *testing.T) {
	was := lastWrite
	lastWrite = 100 * time.Millisecond
	t.Cleanup(func() { lastWrite = was })
	t.Setenv(job.EnvFolder, t.TempDir())
	a, err := New(Options{Usage: filepath.Join(t.TempDir(), "usage.db"), Log: slog.New(slog.DiscardHandler)})
	expect.OK(t, err)
	now := time.Now()
	expect.OK(t, a.usage.store.Load().Add(usage.Period{At: now, Watched: usage.Step, Sums: map[usage.Subject]usage.Sums{{UID: 1000, Job: "train"}: {Held: 1}}}))
	reading, read, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		first := sync.OnceFunc(func() { close(reading) })
		_, err := a.usage.store.Load().Report(now.Add(-time.Hour), now.Add(time.Hour), usage.ByUser, func(int) bool {
			first()
			<-read
			return true
		})
		done <- err
	}()
	<-reading
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx, stop) }()
	select {
	case err := <-ended:
		expect.OK(t, err)
	case <-time.After(20 * time.Second):
		t.Error("the agent waits for a report")
	}
	close(read)
	expect.OK(t, <-done)
}
