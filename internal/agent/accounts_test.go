package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/usage"
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
