package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
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
	store *usage.Store // nil if none is kept
	path  string
	log   *slog.Logger
}

// openAccounts opens the accounts at a path; empty for none. A file that is damaged is set aside: what it has
// cannot be read, and what is used from now on can be kept.
func openAccounts(path string, log *slog.Logger) *accounts {
	a := &accounts{meter: usage.NewMeter(), path: path, log: log}
	if path == "" {
		return a
	}
	store, err := (*usage.Store)(nil), os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		store, err = usage.Open(path)
	}
	if errors.Is(err, usage.ErrBroken) {
		aside := path + ".damaged"
		log.Error("the accounts of usage are damaged; new ones are begun", "error", err, "old", aside)
		if err = os.Rename(path, aside); err == nil {
			store, err = usage.Open(path)
		}
	}
	if err != nil {
		log.Warn("no accounts of usage are kept, for ration report", "error", err)
		return a
	}
	a.store = store
	return a
}

// run asks the driver and writes the accounts, until the context ends.
func (a *accounts) run(ctx context.Context, read func() *snapshot) {
	if a.store == nil {
		return
	}
	var driver node.Reader
	defer driver.Close()
	ask, write := time.NewTicker(timesInterval), time.NewTicker(usage.Step)
	defer ask.Stop()
	defer write.Stop()
	last, failed := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			a.write(&failed)
			if err := a.store.Close(); err != nil {
				a.log.Warn("the accounts of usage were not closed", "error", err)
			}
			return
		case now := <-ask.C:
			m := read().Machine.Clone()
			driver.AddTimes(m.Jobs, now)
			a.meter.Times(m.Jobs, now.Sub(last), now)
			last = now
		case <-write.C:
			a.write(&failed)
		}
	}
}

// write writes the period since the last write. If it fails, the period is lost, and shows as not watched.
func (a *accounts) write(failed *bool) {
	err := a.store.Add(a.meter.Take())
	if err != nil && !*failed {
		a.log.Error("the accounts of usage could not be written; what is used meanwhile is not counted", "error", err)
	}
	*failed = err != nil
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
	if a.store == nil {
		http.Error(w, "this agent keeps no accounts", http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, p, func() any {
		report, err := a.store.Report(from, to, query.Get("by"), func(uid int) bool { return p.all || uid == p.uid })
		if err != nil {
			a.log.Error("a report of usage failed", "error", err)
		}
		return report
	})
}
