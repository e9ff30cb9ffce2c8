package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Thread is a thread of a process.
type Thread struct{ PID, TID int }

// Threads returns the threads of a process.
func Threads(pid int) ([]Thread, error) {
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, err
	}
	out := make([]Thread, 0, len(names))
	for _, name := range names {
		if tid, err := strconv.Atoi(name.Name()); err == nil {
			out = append(out, Thread{pid, tid})
		}
	}
	return out, nil
}

// Running reports whether a thread has or wants a processor now, and how long it has had one in all.
func (t Thread) Running() (ran time.Duration, running bool, err error) {
	folder := filepath.Join("/proc", strconv.Itoa(t.PID), "task", strconv.Itoa(t.TID))
	text, err := readStart(filepath.Join(folder, "stat"), maxStat)
	if err != nil {
		return 0, false, err
	}
	stat, err := parseStat(text)
	if err != nil {
		return 0, false, err
	}
	if text, err = readStart(filepath.Join(folder, "schedstat"), maxStat); err != nil {
		return 0, false, err
	}
	first, _, _ := bytes.Cut(text, []byte(" "))
	ns, err := strconv.ParseInt(string(first), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("reading the time of thread %d: %w", t.TID, err)
	}
	return time.Duration(ns), stat.State == 'R', nil
}
