package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/internal/limit"
)

// A user asks for a job or a run of that user only. Root may ask for any.
func TestHandleRefusesOtherUsers(t *testing.T) {
	for _, line := range []string{"1001", "1001 run name memory=1g", "-1", "root", ""} {
		refused := make(chan error, 1)
		go func() {
			_, _, err := (&keeper{}).handle(nil, 1000, line, false)
			refused <- err
		}()
		var err error
		select {
		case err = <-refused:
		case <-time.After(10 * time.Second): // it works on the request
		}
		if err == nil || line != "" && !strings.Contains(err.Error(), "user 1000 asked for a job of user") {
			t.Errorf("%q of user 1000: %v", line, err)
		}
	}
}

// A message tells a user to ask for less only if a program can run with that.
func TestRefusalSuggestsUsefulRation(t *testing.T) {
	for free, want := range map[limit.Size]string{411 << 20: "(try again later)", 1536 << 20: "--mem 1536m)", 20<<30 + 5: "--mem 20g)"} {
		if text := (&noRoom{asked: 60 << 30, held: 140<<30 - free, total: 140 << 30, among: 1}).Error(); !strings.HasSuffix(text, want) {
			t.Errorf("with %v free: %s", free, text)
		}
	}
}

// It does not tell a user to ask for no more than the user has.
func TestRefusalSuggestsMoreThanNow(t *testing.T) {
	for has, want := range map[limit.Size]string{39 << 30: "--mem 40g)", 40 << 30: "(try again later)", 100 << 30: "(try again later)"} {
		if text := (&noRoom{asked: 110 << 30, held: 100 << 30, total: 140<<30 + 5, has: has, among: 1}).Error(); !strings.HasSuffix(text, want) {
			t.Errorf("with %v now: %s", has, text)
		}
	}
}

// What the user of a refused run can do is in the last parentheses, which machine.Denied tells from the rest.
func TestRefusedRunAdvises(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&noRoom{asked: 60 << 30, held: 100 << 30, total: 140 << 30, among: 1}, " (try again later, or ask for less: ration policy ask --mem 40g; with --wait the command waits for it)"},
		{ErrOverbooked, " (with --wait the command waits for it)"},
	} {
		err := unlessLater(c.err, false)
		if text := err.Error(); !errors.Is(err, ErrOverbooked) || !strings.HasSuffix(text, c.want) {
			t.Error(text)
		}
	}
}

// A file that others can write, or in a folder that they can, is no policy.
func TestTrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has files that are root's")
	}
	for _, c := range []struct {
		folder, file os.FileMode
		owner        int
		trusted      bool
	}{{0o755, 0o644, 0, true}, {0o755, 0o664, 0, false}, {0o755, 0o646, 0, false}, {0o777, 0o644, 0, false}, {0o755, 0o644, 4242, false}} {
		folder := filepath.Join(t.TempDir(), "etc")
		file := filepath.Join(folder, "policy.toml")
		for _, err := range []error{os.Mkdir(folder, c.folder), os.Chmod(folder, c.folder), os.WriteFile(file, nil, c.file), os.Chmod(file, c.file),
			os.Chown(file, c.owner, c.owner)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := Trusted(file); (err == nil) != c.trusted {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
