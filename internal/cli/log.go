package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// newLog returns the log of a long-running command, with one line of text or JSON for each message.
// If the output is systemd's journal, each line begins with its priority, which the journal removes
// (sd-daemon(3)). So journalctl -p warning shows only problems.
func newLog(w io.Writer, json bool) *slog.Logger {
	w = logWriter(w)
	if json {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// logWriter returns what takes the lines of a log.
func logWriter(w io.Writer) io.Writer {
	if isJournal(w, os.Getenv("JOURNAL_STREAM")) {
		return journal{w}
	}
	return w
}

// isJournal reports whether a file is the one that systemd named in JOURNAL_STREAM. It is not after
// a redirection, or in a child with another output.
func isJournal(w io.Writer, stream string) bool {
	f, is := w.(*os.File)
	var st unix.Stat_t
	return is && stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journal writes a priority before each line. A handler writes each line with one call.
type journal struct{ io.Writer }

func (j journal) Write(line []byte) (int, error) {
	_, level, _ := bytes.Cut(line, []byte("level")) // both handlers write the level after the time
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
