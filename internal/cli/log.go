package cli

import (
	"bytes"
	"context"
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
	in := func(w io.Writer) slog.Handler {
		if json {
			return slog.NewJSONHandler(w, nil)
		}
		return slog.NewTextHandler(w, nil)
	}
	if !isJournal(w, os.Getenv("JOURNAL_STREAM")) {
		return slog.New(in(w))
	}
	return slog.New(journal{in(&prioritized{w, "<6>"}), in(&prioritized{w, "<4>"}), in(&prioritized{w, "<3>"})})
}

// isJournal reports whether a file is the one that systemd has named in JOURNAL_STREAM: a child's, or one that
// was redirected, is not.
func isJournal(w io.Writer, stream string) bool {
	f, is := w.(*os.File)
	var st unix.Stat_t
	return is && stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journal is a log in which each priority has a handler of its own.
type journal struct{ info, warning, err slog.Handler }

func (j journal) of(level slog.Level) slog.Handler {
	switch {
	case level >= slog.LevelError:
		return j.err
	case level >= slog.LevelWarn:
		return j.warning
	}
	return j.info
}

func (j journal) Enabled(ctx context.Context, level slog.Level) bool {
	return j.of(level).Enabled(ctx, level)
}

func (j journal) Handle(ctx context.Context, r slog.Record) error {
	return j.of(r.Level).Handle(ctx, r)
}

func (j journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return journal{j.info.WithAttrs(attrs), j.warning.WithAttrs(attrs), j.err.WithAttrs(attrs)}
}

func (j journal) WithGroup(name string) slog.Handler {
	return journal{j.info.WithGroup(name), j.warning.WithGroup(name), j.err.WithGroup(name)}
}

// prioritized writes each line, which a handler writes at once, after its priority.
type prioritized struct {
	w        io.Writer
	priority string
}

func (p *prioritized) Write(line []byte) (int, error) {
	if _, err := p.w.Write(bytes.Join([][]byte{[]byte(p.priority), line}, nil)); err != nil {
		return 0, err
	}
	return len(line), nil
}
