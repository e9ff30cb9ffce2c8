package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"ration/internal/node"
	"ration/internal/usage"
)

// timesInterval is how often the driver is asked who worked.
const timesInterval = usage.Step / 2

// accounts keeps the accounts of who used what. The loop of scans only adds up in memory; a goroutine asks the
// driver and writes the file, so neither can delay a scan.
type accounts struct {
	meter *usage.Meter
	store atomic.Pointer[usage.Store] // nil if none is kept
	path  string
	log   *slog.Logger
	inUse bool // a report is being read from the file: each write tries to open it again

	reading chan struct{} // has a value for each report that is being made
}

// maxReports bounds the reports that are made at once. If jobs have had very many names for months, a report of a year
// takes some 100 MiB of memory.
const maxReports = 2

// openAccounts opens the accounts at a path; empty for none.
func openAccounts(path string, log *slog.Logger) *accounts {
	a := &accounts{meter: usage.NewMeter(), path: path, log: log, reading: make(chan struct{}, maxReports)}
	if path == "" {
		return a
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		log.Warn("no accounts of usage are kept, for ration report", "error", err)
		return a
	}
	a.open()
	return a
}

// open opens the file. If it is damaged, open sets it aside and begins a new one. If a report is being read from it, as
// after a restart of the agent, open sets inUse.
func (a *accounts) open() {
	store, err := usage.Open(a.path)
	if errors.Is(err, usage.ErrBroken) {
		store, err = a.begin(err)
	}
	if err != nil {
		if !a.inUse {
			a.log.Warn("no accounts of usage are kept, for ration report", "error", err)
		}
		a.inUse = errors.Is(err, usage.ErrInUse)
		return
	}
	if a.inUse {
		a.log.Info("accounts of usage are kept from now on")
		a.inUse = false
	}
	a.store.Store(store)
}

// begin sets a damaged file aside, and opens a new one.
func (a *accounts) begin(why error) (*usage.Store, error) {
	aside := a.path + ".damaged"
	a.log.Error("the accounts of usage are damaged; new ones are begun", "error", why, "old", aside)
	if err := os.Rename(a.path, aside); err != nil {
		return nil, err
	}
	return usage.Open(a.path)
}

// run asks the driver and writes the accounts, until the context ends.
func (a *accounts) run(ctx context.Context, read func() *snapshot, idle *node.Idleness) {
	var driver node.Reader
	defer driver.Close()
	ask, write := time.NewTicker(timesInterval), time.NewTimer(untilStep(time.Now()))
	defer ask.Stop()
	defer write.Stop()
	last, failed := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			a.write(&failed)
			if store := a.store.Load(); store != nil {
				if err := store.Close(); err != nil {
					a.log.Warn("the accounts of usage were not closed", "error", err)
				}
			}
			return
		case now := <-ask.C:
			m := read().Machine.Clone()
			driver.AddTimes(m.Jobs, now)
			a.meter.Times(&m, now.Sub(last), now)
			idle.Look(&m, now)
			last = now
		case <-write.C:
			a.write(&failed)
			write.Reset(untilStep(time.Now()))
		}
	}
}

// untilStep returns the time until the next step begins. A period that was written at any other time would be of two steps,
// and a report since a time in the second one would lack it.
func untilStep(now time.Time) time.Duration { return now.Truncate(usage.Step).Add(usage.Step).Sub(now) }

// write writes the period since the last write. If it fails, the period is lost, and shows as not watched. Of a
// file that proves to be damaged, nothing more can be read: a new one is begun, which has the next period.
func (a *accounts) write(failed *bool) {
	if a.inUse {
		a.open()
	}
	store, period := a.store.Load(), a.meter.Take()
	if store == nil {
		return
	}
	err := store.Add(period)
	if errors.Is(err, usage.ErrBroken) {
		if fresh, failed := a.begin(err); failed == nil {
			a.store.Store(fresh)
			err = store.Close()
		}
	}
	if err != nil && !*failed {
		a.log.Error("the accounts of usage could not be written; what is used meanwhile is not counted", "error", err)
	}
	*failed = err != nil
}

// errNoAccounts is returned by an agent that keeps no accounts.
var errNoAccounts = errors.New("this agent keeps no accounts of usage (its log says why)")

// JobTotals implements metrics.Accounts.
func (a *accounts) JobTotals(of []usage.Subject) (map[usage.Subject]usage.Sums, error) {
	if store := a.store.Load(); store != nil {
		return store.JobTotals(of)
	}
	return nil, errNoAccounts
}

// UserTotals implements metrics.Accounts.
func (a *accounts) UserTotals() (map[usage.Subject]usage.Sums, error) {
	if store := a.store.Load(); store != nil {
		return store.UserTotals()
	}
	return nil, errNoAccounts
}

// serve answers with a report.
func (a *accounts) serve(w http.ResponseWriter, r *http.Request) {
	p, query := askerOf(r), r.URL.Query()
	from, err1 := time.Parse(time.RFC3339, query.Get("from"))
	to, err2 := time.Parse(time.RFC3339, query.Get("to"))
	if err := errors.Join(err1, err2, usage.CheckWay(query.Get("by"))); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	store := a.store.Load()
	if store == nil {
		http.Error(w, errNoAccounts.Error(), http.StatusServiceUnavailable)
		return
	}
	var report usage.Report
	var err error
	w.Header().Set("Content-Type", "application/json")
	_ = p.answer(w, func(out io.Writer) error { // fails if the client has disconnected, too
		// In the user's turn: each user waits for no more than one report of each other user.
		select {
		case a.reading <- struct{}{}:
			defer func() { <-a.reading }()
		case <-r.Context().Done():
			err = r.Context().Err()
			return err
		}
		read := store.Report
		if query.Has("plot") {
			read = store.ReportPlot
		}
		if report, err = read(from, to, query.Get("by"), func(uid int) bool { return p.all || uid == p.uid }); err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(report)
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
