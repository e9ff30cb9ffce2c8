package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// In the journal each line has its priority; elsewhere none has, also where a parent's variable is left.
func TestLogInJournal(t *testing.T) {
	for _, test := range []struct {
		name, want string
		json, mine bool
	}{
		{name: "journal", mine: true, want: `^<6>time=\S+ level=INFO msg=a job=x\n<4>time=\S+ level=WARN msg=b\n<3>time=\S+ level=ERROR msg=c\n$`},
		{name: "journal, JSON", json: true, mine: true, want: `^<6>{.*}\n<4>{.*}\n<3>{.*}\n$`},
		{name: "another's", want: `^time=\S+ level=INFO msg=a job=x\ntime=\S+ level=WARN msg=b\ntime=\S+ level=ERROR msg=c\n$`},
	} {
		r, w, err := os.Pipe()
		expect.OK(t, err)
		var st unix.Stat_t
		expect.OK(t, unix.Fstat(int(w.Fd()), &st))
		if !test.mine {
			st.Ino++
		}
		t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
		log := newLog(w, test.json)
		log.With("job", "x").Info("a")
		log.Warn("b")
		log.Error("c")
		expect.OK(t, w.Close())
		text, err := io.ReadAll(r)
		expect.True(t, err == nil && regexp.MustCompile(test.want).Match(text), test.name, text, err, test.want)
	}
}
