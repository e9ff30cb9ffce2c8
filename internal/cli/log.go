package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// newLog returns the log of a command that runs for long, as text or JSON, a line each. Where systemd has
// given the command the journal, each line begins with its priority, which the journal takes out again
// (sd-daemon(3)): journalctl -p warning finds what is wrong.
func newLog(w io.Writer, json bool) *slog.Logger {
	if isJournal(w, os.Getenv("JOURNAL_STREAM")) {
		w = journal{w}
	}
	if json {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// isJournal reports whether a file is the one that systemd has named in JOURNAL_STREAM: a child's, or one that
// was redirected, is not.
func isJournal(w io.Writer, stream string) bool {
	f, is := w.(*os.File)
	var st unix.Stat_t
	return is && stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journal writes each line, which a handler writes at once, after its priority.
type journal struct{ io.Writer }

func (j journal) Write(line []byte) (int, error) {
	_, level, _ := bytes.Cut(line, []byte("level")) // both handlers write it after the time
	level = bytes.TrimLeft(level, `":=`)
	priority := "<6>"
	switch {
	case bytes.HasPrefix(level, []byte("WARN")):
		priority = "<4>"
	case bytes.HasPrefix(level, []byte("ERROR")):
		priority = "<3>"
	}
	if _, err := j.Writer.Write(append([]byte(priority), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}
