package sleep

import (
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
)

// A job that could not sleep is tried again after the same time, and after a minute at least.
func TestRefusedIsLeftAlone(t *testing.T) {
	now := time.Now()
	for _, after := range []time.Duration{time.Second, time.Hour} {
		told := 0
		w := &watcher{job: job.Job{Name: "gone", Path: filepath.Join(t.TempDir(), "region")}, rule: Rule{After: after}, tell: func(string) { told++ }}
		since := now.Add(-2 * after)
		expect.True(t, w.due(now, since, after), "it should sleep")
		w.sleep(now, 0) // there is no such job
		expect.Equal(t, told, 1, "reasons")
		least := max(after, time.Minute)
		expect.True(t, !w.due(now.Add(least-1), since, after), "it is tried again before", least)
		expect.True(t, w.due(now.Add(least), since, after), "it is not tried again")
	}
}
